// SPDX-License-Identifier: MIT
//! Low-latency packets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mscclpp_device::abi::Status;
use mscclpp_device::executor::{LaunchDims, Weak};
use proptest::prelude::*;

use crate::support::{Cells, DEADLINE, Kernels, Outcome, equal, seeds, weak, weak_observed};

#[derive(Clone, Copy)]
#[repr(C)]
struct Copying {
    packets: u64,
    origin: u64,
    result: u64,
    bytes: u64,
    flag: u64,
    small: u64,
    budget: i64,
    word: u64,
    status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Forms {
    wide: u64,
    narrow: u64,
    results: u64,
}

/// Words of packet memory for `words` words of payload: twice as many for either packet.
fn packets_for(words: usize) -> Cells {
    Cells::new(2 * words)
}

fn filled(data: &[u64]) -> Cells {
    let cells = Cells::new(data.len());
    for (i, word) in data.iter().enumerate() {
        cells.set(i, *word);
    }
    cells
}

/// The packet words that hold `data` with `flag`: the layout, written by hand.
fn packet_words(data: &[u64], flag: u32) -> Vec<u64> {
    let halves = data
        .iter()
        .flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    halves
        .map(|half| u64::from(flag) << 32 | u64::from(half))
        .collect()
}

/// Block 0 writes packets, block 1 reads them back; returns (packets, result).
fn copy(
    kernels: &Kernels,
    data: &[u64],
    flag: u32,
    small: bool,
    threads: u32,
    gpu: Option<Weak>,
) -> Result<(Vec<u64>, Vec<u64>), String> {
    let (packets, origin) = (packets_for(data.len()), filled(data));
    let (result, status) = (Cells::new(data.len()), Cells::new(threads as usize));
    let args = Copying {
        packets: packets.address(),
        origin: origin.address(),
        result: result.address(),
        bytes: 8 * data.len() as u64,
        flag: flag.into(),
        small: small.into(),
        budget: -1,
        word: 0,
        status: status.address(),
    };
    let dims = LaunchDims {
        grid: 2,
        block: threads,
    };
    let running = match gpu {
        None => kernels.direct("packet_copy").launch(dims, args),
        Some(gpu) => kernels
            .modelled("packet_copy")
            .launch_modelled(dims, args, gpu),
    };
    running
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    equal("statuses", status.all(), vec![0; threads as usize])?;
    Ok((packets.all(), result.all()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn data_round_trips_through_packets_of_the_documented_layout(
        data in prop::collection::vec(any::<u64>(), 1..40),
        flag in 1..=u32::MAX,
        small: bool,
        threads in 1..5u32,
    ) {
        let (packets, result) = copy(&Kernels::of("packet"), &data, flag, small, threads, None).unwrap();
        prop_assert_eq!(packets, packet_words(&data, flag));
        prop_assert_eq!(result, data);
    }
}

/// On weak memory: a reader, another agent that looks at each moment, never finds a packet word
/// with the flag and without the data; and the kernel's own reader gets the data.
pub(crate) fn weak_packets(kernels: &Kernels) -> Outcome {
    for seed in seeds(40) {
        for small in [false, true] {
            weak_packets_of(kernels, seed, small)
                .map_err(|fault| format!("seed {seed}, small {small}: {fault}"))?;
        }
    }
    Ok(())
}

fn weak_packets_of(kernels: &Kernels, seed: u64, small: bool) -> Outcome {
    const FLAG: u32 = 77;
    let data: Vec<u64> = (1..=8).map(|i| i * 0x1_0001_0001).collect();
    let (packets, origin) = (packets_for(data.len()), filled(&data));
    let expected = packet_words(&data, FLAG);
    let torn = Arc::new(Mutex::new(None));
    let (found, wanted) = (torn.clone(), expected.clone());
    let gpu = weak_observed(seed, move |_| {
        for (i, word) in packets.all().into_iter().enumerate() {
            if (word >> 32) as u32 == FLAG && word != wanted[i] {
                found.lock().unwrap().get_or_insert((i, word));
            }
        }
    });
    let args = Copying {
        packets: packets.address(),
        origin: origin.address(),
        result: 0,
        bytes: 8 * data.len() as u64,
        flag: FLAG.into(),
        small: small.into(),
        budget: -1,
        word: 0,
        status: 0,
    };
    kernels
        .modelled("packet_copy")
        .launch_modelled(LaunchDims { grid: 1, block: 1 }, args, gpu)
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    let torn = *torn.lock().map_err(|error| error.to_string())?;
    equal("packet word with flag and other data", torn, None)?;
    equal("packets in the end", packets.all(), expected)
}

#[test]
fn on_weak_memory_a_flag_never_comes_before_its_data() {
    weak_packets(&Kernels::of("packet")).unwrap();
}

#[test]
fn on_weak_memory_readers_of_another_block_get_the_data() {
    let data: Vec<u64> = (0..16).map(|i| i << 33 | i).collect();
    for seed in seeds(10) {
        for small in [false, true] {
            let gpu = Some(weak(seed));
            let (_, result) = copy(&Kernels::of("packet"), &data, 5, small, 2, gpu).unwrap();
            assert_eq!(result, data, "seed {seed}");
        }
    }
}

/// A reader whose packets never come ends by budget or by the connection's error.
pub(crate) fn readers_end(kernels: &Kernels) -> Outcome {
    for (budget, failure, expected) in [
        (20, Status::Ok, Status::Timeout),
        (-1, Status::PeerDown, Status::PeerDown),
    ] {
        for small in [0, 1] {
            let (packets, result, word, status) =
                (packets_for(2), Cells::new(2), Cells::new(1), Cells::new(1));
            word.fail(failure);
            // The first packet has come, or its first half.
            packets.set(0, 9 << 32 | 1);
            let args = Copying {
                packets: packets.address(),
                origin: 0,
                result: result.address(),
                bytes: 16,
                flag: 9,
                small,
                budget,
                word: word.address(),
                status: status.address(),
            };
            let running = kernels
                .direct("packet_copy")
                .launch(LaunchDims { grid: 2, block: 1 }, args)
                .map_err(|error| error.to_string())?;
            if let Err(stuck) = running.join(Duration::from_secs(5)) {
                for i in 0..4 {
                    packets.set(i, 9 << 32);
                }
                return Err(stuck.to_string());
            }
            equal("status", status.get(0), expected as u64)?;
            equal("read", result.get(0), small)?;
        }
    }
    Ok(())
}

#[test]
fn a_reader_ends_by_budget_or_by_the_connections_status() {
    readers_end(&Kernels::of("packet")).unwrap();
}

#[test]
fn each_form_of_write_and_read_agrees() {
    let (wide, narrow, results) = (Cells::new(2), Cells::new(1), Cells::new(8));
    let args = Forms {
        wide: wide.address(),
        narrow: narrow.address(),
        results: results.address(),
    };
    let kernel = Kernels::of("packet").direct("packet_forms");
    kernel
        .run(LaunchDims { grid: 1, block: 1 }, args, DEADLINE)
        .unwrap();
    assert_eq!(
        results.all(),
        [2 << 32 | 1, 5 << 32 | 4, 1, 0, 8 << 32 | 7, 10, 1, 1]
    );
    assert_eq!((wide.all(), narrow.all()), (vec![0, 0], vec![0]));
}
