// SPDX-License-Identifier: MIT
//! Lines on logarithmic axes, with a legend below.

use std::collections::BTreeMap;
use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::COLOURS;
use super::lines::{Chart, Line};
use crate::report::words::number;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = Result<T, Box<dyn Error>>;

const WIDTH: u32 = 900;
const CHART_HEIGHT: u32 = 460;
const LEGEND_LINE: u32 = 22;
const REFERENCE: RGBColor = RGBColor(120, 120, 120);
const TEXT: (&str, u32) = ("sans-serif", 16);

/// The chart as SVG.
pub(super) fn chart(chart: &Chart<'_>) -> Drawn<String> {
    let mut legend = Vec::new();
    for (number, (name, _, old)) in chart.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        legend.push((name.clone(), colour, Mark::Line(number / COLOURS.len())));
        if !old.is_empty() {
            legend.push((format!("{name}, older report"), colour, Mark::Dashes));
        }
    }
    let references = chart.references.keys();
    legend.extend(references.map(|name| (format!("{name}, same run"), REFERENCE, Mark::Line(0))));
    draw(CHART_HEIGHT, &legend, |area| lines(chart, area))
}

/// How a line or bar looks in the legend.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    /// With a marker of its own for each turn through the colours.
    Line(usize),
    Dashes,
    Bar,
}

/// A drawing of this height above a legend, in two columns.
pub(super) fn draw(
    height: u32,
    legend: &[(String, RGBColor, Mark)],
    inside: impl FnOnce(&Area<'_>) -> Drawn,
) -> Drawn<String> {
    let legend_height = legend.len().div_ceil(2) as u32 * LEGEND_LINE + 12;
    let mut svg = String::new();
    {
        let size = (WIDTH, height + legend_height);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let (above, below) = area.split_vertically(height);
        inside(&above)?;
        for (number, (name, colour, mark)) in legend.iter().enumerate() {
            let x = 76 + (number % 2) as i32 * (WIDTH as i32 / 2 - 38);
            let y = (number as u32 / 2 * LEGEND_LINE + 8) as i32;
            let style = colour.stroke_width(2);
            match mark {
                Mark::Bar => {
                    below.draw(&Rectangle::new(
                        [(x, y - 6), (x + 24, y + 6)],
                        colour.filled(),
                    ))?;
                }
                Mark::Line(turn) => {
                    below.draw(&PathElement::new([(x, y), (x + 24, y)], style))?;
                    marker(&below, (x + 12, y), *turn, *colour)?;
                }
                Mark::Dashes => {
                    for at in [x, x + 9, x + 18] {
                        below.draw(&PathElement::new([(at, y), (at + 6, y)], style))?;
                    }
                }
            }
            below.draw(&Text::new(name.as_str(), (x + 32, y - 7), TEXT))?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn marker<CT>(
    area: &DrawingArea<SVGBackend<'_>, CT>,
    at: CT::From,
    turn: usize,
    colour: RGBColor,
) -> Drawn
where
    CT: CoordTranslate,
    CT::From: Clone,
{
    match turn % 3 {
        0 => area.draw(&Circle::new(at, 3, colour.filled()))?,
        1 => area.draw(&TriangleMarker::new(at, 5, colour.filled()))?,
        _ => area.draw(&Cross::new(at, 4, colour.stroke_width(2)))?,
    }
    Ok(())
}

fn medians(line: &Line) -> Vec<(f64, f64)> {
    line.iter()
        .map(|(x, [_, median, _])| (*x as f64, *median))
        .collect()
}

fn lines(chart: &Chart<'_>, area: &Area<'_>) -> Drawn {
    let lines = || chart.lines.iter().flat_map(|(_, new, old)| [new, old]);
    let references = || chart.references.values().flat_map(BTreeMap::iter);
    let (mut least, mut most) = (f64::MAX, 1.0_f64);
    for at in lines().flat_map(BTreeMap::keys) {
        least = least.min(*at as f64);
        most = most.max(*at as f64);
    }
    let (mut low, mut high) = (f64::MAX, f64::MIN_POSITIVE);
    let values = lines().flat_map(|line| line.values().flatten());
    for value in values.chain(references().map(|(_, value)| value)) {
        // An axis has a length.
        low = low.min(*value * 0.99);
        high = high.max(*value * 1.01);
    }
    // Whole decades and a little more, so that there are ticks on both sides of the data.
    let decade = |value: f64| 10f64.powf(value);
    let y = (decade(low.log10().floor()) * 0.99..decade(high.log10().ceil()) * 1.01).log_scale();
    let x = (least * 0.8..most * 1.25).log_scale().base(2.0);
    let mut drawing = ChartBuilder::on(area)
        .caption(chart.title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)?;
    drawing
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .x_desc(chart.across.title())
        .y_desc(format!("{} [{}]", chart.metric, chart.unit))
        .x_label_formatter(&|at| chart.across.label(*at))
        .y_label_formatter(&|value| number(*value))
        .draw()?;
    for (number, (_, new, old)) in chart.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let edge = |at: usize| new.iter().map(move |(x, values)| (*x as f64, values[at]));
        let band: Vec<_> = edge(0).chain(edge(2).rev()).collect();
        if new.len() > 1 {
            drawing.draw_series([Polygon::new(band, colour.mix(0.15).filled())])?;
        } else {
            drawing.draw_series([PathElement::new(band, colour)])?;
        }
        drawing.draw_series([PathElement::new(medians(new), colour.stroke_width(2))])?;
        for at in medians(new) {
            marker(drawing.plotting_area(), at, number / COLOURS.len(), colour)?;
        }
        if !old.is_empty() {
            let style = colour.stroke_width(2);
            drawing.draw_series(DashedLineSeries::new(medians(old), 6, 5, style))?;
        }
    }
    for reference in chart.references.values() {
        let points: Vec<_> = reference
            .iter()
            .map(|(x, value)| (*x as f64, *value))
            .collect();
        for at in &points {
            marker(drawing.plotting_area(), *at, 0, REFERENCE)?;
        }
        drawing.draw_series([PathElement::new(points, REFERENCE.stroke_width(1))])?;
    }
    Ok(())
}
