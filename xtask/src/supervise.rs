// SPDX-License-Identifier: MIT
//! Runs processes together: their output line by line, one deadline, an end
//! for all when one fails, and nothing left behind.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::process::{kill_tree, signal_tree, spawn};

/// Longer lines are passed on in pieces of this size.
const LINE_CAP: u64 = 64 * 1024;
/// Lines that wait for the receiver before the processes block on their pipes.
const BACKLOG: usize = 1024;
/// How often an interrupt is looked for.
const TICK: Duration = Duration::from_millis(100);
/// How long output may still come after the last process ended.
const DRAIN: Duration = Duration::from_secs(2);
/// How long SIGKILL may take to work.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Readers and waiters need little stack; 64 ranks have 192 of them.
const STACK: usize = 256 * 1024;

/// Whether somebody asked this process to end (Ctrl-C, SIGTERM, SIGHUP).
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// One that never comes: signals keep their usual effect.
    pub fn none() -> Self {
        Self::default()
    }

    /// Catches SIGINT, SIGTERM and SIGHUP for the rest of this process's life.
    ///
    /// # Errors
    ///
    /// When a handler cannot be installed.
    pub fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, Arc::clone(&interrupt.0), number)?;
        }
        Ok(interrupt)
    }

    /// The signal that came, if one did.
    pub fn signal(&self) -> Option<i32> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }

    /// Acts as if `signal` had come.
    pub fn raise(&self, signal: i32) {
        let number = usize::try_from(signal).unwrap_or_default();
        self.0.store(number, Ordering::Relaxed);
    }
}

/// Which of its two outputs a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; both outputs of a [`Member::merged`] process.
    Out,
    /// Standard error.
    Err,
}

/// A line that a process wrote, without its line feed.
#[derive(Debug)]
pub struct Line {
    /// Index of the process among those given to [`supervise`].
    pub index: usize,
    /// Where it was written.
    pub stream: Stream,
    /// The bytes, not necessarily UTF-8.
    pub bytes: Vec<u8>,
}

/// What receives the lines. An error ends the run: nobody reads any more.
pub type OnLine<'a> = &'a mut dyn FnMut(&Line) -> io::Result<()>;

/// A process to run. Its standard input is empty.
#[derive(Debug)]
pub struct Member {
    command: Command,
    merge: bool,
    orphaned: Signal,
}

impl Member {
    /// A process with two outputs, killed when this process dies.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            merge: false,
            orphaned: Signal::KILL,
        }
    }

    /// What it runs.
    pub fn program(&self) -> &OsStr {
        self.command.get_program()
    }

    /// Its standard error goes to its standard output, in order.
    #[must_use]
    pub fn merged(mut self) -> Self {
        self.merge = true;
        self
    }

    /// It gets SIGTERM when this process dies, and so can end its children.
    #[must_use]
    pub fn parent(mut self) -> Self {
        self.orphaned = Signal::TERM;
        self
    }
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the whole run; `None` is for as long as it takes.
    pub timeout: Option<Duration>,
    /// Between the first failure and SIGTERM to the rest, so that they can end
    /// by themselves and say why.
    pub grace: Duration,
    /// Between SIGTERM and SIGKILL.
    pub terminate: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: None,
            grace: Duration::from_secs(8),
            terminate: Duration::from_secs(2),
        }
    }
}

/// Why a run ended.
#[derive(Debug)]
pub enum Ending {
    /// Each process ended with success.
    Finished,
    /// This process was the first that failed.
    Failed {
        /// Its index.
        index: usize,
        /// How it ended.
        status: ExitStatus,
        /// Those that had to be ended after the grace period.
        stopped: Vec<usize>,
    },
    /// The time was up.
    Deadline {
        /// Those that had not ended.
        running: Vec<usize>,
    },
    /// A signal asked for the end.
    Interrupted {
        /// Its number.
        signal: i32,
    },
    /// The receiver of lines failed.
    Output(io::Error),
}

/// A process that could not be started.
#[derive(Debug)]
pub struct SpawnError {
    /// Its index.
    pub index: usize,
    /// What the system said.
    pub source: io::Error,
}

enum Event {
    Line(Line),
    Exit(usize, io::Result<ExitStatus>),
}

/// Runs `members` together until all ended, and returns why they did.
///
/// The calling thread gets every line. When it returns, nothing that the
/// members started in their sessions is alive.
///
/// # Errors
///
/// When one cannot be started; those already started are killed.
pub fn supervise(
    members: Vec<Member>,
    limits: &Limits,
    interrupt: &Interrupt,
    on_line: OnLine<'_>,
) -> Result<Ending, SpawnError> {
    let (events, inbox) = sync_channel(BACKLOG);
    let mut leaders = Vec::with_capacity(members.len());
    for (index, member) in members.into_iter().enumerate() {
        match start(index, member, &events) {
            Ok(leader) => leaders.push(leader),
            Err(source) => {
                // The receiver goes first, so that no reader blocks on it.
                drop(inbox);
                sweep(&leaders);
                return Err(SpawnError { index, source });
            }
        }
    }
    drop(events);
    Ok(Run::new(leaders, *limits).watch(&inbox, interrupt, on_line))
}

