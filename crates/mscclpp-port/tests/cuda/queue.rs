// SPDX-License-Identifier: MIT
//! Kernels of GPUs that post to a NIC in software themselves.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::cuda::{CudaKernel, Gpu, Module};
use mscclpp_device::nvrtc::Program;
use mscclpp_port::{
    Access, Buffer, Communicator, Connection, ContextConfig, Device, EndpointConfig, Hca, IbConfig,
    MemoryOptions, PortChannel, ProxyService, QueueForm, QueuePlacement, SignalMode, Status,
    TransportKind,
};
use mscclpp_softnic as softnic;

use crate::Test;
use crate::common::pattern;
use crate::local::Local;
use crate::support::{PingPongArgs, Running, StreamArgs, WaitArgs, gpu_of, kernel, soon};

pub(crate) const TESTS: &[Test] = &[
    ("queue_ping_pongs", 1, ping_pongs),
    ("queue_ranks_of_one_gpu_ping_pong", 1, ranks_of_one_gpu),
    ("queue_has_every_call", 1, every_call),
    ("queue_crowds", 1, crowds),
    ("queue_streams_puts", 1, streams),
    (
        "queue_peers_that_leave_release_kernels",
        1,
        a_peer_that_leaves,
    ),
    ("queue_leaves_nothing", 1, nothing_is_left),
];

/// One rank's end of a channel on a queue.
pub(crate) struct End {
    rank: u64,
    pub(crate) buffer: Buffer,
    pub(crate) channel: PortChannel,
    pub(crate) connection: Connection,
    // Stands below the channel, which holds it as well.
    /// A service that is gone ends what waits on its channels.
    _service: ProxyService,
    _communicator: Communicator,
}

pub(crate) fn nic() -> softnic::Device {
    softnic::Device::open("soft0", softnic::DeviceConfig::default()).unwrap()
}

pub(crate) fn end(
    bootstrap: Arc<dyn Bootstrap>,
    nic: &softnic::Device,
    device: Device,
    bytes: u64,
    ib: IbConfig,
) -> End {
    let rank = bootstrap.rank();
    let peer = 1 - rank;
    let mut context = ContextConfig::of_rank(&*bootstrap);
    context.hca_devices = vec![Hca::from(nic.clone())];
    let communicator = Communicator::with_config(bootstrap, context).unwrap();
    let buffer = Buffer::new(device, bytes).unwrap();
    let options = MemoryOptions {
        transports: TransportKind::IB0.into(),
        access: Access::FULL,
    };
    let local = (communicator.register_memory_with(&buffer, 0..bytes, options)).unwrap();
    let usual = EndpointConfig::gpu_initiated(TransportKind::IB0);
    let config = EndpointConfig {
        device,
        ib: IbConfig {
            mode: usual.ib.mode,
            ..ib
        },
        ..usual
    };
    let connecting = communicator.connect(config, peer, 0).unwrap();
    communicator.send_memory(&local, peer, 0).unwrap();
    let receiving = communicator.recv_memory(peer, 0).unwrap();
    let connection = connecting.get_by(soon()).unwrap();
    let remote = receiving.get_by(soon()).unwrap();
    let service = ProxyService::with_default_size().unwrap();
    let semaphore = service
        .build_and_add_semaphore(&communicator, &connection)
        .unwrap();
    let (dst, src) = (service.add_memory(remote), service.add_memory(local));
    let channel = service
        .port_channel(semaphore, dst.unwrap(), src.unwrap())
        .unwrap();
    End {
        rank: rank as u64,
        buffer,
        channel,
        connection,
        _service: service,
        _communicator: communicator,
    }
}

fn pair(nics: &[softnic::Device; 2], devices: [Device; 2], bytes: u64, ib: IbConfig) -> [End; 2] {
    // Loaded before anything spins.
    for device in devices {
        kernel(device, "ping_pong");
        own_kernel(device, "queue_calls");
    }
    let ranks = Local::world(2).0.into_iter().zip(nics).zip(devices);
    let setups: Vec<_> = ranks
        .map(|((rank, nic), device)| {
            let nic = nic.clone();
            thread::spawn(move || end(rank, &nic, device, bytes, ib))
        })
        .collect();
    let ends: Vec<End> = setups.into_iter().map(|end| end.join().unwrap()).collect();
    ends.try_into()
        .unwrap_or_else(|_| unreachable!("two threads"))
}

