// SPDX-License-Identifier: MIT
//! Who runs the state machine: a thread, or the caller.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::capability::{Capabilities, DeviceAddress};
use crate::config::{DeviceConfig, EngineMode};
use crate::error::Error;
use crate::fault::{ControlOperation, FaultKind};
use crate::memory::{HostBuffer, HostMemory, MemoryRange, NicMemory, Submitted};
use crate::nic::{Effect, Nic, Place, SpaceId, Start};
use crate::time::Time;

/// Effects carried out before the lock is let go for others.
const BATCH: usize = 512;

/// The register of a doorbell page, in the first 8 bytes of which device code
/// without a call stores.
pub(crate) struct Registers {
    pub(crate) page: u32,
    pub(crate) memory: HostBuffer,
}

impl Registers {
    /// Where the register is in its page (mlx5: the UAR's doorbell).
    pub(crate) const OFFSET: usize = 0x800;

    /// What was stored since the last look, if anything. A doorbell is never
    /// all zeroes: no queue pair has number 0.
    fn take(&self) -> Option<[u8; 8]> {
        let value = self.memory.take_u64(Self::OFFSET);
        (value != 0).then(|| value.to_ne_bytes())
    }
}

/// The state machine and what it acts on.
pub(crate) struct Shell {
    pub(crate) nic: Nic,
    spaces: Vec<Arc<dyn NicMemory>>,
    registers: Vec<Weak<Registers>>,
    /// Owners of memory that was let go, with the turns of time since.
    retired: Vec<(u8, Arc<dyn Any + Send + Sync>)>,
    /// Those that no access can touch any more, to be dropped when the lock is
    /// not held: their drop is the caller's code.
    freed: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Shell {
    /// Where a range is, for the state machine.
    pub(crate) fn place(&mut self, range: &MemoryRange) -> Place {
        let memory = range.memory();
        let same =
            |known: &Arc<dyn NicMemory>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(memory));
        let space = self.spaces.iter().position(same).unwrap_or_else(|| {
            self.spaces.push(memory.clone());
            self.spaces.len() - 1
        });
        Place {
            space: SpaceId(space as u16),
            address: range.address(),
        }
    }

    pub(crate) fn room(&self, what: &'static str, live: u64) -> Result<(), Error> {
        let limit = u64::from(self.nic.common.config.capabilities.max_objects);
        if live >= limit {
            return Err(Error::Limit {
                what,
                asked: live + 1,
                limit,
            });
        }
        Ok(())
    }

    pub(crate) fn add_registers(&mut self, page: u32) -> Arc<Registers> {
        let registers = Arc::new(Registers {
            page,
            memory: HostBuffer::new(4096),
        });
        self.registers
            .retain(|registers| registers.strong_count() > 0);
        self.registers.push(Arc::downgrade(&registers));
        registers
    }

    /// Keeps `owner` until no access that has begun can touch its memory.
    pub(crate) fn retire(&mut self, owner: Arc<dyn Any + Send + Sync>) {
        self.retired.push((0, owner));
        self.settle();
    }

    fn settle(&mut self) {
        while !self.retired.is_empty() && self.nic.turn() {
            for (turns, _) in &mut self.retired {
                *turns += 1;
            }
            let free = self.retired.extract_if(.., |(turns, _)| *turns >= 2);
            self.freed.extend(free.map(|(_, owner)| owner));
        }
    }

    /// Carries out at most `budget` effects; how many there were.
    fn carry_out(&mut self, budget: usize) -> usize {
        let mut count = 0;
        while count < budget
            && let Some(effect) = self.nic.next()
        {
            count += 1;
            match effect {
                Effect::Start(Start { id, space, access }) => {
                    let Some(memory) = self.spaces.get(space.0 as usize) else {
                        continue;
                    };
                    // SAFETY: the state machine starts accesses inside ranges
                    // that it was given only, and their owners are kept: by
                    // their handles, and after those are dropped in `retired`
                    // until the accesses that had begun are done.
                    match unsafe { memory.submit(id, access) } {
                        Submitted::Done(result) => self.nic.access_done(id, result),
                        Submitted::Pending => {}
                    }
                }
                Effect::Transmit(to, packet) => {
                    let queue = packet.from.get();
                    tracing::debug!(%to, queue, "no link to that device: a packet is lost");
                    self.nic.common.counters.packets_lost += 1;
                }
            }
        }
        // The host's memory, always the first, completes at once.
        for memory in &self.spaces[1..] {
            while let Some((id, result)) = memory.complete() {
                self.nic.access_done(id, result);
                count += 1;
            }
        }
        if !self.retired.is_empty() {
            self.settle();
        }
        count
    }
}

/// A doorbell page and what was stored to its register.
type Rung = (u32, [u8; 8]);

