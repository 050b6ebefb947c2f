// SPDX-License-Identifier: MIT
//! The pages of the repository, held against what exists.
//!
//! [`check`] looks at README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and the README.md of crates and
//! examples: commands in blocks and in sentences, filters and names of tests, links and anchors,
//! variables, blocks that are files, JSON and TOML. A
//! test of the suite's package (`tests/tests/book.rs`) calls it with what the suite tells of itself,
//! compiles the blocks of C++, and includes the pages whose Rust is compiled. [`run`] runs the blocks
//! that are marked for it.
//!
//! Marks are comments on the line before a block:
//!
//! | mark | meaning |
//! |---|---|
//! | `run` | [`run`] runs its commands; lines without `$` have to be in their output |
//! | `file: PATH` | the block is a part of that file |
//!
//! A comment `not here: NAME NAME` anywhere allows a page to name variables that must not exist.

mod commands;
mod facts;
mod names;
mod page;
pub mod run;
mod shell;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use commands::{Checker, Shown};
pub use facts::Facts;
pub use page::{Block, Page};

/// What the conformance suite tells of itself.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// Names of its tests, `Suite.Test`, of all executors.
    pub tests: Vec<String>,
    /// Its command line.
    pub command: Option<clap::Command>,
}

/// The pages, in the order of their paths.
///
/// # Errors
///
/// When one cannot be read.
pub fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut paths = Vec::new();
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "examples/README.md",
    ] {
        if root.join(name).exists() {
            paths.push(name.to_owned());
        }
    }
    list(root, "docs", &mut paths)?;
    list(root, "crates", &mut paths)?;
    paths.sort();
    let read = |path: &String| {
        let text = fs::read_to_string(root.join(path)).with_context(|| path.clone())?;
        Ok(Page::parse(path, &text))
    };
    paths.iter().map(read).collect()
}

fn list(root: &Path, directory: &str, paths: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root.join(directory)).with_context(|| directory.to_owned())? {
        let entry = entry?;
        let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            if entry.file_name() != "target" {
                list(root, &path, paths)?;
            }
        } else if path.ends_with(".md") {
            paths.push(path);
        }
    }
    Ok(())
}

/// What is wrong with the pages, each as `path:line: what`.
///
/// # Errors
///
/// When cargo or a file cannot be read.
pub fn check(root: &Path, suite: Suite) -> Result<Vec<String>> {
    let facts = Facts::load(root, suite)?;
    let pages = pages(root)?;
    Ok(faults(&pages, &facts))
}

/// The same for pages and facts that are there.
pub fn faults(pages: &[Page], facts: &Facts) -> Vec<String> {
    let checker = Checker::new(facts);
    let mut faults = Vec::new();
    for page in pages {
        let mut note =
            |line: usize, fault: String| faults.push(format!("{}:{line}: {fault}", page.path));
        for block in &page.blocks {
            block_faults(block, facts, &checker, &mut note);
        }
        for (line, span) in &page.spans {
            checker
                .span(span)
                .into_iter()
                .for_each(|fault| note(*line, fault));
        }
        for (line, link) in &page.links {
            if let Some(fault) = link_fault(page, link, pages, &facts.root) {
                note(*line, fault);
            }
        }
        names::unknown(page, facts, &mut note);
    }
    faults.extend(names::undescribed(pages, facts));
    faults
}

fn block_faults(
    block: &Block,
    facts: &Facts,
    checker: &Checker<'_>,
    note: &mut impl FnMut(usize, String),
) {
    let text = &block.text;
    match block.language() {
        "console" => {
            for (line, command) in commands_of(block) {
                checker
                    .line(&command, Shown::Whole)
                    .into_iter()
                    .for_each(|fault| note(line, fault));
            }
        }
        "text" => {
            for (line, command) in (block.line + 1..).zip(text.lines()) {
                let first = command.split_whitespace().next().unwrap_or_default();
                if first == "cargo" || first.ends_with("/xtask") {
                    checker
                        .line(command, Shown::Whole)
                        .into_iter()
                        .for_each(|fault| note(line, fault));
                }
            }
        }
        "json" => {
            if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
                note(block.line, format!("no JSON: {error}"));
            }
        }
        "toml" => match toml::from_str::<toml::Table>(text) {
            Ok(table) => dependencies(&table, facts)
                .into_iter()
                .for_each(|fault| note(block.line, fault)),
            Err(error) => note(block.line, format!("no TOML: {}", error.message())),
        },
        // Compiled by others: the suite's package, and `dist --check`.
        "rust" | "cpp" | "cmake" => {}
        other => note(
            block.line,
            format!("a block of {other:?}, which nobody checks"),
        ),
    }
    if let Some(file) = block.marked("file") {
        match fs::read_to_string(facts.root.join(file)) {
            Ok(whole) if whole.contains(text.trim_end()) => {}
            Ok(_) => note(block.line, format!("{file} does not have these lines")),
            Err(error) => note(block.line, format!("{file}: {error}")),
        }
    }
}

/// The commands of a block, with their lines; one may go on behind a backslash.
pub(crate) fn commands_of(block: &Block) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (block.line + 1..).zip(block.text.lines()) {
        let part = line.trim_end_matches('\\');
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((number, command.trim_end_matches('\\').into())),
            (None, Some((_, command))) if goes_on => command.push_str(part),
            _ => {}
        }
        goes_on = line.ends_with('\\') && (goes_on || line.starts_with("$ "));
    }
    commands
}

/// What is wrong with the crates of this project that a manifest names.
fn dependencies(manifest: &toml::Table, facts: &Facts) -> Vec<String> {
    let Some(list) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    for (name, value) in list {
        let path = value.get("path").and_then(toml::Value::as_str);
        let Some(path) = path.filter(|path| path.contains("/crates/")) else {
            continue;
        };
        let package = facts
            .package(name)
            .filter(|_| path.ends_with(&format!("/crates/{name}")));
        let Some(package) = package else {
            faults.push(format!("there is no crate {name:?} at {path}"));
            continue;
        };
        let features = value.get("features").and_then(toml::Value::as_array);
        for feature in features
            .into_iter()
            .flatten()
            .filter_map(toml::Value::as_str)
        {
            if !package.features.iter().any(|found| found == feature) {
                faults.push(format!("{name} has no feature {feature:?}"));
            }
        }
    }
    faults
}

/// What is wrong with a link. Those to elsewhere are not followed.
fn link_fault(page: &Page, link: &str, pages: &[Page], root: &Path) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        page.path.clone()
    } else {
        resolve(&page.path, path)?
    };
    if !root.join(&target).exists() && !pages.iter().any(|page| page.path == target) {
        return Some(format!("there is no {target}"));
    }
    if anchor.is_empty() {
        return None;
    }
    let Some(there) = pages.iter().find(|page| page.path == target) else {
        return Some(format!("{target} is no page, and has no heading #{anchor}"));
    };
    let found = there.anchors.iter().any(|found| found == anchor);
    (!found).then(|| format!("{target} has no heading #{anchor}"))
}

/// A path from the root, of one from the page. Nothing if it leads out of the repository, which is no
/// path to a page or a file.
fn resolve(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
