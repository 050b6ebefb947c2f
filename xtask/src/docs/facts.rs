// SPDX-License-Identifier: MIT
//! What exists, for pages to be held against: packages and their targets, tests, variables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

use super::Suite;

/// What a variable of this project, or one of its builds, begins with.
const PREFIXES: [&str; 3] = ["MSCCLPP_", "GPUNETIO_", "RXE_"];

/// A member of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Its features.
    pub features: Vec<String>,
    /// Kinds and names of its targets.
    pub targets: Vec<(String, String)>,
}

impl Package {
    /// Whether it has a target of a kind.
    pub fn has(&self, kind: &str, name: &str) -> bool {
        (self.targets.iter()).any(|(found, target)| found == kind && target == name)
    }
}

/// A function that cargo runs as a test.
#[derive(Clone, Debug)]
pub struct TestFunction {
    /// The package.
    pub package: String,
    /// The file, from the package's directory.
    pub file: String,
    /// Its modules and its name.
    pub path: String,
}

/// What exists.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The directory of the repository.
    pub root: PathBuf,
    /// Members of the workspace.
    pub packages: Vec<Package>,
    /// Tests of the packages.
    pub tests: Vec<TestFunction>,
    /// What the suite tells of itself.
    pub suite: Suite,
    /// Variables and macros that files of code have.
    pub names: BTreeSet<String>,
    /// Of those, the ones that stand in quotes in files that are no tests, with the files.
    pub variables: Vec<(String, PathBuf)>,
}

impl Facts {
    /// Reads the workspace of this directory.
    ///
    /// # Errors
    ///
    /// When cargo or a file cannot be read.
    pub fn load(root: &Path, suite: Suite) -> Result<Self> {
        let mut facts = Self {
            root: root.into(),
            suite,
            ..Self::default()
        };
        // The examples are a workspace of their own.
        for manifest in ["Cargo.toml", "examples/Cargo.toml"] {
            if root.join(manifest).exists() {
                facts.add_workspace(&root.join(manifest))?;
            }
        }
        for package in facts.packages.clone() {
            let mut files = Vec::new();
            walk(&package.directory, &mut files)?;
            for file in files {
                facts.read(&package, &file)?;
            }
        }
        let ci = fs::read_to_string(root.join(".ci/run")).unwrap_or_default();
        facts.names.extend(words(&ci).map(str::to_owned));
        Ok(facts)
    }

    fn add_workspace(&mut self, manifest: &Path) -> Result<()> {
        let metadata = MetadataCommand::new()
            .manifest_path(manifest)
            .no_deps()
            .exec()
            .context("cargo metadata")?;
        for package in metadata.workspace_packages() {
            let Some(directory) = package.manifest_path.parent() else {
                continue;
            };
            let targets = package.targets.iter().flat_map(|target| {
                let kinds = target.kind.iter().map(ToString::to_string);
                kinds.map(|kind| (kind, target.name.clone()))
            });
            self.packages.push(Package {
                name: package.name.to_string(),
                directory: directory.into(),
                features: package.features.keys().cloned().collect(),
                targets: targets.collect(),
            });
        }
        Ok(())
    }

    fn read(&mut self, package: &Package, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let inside = file.strip_prefix(&package.directory).unwrap_or(file);
        let inside = inside.to_string_lossy().into_owned();
        if !inside.ends_with(".rs") {
            self.names.extend(words(&text).map(str::to_owned));
            return Ok(());
        }
        for word in words(&text).filter(|word| text.contains(&format!("\"{word}\""))) {
            self.names.insert(word.into());
            // Tests set what they like.
            if inside.starts_with("src") || inside.starts_with("build") {
                self.variables.push((word.into(), file.into()));
            }
        }
        let module = module(&inside);
        let functions = test_functions(&inside, &text).into_iter();
        self.tests.extend(functions.map(|(inner, name)| {
            TestFunction {
                package: package.name.clone(),
                file: inside.clone(),
                path: [module.as_str(), inner, name.as_str()]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("::"),
            }
        }));
        Ok(())
    }

    /// The package of a name.
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }
}

/// Files of code under a directory, but those of packages inside of it that are members themselves,
/// which are read with them, too: reading twice is no harm.
fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                walk(&path, files)?;
            }
        } else if [".rs", ".hpp", ".cpp", ".cu"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

/// Names with one of the prefixes.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| {
            let named = PREFIXES
                .iter()
                .any(|prefix| word.len() > prefix.len() && word.starts_with(prefix));
            let upper = word
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
            named && upper && !word.ends_with('_')
        })
}

/// The modules that a file stands for, in its test program.
fn module(file: &str) -> String {
    let parts = file.trim_end_matches(".rs").split('/').skip(1);
    let parts = parts.filter(|part| !["lib", "main", "mod"].contains(part));
    parts.collect::<Vec<_>>().join("::")
}

/// Tests in a file, each with "tests" if it is behind a module of that name. In a directory of tests
/// also those that a macro or another harness is told of: names on lines of their own, or in quotes.
fn test_functions(file: &str, text: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let (mut inner, mut is_test) = ("", false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.starts_with("mod tests {") {
            inner = "tests";
        } else if let Some(name) = function(line).filter(|_| is_test) {
            found.push((inner, name.to_owned()));
            is_test = false;
        } else if file.starts_with("tests/") && !line.starts_with("//") {
            let quoted = line.split('"').skip(1).step_by(2);
            let names = quoted.chain([line.trim_end_matches(',')]);
            found.extend(
                names
                    .filter(|name| is_name(name))
                    .map(|name| ("", name.to_owned())),
            );
        }
    }
    found
}

fn function(line: &str) -> Option<&str> {
    let name = line
        .strip_prefix("async ")
        .unwrap_or(line)
        .strip_prefix("fn ")?;
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    Some(&name[..end.unwrap_or(name.len())])
}

/// Whether a word is one of several in small letters, as names of tests are.
fn is_name(word: &str) -> bool {
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(small) && parts(word) >= 3
}

/// How many words a name is made of.
pub(super) fn parts(name: &str) -> usize {
    name.split('_').filter(|part| !part.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_in_source() {
        let text = "#[test]\nfn a() {}\nfn no() {}\nmod tests {\n    #[test]\n    #[ignore]\n    fn b() {}\n}\n";
        let named = |list: [(&'static str, &str); 2]| list.map(|(at, name)| (at, name.to_owned()));
        assert_eq!(
            test_functions("src/lib.rs", text),
            named([("", "a"), ("tests", "b")])
        );
        let text = "both! {\n    by_a_macro,\n}\nrun(\"by_a_harness\");\n// by_no_one\n";
        let told = named([("", "by_a_macro"), ("", "by_a_harness")]);
        assert_eq!(test_functions("tests/all.rs", text), told);
        assert_eq!(test_functions("src/lib.rs", text), []);
        assert_eq!(module("src/ib/port.rs"), "ib::port");
        assert_eq!(module("tests/ranks/main.rs"), "ranks");
        assert_eq!(module("src/lib.rs"), "");
    }

    #[test]
    fn names_with_a_prefix_are_words_of_their_own() {
        let text = "`MSCCLPP_ROOT`, DEP_MSCCLPP_DEVICE_INCLUDE, MSCCLPP_NCCL_, mscclpp_port";
        assert_eq!(words(text).collect::<Vec<_>>(), ["MSCCLPP_ROOT"]);
    }
}
