// SPDX-License-Identifier: MIT
//! Who runs the state machine: a thread, or the caller.

mod sleep;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::set_current_timer_slack;
use sleep::{Bell, Sleep};

use crate::capability::{Capabilities, DeviceAddress};
use crate::config::{DeviceConfig, EngineMode};
use crate::error::Error;
use crate::event::EventQueue;
use crate::fault::{ControlOperation, FaultKind};
use crate::lending::{Done, LendingThread};
use crate::link::{LinkEnd, LinkStream};
use crate::nic::Nic;
use crate::shell::Shell;
use crate::time::Time;

/// Effects carried out before the lock is let go for others.
const BATCH: usize = 512;

/// What a look at everything has brought.
struct Turn {
    /// Something was done: there may be more.
    worked: bool,
    /// Something came from outside: a doorbell, a packet, the end of an access.
    /// What the device does by itself, now and then, is no reason to expect
    /// more.
    heard: bool,
}

/// A doorbell page and what was stored to its register.
type Rung = (u32, [u8; 8]);

/// A descriptor that is readable from a ring on.
struct Wake(OwnedFd);

impl Bell for Wake {
    fn ring(&self) {
        // It fails only when the counter is full: then it is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// A device, as its handles and its engine share it.
pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) address: DeviceAddress,
    pub(crate) capabilities: Capabilities,
    pub(crate) mode: EngineMode,
    opened: Instant,
    shell: Mutex<Shell>,
    pub(crate) events: Arc<EventQueue>,
    /// Callers that want the shell: the engine lets them have it.
    wanted: AtomicUsize,
    inbox: Mutex<Vec<Rung>>,
    /// What has come of exports and imports.
    done: Mutex<Vec<Done>>,
    sleep: Sleep<Wake>,
    stop: AtomicBool,
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shell> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        shell
    }

    /// Lets the shell go, and what it has freed.
    pub(crate) fn unlock(mut shell: MutexGuard<'_, Shell>) {
        let freed = std::mem::take(&mut shell.freed);
        drop(shell);
        drop(freed);
    }

    /// Tells the engine that there is something to look at.
    pub(crate) fn wake(&self) {
        self.sleep.wake();
    }

    /// True once its last handle is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn now(&self) -> Time {
        Time::at(self.opened.elapsed())
    }

    /// Asks the fault plan; waits if it says so.
    pub(crate) fn admit(&self, operation: ControlOperation) -> Result<(), Error> {
        let fault = self.lock().nic.common.config.faults.next(operation);
        match fault {
            Some(FaultKind::Refuse) => Err(Error::Refused { operation }),
            Some(FaultKind::Delay(delay)) => {
                thread::sleep(delay);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Stores to the doorbell register of `page`, seen by the NIC each time.
    pub(crate) fn ring(&self, page: u32, value: [u8; 8]) {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((page, value));
        match self.mode {
            EngineMode::Thread => self.wake(),
            EngineMode::Inline => self.run_until_idle(),
            EngineMode::Manual => {}
        }
    }

    /// Keeps the outcome of an export or import for the engine.
    pub(crate) fn note(&self, done: Done) {
        self.done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(done);
        self.wake();
    }

    /// Takes in what posters have stored.
    fn listen(&self, shell: &mut Shell) -> bool {
        let rung = {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *inbox)
        };
        let mut heard = !rung.is_empty();
        for (page, value) in rung {
            shell.nic.doorbell(page, value);
        }
        heard |= shell.look_at_registers();
        shell.nic.poll_records();
        let done = {
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *done)
        };
        heard |= !done.is_empty();
        shell.take_done(done);
        shell.receive() || heard
    }

    fn step(&self, shell: &mut Shell) -> Turn {
        shell.nic.set_time(self.now());
        let heard = self.listen(shell);
        let polls = shell.nic.polls();
        let worked = shell.carry_out(BATCH) > polls || heard;
        Turn {
            worked,
            // A record that has moved shows only by the work that it brings.
            heard: heard || std::mem::take(&mut shell.answered) || (worked && polls > 0),
        }
    }

    pub(crate) fn run_until_idle(&self) {
        let mut shell = self.lock();
        while self.step(&mut shell).worked {}
        Self::unlock(shell);
    }

    pub(crate) fn run_to(&self, end: Time) {
        let mut shell = self.lock();
        loop {
            loop {
                let heard = self.listen(&mut shell);
                let polls = shell.nic.polls();
                if shell.carry_out(BATCH) <= polls && !heard {
                    break;
                }
            }
            match shell.nic.next_time() {
                Some(next) if next <= end => shell.nic.set_time(next),
                _ => break,
            }
        }
        shell.nic.set_time(end);
        Self::unlock(shell);
    }
}

