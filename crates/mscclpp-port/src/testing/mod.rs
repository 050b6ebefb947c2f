// SPDX-License-Identifier: MIT
//! What unit tests of this crate share: a transport that does as it is told, and patience.

mod local;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result, check_range};
use crate::memory::{RegisteredMemory, SignalMemory};
use crate::semaphore::{Host2DeviceSemaphore, Semaphore};
use crate::status::StickyStatus;
use crate::transport::{Progress, Transport, TransportKind};

pub(crate) use local::Local;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that other threads bring about.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Runs an ignored test of this program in a process of its own, with variables set there.
pub(crate) fn run_alone(test: &str, variables: &[(&str, &[u8])]) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored"])
        .envs(
            variables
                .iter()
                .map(|(name, value)| (*name, OsStr::from_bytes(value))),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

/// An operation as a [`Fake`] got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Write { dst: u64, src: u64, len: u64 },
    Signal,
    Accumulate { dst: u64, operand: i64 },
    Flush,
}

/// A transport that records, and finishes flushes when the test says so.
#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    status: Arc<StickyStatus>,
}

#[derive(Default)]
struct State {
    ops: Vec<Op>,
    tickets: u64,
    /// Highest ticket that may be finished; without, all.
    flush_limit: Option<u64>,
    full: bool,
    /// Posts that still have room, although `full` is false.
    room: Option<usize>,
    write_errors: VecDeque<Error>,
    progress_error: Option<Error>,
}

impl Fake {
    /// A connection over a fake, and the fake to steer it.
    pub(crate) fn connect(peer: usize) -> (Connection, Self) {
        Self::connect_over(TransportKind::Ethernet, peer)
    }

    /// The same, which says that it is one over `transport`.
    pub(crate) fn connect_over(transport: TransportKind, peer: usize) -> (Connection, Self) {
        let fake = Self {
            state: Arc::default(),
            status: StickyStatus::new().unwrap(),
        };
        let status = Arc::clone(&fake.status);
        let connection = Connection::over(Box::new(fake.clone()), status, (transport, Some(peer)));
        (connection, fake)
    }

    /// The operations so far.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.lock().ops.clone()
    }

    /// Flushes up to `ticket` may finish, later ones stay pending.
    pub(crate) fn finish_flushes(&self, ticket: u64) {
        self.lock().flush_limit = Some(ticket);
    }

    /// Whether there is no room.
    pub(crate) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Room for so many posts, and then none although it looks as if there was: as if another
    /// thread had taken it.
    pub(crate) fn set_room(&self, posts: usize) {
        self.lock().room = Some(posts);
    }

    /// The next write fails.
    pub(crate) fn fail_write(&self, error: Error) {
        self.lock().write_errors.push_back(error);
    }

    /// All progress fails from now on.
    pub(crate) fn fail_progress(&self, error: Error) {
        self.lock().progress_error = Some(error);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn record(&self, op: Op) -> Result<()> {
        self.status.check()?;
        let mut state = self.lock();
        if let Some(room) = &mut state.room {
            *room = room.checked_sub(1).ok_or(Error::QueueFull {
                rank: None,
                limit: 0,
            })?;
        }
        state.ops.push(op);
        Ok(())
    }
}

fn check(memory: &RegisteredMemory, offset: u64, len: u64) -> Result<()> {
    if memory.is_empty() {
        return Err(Error::InvalidUsage {
            operation: "write",
            detail: "the memory is an empty placeholder".into(),
        });
    }
    check_range("write", offset, len, memory.size())
}

impl Transport for Fake {
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<()> {
        check(dst, dst_off, len)?;
        check(src, src_off, len)?;
        if let Some(error) = self.lock().write_errors.pop_front() {
            return Err(error);
        }
        self.record(Op::Write {
            dst: dst_off,
            src: src_off,
            len,
        })
    }

    fn signal(&self, _token: &RegisteredMemory, _off: u64) -> Result<()> {
        self.record(Op::Signal)
    }

    fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<()> {
        check(dst, off, 8)?;
        self.record(Op::Accumulate { dst: off, operand })
    }

    fn request_flush(&self) -> Result<u64> {
        self.record(Op::Flush)?;
        let mut state = self.lock();
        state.tickets += 1;
        Ok(state.tickets)
    }

    fn kick(&self) {}

    fn has_room(&self) -> bool {
        !self.lock().full
    }

    fn progress(&self) -> Result<Progress> {
        self.status.check()?;
        let state = self.lock();
        if let Some(error) = &state.progress_error {
            return Err(error.clone());
        }
        let flushed = state.tickets.min(state.flush_limit.unwrap_or(u64::MAX));
        Ok(Progress {
            flushed,
            busy: flushed < state.tickets || state.full,
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A semaphore over a connection, whose peer's token is in this process too.
pub(crate) fn semaphore(connection: &Connection) -> Semaphore {
    let context = Context::for_tests();
    let stub = SignalMemory::new(&context, Device::cpu(), TransportKind::Ethernet).unwrap();
    let remote = memory(8);
    Semaphore::new(connection.clone(), stub, remote)
}

/// The same, for a port channel.
pub(crate) fn device_semaphore(connection: &Connection) -> Arc<Host2DeviceSemaphore> {
    Arc::new(Host2DeviceSemaphore::new(semaphore(connection)).unwrap())
}

/// Registered memory of some bytes.
pub(crate) fn memory(bytes: u64) -> RegisteredMemory {
    let buffer = Buffer::new(Device::cpu(), bytes).unwrap();
    Context::for_tests()
        .register_memory(&buffer, 0..bytes)
        .unwrap()
}
