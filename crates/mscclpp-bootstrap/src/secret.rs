// SPDX-License-Identifier: MIT
//! Secrets and the keys derived from them. None of them is ever printed.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::BootstrapError;

/// The variable that may hold the secret.
pub(crate) const TEXT: &str = "MSCCLPP_SECRET";
/// The variable that may name a file with it.
pub(crate) const FILE: &str = "MSCCLPP_SECRET_FILE";

/// The largest secret file that is read.
const MAX_SECRET: usize = 64 * 1024;

/// Shorter secrets than this can be guessed; they are taken with a warning.
const SHORT: usize = 16;

/// A keyed hash over `parts`, each preceded by its length so that no two lists
/// of parts look alike.
pub(crate) fn keyed_hash(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = new_mac(key);
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

fn new_mac(key: &[u8]) -> Hmac<Sha256> {
    // HMAC is defined for keys of every length, and the crate accepts all.
    <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length")
}

/// 32 bytes of a keyed hash.
pub(crate) fn keyed_bytes(key: &[u8], parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(keyed_hash(key, parts).finalize().into_bytes().into())
}

/// Fills a fresh array with random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], BootstrapError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|cause| BootstrapError::Random {
        cause: cause.to_string(),
    })?;
    Ok(bytes)
}

/// What the ranks of a job know and strangers do not. Wiped from memory when
/// dropped; `Debug` does not show it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes any bytes; they should be random, 16 of them or more.
    ///
    /// # Errors
    /// [`BootstrapError::BadSecret`] when `bytes` is empty.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, BootstrapError> {
        let secret = Self(bytes.into());
        if secret.0.is_empty() {
            return Err(BootstrapError::BadSecret {
                source_name: "the given secret".into(),
                reason: "it is empty".into(),
            });
        }
        if secret.is_short() {
            tracing::warn!(
                bytes = secret.0.len(),
                "the job's secret is short enough to be guessed; use 16 random bytes or more"
            );
        }
        Ok(secret)
    }

    /// Whether it can be guessed.
    pub(crate) fn is_short(&self) -> bool {
        self.0.len() < SHORT
    }

    /// Draws 32 random bytes.
    ///
    /// # Errors
    /// [`BootstrapError::Random`] when the operating system gives none.
    pub fn random() -> Result<Self, BootstrapError> {
        Ok(Self(random::<32>()?.to_vec()))
    }

    /// The secret of `MSCCLPP_SECRET`, or of the file that
    /// `MSCCLPP_SECRET_FILE` names; `None` when neither is set. White space at
    /// both ends does not count. The text is used as it stands.
    ///
    /// # Errors
    /// [`BootstrapError::BadSecret`] when both are set, the text is empty, or as
    /// [`from_file`](Self::from_file).
    pub fn from_environment() -> Result<Option<Self>, BootstrapError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    pub(crate) fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, BootstrapError> {
        let text = variable(TEXT);
        let file = variable(FILE);
        match (text, file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(BootstrapError::BadSecret {
                source_name: TEXT.into(),
                reason: "MSCCLPP_SECRET_FILE is set too; unset one of them".into(),
            }),
            (Some(text), None) => Self::from_text(text.as_encoded_bytes(), TEXT).map(Some),
            (None, Some(path)) => Self::read(path.as_ref(), &format!("{FILE}={path:?}")).map(Some),
        }
    }

    /// Reads a secret from a regular file; white space at both ends does not count.
    ///
    /// # Errors
    /// [`BootstrapError::BadSecret`] when the file can not be read, is none but a
    /// pipe or a directory, is empty or is larger than 64 KiB.
    pub fn from_file(path: &std::path::Path) -> Result<Self, BootstrapError> {
        Self::read(path, &format!("the secret file {}", path.display()))
    }

    fn read(path: &std::path::Path, name: &str) -> Result<Self, BootstrapError> {
        let bad = |reason: String| BootstrapError::BadSecret {
            source_name: name.into(),
            reason,
        };
        let file = crate::file::open(path).map_err(|e| bad(e.to_string()))?;
        warn_if_readable_by_others(&file, path);
        let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
        file.take(MAX_SECRET as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| bad(e.to_string()))?;
        if bytes.len() > MAX_SECRET {
            return Err(bad(format!("it is larger than {MAX_SECRET} bytes")));
        }
        Self::from_text(&bytes, name)
    }

    fn from_text(text: &[u8], name: &str) -> Result<Self, BootstrapError> {
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(BootstrapError::BadSecret {
                source_name: name.into(),
                reason: "it is empty".into(),
            });
        }
        Self::new(text)
    }

    /// The key of the job that `job` (a random number of rank 0) names.
    pub(crate) fn job_key(&self, job: &[u8; 32]) -> JobKey {
        JobKey(*keyed_bytes(&self.0, &[b"mscclpp job key", job]))
    }

    /// The key with which ranks prove themselves before the job has its own.
    pub(crate) fn join_key(&self) -> JobKey {
        JobKey(*keyed_bytes(&self.0, &[b"mscclpp join key"]))
    }
}

