// SPDX-License-Identifier: MIT
//! How long an 8-byte write takes there and back, between posters that ring by
//! plain stores and wait as kernels on the host do; and how much of a core the
//! engines take, then and while nothing happens.
//!
//! Up to four threads share the machine's cores: two posters, two engines.
//!
//! `cargo run --release -p mscclpp-softnic --example latency`

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use mlx5_queue::{
    BLOCK_BYTES, Doorbell, DoorbellRecord, Flags, MemoryKey, Operation, Payload, QueueIndex,
    QueueNumber, RemoteAddress, RingSize, WorkRequest,
};
use mscclpp_softnic::{
    AccessFlags, Device, DeviceAddress, DeviceConfig, HostBuffer, InitAttributes, LinkStream,
    MemoryRange, QueueAddress, QueuePair, QueuePairConfig, ReceiveAttributes, Registration,
    SendAttributes, Transition, WriteOrdering,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const BLOCKS: u32 = 256;
const WARM: u64 = 2_000;
const ROUNDS: u64 = 20_000;
const IDLE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(20);
const CARD: usize = 32;

/// A poster and the word that its peer writes.
struct End {
    pair: QueuePair,
    register: MemoryRange,
    ring: HostBuffer,
    record: HostBuffer,
    word: HostBuffer,
    registration: Registration,
    peer: RemoteAddress,
    head: QueueIndex,
}

impl End {
    fn new(device: &Device) -> Result<Self, Failure> {
        let domain = device.allocate_domain()?;
        let page = device.allocate_doorbell_page()?;
        let bytes = BLOCKS as usize * BLOCK_BYTES;
        let (ring, record) = (HostBuffer::new(bytes), HostBuffer::new(8));
        // Nobody reads the completions: the word says it all.
        let completions = HostBuffer::new(bytes);
        let queue = device.create_completion_queue(completions.range(), BLOCKS)?;
        let pair = domain.create_queue_pair(QueuePairConfig {
            send_ring: ring.range(),
            send_blocks: BLOCKS,
            record: record.range(),
            send_completions: &queue,
            receive: None,
            page: &page,
            trigger: None,
        })?;
        let word = HostBuffer::new(8);
        let registration =
            domain.register(word.range(), AccessFlags::ALL, WriteOrdering::Strict)?;
        Ok(Self {
            pair,
            register: page.register(),
            ring,
            record,
            word,
            registration,
            peer: RemoteAddress {
                address: 0,
                key: MemoryKey::new(0),
            },
            head: QueueIndex::ZERO,
        })
    }

    /// What the peer has to know.
    fn card(&self) -> [u8; CARD] {
        let mut card = [0; CARD];
        let address = self.pair.address();
        card[..16].copy_from_slice(&address.device.0);
        card[16..20].copy_from_slice(&address.queue.get().to_le_bytes());
        card[20..24].copy_from_slice(&self.registration.key().get().to_le_bytes());
        card[24..].copy_from_slice(&self.word.address().to_le_bytes());
        card
    }

    fn connect(&mut self, card: &[u8; CARD]) -> Result<(), Failure> {
        let word = |at: usize| -> Result<u32, Failure> {
            Ok(u32::from_le_bytes(card[at..at + 4].try_into()?))
        };
        let remote = QueueAddress {
            device: DeviceAddress(card[..16].try_into()?),
            queue: QueueNumber::new(word(16)?)?,
        };
        self.peer = RemoteAddress {
            address: u64::from_le_bytes(card[24..].try_into()?),
            key: MemoryKey::new(word(20)?),
        };
        let (receive, send) = (ReceiveAttributes::new(remote), SendAttributes::default());
        self.pair.modify(Transition::Init(InitAttributes::ALL))?;
        self.pair.modify(Transition::ReadyToReceive(receive))?;
        self.pair.modify(Transition::ReadyToSend(send))?;
        Ok(())
    }

    /// Writes `value` to the peer's word.
    fn post(&mut self, value: u64) -> Result<(), Failure> {
        let request = WorkRequest {
            queue: self.pair.number(),
            index: self.head.low16(),
            flags: Flags::SIGNALLED,
            operation: Operation::Write {
                remote: self.peer,
                payload: Payload::Inline(&value.to_ne_bytes()),
                immediate: None,
            },
        };
        let mut slot = [0; BLOCK_BYTES];
        let written = request.encode(&mut slot)?;
        let at = self.head.slot(RingSize::new(BLOCKS)?) as usize * BLOCK_BYTES;
        self.ring.write(at, &slot[..written]);
        self.head = self.head.advance(1);
        let word = DoorbellRecord::send_word(self.head);
        self.record.write(DoorbellRecord::SEND_OFFSET, &word);
        let doorbell = Doorbell::new(self.pair.number(), self.head).encode();
        fence(Ordering::Release);
        // SAFETY: the register is 8 bytes at an 8-byte boundary of a page that
        // the range keeps, and the NIC too reaches it by atomic accesses only.
        let register = unsafe { AtomicU64::from_ptr(self.register.address() as *mut u64) };
        register.store(u64::from_ne_bytes(doorbell), Ordering::Relaxed);
        Ok(())
    }

    /// Waits for the peer's `value`, as device code does on the host; false if
    /// it has not come within `limit`.
    fn wait(&self, value: u64, limit: Duration) -> bool {
        let (start, mut turns, mut nap) = (Instant::now(), 0, Duration::from_micros(10));
        while self.word.read_u64(0) < value {
            turns += 1;
            match turns {
                0..=16 => std::hint::spin_loop(),
                17..=1016 => std::thread::yield_now(),
                _ if start.elapsed() > limit => return false,
                _ => {
                    std::thread::sleep(nap);
                    nap = (nap * 2).min(Duration::from_millis(1));
                }
            }
        }
        true
    }

    fn wait_long(&self, value: u64) -> Result<(), Failure> {
        let came = self.wait(value, PATIENCE);
        came.then_some(())
            .ok_or_else(|| format!("no answer; {:?}", self.pair.status()).into())
    }

    /// Round trips in nanoseconds, shortest first.
    fn call(&mut self) -> Result<Vec<u64>, Failure> {
        let mut times = Vec::new();
        for value in 1..=WARM + ROUNDS {
            let start = Instant::now();
            self.post(value)?;
            self.wait_long(value)?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        times.drain(..WARM as usize);
        times.sort_unstable();
        Ok(times)
    }

    fn answer(&mut self) -> Result<(), Failure> {
        for value in 1..=WARM + ROUNDS {
            self.wait_long(value)?;
            self.post(value)?;
        }
        Ok(())
    }

    /// Waits for what does not come.
    fn wait_in_vain(&self) {
        self.wait(u64::MAX, IDLE);
    }
}

/// Processor time of the engines of this process.
fn engines() -> Duration {
    let used = |task: std::fs::DirEntry| -> Option<u64> {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let used = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = used.split(' ').next()?.parse().ok()?;
        name.trim().ends_with("-engine").then_some(nanos)
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    Duration::from_nanos(tasks.filter_map(|task| used(task.ok()?)).sum())
}

/// Runs `work`; what it returns, and how much of a core the engines used.
fn with_load<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let (before, start) = (engines(), Instant::now());
    let result = work();
    let used = engines().saturating_sub(before);
    (result, used.as_secs_f64() / start.elapsed().as_secs_f64())
}

fn report(name: &str, times: &[u64], busy: f64, idle: f64) {
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64 / 1e3;
    println!(
        "{name:<28} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>8.0} % {:>8.1} %",
        at(0.5),
        mean,
        at(0.99),
        at(1.0),
        busy * 100.0,
        idle * 100.0
    );
}

fn in_one_process(name: &str, mut a: End, mut b: End) -> Result<(), Failure> {
    a.connect(&b.card())?;
    b.connect(&a.card())?;
    let (times, busy) = with_load(|| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| b.answer());
            let times = a.call();
            other.join().map_err(|_| "the other end panicked")??;
            times
        })
    });
    let ((), idle) = with_load(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| b.wait_in_vain());
            a.wait_in_vain();
        });
    });
    report(name, &times?, busy, idle);
    Ok(())
}

