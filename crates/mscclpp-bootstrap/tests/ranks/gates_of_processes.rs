// SPDX-License-Identifier: MIT
//! Gates whose ranks are processes, one of which is killed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Deadline, FailureObserver, Gate};

use crate::body::secs;
use crate::processes::{Told, cpu_time, world};

/// What each process does: phases for as long as all goes well, and then waits to
/// be told of a death.
pub(crate) fn rank(b: &dyn Bootstrap, phases: usize, seconds: u64) {
    let told = Arc::new(Told::default());
    let weak: Weak<Told> = Arc::downgrade(&told);
    b.observe_failures(weak as Weak<dyn FailureObserver>);
    let mut gate = Gate::new(b, 0, Deadline::after(secs(seconds))).unwrap();
    for phase in 0..phases {
        if let Err(error) = gate.pass(&format!("phase {phase}"), Ok(())) {
            return println!("\nended {phase} {error}");
        }
        if phase == 1 {
            println!("\nready");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    gate.finish();
    println!("\nended {phases} ok");
    println!("\ntold {}", told.wait()[0]);
}

/// Rank 3 comes five seconds late.
pub(crate) fn waits(b: &dyn Bootstrap) {
    let mut gate = Gate::new(b, 0, Deadline::after(secs(30))).unwrap();
    gate.pass("first", Ok(())).unwrap();
    if b.rank() == 3 {
        std::thread::sleep(secs(5));
    }
    let before = cpu_time();
    gate.pass("second", Ok(())).unwrap();
    println!("\ncpu {}", (cpu_time() - before).as_millis());
    gate.finish();
    b.barrier().unwrap();
}

#[test]
fn a_rank_that_waits_at_a_gate_uses_next_to_no_processor_time() {
    let (mut ranks, _directory) = world("slow gate", 4);
    for rank in &mut ranks {
        let used: u64 = rank.says("cpu ").parse().unwrap();
        println!("waited 5 s at a gate, used {used} ms");
        // A tenth of a core would be 500.
        assert!(used < 200, "{used} ms");
    }
    ranks.iter_mut().for_each(|rank| drop(rank.says("done")));
}

#[test]
fn a_killed_process_is_named_by_all_at_most_one_phase_apart() {
    for (size, victim) in [(4, 1), (4, 0), (8, 4), (8, 6)] {
        let (mut ranks, _directory) = world("gates", size);
        for rank in &mut ranks {
            rank.says("ready");
        }
        // In the midst of some phase.
        std::thread::sleep(Duration::from_millis(50));
        let killed = Instant::now();
        ranks[victim].child.kill().unwrap();
        let mut reached = Vec::new();
        for (r, rank) in ranks.iter_mut().enumerate() {
            if r == victim {
                continue;
            }
            let ended = rank.says("ended ");
            let (phase, error) = ended.split_once(' ').unwrap();
            reached.push(phase.parse::<usize>().unwrap());
            assert!(
                error.contains(&format!("rank {victim} has died")),
                "rank {r}: {error}"
            );
        }
        assert!(killed.elapsed() < secs(2), "{:?}", killed.elapsed());
        let (least, most) = (reached.iter().min().unwrap(), reached.iter().max().unwrap());
        assert!(most - least <= 1, "{reached:?}");
        println!("{victim} of {size} killed: the others ended in phases {reached:?}");
    }
}

#[test]
fn a_process_that_is_stopped_is_named_by_all_and_hears_the_same_when_it_goes_on() {
    use rustix::process::{Pid, Signal, kill_process};
    // Before the silence counts as a death, and because it does.
    let cases = [
        ("brief gates", 4, 2, 9, "did not answer", "did not answer"),
        ("brief gates", 8, 0, 9, "did not answer", "did not answer"),
        ("gates", 4, 2, 7, "has died", "this one, for dead"),
        ("gates", 8, 0, 7, "has died", "this one, for dead"),
    ];
    for (task, size, victim, limit, seen, heard) in cases {
        let (mut ranks, _directory) = world(task, size);
        for rank in &mut ranks {
            rank.says("ready");
        }
        let pid = Pid::from_child(&ranks[victim].child);
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = Instant::now();
        let named = format!("rank {victim} {seen}");
        for r in (0..size).filter(|r| *r != victim) {
            let ended = ranks[r].says("ended ");
            assert!(ended.contains(&named), "rank {r}: {ended}");
        }
        assert!(stopped.elapsed() < secs(limit), "{:?}", stopped.elapsed());
        kill_process(pid, Signal::CONT).unwrap();
        let ended = ranks[victim].says("ended ");
        assert!(ended.contains(heard), "the stopped one: {ended}");
    }
}

#[test]
fn a_process_killed_after_the_last_gate_is_told_to_observers_only() {
    let (mut ranks, _directory) = world("two gates", 4);
    for rank in &mut ranks {
        assert_eq!(rank.says("ended "), "2 ok");
    }
    ranks[2].child.kill().unwrap();
    for r in [0, 1, 3] {
        let told = ranks[r].says("told ");
        assert!(told.starts_with("rank 2 died"), "rank {r}: {told}");
    }
}