#[cfg(unix)]
pub(crate) fn others_may_open(file: &std::fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|m| m.mode() & 0o077 != 0)
}

#[cfg(not(unix))]
pub(crate) fn others_may_open(_: &std::fs::File) -> bool {
    false
}

fn warn_if_readable_by_others(file: &std::fs::File, path: &std::path::Path) {
    if others_may_open(file) {
        tracing::warn!(
            path = %path.display(),
            "others than its owner may open the secret file; chmod 600 it"
        );
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// The key that all ranks of one job share and nobody else has: 256 bits,
/// different for every job even when the secret is used again. Wiped from memory
/// when dropped; `Debug` does not show it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct JobKey([u8; 32]);

impl JobKey {
    /// Takes 32 bytes that all ranks agreed on, for bootstraps of your own.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Draws a random key. One rank does this and hands [`JobKey::expose`] to
    /// the others over a channel that it trusts.
    ///
    /// # Errors
    /// [`BootstrapError::Random`] when the operating system gives none.
    pub fn random() -> Result<Self, BootstrapError> {
        random().map(Self)
    }

    /// The bytes themselves. Whoever has them may join the job's connections.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let secret = Secret::new(*b"0123456789abcdef").unwrap();
        let shown = format!("{secret:?} {:?}", secret.join_key());
        assert_eq!(shown, "Secret(redacted) JobKey(redacted)");
    }

    #[test]
    fn keys_differ_by_job_and_by_secret() {
        let a = Secret::new(*b"0123456789abcdef").unwrap();
        let b = Secret::new(*b"0123456789abcdeg").unwrap();
        assert_ne!(a.job_key(&[0; 32]).0, a.job_key(&[1; 32]).0);
        assert_ne!(a.job_key(&[0; 32]).0, b.job_key(&[0; 32]).0);
        assert_ne!(a.join_key().0, a.job_key(&[0; 32]).0);
        assert_eq!(a.join_key().0, a.join_key().0);
    }

    #[test]
    fn part_lengths_are_part_of_the_hash() {
        assert_ne!(
            keyed_bytes(b"k", &[b"ab", b"c"]),
            keyed_bytes(b"k", &[b"a", b"bc"])
        );
    }

    #[test]
    fn an_empty_secret_is_refused() {
        assert!(matches!(
            Secret::new(Vec::new()),
            Err(BootstrapError::BadSecret { .. })
        ));
        assert!(Secret::from_text(b" \n", "x").is_err());
    }

    #[test]
    fn fuzz_secret() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let secret = mscclpp_fuzz::in_proportion(bytes, || Secret::from_text(bytes, "x"));
            assert_eq!(secret.is_ok(), !bytes.trim_ascii().is_empty());
        });
    }

    #[test]
    fn a_file_gives_its_text_without_the_newline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "correct horse battery\n").unwrap();
        let secret = Secret::from_file(&path).unwrap();
        assert_eq!(secret.0, b"correct horse battery");
        std::fs::write(&path, vec![b'x'; MAX_SECRET + 1]).unwrap();
        assert!(Secret::from_file(&path).is_err());
        assert!(Secret::from_file(&dir.path().join("absent")).is_err());
    }

    /// Whoever joins with it would wait beyond every deadline.
    #[test]
    fn a_pipe_is_refused_at_once() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (done, read) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(Secret::from_file(&pipe).map(drop)));
        let answer = read.recv_timeout(std::time::Duration::from_secs(20));
        let text = answer.unwrap().unwrap_err().to_string();
        assert!(text.contains("not a regular file"), "{text}");
    }
}
