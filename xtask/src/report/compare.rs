// SPDX-License-Identifier: MIT
//! A report beside an older one.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use super::words::number;
use super::{Key, Machine, Point, Report};

/// With fewer samples the spread is not known.
const ENOUGH: u64 = 5;

/// The rule of the verdicts, for readers.
pub(super) const RULE: &str = "A point is faster or slower if each median is outside of the other's range \
    from p10 to p90; otherwise it is the same within noise. With fewer than 5 samples on a side \
    nothing is said. The change is that of the time an operation takes: +100 % is half the rate.";

/// What is said of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Takes less time, or does more in a time.
    Faster,
    /// The contrary.
    Slower,
    /// Within noise.
    Same,
    /// Nobody can know.
    TooFewSamples,
}

/// A point that both reports have.
#[derive(Clone, Debug)]
pub(super) struct Pair<'a> {
    /// Of the newer report.
    pub(super) new: &'a Point,
    /// Of the older one.
    pub(super) old: &'a Point,
    /// The new median over the old; none if that is 0.
    pub(super) ratio: Option<f64>,
    /// By how many percent the time of an operation has grown; infinite where it was nothing.
    pub(super) slowdown: f64,
    /// What that means.
    pub(super) verdict: Verdict,
}

/// Two reports.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    /// What both have, the largest change first.
    pub(super) pairs: Vec<Pair<'a>>,
    /// What the older one has not.
    pub(super) only_new: Vec<&'a Point>,
    /// What the newer one has not.
    pub(super) only_old: Vec<&'a Point>,
    /// What differs in hardware, so that the figures say nothing of the code.
    pub(super) other_machine: Vec<String>,
    /// What else differs, or was not quiet.
    pub(super) notes: Vec<String>,
}

impl Verdict {
    fn of(new: &Point, old: &Point, slowdown: f64) -> Self {
        let outside = |median: f64, of: &Point| median < of.p10 || median > of.p90;
        if new.samples.min(old.samples) < ENOUGH {
            Self::TooFewSamples
        } else if !(outside(new.median, old) && outside(old.median, new)) {
            Self::Same
        } else if slowdown > 0.0 {
            Self::Slower
        } else {
            Self::Faster
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "same within noise",
            Self::TooFewSamples => "too few samples",
        })
    }
}

impl<'a> Pair<'a> {
    fn new(new: &'a Point, old: &'a Point) -> Self {
        let ratio = (old.median > 0.0).then(|| new.median / old.median);
        let (later, earlier) = if new.less_is_better() {
            (new.median, old.median)
        } else {
            (old.median, new.median)
        };
        let slowdown = if later == earlier {
            0.0
        } else {
            (later / earlier - 1.0) * 100.0
        };
        Self {
            new,
            old,
            ratio,
            slowdown,
            verdict: Verdict::of(new, old, slowdown),
        }
    }

    /// The slowdown with its sign.
    pub(super) fn change(&self) -> String {
        match self.slowdown {
            change if change.is_infinite() => "from nothing".into(),
            change => format!("{change:+.1} %"),
        }
    }
}

impl<'a> Comparison<'a> {
    /// Holds a report against an older one.
    pub(super) fn of(new: &'a Report, old: &'a Report) -> Self {
        let mut olds: HashMap<Key<'_>, &Point> = old.points.iter().map(|p| (p.key(), p)).collect();
        let mut pairs = Vec::new();
        let mut only_new = Vec::new();
        for point in &new.points {
            match olds.remove(&point.key()) {
                Some(older) => pairs.push(Pair::new(point, older)),
                None => only_new.push(point),
            }
        }
        let only_old = old
            .points
            .iter()
            .filter(|point| olds.contains_key(&point.key()));
        // A factor of two is as much in either direction.
        let size = |pair: &Pair<'_>| (pair.slowdown / 100.0 + 1.0).ln().abs();
        pairs.sort_by(|a, b| size(b).total_cmp(&size(a)));
        let (other_machine, mut notes) = differences(&new.machine, &old.machine);
        if new.features != old.features {
            notes.push(format!(
                "features were {:?}, now {:?}",
                old.features, new.features
            ));
        }
        for (name, report) in [("older", old), ("newer", new)] {
            let warnings = report.machine.warnings().into_iter();
            notes.extend(warnings.map(|warning| format!("the {name} report: {warning}")));
        }
        Self {
            pairs,
            only_new,
            only_old: only_old.collect(),
            other_machine,
            notes,
        }
    }

