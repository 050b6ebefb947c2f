// SPDX-License-Identifier: MIT
//! Holds a trace against the rules of Chrome's Trace Event Format, as far as ours uses it.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// What a trace that passed has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bars, by name.
    pub slices: BTreeMap<String, usize>,
    /// Arrows, by name.
    pub flows: BTreeMap<String, usize>,
    /// Arrows from one rank to another.
    pub between_ranks: usize,
    /// Names of tracks.
    pub tracks: Vec<String>,
}

/// Rank and thread.
type Track = (u64, u64);

/// One end of an arrow.
#[derive(Debug, Clone, Copy)]
struct End {
    track: Track,
    time: u64,
}

#[derive(Default)]
struct Checker {
    facts: Facts,
    faults: Vec<String>,
    /// Bars by track, in the order of the file.
    bars: HashMap<Track, Vec<(u64, u64)>>,
    /// Begins without an end yet, by track.
    begun: HashMap<Track, Vec<String>>,
    flows: HashMap<u64, (Vec<End>, Vec<End>)>,
    last: u64,
    slack: u64,
}

/// Checks a trace.
///
/// - Each event has its phase, and what the phase asks for: name, process, thread, time, duration,
///   arguments. Times are microseconds from 0 on and do not go back; durations are not negative.
/// - Bars of a track lie inside of each other or apart; begins and ends match.
/// - An arrow has one begin and one end, not before it (but for the clocks' uncertainty), and each is at a
///   bar of its track.
///
/// # Errors
/// All that is wrong, a line each.
pub fn check(trace: &Value) -> Result<Facts, Vec<String>> {
    let mut checker = Checker::default();
    let Some(events) = trace["traceEvents"].as_array() else {
        return Err(vec!["there is no array traceEvents".into()]);
    };
    match trace.get("displayTimeUnit").map(Value::as_str) {
        None | Some(Some("ms" | "ns")) => {}
        Some(other) => checker.faults.push(format!("displayTimeUnit is {other:?}")),
    }
    checker.slack = trace["otherData"]["clock_uncertainty_ns"]
        .as_u64()
        .unwrap_or(0);
    for (index, event) in events.iter().enumerate() {
        if let Err(fault) = checker.event(event) {
            checker.faults.push(format!("event {index}: {fault}"));
        }
    }
    checker.end();
    if checker.faults.is_empty() {
        Ok(checker.facts)
    } else {
        Err(checker.faults)
    }
}

/// Microseconds as whole nanoseconds.
fn nanos(event: &Value, key: &str) -> Result<u64, String> {
    match event[key].as_f64() {
        Some(micros) if micros >= 0.0 && micros.is_finite() => Ok((micros * 1000.0).round() as u64),
        Some(micros) => Err(format!("{key} is {micros}")),
        None => Err(format!("no number {key}")),
    }
}

impl Checker {
    fn event(&mut self, event: &Value) -> Result<(), String> {
        let text = |key: &str| event[key].as_str().ok_or_else(|| format!("no text {key}"));
        let number = |key: &str| {
            event[key]
                .as_u64()
                .ok_or_else(|| format!("no number {key}"))
        };
        let (phase, name) = (text("ph")?, text("name")?);
        let track = (number("pid")?, number("tid")?);
        if phase == "M" {
            return self.metadata(name, &event["args"]);
        }
        let time = nanos(event, "ts")?;
        if time < self.last {
            return Err(format!("{name} goes back in time"));
        }
        self.last = time;
        match phase {
            "X" => {
                let end = time + nanos(event, "dur")?;
                self.bars.entry(track).or_default().push((time, end));
                *self.facts.slices.entry(name.into()).or_default() += 1;
            }
            "B" => self.begun.entry(track).or_default().push(name.into()),
            "E" => match self.begun.entry(track).or_default().pop() {
                Some(begun) if begun == name => {}
                other => return Err(format!("{name} ends, but what began last is {other:?}")),
            },
            "s" | "f" => {
                let (begins, ends) = self.flows.entry(number("id")?).or_default();
                let end = End { track, time };
                if phase == "s" {
                    begins.push(end);
                    *self.facts.flows.entry(name.into()).or_default() += 1;
                } else {
                    ends.push(end);
                    if text("bp")? != "e" {
                        return Err("an arrow's end is not bound to the bar around it".into());
                    }
                }
            }
            "i" => {
                if !matches!(text("s")?, "g" | "p" | "t") {
                    return Err("a moment of no scope".into());
                }
            }
            other => return Err(format!("phase {other:?} is not known")),
        }
        Ok(())
    }

    fn metadata(&mut self, name: &str, arguments: &Value) -> Result<(), String> {
        match name {
            "process_name" | "thread_name" => {
                let text = arguments["name"].as_str().ok_or("a name without a text")?;
                if name == "thread_name" {
                    self.facts.tracks.push(text.into());
                }
                Ok(())
            }
            "thread_sort_index" if arguments["sort_index"].is_u64() => Ok(()),
            other => Err(format!("metadata {other:?} is not known, or has no value")),
        }
    }

    fn end(&mut self) {
        let Self {
            facts,
            faults,
            bars,
            begun,
            flows,
            slack,
            ..
        } = self;
        for (track, names) in begun {
            for name in names {
                faults.push(format!("track {track:?}: {name} has no end"));
            }
        }
        for (track, bars) in bars.iter() {
            let mut around: Vec<u64> = Vec::new();
            for (start, end) in bars {
                while around.last().is_some_and(|last| last <= start) {
                    around.pop();
                }
                if around.last().is_some_and(|last| last < end) {
                    faults.push(format!(
                        "track {track:?}: a bar at {start} ns sticks out of another"
                    ));
                }
                around.push(*end);
            }
        }
        // In the order of time, as the events.
        let is_at_a_bar = |end: &End| {
            let bars = bars.get(&end.track).map_or(&[][..], Vec::as_slice);
            let to = bars.partition_point(|(start, _)| *start <= end.time);
            bars[..to].iter().rev().any(|(_, last)| end.time < *last)
        };
        for (id, (begins, ends)) in flows {
            let ([begin], [end]) = (&begins[..], &ends[..]) else {
                let (begins, ends) = (begins.len(), ends.len());
                faults.push(format!("arrow {id} has {begins} begins and {ends} ends"));
                continue;
            };
            if begin.time > end.time + *slack {
                faults.push(format!("arrow {id} points back in time"));
            }
            if !is_at_a_bar(begin) || !is_at_a_bar(end) {
                faults.push(format!("arrow {id} is at no bar"));
            }
            facts.between_ranks += usize::from(begin.track.0 != end.track.0);
        }
    }
}
