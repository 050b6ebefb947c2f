// SPDX-License-Identifier: MIT
use super::*;

fn read(text: &str) -> TestOutput {
    let mut output = TestOutput::default();
    for line in text.lines() {
        output.line(line);
    }
    output
}

const TWO_BINARIES: &str = "\
   Compiling mlx5-queue v0.1.0
    Finished `test` profile [unoptimized] target(s) in 0.53s
     Running unittests src/lib.rs (target/debug/deps/mlx5_queue-0123456789abcdef)

running 3 tests
test wqe::a_segment_is_16_bytes ... ok
test wqe::ignored_here ... ignored, needs a card
test wqe::needs_clang ... ok

successes:

---- wqe::needs_clang stdout ----
SKIP needs_clang: no clang++ on the search path
SKIP needs_clang -O2: and none of version 14 either

---- wqe::a_segment_is_16_bytes stdout ----
SKIP other: what a test of reports prints

successes:
    wqe::a_segment_is_16_bytes
    wqe::needs_clang

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s

     Running tests/roundtrip.rs (/else/where/deps/roundtrip-0123456789abcdef)

running 0 tests

successes:

successes:

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.00s

   Doc-tests mlx5_queue

running 1 test
test crates/mlx5-queue/src/lib.rs - (line 9) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.61s
";

#[test]
fn counts_of_cases_are_shown_of_what_passed() {
    let mut output = read("running 2 tests\ntest a ... ok\ntest b ... ok\n\nsuccesses:\n");
    let mut shown = |line: &str| output.line(line) == Shown::Yes;
    assert!(shown("6944 oracle cases"));
    for other in [
        "put  704  704",
        "6944 cases more",
        "many oracle cases",
        "cases",
    ] {
        assert!(!shown(other), "{other}");
    }
}

#[test]
fn a_skip_is_taken_out_of_the_passes_once_a_test() {
    let mut output = read(TWO_BINARIES);
    output.finish(None);
    assert_eq!(output.tally().to_string(), "2 passed, 0 failed, 2 skipped");
    assert_eq!(output.binaries(), 2);
    assert!(output.failures().is_empty());
    let reasons: Vec<&str> = output.skips().iter().map(|s| s.reason.as_str()).collect();
    assert_eq!(reasons, ["needs a card", "no clang++ on the search path"]);
}

#[test]
fn a_skip_for_want_of_what_must_be_there_is_a_failure() {
    let mut output = TestOutput::requiring(&["Clang".into(), "nvrtc".into()]);
    for line in TWO_BINARIES.lines() {
        output.line(line);
    }
    output.finish(None);
    assert_eq!(output.tally().to_string(), "2 passed, 1 failed, 1 skipped");
    assert_eq!(
        output.failures(),
        ["needs_clang: skipped, but required: no clang++ on the search path"]
    );
}

#[test]
fn the_output_of_passed_tests_is_hidden_but_skips_are_shown() {
    let mut output = TestOutput::default();
    let shown: Vec<&str> = TWO_BINARIES
        .lines()
        .filter(|line| output.line(line) != Shown::No)
        .collect();
    assert!(shown.contains(&"SKIP needs_clang: no clang++ on the search path"));
    assert!(shown.contains(&"test wqe::needs_clang ... ok"));
    assert!(!shown.contains(&"---- wqe::needs_clang stdout ----"));
    assert!(!shown.contains(&"running 0 tests"));
    assert!(!shown.contains(&"successes:"));
}

#[test]
fn failures_are_named_and_their_output_is_shown() {
    let text = "
     Running unittests src/lib.rs (target/debug/deps/demo-00)
running 2 tests
test a::holds ... ok
test a::breaks - should panic ... FAILED

failures:

---- a::breaks stdout ----
SKIP breaks: not a skip, since it failed
thread 'a::breaks' panicked at src/lib.rs:1:1:

failures:
    a::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
    let mut output = TestOutput::default();
    let mut shown = 0;
    for line in text.lines() {
        shown += usize::from(output.line(line) != Shown::No);
    }
    output.finish(Some("cargo test: exit status: 101".into()));
    assert_eq!(output.tally().to_string(), "1 passed, 1 failed, 0 skipped");
    assert_eq!(
        output.failures(),
        ["demo (unittests src/lib.rs): a::breaks - should panic"]
    );
    assert!(shown > 8);
}

#[test]
fn a_binary_that_crashes_is_a_failure_and_its_passes_still_count() {
    let text = "
     Running unittests src/lib.rs (target/debug/deps/demo-00)
running 3 tests
test a ... ok
error: test failed, to rerun pass `-p demo --lib`
     Running tests/other.rs (target/debug/deps/other-00)
running 1 test
test b ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
    let mut output = read(text);
    output.finish(Some("cargo test: exit status: 101".into()));
    assert_eq!(output.tally().to_string(), "2 passed, 1 failed, 0 skipped");
    assert_eq!(
        output.failures(),
        ["demo (unittests src/lib.rs): ended without a result (3 tests)"]
    );
}