/// Keeps the engine running; dropped with the last handle of the device.
pub(crate) struct Engine {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(crate) fn start(name: &str, config: DeviceConfig) -> Result<Arc<Self>, Error> {
        let (mode, capabilities) = (config.engine, config.capabilities.clone());
        let engine = |source| Error::Engine {
            device: name.to_owned(),
            source,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| engine(error.into()))?;
        let events = Arc::new(EventQueue::new().map_err(engine)?);
        let nic = Nic::new(config);
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            address: nic.common.address,
            capabilities,
            mode,
            opened: Instant::now(),
            shell: Mutex::new(Shell::new(nic, events.clone())),
            events,
            wanted: AtomicUsize::new(0),
            inbox: Mutex::new(Vec::new()),
            done: Mutex::new(Vec::new()),
            sleep: Sleep::new(Wake(wake)),
            stop: AtomicBool::new(false),
        });
        inner.lock().lending.thread = LendingThread::new(Arc::downgrade(&inner));
        let mut thread = None;
        if mode == EngineMode::Thread {
            let engine = inner.clone();
            let spawned = thread::Builder::new()
                .name(format!("{name}-engine"))
                .spawn(move || run(&engine))
                .map_err(|source| Error::Engine {
                    device: name.to_owned(),
                    source,
                })?;
            thread = Some(spawned);
        }
        Ok(Arc::new(Self { inner, thread }))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.wake();
        let lender = self.inner.lock().lending.thread.stop();
        // The last handle may be owned by memory that one of them lets go.
        let current = thread::current().id();
        let other = |thread: &JoinHandle<()>| thread.thread().id() != current;
        let device = self.inner.name.as_str();
        for thread in [self.thread.take(), lender].into_iter().flatten() {
            if other(&thread) && ends_in_time(&thread, device) && thread.join().is_err() {
                tracing::warn!(device, "a thread of a NIC in software panicked");
            }
        }
    }
}

