// SPDX-License-Identifier: MIT
//! Ranks are processes, and one is killed in the midst of a setup, in each phase: all others hear of
//! it in time, name it, are at most one phase apart, and keep nothing.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};

use super::faulty::{Act, Call, Fault, faulty_service};
use super::mail::Mail;
use super::points::{COUNTS, QUEUES, Rig};
use super::world::{PATIENCE, is_empty, nics};
use crate::error::Error;

const RANKS: usize = 4;
/// How long a setup may take.
const TIME: Duration = Duration::from_secs(20);
/// How long rank 0 is still in a step after which another rank dies.
const LATER: Duration = Duration::from_millis(400);
/// What a process that is a rank is told: the number of the case, and who dies.
const CASE: &str = "MSCCLPP_TEST_DEATH";
/// Jobs at the same time.
const JOBS: usize = 3;

/// The phases, in order.
const PHASES: [&str; 11] = [
    "plan",
    "capability",
    "port",
    "allocate",
    "exchange",
    "wire",
    "INIT",
    "RTR",
    "RTS",
    "self-test",
    "publish",
];

/// When a rank dies.
struct Moment {
    name: String,
    /// The first and the last phase in which others may hear of it.
    heard: (usize, usize),
    /// It is enough that their connections fail, when the setup has succeeded.
    may_succeed: bool,
    /// Of the one that dies.
    rig: Rig,
    /// Of rank 0, where that is another one.
    slow: Rig,
    victims: &'static [usize],
}

fn at(call: Call, skip: u32, act: Act) -> Rig {
    let skip = skip as usize;
    Rig {
        fault: Some(Fault { call, skip, act }),
        ..Rig::default()
    }
}

fn mail(mail: Mail) -> Rig {
    Rig {
        mail: Some(mail),
        ..Rig::default()
    }
}

fn moments() -> Vec<Moment> {
    let mut moments = Vec::new();
    // In a step. It has passed the gate before, of which the others may not have heard yet.
    let steps = [
        ("capability, opening", at(Call::Open, 0, Act::Die)),
        ("capability", at(Call::Capabilities, 0, Act::Die)),
        ("port", at(Call::Port, 0, Act::Die)),
        ("allocate", at(Call::CreateQueue, 1, Act::Die)),
        ("allocate, at the end", at(Call::Handle, 2, Act::Die)),
        ("exchange, sending", mail(Mail::DeadlyToSend)),
        ("exchange, receiving", mail(Mail::DeadlyToReceive)),
        ("wire", at(Call::Wire, 0, Act::Die)),
        ("wire, the last", at(Call::Wire, 1, Act::Die)),
        ("INIT", at(Call::Init, 0, Act::Die)),
        ("RTR", at(Call::Receive, 1, Act::Die)),
        ("RTS", at(Call::Send, 2, Act::Die)),
        ("self-test", at(Call::Handle, QUEUES + 1, Act::Die)),
        ("publish", at(Call::Fault, 1, Act::Die)),
    ];
    for (number, (name, rig)) in steps.into_iter().enumerate() {
        let phase = name.split(',').next();
        let at = PHASES.iter().position(|known| Some(*known) == phase);
        let at = at.expect("a phase");
        moments.push(Moment {
            name: format!("in the step of {name}"),
            heard: (at.saturating_sub(1), at),
            may_succeed: false,
            rig,
            slow: Rig::default(),
            victims: [&[0, 3], &[1, 2]][number % 2],
        });
    }
    // After a step, when it has told its neighbour: it has one, and sends it a message a gate. Rank 0
    // may still need it in its own step.
    let gates = PHASES[..5].iter().chain(&PHASES[4..]);
    for (number, phase) in gates.enumerate() {
        let at_phase = PHASES.iter().position(|known| known == phase);
        let at_phase = at_phase.expect("a phase");
        let slow = match *phase {
            "self-test" => at(Call::Handle, QUEUES, Act::Delay(LATER)),
            _ => Rig::default(),
        };
        moments.push(Moment {
            name: format!("after gate {number}, of {phase}"),
            heard: (at_phase, (at_phase + 1).min(PHASES.len() - 1)),
            may_succeed: at_phase + 1 == PHASES.len(),
            rig: mail(Mail::DeadlyAfterGateMessages(number + 1)),
            slow,
            victims: &[1, 3],
        });
    }
    moments
}

/// A rank. Killed when dropped, so that none is left behind.
struct Rank(Child);

