// SPDX-License-Identifier: MIT
//! Descriptors between the bytes of a Unix stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors that may wait for the offers they belong to. One comes with the
/// first byte of its offer, and one read ends before the next one's.
const MAX_WAITING: usize = 4;

/// Sends some of `bytes`, with the first of which goes a descriptor.
pub(super) fn send(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no space for a descriptor"));
    }
    let flags = SendFlags::NOSIGNAL;
    Ok(sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        flags,
    )?)
}

/// Receives some bytes, and the descriptors that came with them; `None` for one
/// that this process could not take.
pub(super) fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
    descriptors: &mut VecDeque<Option<OwnedFd>>,
) -> io::Result<usize> {
    let before = descriptors.len();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let to = &mut [IoSliceMut::new(bytes)];
    let received = recvmsg(stream, to, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came.map(Some));
        }
    }
    let more = || io::Error::new(io::ErrorKind::InvalidData, "more descriptors than offers");
    if received.flags.contains(ReturnFlags::CTRUNC) {
        if descriptors.len() > before {
            return Err(more());
        }
        // There was room for two, and devices send one at a time.
        tracing::warn!(
            "memory of a peer's NIC is not mapped: this process has as many descriptors open as \
             it may (RLIMIT_NOFILE)"
        );
        descriptors.push_back(None);
    }
    if descriptors.len() > MAX_WAITING {
        return Err(more());
    }
    Ok(received.bytes)
}
