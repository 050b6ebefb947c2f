// SPDX-License-Identifier: MIT
//! What a run was made on.

use std::process::Command;

use serde::Serialize;

/// Facts of this machine, as far as it tells them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The time in UTC.
    pub date: String,
    /// Each GPU's name.
    pub gpus: Vec<String>,
    /// Version of the driver.
    pub driver: String,
    /// Operating system, its release, and the kind of processor.
    pub system: String,
    /// The words of the command.
    pub command: Vec<String>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let query = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
        let (gpus, driver) = parse(&output("nvidia-smi", &query).unwrap_or_default());
        Self {
            date: now(),
            gpus,
            driver,
            system: output("uname", &["-srm"]).unwrap_or_default(),
            command: std::env::args().collect(),
        }
    }

    /// In a few lines of text.
    pub fn text(&self) -> String {
        let gpus = match &self.gpus[..] {
            [] => "none that nvidia-smi knows".to_owned(),
            names => format!("{}: {}", names.len(), names.join(", ")),
        };
        let driver = if self.driver.is_empty() {
            "none"
        } else {
            &self.driver
        };
        format!(
            "date: {}\nGPUs: {gpus}\ndriver: {driver}\nsystem: {}\ncommand: {}\n",
            self.date,
            self.system,
            self.command.join(" ")
        )
    }
}

/// The time in UTC.
pub fn now() -> String {
    output("date", &["-u", "+%Y-%m-%d %H:%M:%S UTC"]).unwrap_or_default()
}

/// What a program prints, without blanks at the end; none if it cannot be run or fails.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status.success()).then(|| text.trim_end().to_owned())
}

/// Lines of name and driver.
fn parse(text: &str) -> (Vec<String>, String) {
    let lines = text.lines().filter_map(|line| line.rsplit_once(", "));
    let (gpus, drivers): (Vec<_>, Vec<_>) = lines
        .map(|(name, driver)| (name.to_owned(), driver.to_owned()))
        .unzip();
    (gpus, drivers.into_iter().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_a_comma() {
        let text = "NVIDIA H200, 580.159.04\nA card, with a comma, 580.159.04\n";
        let (gpus, driver) = parse(text);
        assert_eq!(gpus, ["NVIDIA H200", "A card, with a comma"]);
        assert_eq!(driver, "580.159.04");
        assert_eq!(parse(""), (vec![], String::new()));
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_says_nothing() {
        assert_eq!(output("false", &[]), None);
        assert_eq!(output("no-such-program-anywhere", &[]), None);
        assert_eq!(output("echo", &["a"]), Some("a".into()));
    }
}