/// A device, as its handles and its engine share it.
pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) address: DeviceAddress,
    pub(crate) capabilities: Capabilities,
    pub(crate) mode: EngineMode,
    opened: Instant,
    shell: Mutex<Shell>,
    /// Callers that want the shell: the engine lets them have it.
    wanted: AtomicUsize,
    inbox: Mutex<Vec<Rung>>,
    sleeping: AtomicBool,
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
    pub(crate) fn ring(&self, engine: &Engine, page: u32, value: [u8; 8]) {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((page, value));
        match self.mode {
            EngineMode::Thread => engine.wake(),
            EngineMode::Inline => self.run_until_idle(),
            EngineMode::Manual => {}
        }
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
        for i in 0..shell.registers.len() {
            let Some(registers) = shell.registers[i].upgrade() else {
                continue;
            };
            if let Some(value) = registers.take() {
                shell.nic.doorbell(registers.page, value);
                heard = true;
            }
        }
        shell.nic.poll_records();
        heard
    }

    fn step(&self, shell: &mut Shell) -> bool {
        shell.nic.set_time(self.now());
        let heard = self.listen(shell);
        let polls = shell.nic.polls();
        shell.carry_out(BATCH) > polls || heard
    }

    pub(crate) fn run_until_idle(&self) {
        let mut shell = self.lock();
        while self.step(&mut shell) {}
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
    waker: Option<Thread>,
}

impl Engine {
    pub(crate) fn start(name: &str, config: DeviceConfig) -> Result<Arc<Self>, Error> {
        let (mode, capabilities) = (config.engine, config.capabilities.clone());
        let nic = Nic::new(config);
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            address: nic.common.address,
            capabilities,
            mode,
            opened: Instant::now(),
            shell: Mutex::new(Shell {
                nic,
                spaces: vec![HostMemory::shared()],
                registers: Vec::new(),
                retired: Vec::new(),
                freed: Vec::new(),
            }),
            wanted: AtomicUsize::new(0),
            inbox: Mutex::new(Vec::new()),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut thread = None;
        if mode == EngineMode::Thread {
            let shared = inner.clone();
            let spawned = thread::Builder::new()
                .name(format!("{name}-engine"))
                .spawn(move || run(&shared))
                .map_err(|source| Error::Engine {
                    device: name.to_owned(),
                    source,
                })?;
            thread = Some(spawned);
        }
        let waker = thread.as_ref().map(|thread| thread.thread().clone());
        Ok(Arc::new(Self {
            inner,
            thread,
            waker,
        }))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Ends the engine's nap, if it takes one.
    pub(crate) fn wake(&self) {
        if self.inner.sleeping.swap(false, Ordering::SeqCst)
            && let Some(waker) = &self.waker
        {
            waker.unpark();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else {
            return;
        };
        thread.thread().unpark();
        // The last handle may be owned by memory that the engine lets go.
        let own = thread::current().id() == thread.thread().id();
        if !own && thread.join().is_err() {
            tracing::warn!(
                device = self.inner.name,
                "the engine of a NIC in software panicked"
            );
        }
    }
}

/// Rounds without work before the engine yields, and before it naps.
const SPINS: u32 = 64;
const YIELDS: u32 = 128;
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

fn run(inner: &Inner) {
    let mut idle = 0u32;
    while !inner.stop.load(Ordering::SeqCst) {
        let (worked, next, watching) = {
            let mut shell = inner.shell.lock().unwrap_or_else(PoisonError::into_inner);
            let worked = inner.step(&mut shell);
            let watching = shell.nic.has_queues();
            let next = if worked { None } else { shell.nic.next_time() };
            Inner::unlock(shell);
            (worked, next, watching)
        };
        if worked {
            idle = 0;
            if inner.wanted.load(Ordering::Relaxed) > 0 {
                thread::yield_now();
            }
            continue;
        }
        idle = idle.saturating_add(1);
        if idle <= SPINS {
            std::hint::spin_loop();
        } else if idle <= SPINS + YIELDS {
            thread::yield_now();
        } else {
            nap(inner, idle - SPINS - YIELDS, next, watching);
        }
    }
}

/// Sleeps until something may have happened. While there are queue pairs,
/// their registers and records are memory that anyone may store to, so never
/// for long.
fn nap(inner: &Inner, naps: u32, next: Option<Time>, watching: bool) {
    inner.sleeping.store(true, Ordering::SeqCst);
    let empty = inner
        .inbox
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_empty();
    if empty && !inner.stop.load(Ordering::SeqCst) {
        let mut nap = LONGEST_NAP.min(SHORTEST_NAP * (1 << naps.min(6)));
        if !watching {
            // A handle's call wakes it.
            nap = Duration::from_secs(60);
        }
        if let Some(next) = next {
            nap = nap.min(next.since(inner.now()));
        }
        if !nap.is_zero() {
            thread::park_timeout(nap);
        }
    }
    inner.sleeping.store(false, Ordering::SeqCst);
}
