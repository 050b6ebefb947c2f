// SPDX-License-Identifier: MIT
//! The one way to files of the kernel's.

use std::fs;
use std::path::PathBuf;

/// A directory that stands for `/`.
#[derive(Debug, Clone)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// This machine's.
    pub(crate) fn system() -> Self {
        Self("/".into())
    }

    /// A recorded tree. Links in it have to be relative, as those of sysfs are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn at(directory: &std::path::Path) -> Self {
        Self(directory.into())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text without white space around it; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// A file's bytes.
    pub(crate) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.path(path)).ok()
    }

    /// A number as the kernel writes it: decimal, or hexadecimal behind `0x`.
    pub(crate) fn number(&self, path: &str) -> Option<i64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in a directory, those with smaller numbers first (`mlx5_2` before `mlx5_10`); none if
    /// it is not there.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_by_key(|name| natural(name));
        names
    }

    /// Where a path leads once its links are followed, as a path below this root.
    pub(crate) fn resolve(&self, path: &str) -> Option<String> {
        let root = self.0.canonicalize().ok()?;
        let found = self.path(path).canonicalize().ok()?;
        let below = found.strip_prefix(root).ok()?;
        Some(format!("/{}", below.to_str()?))
    }
}

/// What names are sorted by: text and numbers in turns.
pub(crate) fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (text, tail) = rest.split_at(text);
        let digits = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (digits, tail) = tail.split_at(digits);
        parts.push((text.to_owned(), digits.parse().unwrap_or(0)));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_by_their_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "mlx5_1", "bnxt_re0", "mlx4_0"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["bnxt_re0", "mlx4_0", "mlx5_1", "mlx5_2", "mlx5_10"]);
    }
}
