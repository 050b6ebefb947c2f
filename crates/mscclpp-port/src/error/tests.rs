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
