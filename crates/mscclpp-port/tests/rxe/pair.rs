// SPDX-License-Identifier: MIT
//! Two queue pairs of one device, connected to each other, and memory for them.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mscclpp_port::verbs::{
    AccessFlags, CompletionQueue, Destination, Device, Gid, GidKind, GlobalRoute, Initialized,
    Local, MemoryRegion, Mtu, Operation, Path, ProtectionDomain, QueuePair, QueuePairSize,
    ReadyToSend, Remote, Reset, SendRequest, Sending, WorkCompletion,
};

/// The guest's device.
pub(crate) const DEVICE: &str = "rxe0";

pub(crate) const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE;

/// Everything that a peer may do.
pub(crate) fn all_access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
}

pub(crate) fn open() -> Arc<Device> {
    Device::open(DEVICE).unwrap()
}

/// The GID of the guest's IPv4 address.
pub(crate) fn routable(device: &Device) -> Gid {
    let gids = device.gids(1).unwrap();
    let found = gids
        .iter()
        .find(|gid| gid.kind == GidKind::RoceV2 && gid.ipv4().is_some());
    found.unwrap_or_else(|| panic!("none of {gids:?}")).clone()
}

/// Registered words.
pub(crate) struct Words {
    pub(crate) words: Arc<Vec<AtomicU64>>,
    pub(crate) region: MemoryRegion,
}

impl Words {
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, count: usize, access: AccessFlags) -> Self {
        let words: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
        let base = NonNull::new(words.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the words live as long as their owner, and are atomics: a write at any time is
        // right.
        let region = unsafe {
            MemoryRegion::register(domain, base, 8 * count, access, words.clone()).unwrap()
        };
        Self { words, region }
    }

    pub(crate) fn address(&self, index: usize) -> u64 {
        self.words[index..].as_ptr().addr() as u64
    }

    pub(crate) fn local(&self, index: usize, bytes: u32) -> Local {
        Local {
            address: self.address(index),
            len: bytes,
            key: self.region.lkey(),
        }
    }

    pub(crate) fn remote(&self, index: usize) -> Remote {
        Remote {
            address: self.address(index),
            key: self.region.rkey(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::Release);
    }
}

/// One of the two.
pub(crate) struct End {
    pub(crate) queue: QueuePair<ReadyToSend>,
    pub(crate) sent: Arc<CompletionQueue>,
    pub(crate) received: Arc<CompletionQueue>,
}

/// Both, and what they stand on.
pub(crate) struct Pair {
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) ends: [End; 2],
}

pub(crate) const SIZE: QueuePairSize = QueuePairSize {
    send_requests: 16,
    receive_requests: 16,
    inline_bytes: 64,
};

/// 8 tries of 67 ms at least, and four times as much at most.
pub(crate) const SENDING: Sending = Sending {
    timeout: 14,
    retry_count: 7,
    receiver_not_ready_retries: 7,
    packet_number: 0x12_3456,
    outstanding_reads: 4,
};

pub(crate) fn made(
    domain: &Arc<ProtectionDomain>,
) -> (QueuePair<Reset>, [Arc<CompletionQueue>; 2]) {
    let queues = [32, 32].map(|entries| CompletionQueue::new(domain.device(), entries).unwrap());
    let queue = QueuePair::new(domain, &queues[0], &queues[1], SIZE).unwrap();
    (queue, queues)
}

pub(crate) fn initialized(
    domain: &Arc<ProtectionDomain>,
) -> (QueuePair<Initialized>, [Arc<CompletionQueue>; 2]) {
    let (queue, queues) = made(domain);
    (queue.initialize(1, all_access()).unwrap(), queues)
}

/// The path to a queue pair of this machine.
pub(crate) fn path(device: &Device, peer: u32) -> Path {
    let gid = routable(device);
    Path {
        peer,
        destination: Destination {
            port: 1,
            lid: 0,
            service_level: 0,
            route: Some(GlobalRoute {
                gid: gid.raw,
                source_index: gid.index.try_into().unwrap(),
                hop_limit: 64,
                traffic_class: 0,
            }),
        },
        mtu: Mtu::from_code(3).unwrap(),
        packet_number: SENDING.packet_number,
        answered_reads: 4,
        receiver_not_ready_timer: 12,
    }
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::sending(SENDING)
    }

    pub(crate) fn sending(sending: Sending) -> Self {
        let device = open();
        let domain = ProtectionDomain::new(&device).unwrap();
        let halves = [initialized(&domain), initialized(&domain)];
        let numbers = [halves[1].0.number(), halves[0].0.number()];
        let mut peers = numbers.into_iter();
        let ends = halves.map(|(queue, [sent, received])| {
            let path = path(&device, peers.next().unwrap());
            let queue = queue.ready_to_receive(&path).unwrap();
            End {
                queue: queue.ready_to_send(&sending).unwrap(),
                sent,
                received,
            }
        });
        Self { domain, ends }
    }

    pub(crate) fn words(&self, count: usize) -> Words {
        Words::new(&self.domain, count, all_access())
    }
}

impl End {
    pub(crate) fn post(&self, id: u64, operation: Operation<'_>) {
        self.queue.post(&[request(id, operation)]).unwrap();
    }

    /// Posts it and waits until it is executed.
    pub(crate) fn execute(&self, operation: Operation<'_>) -> WorkCompletion {
        self.post(77, operation);
        let completion = wait(&self.sent, Duration::from_secs(20));
        assert_eq!(completion.id, 77);
        assert!(completion.status.is_success(), "{}", completion.status);
        completion
    }
}

pub(crate) fn request(id: u64, operation: Operation<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        signaled: true,
        fence: false,
        operation,
    }
}

/// The next completion.
pub(crate) fn wait(queue: &CompletionQueue, limit: Duration) -> WorkCompletion {
    let end = Instant::now() + limit;
    let mut completion = [WorkCompletion::default()];
    while queue.poll(&mut completion).unwrap() == 0 {
        assert!(Instant::now() < end, "no completion in {limit:?}");
        std::thread::yield_now();
    }
    completion[0]
}
