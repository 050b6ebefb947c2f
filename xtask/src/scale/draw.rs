// SPDX-License-Identifier: MIT
//! The figures as SVG: what the rank with the most holds, against the world.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use super::row::{Kind, Row};
use crate::plot::COLOURS;

const SIZE: (u32, u32) = (720, 440);

/// A figure's name, what is on its axis, and the figure of a row.
type Subject = (&'static str, &'static str, fn(&Row) -> f64);

const SUBJECTS: [Subject; 3] = [
    (
        "descriptors",
        "descriptors of a process after setup, max",
        |row| row.set_up.max.descriptors,
    ),
    (
        "connections",
        "connections of a rank after setup, max",
        |row| row.set_up.max.connections,
    ),
    (
        "setup-bytes",
        "bytes that a rank receives in a setup, max",
        Row::setup_received,
    ),
];

/// Draws one file a subject and kind of ranks.
pub(super) fn draw(rows: &[Row], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    for kind in [Kind::Processes, Kind::Threads] {
        for (name, axis, of) in SUBJECTS {
            // A thread's share of the descriptors says nothing of the rank with the most.
            if kind == Kind::Threads && name == "descriptors" {
                continue;
            }
            let mut lines: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
            for row in rows.iter().filter(|row| row.ranks_are == kind) {
                lines
                    .entry(row.degree)
                    .or_default()
                    .push((row.world as f64, of(row)));
            }
            lines.retain(|_, points| points.len() > 1);
            if lines.is_empty() {
                continue;
            }
            let file = directory.join(format!("scale-{kind}-{name}.svg"));
            figure(&file, axis, &format!("ranks, which are {kind}"), &lines)
                .map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))?;
            println!("{}", file.display());
        }
    }
    Ok(())
}

fn figure(
    file: &Path,
    title: &str,
    below: &str,
    lines: &BTreeMap<usize, Vec<(f64, f64)>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.values().flatten();
    let (mut least, mut most, mut top) = (f64::INFINITY, 1.0_f64, 1.0_f64);
    for (world, value) in points() {
        least = least.min(*world);
        most = most.max(*world);
        top = top.max(*value);
    }
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let x = (least * 0.8..most * 1.25).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(x, 0.0..top * 1.15)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(below)
        .x_label_formatter(&|world| format!("{world:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    for ((degree, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let plural = if *degree == 1 { "" } else { "s" };
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3),
            )?
            .label(format!("{degree} peer{plural} each"))
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::claims::tests::rows;
    use super::*;

    #[test]
    fn a_file_a_subject_with_a_line_a_degree() {
        let directory = tempfile::tempdir().unwrap();
        draw(&rows(|_, _| ()), directory.path()).unwrap();
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 3);
        let text = fs::read_to_string(directory.path().join("scale-processes-descriptors.svg"));
        let text = text.unwrap();
        assert!(
            text.contains("1 peer each") && text.contains("4 peers each"),
            "{text}"
        );
    }
}
