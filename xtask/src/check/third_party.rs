// SPDX-License-Identifier: MIT
//! `third_party.lock`: what is fetched from elsewhere, and which state of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The version of the file's layout.
const VERSION: u32 = 1;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThirdParty {
    /// Of the layout: 1.
    pub version: u32,
    /// What is fetched.
    pub source: Vec<Source>,
}

/// A repository at one commit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// By which it is called here.
    pub name: String,
    /// Where to clone it from.
    pub url: String,
    /// What its authors call this state.
    pub version: String,
    /// The full hash.
    pub commit: String,
    /// Its SPDX licence identifier.
    pub license: String,
}

/// Checks the file at `path`.
///
/// # Errors
///
/// When it cannot be read or is not in order.
pub fn check(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).context("it cannot be read")?;
    parse(&text).map(drop)
}

/// Reads and checks the text of the file.
///
/// # Errors
///
/// When it is not in order.
pub fn parse(text: &str) -> Result<ThirdParty> {
    let file: ThirdParty = toml::from_str(text)?;
    if file.version != VERSION {
        bail!("version is {}, not {VERSION}", file.version);
    }
    let mut names = BTreeSet::new();
    for source in &file.source {
        let name = &source.name;
        ensure!(!name.is_empty(), "a source has no name");
        ensure!(names.insert(name), "{name} is there twice");
        ensure!(
            source.url.starts_with("https://"),
            "{name}: url is not https"
        );
        let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let full = source.commit.len() == 40 && source.commit.chars().all(hex);
        ensure!(full, "{name}: commit is not 40 lower-case hex digits");
        ensure!(!source.version.is_empty(), "{name}: version is empty");
        ensure!(!source.license.is_empty(), "{name}: license is empty");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = include_str!("../../../third_party.lock");

    #[test]
    fn the_file_in_this_repository_pins_gpunetio() {
        let file = parse(OURS).unwrap();
        let source = file.source.iter().find(|s| s.name == "gpunetio").unwrap();
        assert_eq!(source.version, "4.0.1");
        assert_eq!(source.commit, "bfe3e5484f16a01ac91a906b2f0046dbc8bd61a4");
        assert_eq!(source.license, "BSD-3-Clause");
    }

    /// What passes is safe to hand to git: no word of it can be an option or a path.
    #[test]
    fn fuzz_third_party_lock() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let Ok(file) = mscclpp_fuzz::at_most(1 << 20, || parse(&text)) else {
                return;
            };
            for source in file.source {
                assert!(source.commit.chars().all(|c| c.is_ascii_hexdigit()));
                assert_eq!(source.commit.len(), 40);
                assert!(source.url.starts_with("https://"));
            }
        });
    }

    #[test]
    fn faults_are_found() {
        let bad = |from: &str, to: &str| {
            assert!(OURS.contains(from));
            assert!(parse(&OURS.replace(from, to)).is_err(), "{from} as {to}");
        };
        bad("version = 1", "version = 2");
        bad("https://", "http://");
        bad("bfe3e548", "");
        bad("bfe3e548", "BFE3E548");
        bad("license =", "licence =");
        bad("\"BSD-3-Clause\"", "\"\"");
        let twice = format!("{OURS}{}", &OURS[OURS.find("[[source]]").unwrap()..]);
        assert!(parse(&twice).is_err());
    }
}
