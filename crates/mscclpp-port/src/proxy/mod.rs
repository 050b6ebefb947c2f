// SPDX-License-Identifier: MIT
//! The thread that executes what kernels push into a FIFO.

mod control;
mod worker;

use std::any::Any;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Deadline, Deadlines};
use mscclpp_device::abi::{FifoDeviceHandle, ProxyTrigger, Status};

use crate::device::Device;
use crate::env::env;
use crate::error::{Error, Result};
use crate::fifo::{Fifo, Ring};
use control::Control;
use worker::{Left, Worker};

/// How much longer than its deadline a stopping thread is waited for: the handler may be in the
/// middle of a call.
const GRACE: Duration = Duration::from_millis(500);

/// What a handler did with a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHandlerResult {
    /// It is executed: go on with the next.
    Continue,
    /// It cannot be executed yet: offer it again after [`ProxyHandler::progress`].
    Hold,
    /// It is executed, and the proxy is to end. Kernels that wait are released.
    Stop,
}

/// What [`ProxyHandler::progress`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyProgress {
    /// Something was finished or sent: look again soon.
    pub moved: bool,
    /// Something that was started is not finished yet. A stopping proxy waits for it.
    pub busy: bool,
}

/// What a proxy does with triggers. Called on the proxy's thread only.
///
/// No call may block: it would keep every channel of the proxy from going on. A proxy owns its
/// handler, so a handler that wants to ask its proxy holds a [`Weak`](std::sync::Weak): an
/// [`Arc`] would keep both for ever.
pub trait ProxyHandler: Send + 'static {
    /// Executes the trigger at `position` of the FIFO.
    fn handle(&mut self, trigger: ProxyTrigger, position: u64) -> ProxyHandlerResult;

    /// Goes on with what was started earlier. Called once for each batch of triggers, and again and
    /// again while there are none.
    fn progress(&mut self) -> ProxyProgress {
        ProxyProgress::default()
    }

    /// The ranks that what was started, or is held, waits for: [`Error::NotDrained`] names them.
    fn waits_for(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Sleeps for `nap` at most; returns early when something that was started can go on.
    fn park(&mut self, nap: Duration) {
        thread::sleep(nap);
    }
}

impl<F> ProxyHandler for F
where
    F: FnMut(ProxyTrigger) -> ProxyHandlerResult + Send + 'static,
{
    fn handle(&mut self, trigger: ProxyTrigger, _position: u64) -> ProxyHandlerResult {
        self(trigger)
    }
}

/// A FIFO and the thread that executes its triggers, in push order.
///
/// All methods may be called from any thread, also while another one stops the proxy; none but
/// [`Proxy::stop`] and dropping it waits. The thread polls: it spins and yields for some hundred
/// microseconds after the last work, then naps, ever longer, a millisecond at most, so that an idle
/// proxy takes some percent of a core.
///
/// [`Proxy::stop`] and dropping both drain: what was pushed is executed and finished first, under a
/// deadline. After that, kernels that wait on the FIFO (for room, or in a flush) return
/// [`Status::Aborted`]. A kernel may use the [`FifoDeviceHandle`] as long as the proxy exists.
pub struct Proxy {
    ring: Arc<Ring>,
    /// Held for moments only, never while a thread is waited for: its handler may ask the proxy.
    state: Mutex<State>,
    /// Wakes those that wait for another thread's stop.
    stopped: Condvar,
    /// How long dropping it may take.
    stops_within: Duration,
}

enum State {
    Ready(Worker),
    Running(Running),
    /// The thread died or was left behind; the reason.
    Gone(String),
}

struct Running {
    control: Arc<Control>,
    thread: JoinHandle<()>,
    id: ThreadId,
    /// How it ends; `None` while somebody stops it, who has it then.
    outcome: Option<Receiver<Outcome>>,
}

/// What a thread hands back, or the text of its panic.
type Outcome = Result<(Worker, Left), String>;

impl Proxy {
    /// A proxy that is not started yet, with a FIFO of `fifo_size` slots. Triggers that are pushed
    /// before the start wait for it.
    ///
    /// # Errors
    /// [`Error::FifoSize`] unless the size is a power of two, at most 2^20.
    pub fn new(fifo_size: usize, handler: impl ProxyHandler) -> Result<Self> {
        Self::with_deadlines(fifo_size, handler, &env().deadlines)
    }

