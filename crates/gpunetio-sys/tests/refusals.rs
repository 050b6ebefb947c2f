// SPDX-License-Identifier: MIT
//! What the build says, in one sentence, where the feature `gpunetio` cannot be built.

use std::fs;
use std::path::Path;
use std::process::Command;

const ALL: &str = "gpunetio,cuda,ib";

/// The errors of a build with these features and variables, and no others of ours.
fn errors(features: &str, variables: &[(&str, &Path)]) -> Vec<String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refusals");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args([
        "check",
        "--quiet",
        "--offline",
        "--locked",
        "--color",
        "never",
        "--features",
    ]);
    cargo.arg(features).env("CARGO_TARGET_DIR", target);
    let ours = [
        "GPUNETIO_SOURCE_DIR",
        "GPUNETIO_ALLOW_UNPINNED",
        "XDG_CACHE_HOME",
        "CUDA_HOME",
        "CUDA_PATH",
        // Of sanitized runs, whose builds of build scripts these are not.
        "CARGO_BUILD_TARGET",
        "RUSTFLAGS",
    ];
    for variable in ours {
        cargo.env_remove(variable);
    }
    let output = cargo.envs(variables.iter().copied()).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let own = text
        .lines()
        .filter_map(|line| line.strip_prefix("error: gpunetio-sys@"));
    let sentences = own.filter_map(|line| line.split_once(": "));
    let sentences: Vec<_> = sentences.map(|(_, sentence)| sentence.to_owned()).collect();
    assert_eq!(sentences.len(), 1, "{text}");
    sentences
}

/// One after the other: they share a target directory.
#[test]
fn each_cause_has_its_sentence() {
    for (features, missing) in [
        ("gpunetio", "`cuda` and `ib`"),
        ("gpunetio,cuda", "`ib`"),
        ("gpunetio,ib", "`cuda`"),
    ] {
        let wanted = format!("the feature `gpunetio` needs {missing} too; it supports no ROCm");
        assert_eq!(errors(features, &[]), [wanted]);
    }

    let directory = tempfile::tempdir().unwrap();
    let cache = ("XDG_CACHE_HOME", directory.path());
    let error = errors(ALL, &[cache]);
    assert!(error[0].contains("run `cargo xtask fetch`"), "{error:?}");

    let source = ("GPUNETIO_SOURCE_DIR", directory.path());
    let error = errors(ALL, &[cache, source]);
    assert!(error[0].contains("is not the pinned GPUNetIO"), "{error:?}");

    let include = directory.path().join("include/common");
    fs::create_dir_all(&include).unwrap();
    let is_version = |major: u8| {
        let lines = [("MAJOR", major), ("MINOR", 0), ("PATCH", 0)]
            .map(|(part, number)| format!("#define DOCA_GPUNETIO_VERSION_{part} {number}\n"));
        fs::write(include.join("doca_gpunetio_verbs_def.h"), lines.concat()).unwrap();
    };
    let allowed = ("GPUNETIO_ALLOW_UNPINNED", Path::new("1"));
    is_version(5);
    let error = errors(ALL, &[cache, source, allowed]);
    assert!(
        error[0].contains("is GPUNetIO 5.0.0; 3.0 and 4.0 are understood"),
        "{error:?}"
    );
    if Path::new("/usr/local/cuda/include/cuda_runtime.h").exists() {
        println!("SKIP each_cause_has_its_sentence (no CUDA): /usr/local/cuda is there");
        return;
    }
    is_version(4);
    let error = errors(ALL, &[cache, source, allowed]);
    assert!(error[0].contains("needs CUDA's headers"), "{error:?}");
}
