// SPDX-License-Identifier: MIT
//! Planted mistakes are found, and what is right is not.

use std::fs;

use clap::{Arg, Command};

use super::facts::{Package, TestFunction};
use super::*;

/// A small world: one package, two tests, a suite.
fn facts(root: &Path) -> Facts {
    let strings = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
    let target = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    Facts {
        root: root.into(),
        packages: vec![Package {
            name: "mscclpp-port".into(),
            directory: root.join("crates/mscclpp-port"),
            features: strings(&["cuda", "ib"]),
            targets: vec![
                target("test", "ranks"),
                target("example", "sparse"),
                target("bin", "tool"),
            ],
        }],
        tests: vec![TestFunction {
            package: "mscclpp-port".into(),
            file: "tests/ranks/main.rs".into(),
            path: "ranks::liveness_is_seen".into(),
        }],
        suite: Suite {
            tests: strings(&["KillCall.All", "FlushTest.OneEthernet"]),
            command: Some(Command::new("conformance").arg(Arg::new("threads").long("threads"))),
        },
        names: strings(&["MSCCLPP_ROOT"])
            .into_iter()
            .collect::<Vec<String>>()
            .into_iter()
            .collect(),
        variables: vec![(
            "MSCCLPP_ROOT".into(),
            root.join("crates/mscclpp-port/src/env.rs"),
        )],
    }
}

/// What is wrong with a page of this text, beside an empty page docs/other.md with one heading.
fn found(text: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("kernel.cpp"),
        "// licence\nint one();\nint two();\n",
    )
    .unwrap();
    let pages = [
        Page::parse("docs/page.md", text),
        Page::parse("docs/other.md", "# Other page\n"),
    ];
    faults(&pages, &facts(directory.path()))
}

#[track_caller]
fn right(text: &str) {
    assert_eq!(found(text), Vec::<String>::new(), "{text}");
}

#[track_caller]
fn wrong(text: &str, fault: &str) {
    let faults = found(text);
    assert_eq!(faults.len(), 1, "{text}: {faults:?}");
    assert!(
        faults[0].starts_with("docs/page.md:") && faults[0].contains(fault),
        "{faults:?}"
    );
}

fn console(command: &str) -> String {
    format!("```console\n$ {command}\n```\n")
}

#[test]
fn right_commands_pass() {
    for command in [
        "cargo xtask test-mp -n 4 --filter Kill --profile full",
        "cargo xtask test-mp --filter -Kill,OneEthernet --backend ethernet",
        "MSCCLPP_ROOT=x cargo xtask launch -n 2 -- target/debug/examples/sparse --its-flag",
        "cargo xtask launch -n 2 -- target/release/tool",
        "cargo xtask plot FILE -o DIR",
        "cargo xtask bench --suite ping-pong && cargo xtask help",
        "cargo xtask launch --help",
        "cargo test -p mscclpp-port --test ranks liveness -- --nocapture",
        "cargo test -p mscclpp-port --features cuda",
        "cargo build --example sparse",
        "cargo doc --open --no-deps",
        "gpu/xtask gpu-run --out results",
        "mpirun -n 4 ./my-program",
    ] {
        right(&console(command));
    }
    right(
        "`cargo xtask launch`, `cargo xtask rxe-run -- COMMAND`, `--filter OneEthernet`, `--cfg loom`.",
    );
    right(
        "`test-mp --sanitize`, `gpu-run --stress`, `conformance --threads 2`, `cargo test`, `check`.",
    );
    right("```text\ncargo xtask check\nany text\n```\n");
}

#[test]
fn an_unknown_task_or_flag_is_found() {
    wrong(&console("cargo xtask tset-cpu"), "unrecognized subcommand");
    wrong(
        &console("cargo xtask test-cpu --filtre x"),
        "unexpected argument",
    );
    wrong(&console("cargo xtask launch -n 2"), "required");
    wrong(
        &console("cargo xtask launch -n 2 -- cargo xtask nothing"),
        "unrecognized subcommand",
    );
    wrong(
        &console("true && cargo xtask bench --quik"),
        "unexpected argument",
    );
    wrong(
        "Say `cargo xtask test-mp --no-such`.",
        "unexpected argument",
    );
    wrong("Say `--no-such`.", "no command has a flag --no-such");
    wrong("Say `test-mp --no-such`.", "unexpected argument");
    wrong("Say `conformance --thread 2`.", "unexpected argument");
    wrong(&console("cargo biuld"), "unrecognized subcommand");
    wrong(&console("cargo test --no-such"), "unexpected argument");
    wrong("```text\ngpu/xtask gpu-run\n```\n", "required");
}