fn two() -> [Device; 2] {
    [gpu_of(0), gpu_of(1)]
}

/// A kernel of `queue.cu`.
pub(crate) fn own_kernel(device: Device, name: &str) -> CudaKernel {
    let gpu = Gpu::open(device.id() as u32).unwrap();
    let program = Program::new("queue.cu", include_str!("queue.cu"));
    let module = Module::compile(&gpu, &program).unwrap();
    // SAFETY: each test gives the twin of the C++ struct, and keeps what it names until the kernel
    // has ended.
    unsafe { module.kernel(name) }.unwrap()
}

/// Every form of a queue, wherever it may lie.
fn configs() -> Vec<IbConfig> {
    let forms = [
        (QueueForm::Shared, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::InlineWrite),
    ];
    let config = |queue_placement, (queue_form, signal_mode)| IbConfig {
        queue_form,
        signal_mode,
        queue_placement,
        ..IbConfig::default()
    };
    let places = [QueuePlacement::Device, QueuePlacement::Host];
    let all = places.map(|place| forms.map(|form| config(place, form)));
    all.into_iter().flatten().collect()
}

/// One end's part of a ping-pong.
pub(crate) fn start_ping_pong(end: &End, words: u64, iterations: u64, flush: bool) -> Running {
    let device = end.buffer.device();
    Running::start((device, kernel(device, "ping_pong")), 128, |report| {
        PingPongArgs {
            channel: end.channel.device_handle(),
            buffer: end.buffer.address(),
            words,
            iterations,
            rank: end.rank,
            flush: flush.into(),
            report,
        }
    })
}

fn ping_pong(ends: &[End; 2], words: u64, iterations: u64, flush: bool) -> f64 {
    let running = [1, 0].map(|rank| start_ping_pong(&ends[rank], words, iterations, flush));
    let mut each = 0.0;
    for (running, rank) in running.into_iter().zip([1, 0]) {
        let report = running.end();
        let why = ends[rank].connection.status();
        assert_eq!(report.word(0), u64::MAX, "rank {rank} failed: {why:?}");
        assert_eq!(
            report.word(1),
            0,
            "words that were not the round's, rank {rank}"
        );
        each = report.word(2) as f64 / iterations as f64 / 1000.0;
    }
    each
}

fn both(devices: [Device; 2]) {
    for ib in configs() {
        let nics = [nic(), nic()];
        let ends = pair(&nics, devices, 64 << 10, ib);
        for (words, flush) in [(1, false), (1, true), (512, false)] {
            let each = ping_pong(&ends, words, 1000, flush);
            let IbConfig {
                queue_form,
                signal_mode,
                queue_placement,
                ..
            } = ib;
            println!(
                "queue in memory of {queue_placement:?}, {queue_form:?}, {signal_mode:?}, {} and {}: {} \
                 bytes there and back{}: {each:.1} us",
                devices[0],
                devices[1],
                words * 8,
                if flush { " with flush" } else { "" },
            );
        }
        for nic in nics {
            assert_eq!(nic.take_violations(), []);
        }
    }
}

fn ping_pongs() {
    both(two());
}

fn ranks_of_one_gpu() {
    both([gpu_of(0); 2]);
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CallsArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) bytes: u64,
    pub(crate) report: u64,
}

