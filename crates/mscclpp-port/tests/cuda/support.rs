// SPDX-License-Identifier: MIT
//! Ends of channels on GPUs, and kernels.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, Deadline};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::cuda::{self, CudaKernel, Gpu, Module, RunningKernel, Stream};
use mscclpp_device::nvrtc::Program;
use mscclpp_port::{
    Buffer, Communicator, Connection, Device, EndpointConfig, Error, MemoryOptions, PortChannel,
    ProxyService, RegisteredMemory, TransportKind,
};

use crate::local::Local;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// The GPU of a rank: another for each, as far as there are enough.
pub(crate) fn gpu_of(rank: usize) -> Device {
    let count = cuda::gpu_count().unwrap_or(1).max(1) as usize;
    Device::gpu((rank % count) as i32)
}

/// One rank's end of a channel to the other, whose proxy runs.
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) buffer: Buffer,
    pub(crate) connection: Connection,
    pub(crate) service: ProxyService,
    pub(crate) channel: PortChannel,
    pub(crate) communicator: Communicator,
    pub(crate) remote: RegisteredMemory,
}

/// Sets one rank of two up; the other does the same at the same time.
pub(crate) fn end(
    bootstrap: Arc<dyn Bootstrap>,
    transport: TransportKind,
    device: Device,
    bytes: u64,
) -> Result<End, Error> {
    end_of(Communicator::new(bootstrap)?, transport, device, bytes)
}

/// The same with a communicator of one's own.
pub(crate) fn end_of(
    communicator: Communicator,
    transport: TransportKind,
    device: Device,
    bytes: u64,
) -> Result<End, Error> {
    let rank = communicator.bootstrap().rank();
    let peer = 1 - rank;
    let buffer = Buffer::new(device, bytes)?;
    let options = MemoryOptions {
        transports: transport.into(),
        ..MemoryOptions::default()
    };
    let local = communicator.register_memory_with(&buffer, 0..bytes, options)?;
    communicator.send_memory(&local, peer, 0)?;
    let receiving = communicator.recv_memory(peer, 0)?;
    let config = EndpointConfig {
        device,
        ..EndpointConfig::new(transport)
    };
    let connecting = communicator.connect(config, peer, 0)?;
    let remote = receiving.get_by(soon())?;
    let connection = connecting.get_by(soon())?;
    connection.wait_connected(soon())?;
    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let dst = service.add_memory(remote.clone())?;
    let src = service.add_memory(local)?;
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;
    Ok(End {
        rank,
        buffer,
        connection,
        service,
        channel,
        communicator,
        remote,
    })
}

/// Both ends, as threads of this process.
pub(crate) fn pair(transport: TransportKind, devices: [Device; 2], bytes: u64) -> [End; 2] {
    let setups: Vec<_> = (Local::world(2).0.into_iter())
        .zip(devices)
        .map(|(rank, device)| thread::spawn(move || end(rank, transport, device, bytes)))
        .collect();
    let ends: Vec<End> = setups
        .into_iter()
        .map(|setup| setup.join().unwrap().unwrap())
        .collect();
    ends.try_into()
        .unwrap_or_else(|_| unreachable!("two threads"))
}

/// What a kernel tells: its status, words that were stale, nanoseconds. All ones at first, but for
/// the second, a count.
pub(crate) struct Report(Buffer);

impl Report {
    pub(crate) fn new(device: Device) -> Self {
        let words = Buffer::pinned(device, 24).unwrap();
        words.store_u64(0, u64::MAX).unwrap();
        words.store_u64(16, u64::MAX).unwrap();
        Self(words)
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.address()
    }

    pub(crate) fn word(&self, index: u64) -> u64 {
        self.0.load_u64(index * 8).unwrap()
    }
}

/// The kernels of this test.
pub(crate) const KERNELS: [&str; 4] = ["ping_pong", "put_stream", "wait_once", "push"];

/// A kernel of this test on a GPU. All are loaded with the first: to load one may wait for kernels
/// that run.
pub(crate) fn kernel(device: Device, name: &str) -> CudaKernel {
    static LOADED: Mutex<Vec<(i32, Module, [CudaKernel; 4])>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap();
    let at = loaded.iter().position(|(id, ..)| *id == device.id());
    let at = at.unwrap_or_else(|| {
        let gpu = Gpu::open(device.id() as u32).unwrap();
        let program = Program::new("kernels.cu", include_str!("kernels.cu"));
        let module = Module::compile(&gpu, &program).unwrap();
        // SAFETY: each test gives the twin of the C++ struct, and keeps what it names until the
        // kernel has ended.
        let kernels = KERNELS.map(|name| unsafe { module.kernel(name) }.unwrap());
        loaded.push((device.id(), module, kernels));
        loaded.len() - 1
    });
    let which = KERNELS.iter().position(|kernel| *kernel == name);
    loaded[at].2[which.expect("a kernel of this test")].clone()
}

/// A kernel that runs, its stream, and its report.
pub(crate) struct Running {
    running: RunningKernel,
    _stream: Stream,
    pub(crate) report: Report,
}

impl Running {
    /// Starts a block of threads.
    pub(crate) fn start<T: Copy>(
        (device, kernel): (Device, CudaKernel),
        block: u32,
        args: impl FnOnce(u64) -> T,
    ) -> Self {
        let report = Report::new(device);
        let stream = Stream::new(&kernel.gpu()).unwrap();
        let dims = LaunchDims { grid: 1, block };
        let running = kernel
            .launch(dims, args(report.address()), &stream)
            .unwrap();
        Self {
            running,
            _stream: stream,
            report,
        }
    }

    /// Waits for its end; its report.
    pub(crate) fn end(self) -> Report {
        self.running.join(PATIENCE).unwrap();
        self.report
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PingPongArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) buffer: u64,
    pub(crate) words: u64,
    pub(crate) iterations: u64,
    pub(crate) rank: u64,
    pub(crate) flush: u64,
    pub(crate) report: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StreamArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) report: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WaitArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) report: u64,
}

/// One end's part of a ping-pong.
pub(crate) fn ping_pong(end: &End, words: u64, iterations: u64, flush: bool) -> Running {
    let device = end.buffer.device();
    Running::start((device, kernel(device, "ping_pong")), 128, |report| {
        PingPongArgs {
            channel: end.channel.device_handle(),
            buffer: end.buffer.address(),
            words,
            iterations,
            rank: end.rank as u64,
            flush: flush.into(),
            report,
        }
    })
}
