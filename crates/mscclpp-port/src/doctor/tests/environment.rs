// SPDX-License-Identifier: MIT
//! What the doctor says of variables, given without being set.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;

use super::super::environment::{ELSEWHERE, KNOWN, PREFIX};
use super::*;

type Set<'a> = &'a [(&'a str, &'a str)];

fn on(machine: &str, set: Set<'_>) -> Check {
    let recorded = Recorded::open(machine);
    let mut live = Live::recorded(&recorded.live);
    for (name, value) in set {
        live.set(name, *value);
    }
    of(&recorded, &live)
}

fn of(recorded: &Recorded, live: &Live) -> Check {
    let report = Report::new(&recorded.root(), live, Vec::new());
    let check = |check: &Check| check.name == "environment";
    report.checks.into_iter().find(check).unwrap()
}

fn wrong(set: Set<'_>, found: &str, fix: &str) {
    let check = on("none", set);
    let told = check.status == Missing && check.found.contains(found) && check.fix.contains(fix);
    assert!(told, "{set:?}: {check:?}, and not {found:?} with {fix:?}");
}

#[test]
fn ib_doctor_names_each_variable_that_is_right() {
    assert_eq!(on("none", &[]).found, "no variable MSCCLPP_* is set");
    let set = [
        ("MSCCLPP_BOOTSTRAP_TIMEOUT", "0.5"),
        ("MSCCLPP_CACHE_DIR", "/anywhere"),
        ("MSCCLPP_GPU_ARCHS", "90,100a"),
        ("MSCCLPP_HCA_DEVICES", "soft0,,soft1"),
        ("MSCCLPP_HOSTID", "x"),
        ("MSCCLPP_IBV_MODE", "host"),
        ("MSCCLPP_IBV_SO", ""),
        ("MSCCLPP_IB_GID_INDEX", "3"),
        ("MSCCLPP_IB_SL", "15"),
        ("MSCCLPP_LOCAL_RANK", "0"),
        ("MSCCLPP_LOCAL_SIZE", "2"),
        ("MSCCLPP_RANK", "1"),
        ("MSCCLPP_ROOT", "file:/tmp/root"),
        ("MSCCLPP_RXE_CACHE", "/anywhere"),
        ("MSCCLPP_SANITIZED", "thread"),
        ("MSCCLPP_SECRET", "0123456789abcdef"),
        ("MSCCLPP_TEST_TASK", "x"),
        ("MSCCLPP_WORLD_SIZE", "2"),
    ];
    let check = on("none", &set);
    assert_eq!((check.status, check.fix.as_str()), (Fine, ""), "{check:?}");
    let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
    assert_eq!(check.found, names.join(", "));
}

#[test]
fn ib_doctor_names_variables_that_nobody_reads_and_the_nearest_that_somebody_does() {
    // Names in quotes would be taken for variables that the project has.
    let name = |end: &str| format!("{PREFIX}{end}");
    let typo = name("BOOTSTRAP_TIMOUT");
    wrong(
        &[(&typo, "3")],
        &format!("nothing reads {typo}"),
        &format!("MSCCLPP_BOOTSTRAP_TIMEOUT instead of {typo}"),
    );
    let typo = name("HCA_DEVICE");
    wrong(&[(&typo, "soft0")], "nothing reads", "MSCCLPP_HCA_DEVICES");
    let far = name("OF_SOMEBODY_ELSE");
    wrong(&[(&far, "")], "nothing reads", "docs/tuning.md");
    for name in [name("DEBUG"), name("NCCL_SYMMETRIC_MEMORY")] {
        let unset = format!("unset {name}");
        wrong(&[(&name, "1")], "means nothing here", &unset);
    }
}

#[test]
fn ib_doctor_names_values_that_are_ignored_or_stop_a_job() {
    for bad in ["30s", "abc", "0", "-3", ""] {
        let found = format!("MSCCLPP_BOOTSTRAP_TIMEOUT={bad} is no positive number of seconds");
        let fix = "MSCCLPP_BOOTSTRAP_TIMEOUT=SECONDS";
        wrong(&[("MSCCLPP_BOOTSTRAP_TIMEOUT", bad)], &found, fix);
    }
    for (name, value, fix) in [
        ("MSCCLPP_COMM_ID", "here", "ip:port"),
        ("MSCCLPP_HCA_DEVICES", "soft0,nosuch", "soft0"),
        ("MSCCLPP_IBV_MODE", "gpu", "host or host-no-atomic"),
        ("MSCCLPP_IBV_SO", "/nonexist", "PATH"),
        ("MSCCLPP_IB_GID_INDEX", "abc", "NUMBER, from 0"),
        ("MSCCLPP_IB_RETRY_CNT", "8", "NUMBER, 0 to 7"),
        ("MSCCLPP_IB_SL", "16", "NUMBER, 0 to 15"),
        ("MSCCLPP_IB_TC", "-1", "NUMBER, 0 to 255"),
        ("MSCCLPP_IB_TIMEOUT", "0", "NUMBER, 1 to 31"),
        ("MSCCLPP_LOCAL_RANK", "x", "NUMBER, from 0"),
        ("MSCCLPP_NVRTC_SO", "/nonexist", "PATH"),
        ("MSCCLPP_RANK", "x", "NUMBER, from 0"),
        ("MSCCLPP_ROOT", "foo", "file:PATH"),
        ("MSCCLPP_SOCKET_FAMILY", "ipv4", "AF_INET or AF_INET6"),
        ("MSCCLPP_SOCKET_IFNAME", "^", "PREFIXES"),
        ("MSCCLPP_SOCKET_IFNAME", "nosuch0", "PREFIXES"),
        #[cfg(feature = "cuda")]
        ("MSCCLPP_GPU_ARCHS", "90,x", "80,90,100,120"),
    ] {
        let set = [(name, value)];
        wrong(&set, &format!("{name}={value}"), fix);
        let said = on("none", &set);
        assert!(said.fix.starts_with(name), "{said:?}");
        let said = said.found;
        assert_eq!(said.matches(name).count(), 1, "said twice: {said}");
    }
    wrong(
        &[("MSCCLPP_RANK", "1")],
        "MSCCLPP_RANK=1: MSCCLPP_WORLD_SIZE is not set",
        "MSCCLPP_RANK below MSCCLPP_WORLD_SIZE",
    );
    let set = [("MSCCLPP_RANK", "2"), ("MSCCLPP_WORLD_SIZE", "2")];
    wrong(&set, "MSCCLPP_RANK=2", "MSCCLPP_RANK below");
}

