// SPDX-License-Identifier: MIT
//! The trigger's constructor in C++ against the encoder in Rust.

use mscclpp_device::abi::{ProxyTrigger, Transfer, Trigger, TriggerError};
use mscclpp_device::executor::LaunchDims;
use proptest::prelude::*;

use crate::support::{Cells, DEADLINE, Kernels};

#[derive(Clone, Copy)]
#[repr(C)]
struct Encode {
    inputs: u64,
    count: u64,
    words: u64,
    fields: u64,
}

/// opcode, dst, dst offset, src, src offset, bytes, semaphore: the arguments of the constructor.
type Input = [u64; 7];

/// What the constructor makes of inputs: the trigger, and its fields read back.
fn encode(inputs: &[Input]) -> Vec<(ProxyTrigger, Input)> {
    let given = Cells::new(7 * inputs.len());
    for (i, value) in inputs.iter().flatten().enumerate() {
        given.set(i, *value);
    }
    let (words, fields) = (Cells::new(2 * inputs.len()), Cells::new(7 * inputs.len()));
    let args = Encode {
        inputs: given.address(),
        count: inputs.len() as u64,
        words: words.address(),
        fields: fields.address(),
    };
    let kernel = Kernels::of("fifo").direct("trigger_encode");
    kernel
        .run(LaunchDims { grid: 1, block: 1 }, args, DEADLINE)
        .unwrap();
    let triggers = (0..inputs.len()).map(|i| {
        let (fst, snd) = (words.get(2 * i), words.get(2 * i + 1));
        (
            ProxyTrigger { fst, snd },
            std::array::from_fn(|f| fields.get(7 * i + f)),
        )
    });
    triggers.collect()
}

/// What these arguments mean, said in Rust.
fn meaning(input: Input) -> Result<Trigger, TriggerError> {
    let [opcode, dst, dst_offset, src, src_offset, size, semaphore] = input;
    let (dst, src, semaphore) = (dst as u32, src as u32, semaphore as u32);
    let transfer = Transfer {
        dst,
        dst_offset,
        src,
        src_offset,
        size,
    };
    Ok(match opcode {
        1 => Trigger::Put {
            transfer,
            semaphore,
        },
        2 => Trigger::Signal { semaphore },
        3 => Trigger::PutWithSignal {
            transfer,
            semaphore,
        },
        4 => Trigger::Flush { semaphore },
        6 => {
            let operand = (src_offset << 32 | size).cast_signed();
            Trigger::Accumulate {
                dst,
                dst_offset,
                operand,
                semaphore,
            }
        }
        7 => Trigger::PutWithSignalAndFlush {
            transfer,
            semaphore,
        },
        _ => {
            return Err(TriggerError::UnknownOpcode {
                opcode: opcode as u8,
                semaphore,
            });
        }
    })
}

/// Any value of a field, often the last one that fits.
fn field(bits: u32) -> impl Strategy<Value = u64> {
    let limit = 1u64 << bits;
    prop_oneof![4 => 0..limit, 1 => Just(limit - 1)]
}

fn inputs() -> impl Strategy<Value = Input> {
    let fields = (
        0..8u64,
        field(9),
        field(32),
        field(9),
        field(32),
        field(32),
        field(10),
    );
    fields.prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_languages_agree_on_triggers(inputs in prop::collection::vec(inputs(), 1..100)) {
        for (input, (trigger, fields)) in inputs.iter().zip(encode(&inputs)) {
            prop_assert_eq!(&fields, input);
            prop_assert_eq!(trigger.decode(), meaning(*input));
            // Rust keeps the fields that these opcodes use only.
            if matches!(input[0], 1 | 3 | 7) {
                prop_assert_eq!(meaning(*input).unwrap().encode(), Ok(trigger));
            }
        }
    }

    #[test]
    fn a_value_too_large_makes_no_operation_in_cpp_and_an_error_in_rust(
        input in inputs(),
        which in 1..7usize,
        excess in 0..1u64 << 22,
    ) {
        let mut input = input;
        input[0] = 7;
        input[which] = excess + [0, 1 << 9, 1 << 32, 1 << 9, 1 << 32, 1 << 32, 1 << 10][which];
        let (trigger, _) = encode(&[input])[0];
        let semaphore = if which == 6 { 0 } else { input[6] as u32 };
        prop_assert_eq!(trigger.decode(), Err(TriggerError::UnknownOpcode { opcode: 0, semaphore }));
        let refused = meaning(input).unwrap().encode();
        let named = matches!(refused, Err(TriggerError::TooLarge { value, .. }) if value == input[which]);
        prop_assert!(named, "{:?}", refused);
    }
}
