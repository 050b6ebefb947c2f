// SPDX-License-Identifier: MIT
//! RDMA without kernels: a thread a rank posts and looks at memory, beside perftest's programs, which
//! do the same with bare verbs between the same devices.

use std::fs::File;
use std::hint;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_bootstrap::Deadline;
use mscclpp_port::verbs::{Device, GidKind};
use mscclpp_port::{Buffer, IbMode, RegisteredMemory, TransportKind};

use super::point::Point;
use super::session::Session;
use crate::fixture::{Fixture, Link};

/// Samples of each, in turns.
const SAMPLES: usize = 5;
const SMALL: u64 = 8;
const LARGE: u64 = 1 << 20;
/// No run of a program takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// What is measured, by us and by a program.
struct Figure {
    metric: &'static str,
    unit: &'static str,
    bytes: u64,
    iterations: u64,
    ours: fn(&Ends<'_>, u64) -> anyhow::Result<f64>,
    program: &'static str,
    args: &'static [&'static str],
    /// Of the line of figures that the program prints, which it is, and what it is multiplied by.
    column: usize,
    factor: f64,
}

const FIGURES: [Figure; 3] = [
    Figure {
        metric: "put, one way",
        unit: "us",
        bytes: SMALL,
        iterations: 1000,
        ours: puts,
        program: "ib_write_lat",
        args: &[],
        column: AVERAGE,
        factor: 1.0,
    },
    Figure {
        metric: "puts in a row",
        unit: "GB/s",
        bytes: LARGE,
        iterations: 100,
        ours: stream,
        program: "ib_write_bw",
        args: &["--report_gbits"],
        // The average, in 10^9 bits a second.
        column: 3,
        factor: 1.0 / 8.0,
    },
    Figure {
        metric: "add and flush",
        unit: "us",
        bytes: SMALL,
        iterations: 1000,
        ours: adds,
        program: "ib_atomic_lat",
        args: &["--atomic_type=FETCH_AND_ADD"],
        column: AVERAGE,
        factor: 1.0,
    },
];
/// Of a latency: behind size, iterations, least, most and typical time.
const AVERAGE: usize = 5;

/// This rank's end, without a proxy.
struct Ends<'a> {
    fixture: &'a Fixture<'a>,
    link: Link,
    /// What is sent.
    out: Buffer,
    source: RegisteredMemory,
    /// What the peer writes to.
    into: Buffer,
}

/// The suite; only where requests are the host's and signals are atomics.
pub(super) fn perftest(
    session: &mut Session<'_>,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    if session.fixture.backend.mode != IbMode::Host {
        return Ok(points);
    }
    let context = session.context();
    let missing = (FIGURES.iter()).find(|figure| {
        let version = Command::new(figure.program).arg("--version").output();
        version.is_err()
    });
    let missing = context.exchange(missing.map(|figure| figure.program.to_owned()))?;
    if let Some(program) = missing.into_iter().flatten().next() {
        eprintln!("SKIP {suite}: there is no {program}; apt-get install perftest");
        return Ok(points);
    }
    // One thread a rank, as perftest has.
    session.fixture.service.stop_proxy()?;
    {
        let fixture = &session.fixture;
        let (out, into) = (fixture.buffer(LARGE)?, fixture.buffer(LARGE)?);
        let (source, target) = (fixture.register(&out)?, fixture.register(&into)?);
        let ends = Ends {
            fixture,
            link: fixture.pair(900, &source, &target)?,
            out,
            source,
            into,
        };
        for figure in &FIGURES {
            session.progress(suite, figure.metric, Some(figure.bytes));
            points.push(ends.measure(session, suite, figure)?);
        }
    }
    session.fixture.service.start_proxy()?;
    Ok(points)
}

