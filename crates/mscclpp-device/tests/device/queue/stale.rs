// SPDX-License-Identifier: MIT
//! Payload and the signal that announces it, in every mode of the NIC: what
//! arrives is never older than what was stored before the post.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use mscclpp_device::abi::{PortChannelDeviceHandle, QueueForm, SignalMode};
use mscclpp_device::executor::{LaunchDims, Model};
use mscclpp_softnic::{Acknowledge, Checks, HostBuffer, Landing, TriggerMode};

use super::limits::Stream;
use crate::support::script::{PUT_SIGNAL, PUT_SIGNAL_FLUSH};
use crate::support::{Cells, DEADLINE, Kernels, Outcome, Rig, Setup, ensure, equal, seeds, within};

const TRIGGERS: [TriggerMode; 4] = [
    TriggerMode::Doorbell,
    TriggerMode::Record,
    TriggerMode::Either,
    TriggerMode::PollRecord,
];

/// Every trigger mode, kind and hostile.
fn modes(seed: u64) -> Vec<Setup> {
    let mut all = Vec::new();
    for (i, trigger) in TRIGGERS.into_iter().enumerate() {
        for hostile in [false, true] {
            let inline = Setup {
                signal_mode: SignalMode::InlineWrite,
                ..Setup::exclusive()
            };
            for setup in [Setup::default(), Setup::exclusive(), inline] {
                let mut setup = setup.seed(seed + i as u64);
                setup.nic.trigger = trigger;
                if hostile {
                    setup.nic.landing = Landing::Scattered {
                        linger: Duration::from_micros(200),
                    };
                    setup.nic.acknowledge = Acknowledge::Accepted;
                    setup.nic.checks = Checks {
                        fetch_twice: true,
                        clear_slots: true,
                        ..setup.nic.checks
                    };
                }
                all.push(setup);
            }
        }
    }
    all
}

/// What a poster's pieces must hold at the target: each word untouched, or as it was stored.
struct Pieces {
    target: HostBuffer,
    token: HostBuffer,
    words: u64,
    count: u64,
    /// One poster: signal n announces piece n.
    in_order: bool,
}

const UNTOUCHED: u64 = u64::MAX;

impl Pieces {
    fn new(rig: &Rig, stream: &Stream, posters: u64) -> Self {
        let target = rig.ends[1].target.clone();
        target.write(0, &vec![0xff; target.len()]);
        Self {
            target,
            token: rig.ends[1].token.clone(),
            words: stream.bytes / 8,
            count: stream.slots * posters,
            in_order: posters == 1,
        }
    }