fn every_call() {
    const BYTES: u64 = 300_000;
    for ib in configs() {
        if ib.signal_mode == SignalMode::InlineWrite {
            // It has no accumulate.
            continue;
        }
        let ends = pair(&[nic(), nic()], two(), 2 * BYTES + 8, ib);
        let (ours, theirs) = (pattern(1, BYTES as usize), pattern(2, BYTES as usize));
        ends[0].buffer.write(0, &ours).unwrap();
        ends[1].buffer.write(BYTES, &theirs).unwrap();
        ends[1].buffer.store_u64(2 * BYTES, 30).unwrap();
        let device = ends[0].buffer.device();
        let calls = own_kernel(device, "queue_calls");
        let running = Running::start((device, calls), 1, |report| CallsArgs {
            channel: ends[0].channel.device_handle(),
            bytes: BYTES,
            report,
        });
        assert_eq!(running.end().word(0), Status::Ok as u64);
        let read = |end: &End, at| {
            let mut bytes = vec![0; BYTES as usize];
            end.buffer.read(at, &mut bytes).unwrap();
            bytes
        };
        assert!(read(&ends[1], 0) == ours, "what was put");
        assert!(read(&ends[0], BYTES) == theirs, "what was got");
        assert_eq!(ends[1].buffer.load_u64(2 * BYTES).unwrap(), 42);
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CrowdArgs {
    channel: PortChannelDeviceHandle,
    count: u64,
    report: u64,
}

/// Threads of a block signal and wait for room, on a queue that is much too small for them.
fn crowds() {
    for queue_placement in [QueuePlacement::Device, QueuePlacement::Host] {
        let ib = IbConfig {
            max_send_wr: Some(16),
            queue_placement,
            ..IbConfig::default()
        };
        let ends = pair(&[nic(), nic()], two(), 4096, ib);
        let device = ends[0].buffer.device();
        let crowd = own_kernel(device, "queue_crowd");
        let running = Running::start((device, crowd), 256, |report| CrowdArgs {
            channel: ends[0].channel.device_handle(),
            count: 4,
            report,
        });
        let report = running.end();
        assert_eq!((report.word(0), report.word(1)), (0, 0));
        let peer = ends[1].buffer.device();
        for _ in 0..2 {
            let waiting = Running::start((peer, kernel(peer, "wait_once")), 1, |report| WaitArgs {
                channel: ends[1].channel.device_handle(),
                report,
            });
            assert_eq!(waiting.end().word(0), Status::Ok as u64);
        }
    }
}

fn streams() {
    for queue_placement in [QueuePlacement::Device, QueuePlacement::Host] {
        let ib = IbConfig {
            queue_form: QueueForm::Exclusive,
            queue_placement,
            ..IbConfig::default()
        };
        for bytes in [4096, 64 << 10, 1 << 20] {
            let ends = pair(&[nic(), nic()], two(), bytes, ib);
            let device = ends[0].buffer.device();
            let count = ((64 << 20) / bytes).min(500);
            let put_stream = kernel(device, "put_stream");
            let running = Running::start((device, put_stream), 1, |report| StreamArgs {
                channel: ends[0].channel.device_handle(),
                offset: 0,
                bytes,
                count,
                report,
            });
            let report = running.end();
            assert_eq!(report.word(0), Status::Ok as u64);
            let speed = (bytes * count) as f64 / report.word(2) as f64;
            println!(
                "queue in memory of {queue_placement:?}: puts of {bytes} bytes: {speed:.2} GB/s"
            );
        }
    }
}

fn a_peer_that_leaves() {
    for ib in configs() {
        let [here, there] = pair(&[nic(), nic()], two(), 4096, ib);
        let device = here.buffer.device();
        let waiting = Running::start((device, kernel(device, "wait_once")), 1, |report| {
            WaitArgs {
                channel: here.channel.device_handle(),
                report,
            }
        });
        thread::sleep(Duration::from_millis(50));
        drop(there);
        assert_eq!(waiting.end().word(0), Status::PeerDown as u64);
    }
}

fn nothing_is_left() {
    for queue_placement in [QueuePlacement::Device, QueuePlacement::Host] {
        let ib = IbConfig {
            queue_placement,
            ..IbConfig::default()
        };
        let nics = [nic(), nic()];
        let ends = pair(&nics, two(), 4096, ib);
        ping_pong(&ends, 8, 20, true);
        drop(ends);
        for nic in nics {
            let empty = softnic::LiveObjects::default();
            for _ in 0..1000 {
                if nic.counters().live == empty {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(nic.counters().live, empty);
        }
    }
}
