// SPDX-License-Identifier: MIT
//! What was measured, and how it stands to what was asked for.

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use serde::{Serialize, Serializer};

use super::super::aligned::{aligned, number};
use super::super::machine::{Machine, Watch};
use super::super::stats::Summary;
use crate::backend::Executor;

/// What posts, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A trigger to the proxy, released at system scope.
    Proxy,
    /// Our send queue, one thread at a time.
    Exclusive,
    /// Our send queue, any threads.
    Shared,
    /// GPUNetIO's sharing mode EXCLUSIVE, behind a fence at system scope.
    TheirExclusive,
    /// GPUNetIO's sharing mode GPU, behind a fence at system scope.
    TheirShared,
}

/// One call of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    PutWithSignal,
    Put,
    Signal,
}

/// What else the thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Nothing.
    Quiet,
    /// A load from host memory is under way.
    PingPong,
    /// It posts again and again, and so do others.
    BackToBack,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    /// Nanoseconds until the call returns.
    Returns,
    /// Nanoseconds until a CPU thread that polls the doorbell, or the trigger's slot, has answered.
    Answered,
    /// Nanoseconds of a phase of the call.
    Phase(&'static str),
    /// Millions of calls a second.
    Rate,
}

/// How many threads post, each block to a queue of its own or all to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Posters {
    /// Queues.
    pub(super) queues: u32,
    /// Threads of all blocks.
    pub(super) threads: u32,
}

impl Posters {
    pub(super) const ONE: Self = Self {
        queues: 1,
        threads: 1,
    };
}

/// What a figure is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Subject {
    #[serde(serialize_with = "display")]
    pub(super) form: Form,
    #[serde(serialize_with = "display")]
    pub(super) call: Call,
    #[serde(serialize_with = "display")]
    pub(super) condition: Condition,
    #[serde(serialize_with = "display")]
    pub(super) metric: Metric,
    #[serde(flatten)]
    pub(super) posters: Posters,
}

/// One measured quantity.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    #[serde(flatten)]
    pub(super) subject: Subject,
    unit: &'static str,
    p10: f64,
    median: f64,
    p90: f64,
}

impl Figure {
    pub(super) fn new(subject: Subject, samples: &[f64]) -> anyhow::Result<Self> {
        let Summary {
            p10, median, p90, ..
        } = Summary::of(samples).context("no samples")?;
        let unit = match subject.metric {
            Metric::Rate => "M/s",
            _ => "ns",
        };
        Ok(Self {
            subject,
            unit,
            p10,
            median,
            p90,
        })
    }
}

/// A ratio of two medians of one run, and what it must be.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Target {
    what: String,
    ratio: f64,
    at_most: Option<f64>,
    at_least: Option<f64>,
    holds: bool,
}

/// All of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: u32,
    host: Machine,
    gpu: String,
    /// Version of GPUNetIO's headers, if they were given.
    gpunetio: Option<String>,
    figures: Vec<Figure>,
    targets: Vec<Target>,
}

impl Report {
    pub(super) fn new(gpu: String, gpunetio: Option<String>, figures: Vec<Figure>) -> Self {
        Self {
            schema: 1,
            host: Watch::start().end(Executor::Cuda, None),
            gpu,
            gpunetio,
            targets: targets(&figures),
            figures,
        }
    }

    pub(super) fn write_json(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: [&str; 9] = [
            "posted by",
            "call",
            "condition",
            "metric",
            "queues",
            "threads",
            "p10",
            "median",
            "p90",
        ];
        let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
        for figure in &self.figures {
            let Subject {
                form,
                call,
                condition,
                metric,
                posters,
            } = figure.subject;
            lines.push(vec![
                form.to_string(),
                call.to_string(),
                condition.to_string(),
                format!("{metric} [{}]", figure.unit),
                posters.queues.to_string(),
                posters.threads.to_string(),
                number(figure.p10),
                number(figure.median),
                number(figure.p90),
            ]);
        }
        let theirs = self.gpunetio.as_deref().unwrap_or("not given");
        writeln!(f, "{}; GPUNetIO {theirs}\n", self.gpu)?;
        writeln!(f, "{}", aligned(&lines, &[0, 1, 2, 3]))?;
        let mut lines = vec![
            ["ratio of medians", "found", "must be", ""]
                .map(str::to_owned)
                .to_vec(),
        ];
        for target in &self.targets {
            let bound = match (target.at_most, target.at_least) {
                (Some(most), _) => format!("<= {most}"),
                (_, Some(least)) => format!(">= {least}"),
                _ => String::new(),
            };
            lines.push(vec![
                target.what.clone(),
                format!("{:.2}", target.ratio),
                bound,
                if target.holds { "yes" } else { "NO" }.to_owned(),
            ]);
        }
        write!(f, "{}", aligned(&lines, &[0, 2, 3]))
    }
}

