// SPDX-License-Identifier: MIT
//! Sizes, channels, posting threads and backends, each against each, so that curves can be drawn.
//!
//! A sample takes a time, not a number of iterations: how many fit is found out first. Then there are
//! rounds, in which each case of each backend, and each case of the references, gives one sample, in
//! an order that is drawn anew each round: a machine that becomes slower makes every case wider, and
//! none of them look worse than the others.

use std::time::Duration;

use anyhow::Context as _;
use fastrand::Rng;
use mscclpp_port::{Buffer, PortChannel};

use super::bandwidth::{holds, pattern};
use super::point::Point;
use super::session::{Session, fit};
use super::{gigabytes, microseconds};
use crate::harness::{Context, Profile};
use crate::kernels::{PingPong, Stream};

/// Of a message.
pub(super) const LARGEST: u64 = 8 << 20;
/// Of a message where posts are counted, not bytes.
const SMALL: u64 = 8;
/// No sample has more, however fast an iteration is.
const MOST_ITERATIONS: u64 = 1 << 22;
/// The order of the samples is the same in each run, and on both ranks.
const SEED: u64 = 9;

/// How much is done.
struct Extent {
    sizes: Vec<u64>,
    /// Numbers of channels, and of threads.
    widths: &'static [usize],
    rounds: u64,
    /// Of a sample.
    time: Duration,
}

impl Extent {
    fn of(profile: Profile) -> Self {
        let sizes = |step: u32| {
            (0..)
                .map(move |n| 8 << (step * n))
                .take_while(|s| *s <= LARGEST)
        };
        profile.pick(
            Self {
                sizes: sizes(6).chain([LARGEST]).collect(),
                widths: &[1, 4],
                rounds: 7,
                time: Duration::from_millis(4),
            },
            Self {
                sizes: sizes(2).collect(),
                widths: &[1, 2, 4, 8],
                rounds: 21,
                time: Duration::from_millis(20),
            },
        )
    }
}

/// What is done so often in a sample.
enum Work {
    Echo(PingPong),
    Stream(Stream, u32),
    /// The reference's, of so many bytes.
    ReferenceEcho(u64),
    ReferenceStream(u64),
}

/// One figure.
struct Case {
    /// Whose session it is.
    session: usize,
    work: Work,
    /// What the figure is of; none for a reference.
    point: Option<Point>,
    /// The case of the reference that moves as much.
    reference: Option<usize>,
    iterations: u64,
    /// Seconds an iteration.
    samples: Vec<f64>,
}

/// Channels of one backend, used by case after case.
struct Lanes {
    /// There and back in one buffer.
    echo: (PortChannel, Buffer),
    streams: Vec<PortChannel>,
    /// What the peer's streams go to.
    incoming: Vec<Buffer>,
}