impl Ends<'_> {
    fn measure(
        &self,
        session: &Session<'_>,
        suite: &'static str,
        figure: &Figure,
    ) -> anyhow::Result<Point> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        (figure.ours)(self, figure.iterations / 10)?;
        for _ in 0..SAMPLES {
            self.fixture.meet()?;
            ours.push((figure.ours)(self, figure.iterations)?);
            self.fixture.meet()?;
            theirs.push(self.program(figure)?);
        }
        let point = Point {
            bytes: Some(figure.bytes),
            reference_name: Some(figure.program),
            ..session.point(suite, figure.metric, figure.unit)
        };
        point.with(&ours, &theirs)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(LIMIT)
    }

    fn put(&self, bytes: u64) -> anyhow::Result<()> {
        let Link {
            connection, remote, ..
        } = &self.link;
        Ok(connection.write(remote, 0, &self.source, 0, bytes)?)
    }

    /// Looks at memory until the peer has written a value there.
    fn see(&self, value: u64, deadline: Deadline) -> anyhow::Result<()> {
        let mut looks: u32 = 0;
        while self.into.load_u64(0)? != value {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 16) {
                ensure!(!deadline.expired(), "the peer's put does not arrive");
                if let Some(error) = self.link.connection.status() {
                    return Err(error.into());
                }
            }
            hint::spin_loop();
        }
        Ok(())
    }

    /// Rank 1 is the program's server, rank 0 its client, which gets the figure.
    fn program(&self, figure: &Figure) -> anyhow::Result<f64> {
        let rank = self.fixture.context.rank();
        let command = || -> anyhow::Result<Command> {
            let (device, gid) = device_of(self.fixture.endpoint.transport)?;
            let mut command = Command::new(figure.program);
            command.args(figure.args);
            // Whatever the clock rate does.
            command.args(["-F", "-d", &device, "-x", &gid]);
            command.args(["-n", &figure.iterations.to_string()]);
            if figure.program != "ib_atomic_lat" {
                command.args(["-s", &figure.bytes.to_string()]);
            }
            Ok(command)
        };
        let deadline = self.deadline();
        if rank == 1 {
            let mut server = Program::start(command()?)?;
            self.fixture.meet()?;
            server.finish(deadline)?;
            return Ok(0.0);
        }
        self.fixture.meet()?;
        loop {
            let mut client = command()?;
            client.arg("127.0.0.1");
            match Program::start(client)?.finish(deadline) {
                Ok(text) => return Ok(figure.read(&text)? * figure.factor),
                // The server may not listen yet.
                Err(_) if !deadline.expired() => thread::sleep(Duration::from_millis(50)),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Figure {
    /// The number in the last line of figures.
    fn read(&self, text: &str) -> anyhow::Result<f64> {
        let numbers = |line: &str| -> Option<Vec<f64>> {
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect()
        };
        let figures = text
            .lines()
            .filter_map(numbers)
            .rfind(|line| !line.is_empty());
        let figure = figures.and_then(|line| line.get(self.column).copied());
        figure.with_context(|| format!("{} prints no figures: {text}", self.program))
    }
}

/// The name of an endpoint's device, and which entry of its table of GIDs perftest is to use.
fn device_of(transport: TransportKind) -> anyhow::Result<(String, String)> {
    let place = u8::from(transport) - u8::from(TransportKind::IB0);
    let name = Device::list()?.into_iter().nth(usize::from(place));
    let name = name.context("this rank's device")?;
    let gids = Device::open(&name)?.gids(1)?;
    let gid = (gids.iter()).find(|gid| gid.kind == GidKind::RoceV2 && gid.ipv4().is_some());
    let index = gid.map_or(0, |gid| gid.index);
    Ok((name, index.to_string()))
}

/// Half a round trip of puts, in microseconds: each rank answers what it sees.
fn puts(ends: &Ends<'_>, count: u64) -> anyhow::Result<f64> {
    let (rank, deadline) = (ends.fixture.context.rank(), ends.deadline());
    ends.into.store_u64(0, 0)?;
    ends.fixture.meet()?;
    let start = Instant::now();
    for value in 1..=count {
        ends.out.store_u64(0, value)?;
        if rank == 0 {
            ends.put(SMALL)?;
        }
        ends.see(value, deadline)?;
        if rank == 1 {
            ends.put(SMALL)?;
        }
    }
    let took = start.elapsed();
    ends.link.connection.flush(deadline)?;
    ends.fixture.meet()?;
    Ok(took.as_secs_f64() * 1e6 / (2 * count) as f64)
}

/// Large puts of rank 0, in 10^9 bytes a second.
fn stream(ends: &Ends<'_>, count: u64) -> anyhow::Result<f64> {
    let start = Instant::now();
    if ends.fixture.context.rank() == 0 {
        for _ in 0..count {
            ends.put(LARGE)?;
        }
        ends.link.connection.flush(ends.deadline())?;
    }
    let took = start.elapsed();
    ends.fixture.meet()?;
    Ok((count * LARGE) as f64 / took.as_secs_f64() * 1e-9)
}

/// Adds of rank 0, each waited for, in microseconds.
fn adds(ends: &Ends<'_>, count: u64) -> anyhow::Result<f64> {
    let start = Instant::now();
    if ends.fixture.context.rank() == 0 {
        for _ in 0..count {
            (ends.link.connection).accumulate(&ends.link.remote, 0, 1)?;
            ends.link.connection.flush(ends.deadline())?;
        }
    }
    let took = start.elapsed();
    ends.fixture.meet()?;
    Ok(took.as_secs_f64() * 1e6 / count as f64)
}

/// A running program, killed when it is let go of.
struct Program {
    child: Child,
    output: File,
}

impl Program {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let output = tempfile::tempfile()?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()
            .context(name)?;
        Ok(Self { child, output })
    }

    /// Waits for its end, and returns what it printed.
    fn finish(&mut self, deadline: Deadline) -> anyhow::Result<String> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(!deadline.expired(), "perftest does not end");
            thread::sleep(Duration::from_millis(2));
        };
        let mut text = String::new();
        self.output.rewind()?;
        self.output.read_to_string(&mut text)?;
        if !status.success() {
            bail!("perftest: {status}: {text}");
        }
        Ok(text)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended cannot be killed, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
