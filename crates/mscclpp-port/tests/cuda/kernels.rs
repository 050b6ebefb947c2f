// SPDX-License-Identifier: MIT
//! Kernels of two GPUs, or of two ranks on one, through channels.

use std::time::Duration;

use mscclpp_device::abi::FifoDeviceHandle;
use mscclpp_device::nvrtc::{Arch, Nvrtc, Program, Target};
use mscclpp_port::{Device, Error, Proxy, ProxyHandlerResult, Status, TransportKind};

use crate::Test;
use crate::support::{
    KERNELS, PATIENCE, Running, StreamArgs, WaitArgs, gpu_of, kernel, pair, ping_pong, soon,
};

pub(crate) const TESTS: &[Test] = &[
    ("kernels_compile", 0, kernels_compile),
    ("kernels_ping_pong_over_ethernet", 1, || {
        ping_pongs(TransportKind::Ethernet)
    }),
    ("kernels_ping_pong_over_ipc", 1, || {
        ping_pongs(TransportKind::CudaIpc)
    }),
    ("ranks_of_one_gpu_ping_pong", 1, ranks_of_one_gpu),
    ("puts_stream_over_ipc", 1, puts_stream_over_ipc),
    (
        "a_stopped_service_releases_kernels",
        1,
        a_stopped_service_releases_kernels,
    ),
    (
        "a_service_serves_one_device",
        1,
        a_service_serves_one_device,
    ),
    ("kernels_push_to_a_proxy", 1, kernels_push_to_a_proxy),
];

/// The only one that needs no GPU.
fn kernels_compile() {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => return println!("SKIP cuda::kernels_compile: {error}"),
    };
    let program = Program::new("kernels.cu", include_str!("kernels.cu"));
    let compiled = nvrtc
        .compile(&program, &Target::Ptx(Arch::from(90)))
        .unwrap();
    let text = String::from_utf8(compiled.code).unwrap();
    for name in KERNELS {
        assert!(text.contains(&format!(".entry {name}(")), "{name}");
    }
}

fn both(transport: TransportKind, devices: [Device; 2], words: u64, iterations: u64, flush: bool) {
    let ends = pair(transport, devices, words * 16);
    // Loaded before anything spins.
    for device in devices {
        drop(kernel(device, "ping_pong"));
    }
    let running = [1, 0].map(|rank| ping_pong(&ends[rank], words, iterations, flush));
    for (running, rank) in running.into_iter().zip([1, 0]) {
        let report = running.end();
        let why = ends[rank].connection.status();
        assert_eq!(report.word(0), u64::MAX, "rank {rank} failed: {why:?}");
        assert_eq!(
            report.word(1),
            0,
            "words that were not the round's, rank {rank}"
        );
        if rank == 0 {
            let each = report.word(2) as f64 / iterations as f64 / 1000.0;
            let flush = if flush { " with flush" } else { "" };
            println!(
                "{transport} {} and {}: {} bytes there and back{flush}: {each:.1} us",
                devices[0],
                devices[1],
                words * 8
            );
        }
    }
}

fn ping_pongs(transport: TransportKind) {
    let devices = [gpu_of(0), gpu_of(1)];
    for (words, iterations) in [(1, 2000), (512, 500), (128 << 10, 50)] {
        for flush in [false, true] {
            both(transport, devices, words, iterations, flush);
        }
    }
}

fn ranks_of_one_gpu() {
    for transport in [TransportKind::Ethernet, TransportKind::CudaIpc] {
        both(transport, [gpu_of(0); 2], 512, 200, true);
    }
}

fn puts_stream_over_ipc() {
    for bytes in [64_u64 << 10, 1 << 20, 128 << 20] {
        let ends = pair(TransportKind::CudaIpc, [gpu_of(0), gpu_of(1)], bytes);
        let count = ((4_u64 << 30) / bytes).min(1000);
        for end in &ends {
            drop(kernel(end.buffer.device(), "put_stream"));
        }
        let running = ends.each_ref().map(|end| {
            let device = end.buffer.device();
            Running::start((device, kernel(device, "put_stream")), 1, |report| {
                StreamArgs {
                    channel: end.channel.device_handle(),
                    offset: 0,
                    bytes,
                    count,
                    report,
                }
            })
        });
        for (rank, running) in running.into_iter().enumerate() {
            let report = running.end();
            assert_eq!(report.word(0), Status::Ok as u64);
            let speed = (bytes * count) as f64 / report.word(2) as f64;
            println!("IPC rank {rank}: {bytes} bytes a put, both ways at once: {speed:.1} GB/s");
        }
    }
}

fn a_stopped_service_releases_kernels() {
    for transport in [TransportKind::Ethernet, TransportKind::CudaIpc] {
        let ends = pair(transport, [gpu_of(0), gpu_of(1)], 4096);
        let device = ends[0].buffer.device();
        let waiting = Running::start((device, kernel(device, "wait_once")), 1, |report| {
            WaitArgs {
                channel: ends[0].channel.device_handle(),
                report,
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        ends[0].service.stop_proxy().unwrap();
        assert_eq!(waiting.end().word(0), Status::Aborted as u64);
    }
}

fn a_service_serves_one_device() {
    let [a, _b] = pair(TransportKind::Ethernet, [gpu_of(0); 2], 4096);
    let cpu = mscclpp_port::EndpointConfig::new(TransportKind::Ethernet);
    let connecting = a.communicator.connect(cpu, 0, 9).unwrap();
    let connection = connecting.get_by(soon()).unwrap();
    let id = (a.service)
        .build_and_add_semaphore(&a.communicator, &connection)
        .unwrap();
    let refused = a.service.base_port_channel(id).map(drop);
    assert!(
        matches!(refused, Err(Error::InvalidUsage { .. })),
        "{refused:?}"
    );
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PushArgs {
    fifo: FifoDeviceHandle,
    count: u64,
    every: u64,
    report: u64,
}

fn kernels_push_to_a_proxy() {
    let proxy = Proxy::new(512, |_| ProxyHandlerResult::Continue).unwrap();
    proxy.bind(gpu_of(0)).unwrap();
    proxy.start().unwrap();
    let (device, count) = (gpu_of(0), 51_200);
    let running = Running::start((device, kernel(device, "push")), 1, |report| PushArgs {
        fifo: proxy.fifo(),
        count,
        every: 512,
        report,
    });
    let report = running.end();
    assert_eq!(report.word(0), 0);
    let each = report.word(2) as f64 / count as f64;
    println!("FIFO, one producer, sync each 512: {each:.0} ns a trigger");
    proxy
        .stop(mscclpp_bootstrap::Deadline::after(PATIENCE))
        .unwrap();
}
