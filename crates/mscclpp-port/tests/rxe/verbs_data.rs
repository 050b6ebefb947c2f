// SPDX-License-Identifier: MIT
//! Each operation, on real queue pairs.

use std::time::Duration;

use mscclpp_port::verbs::{
    CompletionChannel, CompletionOpcode, CompletionQueue, Operation, ProtectionDomain, QueuePair,
    ReceiveRequest, Source, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::in_guest;
use super::pair::{Pair, SENDING, SIZE, Words, all_access, initialized, open, path, request, wait};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_write_moves_bytes() {
    in_guest!(a_write_moves_bytes);
    let pair = Pair::new();
    let (from, to) = (pair.words(2048), pair.words(2048));
    for index in 0..2048 {
        from.set(index, index as u64 + 1);
    }
    let write = Operation::Write {
        source: Source::Region(from.local(0, 8 * 2048)),
        remote: to.remote(0),
        immediate: None,
    };
    let done = pair.ends[0].execute(write);
    assert_eq!(done.opcode, Some(CompletionOpcode::Write));
    assert_eq!(done.queue_number, pair.ends[0].queue.number());
    for index in 0..2048 {
        assert_eq!(to.get(index), index as u64 + 1);
    }
}

#[test]
fn an_inline_write_needs_no_registration() {
    in_guest!(an_inline_write_needs_no_registration);
    let pair = Pair::new();
    let to = pair.words(2);
    let write = Operation::Write {
        source: Source::Inline(&0x0123_4567_89ab_cdefu64.to_le_bytes()),
        remote: to.remote(1),
        immediate: None,
    };
    pair.ends[0].execute(write);
    assert_eq!((to.get(0), to.get(1)), (0, 0x0123_4567_89ab_cdef));
}

#[test]
fn an_immediate_arrives_with_its_receive_behind_the_bytes() {
    in_guest!(an_immediate_arrives_with_its_receive_behind_the_bytes);
    let pair = Pair::new();
    let (from, to) = (pair.words(512), pair.words(512));
    let receives = [1, 2].map(|id| ReceiveRequest { id, local: None });
    pair.ends[1].queue.post_receive(&receives).unwrap();
    from.set(511, 9);
    let requests = [
        Operation::Write {
            source: Source::Region(from.local(0, 8 * 512)),
            remote: to.remote(0),
            immediate: None,
        },
        Operation::Write {
            source: Source::Nothing,
            remote: to.remote(0),
            immediate: Some(0xdead_beef),
        },
    ]
    .map(|operation| request(5, operation));
    pair.ends[0].queue.post(&requests).unwrap();
    let completion = wait(&pair.ends[1].received, LIMIT);
    assert_eq!(to.get(511), 9);
    let expected = WorkCompletion {
        id: 1,
        immediate: Some(0xdead_beef),
        opcode: Some(CompletionOpcode::ReceiveImmediate),
        queue_number: pair.ends[1].queue.number(),
        ..completion
    };
    assert_eq!(completion, expected);
    assert!(completion.status.is_success());
}

#[test]
fn atomics_return_the_old_value() {
    in_guest!(atomics_return_the_old_value);
    let pair = Pair::new();
    let (old, word) = (pair.words(1), pair.words(1));
    word.set(0, u64::MAX);
    for (before, add) in [(u64::MAX, 3), (2, 5)] {
        let done = pair.ends[0].execute(Operation::FetchAdd {
            local: old.local(0, 8),
            remote: word.remote(0),
            add,
        });
        assert_eq!(done.opcode, Some(CompletionOpcode::FetchAdd));
        assert_eq!(old.get(0), before);
    }
    assert_eq!(word.get(0), 7);
    for (compare, after) in [(8, 7), (7, 40)] {
        pair.ends[0].execute(Operation::CompareSwap {
            local: old.local(0, 8),
            remote: word.remote(0),
            compare,
            swap: 40,
        });
        assert_eq!((old.get(0), word.get(0)), (7, after));
    }
}

#[test]
fn reads_and_sends_move_bytes() {
    in_guest!(reads_and_sends_move_bytes);
    let pair = Pair::new();
    let (here, there) = (pair.words(4), pair.words(4));
    there.set(2, 11);
    let done = pair.ends[0].execute(Operation::Read {
        local: here.local(0, 8),
        remote: there.remote(2),
    });
    assert_eq!(done.opcode, Some(CompletionOpcode::Read));
    assert_eq!(here.get(0), 11);

    let receive = ReceiveRequest {
        id: 3,
        local: Some(there.local(0, 16)),
    };
    pair.ends[1].queue.post_receive(&[receive]).unwrap();
    pair.ends[0].execute(Operation::Send {
        source: Source::Region(here.local(0, 8)),
        immediate: None,
    });
    let received = wait(&pair.ends[1].received, LIMIT);
    assert_eq!(received.opcode, Some(CompletionOpcode::Receive));
    assert_eq!(
        (received.id, received.bytes, received.immediate),
        (3, 8, None)
    );
    assert_eq!(there.get(0), 11);
}

#[test]
fn a_long_chain_is_posted_in_order_and_one_entry_tells_of_all() {
    in_guest!(a_long_chain_is_posted_in_order_and_one_entry_tells_of_all);
    let pair = Pair::new();
    let to = pair.words(1);
    let values: Vec<[u8; 8]> = (1..=12u64).map(u64::to_le_bytes).collect();
    let requests: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let mut request = request(
                index as u64,
                Operation::Write {
                    source: Source::Inline(value),
                    remote: to.remote(0),
                    immediate: None,
                },
            );
            request.signaled = index == 11;
            request
        })
        .collect();
    pair.ends[0].queue.post(&requests).unwrap();
    let completion = wait(&pair.ends[0].sent, LIMIT);
    assert_eq!(completion.id, 11);
    assert_eq!(to.get(0), 12);
    let mut more = [WorkCompletion::default(); 4];
    assert_eq!(pair.ends[0].sent.poll(&mut more).unwrap(), 0);
}

