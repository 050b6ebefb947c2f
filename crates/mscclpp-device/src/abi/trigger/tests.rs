// SPDX-License-Identifier: MIT

use proptest::prelude::*;

use super::*;

const TRANSFER: Transfer = Transfer {
    dst: 0x155,
    dst_offset: 0x1122_3344,
    src: 0x0aa,
    src_offset: 0x5566_7788,
    size: 0x99aa_bbcc,
};

fn bytes(trigger: Trigger) -> [u8; 16] {
    let ProxyTrigger { fst, snd } = trigger.encode().unwrap();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&fst.to_le_bytes());
    bytes[8..].copy_from_slice(&snd.to_le_bytes());
    bytes
}

#[test]
fn golden_bytes_of_each_trigger() {
    let semaphore = 0x2ab;
    let (transfer, dst) = (TRANSFER, TRANSFER.dst);
    let put = |snd_top: [u8; 4]| {
        let mut golden = [
            0xcc, 0xbb, 0xaa, 0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0,
        ];
        golden[12..].copy_from_slice(&snd_top);
        golden
    };
    #[rustfmt::skip]
    let cases = [
        (Trigger::Put { transfer, semaphore }, put([0xaa, 0xaa, 0x66, 0x55])),
        (Trigger::PutWithSignal { transfer, semaphore }, put([0xaa, 0xaa, 0x6e, 0x55])),
        (Trigger::PutWithSignalAndFlush { transfer, semaphore }, put([0xaa, 0xaa, 0x7e, 0x55])),
        (Trigger::Signal { semaphore }, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x68, 0x55]),
        (Trigger::Flush { semaphore }, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x70, 0x55]),
        (
            Trigger::Accumulate { dst, dst_offset: 8, operand: -2, semaphore },
            [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 8, 0, 0, 0, 0, 0xaa, 0x7a, 0x55],
        ),
    ];
    for (trigger, golden) in cases {
        assert_eq!(bytes(trigger), golden, "{trigger:?}");
    }
}

#[test]
fn each_field_is_refused_at_the_first_value_that_does_not_fit() {
    use TriggerField::*;
    let put = |change: fn(&mut Transfer)| {
        let mut transfer = TRANSFER;
        change(&mut transfer);
        Trigger::Put {
            transfer,
            semaphore: 0,
        }
    };
    let cases = [
        (put(|t| t.size = 1 << 32), Size, 1 << 32),
        (put(|t| t.src_offset = 1 << 32), SrcOffset, 1 << 32),
        (put(|t| t.dst_offset = u64::MAX), DstOffset, u64::MAX),
        (put(|t| t.src = 512), SrcMemoryId, 512),
        (put(|t| t.dst = u32::MAX), DstMemoryId, u32::MAX.into()),
        (Trigger::Signal { semaphore: 1024 }, SemaphoreId, 1024),
    ];
    for (trigger, field, value) in cases {
        let error = TriggerError::TooLarge { field, value };
        assert_eq!(trigger.encode(), Err(error), "{trigger:?}");
    }
}

#[test]
fn zero_and_the_unassigned_opcode_are_no_operations() {
    for opcode in [0u8, 5] {
        let snd = u64::from(opcode) << OPCODE_SHIFT | 9 << SEMAPHORE_SHIFT;
        assert_eq!(
            ProxyTrigger { fst: 1, snd }.decode(),
            Err(TriggerError::UnknownOpcode {
                opcode,
                semaphore: 9
            })
        );
    }
}

#[test]
fn commit_bit_alternates_with_the_lap_and_starts_set() {
    assert_eq!(ProxyTrigger::commit_bit(0, 9), ProxyTrigger::COMMIT_BIT);
    assert_eq!(ProxyTrigger::commit_bit(511, 9), ProxyTrigger::COMMIT_BIT);
    assert_eq!(ProxyTrigger::commit_bit(512, 9), 0);
    assert_eq!(ProxyTrigger::commit_bit(1024, 9), ProxyTrigger::COMMIT_BIT);
    assert_eq!(ProxyTrigger::commit_bit(u64::MAX, 0), 0);
}

fn transfers() -> impl Strategy<Value = Transfer> {
    let offset = 0..1u64 << 32;
    (0..512u32, offset.clone(), 0..512u32, offset.clone(), offset).prop_map(
        |(dst, dst_offset, src, src_offset, size)| Transfer {
            dst,
            dst_offset,
            src,
            src_offset,
            size,
        },
    )
}

fn triggers() -> impl Strategy<Value = Trigger> {
    let all = (transfers(), 0..1024u32, any::<i64>(), 0..6);
    all.prop_map(|(transfer, semaphore, operand, kind)| match kind {
        0 => Trigger::Put {
            transfer,
            semaphore,
        },
        1 => Trigger::Signal { semaphore },
        2 => Trigger::PutWithSignal {
            transfer,
            semaphore,
        },
        3 => Trigger::Flush { semaphore },
        4 => Trigger::Accumulate {
            dst: transfer.dst,
            dst_offset: transfer.dst_offset,
            operand,
            semaphore,
        },
        _ => Trigger::PutWithSignalAndFlush {
            transfer,
            semaphore,
        },
    })
}

proptest! {
    #[test]
    fn encoding_round_trips_and_leaves_the_commit_bit_free(trigger in triggers()) {
        let mut raw = trigger.encode().unwrap();
        prop_assert_eq!(raw.snd & ProxyTrigger::COMMIT_BIT, 0);
        prop_assert_eq!(raw.decode(), Ok(trigger));
        raw.snd |= ProxyTrigger::COMMIT_BIT;
        prop_assert_eq!(raw.decode(), Ok(trigger));
    }
}

#[test]
fn fuzz_trigger() {
    bolero::check!()
        .with_type::<(u64, u64)>()
        .for_each(|&(fst, snd)| {
            // Fields that an opcode does not use are dropped, so the meaning
            // round-trips, not the bytes.
            if let Ok(trigger) = (ProxyTrigger { fst, snd }).decode() {
                assert_eq!(trigger.encode().unwrap().decode(), Ok(trigger));
            }
        });
}
