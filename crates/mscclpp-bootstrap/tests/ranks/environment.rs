// SPDX-License-Identifier: MIT
//! Variables that are set and are no text: processes of this test binary, which have them set.
#![cfg(unix)]

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use mscclpp_bootstrap::{Deadlines, host};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Prints the warnings of this project.
struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("mscclpp") && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Print);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Print;

impl Visit for Print {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        println!("\nwarned {value:?}");
    }
}

#[test]
#[ignore = "run by the tests below, which set variables"]
fn child() {
    tracing::subscriber::with_default(Warnings, || {
        assert_eq!(Deadlines::default().linger.as_secs(), 1);
    });
    println!("\nhost {}", host::id());
}

/// What a test of this binary prints, with some variables.
fn said(test: &str, variables: &[(&str, &[u8])]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .envs(
            variables
                .iter()
                .map(|(name, value)| (name, OsStr::from_bytes(value))),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    said
}

#[test]
fn what_a_launcher_sets_that_is_no_text_is_an_error_that_names_it() {
    for (name, value) in [
        ("MSCCLPP_ROOT", &b"file:/tmp/\xff"[..]),
        ("MSCCLPP_RANK", b"0\xff"),
        ("MSCCLPP_SOCKET_IFNAME", b"lo\xff"),
    ] {
        let said = said(
            "processes::child",
            &[
                ("MSCCLPP_TEST_TASK", b"barrier"),
                ("MSCCLPP_RANK", b"0"),
                ("MSCCLPP_WORLD_SIZE", b"1"),
                ("MSCCLPP_ROOT", b"127.0.0.1:1"),
                ("MSCCLPP_SECRET", b"a secret of this very test"),
                (name, value),
            ],
        );
        assert!(said.contains(&format!("failed {name}=")), "{said}");
    }
}

/// What rank 1 of 2 fails with, of which rank 0 never comes.
fn failure_alone(variables: &[(&str, &[u8])]) -> String {
    let common: &[(&str, &[u8])] = &[
        ("MSCCLPP_TEST_TASK", b"barrier"),
        ("MSCCLPP_RANK", b"1"),
        ("MSCCLPP_WORLD_SIZE", b"2"),
        ("MSCCLPP_ROOT", b"file:/nonexistent/root"),
    ];
    let said = said("processes::child", &[common, variables].concat());
    let failed = said.lines().find_map(|line| line.strip_prefix("failed "));
    failed.unwrap_or(&said).to_owned()
}

#[test]
fn what_is_wrong_here_is_told_before_rank_0_is_waited_for() {
    let at = ("MSCCLPP_ROOT", &b"127.0.0.1:1"[..]);
    let secret = ("MSCCLPP_SECRET_FILE", &b"/nonexistent/secret"[..]);
    let interface = ("MSCCLPP_SOCKET_IFNAME", &b"nosuch0"[..]);
    for (variables, cause) in [
        (&[secret][..], "/nonexistent/secret"),
        (&[interface], "nosuch0"),
        (&[at, secret], "/nonexistent/secret"),
        (&[at, interface], "nosuch0"),
    ] {
        let failure = failure_alone(variables);
        assert!(failure.contains(cause), "{failure}");
        assert!(!failure.contains("gave up"), "{failure}");
    }
}

#[test]
fn a_variable_that_cannot_be_used_is_named_with_what_it_may_be() {
    for root in ["foo", "file:", "localhost:45678"] {
        let failure = failure_alone(&[("MSCCLPP_ROOT", root.as_bytes())]);
        assert!(
            failure.starts_with(&format!("MSCCLPP_ROOT={root}: ")),
            "{failure}"
        );
        assert!(failure.contains("or file:PATH"), "{failure}");
    }
    let failure = failure_alone(&[("MSCCLPP_SECRET_FILE", b"")]);
    assert!(
        failure.starts_with("MSCCLPP_SECRET_FILE=\"\" "),
        "{failure}"
    );
}

#[test]
fn a_time_that_is_no_text_is_warned_of() {
    let said = said(
        "environment::child",
        &[("MSCCLPP_LINGER_TIMEOUT", b"5\xff")],
    );
    assert!(said.contains("warned MSCCLPP_LINGER_TIMEOUT="), "{said}");
}

#[test]
fn machines_are_told_apart_by_identities_that_are_no_text() {
    let host = |id: &[u8]| {
        let said = said("environment::child", &[("MSCCLPP_HOSTID", id)]);
        let host = said.lines().find_map(|line| line.strip_prefix("host "));
        host.unwrap().to_owned()
    };
    assert_ne!(host(b"a\xfe"), host(b"a\xff"));
    assert_eq!(host(b"a\xff"), host(b"a\xff"));
}