fn open() -> Result<Device, Failure> {
    Ok(Device::open("soft0", DeviceConfig::default())?)
}

fn linked(name: &str, near: LinkStream, far: LinkStream) -> Result<(), Failure> {
    let (a, b) = (open()?, open()?);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| b.link(far, PATIENCE));
        a.link(near, PATIENCE)?;
        other.join().map_err(|_| "the other end panicked")??;
        Ok::<_, Failure>(())
    })?;
    in_one_process(name, End::new(&a)?, End::new(&b)?)
}

/// One of two processes, with a stream for the devices and one for itself.
fn meet(devices: UnixStream, control: &mut UnixStream) -> Result<End, Failure> {
    let device = open()?;
    device.link(devices, PATIENCE)?;
    let mut end = End::new(&device)?;
    control.write_all(&end.card())?;
    let mut card = [0; CARD];
    control.read_exact(&mut card)?;
    end.connect(&card)?;
    // Both are ready before either posts.
    control.write_all(&[1])?;
    control.read_exact(&mut [0])?;
    Ok(end)
}

/// The second process: its streams are what it has for standard input and
/// output.
fn child() -> Result<(), Failure> {
    let devices = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut control = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let mut end = meet(devices, &mut control)?;
    let (done, busy) = with_load(|| end.answer());
    done?;
    let ((), idle) = with_load(|| end.wait_in_vain());
    control.write_all(&busy.to_le_bytes())?;
    control.write_all(&idle.to_le_bytes())?;
    Ok(())
}

fn two_processes() -> Result<(), Failure> {
    let (devices, theirs) = UnixStream::pair()?;
    let (mut control, their_control) = UnixStream::pair()?;
    let mut other = Command::new(std::env::current_exe()?)
        .arg("child")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(their_control)))
        .spawn()?;
    let mut end = meet(devices, &mut control)?;
    let (times, busy) = with_load(|| end.call());
    let ((), idle) = with_load(|| end.wait_in_vain());
    let mut theirs = [[0; 8]; 2];
    for value in &mut theirs {
        control.read_exact(value)?;
    }
    let [their_busy, their_idle] = theirs.map(f64::from_le_bytes);
    let (busy, idle) = (busy + their_busy, idle + their_idle);
    report("two processes, Unix", &times?, busy, idle);
    other.wait()?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    if std::env::args().nth(1).as_deref() == Some("child") {
        return child();
    }
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10}",
        "8 bytes there and back, us", "median", "mean", "99 %", "longest", "engines", "idle"
    );
    let device = open()?;
    in_one_process("one device", End::new(&device)?, End::new(&device)?)?;
    drop(device);
    let (near, far) = UnixStream::pair()?;
    linked("two devices, Unix", near.into(), far.into())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    linked("two devices, TCP", near.into(), listener.accept()?.0.into())?;
    two_processes()
}
