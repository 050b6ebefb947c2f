// SPDX-License-Identifier: MIT
//! The safe layer over a library that a test has in its hands; `tests/rxe` has the real one.

mod answers;
mod faults;
mod posting;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};

use super::fake::Fake;
use super::*;

pub(super) const SIZE: QueuePairSize = QueuePairSize {
    send_requests: 16,
    receive_requests: 4,
    inline_bytes: 32,
};

pub(super) const SENDING: Sending = Sending {
    timeout: 14,
    retry_count: 7,
    receiver_not_ready_retries: 6,
    packet_number: 0x777,
    outstanding_reads: 3,
};

pub(super) fn path() -> Path {
    Path {
        peer: 0x99,
        destination: Destination {
            port: 1,
            lid: 5,
            service_level: 3,
            route: Some(GlobalRoute {
                gid: [7; 16],
                source_index: 2,
                hop_limit: 64,
                traffic_class: 104,
            }),
        },
        mtu: Mtu::SMALLEST,
        packet_number: 0x555,
        answered_reads: 4,
        receiver_not_ready_timer: 12,
    }
}

pub(super) fn open(fake: &Fake) -> Result<Arc<Device>, VerbsError> {
    Device::open_in(Fake::verbs(), fake.name())
}

pub(super) fn region(
    domain: &Arc<ProtectionDomain>,
    access: AccessFlags,
    owner: Arc<dyn Any + Send + Sync>,
) -> Result<MemoryRegion, VerbsError> {
    static WORDS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    let base = NonNull::from(&WORDS).cast();
    // SAFETY: atomics, which live for ever.
    unsafe { MemoryRegion::register(domain, base, 64, access, owner) }
}

pub(super) struct Parts {
    pub(super) device: Arc<Device>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) queues: [Arc<CompletionQueue>; 2],
    pub(super) region: MemoryRegion,
    pub(super) queue: QueuePair<ReadyToSend>,
}

/// All there is, connected.
pub(super) fn parts(fake: &Fake) -> Result<Parts, VerbsError> {
    let device = open(fake)?;
    let domain = ProtectionDomain::new(&device)?;
    let queues = [
        CompletionQueue::new(&device, 32)?,
        CompletionQueue::with_channel(&device, 8, &CompletionChannel::new(&device)?)?,
    ];
    // Kept, so that a leak checker finds it where a region does not let go of it.
    static OWNER: LazyLock<Arc<()>> = LazyLock::new(|| Arc::new(()));
    let region = region(&domain, AccessFlags::LOCAL_WRITE, OWNER.clone())?;
    let queue = QueuePair::new(&domain, &queues[0], &queues[1], SIZE)?;
    let queue = queue.initialize(1, AccessFlags::REMOTE_WRITE)?;
    let queue = queue.ready_to_receive(&path())?;
    let queue = queue.ready_to_send(&SENDING)?;
    Ok(Parts {
        device,
        domain,
        queues,
        region,
        queue,
    })
}
