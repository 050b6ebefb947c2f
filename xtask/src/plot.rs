// SPDX-License-Identifier: MIT
//! Draws a benchmark's report as SVG files, one per suite and metric.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;

use crate::report::{Report, Row};

const SIZE: (u32, u32) = (900, 560);
/// Told apart also by those who do not see all colours (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const REFERENCE: RGBColor = RGBColor(120, 120, 120);

/// What one figure shows: `(suite, metric, unit)`.
type Subject<'a> = (&'a str, &'a str, &'a str);
/// Name of a line, and its points: bytes, and p10, median and p90.
type Lines = BTreeMap<String, BTreeMap<u64, [f64; 3]>>;

/// Draws the report in the file `report` into `directory`.
///
/// # Errors
///
/// When the report is not in order, holds nothing over at least two sizes, or
/// a file cannot be written.
pub fn plot(report: &Path, directory: &Path) -> Result<()> {
    let report = Report::read(report)?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let figures = figures(&report);
    ensure!(
        !figures.is_empty(),
        "nothing in the report was measured at two sizes or more"
    );
    for ((suite, metric, unit), (lines, reference)) in figures {
        let file = directory.join(format!("{}.svg", file_stem(&[suite, metric])));
        let title = format!("{suite}: {metric}");
        draw(&file, &title, unit, &lines, &reference)
            .map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}

fn figures(report: &Report) -> BTreeMap<Subject<'_>, (Lines, BTreeMap<u64, f64>)> {
    let mut figures: BTreeMap<Subject<'_>, (Lines, BTreeMap<u64, f64>)> = BTreeMap::new();
    for row in &report.rows {
        // Both axes are logarithmic.
        let Some(bytes) = row.bytes.filter(|bytes| *bytes > 0 && row.p10 > 0.0) else {
            continue;
        };
        let subject = (&*row.suite, &*row.metric, &*row.unit);
        let (lines, reference) = figures.entry(subject).or_default();
        let point = [row.p10, row.median, row.p90];
        lines
            .entry(line_name(row))
            .or_default()
            .insert(bytes, point);
        if let Some(value) = row.reference {
            reference.insert(bytes, value);
        }
    }
    figures.retain(|_, (lines, _)| {
        let sizes: BTreeSet<u64> = lines.values().flat_map(|l| l.keys().copied()).collect();
        sizes.len() > 1
    });
    figures
}

fn line_name(row: &Row) -> String {
    let mut words: Vec<String> = [&row.backend, &row.provider, &row.executor]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    if let Some(queues) = row.queues {
        let plural = if queues == 1 { "" } else { "s" };
        words.push(format!("{queues} queue{plural}"));
    }
    words.join(", ")
}

/// A name for a file, whatever the words are.
fn file_stem(words: &[&str]) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    words.join("-").chars().map(keep).collect()
}

fn bytes_label(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", (value * 10.0).round() / 10.0, units[unit])
}

fn draw(
    file: &Path,
    title: &str,
    unit: &str,
    lines: &Lines,
    reference: &BTreeMap<u64, f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = lines.values().flat_map(|line| line.keys().copied());
    let (mut least, mut most) = (u64::MAX, 1);
    for size in sizes {
        least = least.min(size);
        most = most.max(size);
    }
    let values = lines.values().flat_map(|line| line.values().flatten());
    let (mut low, mut high) = (f64::MAX, f64::MIN_POSITIVE);
    for value in values.chain(reference.values()) {
        // An axis has a length.
        low = low.min(*value * 0.99);
        high = high.max(*value * 1.01);
    }
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let x = (least as f64 * 0.8..most as f64 * 1.25)
        .log_scale()
        .base(2.0);
    // Whole decades, so that there are ticks on both sides of the data.
    let decade = |value: f64| 10f64.powf(value);
    let y = (decade(low.log10().floor())..decade(high.log10().ceil())).log_scale();
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("bytes of one message")
        .y_desc(unit)
        .x_label_formatter(&|bytes| bytes_label(*bytes))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let medians = points
            .iter()
            .map(|(x, [_, median, _])| (*x as f64, *median));
        chart
            .draw_series(LineSeries::new(medians, colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let spread = points.iter().map(|(x, [p10, _, p90])| {
            PathElement::new([(*x as f64, *p10), (*x as f64, *p90)], *colour)
        });
        chart.draw_series(spread)?;
    }
    if !reference.is_empty() {
        let points = reference.iter().map(|(x, value)| (*x as f64, *value));
        chart
            .draw_series(LineSeries::new(points, REFERENCE.stroke_width(1)).point_size(2))?
            .label("the reference, same run")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], REFERENCE));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(REFERENCE)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn a_report_becomes_one_figure_per_suite_measured_at_two_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("report.json");
        fs::write(&report, example().to_string()).unwrap();
        let plots = directory.path().join("plots");
        plot(&report, &plots).unwrap();
        let mut names: Vec<_> = fs::read_dir(&plots)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["bidirectional-bandwidth.svg", "ping-pong-round-trip.svg"]
        );
        let text = fs::read_to_string(plots.join(&names[0])).unwrap();
        for word in [
            "GB/s",
            "proxy-ethernet, cpu, 1 queue",
            "the reference",
            "1 MiB",
        ] {
            assert!(text.contains(word), "{word}");
        }
    }

    #[test]
    fn file_names_hold_nothing_that_a_path_could_trip_over() {
        assert_eq!(file_stem(&["a/../b", "c d"]), "a----b-c-d");
    }

    #[test]
    fn sizes_are_named_in_their_units() {
        assert_eq!(bytes_label(512.0), "512 B");
        assert_eq!(bytes_label(1024.0), "1 KiB");
        assert_eq!(bytes_label(16.0 * 1048576.0), "16 MiB");
    }
}