/// How long a device that ends waits for each of its threads. It may be in a call of a
/// driver that does not return: it is left behind then, and owns what it uses.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Whether the thread of a device that has stopped it ends; says so if it does not.
fn ends_in_time(thread: &JoinHandle<()>, device: &str) -> bool {
    let until = Instant::now() + ENDS_WITHIN;
    while !thread.is_finished() {
        if Instant::now() >= until {
            tracing::warn!(
                device,
                thread = thread.thread().name().unwrap_or_default(),
                waited = ?ENDS_WITHIN,
                "a thread does not end, in a driver's call for memory perhaps: it is left behind"
            );
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Time without news before the engine naps. Until then it yields: whoever is
/// to give it work may need its core. Not for long: where cores are scarce, who
/// yields waits longer for its next turn than who sleeps.
const AWAKE: Duration = Duration::from_micros(50);
/// A nap is this part of the time without news: what comes then is late by so
/// much of the time that it took anyway.
const NAP_PART: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(5);
/// While accesses are under way in a memory that reports nothing.
const LONGEST_MEMORY_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// While nothing is to be done: whatever comes wakes it.
const IDLE_NAP: Duration = Duration::from_secs(60);
/// By how much a nap may end late, in nanoseconds. The system's 50 us would be
/// more than the short ones.
const SLACK: NonZeroU64 = NonZeroU64::new(1000).unwrap();

/// What the engine sleeps on.
struct Watch {
    /// The news that had been heard before it looked.
    news: u64,
    /// When the device has something to do of itself.
    next: Option<Time>,
    /// Accesses are under way, whose end no one reports either.
    memory: bool,
    /// There are queue pairs: stores that no one reports may give them work.
    queues: bool,
    /// Streams, and whether something waits to be sent on them.
    streams: Vec<(Arc<LinkStream>, bool)>,
}

fn run(inner: &Inner) {
    if let Err(error) = set_current_timer_slack(Some(SLACK)) {
        tracing::debug!(%error, "the naps of a NIC in software will be longer");
    }
    let mut heard = Instant::now();
    loop {
        // Before everything that it may be news of, the end included.
        let news = inner.sleep.news();
        if inner.has_ended() {
            return;
        }
        let mut shell = inner.shell.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = inner.step(&mut shell);
        if turn.heard {
            heard = Instant::now();
        }
        if turn.worked {
            Inner::unlock(shell);
            if inner.wanted.load(Ordering::Relaxed) > 0 {
                thread::yield_now();
            }
            continue;
        }
        let idle = heard.elapsed();
        if idle < AWAKE {
            Inner::unlock(shell);
            thread::yield_now();
            continue;
        }
        let streams = shell
            .links
            .iter()
            .map(|link| (link.stream.clone(), link.has_outgoing()));
        let streams = streams.collect();
        let (queues, memory) = (shell.nic.has_queues(), shell.nic.waits_for_memory());
        // A stream that takes no more holds everything up for a while.
        let held_up = shell.links.iter().any(LinkEnd::is_congested);
        let next = if held_up { None } else { shell.nic.next_time() };
        Inner::unlock(shell);
        nap(
            inner,
            idle / NAP_PART,
            Watch {
                next,
                queues,
                memory,
                streams,
                news,
            },
        );
    }
}

/// Sleeps until something may have happened. While there are queue pairs,
/// their registers and records are memory that anyone may store to, so never
/// for long.
fn nap(inner: &Inner, usual: Duration, watch: Watch) {
    let Watch {
        next,
        queues,
        memory,
        streams,
        news,
    } = watch;
    inner.sleep.nap(news, |Wake(wake)| {
        let mut nap = usual.clamp(SHORTEST_NAP, LONGEST_NAP);
        if !queues {
            // A handle's call, or a stream, wakes it.
            nap = IDLE_NAP;
        }
        if memory {
            nap = nap.min(LONGEST_MEMORY_NAP);
        }
        if let Some(next) = next {
            nap = nap.min(next.since(inner.now()));
        }
        let mut watched = vec![PollFd::new(wake, PollFlags::IN)];
        for (stream, outgoing) in &streams {
            let out = if *outgoing {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            watched.push(PollFd::new(stream, PollFlags::IN | out));
        }
        let timeout = Timespec {
            tv_sec: nap.as_secs() as i64,
            tv_nsec: nap.subsec_nanos().into(),
        };
        // An interruption or a failure is a short nap.
        let _ = poll(&mut watched, Some(&timeout));
    });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::any::Any;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Memory whose release waits, as a driver's may.
    struct Hangs(Sender<()>, Mutex<Receiver<()>>);

    impl Drop for Hangs {
        fn drop(&mut self) {
            let _ = self.0.send(());
            let _ = self.1.get_mut().unwrap().recv();
            let _ = self.0.send(());
        }
    }

    #[test]
    fn an_engine_whose_memory_is_not_let_go_is_left_behind() {
        let engine = Engine::start("soft0", DeviceConfig::default()).unwrap();
        let (said, says) = channel();
        let (release, held) = channel();
        let memory: Arc<dyn Any + Send + Sync> = Arc::new(Hangs(said, Mutex::new(held)));
        engine.inner().lock().freed.push(memory);
        engine.inner().wake();
        says.recv_timeout(PATIENCE).unwrap();
        let (dropped, drops) = channel();
        thread::spawn(move || {
            drop(engine);
            let _ = dropped.send(());
        });
        let in_time = drops.recv_timeout(PATIENCE);
        drop::<Sender<()>>(release);
        assert_eq!(in_time, Ok(()), "the device waits for its memory");
        says.recv_timeout(PATIENCE).unwrap();
    }
}
