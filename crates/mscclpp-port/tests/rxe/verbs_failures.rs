// SPDX-License-Identifier: MIT
//! What a device refuses, and how it is told.

use std::time::{Duration, Instant};

use mscclpp_port::verbs::{
    AccessFlags, CompletionQueue, CompletionStatus, Device, Errno, Mtu, Operation,
    ProtectionDomain, QueueState, Remote, Sending, Source, VerbsError,
};

use super::in_guest;
use super::pair::{
    DEVICE, End, Pair, SENDING, Words, all_access, initialized, open, path, request, wait,
};

const LIMIT: Duration = Duration::from_secs(30);

fn write(words: &Words, remote: Remote) -> Operation<'static> {
    Operation::Write {
        source: Source::Region(words.local(0, 8)),
        remote,
        immediate: None,
    }
}

/// Posts it and one more behind it: the first ends with the status, the second is flushed.
fn fails(end: &End, operation: Operation<'_>, status: CompletionStatus) {
    end.post(1, operation);
    let failed = wait(&end.sent, LIMIT);
    assert_eq!((failed.id, failed.status), (1, status), "{}", failed.status);
    assert_eq!(failed.opcode, None);
    assert_eq!(failed.queue_number, end.queue.number());
    assert_eq!(end.queue.query_state().unwrap(), QueueState::Error);
    end.post(2, operation);
    let flushed = wait(&end.sent, LIMIT);
    assert_eq!((flushed.id, flushed.status), (2, CompletionStatus::Flushed));
}

#[test]
fn a_wrong_key_is_told_by_name() {
    in_guest!(a_wrong_key_is_told_by_name);
    let pair = Pair::new();
    let words = pair.words(1);
    let mut remote = words.remote(0);
    remote.key ^= 0xff00;
    fails(
        &pair.ends[0],
        write(&words, remote),
        CompletionStatus::RemoteAccess,
    );
    let text = CompletionStatus::RemoteAccess.to_string();
    assert!(text.starts_with("REM_ACCESS_ERR (10): "), "{text}");
}

#[test]
fn memory_that_is_gone_or_not_for_writing_is_not_written() {
    in_guest!(memory_that_is_gone_or_not_for_writing_is_not_written);
    let pair = Pair::new();
    let (from, to) = (pair.words(1), pair.words(1));
    let (remote, words) = (to.remote(0), to.words.clone());
    drop(to);
    from.set(0, 5);
    fails(
        &pair.ends[0],
        write(&from, remote),
        CompletionStatus::RemoteAccess,
    );
    assert_eq!(words[0].load(std::sync::atomic::Ordering::Acquire), 0);

    let pair = Pair::new();
    let from = pair.words(1);
    let to = Words::new(
        &pair.domain,
        1,
        AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
    );
    fails(
        &pair.ends[0],
        write(&from, to.remote(0)),
        CompletionStatus::RemoteAccess,
    );
    assert_eq!(to.get(0), 0);
}

#[test]
fn a_peer_that_is_gone_is_told_by_name_and_in_time() {
    in_guest!(a_peer_that_is_gone_is_told_by_name_and_in_time);
    let pair = Pair::sending(Sending {
        timeout: 12,
        retry_count: 2,
        ..SENDING
    });
    let words = pair.words(1);
    let Pair { ends, domain } = pair;
    let [end, peer] = ends;
    drop(peer);
    let started = Instant::now();
    fails(
        &end,
        write(&words, words.remote(0)),
        CompletionStatus::RetryExceeded,
    );
    // Three tries of 16.8 ms each, four times as long at most, and a slow machine.
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    drop(domain);
}

#[test]
fn a_peer_without_receives_is_told_by_name() {
    in_guest!(a_peer_without_receives_is_told_by_name);
    let pair = Pair::sending(Sending {
        receiver_not_ready_retries: 1,
        ..SENDING
    });
    let words = pair.words(1);
    let immediate = Operation::Write {
        source: Source::Nothing,
        remote: words.remote(0),
        immediate: Some(1),
    };
    fails(&pair.ends[0], immediate, CompletionStatus::ReceiverNotReady);
}

#[test]
fn a_queue_that_was_stopped_flushes() {
    in_guest!(a_queue_that_was_stopped_flushes);
    let pair = Pair::new();
    let words = pair.words(1);
    pair.ends[0].queue.fail().unwrap();
    assert_eq!(pair.ends[0].queue.query_state().unwrap(), QueueState::Error);
    pair.ends[0].post(1, write(&words, words.remote(0)));
    let flushed = wait(&pair.ends[0].sent, LIMIT);
    assert_eq!(flushed.status, CompletionStatus::Flushed);
}

