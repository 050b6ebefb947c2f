// SPDX-License-Identifier: MIT
//! A time line of what kernels, proxies, NICs and the wire did, for
//! [Perfetto](https://ui.perfetto.dev) and Chrome.
//!
//! Each rank that wants a trace makes a [`Tracer`] and gives it to what is to be seen:
//!
//! | place | who writes | how it is asked for |
//! |---|---|---|
//! | GPU | kernels compiled with `MSCCLPP_DEVICE_TRACE` | [`Tracer::kernel_ring`] for CPU threads, [`Tracer::add`] for a GPU's |
//! | proxy | the thread of a service | [`ProxyService::trace_into`](crate::ProxyService::trace_into) |
//! | NIC, wire | a connection over Ethernet; a NIC in software | [`ContextConfig::trace`](crate::ContextConfig::trace), [`Tracer::watch`] |
//!
//! At the end each rank has a [`RankTrace`], which it can [save](RankTrace::save); [`chrome`] makes one
//! time line of those of all ranks, with arrows where two records carry the same sequence number. What is
//! not asked for costs a look at an empty field.
//!
//! ```
//! use mscclpp_device::trace::Kind;
//! use mscclpp_port::trace::{Place, Tracer, check, chrome};
//!
//! let tracer = Tracer::new(0, 1 << 10);
//! let proxy = tracer.ring(Place::Proxy, "proxy");
//! proxy.point(Kind::Posted, 0, 1, 2);
//! let json = chrome(&[tracer.finish()]);
//! check(&json).expect("a trace that viewers take");
//! ```

mod check;
mod chrome;
mod flows;
mod spans;
#[cfg(all(test, not(loom)))]
mod tests;
mod writers;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use mscclpp_device::trace::{Record, Ring, Snapshot, now};
use serde::{Deserialize, Serialize};

pub use check::{Facts, check};
pub use chrome::chrome;
pub(crate) use writers::{LinkTrace, ProxyTrace};

use crate::sync::lock_plain as lock;

/// Where something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In a kernel, on a GPU or on CPU threads.
    Gpu,
    /// On a proxy's thread.
    Proxy,
    /// In a NIC, or in the queue of a connection that stands for one.
    Nic,
    /// Between two ranks.
    Wire,
}

/// Collects one rank's trace. Clones are the same. All methods may be called from any thread.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: usize,
    records: usize,
    rings: Mutex<Vec<(Place, String, Arc<Ring>)>>,
    added: Mutex<Vec<RingTrace>>,
}

/// One rank's trace, as it is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTrace {
    /// Of this form: 1.
    pub version: u32,
    /// The rank.
    pub rank: usize,
    /// The boot of its machine: ranks with the same one have the same clock.
    pub boot: String,
    /// The wall clock less `CLOCK_MONOTONIC` when the trace ended, nanoseconds.
    pub wall: i64,
    /// What it consists of.
    pub rings: Vec<RingTrace>,
}

/// What one ring held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingTrace {
    /// Where it happened.
    pub place: Place,
    /// What a reader sees.
    pub name: String,
    /// Its records' clock less `CLOCK_MONOTONIC`, nanoseconds.
    pub offset: i64,
    /// By how much `offset` may be wrong, nanoseconds.
    pub uncertainty: u64,
    /// Older records that are not here, because the ring was full.
    pub dropped: u64,
    /// Time and word of each.
    pub records: Vec<(u64, u64)>,
}

impl RingTrace {
    fn new(
        place: Place,
        name: String,
        snapshot: &Snapshot,
        (offset, uncertainty): (i64, u64),
    ) -> Self {
        let words = |record: &Record| (record.time, record.what);
        Self {
            place,
            name,
            offset,
            uncertainty,
            dropped: snapshot.dropped,
            records: snapshot.records.iter().map(words).collect(),
        }
    }
}

impl Tracer {
    /// A tracer of a rank, whose rings hold so many records each: 16 bytes, rounded up to a power of two,
    /// from 2 to 2^24.
    #[must_use]
    pub fn new(rank: usize, records: usize) -> Self {
        Self(Arc::new(Inner {
            rank,
            records,
            rings: Mutex::default(),
            added: Mutex::default(),
        }))
    }

    /// A new ring for threads of this process.
    #[must_use]
    pub fn ring(&self, place: Place, name: impl Into<String>) -> Arc<Ring> {
        let ring = Ring::new(self.0.records);
        lock(&self.0.rings).push((place, name.into(), Arc::clone(&ring)));
        ring
    }

    /// A new ring for kernels on CPU threads: see
    /// [`HostKernel::launch_traced`](mscclpp_device::executor::HostKernel::launch_traced).
    #[must_use]
    pub fn kernel_ring(&self, name: impl Into<String>) -> Arc<Ring> {
        self.ring(Place::Gpu, name)
    }

    /// Adds what a GPU's ring held (`cuda::GpuRing`), with the GPU's clock less the host's and by how much
    /// that may be wrong, both nanoseconds (`cuda::ClockOffset`).
    pub fn add(&self, name: impl Into<String>, snapshot: &Snapshot, clock: (i64, u64)) {
        lock(&self.0.added).push(RingTrace::new(Place::Gpu, name.into(), snapshot, clock));
    }

    /// Has a NIC in software seen, which has one observer at a time. What
    /// [`ContextConfig::trace`](crate::ContextConfig::trace) opens by its name is.
    pub fn watch(&self, device: &mscclpp_softnic::Device) {
        device.set_observer(Some(Arc::new(writers::NicTrace::new(self, device.name()))));
    }

    /// What there is by now. Best when kernels have ended and services have stopped.
    #[must_use]
    pub fn finish(&self) -> RankTrace {
        let of_ring = |(place, name, ring): &(Place, String, Arc<Ring>)| {
            RingTrace::new(*place, name.clone(), &ring.snapshot(), (0, 0))
        };
        let mut rings: Vec<RingTrace> = lock(&self.0.rings).iter().map(of_ring).collect();
        rings.extend(lock(&self.0.added).iter().cloned());
        // Before 1970 is no time for a trace.
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        RankTrace {
            version: RankTrace::VERSION,
            rank: self.0.rank,
            boot: boot(),
            wall: (wall.as_nanos() as u64).wrapping_sub(now()).cast_signed(),
            rings,
        }
    }
}

impl RankTrace {
    const VERSION: u32 = 1;

    /// Writes it to a file, as JSON.
    ///
    /// # Errors
    /// What the system says.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer(&mut file, self)?;
        file.flush()
    }

    /// Reads what [`save`](Self::save) has written.
    ///
    /// # Errors
    /// What the system says; [`InvalidData`](io::ErrorKind::InvalidData) for a file of another form.
    pub fn load(path: &Path) -> io::Result<Self> {
        let found: Self = serde_json::from_reader(BufReader::new(File::open(path)?))?;
        if found.version != Self::VERSION {
            let text = format!(
                "a trace of version {}, not {}",
                found.version,
                Self::VERSION
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(found)
    }
}

/// Names a boot of this machine; the same in all its containers, as the clock is.
fn boot() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|id| id.trim().to_owned()).unwrap_or_default()
}
