// SPDX-License-Identifier: MIT
//! A report as one HTML file that needs nothing else. It is well-formed XML, too.

use std::fmt::Write as _;

use anyhow::Result;

use super::compare::{Comparison, Pair, RULE, Verdict, name};
use super::words::{bytes, distinct, number, summary};
use super::{Point, Report};
use crate::plot::{escaped, figure, groups};

const STYLE: &str = include_str!("page.css");

/// The page; with the older report, if it is compared with one.
///
/// # Errors
///
/// When a figure cannot be drawn.
pub(super) fn page(report: &Report, old: Option<(&Report, &Comparison<'_>)>) -> Result<String> {
    let title = format!("Benchmark on {}, {}", report.machine.cpu, report.date);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n",
        escaped(&title),
        escaped(&title)
    );
    warnings(&mut page, &report.machine.warnings());
    in_short(&mut page, report);
    if let Some((old, comparison)) = old {
        compared(&mut page, old, comparison);
    }
    let pairs = old.map_or(&[][..], |(_, comparison)| &comparison.pairs);
    let numbered: Vec<(usize, &Point)> = report.points.iter().enumerate().collect();
    for suite in distinct(report.points.iter().map(|point| &point.suite)) {
        let of = numbered.iter().filter(|(_, point)| point.suite == *suite);
        let (numbers, points): (Vec<usize>, Vec<&Point>) = of.copied().unzip();
        let _ = writeln!(page, "<h2 id=\"{0}\">{0}</h2>", escaped(suite));
        for group in groups(&points) {
            let same = |point: &Point| pairs.iter().find(|pair| pair.new.key() == point.key());
            let old: Vec<&Point> = group
                .iter()
                .filter_map(|p| same(p))
                .map(|p| p.old)
                .collect();
            page.push_str("<section>\n");
            if let Some(figure) = figure(&group, &old)? {
                // Only a file of its own needs the name space.
                let svg = figure
                    .svg
                    .replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
                let _ = writeln!(page, "<figure>{svg}</figure>");
            }
            let number = |point: &Point| {
                let at = points.iter().position(|p| std::ptr::eq(*p, point));
                at.map_or(0, |at| numbers[at])
            };
            table(&mut page, &group, number);
            page.push_str("</section>\n");
        }
    }
    about(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(page)
}

fn warnings(page: &mut String, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    page.push_str("<div class=\"warning\" role=\"note\"><p>Take the figures with care:</p><ul>\n");
    for warning in warnings {
        let _ = writeln!(page, "<li>{}</li>", escaped(warning));
    }
    page.push_str("</ul></div>\n");
}

/// What was found, in words; and where what is on the page.
fn in_short(page: &mut String, report: &Report) {
    page.push_str("<h2>In short</h2>\n<p>Medians of the best setting of each metric.</p>\n<dl>\n");
    for (place, sentences) in summary(report) {
        let _ = writeln!(page, "<dt>{}</dt><dd><ul>", escaped(&place));
        for sentence in sentences {
            let _ = writeln!(page, "<li>{}</li>", escaped(&sentence));
        }
        page.push_str("</ul></dd>\n");
    }
    page.push_str("</dl>\n");
    if !report.skipped.is_empty() {
        page.push_str("<p>Not measured:</p>\n<ul>\n");
        for skipped in &report.skipped {
            let suite = skipped.suite.as_deref().unwrap_or("everything");
            let (backend, executor) = (&skipped.backend, &skipped.executor);
            let text = format!("{backend}, {executor}: {suite}: {}", skipped.reason);
            let _ = writeln!(page, "<li>{}</li>", escaped(&text));
        }
        page.push_str("</ul>\n");
    }
    let suites = distinct(report.points.iter().map(|point| escaped(&point.suite)));
    let links = suites
        .iter()
        .map(|suite| format!("<a href=\"#{suite}\">{suite}</a>"));
    let _ = writeln!(page, "<nav>{}</nav>", links.collect::<Vec<_>>().join(" "));
}

fn compared(page: &mut String, old: &Report, comparison: &Comparison<'_>) {
    let commit = old.commit.as_deref().unwrap_or("unknown");
    let _ = writeln!(
        page,
        "<h2 id=\"compared\">Compared with {}, commit {}</h2>\n<p>{}.</p>\n<p>{RULE}</p>",
        escaped(&old.date),
        escaped(commit),
        comparison.tally()
    );
    let other = comparison.other_machine.iter();
    let mut cautions: Vec<String> = other
        .map(|line| format!("another machine: {line}"))
        .collect();
    cautions.extend(comparison.notes.iter().cloned());
    warnings(page, &cautions);
    page.push_str("<div class=\"table\"><table><thead><tr>");
    for head in [
        "verdict",
        "change",
        "older",
        "newer",
        "newer / older",
        "unit",
        "point",
    ] {
        let _ = write!(page, "<th scope=\"col\">{head}</th>");
    }
    page.push_str("</tr></thead><tbody>\n");
    for pair in &comparison.pairs {
        pair_row(page, pair);
    }
    page.push_str("</tbody></table></div>\n");
    for (side, points) in [
        ("newer", &comparison.only_new),
        ("older", &comparison.only_old),
    ] {
        if !points.is_empty() {
            let names = points
                .iter()
                .map(|point| format!("<li>{}</li>", escaped(&name(point))));
            let names = names.collect::<Vec<_>>().join("\n");
            let _ = writeln!(
                page,
                "<p>Only in the {side} report:</p><ul>\n{names}\n</ul>"
            );
        }
    }
}

fn pair_row(page: &mut String, pair: &Pair<'_>) {
    let class = match pair.verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Same | Verdict::TooFewSamples => "same",
    };
    let ratio = pair.ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    let _ = writeln!(
        page,
        "<tr class=\"{class}\"><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{ratio}</td><td>{}</td><td>{}</td></tr>",
        pair.verdict,
        pair.change(),
        number(pair.old.median),
        number(pair.new.median),
        pair.new.unit,
        escaped(&name(pair.new))
    );
}

