// SPDX-License-Identifier: MIT
//! Commands that pages show: subcommands, flags, filters, packages and targets exist.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};

use super::facts::{Facts, TestFunction, parts};
use super::shell;
use crate::cli::Cli;
use crate::known::SUITES;

/// How a page shows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// In a block: as one types it.
    Whole,
    /// In a sentence: perhaps without its arguments.
    Named,
}

/// Flags of programs that are not asked for theirs: rustc, cargo in other places, examples.
const OTHER_FLAGS: [&str; 4] = ["--cfg", "--edition", "--fix", "--gpu"];
/// Cargo's subcommands that are taken as they are.
const OTHER_CARGO: [&str; 8] = [
    "fmt", "package", "metadata", "update", "tree", "deny", "machete", "install",
];

/// Its flags with and without a value, as far as pages use them.
const CARGO_VALUES: [&str; 8] = [
    "test",
    "example",
    "bin",
    "features",
    "exclude",
    "manifest-path",
    "target-dir",
    "profile",
];
const CARGO_FLAGS: [&str; 14] = [
    "lib",
    "doc",
    "release",
    "workspace",
    "all-targets",
    "no-deps",
    "open",
    "no-run",
    "no-fail-fast",
    "offline",
    "locked",
    "quiet",
    "all-features",
    "no-default-features",
];

/// Holds commands against what exists.
pub(super) struct Checker<'a> {
    facts: &'a Facts,
    xtask: Command,
    cargo: Command,
}

impl<'a> Checker<'a> {
    /// A checker.
    pub(super) fn new(facts: &'a Facts) -> Self {
        Self {
            facts,
            xtask: Cli::command(),
            cargo: cargo(),
        }
    }

    /// What is wrong with a line of a shell.
    pub(super) fn line(&self, line: &str, shown: Shown) -> Vec<String> {
        (shell::commands(line).iter())
            .flat_map(|words| self.command(words, shown))
            .collect()
    }

    /// What is wrong with code in a sentence, if it is a command or a part of one.
    pub(super) fn span(&self, span: &str) -> Vec<String> {
        let span = span.replace(['…', '`'], "").replace("...", "");
        let words = shell::commands(&span)
            .into_iter()
            .next()
            .unwrap_or_default();
        let Some(first) = words.first() else {
            return Vec::new();
        };
        if first.starts_with("--") && first.len() > 2 {
            return self.flag(&words);
        }
        // A name of so many words is that of a test.
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if parts(first) >= 5 && first.chars().all(is_name) {
            let found = self
                .facts
                .tests
                .iter()
                .any(|test| test.path.contains(first.as_str()));
            return (!found)
                .then(|| format!("there is no test {first}"))
                .into_iter()
                .collect();
        }
        let task = self.xtask.find_subcommand(first).is_some() && words.len() > 1;
        match first.as_str() {
            "cargo" | "xtask" | "conformance" if words.len() > 1 => self.line(&span, Shown::Named),
            _ if task => self.tasks(&words, Shown::Named),
            _ => Vec::new(),
        }
    }

    fn command(&self, words: &[String], shown: Shown) -> Vec<String> {
        let [program, rest @ ..] = words else {
            return Vec::new();
        };
        match program.as_str() {
            "cargo" => match rest {
                [task, rest @ ..] if task == "xtask" => self.tasks(rest, shown),
                _ => self.cargo(rest, shown),
            },
            "env" => {
                let first = rest.iter().position(|word| !word.contains('='));
                self.command(&rest[first.unwrap_or(rest.len())..], shown)
            }
            "conformance" => match &self.facts.suite.command {
                Some(command) => parse(command, rest, shown).err().into_iter().collect(),
                None => Vec::new(),
            },
            name if name == "xtask" || name.ends_with("/xtask") => self.tasks(rest, shown),
            name => self.built(name).into_iter().collect(),
        }
    }

