// SPDX-License-Identifier: MIT
//! Compiled kernels on disk.

use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The environment variable that may hold the directory.
pub const CACHE_VARIABLE: &str = "MSCCLPP_CACHE_DIR";

/// Files named by a digest of all that the code depends on. A cache that cannot be read or written
/// costs time and nothing else.
#[derive(Debug)]
pub(super) struct Cache(Option<PathBuf>);

/// Names what was compiled, from what, for what.
pub(super) type Key = [u8; 32];

impl Cache {
    /// In the directory of `MSCCLPP_CACHE_DIR`, else below the user's cache directory.
    pub(super) fn of_user() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self(if let Some(directory) = set(CACHE_VARIABLE) {
            Some(directory.into())
        } else if let Some(cache) = set("XDG_CACHE_HOME") {
            Some(Path::new(&cache).join("mscclpp"))
        } else {
            set("HOME").map(|home| Path::new(&home).join(".cache/mscclpp"))
        })
    }

    #[cfg(test)]
    fn at(directory: &Path) -> Self {
        Self(Some(directory.to_owned()))
    }

    /// What was kept under the key, whole.
    pub(super) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.path(key)?).ok()?;
        let code = bytes.split_off(32.min(bytes.len()));
        (bytes == Sha256::digest(&code).as_slice()).then_some(code)
    }

    /// Keeps `code`.
    pub(super) fn put(&self, key: &Key, code: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write(&path, code) {
            tracing::debug!(path = %path.display(), %error, "a compiled kernel was not kept");
        }
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.0.as_ref()?.join(format!("{name}.kernel")))
    }
}

/// Beside its place first: others see all of it or nothing.
fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut file = std::fs::File::create(&draft)?;
    let written = (file.write_all(&Sha256::digest(code)))
        .and_then(|()| file.write_all(code))
        .and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(&directory.path().join("below"));
        let key = [7; 32];
        assert_eq!(cache.get(&key), None);
        cache.put(&key, b"code");
        assert_eq!(cache.get(&key).unwrap(), b"code");
        assert_eq!(cache.get(&[8; 32]), None);
        let path = cache.path(&key).unwrap();
        for damage in [&b""[..], b"short", &[0; 40]] {
            std::fs::write(&path, damage).unwrap();
            assert_eq!(cache.get(&key), None);
        }
        cache.put(&key, b"");
        assert_eq!(cache.get(&key).unwrap(), b"");
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1
        );
    }

    #[test]
    fn a_directory_that_cannot_be_is_no_failure() {
        let cache = Cache::at(Path::new("/dev/null/nothing"));
        cache.put(&[1; 32], b"code");
        assert_eq!(cache.get(&[1; 32]), None);
    }
}