/// The figures of a group, with the number of each in the report.
fn table(page: &mut String, group: &[&Point], number_of: impl Fn(&Point) -> usize) {
    let Some(first) = group.first() else { return };
    let about = first.part_of.as_ref().unwrap_or(&first.metric);
    let _ = writeln!(
        page,
        "<div class=\"table\"><table><caption>{} [{}]</caption><thead><tr>",
        escaped(about),
        first.unit
    );
    let references = distinct(
        group
            .iter()
            .filter_map(|point| point.reference_name.as_deref()),
    );
    // Named in the head, if it is one for all.
    let reference = match references[..] {
        [] => None,
        [name] => Some(name),
        _ => Some("reference"),
    };
    let mut heads = vec!["backend"];
    heads.extend(first.part_of.is_some().then_some("part"));
    heads.extend([
        "bytes", "queues", "threads", "min", "p10", "median", "p90", "samples",
    ]);
    heads.extend(reference.into_iter().flat_map(|name| [name, "ratio"]));
    for head in heads {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escaped(head));
    }
    page.push_str("</tr></thead><tbody>\n");
    for point in group {
        let _ = write!(page, "<tr id=\"p{}\">", number_of(point));
        let part = point.part_of.as_ref().map(|_| &point.metric);
        for word in [Some(&point.place()), part].into_iter().flatten() {
            let _ = write!(page, "<td>{}</td>", escaped(word));
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let count = |count: Option<u64>| or_dash(count.map(|count| count.to_string()));
        let mut figures = vec![or_dash(point.bytes.map(|size| bytes(size as f64)))];
        figures.extend([count(point.queues), count(point.threads)]);
        figures.extend([point.min, point.p10, point.median, point.p90].map(number));
        figures.push(point.samples.to_string());
        if reference.is_some() {
            figures.push(match &point.reference_name {
                Some(name) if references.len() > 1 => {
                    format!("{} {name}", or_dash(point.reference.map(number)))
                }
                _ => or_dash(point.reference.map(number)),
            });
            figures.push(or_dash(point.ratio().map(number)));
        }
        for figure in figures {
            let _ = write!(page, "<td class=\"n\">{}</td>", escaped(&figure));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn about(page: &mut String, report: &Report) {
    let machine = &report.machine;
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let number = |value: Option<f64>| or_unknown(value.map(number));
    let rows = [
        ("date", report.date.clone()),
        ("commit", or_unknown(report.commit.clone())),
        ("command", report.command.clone()),
        ("features", report.features.join(", ")),
        ("CPU", machine.cpu.clone()),
        ("cores", machine.cores.to_string()),
        ("kernel", machine.kernel.clone()),
        ("clock's governor", or_unknown(machine.governor.clone())),
        ("GPUs", machine.gpus.join("; ")),
        ("compiler", machine.rustc.clone()),
        ("profile", machine.profile.clone()),
        (
            "load (1 minute) at the start",
            number(machine.load_1min_start),
        ),
        (
            "load (1 minute) at the end, the benchmark included",
            number(machine.load_1min_end),
        ),
        (
            "CPU time of other processes [%]",
            number(machine.cpu_others_percent),
        ),
        (
            "CPU time of other machines of the host [%]",
            number(machine.cpu_stolen_percent),
        ),
    ];
    page.push_str("<h2 id=\"about\">About this run</h2>\n<div class=\"table\"><table><tbody>\n");
    for (name, value) in rows {
        let value = if value.is_empty() { "none" } else { &value };
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>",
            escaped(value)
        );
    }
    page.push_str("</tbody></table></div>\n<p>A figure is the median of its samples; bands and the \
         columns p10 and p90 hold the middle four fifths of them. Times: less is better. Bandwidths \
         (10^9 bytes a second) and rates (10^6 operations a second): more is better. Bars show medians \
         of parts, which need not add up to the median of the whole.</p>\n");
}