#[test]
fn a_full_queue_says_how_many_were_posted() {
    in_guest!(a_full_queue_says_how_many_were_posted);
    let pair = Pair::new();
    let words = pair.words(1);
    // The peer answers nothing.
    pair.ends[1].queue.fail().unwrap();
    let capacity = pair.ends[0].queue.size().send_requests as usize;
    let request = request(1, write(&words, words.remote(0)));
    let error = pair.ends[0]
        .queue
        .post(&vec![request; 4 * capacity + 9])
        .unwrap_err();
    assert!(error.is_full(), "{error}");
    // Rings are rounded up.
    assert!((capacity..4 * capacity).contains(&error.posted), "{error}");
}

#[test]
fn a_gid_index_without_a_gid_is_refused_with_the_path() {
    in_guest!(a_gid_index_without_a_gid_is_refused_with_the_path);
    let device = open();
    let domain = ProtectionDomain::new(&device).unwrap();
    let (queue, _queues) = initialized(&domain);
    let number = queue.number();
    let mut path = path(&device, number);
    path.destination.route.as_mut().unwrap().source_index = 200;
    let error = queue.ready_to_receive(&path).unwrap_err();
    let VerbsError::Transition {
        from, to, queue, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (*from, *to),
        (QueueState::Initialized, QueueState::ReadyToReceive)
    );
    assert_eq!(*queue, number);
    let text = error.to_string();
    for part in [
        DEVICE,
        "INIT to RTR",
        "PATH_MTU",
        "GID index 200",
        "10.77.0.1",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_mtu_above_the_ports_is_refused() {
    in_guest!(an_mtu_above_the_ports_is_refused);
    let device = open();
    let active = device.port(1).unwrap().active_mtu.unwrap();
    if active == Mtu::LARGEST {
        println!("SKIP an_mtu_above_the_ports_is_refused: the port has the largest");
        return;
    }
    let domain = ProtectionDomain::new(&device).unwrap();
    let (queue, _queues) = initialized(&domain);
    let mut path = path(&device, queue.number());
    path.mtu = Mtu::LARGEST;
    let error = queue.ready_to_receive(&path).unwrap_err();
    assert!(error.to_string().contains("MTU 4096"), "{error}");
}

#[test]
fn what_is_not_there_is_named() {
    in_guest!(what_is_not_there_is_named);
    let error = Device::open("mlx5_9").unwrap_err();
    assert!(error.to_string().contains("rxe0"), "{error}");
    assert!(matches!(error, VerbsError::UnknownDevice { .. }));

    let device = open();
    for port in [0, 2] {
        let error = device.port(port).unwrap_err();
        assert!(
            matches!(error, VerbsError::UnknownPort { ports: 1, .. }),
            "{error}"
        );
    }

    let error = CompletionQueue::new(&device, 10_000_000).unwrap_err();
    let VerbsError::Call { errno, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*errno, Errno(libc::EINVAL));
    let limit = device.capabilities().max_completions.to_string();
    assert!(error.to_string().contains(&limit), "{error}");
}

#[test]
fn a_registration_that_cannot_be_is_refused() {
    in_guest!(a_registration_that_cannot_be_is_refused);
    use mscclpp_port::verbs::{DmaBuf, DmaBufRoute, MemoryRegion};
    use std::os::fd::AsFd;
    use std::ptr::NonNull;
    use std::sync::Arc;

    let domain = ProtectionDomain::new(&open()).unwrap();
    let owner = Arc::new(());
    // SAFETY: nothing is there, and nothing gets registered.
    let register = |base: usize, len| unsafe {
        let base = NonNull::new(std::ptr::without_provenance_mut(base)).unwrap();
        MemoryRegion::register(&domain, base, len, all_access(), owner.clone()).unwrap_err()
    };
    let error = register(4096, 0);
    assert!(error.to_string().contains("nothing to register"), "{error}");
    let error = register(4096, 64);
    let VerbsError::Call { errno, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*errno, Errno(libc::EFAULT));
    assert!(
        error
            .to_string()
            .contains("64 bytes (LOCAL_WRITE|REMOTE_WRITE"),
        "{error}"
    );

    let file = std::fs::File::open("/dev/null").unwrap();
    let buffer = DmaBuf {
        fd: file.as_fd(),
        offset: 0,
        len: 4096,
        address: 0,
    };
    for (route, part) in [
        (DmaBufRoute::Device, "register a DMA buffer"),
        (DmaBufRoute::DataDirect, "no data-direct function"),
    ] {
        // SAFETY: as above.
        let error = unsafe {
            MemoryRegion::register_dmabuf(&domain, buffer, route, all_access(), owner.clone())
        };
        let error = error.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
