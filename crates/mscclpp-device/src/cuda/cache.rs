// SPDX-License-Identifier: MIT
//! Compiled kernels on disk.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The environment variable that may hold the directory.
pub const CACHE_VARIABLE: &str = "MSCCLPP_CACHE_DIR";

/// Files named by a digest of all that the code depends on. A cache that cannot be read or written
/// costs time and nothing else. What is in it is run: a directory that others own or can write to is
/// not used.
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
        let path = self.path(key)?;
        if !is_ours(path.parent()?) {
            return None;
        }
        let mut bytes = std::fs::read(path).ok()?;
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

/// Whether this user alone can put files into the directory; if it is not there, nobody has.
fn is_ours(directory: &Path) -> bool {
    let Ok(found) = std::fs::metadata(directory) else {
        return true;
    };
    let ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if !ours {
        tracing::warn!(
            directory = %directory.display(),
            "others own the cache of compiled kernels or can write to it: it is not used; chmod 700 it, \
             or set {CACHE_VARIABLE} to another"
        );
    }
    ours
}

/// Where the file is until it is whole: a place of this thread's own.
fn draft(path: &Path) -> PathBuf {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    path.with_extension(format!("draft-{process}-{thread:?}"))
}

/// Beside its place first: others see all of it or nothing.
fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    if !is_ours(directory) {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let draft = draft(path);
    // What an earlier process of this number has left in it.
    let _ = std::fs::remove_file(&draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
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
    use std::os::unix::fs::PermissionsExt;

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

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_kept_is_this_users_alone() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(&directory.path().join("below/it"));
        cache.put(&[7; 32], b"code");
        let path = cache.path(&[7; 32]).unwrap();
        assert_eq!(mode(&path), 0o600);
        let mut above = path.parent().unwrap();
        while above != directory.path() {
            assert_eq!(mode(above), 0o700, "{}", above.display());
            above = above.parent().unwrap();
        }
    }

    /// Who can write there could put code under the name of a kernel, and have it run.
    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path(), mode).unwrap();
        };
        cache.put(&[7; 32], b"code");
        assert!(cache.get(&[7; 32]).is_some());
        for open in [0o777, 0o770, 0o1777, 0o702] {
            set(open);
            assert_eq!(cache.get(&[7; 32]), None, "{open:o}");
            cache.put(&[8; 32], b"code");
        }
        set(0o755);
        assert!(cache.get(&[7; 32]).is_some());
        assert_eq!(cache.get(&[8; 32]), None);
    }

    #[test]
    fn a_link_in_the_place_of_a_draft_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let target = directory.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        let draft = draft(&cache.path(&[7; 32]).unwrap());
        std::os::unix::fs::symlink(&target, draft).unwrap();
        cache.put(&[7; 32], b"code");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        assert_eq!(cache.get(&[7; 32]).unwrap(), b"code");
    }

    #[test]
    fn a_directory_that_cannot_be_is_no_failure() {
        let cache = Cache::at(Path::new("/dev/null/nothing"));
        cache.put(&[1; 32], b"code");
        assert_eq!(cache.get(&[1; 32]), None);
    }
}
