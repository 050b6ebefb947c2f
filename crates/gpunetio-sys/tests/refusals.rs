// SPDX-License-Identifier: MIT
//! What the compiler says, in one sentence, where the feature `gpunetio` lacks one that it needs.

use std::path::Path;
use std::process::Command;

/// The errors of a build with these features, each once.
fn errors(features: &str) -> Vec<String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refusals");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["check", "--quiet", "--offline", "--locked"]);
    cargo.args(["--color", "never", "--features"]);
    cargo.arg(features).env("CARGO_TARGET_DIR", target);
    // Of sanitized runs, whose builds of build scripts these are not.
    for variable in ["CARGO_BUILD_TARGET", "RUSTFLAGS"] {
        cargo.env_remove(variable);
    }
    let output = cargo.output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors = text.lines().filter_map(|line| line.strip_prefix("error: "));
    let own = errors.filter(|error| !error.starts_with("could not compile"));
    own.map(str::to_owned).collect()
}

/// One after the other: they share a target directory.
#[test]
fn each_missing_feature_has_its_sentence() {
    let wanted = "the feature `gpunetio` needs `cuda` and `ib` too; it supports no ROCm";
    for features in ["gpunetio", "gpunetio,cuda", "gpunetio,ib"] {
        assert_eq!(errors(features), [wanted], "{features}");
    }
}
