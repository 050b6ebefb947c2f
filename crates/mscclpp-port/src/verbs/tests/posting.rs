// SPDX-License-Identifier: MIT
//! Requests as the library gets them.

use mscclpp_ib_sys as sys;

use super::*;

const HERE: Local = Local {
    address: 0x1_0000_0008,
    len: 24,
    key: 0x11,
};
const THERE: Remote = Remote {
    address: 0x2_0000_0010,
    key: 0x22,
};

fn request(operation: Operation<'_>) -> SendRequest<'_> {
    SendRequest {
        id: 9,
        signaled: false,
        fence: false,
        operation,
    }
}

/// The request that the library gets for one operation, with its pieces and inline bytes.
fn posted(request: SendRequest<'_>) -> fake::Posted {
    let fake = Fake::new();
    let parts = parts(fake).unwrap();
    parts.queue.post(&[request]).unwrap();
    let posted = fake.state().posted.pop().unwrap();
    assert_eq!(posted.request.wr_id, 9);
    assert!(posted.request.next.is_null());
    posted
}

fn piece(posted: &fake::Posted) -> Local {
    assert_eq!(posted.pieces.len(), 1);
    let sys::ibv_sge { addr, length, lkey } = posted.pieces[0];
    Local {
        address: addr,
        len: length,
        key: lkey,
    }
}

#[test]
fn writes_and_reads_name_both_memories() {
    let write = |immediate| Operation::Write {
        source: Source::Region(HERE),
        remote: THERE,
        immediate,
    };
    let read = Operation::Read {
        local: HERE,
        remote: THERE,
    };
    for (operation, opcode) in [
        (write(None), sys::IBV_WR_RDMA_WRITE),
        (write(Some(0x0102_0304)), sys::IBV_WR_RDMA_WRITE_WITH_IMM),
        (read, sys::IBV_WR_RDMA_READ),
    ] {
        let posted = posted(request(operation));
        assert_eq!(posted.request.opcode, opcode);
        assert_eq!(posted.request.send_flags, 0);
        assert_eq!(piece(&posted), HERE);
        // SAFETY: the member for these operations.
        let rdma = unsafe { posted.request.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (THERE.address, THERE.key));
        if opcode == sys::IBV_WR_RDMA_WRITE_WITH_IMM {
            assert_eq!(posted.request.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        }
    }
}

#[test]
fn atomics_name_the_word_and_their_operands() {
    let add = Operation::FetchAdd {
        local: HERE,
        remote: THERE,
        add: u64::MAX,
    };
    let swap = Operation::CompareSwap {
        local: HERE,
        remote: THERE,
        compare: 6,
        swap: 7,
    };
    for (operation, opcode, operands) in [
        (add, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, (u64::MAX, 0)),
        (swap, sys::IBV_WR_ATOMIC_CMP_AND_SWP, (6, 7)),
    ] {
        let posted = posted(request(operation));
        assert_eq!(posted.request.opcode, opcode);
        assert_eq!(piece(&posted), HERE);
        // SAFETY: the member for atomics.
        let atomic = unsafe { posted.request.wr.atomic };
        assert_eq!(
            (atomic.remote_addr, atomic.rkey),
            (THERE.address, THERE.key)
        );
        assert_eq!((atomic.compare_add, atomic.swap), operands);
    }
}

#[test]
fn bytes_can_come_from_nowhere_or_inside_of_the_request() {
    let write = |source| Operation::Write {
        source,
        remote: THERE,
        immediate: Some(1),
    };
    let nothing = posted(request(write(Source::Nothing)));
    assert!(nothing.pieces.is_empty());

    let inline = posted(request(write(Source::Inline(b"twelve bytes"))));
    assert_eq!(inline.request.send_flags, sys::IBV_SEND_INLINE);
    assert_eq!(inline.inline, b"twelve bytes");

    let send = Operation::Send {
        source: Source::Region(HERE),
        immediate: None,
    };
    let flagged = SendRequest {
        signaled: true,
        fence: true,
        ..request(send)
    };
    let send = posted(flagged);
    assert_eq!(send.request.opcode, sys::IBV_WR_SEND);
    assert_eq!(
        send.request.send_flags,
        sys::IBV_SEND_SIGNALED | sys::IBV_SEND_FENCE
    );
}

#[test]
fn many_are_posted_in_order_and_the_first_that_is_not_is_told() {
    let words: Vec<[u8; 8]> = (0..21u64).map(u64::to_le_bytes).collect();
    let requests: Vec<_> = words
        .iter()
        .zip(0..)
        .map(|(word, id)| SendRequest {
            id,
            ..request(Operation::Write {
                source: Source::Inline(word),
                remote: THERE,
                immediate: None,
            })
        })
        .collect();
    for room in (0..=21).rev() {
        let fake = Fake::new();
        let parts = parts(fake).unwrap();
        fake.state().room = room;
        let result = parts.queue.post(&requests);
        let posted: Vec<_> = fake.state().posted.drain(..).collect();
        let ids: Vec<_> = posted.iter().map(|posted| posted.request.wr_id).collect();
        assert_eq!(ids, (0..room as u64).collect::<Vec<_>>());
        for (posted, word) in posted.iter().zip(&words) {
            assert_eq!(posted.inline, word);
        }
        match result {
            Ok(()) => assert_eq!(room, 21),
            Err(error) => {
                assert_eq!(error.posted, room);
                assert!(error.is_full());
            }
        }
    }
    let fake = Fake::new();
    let parts = parts(fake).unwrap();
    parts.queue.post(&[]).unwrap();
    fake.fail("ibv_post_send", libc::EINVAL);
    let error = parts.queue.post(&requests).unwrap_err();
    assert!(!error.is_full());
    assert_eq!(error.posted, 0);
    assert!(error.to_string().contains("Invalid argument"), "{error}");
    fake.mend();
    parts.queue.post(&requests).unwrap();
}
