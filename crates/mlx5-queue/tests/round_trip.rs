// SPDX-License-Identifier: MIT
//! What is written reads back, and what is read writes back.

use mlx5_queue::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn flags() -> impl Strategy<Value = Flags> {
    (0..4u8, 0..5u8, any::<bool>()).prop_map(|(completion, fence, solicited)| Flags {
        completion: [
            CompletionMode::OnError,
            CompletionMode::OnFirstError,
            CompletionMode::Always,
            CompletionMode::AlwaysWithEvent,
        ][usize::from(completion)],
        fence: [
            FenceMode::None,
            FenceMode::InitiatorSmall,
            FenceMode::Fence,
            FenceMode::StrongOrdering,
            FenceMode::SmallAndFence,
        ][usize::from(fence)],
        solicited,
    })
}

fn queue() -> impl Strategy<Value = QueueNumber> {
    (0u32..1 << 24).prop_map(|number| QueueNumber::new(number).unwrap())
}

fn remote() -> impl Strategy<Value = RemoteAddress> {
    (any::<u64>(), any::<u32>()).prop_map(|(address, key)| RemoteAddress {
        address,
        key: MemoryKey::new(key),
    })
}

fn data() -> impl Strategy<Value = DataSegment> {
    (any::<u64>(), any::<u32>(), 1..=DataSegment::MAX_LENGTH).prop_map(|(address, key, length)| {
        DataSegment::new(address, MemoryKey::new(key), length).unwrap()
    })
}

/// The parts of any operation; `build` borrows what an operation borrows.
#[derive(Debug, Clone)]
struct Parts {
    kind: u8,
    remote: RemoteAddress,
    list: Vec<[u8; SEGMENT_BYTES]>,
    inline: Vec<u8>,
    use_inline: bool,
    immediate: Option<u32>,
    words: (u64, u64),
    result: DataSegment,
    queue: QueueNumber,
}

impl Parts {
    fn payload(&self) -> Payload<'_> {
        if self.use_inline {
            Payload::Inline(&self.inline)
        } else {
            Payload::Gather(DataSegments::new(&self.list))
        }
    }

    fn build(&self) -> Operation<'_> {
        let Self {
            remote,
            immediate,
            words: (a, b),
            result,
            ..
        } = *self;
        match self.kind {
            0 => Operation::Nop,
            1 => Operation::Write {
                remote,
                payload: self.payload(),
                immediate,
            },
            2 => Operation::Send {
                payload: self.payload(),
                immediate,
            },
            3 => Operation::Read {
                remote,
                scatter: DataSegments::new(&self.list),
            },
            4 => Operation::FetchAdd {
                remote,
                add: a,
                result,
            },
            5 => Operation::CompareSwap {
                remote,
                compare: a,
                swap: b,
                result,
            },
            6 => Operation::Wait {
                queue: self.queue,
                index: a as u32,
            },
            _ => Operation::Dump { source: result },
        }
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        0..8u8,
        remote(),
        vec(data().prop_map(DataSegment::encode), 0..=61),
        vec(any::<u8>(), 1..=61 * SEGMENT_BYTES - 4),
        any::<bool>(),
        any::<Option<u32>>(),
        any::<(u64, u64)>(),
        data(),
        queue(),
    )
        .prop_map(
            |(kind, remote, list, inline, use_inline, immediate, words, result, queue)| Parts {
                kind,
                remote,
                list,
                inline,
                use_inline,
                immediate,
                words,
                result,
                queue,
            },
        )
}

