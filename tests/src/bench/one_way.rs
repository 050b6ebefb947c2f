// SPDX-License-Identifier: MIT
//! Where the time of a message goes on its way: from the kernel that puts to the kernel that sees its
//! signal, by stamps of one clock, which all threads and processes of a machine share.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::{ProxyTrigger, Trigger};
use mscclpp_port::{
    Connection, DEFAULT_FIFO_SIZE, Host2DeviceSemaphore, Proxy, ProxyHandler, ProxyHandlerResult,
    RegisteredMemory,
};
use rustix::time::{ClockId, clock_gettime};

use super::point::Point;
use super::session::Session;
use crate::backend::Executor;
use crate::fixture::Link;
use crate::kernels::OneWay;

const BYTES: u64 = 8;
/// Iterations between two looks at the reference.
const BATCH: u64 = 100;
const WHOLE: &str = "one way, from put to signal seen";

/// Stamps of one message, in their order.
type Way = Vec<u64>;

/// From rank 0 to rank 1, while nothing else is under way.
pub(super) fn one_way(
    session: &mut Session<'_>,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    if session.fixture.backend.executor == Executor::Cuda {
        session.skip(suite, "the clocks of GPUs and of the host are not one");
        return Ok(Vec::new());
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let boots = session.context().exchange(boot)?;
    if boots[0] != boots[1] {
        session.skip(
            suite,
            "the ranks are on two machines, whose clocks are not one",
        );
        return Ok(Vec::new());
    }
    session.progress(suite, "parts of a message's way", Some(BYTES));
    let buffer = session.fixture.buffer(BYTES)?;
    let memory = session.fixture.register(&buffer)?;
    let link = session.fixture.pair(92, &memory, &memory)?;
    let stamping = match session.fixture.backend.posts_to_queue() {
        true => None,
        false => Some(Stamping::start(session, &link, memory)?),
    };
    let mut kernel = OneWay {
        handle: link.channel.device_handle(),
        channel: link.channel.clone(),
        bytes: BYTES,
        iterations: BATCH,
        rank: session.context().rank(),
    };
    if let Some(stamping) = &stamping {
        kernel.handle.base.fifo = stamping.proxy.fifo();
    }
    let (mut ways, mut reference) = (Vec::new(), Vec::new());
    for batch in 0..session.context().profile().pick(10, 100) {
        session.fixture.meet()?;
        let stamps = kernel.run(session.context().deadline())?;
        let seen: Vec<u64> = stamps.iter().map(|stamp| stamp[2]).collect();
        let seen = session.context().exchange(seen)?.swap_remove(1);
        let deadline = session.context().deadline();
        let host = match &stamping {
            None => Vec::new(),
            Some(stamping) => stamping.take(stamps.len(), deadline)?,
        };
        session.fixture.meet()?;
        let echo = session.reference.echo(BYTES, BATCH)?;
        // The first batch is to warm up.
        if batch > 0 {
            reference.push(echo.as_secs_f64() * 1e6 / 2.0 / BATCH as f64);
            ways.extend((0..stamps.len()).map(|i| {
                let middle = match stamping {
                    None => vec![stamps[i][1]],
                    Some(_) => host[i].to_vec(),
                };
                [vec![stamps[i][0]], middle, vec![seen[i]]].concat()
            }));
        }
    }
    let parts: &[&str] = match stamping {
        None => &["kernel posts", "NIC, wire, seen"],
        Some(_) => &["kernel pushes, proxy takes", "proxy posts", "wire, seen"],
    };
    if session.context().rank() != 0 {
        return Ok(Vec::new());
    }
    let mut points = Vec::new();
    for (part, metric) in parts.iter().enumerate() {
        let point = Point {
            bytes: Some(BYTES),
            part_of: Some(WHOLE),
            ..session.point(suite, metric, "us")
        };
        let samples: Vec<f64> = ways.iter().map(|way| took(way, part)).collect();
        points.push(point.with(&samples, &[])?);
    }
    let point = Point {
        bytes: Some(BYTES),
        ..session.point(suite, WHOLE, "us")
    };
    let whole = |way: &Way| microseconds(way[0], way[way.len() - 1]);
    let samples: Vec<f64> = ways.iter().map(whole).collect();
    points.push(point.with(&samples, &reference)?);
    Ok(points)
}

/// Microseconds of a part. The signal may be seen before the call that sent it returned, which is then
/// not on the message's way any more.
fn took(way: &Way, part: usize) -> f64 {
    let end = way[way.len() - 1];
    microseconds(way[part].min(end), way[part + 1].min(end))
}

fn microseconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 * 1e-3
}

/// A proxy that does with puts what a `ProxyService` does, and looks at the clock.
struct Stamping {
    proxy: Proxy,
    stamps: Arc<Mutex<Vec<[u64; 2]>>>,
}

struct Handler {
    connection: Connection,
    semaphore: Arc<Host2DeviceSemaphore>,
    src: RegisteredMemory,
    dst: RegisteredMemory,
    stamps: Arc<Mutex<Vec<[u64; 2]>>>,
}

impl Stamping {
    fn start(session: &Session<'_>, link: &Link, src: RegisteredMemory) -> anyhow::Result<Self> {
        let stamps = Arc::new(Mutex::new(Vec::new()));
        let handler = Handler {
            connection: link.connection.clone(),
            semaphore: session.fixture.service.semaphore(link.semaphore)?,
            src,
            dst: link.remote.clone(),
            stamps: Arc::clone(&stamps),
        };
        let proxy = Proxy::new(DEFAULT_FIFO_SIZE, handler)?;
        proxy.bind(link.connection.local_device())?;
        proxy.start()?;
        Ok(Self { proxy, stamps })
    }

    /// When each trigger since the last call was taken, and when its operations were posted.
    fn take(&self, count: usize, deadline: Deadline) -> anyhow::Result<Vec<[u64; 2]>> {
        loop {
            let mut stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
            // The last signal may be seen and answered before its own post has returned.
            if stamps.len() >= count {
                return Ok(std::mem::take(&mut stamps));
            }
            drop(stamps);
            ensure!(!deadline.expired(), "the proxy has not taken all triggers");
            thread::sleep(Duration::from_micros(100));
        }
    }
}

impl ProxyHandler for Handler {
    fn handle(&mut self, raw: ProxyTrigger, _position: u64) -> ProxyHandlerResult {
        let taken = now();
        if let Ok(Trigger::PutWithSignal { transfer: t, .. }) = raw.decode() {
            let (dst, src) = (&self.dst, &self.src);
            let posted = (self.connection)
                .write(dst, t.dst_offset, src, t.src_offset, t.size)
                .and_then(|()| self.semaphore.signal());
            // The connection's error ends the kernels that wait on it.
            if let Err(error) = posted {
                tracing::warn!(%error, "cannot post");
            }
        }
        let mut stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        stamps.push([taken, now()]);
        ProxyHandlerResult::Continue
    }
}

/// The clock of `clock.hpp`, on the host.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole_also_where_the_signal_overtakes() {
        let way: Way = vec![1000, 3000, 4500, 9000];
        assert_eq!([0, 1, 2].map(|part| took(&way, part)), [2.0, 1.5, 4.5]);
        let overtaken: Way = vec![1000, 3000, 9500, 9000];
        assert_eq!(
            [0, 1, 2].map(|part| took(&overtaken, part)),
            [2.0, 6.0, 0.0]
        );
    }
}