    /// How many points got this verdict.
    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.pairs
            .iter()
            .filter(|pair| pair.verdict == verdict)
            .count()
    }

    /// Points that are slower by more than so many percent.
    pub(super) fn slower_than(&self, percent: f64) -> impl Iterator<Item = &Pair<'a>> {
        (self.pairs.iter())
            .filter(move |pair| pair.verdict == Verdict::Slower && pair.slowdown > percent)
    }

    /// One line that says all.
    pub(super) fn tally(&self) -> String {
        format!(
            "{} faster, {} slower, {} the same within noise, {} with too few samples, \
             {} only in the newer report, {} only in the older one",
            self.count(Verdict::Faster),
            self.count(Verdict::Slower),
            self.count(Verdict::Same),
            self.count(Verdict::TooFewSamples),
            self.only_new.len(),
            self.only_old.len()
        )
    }

    /// As text: warnings, a line a point, and the tally.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.other_machine {
            let _ = writeln!(text, "WARNING: another machine: {line}");
        }
        for line in &self.notes {
            let _ = writeln!(text, "note: {line}");
        }
        for pair in &self.pairs {
            let (old, new) = (number(pair.old.median), number(pair.new.median));
            let ratio = pair.ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
            let _ = writeln!(
                text,
                "{:<17} {:>12}  {old:>9} -> {new:>9} {:<4}  new/old {ratio:>7}  {}",
                pair.verdict,
                pair.change(),
                pair.new.unit,
                name(pair.new)
            );
        }
        for (side, points) in [("newer", &self.only_new), ("older", &self.only_old)] {
            for point in points {
                let _ = writeln!(text, "only in the {side} report: {}", name(point));
            }
        }
        text + &self.tally()
    }
}

/// A point in words.
pub(super) fn name(point: &Point) -> String {
    let mut words = vec![point.suite.clone(), point.place(), point.metric.clone()];
    words.retain(|word| !word.is_empty());
    words.extend(point.setting());
    words.join(", ")
}

/// What makes another machine of it, and what is only worth a note.
fn differences(new: &Machine, old: &Machine) -> (Vec<String>, Vec<String>) {
    let differ = |name: &str, old: &str, new: &str| {
        (old != new).then(|| format!("{name} was {old}, now {new}"))
    };
    let (cores, gpus) = (
        (old.cores, new.cores),
        (old.gpus.join("; "), new.gpus.join("; ")),
    );
    let hardware = [
        differ("the CPU", &old.cpu, &new.cpu),
        differ(
            "the number of cores",
            &cores.0.to_string(),
            &cores.1.to_string(),
        ),
        differ("the list of GPUs", &gpus.0, &gpus.1),
    ];
    let governor = |machine: &Machine| machine.governor.clone().unwrap_or("unknown".into());
    let software = [
        differ("the kernel", &old.kernel, &new.kernel),
        differ("the governor", &governor(old), &governor(new)),
        differ("the compiler", &old.rustc, &new.rustc),
        differ("the profile", &old.profile, &new.profile),
    ];
    (
        hardware.into_iter().flatten().collect(),
        software.into_iter().flatten().collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    /// Some report, of whatever figures.
    fn report(figures: &[[u16; 4]], unit: &str) -> Report {
        let mut value = example();
        let mut points = Vec::new();
        for (number, figures) in figures.iter().enumerate() {
            let mut sorted = *figures;
            sorted.sort_unstable();
            let mut point = value["points"][0].clone();
            point["bytes"] = number.into();
            point["unit"] = unit.into();
            for (name, figure) in ["min", "p10", "median", "p90"].iter().zip(sorted) {
                point[*name] = figure.into();
            }
            point["samples"] = (u64::from(figures[0] % 30) + 1).into();
            points.push(point);
        }
        value["points"] = points.into();
        Report::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_report_is_the_same_as_itself() {
        bolero::check!()
            .with_type::<Vec<[u16; 4]>>()
            .for_each(|figures| {
                if figures.is_empty() {
                    return;
                }
                for unit in ["us", "GB/s"] {
                    let report = report(figures, unit);
                    let comparison = Comparison::of(&report, &report);
                    let changed = |pair: &Pair<'_>| {
                        matches!(pair.verdict, Verdict::Faster | Verdict::Slower)
                            || pair.slowdown != 0.0
                    };
                    assert_eq!(comparison.pairs.len(), report.points.len());
                    assert!(!comparison.pairs.iter().any(changed));
                    assert_eq!(comparison.slower_than(0.0).count(), 0);
                }
            });
    }

    #[test]
    fn what_is_faster_one_way_is_slower_the_other_way() {
        bolero::check!()
            .with_type::<[[u16; 4]; 2]>()
            .for_each(|[one, other]| {
                for unit in ["us", "GB/s"] {
                    let (one, other) = (report(&[*one], unit), report(&[*other], unit));
                    let there = Comparison::of(&one, &other).pairs[0].verdict;
                    let back = Comparison::of(&other, &one).pairs[0].verdict;
                    let expected = match there {
                        Verdict::Faster => Verdict::Slower,
                        Verdict::Slower => Verdict::Faster,
                        same => same,
                    };
                    assert_eq!(back, expected);
                }
            });
    }
}