    /// As [`new`](Self::new), with deadlines of the caller's, of which it uses
    /// [`Deadlines::proxy_stop`].
    ///
    /// # Errors
    /// As there.
    pub fn with_deadlines(
        fifo_size: usize,
        handler: impl ProxyHandler,
        deadlines: &Deadlines,
    ) -> Result<Self> {
        let fifo = Fifo::new(fifo_size)?;
        Ok(Self {
            ring: Arc::clone(fifo.ring()),
            state: Mutex::new(State::Ready(Worker {
                fifo,
                handler: Box::new(handler),
            })),
            stopped: Condvar::new(),
            stops_within: deadlines.proxy_stop,
        })
    }

    /// Serves kernels of `device`; see [`Fifo::bind`].
    ///
    /// # Errors
    /// Those of [`Fifo::bind`].
    pub fn bind(&self, device: Device) -> Result<()> {
        self.ring.bind(device)
    }

    /// How long [`ProxyService::stop_proxy`](crate::ProxyService::stop_proxy) and dropping it may take.
    pub(crate) fn stops_within(&self) -> Duration {
        self.stops_within
    }

    /// What kernels need to push.
    pub fn fifo(&self) -> FifoDeviceHandle {
        self.ring.device_handle()
    }

    /// Number of slots of the FIFO.
    pub fn fifo_size(&self) -> usize {
        self.ring.size()
    }

    /// What kernels that wait on the FIFO are told: [`Status::Ok`], or [`Status::Aborted`] after
    /// a stop and after the thread's death.
    pub fn status(&self) -> Status {
        self.ring.status().status().unwrap_or(Status::Aborted)
    }

