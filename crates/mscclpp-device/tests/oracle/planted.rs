// SPDX-License-Identifier: MIT
//! Differences that are there on purpose have to be found, where they are.

use std::sync::OnceLock;

use mlx5_queue::{BLOCK_BYTES, DoorbellRecord};

use crate::cpu::{Cpu, VARIANTS};
use crate::includes;
use crate::oracle::calls::{Call, Operation};
use crate::oracle::cases::Pair;
use crate::oracle::compare::{At, Difference};
use crate::oracle::queue::{Sharing, Spoil};

const BLOCKS: u32 = 8;
/// In the last slot, so that a call of two requests ends in the first.
const START: u64 = 7;

/// With the library's headers, if there are some.
fn with_cpu(test: &str, check: impl Fn(&Cpu)) {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    if let Some(include) = includes(test).first() {
        check(CPU.get_or_init(|| Cpu::new(include, VARIANTS[1]).unwrap()));
    }
}

/// What is found where `call` is made and something changed behind it.
fn found(cpu: &Cpu, sharing: Sharing, call: &Call, spoilt: &[Spoil]) -> Vec<Difference> {
    let mut pair = Pair::new(cpu, BLOCKS).unwrap();
    pair.begin(sharing, START);
    let result = pair.spoilt(call, spoilt).unwrap();
    result.err().unwrap_or_default()
}

fn places(found: &[Difference]) -> Vec<At> {
    found.iter().map(|one| one.at.clone()).collect()
}

#[test]
fn a_changed_byte_is_named_by_operation_slot_and_offset() {
    with_cpu(
        "a_changed_byte_is_named_by_operation_slot_and_offset",
        |cpu| {
            let call = Call::of(Operation::PutSignal, 64);
            // Of the put, in slot 7: all but the bytes that nobody sets.
            for offset in 0..BLOCK_BYTES {
                let spoilt = Spoil::Ring(START as usize * BLOCK_BYTES + offset);
                let found = found(cpu, Sharing::Gpu, &call, &[spoilt]);
                let unset = matches!(offset, 8..=10 | 12..=15 | 28..=31);
                let slot = START as u32;
                let expected = match unset {
                    false => At::Slot { slot, offset },
                    // Never of this side's: it sets them to zero.
                    true => At::NotZero { slot, offset },
                };
                // A changed opcode or size changes what is masked, too.
                if offset == 3 || offset == 7 {
                    assert!(places(&found).contains(&expected), "{offset}: {found:?}");
                } else {
                    assert_eq!(places(&found), [expected], "{offset}");
                }
                assert!(found.iter().all(|one| one.operation == "put with signal"));
            }
            let words = found(cpu, Sharing::Gpu, &call, &[Spoil::Ring(11)])[0].to_string();
            assert_eq!(
                words,
                "put with signal: Slot { slot: 0, offset: 11 }: 09 here, 08 there"
            );
            // Of the signal, in slot 0: the second half of the operand is nothing to a NIC.
            let found = found(cpu, Sharing::Gpu, &call, &[Spoil::Ring(47)]);
            assert_eq!(places(&found), []);
        },
    );
}

#[test]
fn a_changed_slot_that_nobody_wrote_is_found() {
    with_cpu("a_changed_slot_that_nobody_wrote_is_found", |cpu| {
        let call = Call::of(Operation::Signal, 0);
        for offset in [0, 9, 13, 30, 63] {
            let spoilt = Spoil::Ring(3 * BLOCK_BYTES + offset);
            let found = found(cpu, Sharing::Exclusive, &call, &[spoilt]);
            assert_eq!(places(&found), [At::Slot { slot: 3, offset }]);
        }
    });
}

#[test]
fn a_changed_record_or_doorbell_is_found() {
    with_cpu("a_changed_record_or_doorbell_is_found", |cpu| {
        let call = Call::of(Operation::Get, 64);
        for offset in 0..DoorbellRecord::BYTES {
            let spoilt = found(cpu, Sharing::Block, &call, &[Spoil::Record(offset)]);
            assert_eq!(places(&spoilt), [At::Record { offset }]);
            let spoilt = found(cpu, Sharing::Block, &call, &[Spoil::Doorbell(offset)]);
            // Its first byte is nothing to a NIC.
            let expected = [At::Doorbell { offset }];
            assert_eq!(places(&spoilt), expected[usize::from(offset == 0)..]);
        }
    });
}

#[test]
fn a_request_without_its_completion_is_found() {
    with_cpu("a_request_without_its_completion_is_found", |cpu| {
        let mut pair = Pair::new(cpu, BLOCKS).unwrap();
        pair.begin(Sharing::Exclusive, START);
        pair.ours().signal_last_only();
        let call = Call::of(Operation::PutSignal, 64);
        let found = pair.call(&call).unwrap().unwrap_err();
        let (slot, offset) = (START as u32, 11);
        assert_eq!(places(&found), [At::Slot { slot, offset }]);
    });
}

#[test]
fn another_look_at_the_same_completions_is_found() {
    with_cpu("another_look_at_the_same_completions_is_found", |cpu| {
        let mut pair = Pair::new(cpu, BLOCKS).unwrap();
        pair.begin(Sharing::Gpu, START);
        let signal = Call::of(Operation::Signal, 0);
        for index in [START, START + 1] {
            pair.call(&signal).unwrap().unwrap();
            pair.complete(index, None);
        }
        pair.ours().spoil(Spoil::Owner(START + 1));
        let found = pair.call(&Call::look(START, 2)).unwrap().unwrap_err();
        assert_eq!(places(&found), [At::Found]);
        assert_eq!(
            found[0].to_string(),
            "poll: Found: [0, 1] here, [0, 0] there"
        );
    });
}

#[test]
fn another_call_is_found() {
    with_cpu("another_call_is_found", |cpu| {
        let mut pair = Pair::new(cpu, BLOCKS).unwrap();
        pair.begin(Sharing::Gpu, START);
        // One request more here.
        pair.ours()
            .call(cpu, &Call::of(Operation::Signal, 0))
            .unwrap();
        let found = pair
            .call(&Call::of(Operation::Signal, 0))
            .unwrap()
            .unwrap_err();
        let found = places(&found);
        for at in [At::End, At::Steps, At::Record { offset: 7 }] {
            assert!(found.contains(&at), "{at:?} in {found:?}");
        }
    });
}
