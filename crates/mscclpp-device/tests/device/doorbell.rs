// SPDX-License-Identifier: MIT
//! Stores to device registers on the memory models.

use mscclpp_device::executor::memory::{Access, Order, Scope};
use mscclpp_device::executor::{LaunchDims, Trace};

use crate::support::{Cells, DEADLINE, Kernels, seeds, weak_observed};

#[derive(Clone, Copy)]
#[repr(C)]
struct Doorbell {
    payload: u64,
    doorbell: u64,
    fence: u64,
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };

/// In how many of many runs a doorbell is in the register before its payload is in memory.
fn doorbell_overtakes(fence: bool) -> usize {
    let runs = seeds(200).filter(|seed| {
        let (payload, register) = (Cells::new(1), Cells::new(1));
        let early = Cells::new(1);
        let gpu = weak_observed(*seed, move |write| {
            if write.mmio {
                early.set(0, u64::from(payload.get(0) == 0));
            }
        });
        let args = Doorbell {
            payload: payload.address(),
            doorbell: register.address(),
            fence: fence.into(),
        };
        let kernel = Kernels::of("channel").modelled("doorbell");
        kernel
            .launch_modelled(ONE, args, gpu)
            .unwrap()
            .join(DEADLINE)
            .unwrap();
        assert_eq!((payload.get(0), register.get(0)), (7, 9));
        early.get(0) == 1
    });
    runs.count()
}

#[test]
fn on_weak_memory_a_doorbell_overtakes_stores_unless_fenced() {
    assert!(doorbell_overtakes(false) > 0);
    assert_eq!(doorbell_overtakes(true), 0);
}

#[test]
fn a_trace_shows_fence_and_doorbell_in_order() {
    let (payload, register) = (Cells::new(1), Cells::new(1));
    let trace = Trace::new();
    let args = Doorbell {
        payload: payload.address(),
        doorbell: register.address(),
        fence: 1,
    };
    let kernel = Kernels::of("channel").modelled("doorbell");
    kernel
        .launch_modelled(ONE, args, &trace)
        .unwrap()
        .join(DEADLINE)
        .unwrap();
    let accesses: Vec<_> = trace
        .events()
        .into_iter()
        .map(|event| event.access)
        .collect();
    let expected = [
        Access::Store {
            address: payload.address() as usize,
            bytes: 8,
            value: 7,
            order: Order::Relaxed,
            scope: Scope::System,
        },
        Access::Fence {
            order: Order::SeqCst,
            scope: Scope::System,
        },
        Access::StoreMmio {
            address: register.address() as usize,
            value: 9,
        },
    ];
    assert_eq!(accesses, expected);
}