    /// A program that cargo has built.
    fn built(&self, path: &str) -> Option<String> {
        let inside = path.strip_prefix("target/")?;
        let name = inside.split_once('/')?.1;
        let (kind, name) = match name.strip_prefix("examples/") {
            Some(name) => ("example", name),
            None => ("bin", name),
        };
        let found = self
            .facts
            .packages
            .iter()
            .any(|package| package.has(kind, name));
        (!found).then(|| format!("{path}: no package has a {kind} {name:?}"))
    }

    fn tasks(&self, words: &[String], shown: Shown) -> Vec<String> {
        if let Err(fault) = parse(&self.xtask, words, shown) {
            return vec![fault];
        }
        let at = words.iter().position(|word| word == "--");
        let (own, behind) = words.split_at(at.unwrap_or(words.len()));
        let task = own.first().map_or("", String::as_str);
        let mut faults = Vec::new();
        if let Some(filter) = option(own, "--filter") {
            let tests = self.facts.tests.iter().map(|test| test.path.as_str());
            let suite = self.facts.suite.tests.iter().map(String::as_str);
            let names: Vec<&str> = match task {
                "test-cpu" => tests.collect(),
                "test-mp" => suite.collect(),
                "examples" => (self.facts.packages.iter())
                    .map(|package| package.name.as_str())
                    .collect(),
                _ => suite.chain(tests).collect(),
            };
            faults.extend(filter_fault(filter, &names));
        }
        faults.extend(self.command(behind.get(1..).unwrap_or_default(), shown));
        faults
    }

    fn cargo(&self, words: &[String], shown: Shown) -> Vec<String> {
        let Some(name) = words.first() else {
            return Vec::new();
        };
        if OTHER_CARGO.contains(&name.as_str()) {
            return Vec::new();
        }
        let matches = match parse(&self.cargo, words, shown) {
            Ok(Some(matches)) => matches,
            Ok(None) => return Vec::new(),
            Err(fault) => return vec![fault],
        };
        match matches.subcommand() {
            Some((name, matches)) => self.targets(name, matches),
            None => Vec::new(),
        }
    }

    /// What is wrong with packages, targets, features and filters of a cargo command.
    fn targets(&self, name: &str, matches: &ArgMatches) -> Vec<String> {
        let values =
            |id: &str| -> Vec<&String> { matches.get_many(id).into_iter().flatten().collect() };
        let mut faults = Vec::new();
        let mut packages = Vec::new();
        for package in values("package")
            .into_iter()
            .filter(|name| !is_placeholder(name))
        {
            match self.facts.package(package) {
                Some(package) => packages.push(package),
                None => faults.push(format!("there is no package {package:?}")),
            }
        }
        if !faults.is_empty() {
            return faults;
        }
        if packages.is_empty() {
            packages.extend(&self.facts.packages);
        }
        for kind in ["test", "example", "bin"] {
            for target in values(kind)
                .into_iter()
                .filter(|name| !is_placeholder(name))
            {
                let found = packages.iter().any(|package| package.has(kind, target));
                faults.extend((!found).then(|| format!("no such package has a {kind} {target:?}")));
            }
        }
        let features = values("features")
            .into_iter()
            .flat_map(|list| list.split([',', ' ']));
        for feature in features {
            let (owner, feature) = feature.split_once('/').unwrap_or(("", feature));
            let mut owners = packages
                .iter()
                .filter(|package| owner.is_empty() || package.name == owner);
            let found = owners.any(|package| package.features.iter().any(|found| found == feature));
            faults.extend((!found).then(|| format!("no such package has a feature {feature:?}")));
        }
        if name == "test" {
            let programs = values("test");
            let wanted = |test: &&TestFunction| {
                let target = test.file.strip_prefix("tests/").unwrap_or_default();
                let target = target.split('/').next().unwrap_or_default();
                packages.iter().any(|package| package.name == test.package)
                    && (programs.is_empty()
                        || programs
                            .iter()
                            .any(|name| target.trim_end_matches(".rs") == name.as_str()))
            };
            let tests: Vec<&str> = (self.facts.tests.iter().filter(wanted))
                .map(|test| test.path.as_str())
                .collect();
            let filters = values("filter").into_iter().chain(values("harness"));
            for filter in filters.filter(|word| !word.starts_with('-')) {
                faults.extend(filter_fault(filter, &tests));
            }
        }
        faults
    }