fn start(index: usize, member: Member, events: &SyncSender<Event>) -> io::Result<u32> {
    let Member {
        mut command,
        merge,
        orphaned,
    } = member;
    command.stdin(Stdio::null());
    let (out, out_writer) = io::pipe()?;
    let mut readers = vec![(Stream::Out, out)];
    if merge {
        command.stderr(out_writer.try_clone()?);
    } else {
        let (err, err_writer) = io::pipe()?;
        command.stderr(err_writer);
        readers.push((Stream::Err, err));
    }
    command.stdout(out_writer);
    let child = spawn(&mut command, orphaned)?;
    // The command holds the write ends of the pipes.
    drop(command);
    let leader = child.id();
    let result = (|| {
        for (stream, pipe) in readers {
            let events = events.clone();
            thread::Builder::new()
                .stack_size(STACK)
                .spawn(move || read_lines(index, stream, pipe, &events))?;
        }
        let events = events.clone();
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || wait_for(index, child, &events))
    })();
    if let Err(error) = result {
        kill_tree(leader);
        return Err(error);
    }
    Ok(leader)
}

fn wait_for(index: usize, mut child: Child, events: &SyncSender<Event>) {
    let status = child.wait();
    drop(events.send(Event::Exit(index, status)));
}

fn read_lines(index: usize, stream: Stream, pipe: PipeReader, events: &SyncSender<Event>) {
    let mut reader = BufReader::new(pipe);
    loop {
        let mut bytes = Vec::new();
        match reader.by_ref().take(LINE_CAP).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        let line = Line {
            index,
            stream,
            bytes,
        };
        if events.send(Event::Line(line)).is_err() {
            return;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// One failed; the others may end by themselves.
    Grace(Instant),
    /// SIGTERM was sent.
    Terminating(Instant),
    /// SIGKILL was sent. A process that the system cannot end is given up.
    Killed(Instant),
}

struct Run {
    leaders: Vec<u32>,
    alive: Vec<bool>,
    limits: Limits,
    deadline: Option<Instant>,
    phase: Phase,
    ending: Option<Ending>,
}

impl Run {
    fn new(leaders: Vec<u32>, limits: Limits) -> Self {
        Self {
            alive: vec![true; leaders.len()],
            leaders,
            limits,
            deadline: limits.timeout.map(|timeout| Instant::now() + timeout),
            phase: Phase::Running,
            ending: None,
        }
    }

    fn running(&self) -> Vec<usize> {
        (0..self.alive.len()).filter(|i| self.alive[*i]).collect()
    }

    fn watch(
        mut self,
        inbox: &Receiver<Event>,
        interrupt: &Interrupt,
        on_line: OnLine<'_>,
    ) -> Ending {
        while self.alive.contains(&true) {
            match inbox.recv_timeout(TICK) {
                Ok(Event::Line(line)) => self.line(&line, on_line),
                Ok(Event::Exit(index, status)) => self.exit(index, status),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_at_the_clock(interrupt);
            if matches!(self.phase, Phase::Killed(until) if Instant::now() >= until) {
                break;
            }
        }
        // What the processes left behind in their sessions goes with them.
        sweep(&self.leaders);
        let until = Instant::now() + DRAIN;
        while let Ok(event) = inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if let Event::Line(line) = event {
                self.line(&line, on_line);
            }
        }
        self.ending.unwrap_or(Ending::Finished)
    }

    fn line(&mut self, line: &Line, on_line: OnLine<'_>) {
        if matches!(self.ending, Some(Ending::Output(_))) {
            return;
        }
        if let Err(error) = on_line(line) {
            self.ending = Some(Ending::Output(error));
            self.terminate();
        }
    }

    fn exit(&mut self, index: usize, status: io::Result<ExitStatus>) {
        self.alive[index] = false;
        // Waiting for one's own child cannot fail; were it to, it is a failure.
        let status = status.unwrap_or_else(|_| failure());
        if !status.success() && self.ending.is_none() {
            self.ending = Some(Ending::Failed {
                index,
                status,
                stopped: Vec::new(),
            });
            self.phase = Phase::Grace(Instant::now() + self.limits.grace);
        }
    }

    fn look_at_the_clock(&mut self, interrupt: &Interrupt) {
        let now = Instant::now();
        if matches!(self.phase, Phase::Running | Phase::Grace(_)) {
            if let Some(signal) = interrupt.signal() {
                self.ending = Some(Ending::Interrupted { signal });
                self.terminate();
            } else if self.deadline.is_some_and(|deadline| now >= deadline) {
                let running = self.running();
                // A failure that came first is the better explanation.
                self.ending.get_or_insert(Ending::Deadline { running });
                self.note_stopped();
                self.terminate();
            }
        }
        match self.phase {
            Phase::Grace(until) if now >= until => {
                self.note_stopped();
                self.terminate();
            }
            Phase::Terminating(until) if now >= until => {
                for index in self.running() {
                    signal_tree(self.leaders[index], Signal::KILL);
                }
                self.phase = Phase::Killed(now + GIVE_UP);
            }
            _ => {}
        }
    }

    fn note_stopped(&mut self) {
        let running = self.running();
        if let Some(Ending::Failed { stopped, .. }) = &mut self.ending {
            *stopped = running;
        }
    }

    fn terminate(&mut self) {
        for index in self.running() {
            signal_tree(self.leaders[index], Signal::TERM);
        }
        self.phase = Phase::Terminating(Instant::now() + self.limits.terminate);
    }
}

/// Kills whatever is left of the trees.
fn sweep(leaders: &[u32]) {
    for leader in leaders {
        if !kill_tree(*leader) {
            eprintln!("error: a process of session {leader} cannot be ended");
        }
    }
}

fn failure() -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    // The raw form of "exited with 1".
    ExitStatus::from_raw(1 << 8)
}

/// The status a shell would report: the code, or 128 and the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