#[test]
fn ib_doctor_names_every_wrong_variable_and_those_that_are_right() {
    let set = [
        ("MSCCLPP_HCA_DEVICES", "nosuch"),
        ("MSCCLPP_HOSTID", "x"),
        ("MSCCLPP_IB_GID_INDEX", "abc"),
        ("MSCCLPP_RANK", "x"),
        ("MSCCLPP_SECRET_FILE", "/nonexist"),
        ("MSCCLPP_SILENCE_TIMEOUT", "a\nb"),
        ("MSCCLPP_SOCKET_IFNAME", "nosuch0"),
        ("MSCCLPP_WORLD_SIZE", "2"),
    ];
    let check = on("none", &set);
    for (name, _) in set {
        assert!(check.found.contains(name), "{name}: {check:?}");
    }
    let right = "can be used: MSCCLPP_HOSTID, MSCCLPP_WORLD_SIZE";
    assert!(check.found.ends_with(right), "{check:?}");
    assert!(!check.found.contains('\n'), "{check:?}");
}

#[test]
fn ib_doctor_names_a_value_that_is_no_text() {
    let recorded = Recorded::open("none");
    for name in KNOWN.split_whitespace() {
        let mut live = Live::recorded(&recorded.live);
        live.set(name, std::ffi::OsString::from_vec(b"3\xff".to_vec()));
        let check = of(&recorded, &live);
        assert!(check.found.contains(name), "{check:?}");
    }
    let mut live = Live::recorded(&recorded.live);
    live.set(
        "MSCCLPP_RANK",
        std::ffi::OsString::from_vec(b"3\xff".to_vec()),
    );
    assert_eq!(of(&recorded, &live).status, Missing);
}

#[test]
fn ib_doctor_names_secrets_that_are_short_or_cannot_be_used_and_shows_none() {
    let check = on("none", &[("MSCCLPP_SECRET", "Zq7")]);
    let short = check
        .found
        .contains("the secret of MSCCLPP_SECRET is short");
    assert!(check.status == Missing && short, "{check:?}");
    assert!(!format!("{check:?}").contains("Zq7"));
    wrong(&[("MSCCLPP_SECRET", " ")], "MSCCLPP_SECRET", "16 random");
    let both = [
        ("MSCCLPP_SECRET", "0123456789abcdef"),
        ("MSCCLPP_SECRET_FILE", "/x"),
    ];
    wrong(
        &both,
        "MSCCLPP_SECRET_FILE is set too",
        "unset MSCCLPP_SECRET",
    );

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    let path = file.to_str().unwrap();
    let set = [("MSCCLPP_SECRET_FILE", path)];
    let fix = "MSCCLPP_SECRET_FILE=PATH of a file";
    wrong(&set, path, fix);
    wrong(&[("MSCCLPP_SECRET_FILE", "")], "MSCCLPP_SECRET_FILE", fix);
    let allow = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    fs::write(&file, "Zq7\n").unwrap();
    allow(0o600);
    wrong(
        &set,
        "the secret of MSCCLPP_SECRET_FILE is short",
        "16 random",
    );
    fs::write(&file, "0123456789abcdef\n").unwrap();
    assert_eq!(on("none", &set).status, Fine);
    allow(0o644);
    wrong(&set, "others than its owner may open it", "chmod 600");
}

#[test]
fn ib_doctor_knows_the_hcas_that_may_be_named() {
    let named = |names: &str| on("cx5-roce-dual", &[("MSCCLPP_HCA_DEVICES", names)]);
    assert_eq!(named("mlx5_0, soft3").status, Fine);
    let check = named("mlx5_7,mlx5_1,mlx4_0");
    assert!(
        check.found.contains("there is no mlx5_7, mlx4_0"),
        "{check:?}"
    );
    assert!(check.fix.contains("mlx5_0, mlx5_1, soft0"), "{check:?}");
}

#[test]
fn ib_doctor_knows_the_variables_that_the_pages_have() {
    let known: BTreeSet<&str> = KNOWN.split_whitespace().collect();
    let page = include_str!("../../../../../docs/tuning.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| Some(row.split_once('`')?.0));
    let described: BTreeSet<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    assert_eq!(known, described);
    let page = include_str!("../../env.rs");
    let (_, page) = page.split_once("//! Variables of MSCCL++").unwrap();
    let (page, _) = page.split_once("\n\n").unwrap();
    let named = page.split('`').skip(1).step_by(2);
    let named: BTreeSet<&str> = named.filter(|name| !name.ends_with('_')).collect();
    assert_eq!(named, ELSEWHERE.split_whitespace().collect());
}