    /// A flag by itself, perhaps with its value.
    fn flag(&self, words: &[String]) -> Vec<String> {
        let name = words[0].split('=').next().unwrap_or_default();
        let commands = [
            Some(&self.xtask),
            Some(&self.cargo),
            self.facts.suite.command.as_ref(),
        ];
        let known = commands
            .into_iter()
            .flatten()
            .any(|command| has_flag(command, name));
        if !known && !OTHER_FLAGS.contains(&name) {
            return vec![format!("no command has a flag {name}")];
        }
        let mut faults = Vec::new();
        if let Some(filter) = option(words, "--filter") {
            let names: Vec<&str> = (self.facts.suite.tests.iter().map(String::as_str))
                .chain(self.facts.tests.iter().map(|test| test.path.as_str()))
                .collect();
            faults.extend(filter_fault(filter, &names));
        }
        if let Some(suite) = option(words, "--suite").filter(|name| !is_placeholder(name)) {
            let known = SUITES.contains(&suite);
            faults.extend((!known).then(|| format!("the benchmark has no suite {suite:?}")));
        }
        faults
    }
}

fn has_flag(command: &Command, flag: &str) -> bool {
    let name = flag.trim_start_matches("--");
    ["help", "version"].contains(&name)
        || command
            .get_arguments()
            .any(|arg| arg.get_long() == Some(name))
        || command.get_subcommands().any(|inner| has_flag(inner, flag))
}

/// A word that stands for one of the reader's.
fn is_placeholder(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// The value of an option.
fn option<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words
        .iter()
        .position(|word| word.split('=').next() == Some(name))?;
    match words[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => words.get(at + 1).map(String::as_str),
    }
}

/// What a filter matches none of; with a leading `-`, each text of its list is looked at.
fn filter_fault(filter: &str, names: &[&str]) -> Option<String> {
    if is_placeholder(filter) {
        return None;
    }
    let texts = filter
        .strip_prefix('-')
        .unwrap_or(filter)
        .split(',')
        .map(str::trim);
    let mut lost = texts.filter(|text| !names.iter().any(|name| name.contains(text)));
    lost.next()
        .map(|text| format!("no test's name holds {text:?}"))
}

/// Parses as the program would; nothing if it would show help instead, or may be incomplete.
fn parse(command: &Command, words: &[String], shown: Shown) -> Result<Option<ArgMatches>, String> {
    let filled = words.iter().map(|word| match is_placeholder(word) {
        true => "2",
        false => word.as_str(),
    });
    let filled: Vec<&str> = std::iter::once(command.get_name()).chain(filled).collect();
    let parse = |words: &[&str]| command.clone().try_get_matches_from(words);
    let mut parsed = parse(&filled);
    let ends_with_flag = filled.last().is_some_and(|word| word.starts_with('-'));
    if parsed.is_err() && shown == Shown::Named && ends_with_flag {
        // Its value is left out.
        parsed = parse(&[&filled[..], &["2"]].concat());
    }
    match parsed {
        Ok(matches) => Ok(Some(matches)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(None),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if shown == Shown::Named =>
            {
                Ok(None)
            }
            _ => {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                Err(format!("{}: {line}", words.join(" ")))
            }
        },
    }
}

/// As much of cargo as pages use.
fn cargo() -> Command {
    let value = |id: &'static str| Arg::new(id).long(id).action(ArgAction::Append);
    let flag = |id: &'static str| Arg::new(id).long(id).action(ArgAction::SetTrue);
    let subcommand = |name: &'static str| {
        let mut command = Command::new(name).arg(value("package").short('p'));
        command = command
            .args(CARGO_VALUES.map(value))
            .args(CARGO_FLAGS.map(flag));
        if name == "test" {
            command = command.arg(Arg::new("filter"));
        }
        let harness = Arg::new("harness").last(true).num_args(0..);
        command.arg(harness.allow_hyphen_values(true))
    };
    Command::new("cargo")
        .subcommand_required(true)
        .subcommands(["build", "run", "test", "check", "clippy", "doc", "bench"].map(subcommand))
}
