// SPDX-License-Identifier: MIT
//! The host side of the queue through which kernels ask the proxy for work.
//!
//! Many device threads push, one host thread polls. A position is a u64 that never wraps; position
//! `p` lies in slot `p mod size`, and bit 63 of a slot's second word says in which lap it was
//! written, so that a zeroed ring and the lap before both read as empty. The device side writes the
//! second word last (or both at once) with release ordering, takes positions from `head`, and waits
//! for room until `position < size + tail`.

use std::sync::Arc;

use mscclpp_device::abi::{AbiHeader, FifoDeviceHandle, ProxyTrigger, Status, StatusWord};

use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};

/// Slots of a FIFO that nobody chose another size for.
pub const DEFAULT_FIFO_SIZE: usize = 512;

/// The largest ring: its slots take 16 MiB.
const MAX_FIFO_SIZE: usize = 1 << 20;

/// One slot; the layout of [`ProxyTrigger`].
#[derive(Default)]
#[repr(C, align(16))]
struct Slot {
    fst: AtomicU64,
    snd: AtomicU64,
}

/// A word on a cache line of its own (two, for processors that fetch lines in pairs).
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// The memory that device code and the host share.
pub(crate) struct Ring {
    slots: Box<[Slot]>,
    shift: u32,
    head: Line,
    tail: Line,
    tail_cache: Line,
    status: Line,
}

impl Ring {
    fn new(size: usize) -> Result<Self> {
        if !size.is_power_of_two() || size > MAX_FIFO_SIZE {
            return Err(Error::FifoSize {
                size,
                max: MAX_FIFO_SIZE,
            });
        }
        Ok(Self {
            slots: (0..size).map(|_| Slot::default()).collect(),
            shift: size.trailing_zeros(),
            head: Line::default(),
            tail: Line::default(),
            tail_cache: Line::default(),
            status: Line::default(),
        })
    }

    pub(crate) fn device_handle(&self) -> FifoDeviceHandle {
        let line = |line: &Line| std::ptr::from_ref(&line.0).expose_provenance() as u64;
        FifoDeviceHandle {
            abi: AbiHeader::of::<FifoDeviceHandle>(),
            triggers: self.slots.as_ptr().expose_provenance() as u64,
            head: line(&self.head),
            tail: line(&self.tail),
            tail_cache: line(&self.tail_cache),
            size: self.slots.len() as i32,
            reserved: 0,
            size_mask: self.slots.len() as u64 - 1,
            size_shift: self.shift.into(),
            status: line(&self.status),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.slots.len()
    }

    /// One past the last position that a kernel has taken.
    pub(crate) fn head(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// What kernels that wait on this FIFO are told; [`Status::Ok`] while it is served.
    pub(crate) fn status(&self) -> StatusWord {
        StatusWord::from_bits(self.status.0.load(Ordering::Acquire))
    }

    /// Releases whoever waits for room or for a flush.
    pub(crate) fn set_aborted(&self) {
        let word = StatusWord::new(Status::Aborted, 0).to_bits();
        self.status.0.store(word, Ordering::Release);
    }

    /// Takes the FIFO into service again, unless device threads gave up positions meanwhile:
    /// nobody will ever fill those.
    pub(crate) fn clear_status(&self) -> Result<()> {
        let (head, tail) = (
            self.head.0.load(Ordering::Acquire),
            self.tail.0.load(Ordering::Acquire),
        );
        if head.saturating_sub(tail) > self.slots.len() as u64 {
            return Err(Error::FifoBroken { head, tail });
        }
        self.status.0.store(0, Ordering::Release);
        Ok(())
    }
}

/// The host side of a FIFO: its one consumer.
///
/// Threads of a [`FifoDeviceHandle`] push; this end takes triggers in the order of their positions.
/// The handle is plain data: the `Fifo` must outlive the kernels that use it.
pub struct Fifo {
    ring: Arc<Ring>,
    /// Position of the next trigger to look at.
    position: u64,
}

impl Fifo {
    /// An empty FIFO of `size` slots.
    ///
    /// # Errors
    /// [`Error::FifoSize`] unless `size` is a power of two, at most 2^20.
    pub fn new(size: usize) -> Result<Self> {
        Ok(Self {
            ring: Arc::new(Ring::new(size)?),
            position: 0,
        })
    }

    /// What kernels need to push.
    pub fn device_handle(&self) -> FifoDeviceHandle {
        self.ring.device_handle()
    }

    /// The trigger at [`Fifo::tail`], if it has been pushed. Asking again gives it again, until
    /// [`Fifo::pop`]. The commit bit is clear in what is returned, whatever the lap.
    #[inline]
    pub fn poll(&self) -> Option<ProxyTrigger> {
        let slot = &self.ring.slots[self.position as usize & (self.ring.slots.len() - 1)];
        // Acquire: the first word, and the payload behind the trigger, were written before.
        let snd = slot.snd.load(Ordering::Acquire);
        let lap = ProxyTrigger::commit_bit(self.position, self.ring.shift);
        if (snd ^ lap) & ProxyTrigger::COMMIT_BIT != 0 {
            return None;
        }
        Some(ProxyTrigger {
            fst: slot.fst.load(Ordering::Relaxed),
            snd: snd & !ProxyTrigger::COMMIT_BIT,
        })
    }

    /// Gives the slot of the trigger that [`Fifo::poll`] returned back to the device side. Without
    /// one it does nothing.
    pub fn pop(&mut self) {
        if self.poll().is_some() {
            self.advance();
            self.publish();
        }
    }

    /// Steps over the trigger that was polled, without giving its slot back yet.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.position += 1;
    }

    /// Gives all slots that were stepped over back to the device side.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: the slots were read before they are overwritten.
        self.ring.tail.0.store(self.position, Ordering::Release);
    }

    /// Position of the next trigger; as many have been popped.
    pub fn tail(&self) -> u64 {
        self.position
    }

    /// Number of slots.
    pub fn size(&self) -> usize {
        self.ring.size()
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    /// The device side's push, in Rust. For tests that need no kernel.
    impl Ring {
        #[cfg(not(loom))]
        /// Takes a position and fills its slot if there is room; `None` if there is none now (the
        /// position is not taken then).
        pub(crate) fn try_push(&self, trigger: ProxyTrigger) -> Option<u64> {
            let position = self
                .head
                .0
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |head| {
                    let tail = self.tail.0.load(Ordering::Acquire);
                    (head < tail + self.slots.len() as u64).then_some(head + 1)
                })
                .ok()?;
            self.fill(position, trigger);
            Some(position)
        }

        /// Takes a position whether there is room or not, as device code does.
        pub(crate) fn take(&self) -> u64 {
            self.head.0.fetch_add(1, Ordering::Relaxed)
        }

        pub(crate) fn fill(&self, position: u64, trigger: ProxyTrigger) {
            let slot = &self.slots[position as usize & (self.slots.len() - 1)];
            slot.fst.store(trigger.fst, Ordering::Relaxed);
            let snd = trigger.snd & !ProxyTrigger::COMMIT_BIT
                | ProxyTrigger::commit_bit(position, self.shift);
            slot.snd.store(snd, Ordering::Release);
        }

        pub(crate) fn tail(&self) -> u64 {
            self.tail.0.load(Ordering::Acquire)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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
}
