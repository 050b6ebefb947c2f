// SPDX-License-Identifier: MIT
//! Ranks as processes: this test binary starts itself again as each rank.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{
    Bootstrap, Deadline, FailureObserver, PeerFailure, ReduceOp, Tag, TcpBootstrap,
};

use crate::body::{body, run_joined, secs};

/// One rank as a process. Killed when dropped, so that none is left behind.
pub(crate) struct Rank {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Rank {
    pub(crate) fn start(task: &str, rank: usize, world: usize, directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if task == "brief gates" {
            // What does not answer in its time is not to be silent for too long before.
            command.env("MSCCLPP_SILENCE_TIMEOUT", "20");
        }
        let mut child = command
            .args(["processes::child", "--exact", "--ignored", "--nocapture"])
            .env("MSCCLPP_TEST_TASK", task)
            .env("MSCCLPP_RANK", rank.to_string())
            .env("MSCCLPP_WORLD_SIZE", world.to_string())
            .env("MSCCLPP_LOCAL_RANK", rank.to_string())
            .env("MSCCLPP_LOCAL_SIZE", world.to_string())
            .env(
                "MSCCLPP_ROOT",
                format!("file:{}", directory.join("root").display()),
            )
            .env("MSCCLPP_SECRET_FILE", directory.join("secret"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// What follows `word` on the next line that begins with it. The line may
    /// come after something the test harness printed.
    pub(crate) fn says(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "the rank ended before it said {word}");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

/// Waits until ranks other than 0 have checked in: each opens its listener when it has proven itself
/// to rank 0, and checks in next.
fn check_in(ranks: &[Rank]) {
    let deadline = Deadline::after(secs(20));
    for rank in ranks {
        while !listens(rank.child.id()) {
            assert!(!deadline.expired(), "a rank does not listen after 20 s");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // Long enough for the words that follow, and between two signs of life: these are 1 s to 1.25 s
    // apart.
    std::thread::sleep(Duration::from_millis(1750));
}

/// Whether a process has a socket that listens.
fn listens(process: u32) -> bool {
    const LISTEN: &str = "0A";
    let tables = ["tcp", "tcp6"].map(|kind| std::fs::read_to_string(format!("/proc/net/{kind}")));
    let listening: Vec<String> = (tables.iter().flatten())
        .flat_map(|table| table.lines().skip(1))
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        // The fourth field is the state, and the tenth the number of the socket.
        .filter(|fields| fields[3] == LISTEN)
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    // One that is closed meanwhile is none.
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .any(|target| {
            listening
                .iter()
                .any(|socket| *socket == target.to_string_lossy())
        })
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn world(task: &str, world: usize) -> (Vec<Rank>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "a secret of this very test").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let ranks = (0..world)
        .map(|rank| Rank::start(task, rank, world, directory.path()))
        .collect();
    (ranks, directory)
}

/// Waits for observers to be told.
#[derive(Default)]
pub(crate) struct Told {
    failures: Mutex<Vec<PeerFailure>>,
    changed: Condvar,
}

impl FailureObserver for Told {
    fn peer_failed(&self, failure: &PeerFailure) {
        self.failures.lock().unwrap().push(failure.clone());
        self.changed.notify_all();
    }
}

impl Told {
    pub(crate) fn wait(&self) -> Vec<PeerFailure> {
        self.wait_for(1, secs(20))
    }

    /// All failures, once there are so many or the time is up.
    pub(crate) fn wait_for(&self, count: usize, time: Duration) -> Vec<PeerFailure> {
        let failures = self.failures.lock().unwrap();
        let (failures, _) = self
            .changed
            .wait_timeout_while(failures, time, |f| f.len() < count)
            .unwrap();
        failures.clone()
    }

    pub(crate) fn now(&self) -> Vec<PeerFailure> {
        self.failures.lock().unwrap().clone()
    }
}

/// What a rank does. Run by the tests below only.
#[test]
#[ignore = "a rank of the other tests, which start it"]
fn child() {
    let Ok(task) = std::env::var("MSCCLPP_TEST_TASK") else {
        return;
    };
    let start = Instant::now();
    let b = match TcpBootstrap::from_launcher(secs(30)) {
        Ok(b) => b,
        Err(error) => return println!("\nfailed {error}"),
    };
    println!("\njoined {}", start.elapsed().as_millis());
    match task.as_str() {
        "body" => body(&b),
        "barrier" => b.barrier().unwrap(),
        "blocked" => {
            b.barrier().unwrap();
            println!("\nblocked");
            let before = cpu_time();
            let error = b
                .recv(1 - b.rank(), Tag::user(0), Deadline::after(secs(5)))
                .unwrap_err();
            assert!(error.is_timeout());
            println!("\ncpu {}", (cpu_time() - before).as_millis());
            b.barrier().unwrap();
        }
        "victim" => {
            let told = Arc::new(Told::default());
            b.observe_failures(Arc::downgrade(&told) as _);
            b.barrier().unwrap();
            println!("\nready");
            // Rank 1 will be killed. Some wait for it, some for others, one for
            // nobody.
            let waited = match b.rank() {
                0 => b.recv(1, Tag::user(0), Deadline::after(secs(20))).map(drop),
                2 => {
                    told.wait();
                    b.send(1, Tag::user(0), &[], Deadline::after(secs(20)))
                }
                3 => b.all_reduce(1, ReduceOp::Sum).map(drop),
                _ => b.recv(1, Tag::user(5), Deadline::after(secs(20))).map(drop),
            };
            println!("\nerror {}", waited.unwrap_err());
            let told = told.wait();
            println!("\ntold {} {}", told.len(), told[0]);
            assert_eq!(b.known_failure().unwrap().rank, 1);
        }
        "two victims" => {
            b.barrier().unwrap();
            println!("\nready");
            let waits_for = if b.rank() == 3 { 0 } else { 2 };
            let deadline = Deadline::after(secs(20));
            let waited = match b.rank() {
                0 | 2 => b.recv(1, Tag::user(0), deadline),
                _ => b.recv(waits_for, Tag::user(0), deadline),
            };
            println!("\nerror {}", waited.unwrap_err());
        }
        "descriptors" => {
            let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let before = open();
            for _ in 0..10 {
                run_joined(4, |b| body(&b));
            }
            assert_eq!(open(), before, "descriptors were left behind");
        }
        "silence" => crate::liveness::rank(&b),
        "slow gate" => crate::gates_of_processes::waits(&b),
        "gates" => crate::gates_of_processes::rank(&b, usize::MAX, 30),
        "brief gates" => crate::gates_of_processes::rank(&b, usize::MAX, 8),
        "two gates" => crate::gates_of_processes::rank(&b, 2, 30),
        other => panic!("no task {other}"),
    }
    drop(b);
    println!("\ndone");
}

pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name in parentheses: the 12th and 13th fields are ticks of 10 ms.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}

#[test]
fn processes_meet_through_a_file() {
    let (mut ranks, directory) = world("body", 4);
    for rank in &mut ranks {
        rank.says("done");
        assert!(rank.child.wait().unwrap().success());
    }
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the secret stays: {left:?}");
}

#[test]
fn a_killed_process_is_named_to_all_within_two_seconds() {
    let (mut ranks, _directory) = world("victim", 5);
    for rank in &mut ranks {
        rank.says("ready");
    }
    // They are about to wait, or waiting.
    std::thread::sleep(Duration::from_millis(200));
    let killed = Instant::now();
    ranks[1].child.kill().unwrap();
    for r in [0, 2, 3, 4] {
        let error = ranks[r].says("error ");
        assert!(error.contains("rank 1 has died"), "rank {r}: {error}");
        let told = ranks[r].says("told ");
        assert!(told.starts_with("1 rank 1 died"), "rank {r}: {told}");
    }
    let took = killed.elapsed();
    println!("all ranks knew of the death after {took:?}");
    assert!(took < secs(2), "{took:?}");
    for r in [0, 2, 3, 4] {
        ranks[r].says("done");
        assert!(ranks[r].child.wait().unwrap().success());
    }
}

#[test]
fn sixty_four_processes_join_within_five_seconds() {
    let start = Instant::now();
    let (mut ranks, _directory) = world("barrier", 64);
    let longest = ranks
        .iter_mut()
        .map(|rank| rank.says("joined ").parse::<u64>().unwrap())
        .max()
        .unwrap();
    let took = start.elapsed();
    println!("64 processes: started and joined in {took:?}; the longest join took {longest} ms");
    for rank in &mut ranks {
        rank.says("done");
    }
    assert!(longest < 5000, "{longest} ms");
}

#[test]
fn a_blocked_rank_uses_next_to_no_processor_time() {
    let (mut ranks, _directory) = world("blocked", 2);
    for rank in &mut ranks {
        let used: u64 = rank.says("cpu ").parse().unwrap();
        println!("blocked for 5 s, used {used} ms");
        // A tenth of a core would be 500.
        assert!(used < 100, "{used} ms");
    }
    ranks.iter_mut().for_each(|rank| drop(rank.says("done")));
}

#[test]
fn nothing_is_left_open_after_a_job() {
    let (mut ranks, _directory) = world("descriptors", 1);
    ranks[0].says("done");
    assert!(ranks[0].child.wait().unwrap().success());
}

/// Ranks 0 to 2 of a world of 4 that have checked in; rank 3 never comes.
pub(crate) fn joining(part: &str) -> (Vec<Rank>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("secret"),
        "a secret of this very test",
    )
    .unwrap();
    let ranks: Vec<Rank> = (0..3)
        .map(|rank| Rank::start(part, rank, 4, directory.path()))
        .collect();
    check_in(&ranks[1..]);
    (ranks, directory)
}

#[test]
fn a_process_that_is_killed_while_joining_is_named_to_all() {
    let (mut ranks, _directory) = joining("body");
    let killed = Instant::now();
    ranks[2].child.kill().unwrap();
    for rank in &mut ranks[..2] {
        let error = rank.says("failed ");
        assert!(error.contains("rank 2 has died"), "{error}");
    }
    assert!(killed.elapsed() < secs(2), "{:?}", killed.elapsed());
}

#[test]
fn two_that_die_together_are_each_named_to_those_who_wait() {
    let (mut ranks, _directory) = world("two victims", 5);
    for rank in &mut ranks {
        rank.says("ready");
    }
    std::thread::sleep(Duration::from_millis(200));
    let killed = Instant::now();
    // In the tree 0-1, 0-2, 2-3, 0-4 this leaves 1, 3 and 4 without neighbours.
    ranks[0].child.kill().unwrap();
    ranks[2].child.kill().unwrap();
    for (r, dead) in [(1, 2), (3, 0), (4, 2)] {
        let error = ranks[r].says("error ");
        assert!(
            error.contains(&format!("rank {dead} has died")),
            "rank {r}: {error}"
        );
    }
    assert!(killed.elapsed() < secs(2), "{:?}", killed.elapsed());
}
