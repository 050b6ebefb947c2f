// SPDX-License-Identifier: MIT
//! How a crate compiles kernels against `mscclpp-device` and runs them on CPU
//! threads: `build.rs` compiles `kernels.cpp`, this file gives the kernels safe
//! faces, `main.rs` measures them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_device::abi::{
    AbiHeader, FifoDeviceHandle, Host2DeviceSemaphoreDeviceHandle, ProxyTrigger,
};
use mscclpp_device::executor::{ExecutorError, HostKernel, LaunchDims, Trace};

unsafe extern "C" {
    fn ping_pong(context: *const c_void);
    fn push(context: *const c_void);
    fn push_modelled(context: *const c_void);
}

/// Twin of `PingPongArgs` in `kernels.cpp`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PingPongArgs {
    mine: Host2DeviceSemaphoreDeviceHandle,
    peer_inbound: u64,
    rounds: u64,
    serve: u64,
    status: u64,
}

/// Twin of `PushArgs` in `kernels.cpp`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PushArgs {
    fifo: FifoDeviceHandle,
    count: u64,
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };
const DEADLINE: Duration = Duration::from_secs(60);

fn address(words: &[AtomicU64]) -> u64 {
    words.as_ptr().expose_provenance() as u64
}

/// Words that are never freed, so that a kernel that does not end in time cannot outlive them.
fn words(count: usize) -> &'static [AtomicU64] {
    static KEPT: Mutex<Vec<&'static [AtomicU64]>> = Mutex::new(Vec::new());
    let words: Vec<_> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let words: &'static [AtomicU64] = words.leak();
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(words);
    words
}

/// Two kernels of one thread each signal each other in turn; the mean time of a
/// round trip.
///
/// # Errors
///
/// What the executor reports.
pub fn measure_ping_pong(rounds: u64) -> Result<Duration, ExecutorError> {
    // SAFETY: made by MSCCLPP_KERNEL(ping_pong, PingPongArgs); all addresses are of leaked words.
    let kernel = unsafe { HostKernel::new("ping_pong", ping_pong) };
    // Each player's inbound, expected, connection status and result, a cache line apart.
    let players = [words(64), words(64)];
    let args = |me: usize, serve| PingPongArgs {
        mine: Host2DeviceSemaphoreDeviceHandle {
            abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
            inbound_token: address(&players[me][0..]),
            expected_inbound_token: address(&players[me][16..]),
            status: address(&players[me][32..]),
        },
        peer_inbound: address(players[1 - me]),
        rounds,
        serve,
        status: address(&players[me][48..]),
    };
    let started = Instant::now();
    let first = kernel.launch(ONE, args(0, 1))?;
    let second = kernel.launch(ONE, args(1, 0))?;
    first.join(DEADLINE)?;
    second.join(DEADLINE)?;
    Ok(started.elapsed() / u32::try_from(rounds).unwrap_or(u32::MAX))
}

/// One producer kernel against one consumer; the mean time of a trigger.
///
/// # Errors
///
/// What the executor reports.
pub fn measure_fifo(slots: usize, count: u64) -> Result<Duration, ExecutorError> {
    // SAFETY: made by MSCCLPP_KERNEL(push, PushArgs); all addresses are of leaked words.
    let kernel = unsafe { HostKernel::new("push", push) };
    let (ring, counters) = (ring(slots), words(64));
    let fifo = fifo(ring, counters, slots);
    let (shift, tail) = (slots.trailing_zeros(), &counters[0]);
    let consuming = thread::spawn(move || {
        let (started, mut position, mut idle) = (Instant::now(), 0, 0);
        while position < count {
            let slot = 2 * (position as usize % slots);
            let snd = ring[slot + 1].load(Ordering::Acquire);
            if snd & ProxyTrigger::COMMIT_BIT == ProxyTrigger::commit_bit(position, shift) {
                position += 1;
                tail.store(position, Ordering::Release);
                idle = 0;
            } else if idle < 64 {
                idle += 1;
                std::hint::spin_loop();
            } else if started.elapsed() < DEADLINE {
                thread::yield_now();
            } else {
                return;
            }
        }
    });
    let started = Instant::now();
    kernel.run(ONE, PushArgs { fifo, count }, DEADLINE)?;
    let _ = consuming.join();
    Ok(started.elapsed() / u32::try_from(count).unwrap_or(u32::MAX))
}

/// Pushes one trigger on a traced memory; what the kernel did, in words.
///
/// # Errors
///
/// What the executor reports.
pub fn trace_push() -> Result<Vec<String>, ExecutorError> {
    // SAFETY: made by MSCCLPP_KERNEL(push, PushArgs); all addresses are of leaked words.
    let kernel = unsafe { HostKernel::new("push", push_modelled) };
    let fifo = fifo(ring(4), words(64), 4);
    let trace = Trace::new();
    kernel
        .launch_modelled(ONE, PushArgs { fifo, count: 1 }, &trace)?
        .join(DEADLINE)?;
    Ok(trace
        .events()
        .iter()
        .map(|event| format!("{:x?}", event.access))
        .collect())
}

/// Slots of 16 bytes, 16-byte aligned.
fn ring(slots: usize) -> &'static [AtomicU64] {
    let words = words(2 * slots + 1);
    let skipped = words.as_ptr().addr() % 16 / 8;
    &words[skipped..]
}

fn fifo(ring: &[AtomicU64], counters: &[AtomicU64], slots: usize) -> FifoDeviceHandle {
    FifoDeviceHandle {
        abi: AbiHeader::of::<FifoDeviceHandle>(),
        triggers: address(ring),
        head: address(&counters[16..]),
        tail: address(counters),
        tail_cache: address(&counters[32..]),
        size: slots as i32,
        reserved: 0,
        size_mask: slots as u64 - 1,
        size_shift: slots.trailing_zeros().into(),
        status: address(&counters[48..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_built_by_the_recipe_run() {
        measure_ping_pong(100).unwrap();
        measure_fifo(16, 1000).unwrap();
    }

    #[test]
    fn both_modes_are_in_one_program() {
        let trace = trace_push().unwrap();
        assert!(trace.last().unwrap().contains("Release"), "{trace:#?}");
    }
}
