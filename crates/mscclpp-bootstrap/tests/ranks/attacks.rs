// SPDX-License-Identifier: MIT
//! Those who want in without the key, and know more than a stranger: they have seen a proof, or
//! the id of a link.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::link::{Acceptor, LinkId, LinkKey};
use mscclpp_bootstrap::{Deadline, JobKey, TcpBootstrap};

use crate::body::{LOCALHOST, body, secs, soon};
use crate::on_both_ways;
use crate::ways::{Accept, Tcp, Way};

const HELLO: usize = 72;
const CHALLENGE: usize = 44;
const PROOF: usize = 32;
const VERDICT: usize = 36;
/// The verdict on a wrong proof.
const BAD_PROOF: u8 = 2;

on_both_ways! {
    a_recorded_proof_opens_nothing
    an_acceptors_own_words_open_nothing
    a_proof_that_breaks_off_uses_nothing_up
    who_drips_is_cut_off_and_delays_nobody
    a_flood_that_knows_the_id_delays_a_link_little
}

/// An acceptor, a link that it expects, and how to wait for that.
struct Door<W: Way> {
    _acceptor: Acceptor,
    address: W::Address,
    id: LinkId,
    key: LinkKey,
    accept: Accept<W::Stream>,
}

impl<W: Way> Door<W> {
    fn new() -> Self {
        let acceptor = Acceptor::bind(LOCALHOST).unwrap();
        let job = JobKey::random().unwrap();
        let (id, key) = (
            LinkId::random().unwrap(),
            LinkKey::derive(Some(&job), "test", b"0-1"),
        );
        Self {
            address: W::address(&acceptor),
            accept: W::expect(&acceptor, id, key.clone()),
            id,
            key,
            _acceptor: acceptor,
        }
    }

    /// A hello as any listener on the network can make it who has seen the id.
    fn hello(&self) -> Vec<u8> {
        let mut hello = b"MSCCLPPH\x01\0\0\0".to_vec();
        hello.extend([0xff; 12]);
        hello.extend(self.id.to_bytes());
        hello.extend([5; 32]);
        hello
    }

    /// The one who is expected gets in.
    fn lets_the_right_one_in(self, within: Duration) {
        let (address, id, key) = (self.address, self.id, self.key);
        let start = Instant::now();
        let caller = thread::spawn(move || W::connect(address, id, &key, soon()));
        let mut accepted = (self.accept)(soon()).unwrap();
        let mut connected = caller.join().unwrap().unwrap();
        assert!(start.elapsed() < within, "{:?}", start.elapsed());
        connected.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        accepted.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }
}

/// Says `hello` and `proof`; the acceptor's challenge, and the first byte of its verdict.
fn try_in<W: Way>(
    to: W::Address,
    hello: &[u8],
    proof: impl FnOnce(&[u8]) -> Vec<u8>,
) -> io::Result<u8> {
    let mut stream = W::dial(to)?;
    W::set_read_timeout(&stream, secs(5))?;
    stream.write_all(hello)?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge)?;
    stream.write_all(&proof(&challenge))?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict)?;
    // And nothing more is said to who did not prove itself.
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)));
    Ok(verdict[0])
}

/// Who listens between two ranks, and says later what one of them said.
fn a_recorded_proof_opens_nothing<W: Way>() {
    let door = Door::<W>::new();
    let (listener, between) = W::foreign();
    let behind = door.address;
    let listening = thread::spawn(move || {
        let (mut near, mut far) = (W::accept(&listener), W::dial(behind).unwrap());
        let mut said = vec![0; HELLO + PROOF];
        let mut answer = [0; CHALLENGE];
        near.read_exact(&mut said[..HELLO]).unwrap();
        far.write_all(&said[..HELLO]).unwrap();
        far.read_exact(&mut answer).unwrap();
        near.write_all(&answer).unwrap();
        near.read_exact(&mut said[HELLO..]).unwrap();
        // The proof itself is not passed on: it has not been used when it is said again.
        said
    });
    let (id, key) = (door.id, door.key.clone());
    let deadline = Deadline::after(Duration::from_millis(500));
    assert!(W::connect(between, id, &key, deadline).is_err());
    let said = listening.join().unwrap();
    let (hello, proof) = said.split_at(HELLO);
    for _ in 0..3 {
        let verdict = try_in::<W>(door.address, hello, |_| proof.to_vec()).unwrap();
        assert_eq!(verdict, BAD_PROOF);
    }
    door.lets_the_right_one_in(secs(2));
}

/// Who gives the acceptor back what it said, its challenge or a verdict, as a proof.
fn an_acceptors_own_words_open_nothing<W: Way>() {
    let door = Door::<W>::new();
    type Cut = fn(&[u8]) -> Vec<u8>;
    let cuts: [Cut; 3] = [
        |challenge| challenge[..PROOF].to_vec(),
        |challenge| challenge[CHALLENGE - PROOF..].to_vec(),
        |_| vec![0; PROOF],
    ];
    for cut in cuts {
        let verdict = try_in::<W>(door.address, &door.hello(), cut).unwrap();
        assert_eq!(verdict, BAD_PROOF);
    }
    // A proof for another connection of the same acceptor at the same time: each has its challenge.
    let mut one = W::dial(door.address).unwrap();
    one.write_all(&door.hello()).unwrap();
    let mut theirs = [0; CHALLENGE];
    one.read_exact(&mut theirs).unwrap();
    let mut other = [0; CHALLENGE];
    let verdict = try_in::<W>(door.address, &door.hello(), |challenge| {
        other.copy_from_slice(challenge);
        theirs[CHALLENGE - PROOF..].to_vec()
    });
    assert_eq!(verdict.unwrap(), BAD_PROOF);
    assert_ne!(theirs, other);
    drop(one);
    door.lets_the_right_one_in(secs(2));
}