#[test]
fn a_filter_that_matches_nothing_is_found() {
    wrong(
        &console("cargo xtask test-mp --filter Kil1"),
        "no test's name holds",
    );
    wrong(
        &console("cargo xtask test-mp --filter=-Kill,Gone"),
        "no test's name holds \"Gone\"",
    );
    wrong(
        &console("cargo xtask test-cpu --filter KillCall"),
        "no test's name holds",
    );
    wrong(
        &console("cargo test -p mscclpp-port --test ranks deadness"),
        "no test's name holds",
    );
    wrong(
        "With `--filter\nGpuNetIo`.",
        "no test's name holds \"GpuNetIo\"",
    );
    wrong(
        &console("cargo xtask bench --suite tennis"),
        "invalid value 'tennis'",
    );
    wrong(
        &console("cargo xtask test-mp --backend carrier-pigeon"),
        "invalid value 'carrier-pigeon'",
    );
}

#[test]
fn a_name_of_a_test_that_is_not_there_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut facts = facts(directory.path());
    facts.tests[0].path = "ranks::a_rank_that_dies_is_named".into();
    let found = |text: &str| faults(&[Page::parse("docs/page.md", text)], &facts);
    assert_eq!(
        found("`a_rank_that_dies_is_named`, `max_write_queue_size`"),
        Vec::<String>::new()
    );
    assert!(found("`a_rank_that_lives_is_named`")[0].contains("no test a_rank_that_lives"));
}

#[test]
fn packages_targets_and_features_that_are_not_there_are_found() {
    wrong(
        &console("cargo test -p mscclpp-prot"),
        "no package \"mscclpp-prot\"",
    );
    wrong(
        &console("cargo test -p mscclpp-port --test ranges"),
        "test \"ranges\"",
    );
    wrong(
        &console("cargo build --example sprase"),
        "example \"sprase\"",
    );
    wrong(
        &console("cargo xtask launch -n 2 -- target/debug/examples/sprase"),
        "example \"sprase\"",
    );
    wrong(
        &console("cargo test -p mscclpp-port --features cuda,rocm"),
        "feature \"rocm\"",
    );
    wrong(
        &console("cargo test --features mscclpp-port/rocm"),
        "feature \"rocm\"",
    );
    let manifest = |dependency: &str| format!("```toml\n[dependencies]\n{dependency}\n```\n");
    right(&manifest(
        "mscclpp-port = { path = \"../x/crates/mscclpp-port\", features = [\"ib\"] }",
    ));
    wrong(
        &manifest("mscclpp-prot = { path = \"../x/crates/mscclpp-prot\" }"),
        "no crate",
    );
    wrong(
        &manifest("mscclpp-port = { path = \"../x/crates/mscclpp-port\", features = [\"x\"] }"),
        "no feature",
    );
}

#[test]
fn a_dead_link_is_found() {
    right(
        "[a](other.md), [b](other.md#other-page), [c](#here), [d](https://example.org/none)\n\n# Here\n",
    );
    right("[code](../kernel.cpp), [folder](../docs/other.md)\n");
    wrong("[a](another.md)", "there is no docs/another.md");
    wrong("[a](other.md#none)", "docs/other.md has no heading #none");
    wrong("[`a`](#none)", "docs/page.md has no heading #none");
    wrong("[a](../kernel.hpp)", "there is no kernel.hpp");
}

#[test]
fn an_unknown_variable_is_found() {
    right("Set `MSCCLPP_ROOT`.");
    wrong("Set `MSCCLPP_ROOF`.", "no code knows MSCCLPP_ROOF");
    wrong(
        &console("export MSCCLPP_ROOF=1"),
        "no code knows MSCCLPP_ROOF",
    );
    right("<!-- not here: MSCCLPP_ROOF -->\n`MSCCLPP_ROOF` is another's.");
    wrong("<!-- not here: MSCCLPP_ROOT -->\n", "MSCCLPP_ROOT is here");
}

#[test]
fn variables_are_described_with_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let found = |row: &str| {
        faults(
            &[Page::parse("docs/tuning.md", row)],
            &facts(directory.path()),
        )
    };
    assert_eq!(
        found("| `MSCCLPP_ROOT` | | where | `mscclpp-port` |\n"),
        Vec::<String>::new()
    );
    assert!(found("nothing\n")[0].contains("no row for MSCCLPP_ROOT"));
    assert!(found("| `MSCCLPP_ROOT` | | where | `mscclpp-prot` |\n")[0].contains("no package"));
}

#[test]
fn blocks_are_parsed_or_are_what_they_say() {
    right(
        "```json\n{\"a\": 1}\n```\n```toml\na = 1\n```\n```rust\nfn x() {}\n```\n```cpp\nint x;\n```\n",
    );
    wrong("```json\n{\"a\": }\n```\n", "no JSON");
    wrong("```toml\na = \n```\n", "no TOML");
    wrong("```yaml\na: 1\n```\n", "nobody checks");
    wrong("```\na\n```\n", "nobody checks");
    right("<!-- file: kernel.cpp -->\n```cpp\nint one();\nint two();\n```\n");
    wrong(
        "<!-- file: kernel.cpp -->\n```cpp\nint two();\nint one();\n```\n",
        "does not have these lines",
    );
    wrong(
        "<!-- file: kernels.cpp -->\n```cpp\nint one();\n```\n",
        "kernels.cpp",
    );
}
