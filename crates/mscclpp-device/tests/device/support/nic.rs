// SPDX-License-Identifier: MIT
//! Two connected queue pairs of a NIC in software, and channels on them.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use mlx5_queue::{DoorbellRecord, QueueIndex};
use mscclpp_device::abi::{PortChannelDeviceHandle, QueueForm, QueueMemory, SignalMode, Status};
use mscclpp_device::executor::{HostKernel, LaunchDims, Model, Trace, Weak, memory};
use mscclpp_softnic::{Device, DeviceConfig, EngineMode, SendAttributes, Violation};

use super::end::{End, named};
use super::{Outcome, ensure, equal, weak_observed};

/// How a rig is made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) form: QueueForm,
    pub(crate) signal_mode: SignalMode,
    /// Whether each request completes, or the last of a post.
    pub(crate) signal_every: bool,
    pub(crate) blocks: u32,
    /// Completion entries for each block.
    pub(crate) entries_per_block: u32,
    pub(crate) record_in_host_memory: bool,
    pub(crate) max_message: u64,
    /// Where the counters start: a multiple of 2^16, as the NIC starts at 0.
    pub(crate) start: u64,
    /// Bytes of source and target.
    pub(crate) memory: usize,
    /// Two devices with a link, or one.
    pub(crate) linked: bool,
    pub(crate) nic: DeviceConfig,
    pub(crate) send: SendAttributes,
}

impl Default for Setup {
    fn default() -> Self {
        let mut nic = DeviceConfig::default();
        // A thread that is kept waiting between a doorbell and its record is no violation.
        nic.checks.audit_interval = Duration::ZERO;
        Self {
            form: QueueForm::Shared,
            signal_mode: SignalMode::Atomic,
            signal_every: true,
            blocks: 64,
            entries_per_block: 1,
            record_in_host_memory: true,
            max_message: 1 << 30,
            start: 0,
            memory: 1 << 16,
            linked: false,
            nic,
            send: SendAttributes::default(),
        }
    }
}

impl Setup {
    /// One thread at a time, and the last request of a post completes.
    pub(crate) fn exclusive() -> Self {
        Self {
            form: QueueForm::Exclusive,
            signal_every: false,
            ..Self::default()
        }
    }

    /// For kernels on a memory model: the NIC runs when they ring.
    pub(crate) fn modelled(mut self) -> Self {
        self.nic.engine = EngineMode::Inline;
        self
    }

    /// The same with the NIC's seed.
    pub(crate) fn seed(mut self, seed: u64) -> Self {
        self.nic.seed = seed;
        self
    }
}

/// Two ends, connected. Kernels of `ends[0]` post; `ends[1]` may too.
pub(crate) struct Rig {
    pub(crate) setup: Setup,
    pub(crate) devices: Vec<Device>,
    pub(crate) ends: [End; 2],
    stop: Arc<AtomicBool>,
    pump: Option<JoinHandle<()>>,
}

/// Id of the peer's target.
pub(crate) const TARGET: u32 = 3;
/// Id of the own source.
pub(crate) const SOURCE: u32 = 5;
/// Id of the peer's target from [`PART_FROM`] on.
pub(crate) const PART: u32 = 511;
pub(crate) const PART_FROM: usize = 4096;