/// Everything of the sweep, on all backends of this machine.
pub(super) fn sweep(
    sessions: &mut [Session<'_>],
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let Some(context) = sessions.first().map(|session| session.fixture.context) else {
        return Ok(Vec::new());
    };
    let extent = Extent::of(context.profile());
    let mut cases = Vec::new();
    let mut lanes = Vec::new();
    for (number, session) in sessions.iter().enumerate() {
        let lane = Lanes::open(session, *extent.widths.iter().max().context("no widths")?)?;
        add_cases(&mut cases, number, session, &lane, &extent, suite);
        lanes.push(lane);
    }
    for case in &mut cases {
        let session = &mut sessions[case.session];
        if let Some(point) = &case.point {
            let what = format!(
                "{}, channels: {}, threads: {}",
                point.metric,
                point.queues.unwrap_or(1),
                point.threads.unwrap_or(1)
            );
            session.progress(suite, &what, point.bytes);
        }
        calibrate(case, session, &lanes[case.session], extent.time)?;
    }
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut chance = Rng::with_seed(SEED);
    for round in 1..=extent.rounds {
        if context.rank() == 0 {
            eprintln!(
                "{suite}: round {round} of {}, {} samples",
                extent.rounds,
                cases.len()
            );
        }
        chance.shuffle(&mut order);
        for &number in &order {
            let case = &mut cases[number];
            let session = &mut sessions[case.session];
            // What sleeps while others are measured wakes up.
            case.run(session, (case.iterations / 20).clamp(1, 100))?;
            session.fixture.meet()?;
            let took = case.run(session, case.iterations)?;
            case.samples
                .push(took.as_secs_f64() / case.iterations as f64);
            session.fixture.meet()?;
        }
    }
    points(&cases)
}

impl Lanes {
    fn open(session: &Session<'_>, width: usize) -> anyhow::Result<Self> {
        let fixture = &session.fixture;
        let buffer = fixture.buffer(LARGEST)?;
        let echo = (fixture.pair_in_place(2000, &buffer)?.channel, buffer);
        let (mut streams, mut incoming) = (Vec::new(), Vec::new());
        for number in 0..width as u32 {
            let (out, into) = (fixture.buffer(LARGEST)?, fixture.buffer(LARGEST)?);
            out.write(0, &pattern(number.into(), LARGEST))?;
            let (out, memory) = (fixture.register(&out)?, fixture.register(&into)?);
            streams.push(fixture.pair(2001 + number, &out, &memory)?.channel);
            incoming.push(into);
        }
        Ok(Self {
            echo,
            streams,
            incoming,
        })
    }
}

fn add_cases(
    cases: &mut Vec<Case>,
    number: usize,
    session: &Session<'_>,
    lanes: &Lanes,
    extent: &Extent,
    suite: &'static str,
) {
    let rank = session.context().rank();
    let mut add = |work, point, reference| {
        cases.push(Case {
            session: number,
            work,
            point,
            reference,
            iterations: 1,
            samples: Vec::new(),
        });
        cases.len() - 1
    };
    let stream = |channels: usize, threads: usize, bytes| {
        let stream = Stream {
            channels: lanes.streams[..channels].to_vec(),
            bytes,
            iterations: 0,
            rank,
        };
        Work::Stream(stream, threads as u32)
    };
    let point = |metric, unit, bytes, channels: usize, threads: usize| {
        Some(Point {
            bytes: Some(bytes),
            queues: Some(channels as u64),
            threads: Some(threads as u64),
            ..session.point(suite, metric, unit)
        })
    };
    for &bytes in &extent.sizes {
        let reference = Some(add(Work::ReferenceEcho(bytes), None, None));
        let (channel, buffer) = lanes.echo.clone();
        let echo = PingPong {
            channel,
            buffer,
            elements: bytes / 4,
            iterations: 0,
            polls: None,
            rank,
            flush: false,
            check: false,
            answers_last: true,
        };
        add(
            Work::Echo(echo),
            point("round trip", "us", bytes, 1, 1),
            reference,
        );
        let reference = Some(add(Work::ReferenceStream(bytes), None, None));
        // More than four channels are for rates.
        for &width in extent.widths.iter().filter(|width| **width <= 4) {
            let metric = "bandwidth of one direction";
            let point = point(metric, "GB/s", bytes, width, width);
            add(stream(width, width, bytes), point, reference);
        }
    }
    for &width in extent.widths {
        let metric = "puts with signal, a channel a thread";
        add(
            stream(width, width, SMALL),
            point(metric, "M/s", SMALL, width, width),
            None,
        );
        let metric = "puts with signal, threads on one channel";
        add(
            stream(1, width, SMALL),
            point(metric, "M/s", SMALL, 1, width),
            None,
        );
    }
}

impl Case {
    fn run(&self, session: &mut Session<'_>, iterations: u64) -> anyhow::Result<Duration> {
        let deadline = session.context().deadline();
        match &self.work {
            Work::Echo(echo) => {
                let kernel = PingPong {
                    iterations,
                    ..echo.clone()
                };
                kernel.launch(1)?.finish(deadline)
            }
            Work::Stream(stream, threads) => {
                let kernel = Stream {
                    iterations,
                    ..stream.clone()
                };
                kernel.launch(*threads)?.finish(deadline)
            }
            Work::ReferenceEcho(bytes) => session.reference.echo(*bytes, iterations),
            Work::ReferenceStream(bytes) => session.reference.stream(*bytes, iterations),
        }
    }

    /// Of the puts of an iteration.
    fn puts(&self) -> u64 {
        match &self.work {
            Work::Stream(_, threads) => (*threads).into(),
            _ => 1,
        }
    }
}

/// Finds how many iterations a sample has, and sees to it that the bytes of an iteration arrive.
fn calibrate(
    case: &mut Case,
    session: &mut Session<'_>,
    lanes: &Lanes,
    time: Duration,
) -> anyhow::Result<()> {
    let context: &Context = session.fixture.context;
    let (checked, bytes) = match &case.work {
        Work::Stream(stream, _) => (stream.channels.len(), stream.bytes),
        _ => (0, 0),
    };
    for buffer in &lanes.incoming[..checked] {
        buffer.write(0, &vec![0; bytes as usize])?;
    }
    session.fixture.meet()?;
    loop {
        let took = case.run(session, case.iterations)?;
        let fit = fit(context, case.iterations, took, time)?.min(MOST_ITERATIONS);
        // Few iterations do not tell how long many take.
        if fit <= case.iterations * 4 {
            case.iterations = fit;
            break;
        }
        case.iterations *= 4;
    }
    if context.rank() == 1 {
        for (number, buffer) in lanes.incoming[..checked].iter().enumerate() {
            holds(buffer, 0, number as u64, bytes)?;
        }
    }
    if let Work::Echo(echo) = &case.work {
        let checks = PingPong {
            iterations: 2,
            check: true,
            ..echo.clone()
        };
        checks.launch(1)?.finish(context.deadline())?;
    }
    session.fixture.meet()
}

/// The figures of all cases but the references.
fn points(cases: &[Case]) -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    for case in cases {
        let Some(point) = &case.point else { continue };
        let bytes = point.bytes.unwrap_or(0);
        let convert = |case: &Case| -> Vec<f64> {
            let puts = case.puts();
            let one = |seconds: &f64| match point.unit {
                "us" => microseconds(*seconds),
                "GB/s" => gigabytes(bytes * puts)(*seconds),
                _ => puts as f64 / seconds * 1e-6,
            };
            case.samples.iter().map(one).collect()
        };
        let reference = case
            .reference
            .map_or(Vec::new(), |number| convert(&cases[number]));
        points.push(point.clone().with(&convert(case), &reference)?);
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_from_eight_bytes_to_eight_mebibytes() {
        for profile in [Profile::Quick, Profile::Full] {
            let sizes = Extent::of(profile).sizes;
            assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
            assert_eq!((sizes[0], sizes.last()), (8, Some(&LARGEST)));
        }
        assert_eq!(Extent::of(Profile::Full).sizes.len(), 11);
    }
}
