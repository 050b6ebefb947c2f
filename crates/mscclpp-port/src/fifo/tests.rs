// SPDX-License-Identifier: MIT
use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[test]
fn only_powers_of_two_are_sizes() {
    for size in [0, 3, 500, MAX_FIFO_SIZE * 2] {
        let error = Fifo::new(size).err().unwrap();
        assert_eq!(error.code(), crate::ErrorCode::InvalidUsage, "{error}");
    }
    assert_eq!(Fifo::new(1).unwrap().size(), 1);
    assert_eq!(Fifo::new(DEFAULT_FIFO_SIZE).unwrap().size(), 512);
}

#[test]
fn zero_triggers_are_delivered() {
    let mut fifo = Fifo::new(8).unwrap();
    assert_eq!(fifo.poll(), None);
    for position in 0..32 {
        assert_eq!(
            fifo.ring.try_push(ProxyTrigger::default()),
            Some(position),
            "no room"
        );
        assert_eq!(fifo.poll(), Some(ProxyTrigger::default()));
        fifo.pop();
        assert_eq!((fifo.poll(), fifo.tail()), (None, position + 1));
    }
}

#[test]
fn popping_nothing_changes_nothing() {
    let mut fifo = Fifo::new(2).unwrap();
    fifo.pop();
    assert_eq!((fifo.tail(), fifo.ring.tail()), (0, 0));
}

#[test]
fn a_trigger_lies_in_its_slot_byte_for_byte() {
    // Lap 0 sets bit 63 of the second word, lap 1 leaves it clear.
    let mut fifo = Fifo::new(1).unwrap();
    let trigger = ProxyTrigger {
        fst: 0x1122_3344_5566_7788,
        snd: 0x7fee_ddcc_bbaa_9988,
    };
    let bytes = |fifo: &Fifo| {
        let slot = &fifo.ring.slots[0];
        (
            slot.fst.load(Ordering::Relaxed).to_le_bytes(),
            slot.snd.load(Ordering::Relaxed).to_le_bytes(),
        )
    };
    fifo.ring.try_push(trigger).unwrap();
    let fst = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
    assert_eq!(
        bytes(&fifo),
        (fst, [0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff])
    );
    assert_eq!(fifo.poll(), Some(trigger));
    fifo.pop();
    fifo.ring.try_push(trigger).unwrap();
    assert_eq!(
        bytes(&fifo),
        (fst, [0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x7f])
    );
    assert_eq!(fifo.poll(), Some(trigger));
}

#[test]
fn the_handle_points_at_the_ring() {
    let fifo = Fifo::new(4).unwrap();
    let handle = fifo.device_handle();
    assert_eq!(handle.check(), Ok(()));
    assert_eq!(
        (handle.size, handle.size_mask, handle.size_shift),
        (4, 3, 2)
    );
    assert_eq!(handle.triggers % 16, 0);
    let words = [
        handle.head,
        handle.tail,
        handle.tail_cache,
        handle.status,
        handle.triggers,
    ];
    for (i, a) in words.iter().enumerate() {
        assert!(words[..i].iter().all(|b| a.abs_diff(*b) >= 64), "{words:?}");
    }
}

#[test]
fn a_fifo_with_given_up_positions_is_not_taken_into_service_again() {
    let ring = Ring::new(2).unwrap();
    ring.take();
    ring.take();
    ring.set_aborted();
    assert_eq!(ring.status().status(), Ok(Status::Aborted));
    ring.clear_status().unwrap();
    assert_eq!(ring.status().status(), Ok(Status::Ok));
    ring.set_aborted();
    ring.take();
    assert!(matches!(
        ring.clear_status(),
        Err(Error::FifoBroken { head: 3, tail: 0 })
    ));
}

#[derive(Debug, Clone)]
enum Step {
    Push(u64, u64),
    Poll,
    Pop,
    Advance,
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<(u64, u64)>().prop_map(|(fst, snd)| Step::Push(fst, snd)),
        1 => Just(Step::Poll),
        2 => Just(Step::Pop),
        2 => Just(Step::Advance),
        1 => Just(Step::Publish),
    ]
}

proptest! {
    /// Against a queue that keeps what was not read apart from what was not given back.
    #[test]
    fn it_behaves_like_a_bounded_queue(
        shift in 0_u32..4,
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let size = 1_usize << shift;
        let mut fifo = Fifo::new(size).unwrap();
        let mut unread = VecDeque::new();
        let (mut pushed, mut published) = (0_u64, 0_u64);
        for step in steps {
            match step {
                Step::Push(fst, snd) => {
                    let position = fifo.ring.try_push(ProxyTrigger { fst, snd });
                    let room = pushed < published + size as u64;
                    prop_assert_eq!(position, room.then_some(pushed));
                    if room {
                        let snd = snd & !ProxyTrigger::COMMIT_BIT;
                        unread.push_back(ProxyTrigger { fst, snd });
                        pushed += 1;
                    }
                }
                Step::Poll => prop_assert_eq!(fifo.poll(), unread.front().copied()),
                Step::Pop | Step::Advance => {
                    if fifo.poll().is_none() {
                        prop_assert!(unread.is_empty());
                        continue;
                    }
                    unread.pop_front();
                    if matches!(step, Step::Pop) {
                        fifo.pop();
                        published = fifo.tail();
                    } else {
                        fifo.advance();
                    }
                }
                Step::Publish => {
                    fifo.publish();
                    published = fifo.tail();
                }
            }
            prop_assert_eq!(fifo.tail(), pushed - unread.len() as u64);
            prop_assert_eq!(fifo.ring.tail(), published);
        }
    }
}