/// A leak, which is found when the tests are done.
#[test]
fn a_binary_that_fails_after_its_tests_is_a_failure_by_its_name() {
    let text = "
     Running unittests src/lib.rs (target/debug/deps/demo-00)
running 1 test
test a ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
==7==ERROR: LeakSanitizer: detected memory leaks
error: test failed, to rerun pass `-p demo --lib`

Caused by:
  process didn't exit successfully: `/t/demo-00 --show-output` (exit status: 23)
     Running tests/other.rs (target/debug/deps/other-00)
running 1 test
test b ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/crash.rs (target/debug/deps/crash-00)
running 2 tests
test c ... ok
error: test failed, to rerun pass `-p demo --test crash`

Caused by:
  process didn't exit successfully: `/t/crash-00 --show-output` (signal: 11, SIGSEGV: invalid memory reference)
";
    let mut output = read(text);
    output.finish(Some("cargo test: exit status: 101".into()));
    assert_eq!(output.tally().to_string(), "2 passed, 3 failed, 0 skipped");
    assert_eq!(
        output.failures(),
        [
            "demo (unittests src/lib.rs): exit status: 23, after its tests",
            "other (tests/other.rs): b",
            "crash (tests/crash.rs): ended without a result (2 tests): \
             signal: 11, SIGSEGV: invalid memory reference",
        ]
    );
}

#[test]
fn a_build_that_fails_is_a_failure() {
    let mut output = read("error[E0432]: unresolved import `loom`\n");
    output.finish(Some("cargo test: exit status: 101".into()));
    assert_eq!(output.tally().to_string(), "0 passed, 1 failed, 0 skipped");
    // The next command ends in a build script, and says so by its own name.
    output.line("  process didn't exit successfully: `/t/build-script` (exit status: 1)");
    output.finish(Some("cargo doc: exit status: 101".into()));
    assert_eq!(
        output.failures(),
        [
            "cargo test: exit status: 101",
            "cargo doc: exit status: 101"
        ]
    );
}

#[test]
fn padded_names_of_other_harnesses_are_read() {
    let text = "
     Running tests/compile/main.rs (target/debug/deps/compile-00)

running 3 tests
SKIP alone_with_clang++: there is no clang++
test alone_with_clang++ ... ok
test signatures         ... FAILED
test alone_with_g++     ... ok

failures:

---- signatures ----
SKIP no: a failure

failures:
    signatures

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 3.59s
";
    let mut output = read(text);
    output.finish(None);
    assert_eq!(output.tally().to_string(), "1 passed, 1 failed, 1 skipped");
    assert_eq!(
        output.failures(),
        ["compile (tests/compile/main.rs): signatures"]
    );
}

#[test]
fn ignored_tests_have_the_reason_that_their_binary_gave() {
    let text = "
     Running tests/compile/main.rs (target/debug/deps/compile-00)
skipping clang++: No such file or directory (os error 2)
skipping NVRTC: cannot be loaded

running 3 tests
test holds_with_clang++     ... ignored
test holds_with_nvrtc_sm_80 ... ignored
test holds_with_g++         ... ok

test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
    let output = read(text);
    assert_eq!(output.tally().to_string(), "1 passed, 0 failed, 2 skipped");
    let reasons: Vec<&str> = output.skips().iter().map(|s| s.reason.as_str()).collect();
    assert_eq!(
        reasons,
        ["No such file or directory (os error 2)", "cannot be loaded"]
    );
    let mut output = TestOutput::requiring(&["nvrtc".into()]);
    for line in text.lines() {
        output.line(line);
    }
    assert_eq!(output.tally().to_string(), "1 passed, 1 failed, 1 skipped");
    assert_eq!(
        output.failures(),
        ["holds_with_nvrtc_sm_80: skipped, but required: cannot be loaded"]
    );
}

#[test]
fn several_doc_test_runs_of_one_crate_add_up() {
    let one = "running 2 tests\ntest a ... ok\ntest b ... ok\ntest result: ok. 2 passed; 0 failed; \
               0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
    let mut output = read(&format!("   Doc-tests demo\n{one}{one}"));
    output.finish(None);
    assert_eq!(output.tally().to_string(), "4 passed, 0 failed, 0 skipped");
}

#[test]
fn a_skip_without_a_reason_is_no_skip() {
    assert_eq!(Skip::parse("SKIP name:"), None);
    assert_eq!(Skip::parse("SKIP name: "), None);
    assert_eq!(Skip::parse("SKIP name"), None);
    assert_eq!(Skip::parse("will SKIP name: reason"), None);
    let skip = Skip::parse("SKIP a::b: no nvrtc: set MSCCLPP_NVRTC_SO").unwrap();
    assert_eq!(skip.name, "a::b");
    assert_eq!(skip.reason, "no nvrtc: set MSCCLPP_NVRTC_SO");
}

#[test]
fn any_text_is_read_without_a_panic() {
    for text in [
        "running",
        "running x tests",
        "     Running (",
        "test result: ok. x passed",
        "test result: ok. 9 passed; 1 failed; 0 ignored",
        "---- stdout ----",
        "test  ... ",
        "successes:",
    ] {
        let mut output = read(&format!("running 1 test\n{text}\n{text}"));
        output.finish(None);
        read(text).finish(None);
    }
}