    /// Starts the thread. A stopped proxy can be started again and goes on with what was pushed
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::ProxyRunning`] if it runs or is being stopped; [`Error::ProxyGone`] if its thread
    /// died or did not end when it was stopped; [`Error::FifoBroken`] if kernels gave up while they
    /// waited for room in the stopped FIFO, because their slots stay empty for ever; [`Error::Io`]
    /// if the system starts no thread.
    pub fn start(&self) -> Result<()> {
        let mut state = self.lock();
        match &*state {
            State::Ready(_) => self.ring.clear_status()?,
            State::Running(_) => return Err(Error::ProxyRunning),
            State::Gone(cause) => return Err(Error::gone(cause)),
        }
        let gone = State::Gone("its thread could not be started".into());
        let State::Ready(worker) = std::mem::replace(&mut *state, gone) else {
            return Ok(());
        };
        *state = State::Running(Running::spawn(worker, Arc::clone(&self.ring))?);
        Ok(())
    }

    /// Stops the thread: executes what was pushed until now, waits until all that was started is
    /// finished, then releases kernels that wait. All of it ends at `deadline`, up to half a second
    /// late. Stopping what does not run is no error.
    ///
    /// While another thread stops it, waits for that until `deadline`; how it ended, the other is told.
    ///
    /// # Errors
    /// [`Error::NotDrained`] if the deadline passed first; kernels are released. The proxy can be
    /// started again, unless some of them waited for room in a full FIFO (see
    /// [`start`](Self::start)). [`Error::Timeout`] if another thread's stop takes longer; it goes
    /// on. [`Error::ProxyGone`] if the thread died, or hangs in the handler and is left behind, or
    /// if the handler itself stops it; [`Error::InvalidUsage`] if the handler does while another
    /// thread stops it, which goes on.
    pub fn stop(&self, deadline: Deadline) -> Result<()> {
        let asked = Instant::now();
        let Some(outcome) = self.begin_stop(deadline)? else {
            return Ok(());
        };
        let ended = match outcome.recv_timeout(deadline.remaining() + GRACE) {
            Ok(ended) => ended.map_err(|panic| format!("its thread panicked: {panic}")),
            Err(RecvTimeoutError::Timeout) => Err("its handler does not return".into()),
            Err(RecvTimeoutError::Disconnected) => Err("its thread vanished".into()),
        };
        let (worker, left) = ended.map_err(|cause| self.lose(cause))?;
        if let State::Running(running) = self.settle(State::Ready(worker)) {
            // It has sent its outcome as the last thing it does.
            let _ = running.thread.join();
        }
        if left.triggers > 0 || left.busy {
            return Err(Error::NotDrained {
                triggers: left.triggers,
                waited: asked.elapsed(),
                ranks: left.ranks,
            });
        }
        Ok(())
    }

    /// Tells the thread to stop. Returns where its outcome comes, which is the caller's to
    /// [settle](Self::settle); `None` if it does not run, or no more.
    fn begin_stop(&self, deadline: Deadline) -> Result<Option<Receiver<Outcome>>> {
        let mut state = self.lock();
        let mut stopping = None;
        loop {
            let running = match &mut *state {
                State::Ready(_) => return Ok(None),
                State::Gone(cause) => return Err(Error::gone(cause)),
                // Stopped, and started again meanwhile.
                State::Running(running) if stopping.is_some_and(|id| id != running.id) => {
                    return Ok(None);
                }
                State::Running(running) => running,
            };
            let own = thread::current().id() == running.id;
            match running.outcome.take() {
                Some(_) if own => {
                    running.control.stop_by(Instant::now());
                    drop(state);
                    return Err(self.lose("it was stopped by its own handler".into()));
                }
                Some(outcome) => {
                    running.control.stop_by(deadline.at());
                    return Ok(Some(outcome));
                }
                None if own => {
                    return Err(Error::InvalidUsage {
                        operation: "stop the proxy",
                        detail: "another thread does, and its handler cannot wait for that".into(),
                    });
                }
                None if deadline.expired() => {
                    return Err(Error::Timeout {
                        operation: "waiting until another thread has stopped the proxy".into(),
                        rank: None,
                        waited: deadline.budget(),
                    });
                }
                None => stopping = Some(running.id),
            }
            let woken = self.stopped.wait_timeout(state, deadline.remaining());
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a stop: nobody serves the FIFO, others may go on with `state`. Returns the one before.
    fn settle(&self, state: State) -> State {
        // Before anybody can start it again.
        self.ring.set_aborted();
        let before = std::mem::replace(&mut *self.lock(), state);
        self.stopped.notify_all();
        before
    }

    /// Leaves the thread behind.
    fn lose(&self, cause: String) -> Error {
        let error = Error::gone(&cause);
        // Not joined: it may never end. It owns all that it uses.
        self.settle(State::Gone(cause));
        error
    }

    /// Whether the thread runs and serves the FIFO, which it does until a stop is done.
    pub fn is_running(&self) -> bool {
        matches!(&*self.lock(), State::Running(running) if !running.thread.is_finished())
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn spawn(mut worker: Worker, ring: Arc<Ring>) -> Result<Self> {
        let control = Arc::new(Control::new());
        let (send, outcome) = sync_channel(1);
        let shared = Arc::clone(&control);
        let body = move || {
            // Sub-millisecond naps mean what they say; the default slack is 50 microseconds.
            if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000)) {
                tracing::debug!(%error, "the proxy thread keeps its default timer slack");
            }
            let result = catch_unwind(AssertUnwindSafe(|| worker.run(&shared)));
            // Before anything else: nobody serves the FIFO any more.
            ring.set_aborted();
            let outcome = match result {
                Ok(left) => Ok((worker, left)),
                Err(panic) => {
                    let cause = panic_text(&*panic);
                    tracing::error!(%cause, "the proxy thread died; kernels that wait are released");
                    Err(cause)
                }
            };
            let _ = send.send(outcome);
        };
        let thread = thread::Builder::new()
            .name("mscclpp-proxy".into())
            .spawn(body)
            .map_err(|source| Error::io("start the proxy thread", source))?;
        Ok(Self {
            id: thread.thread().id(),
            control,
            thread,
            outcome: Some(outcome),
        })
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".into())
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let running = matches!(&*self.lock(), State::Running(_));
        if running && let Err(error) = self.stop(Deadline::after(self.stops_within)) {
            tracing::warn!(%error, "a proxy was dropped before all its work was done");
        }
        self.ring.set_aborted();
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("fifo_size", &self.fifo_size())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
