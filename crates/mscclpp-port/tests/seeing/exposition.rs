// SPDX-License-Identifier: MIT
//! A strict reader of Prometheus's text format, version 0.0.4, written from its description:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>. It refuses more
//! than a server does: what is legal and bad manners, too.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Labels = BTreeMap<String, String>;

/// The samples of one name.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: Vec<(Labels, f64)>,
}

/// All families by name, or the line that is wrong and why.
pub(crate) fn read(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut series = BTreeSet::new();
    let mut current: Option<String> = None;
    let mut helped: Option<String> = None;
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    for line in text.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = rest.split_once(' ') else {
                return wrong("a help without text");
            };
            if !is_name(name, true) || help.trim() != help || !help.ends_with('.') {
                return wrong("a help that is none");
            }
            helped = Some(name.into());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else {
                return wrong("a type without kind");
            };
            if helped.as_deref() != Some(name) {
                return wrong("a type behind no help");
            }
            if !["counter", "gauge"].contains(&kind) {
                return wrong("another kind");
            }
            if (kind == "counter") != name.ends_with("_total") {
                return wrong("counters, and they alone, end in _total");
            }
            let family = Family {
                kind: kind.into(),
                samples: Vec::new(),
            };
            if families.insert(name.into(), family).is_some() {
                return wrong("a family that comes twice");
            }
            current = Some(name.into());
        } else {
            let (name, labels, value) = match sample(line) {
                Some(sample) => sample,
                None => return wrong("no sample"),
            };
            if current.as_deref() != Some(name.as_str()) {
                return wrong("a sample of another family than the one above");
            }
            if !series.insert((name.clone(), labels.clone())) {
                return wrong("a series that comes twice");
            }
            let Some(family) = families.get_mut(&name) else {
                return wrong("a sample of no family");
            };
            if family.kind == "counter" && !(value.is_finite() && value >= 0.0) {
                return wrong("a counter that counts nothing");
            }
            family.samples.push((labels, value));
        }
    }
    match families
        .iter()
        .find(|(_, family)| family.samples.is_empty())
    {
        Some((name, _)) => Err(format!("{name} has no samples")),
        None => Ok(families),
    }
}

/// Whether it may name a metric, or a label.
fn is_name(text: &str, of_metric: bool) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || (of_metric && c == ':');
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            let is_new = labels.insert(label.into(), value).is_none();
            if !is_name(label, false) || label.starts_with("__") || !is_new {
                return None;
            }
            match after.strip_prefix(',') {
                Some(after) => rest = after,
                None => {
                    rest = after.strip_prefix('}')?;
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ')?;
    let is_plain = value.chars().all(|c| c.is_ascii_digit() || c == '.');
    (is_name(name, true) && is_plain).then_some(())?;
    Some((name.into(), labels, value.parse().ok()?))
}

/// The value up to its closing quote, and what is behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                '\\' => '\\',
                '"' => '"',
                'n' => '\n',
                _ => return None,
            }),
            char => value.push(char),
        }
    }
    None
}

#[test]
fn the_reader_refuses_what_is_wrong() {
    let good =
        "# HELP a_total Some.\n# TYPE a_total counter\na_total{b=\"x\\\"\\\\\\n\",c=\"\"} 1\n";
    let read_back = read(good).unwrap();
    assert_eq!(read_back["a_total"].samples[0].0["b"], "x\"\\\n");
    let wrong = [
        // Its last line does not end.
        good.trim_end(),
        // No head; one that comes twice; one without samples; another's.
        "a_total 1\n",
        "# TYPE a_total counter\na_total 1\n",
        &format!("{good}{good}"),
        "# HELP a_total Some.\n# TYPE a_total counter\n",
        &good.replace("\na_total{", "\nb_total{"),
        // A counter's name; a kind; a value; a series that comes twice.
        &good.replace("a_total", "a"),
        &good.replace("counter", "Counter"),
        &good.replace("} 1", "} one"),
        &good.replace("} 1", "} -1"),
        &good.replace("} 1", "}"),
        &good.replace("} 1", "}  1"),
        &format!("{good}a_total{{c=\"\",b=\"x\\\"\\\\\\n\"}} 1\n"),
        // Labels: an escape, a name, one that comes twice, one that is not closed.
        &good.replace("\\n", "\\t"),
        &good.replace("b=", "1b="),
        &good.replace("c=", "b="),
        &good.replace("\"\"}", "\"}"),
    ];
    for text in wrong {
        assert!(read(text).is_err(), "{text}");
    }
}
