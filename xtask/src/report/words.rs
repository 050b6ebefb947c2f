// SPDX-License-Identifier: MIT
//! Figures as people read them, and a report in a few sentences.

use super::{Point, Report};

/// The suite that covers most, of which a report is summed up if it was run.
const SWEEP: &str = "sweep";

/// A number with three digits that tell something.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    let rounded = format!("{value:.*}", digits.clamp(0, 9) as usize);
    if rounded.contains('.') {
        rounded.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        rounded
    }
}

/// A size in a binary unit.
pub(crate) fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", (value * 10.0).round() / 10.0, units[unit])
}

/// For each backend: its name, and a sentence for the best of each metric, and for where most of the
/// time of each whole goes.
pub(crate) fn summary(report: &Report) -> Vec<(String, Vec<String>)> {
    let swept = report.points.iter().any(|point| point.suite == SWEEP);
    let mut summary: Vec<(String, Vec<String>)> = Vec::new();
    for place in distinct(report.points.iter().map(Point::place)) {
        let here = || report.points.iter().filter(|point| point.place() == place);
        let mut sentences = Vec::new();
        let wholes = || here().filter(|point| point.part_of.is_none());
        let figures = || wholes().filter(|point| !swept || point.suite == SWEEP);
        for (metric, unit) in distinct(figures().map(|point| (&point.metric, &point.unit))) {
            let all = figures().filter(|point| (&point.metric, &point.unit) == (metric, unit));
            sentences.extend(all.reduce(better).map(best));
        }
        let parts = || here().filter(|point| point.part_of.is_some());
        for (suite, whole) in distinct(parts().map(|point| (&point.suite, &point.part_of))) {
            let of = || parts().filter(|point| (&point.suite, &point.part_of) == (suite, whole));
            let most = of().max_by(|a, b| a.median.total_cmp(&b.median));
            let (Some(most), Some(whole)) = (most, whole) else {
                continue;
            };
            let sum: f64 = of().map(|point| point.median).sum();
            sentences.push(format!(
                "{whole}: most of it is {}, {} of {} {}",
                most.metric,
                number(most.median),
                number(sum),
                most.unit
            ));
        }
        if !sentences.is_empty() && !place.is_empty() {
            summary.push((place, sentences));
        }
    }
    summary
}

/// In the order in which they come first.
pub(crate) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

fn better<'a>(a: &'a Point, b: &'a Point) -> &'a Point {
    let first = if a.less_is_better() {
        a.median <= b.median
    } else {
        a.median >= b.median
    };
    if first { a } else { b }
}

fn best(point: &Point) -> String {
    let limit = if point.less_is_better() {
        "from"
    } else {
        "up to"
    };
    let Point { metric, unit, .. } = point;
    let mut text = format!("{metric}: {limit} {} {unit}", number(point.median));
    text += &format!(
        " (p10 to p90: {} to {})",
        number(point.p10),
        number(point.p90)
    );
    let setting = point.setting();
    if !setting.is_empty() {
        text += &format!(", with {}", setting.join(", "));
    }
    if let (Some(ratio), Some(name)) = (point.ratio(), &point.reference_name) {
        text += &format!("; {} times {name}", number(ratio));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.0, 0.00012345, 0.5, 1.0, 9.999, 12.34, 123.4, 12345.6];
        let expected = ["0", "0.000123", "0.5", "1", "10", "12.3", "123", "12346"];
        assert_eq!(all.map(number), expected);
    }

    #[test]
    fn sizes_are_named_in_their_units() {
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(1024.0), "1 KiB");
        assert_eq!(bytes(16.0 * 1048576.0), "16 MiB");
    }

    #[test]
    fn the_best_of_each_metric_is_told() {
        let mut value = example();
        let bytes = serde_json::to_vec(&value).unwrap();
        let summary = summary(&Report::parse(&bytes).unwrap());
        assert_eq!(summary.len(), 1);
        let text = summary[0].1.join("\n");
        assert_eq!(summary[0].0, "proxy-ethernet, cpu");
        assert!(text.contains("round trip: from 20 us (p10 to p90: 18 to 24), with 8 B, 1 queue, 1 thread; 2 times plain TCP"), "{text}");
        assert!(text.contains("bandwidth: up to 3.5 GB/s"), "{text}");

        for number in [0, 1] {
            value["points"][number]["part_of"] = "a whole".into();
        }
        value["points"][1]["metric"] = "return".into();
        let bytes = serde_json::to_vec(&value).unwrap();
        let text = super::summary(&Report::parse(&bytes).unwrap())[0]
            .1
            .join("\n");
        assert!(
            text.contains("a whole: most of it is return, 25 of 45 us"),
            "{text}"
        );
    }
}
