// SPDX-License-Identifier: MIT
//! A benchmark's report as figures: lines over what was varied, and bars of the parts of a whole.

mod bars;
mod draw;
mod lines;
mod svg;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use plotters::style::RGBColor;

use crate::report::{Point, Report};

pub(crate) use svg::escaped;

/// Told apart also by those who do not see all colours (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// A figure of some points.
pub(crate) struct Figure {
    suite: String,
    subject: String,
    /// The file.
    pub(crate) svg: String,
}

/// Draws the report in the file `report` into `directory`, a file a figure.
///
/// # Errors
///
/// When the report is not in order, holds nothing of which a figure can be made, or a file cannot be
/// written.
pub fn plot(report: &Path, directory: &Path) -> Result<()> {
    let report = Report::read(report)?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let points: Vec<&Point> = report.points.iter().collect();
    let mut drawn = 0;
    for group in groups(&points) {
        let Some(figure) = figure(&group, &[])? else {
            continue;
        };
        let name = file_stem(&[&figure.suite, &figure.subject]);
        let file = directory.join(format!("{name}.svg"));
        fs::write(&file, figure.svg).with_context(|| format!("cannot write {}", file.display()))?;
        println!("{}", file.display());
        drawn += 1;
    }
    ensure!(
        drawn > 0,
        "nothing in the report was varied, and nothing is part of a whole"
    );
    Ok(())
}

/// Points that belong together, in the order of the report: those of a suite with the same metric and
/// unit, or that are parts of the same whole.
pub(crate) fn groups<'a>(points: &[&'a Point]) -> Vec<Vec<&'a Point>> {
    let mut groups: Vec<Vec<&Point>> = Vec::new();
    for &point in points {
        match groups
            .iter_mut()
            .find(|group| subject(group[0]) == subject(point))
        {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    groups
}

/// Suite, unit, and the whole that it is part of, or its metric.
fn subject(point: &Point) -> (&str, &str, Option<&str>, &str) {
    match &point.part_of {
        Some(whole) => (&point.suite, &point.unit, Some(whole), ""),
        None => (&point.suite, &point.unit, None, &point.metric),
    }
}

/// The figure of a group, beside the same of an older report; none if nothing was varied.
pub(crate) fn figure(group: &[&Point], old: &[&Point]) -> Result<Option<Figure>> {
    let Some(first) = group.first() else {
        return Ok(None);
    };
    let (suite, _, whole, metric) = subject(first);
    let about = whole.unwrap_or(metric);
    let title = format!("{suite}: {about}");
    let svg = match whole {
        Some(_) => Some(bars::svg(&title, group)?),
        None => lines::svg(&title, group, old)?,
    };
    Ok(svg.map(|svg| Figure {
        suite: suite.to_owned(),
        subject: about.to_owned(),
        svg,
    }))
}

/// A name for a file, whatever the words are.
fn file_stem(words: &[&str]) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    words.join("-").chars().map(keep).collect()
}