impl Rig {
    pub(crate) fn new(setup: Setup) -> Self {
        let open = || Device::open("soft0", setup.nic.clone()).unwrap();
        let mut devices = vec![open()];
        if setup.linked {
            devices.push(open());
            let (one, other) = UnixStream::pair().unwrap();
            let (near, limit) = (devices[0].clone(), Duration::from_secs(10));
            let linking = std::thread::spawn(move || near.link(one, limit).unwrap());
            devices[1].link(other, limit).unwrap();
            linking.join().unwrap();
        }
        let ends = [0, devices.len() - 1]
            .map(|device| End::new(&devices[device].allocate_domain().unwrap(), &setup));
        let [a, b] = &ends;
        for (own, peer) in [(a, b), (b, a)] {
            own.connect(peer.pair.address(), &setup);
            own.set_memory(
                SOURCE,
                named(&own.source, 0, own.source_key, QueueMemory::LOCAL),
            );
            let target = |from| named(&peer.target, from, peer.target_key, QueueMemory::REMOTE);
            own.set_memory(TARGET, target(0));
            own.set_memory(PART, target(PART_FROM));
        }
        let stop = Arc::new(AtomicBool::new(false));
        // Who does what an inline NIC has left for later.
        let pump = (setup.nic.engine == EngineMode::Inline).then(|| {
            let (devices, stop) = (devices.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    devices.iter().for_each(Device::run);
                    std::thread::sleep(Duration::from_micros(100));
                }
            })
        });
        Self {
            setup,
            devices,
            ends,
            stop,
            pump,
        }
    }

    /// The channel from an end to the other.
    pub(crate) fn channel(&self, end: usize) -> PortChannelDeviceHandle {
        self.ends[end].channel(&self.ends[1 - end], &self.setup)
    }

    fn bell(&self) -> impl Fn(usize, u64) + Send + Sync + use<> {
        let bells: Vec<_> = self
            .ends
            .iter()
            .map(|end| (end.register.address() as usize, end.pair.page().clone()))
            .collect();
        move |address, value| {
            for (register, page) in &bells {
                if *register == address {
                    page.ring_bytes(value.to_ne_bytes());
                }
            }
        }
    }

    /// A weakly ordered GPU whose doorbells the NIC sees each, with what is in memory by then.
    /// `look` is called after each.
    pub(crate) fn weak(&self, seed: u64, look: impl Fn() + Send + Sync + 'static) -> Weak {
        let bell = self.bell();
        weak_observed(seed, move |write| {
            if write.mmio {
                bell(write.address, write.value);
                look();
            }
        })
    }

    /// A record of what kernels do, while the NIC sees each doorbell.
    pub(crate) fn trace(&self) -> Trace {
        let bell = self.bell();
        Trace::observed(move |event| {
            if let memory::Access::StoreMmio { address, value } = event.access {
                bell(address, value);
            }
        })
    }

    /// Runs a kernel to its end. One that does not come to it is aborted.
    pub(crate) fn run<T: Copy + Send + 'static>(
        &self,
        kernel: HostKernel,
        dims: LaunchDims,
        args: T,
        model: Option<Model>,
        limit: Duration,
    ) -> Outcome {
        let running = match model {
            None => kernel.launch(dims, args),
            Some(model) => kernel.launch_modelled(dims, args, model),
        };
        let running = running.map_err(|error| error.to_string())?;
        let Err(late) = running.join(limit) else {
            return Ok(());
        };
        self.abort();
        let ended = running.join(Duration::from_secs(5)).is_ok();
        if !ended {
            self.keep_memory();
        }
        Err(format!(
            "{late}; {}ended by abort",
            if ended { "" } else { "not " }
        ))
    }

    /// Keeps what a kernel uses that does not end.
    pub(crate) fn keep_memory(&self) {
        self.ends.iter().for_each(End::keep_memory);
    }

    /// Ends what kernels still wait for.
    pub(crate) fn abort(&self) {
        for end in &self.ends {
            end.status.fail(Status::Aborted);
            end.fifo.status.fail(Status::Aborted);
        }
    }

    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.devices
            .iter()
            .flat_map(Device::take_violations)
            .collect()
    }

    /// `Err` if the NIC has seen a poster break a rule, or if the record does not say what was
    /// posted. All has been flushed, or all doorbells are calls. What audits find looks so twice.
    pub(crate) fn no_violations(&self) -> Outcome {
        let seen = self.violations();
        ensure(seen.is_empty(), || format!("violations: {seen:?}"))?;
        self.ends.iter().try_for_each(|end| {
            let mut word = [0; 4];
            end.record.read(DoorbellRecord::SEND_OFFSET, &mut word);
            let reserved = QueueIndex::new(end.reserved());
            equal("record", word, DoorbellRecord::send_word(reserved))
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.abort();
        self.stop.store(true, SeqCst);
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
    }
}
