// SPDX-License-Identifier: MIT
//! What the doctor says of recorded machines.

mod answers;
mod environment;
mod expected;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::*;
use crate::machine::recorded::Recorded;
use CheckStatus::{Missing, NotNeeded, Ok as Fine, Unknown};
use expected::EXPECTED;

/// Set, the recorded reports are written instead of compared.
const REWRITE: &str = "MSCCLPP_REWRITE_REPORTS";

fn machines() -> Vec<String> {
    let entries = fs::read_dir(Recorded::directory()).unwrap();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            Some(name.strip_suffix(".machine")?.to_owned())
        })
        .collect();
    names.sort();
    names
}

fn report(name: &str) -> Report {
    let recorded = Recorded::open(name);
    let live = Live::recorded(&recorded.live);
    Report::new(&recorded.root(), &live, Vec::new())
}

#[test]
fn ib_doctor_says_of_each_recorded_machine_what_it_said() {
    let machines = machines();
    assert!(machines.len() >= 13, "{machines:?}");
    let mut wrong = Vec::new();
    for name in &machines {
        let path = Recorded::directory().join(format!("{name}.report"));
        let said = report(name).to_string();
        if std::env::var_os(REWRITE).is_some() {
            fs::write(path, said).unwrap();
            continue;
        }
        let wanted = fs::read_to_string(&path).unwrap_or_default();
        if said != wanted {
            wrong.push(format!("{name}: it says\n{said}\nand not\n{wanted}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{REWRITE}=1 rewrites them\n{}",
        wrong.join("\n")
    );
}

#[test]
fn ib_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let mut seen = BTreeSet::new();
    for (machine, name, status, text) in EXPECTED {
        seen.insert((*machine).to_owned());
        let report = report(machine);
        let check = report.checks.iter().find(|check| check.name == *name);
        let check = check.unwrap_or_else(|| panic!("{machine} has no {name}:\n{report}"));
        let said = format!("{} {}", check.found, check.fix);
        assert!(
            check.status == *status && said.contains(text),
            "{machine}: {check:?}"
        );
    }
    assert_eq!(seen, machines().into_iter().collect());
}

#[test]
fn ib_doctor_tells_a_fix_for_all_that_is_missing_and_the_default_backend_by_itself() {
    for name in machines() {
        let report = report(&name);
        let mut names = BTreeSet::new();
        for check in &report.checks {
            assert!(names.insert(&check.name), "{name}: {} twice", check.name);
            assert!(
                !check.found.is_empty() && !check.found.contains('\n'),
                "{check:?}"
            );
            let nothing_to_do = check.fix.is_empty();
            match check.status {
                Missing | Unknown => assert!(!nothing_to_do, "{name}: {check:?}"),
                Fine => {}
                NotNeeded => assert!(nothing_to_do, "{name}: {check:?}"),
            }
        }
        assert_eq!(report.default_works(), name != "bare", "{name}");
    }
}

/// Checks that a fix points to.
fn seen_from(fix: &str) -> impl Iterator<Item = &str> {
    let lists = fix.split("see ").skip(1);
    let lists = lists.map(|rest| rest.split([';', ')', ':']).next().unwrap_or_default());
    lists.flat_map(|list| list.split(", "))
}

#[test]
fn ib_a_backends_fix_leads_to_a_check_that_says_more() {
    for name in machines() {
        let report = report(&name);
        let backends = |check: &&Check| check.name.starts_with(backend::PREFIX);
        for check in report.checks.iter().filter(backends) {
            for target in seen_from(&check.fix) {
                let mut there = report.checks.iter().filter(|other| {
                    other.name == target || target == "hca" && other.name.starts_with("hca ")
                });
                let says_more = there.any(|other| {
                    // They list the cards that there are.
                    let hardware = ["gpu", "rdma driver"].contains(&target);
                    hardware || matches!(other.status, Missing | Unknown)
                });
                assert!(says_more, "{name}: {target} of {check:?}\n{report}");
            }
        }
    }
}

#[test]
fn ib_doctor_speaks_json_of_exactly_this_form() {
    let report = report("cx5-roce-dual");
    let json = serde_json::to_value(&report).unwrap();
    let Value::Object(top) = &json else {
        panic!("{json}")
    };
    assert_eq!(top.keys().collect::<Vec<_>>(), ["checks"]);
    let mut statuses = BTreeSet::new();
    for check in top["checks"].as_array().unwrap() {
        let Value::Object(fields) = check else {
            panic!("{check}")
        };
        let mut keys: Vec<&str> = fields.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["fix", "found", "name", "status"]);
        assert!(fields.values().all(Value::is_string), "{check}");
        statuses.insert(fields["status"].as_str().unwrap().to_owned());
    }
    let all = ["missing", "not needed", "ok", "unknown"].map(str::to_owned);
    assert_eq!(statuses, BTreeSet::from(all));
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

#[test]
fn ib_doctor_obeys_what_the_environment_chooses() {
    let recorded = Recorded::open("cx5-roce-dual");
    let check = |live: &Live, name: &str| {
        let report = Report::new(&recorded.root(), live, Vec::new());
        report
            .checks
            .into_iter()
            .find(|check| check.name == name)
            .unwrap()
    };
    let gid = "hca mlx5_0 port 1 gid";
    let mut live = Live::recorded(&recorded.live);
    live.wish.ipv6 = true;
    assert!(check(&live, gid).found.contains("takes 5: 2001:db8::11"));
    live.wish.gid_index = Some(1);
    assert!(check(&live, gid).found.contains("takes 1: fe80"));
    live.wish.gid_index = Some(77);
    let missing = check(&live, gid);
    assert!(
        missing.status == Missing && missing.found.contains("GID index 77"),
        "{missing:?}"
    );
    assert_eq!(check(&live, "backend proxy-ib").status, Missing);
}

#[test]
fn ib_doctor_examines_this_machine() {
    let further = Check::missing("a check of the caller's", "nothing", "look elsewhere");
    let report = examine(vec![further.clone()]);
    assert!(report.checks.contains(&further));
    let softnic = report.checks.iter().find(|check| check.name == "softnic");
    assert_eq!(softnic.unwrap().status, Fine);
    let text = report.to_string();
    assert!(text.contains("fix: look elsewhere"), "{text}");
}

#[test]
fn ib_the_pcie_capability_is_found_or_told_to_be_out_of_sight() {
    use super::hca::relaxed;
    let mut config = [0; 256];
    config[0x34] = 0x40;
    config[0x40..0x42].copy_from_slice(&[0x09, 0x60]);
    config[0x60] = 0x10;
    assert_eq!(relaxed(&config), Some(false));
    config[0x68] = 0x10;
    assert_eq!(relaxed(&config), Some(true));
    assert_eq!(relaxed(&config[..64]), None);
    assert_eq!(relaxed(&[]), None);
    // A list that runs in a circle ends.
    config[0x41] = 0x40;
    assert_eq!(relaxed(&config), None);
}

#[test]
fn ib_the_readme_shows_what_the_doctor_says() {
    let readme = include_str!("../../../../../README.md");
    let (_, rest) = readme
        .split_once("(some lines left out):\n\n```text\n")
        .unwrap();
    let (sample, _) = rest.split_once("```").unwrap();
    let report = report("cx5-roce-dual").to_string();
    let said: BTreeSet<&str> = report.lines().collect();
    assert!(sample.lines().count() > 10);
    for line in sample.lines() {
        assert!(said.contains(line), "not said: {line}");
    }
}