impl Rank {
    fn start(case: usize, victim: usize, rank: usize, directory: &Path) -> Self {
        let root = format!("file:{}", directory.join("root").display());
        let name = "gpu_net_io_service::tests::deaths::child";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--ignored", "--nocapture"])
            .env(CASE, format!("{case}:{victim}"))
            .env("MSCCLPP_RANK", rank.to_string())
            .env("MSCCLPP_WORLD_SIZE", RANKS.to_string())
            .env("MSCCLPP_LOCAL_RANK", rank.to_string())
            .env("MSCCLPP_LOCAL_SIZE", RANKS.to_string())
            .env("MSCCLPP_ROOT", root)
            .env("MSCCLPP_SECRET", "a secret of this very test")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// What it says of its end.
    fn ends(&mut self) -> Option<String> {
        let lines = BufReader::new(self.0.stdout.take()?).lines();
        let last = lines.map_while(Result::ok);
        let mut said = last.filter_map(|line| Some(line.split_once("ended: ")?.1.to_owned()));
        said.next()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a rank does: a setup, after which it says how that ended.
#[test]
#[ignore = "a rank of the other tests, which start it"]
fn child() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let (number, victim) = case.split_once(':').unwrap();
    let (number, victim): (usize, usize) = (number.parse().unwrap(), victim.parse().unwrap());
    let bootstrap = TcpBootstrap::from_launcher(PATIENCE).unwrap();
    let rank = bootstrap.rank();
    let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
    let moment = moments().swap_remove(number);
    let nic = nics(1).swap_remove(0);
    let rig = match rank {
        _ if rank == victim => moment.rig,
        0 => moment.slow,
        _ => Rig::default(),
    };
    let service = faulty_service(&bootstrap, &nic, &rig);
    let begun = Instant::now();
    let result = service.setup_by(&COUNTS[rank], 7, Deadline::after(TIME));
    let took = begun.elapsed();
    let end = match result {
        Ok(()) => after_success(&service, rank, victim),
        Err(Error::Setup(error)) if error.lost_rank() == Some(victim) => {
            let known = PHASES.iter().position(|phase| *phase == error.phase);
            known.map_or(format!("in an unknown phase: {error}"), |phase| {
                format!("in phase {phase}")
            })
        }
        Err(error) => format!("another error: {error}"),
    };
    let end = match () {
        () if took > TIME + Duration::from_millis(500) => format!("after {took:?}: {end}"),
        () if end != "well" && !is_empty(&nic) => {
            format!("with {:?} left: {end}", nic.counters().live)
        }
        () => end,
    };
    println!("\nended: {end}");
}

/// The connections to the dead rank have failed, or do so, and the others have not.
fn after_success(
    service: &crate::gpu_net_io_service::GpuNetIoService,
    rank: usize,
    victim: usize,
) -> String {
    let until = Instant::now() + PATIENCE;
    for (peer, count) in COUNTS[rank].iter().enumerate() {
        for index in 0..*count as u32 {
            let connection = service.connect(peer, index).unwrap();
            while peer == victim && connection.status().is_none() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            match connection.status() {
                Some(Error::PeerDown { rank, .. }) if rank == Some(victim) => {}
                None if peer != victim => {}
                other => return format!("queue {index} to rank {peer}: {other:?}"),
            }
        }
    }
    // The others look at their connections to this one meanwhile.
    let others: Vec<usize> = (0..RANKS).filter(|rank| *rank != victim).collect();
    match service.bootstrap().group_barrier(&others) {
        Ok(()) => "well".into(),
        Err(error) => format!("others went: {error}"),
    }
}

/// What is wrong with a case.
fn try_case(number: usize, moment: &Moment, victim: usize) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let mut ranks: Vec<_> = (0..RANKS)
        .map(|rank| Rank::start(number, victim, rank, directory.path()))
        .collect();
    let ends: Vec<_> = ranks.iter_mut().map(Rank::ends).collect();
    let mut reached = Vec::new();
    for (rank, end) in ends.iter().enumerate() {
        let phase = end.as_deref().and_then(|end| match end {
            "well" if moment.may_succeed => Some(PHASES.len()),
            end => end.strip_prefix("in phase ")?.parse().ok(),
        });
        match phase {
            None if rank == victim && end.is_none() => {}
            Some(phase) if rank != victim => reached.push(phase),
            _ => return Err(format!("rank {rank}: {ends:?}")),
        }
    }
    let (least, most) = (reached.iter().min(), reached.iter().max());
    let (Some(least), Some(most)) = (least, most) else {
        return Err("nobody is left".into());
    };
    let last = moment.heard.1 + usize::from(moment.may_succeed);
    match most - least <= 1 && moment.heard.0 <= *least && *most <= last {
        true => Ok(()),
        false => Err(format!("phases {reached:?}, not {:?}", moment.heard)),
    }
}

#[test]
fn gpunetio_a_process_killed_in_any_phase_is_named_by_all_others() {
    let moments = moments();
    let cases: Vec<_> = (moments.iter().enumerate())
        .flat_map(|(number, moment)| moment.victims.iter().map(move |v| (number, moment, *v)))
        .collect();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while let Some((number, moment, victim)) =
                    cases.get(next.fetch_add(1, Ordering::SeqCst))
                {
                    if let Err(what) = try_case(*number, moment, *victim) {
                        let line = format!("rank {victim} dies {}: {what}", moment.name);
                        wrong.lock().unwrap().push(line);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} cases: {wrong:#?}", wrong.len());
    println!(
        "{} killed processes, {} moments",
        cases.len(),
        moments.len()
    );
}