    /// May be called at any time.
    fn look(&self, slots: u64) -> Outcome {
        let signals = self.token.read_u64(0);
        for piece in 0..self.count {
            let expected = Stream::payload(piece, piece % slots);
            for word in 0..self.words {
                let seen = self
                    .target
                    .read_u64((piece * self.words + word) as usize * 8);
                let announced = self.in_order && piece < signals;
                ensure(
                    seen == expected || (seen == UNTOUCHED && !announced),
                    || {
                        format!(
                            "{signals} signals, piece {piece}, word {word}: {seen:#x}, not {expected:#x}"
                        )
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// Streams pieces, each stored and put once, and looks at the target after each doorbell.
fn weak_stream(
    kernels: &Kernels,
    setup: Setup,
    stream: Stream,
    threads: u32,
    seed: u64,
) -> Outcome {
    let posters = u64::from(stream.blocks)
        * if stream.together {
            1
        } else {
            u64::from(threads)
        };
    let what = format!(
        "{:?} {:?} {stream:?} seed {seed}",
        setup.form, setup.nic.trigger
    );
    let rig = Rig::new(setup.modelled());
    let pieces = Arc::new(Pieces::new(&rig, &stream, posters));
    let fault = Arc::new(Mutex::new(Ok(())));
    let (looking, found, slots) = (pieces.clone(), fault.clone(), stream.slots);
    let gpu = rig.weak(seed, move || {
        let mut found = found.lock().unwrap();
        if found.is_ok() {
            *found = looking.look(slots);
        }
    });
    let ran = stream.run(&rig, kernels, threads, Some(Model::from(gpu)));
    let seen = fault.lock().unwrap().clone();
    // The first fault, not what it led to.
    let all = seen
        .and(ran)
        .and_then(|()| settled(&rig, &pieces, stream.slots * posters))
        .and_then(|()| pieces.look(slots))
        .and_then(|()| rig.no_violations());
    all.map_err(|fault| format!("{what}: {fault}"))
}

/// All signals are there within a while: with Acknowledge::Accepted a flush does not say so.
fn settled(rig: &Rig, pieces: &Pieces, signals: u64) -> Outcome {
    for _ in 0..2000 {
        if pieces.token.read_u64(0) == signals {
            break;
        }
        rig.devices[0].run();
        std::thread::sleep(Duration::from_millis(1));
    }
    equal("signals", pieces.token.read_u64(0), signals)
}

fn pieces(kind: u32) -> Stream {
    Stream {
        bytes: 64,
        store: true,
        slots: 24,
        limit: within(5),
        ..Stream::new(kind, 24)
    }
}

/// One poster on weak memory, with its own payload and with its block's.
pub(crate) fn weak_poster(kernels: &Kernels) -> Outcome {
    for seed in seeds(4) {
        for setup in modes(seed) {
            weak_stream(kernels, setup.clone(), pieces(PUT_SIGNAL), 1, seed)?;
            let together = Stream {
                together: true,
                flush_every: 5,
                ..pieces(PUT_SIGNAL)
            };
            weak_stream(kernels, setup, together, 3, seed)?;
        }
    }
    Ok(())
}

#[test]
fn on_weak_memory_no_mode_shows_stale_payload_of_one_poster() {
    weak_poster(&Kernels::of("queue")).unwrap();
}

/// Several posters on one queue, on weak memory; some posts are of many requests.
pub(crate) fn weak_posters(kernels: &Kernels) -> Outcome {
    for seed in seeds(4) {
        for setup in modes(seed) {
            if setup.form == QueueForm::Exclusive {
                continue;
            }
            weak_stream(kernels, setup.clone(), pieces(PUT_SIGNAL), 4, seed)?;
            let blocks = Stream {
                blocks: 3,
                together: true,
                slots: 12,
                rounds: 12,
                ..pieces(PUT_SIGNAL_FLUSH)
            };
            weak_stream(kernels, setup.clone(), blocks, 2, seed)?;
            let split = Setup {
                max_message: 8,
                ..setup
            };
            weak_stream(kernels, split, pieces(PUT_SIGNAL), 3, seed)?;
        }
    }
    Ok(())
}

#[test]
fn on_weak_memory_no_mode_shows_stale_payload_of_several_posters() {
    weak_posters(&Kernels::of("queue")).unwrap();
}

/// Twin of the kernel's arguments.
#[derive(Clone, Copy)]
#[repr(C)]
struct Receive {
    channel: PortChannelDeviceHandle,
    rounds: u64,
    bytes: u64,
    target: u64,
    wrong: u64,
    status: u64,
}

/// On memory itself: a kernel of the peer waits for each signal and compares what it announces.
pub(crate) fn received(kernels: &Kernels) -> Outcome {
    for linked in [false, true] {
        for setup in modes(7) {
            let what = format!("linked {linked}, {setup:?}");
            let rig = Rig::new(Setup { linked, ..setup });
            let stream = Stream {
                bytes: 256,
                slots: 200,
                limit: within(20),
                ..Stream {
                    rounds: 200,
                    ..pieces(PUT_SIGNAL)
                }
            };
            let (wrong, status) = (Cells::new(1), Cells::new(1));
            let args = Receive {
                channel: rig.channel(1),
                rounds: stream.rounds,
                bytes: stream.bytes,
                target: rig.ends[1].target.address(),
                wrong: wrong.address(),
                status: status.address(),
            };
            let one = LaunchDims { grid: 1, block: 1 };
            let receiver = kernels
                .direct("queue_receive")
                .launch(one, args)
                .map_err(|error| error.to_string())?;
            let sent = stream.run(&rig, kernels, 1, None);
            if sent.is_err() {
                rig.abort();
            }
            let received = receiver.join(DEADLINE);
            if received.is_err() {
                rig.keep_memory();
            }
            received
                .map_err(|error| error.to_string())
                .and(sent)
                .and_then(|()| equal("status", status.get(0), 0))
                .and_then(|()| equal("stale words", wrong.get(0), 0))
                .and_then(|()| rig.no_violations())
                .map_err(|fault| format!("{what}: {fault}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_kernel_of_the_peer_finds_behind_each_signal_what_it_announces() {
    received(&Kernels::of("queue")).unwrap();
}