/// The ratios that are asked for, of what was measured.
fn targets(figures: &[Figure]) -> Vec<Target> {
    use Condition::{BackToBack, PingPong};
    use Form::{Exclusive, Proxy, Shared, TheirExclusive, TheirShared};
    use Metric::{Answered, Rate, Returns};
    let one = |form, metric| Subject {
        form,
        call: Call::PutWithSignal,
        condition: PingPong,
        metric,
        posters: Posters::ONE,
    };
    let rate = |form, queues, threads| Subject {
        condition: BackToBack,
        posters: Posters { queues, threads },
        ..one(form, Rate)
    };
    let most = |limit| (Some(limit), None);
    let least = |limit| (None, Some(limit));
    let asked = [
        (one(Exclusive, Returns), one(Proxy, Returns), most(1.2)),
        (
            one(Exclusive, Returns),
            one(TheirShared, Returns),
            most(0.65),
        ),
        (one(Exclusive, Answered), one(Proxy, Answered), most(0.8)),
        (
            one(Exclusive, Answered),
            one(TheirExclusive, Answered),
            most(1.0),
        ),
        (one(Shared, Returns), one(TheirShared, Returns), most(0.8)),
        (
            rate(Shared, 1, 1024),
            rate(TheirShared, 1, 1024),
            least(8.0),
        ),
        (
            rate(Exclusive, 128, 128),
            rate(TheirExclusive, 128, 128),
            least(1.0),
        ),
    ];
    let median = |subject| {
        let found = figures.iter().find(|figure| figure.subject == subject)?;
        Some(found.median)
    };
    let target =
        |(ours, other, (at_most, at_least)): (Subject, Subject, (Option<f64>, Option<f64>))| {
            let ratio = median(ours)? / median(other)?;
            Some(Target {
                what: format!("{ours} / {}", other.form),
                ratio,
                at_most,
                at_least,
                holds: at_most.is_none_or(|most| ratio <= most)
                    && at_least.is_none_or(|least| ratio >= least),
            })
        };
    asked.into_iter().filter_map(target).collect()
}

fn display<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            form,
            call,
            condition,
            metric,
            posters: Posters { queues, threads },
        } = self;
        write!(f, "{form} {call}, {condition}, {metric}")?;
        if *threads > 1 {
            write!(f, ", {queues} queues, {threads} threads")?;
        }
        Ok(())
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proxy => "proxy push",
            Self::Exclusive => "exclusive queue",
            Self::Shared => "shared queue",
            Self::TheirExclusive => "GPUNetIO exclusive",
            Self::TheirShared => "GPUNetIO shared",
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PutWithSignal => "putWithSignal",
            Self::Put => "put",
            Self::Signal => "signal",
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet => "quiet",
            Self::PingPong => "ping-pong",
            Self::BackToBack => "back to back",
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Returns => "returns",
            Self::Answered => "is answered",
            Self::Phase(name) => name,
            Self::Rate => "rate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(form: Form, metric: Metric, median: f64) -> Figure {
        let subject = Subject {
            form,
            call: Call::PutWithSignal,
            condition: Condition::PingPong,
            metric,
            posters: Posters::ONE,
        };
        Figure::new(subject, &[median]).unwrap()
    }

    #[test]
    fn targets_are_judged_by_medians_and_left_out_where_one_is_missing() {
        let report = Report::new(
            "a GPU".into(),
            Some("3.0.0".into()),
            vec![
                figure(Form::Proxy, Metric::Returns, 1000.0),
                figure(Form::Exclusive, Metric::Returns, 1300.0),
                figure(Form::TheirShared, Metric::Returns, 2000.0),
                figure(Form::Shared, Metric::Returns, 1600.0),
            ],
        );
        let found: Vec<_> = report.targets.iter().map(|t| (t.ratio, t.holds)).collect();
        assert_eq!(found, [(1.3, false), (0.65, true), (0.8, true)]);
        let text = report.to_string();
        let proxy = text
            .lines()
            .find(|line| line.contains("/ proxy push"))
            .unwrap();
        assert!(proxy.ends_with("NO"), "{text}");
    }

    #[test]
    fn the_json_tells_of_each_figure_what_it_is_of() {
        let report = Report::new(
            "a GPU".into(),
            None,
            vec![figure(Form::Proxy, Metric::Returns, 1.0)],
        );
        let value = serde_json::to_value(report).unwrap();
        let figure = &value["figures"][0];
        assert_eq!(figure["form"], "proxy push");
        assert_eq!(
            (&figure["queues"], &figure["threads"]),
            (&1.into(), &1.into())
        );
        assert!(value["gpunetio"].is_null());
    }
}