proptest! {
    #[test]
    fn a_request_reads_back(
        parts in parts(), queue in queue(), index: u16, flags in flags(), fill: u8,
    ) {
        let request = WorkRequest { queue, index, flags, operation: parts.build() };
        let mut bytes = [fill; MAX_BLOCKS * BLOCK_BYTES];
        let written = request.encode(&mut bytes).unwrap();
        prop_assert_eq!(written, usize::from(request.segments().unwrap()) * SEGMENT_BYTES);
        prop_assert!(bytes[written..].iter().all(|&byte| byte == fill));
        prop_assert_eq!(WorkRequest::decode(&bytes).unwrap(), request);
        prop_assert_eq!(WorkRequest::decode(&bytes[..written]).unwrap(), request);
        // Its first segment alone says how far to read.
        let control = Control::decode(bytes.first_chunk().unwrap()).unwrap();
        prop_assert_eq!(control.blocks(), request.blocks().unwrap());
        // One segment less is an error, not a panic and not another request.
        let short = WorkRequest::decode(&bytes[..written - SEGMENT_BYTES]);
        let is_truncated = matches!(short, Err(Error::Truncated { .. }));
        prop_assert!(is_truncated);
        let mut small = [0u8; MAX_BLOCKS * BLOCK_BYTES];
        let refused = request.encode(&mut small[..written - 1]);
        let is_truncated = matches!(refused, Err(Error::Truncated { .. }));
        prop_assert!(is_truncated && small.iter().all(|&byte| byte == 0));
    }

    /// Bytes in the shape of requests (a random opcode would mostly be
    /// refused): whatever decodes encodes to bytes that decode to the same.
    #[test]
    fn bytes_that_decode_write_back(
        opcode in prop::sample::select(vec![0u8, 8, 9, 10, 11, 15, 16, 17, 18, 35, 255]),
        segments in 0u8..64, fence in 0u8..=255, tail in vec(any::<u8>(), 0..1100),
    ) {
        let mut bytes = vec![0, 1, 2, opcode, 9, 8, 7, segments, 0, 0, 0, fence, 1, 2, 3, 4];
        bytes.extend(tail);
        if let Ok(request) = WorkRequest::decode(&bytes) {
            let mut again = [0u8; MAX_BLOCKS * BLOCK_BYTES];
            let written = request.encode(&mut again).unwrap();
            prop_assert_eq!(WorkRequest::decode(&again[..written]).unwrap(), request);
        }
    }

    #[test]
    fn a_request_too_long_is_refused(extra in 0usize..100) {
        let list = vec![[0u8; SEGMENT_BYTES]; 62 + extra];
        let payload = Payload::Gather(DataSegments::new(&list));
        let remote = RemoteAddress { address: 0, key: MemoryKey::new(0) };
        let request = WorkRequest {
            queue: QueueNumber::MAX,
            index: 0,
            flags: Flags::SIGNALLED,
            operation: Operation::Write { remote, payload, immediate: None },
        };
        let refused = Err(Error::RequestTooLong { segments: 64 + extra });
        prop_assert_eq!(request.encode(&mut vec![0; 4096]), refused);
    }

    #[test]
    fn a_completion_reads_back(
        queue in queue(), wqe_counter: u16, owner: bool, kind in 0u8..7,
        opcode: u8, bytes: u32, timestamp: u64, immediate: u32, detail: [u8; 4],
    ) {
        let [vendor, hardware, hardware_type, syndrome] = detail;
        let syndrome = Syndrome(syndrome);
        let failure = Failure { syndrome, vendor, hardware, hardware_type };
        let responder = |kind| Entry::Responder { kind, bytes, timestamp };
        let entry = match kind {
            0 => Entry::Requester { opcode, bytes, timestamp },
            1 => responder(ReceiveKind::WriteImmediate { immediate }),
            2 => responder(ReceiveKind::Send),
            3 => responder(ReceiveKind::SendImmediate { immediate }),
            4 => Entry::RequesterError { opcode, failure },
            5 => Entry::ResponderError { failure },
            _ => Entry::Invalid,
        };
        let completion = Completion { queue, wqe_counter, owner, entry };
        prop_assert_eq!(Completion::decode(&completion.encode()), Ok(completion));
        prop_assert_eq!(completion.failure().is_some(), kind == 4 || kind == 5);
    }

    #[test]
    fn a_doorbell_and_a_record_read_back(queue in queue(), index: u64, receive: u16, send: u16) {
        let index = QueueIndex::new(index);
        let doorbell = Doorbell::new(queue, index);
        prop_assert_eq!(Doorbell::decode(doorbell.encode()), doorbell);
        prop_assert_eq!(doorbell.low16(), index.low16());
        let record = DoorbellRecord { receive, send };
        prop_assert_eq!(DoorbellRecord::decode(record.encode()), record);
        let word = DoorbellRecord::send_word(index);
        prop_assert_eq!(DoorbellRecord::decode_word(word), index.low16());
    }

    #[test]
    fn a_position_is_widened_to_itself(start: u64, ahead in 0u64..=u16::MAX as u64) {
        let (from, to) = (QueueIndex::new(start), QueueIndex::new(start).advance(ahead));
        prop_assert_eq!(from.at_or_after(to.low16()), to);
        prop_assert_eq!(to.at_or_before(from.low16()), from);
        prop_assert_eq!(to.distance_from(from), ahead);
    }
}

/// A queue of 64 blocks counted from just below each wrap: every request is
/// found where it was put, and every completion is recognised once.
#[test]
fn a_queue_runs_across_the_wraps() {
    let ring = RingSize::new(64).unwrap();
    let queue = QueueNumber::new(7).unwrap();
    for wrap in [1u64 << 16, 1 << 32] {
        let mut slots = vec![[0u8; BLOCK_BYTES]; 64];
        let mut head = QueueIndex::new(wrap - 100);
        let mut executed = head;
        for _ in 0..200 {
            let operation = Operation::Nop;
            let request = WorkRequest {
                queue,
                index: head.low16(),
                flags: Flags::SIGNALLED,
                operation,
            };
            request
                .encode(&mut slots[head.slot(ring) as usize])
                .unwrap();
            head = head.advance(1);
            // The NIC widens what the record says.
            let record = DoorbellRecord::decode_word(DoorbellRecord::send_word(head));
            assert_eq!(executed.at_or_after(record), head);
            let seen = WorkRequest::decode(&slots[executed.slot(ring) as usize]).unwrap();
            assert_eq!(seen.index, executed.low16());
            executed = executed.advance(1);
            // The poster widens what the completion says.
            assert_eq!(
                head.at_or_before(seen.index),
                executed.at_or_before(seen.index)
            );
        }
    }
}
