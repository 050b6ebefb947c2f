// SPDX-License-Identifier: MIT
use mscclpp_device::abi::Status;

use super::*;

#[test]
fn each_code_prints_its_own_name() {
    let names = [
        "SystemError",
        "InternalError",
        "RemoteError",
        "InvalidUsage",
        "Timeout",
        "Aborted",
        "ExecutorError",
    ];
    let codes = [
        ErrorCode::SystemError,
        ErrorCode::InternalError,
        ErrorCode::RemoteError,
        ErrorCode::InvalidUsage,
        ErrorCode::Timeout,
        ErrorCode::Aborted,
        ErrorCode::ExecutorError,
    ];
    for (number, (code, name)) in codes.into_iter().zip(names).enumerate() {
        assert_eq!(code as usize, number);
        assert_eq!(code.to_string(), name);
    }
}

#[test]
fn a_timeout_names_the_rank_once() {
    let after = |operation: &str, rank| {
        let operation = operation.into();
        let waited = Duration::from_millis(20);
        (Error::Timeout {
            operation,
            rank,
            waited,
        })
        .to_string()
    };
    let cases = [
        (after("flush", Some(1)), "flush (rank 1)"),
        (
            after("waiting for queues of rank 1", Some(1)),
            "queues of rank 1",
        ),
        (
            after("queues of rank 12", Some(1)),
            "queues of rank 12 (rank 1)",
        ),
        (
            after("queues of rank 12 and rank 1", Some(1)),
            "rank 12 and rank 1",
        ),
        (after("flush", None), "flush (rank unknown)"),
    ];
    for (text, end) in cases {
        assert!(text.ends_with(end), "{text}");
    }
}

#[test]
fn a_refusal_of_an_unknown_key_says_what_keeps_it() {
    let refused = Refused {
        operation: crate::refusal::Operation::Write,
        key: 1,
        offset: 0,
        len: 8,
        reason: crate::refusal::Refusal::UnknownKey,
    };
    let text = (Error::Refused {
        rank: Some(1),
        refused,
    })
    .to_string();
    assert!(
        text.contains("keeps its RegisteredMemory until a barrier"),
        "{text}"
    );
}

#[test]
fn a_dead_peer_is_named() {
    let error = Error::PeerDown {
        rank: Some(7),
        cause: "connection reset".into(),
    };
    assert_eq!(
        error.to_string(),
        "rank 7 cannot be reached any more: connection reset"
    );
    assert_eq!(error.status(), Status::PeerDown);
    assert_eq!(error.code(), ErrorCode::RemoteError);
}
