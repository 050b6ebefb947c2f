// SPDX-License-Identifier: MIT
//! The doctor's program on this machine: the form of its JSON, its exit status, and that both of its
//! outputs say the same.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doctor"));
    command.args(arguments).stdin(Stdio::null());
    // libibverbs may complain to standard error.
    command.output().unwrap()
}

#[test]
fn doctor_prints_json_of_its_form_here() {
    let further = json!({"name": "of a test", "status": "unknown", "found": "x", "fix": "y"});
    let output = doctor(&["--json", "--check", &further.to_string()]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let Value::Object(top) = &json else {
        panic!("{json}")
    };
    assert_eq!(top.keys().collect::<Vec<_>>(), ["checks"]);
    let checks = top["checks"].as_array().unwrap();
    for check in checks {
        let Value::Object(fields) = check else {
            panic!("{check}")
        };
        let mut keys: Vec<&str> = fields.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["fix", "found", "name", "status"]);
        assert!(fields.values().all(Value::is_string), "{check}");
        let status = fields["status"].as_str().unwrap();
        assert!(["ok", "missing", "not needed", "unknown"].contains(&status));
    }
    assert!(checks.contains(&further));
    let status_of = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no {name}"))["status"].clone()
    };
    assert_eq!(status_of("softnic"), "ok");
    // What built this test builds kernels.
    assert_eq!(status_of("c++ compiler"), "ok");
    let works = status_of("backend proxy-ethernet") == "ok";
    assert_eq!(output.status.code(), Some(if works { 0 } else { 1 }));

    let text = doctor(&[]);
    assert_eq!(text.status, output.status);
    let text = String::from_utf8(text.stdout).unwrap();
    for check in checks.iter().filter(|check| **check != further) {
        let name = check["name"].as_str().unwrap();
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
}

#[test]
fn doctor_looks_at_the_environment_that_it_is_started_with() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doctor"));
    command.arg("--json").stdin(Stdio::null());
    command.env("MSCCLPP_BOOTSTRAP_TIMOUT", "3");
    let output = command.output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = json["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "environment");
    let check = check.unwrap();
    assert_eq!(check["status"], "missing");
    let found = check["found"].as_str().unwrap();
    assert!(found.contains("nothing reads MSCCLPP_BOOTSTRAP_TIMOUT"));
    let fix = check["fix"].as_str().unwrap();
    assert!(fix.contains("MSCCLPP_BOOTSTRAP_TIMEOUT instead"), "{fix}");
}

#[test]
fn doctor_refuses_a_check_of_another_form() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doctor"));
    command.args([
        "--check",
        r#"{"name":"x","status":"fine","found":"","fix":""}"#,
    ]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
