// SPDX-License-Identifier: MIT
//! Files that a command reads and writes, looked at before long work.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Whether a file can be read.
///
/// # Errors
///
/// When it cannot.
pub(crate) fn check_readable(path: &Path) -> Result<()> {
    let failed = || format!("cannot read {}", path.display());
    let found = File::open(path).and_then(|file| file.metadata());
    let found = found.with_context(failed)?;
    ensure!(!found.is_dir(), "{}: it is a directory", failed());
    Ok(())
}

/// Whether a file can be written. Its directory is made; what it holds stays.
///
/// # Errors
///
/// When it cannot.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(failed)?;
    }
    match OpenOptions::new().append(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path).with_context(failed),
        // A directory, or a file that is to be replaced. Pipes and devices are left alone.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::metadata(path) {
            Ok(found) if found.is_file() || found.is_dir() => {
                let open = OpenOptions::new().append(true).open(path);
                open.map(drop).with_context(failed)
            }
            // A link to what is not there yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(failed),
            Ok(_) => Ok(()),
        },
        Err(error) => Err(error).with_context(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_or_written_is_told_and_nothing_is_left_or_lost() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let said = |result: Result<()>| format!("{:#}", result.unwrap_err());
        assert!(said(check_readable(&path("none"))).contains("cannot read"));
        assert!(said(check_readable(home.path())).contains("it is a directory"));
        assert!(said(check_writable(home.path())).contains("cannot write"));
        let new = path("deep/er/new.json");
        check_writable(&new).unwrap();
        assert!(!new.exists() && path("deep/er").is_dir());
        fs::write(&new, "kept").unwrap();
        check_writable(&new).unwrap();
        check_readable(&new).unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "kept");
        assert!(said(check_writable(&new.join("below"))).contains("cannot write"));
        let (link, target) = (path("link"), path("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        check_writable(&link).unwrap();
        assert!(link.is_symlink() && !target.exists());
    }
}