/// A proof of which a part comes, and then nothing, or the end.
fn a_proof_that_breaks_off_uses_nothing_up<W: Way>() {
    let door = Door::<W>::new();
    let mut held = Vec::new();
    for length in [0, 1, HELLO - 1, HELLO, HELLO + 1, HELLO + PROOF - 1] {
        let mut stream = W::dial(door.address).unwrap();
        let said = [door.hello(), vec![7; PROOF]].concat();
        stream.write_all(&said[..length]).unwrap();
        // Every other one stays open.
        if length % 2 == 0 {
            held.push(stream);
        }
    }
    door.lets_the_right_one_in(secs(2));
}

/// Many that say a byte at a time: none stays longer than its 5 s, and meanwhile ranks connect.
fn who_drips_is_cut_off_and_delays_nobody<W: Way>() {
    const DRIPPING: usize = 300;
    let door = Door::<W>::new();
    let mut streams: Vec<_> = (0..DRIPPING)
        .map(|_| W::dial(door.address).unwrap())
        .collect();
    let hello = door.hello();
    let start = Instant::now();
    let (address, id) = (door.address, door.id);
    let mut drip = {
        let mut said = 0;
        move |streams: &mut Vec<W::Stream>| {
            streams.retain_mut(|stream| stream.write_all(&hello[said..=said]).is_ok());
            said += 1;
        }
    };
    drip(&mut streams);
    let key = door.key.clone();
    let accept = door.accept;
    let caller = thread::spawn(move || {
        let start = Instant::now();
        W::connect(address, id, &key, soon()).map(|_| start.elapsed())
    });
    accept(soon()).unwrap();
    let took = caller.join().unwrap().unwrap();
    assert!(took < secs(2), "{took:?}");
    // Each is closed though it goes on dripping.
    while !streams.is_empty() {
        assert!(start.elapsed() < secs(15), "{} are left", streams.len());
        thread::sleep(Duration::from_millis(250));
        drip(&mut streams);
    }
}

/// Who has seen the id of a link in somebody's hello takes places that are kept for those.
fn a_flood_that_knows_the_id_delays_a_link_little<W: Way>() {
    let door = Door::<W>::new();
    let (address, hello) = (door.address, door.hello());
    // From the same address: its places are the flood's, and it takes some tries to be quick enough.
    flooded::<W>(address, hello, 300, || door.lets_the_right_one_in(secs(10)));
}

/// Runs `honest` while connections that say `hello` keep coming, of which the last `held` stay.
fn flooded<W: Way>(to: W::Address, hello: Vec<u8>, held: usize, honest: impl FnOnce()) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let flood = thread::spawn(move || {
        let mut streams = std::collections::VecDeque::new();
        let mut count = 0;
        while !stopped.load(Ordering::Relaxed) {
            let Ok(mut stream) = W::dial(to) else {
                // Where ranks have met, nobody listens any more.
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            // It may have been turned out already.
            let _ = stream.write_all(&hello);
            streams.push_back(stream);
            if streams.len() > held {
                streams.pop_front();
            }
            count += 1;
        }
        count
    });
    thread::sleep(Duration::from_millis(300));
    honest();
    stop.store(true, Ordering::Relaxed);
    let count = flood.join().unwrap();
    println!("{count} connections came");
    assert!(count > held, "{count}");
}

/// A real job, through a flood of half-open proofs that name what rank 0 knows.
#[test]
fn a_job_joins_through_a_flood_that_knows_the_meetings_id() {
    let world = 4;
    let zero = TcpBootstrap::new(0, world).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let (listener, between) = Tcp::foreign();
    // The id of the meeting, as somebody on the network sees it: in a rank's first words.
    let mut bytes = id.to_bytes();
    bytes[12..14].copy_from_slice(&between.port().to_le_bytes());
    let (heard, hello) = mpsc::channel();
    thread::spawn(move || {
        let mut hello = vec![0; HELLO];
        Tcp::accept(&listener).read_exact(&mut hello).unwrap();
        heard.send(hello).unwrap();
    });
    let lured = TcpBootstrap::new(1, world).unwrap();
    let wrong = mscclpp_bootstrap::UniqueId::from_bytes(&redone(bytes)).unwrap();
    let lured = thread::spawn(move || lured.initialize(&wrong, secs(5)).unwrap_err());
    let hello = hello.recv_timeout(secs(20)).unwrap();
    lured.join().unwrap();

    flooded::<Tcp>(id.address(), hello, 300, move || {
        let start = Instant::now();
        let ranks: Vec<_> = (0..world)
            .zip(std::iter::once(Some(zero)).chain(std::iter::repeat_with(|| None)))
            .map(|(rank, zero)| {
                let id = id.clone();
                thread::spawn(move || {
                    let rank = zero.unwrap_or_else(|| TcpBootstrap::new(rank, world).unwrap());
                    rank.initialize(&id, secs(30)).unwrap();
                    body(&rank);
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        println!("joined in {:?}", start.elapsed());
    });
}

/// The bytes of an id with the digest that belongs to them: it is against damage, not a proof.
fn redone(mut bytes: [u8; 128]) -> [u8; 128] {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(&bytes[..120]);
    bytes[120..].copy_from_slice(&digest[..8]);
    bytes
}