#[test]
fn a_channel_becomes_readable_when_a_completion_comes() {
    in_guest!(a_channel_becomes_readable_when_a_completion_comes);
    let device = open();
    let domain = ProtectionDomain::new(&device).unwrap();
    let channel = CompletionChannel::new(&device).unwrap();
    let queue = CompletionQueue::with_channel(&device, 32, &channel).unwrap();
    let end = QueuePair::new(&domain, &queue, &queue, SIZE).unwrap();
    let end = end.initialize(1, all_access()).unwrap();
    let (peer, _queues) = initialized(&domain);
    let to_end = path(&device, end.number());
    let end = end.ready_to_receive(&path(&device, peer.number())).unwrap();
    let end = end.ready_to_send(&SENDING).unwrap();
    let _peer = peer.ready_to_receive(&to_end).unwrap();

    let words = Words::new(&domain, 1, all_access());
    let readable = |milliseconds| {
        let mut fds = [PollFd::new(&channel, PollFlags::IN)];
        let limit = Duration::from_millis(milliseconds).try_into().unwrap();
        poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    let write = Operation::Write {
        source: Source::Inline(&[1; 8]),
        remote: words.remote(0),
        immediate: None,
    };
    for _ in 0..3 {
        assert!(!readable(0));
        queue.request_event().unwrap();
        assert!(!readable(20));
        end.post(&[request(4, write)]).unwrap();
        assert!(readable(20_000));
        channel.clear();
        assert!(!readable(0));
        assert_eq!(wait(&queue, LIMIT).id, 4);
        // It tells once, and this is not asked for.
        end.post(&[request(5, write)]).unwrap();
        assert_eq!(wait(&queue, LIMIT).id, 5);
        assert!(!readable(20));
    }
}
