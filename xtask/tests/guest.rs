// SPDX-License-Identifier: MIT
//! The launcher of Soft-RoCE guests, with guests that end in every way. Each boots one, so they are
//! ignored where `cargo xtask test-rxe` does not run them.

use std::path::PathBuf;
use std::time::Duration;

use xtask::rxe::RxeError;
use xtask::rxe::guest::{Done, Job, Machine, Network};
use xtask::supervise::Interrupt;
use xtask::workspace::Workspace;

fn target() -> PathBuf {
    Workspace::load().unwrap().target
}

/// What a shell command in a guest comes to, and what it printed.
fn shell_for(seconds: u64, network: Network, command: &str) -> (anyhow::Result<Done>, String) {
    let interrupt = Interrupt::none();
    let machine = Machine::prepare(&target(), &interrupt).unwrap();
    let job = Job {
        network,
        command: ["sh", "-c", command].map(Into::into).into(),
        environment: vec![("RXE_TEST".into(), "a 'b'".into())],
        timeout: Duration::from_secs(seconds),
    };
    let mut text = String::new();
    let result = machine.run(&job, &interrupt, &mut |line| {
        text.push_str(&String::from_utf8_lossy(&line.bytes));
        text.push('\n');
        Ok(())
    });
    println!("{text}");
    (result, text)
}

fn shell(network: Network, command: &str) -> (anyhow::Result<Done>, String) {
    shell_for(120, network, command)
}

fn cause(result: anyhow::Result<Done>) -> RxeError {
    result.unwrap_err().downcast().unwrap()
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn a_command_has_its_status_its_environment_and_a_device() {
    let command = "echo \"$RXE_TEST $RXE_VM_GUEST\"; ibv_devinfo -d rxe0 | grep state; exit 3";
    let (result, text) = shell(Network::One, command);
    let done = result.unwrap();
    assert_eq!(done.status.code(), Some(3));
    assert_eq!(done.left, None);
    assert!(text.starts_with("a 'b' 1\n"), "{text}");
    assert!(text.contains("PORT_ACTIVE"), "{text}");
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn what_crosses_the_link_of_two_devices_is_data() {
    let command = "ib_write_bw -d rxe0 -x 1 -F -n 100 & sleep 1
        ib_write_bw -d rxe1 -x 1 -F -n 100 10.77.0.1 || exit 1
        wait
        cat /sys/class/net/veth0/statistics/rx_packets";
    let (result, text) = shell(Network::Two, command);
    assert!(result.unwrap().status.success());
    let packets: u64 = text.lines().last().unwrap().parse().unwrap();
    // 100 writes of 64 KiB in packets of 4096 bytes.
    assert!(packets > 1600, "{packets} packets");
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn a_crash_a_program_that_is_not_there_and_many_lines_are_told() {
    let (result, _) = shell(Network::None, "kill -SEGV $$");
    assert_eq!(result.unwrap().status.code(), Some(139));
    let command = "seq 1 20000; no-such-program-is-there";
    let (result, text) = shell(Network::None, command);
    assert_eq!(result.unwrap().status.code(), Some(127));
    let numbers = text
        .lines()
        .take(20_000)
        .map(|line| line.parse::<u32>().unwrap());
    assert!(numbers.eq(1..=20_000));
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn what_is_written_is_gone_and_the_hosts_files_stay() {
    let file = target().join("rxe-guest-writes-this");
    let command = format!("echo text >{0} && cat {0}", file.display());
    let (result, text) = shell(Network::None, &command);
    assert!(result.unwrap().status.success());
    assert_eq!(text, "text\n");
    assert!(!file.exists());
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn a_guest_that_panics_has_no_result() {
    let (result, _) = shell(
        Network::None,
        "echo before; echo c >/proc/sysrq-trigger; sleep 60",
    );
    let error = cause(result);
    let RxeError::Guest { how, console } = &error else {
        panic!("{error}");
    };
    assert!(how.contains("the command did not end"), "{how}");
    assert!(console.contains("Kernel panic"), "{console}");
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn a_status_that_somebody_else_writes_is_no_result() {
    // As if the command had ended well, and then the machine is switched off.
    let command = "echo '0 guess' >/rxe-job/status; sync; echo o >/proc/sysrq-trigger; sleep 60";
    let (result, _) = shell(Network::None, command);
    let error = cause(result);
    assert!(matches!(error, RxeError::Guest { .. }), "{error}");
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn a_guest_that_hangs_is_stopped() {
    let (result, text) = shell_for(8, Network::None, "echo before; exec sleep 600");
    let error = cause(result);
    assert!(matches!(error, RxeError::Deadline { .. }), "{error}");
    assert!(text.starts_with("before\n"), "{text}");
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn a_command_that_runs_out_of_memory_is_killed() {
    // It has 1.5 GiB, and not all is free.
    let command = "dd if=/dev/zero of=/dev/null bs=1450M count=1";
    let (result, _) = shell(Network::None, command);
    assert_eq!(result.unwrap().status.code(), Some(137));
}

#[test]
#[ignore = "boots a guest; cargo xtask test-rxe runs it"]
fn verbs_objects_that_are_left_are_seen() {
    // A server that waits for a client has queues.
    let command = "ib_write_lat -d rxe0 -x 1 -F >/dev/null 2>&1 & sleep 2; true";
    let (result, _) = shell(Network::One, &format!("{{ {command}; }}"));
    let left = result.unwrap().left.expect("the server's objects");
    assert!(
        left.contains("before:") && left.contains("after:"),
        "{left}"
    );
}
