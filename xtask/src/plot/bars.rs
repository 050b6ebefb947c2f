// SPDX-License-Identifier: MIT
//! The parts of a whole, one behind the other, a bar a backend.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::COLOURS;
use super::draw::{Drawn, Mark, draw};
use super::svg::described;
use crate::report::Point;
use crate::report::words::{distinct, number};

const BAR_HEIGHT: u32 = 56;

/// The figure: medians, which need not add up to the median of the whole.
pub(super) fn svg(title: &str, parts: &[&Point]) -> Result<String> {
    let names = distinct(parts.iter().map(|part| &part.metric));
    let bars: Vec<(String, Vec<&Point>)> = distinct(parts.iter().map(|part| part.place()))
        .into_iter()
        .map(|place| {
            let of = parts.iter().copied().filter(|part| part.place() == place);
            (place.clone(), of.collect())
        })
        .collect();
    let colour = |part: &Point| {
        let number = names.iter().position(|name| **name == part.metric);
        COLOURS[number.unwrap_or(0) % COLOURS.len()]
    };
    let legend: Vec<_> = distinct(parts.iter().map(|part| (part.metric.clone(), colour(part))))
        .into_iter()
        .map(|(name, colour)| (name, colour, Mark::Bar))
        .collect();
    let height = 92 + BAR_HEIGHT * bars.len() as u32;
    let svg = draw(height, &legend, |area| {
        let sums = bars.iter().map(|(_, parts)| sum(parts));
        let most = sums.fold(f64::MIN_POSITIVE, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 22))
            .margin(12)
            .margin_left(76)
            .x_label_area_size(44)
            .build_cartesian_2d(0.0..most * 1.15, 0.0..bars.len() as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 16))
            .axis_desc_style(("sans-serif", 16))
            .x_desc(format!(
                "{}, medians",
                parts.first().map_or("", |part| &part.unit)
            ))
            .x_label_formatter(&|value| number(*value))
            .draw()?;
        for (row, (place, parts)) in bars.iter().enumerate() {
            let top = (bars.len() - row) as f64;
            chart.draw_series([Text::new(
                place.clone(),
                (0.0, top - 0.05),
                ("sans-serif", 16),
            )])?;
            let mut from = 0.0;
            for part in parts {
                let to = from + part.median;
                let corners = [(from, top - 0.4), (to, top - 0.9)];
                chart.draw_series([Rectangle::new(corners, colour(part).filled())])?;
                from = to;
            }
            let text = format!(" {}", number(from));
            chart.draw_series([Text::new(text, (from, top - 0.5), ("sans-serif", 16))])?;
        }
        Drawn::Ok(())
    })
    .map_err(|error| anyhow!("cannot draw {title}: {error}"))?;
    Ok(described(&svg, title, &description(&bars)))
}

fn sum(parts: &[&Point]) -> f64 {
    parts.iter().map(|part| part.median).sum()
}

fn description(bars: &[(String, Vec<&Point>)]) -> String {
    let mut text = String::from("Bars of medians, the parts one behind the other.");
    for (place, parts) in bars {
        let parts = parts
            .iter()
            .map(|part| format!("{} {} {}", part.metric, number(part.median), part.unit));
        text += &format!(" {place}: {}.", parts.collect::<Vec<_>>().join(", "));
    }
    text
}
