// SPDX-License-Identifier: MIT
//! `cargo xtask report`, and what `bench` shares with it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::compare::{Comparison, name};
use super::{Report, html};
use crate::paths::check_writable;

/// Make a page of a report of `bench`, or compare it with an older one
///
/// The page is one HTML file that needs nothing else: what was measured in a few sentences, plots, and
/// tables with the same figures.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The report
    #[arg(value_name = "FILE")]
    report: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// What is made of a report.
#[derive(Clone, Debug, Default, Args)]
pub struct Output {
    /// Write the page here
    #[arg(long, short = 'o', value_name = "FILE")]
    html: Option<PathBuf>,
    /// Hold it against this older report: a line a point, the largest change first, each with a
    /// verdict. A point is faster or slower if each median is outside of the other's range from p10 to
    /// p90
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Fail if a point is slower, and takes over so many percent more time; refuses reports of
    /// different machines
    #[arg(long, value_name = "PERCENT", requires = "compare", value_parser = percent)]
    fail_above: Option<f64>,
}

impl ReportArgs {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// When a file is not in order or cannot be written, or a point is slower than is allowed.
    pub fn run(&self) -> Result<()> {
        let output = self.output.prepare()?;
        let report = Report::read(&self.report)?;
        ensure!(
            output.html.is_some() || output.old.is_some(),
            "nothing to make of it: --html FILE makes a page, and --compare OLD.json a comparison"
        );
        output.make(&report)
    }
}

/// [`Output`], whose older report was read.
#[derive(Debug)]
pub struct Prepared {
    html: Option<PathBuf>,
    old: Option<Report>,
    fail_above: Option<f64>,
}

impl Output {
    /// Reads the older report, before what is made may take its place, and looks whether a page can be
    /// written.
    ///
    /// # Errors
    ///
    /// When one is not in order, or the other cannot be.
    pub fn prepare(&self) -> Result<Prepared> {
        self.html.as_deref().map_or(Ok(()), check_writable)?;
        Ok(Prepared {
            html: self.html.clone(),
            old: (self.compare.as_deref().map(Report::read)).transpose()?,
            fail_above: self.fail_above,
        })
    }
}

impl Prepared {
    /// Makes what was asked for of a report.
    ///
    /// # Errors
    ///
    /// As [`ReportArgs::run`].
    pub fn make(&self, report: &Report) -> Result<()> {
        for warning in report.machine.warnings() {
            println!("WARNING: {warning}");
        }
        let comparison = self.old.as_ref().map(|old| Comparison::of(report, old));
        if let Some(comparison) = &comparison {
            println!("{}", comparison.text());
        }
        if let Some(path) = &self.html {
            let page = html::page(report, self.old.as_ref().zip(comparison.as_ref()))?;
            fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}", path.display());
        }
        match (&comparison, self.fail_above) {
            (Some(comparison), Some(percent)) => judge(comparison, percent),
            _ => Ok(()),
        }
    }
}

fn judge(comparison: &Comparison<'_>, percent: f64) -> Result<()> {
    ensure!(
        comparison.other_machine.is_empty(),
        "the reports are of different machines, whose figures say nothing of the code: {}",
        comparison.other_machine.join("; ")
    );
    let slower: Vec<String> = (comparison.slower_than(percent))
        .map(|pair| format!("{} ({})", name(pair.new), pair.change()))
        .collect();
    if !slower.is_empty() {
        bail!(
            "{} points are slower by more than {percent} %: {}",
            slower.len(),
            slower.join("; ")
        );
    }
    Ok(())
}

fn percent(text: &str) -> Result<f64> {
    let percent: f64 = text.parse()?;
    ensure!(
        percent.is_finite() && percent >= 0.0,
        "not a percentage: {text}"
    );
    Ok(percent)
}
