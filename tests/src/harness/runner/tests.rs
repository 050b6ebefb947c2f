// SPDX-License-Identifier: MIT
//! The runner on two ranks, which are threads here.

use std::thread;

use clap::Parser as _;
use tempfile::TempDir;

use super::*;
use crate::cases::FileBootstrap;
use crate::harness::Registry;

/// Runs the tests on two ranks; how each counts them, in the words of the last line.
fn on_two_ranks(arguments: &[&str], tests: fn(&mut Registry)) -> [Report; 2] {
    let directory = TempDir::new().unwrap();
    let rank = |rank| {
        let bootstrap = FileBootstrap::new(directory.path().to_owned(), rank, 2);
        let options = Options::parse_from([&["conformance"], arguments].concat());
        let mut registry = Registry::default();
        tests(&mut registry);
        move || {
            run(
                &Control::new(Arc::new(bootstrap)),
                &options,
                registry.into_tests(),
            )
        }
    };
    let (first, second) = (rank(0), rank(1));
    let second = thread::spawn(second);
    [first(), second.join().unwrap()]
}

fn last_lines(reports: &[Report; 2]) -> [String; 2] {
    reports.each_ref().map(Report::last_line)
}

#[test]
fn a_backend_is_selected_by_a_part_of_its_name() {
    let reports = on_two_ranks(&["--backend=ether"], |registry| {
        registry.add("Suite.OfNone", |_| anyhow::bail!("it must not run"));
        for backend in &crate::backend::BACKENDS[..2] {
            registry.of(backend, |registry, backend| {
                let name = format!("Suite.Of{}", backend.suffix);
                registry.add_on(backend, name, |_, backend| {
                    anyhow::ensure!(backend.suffix == "Ethernet");
                    Ok(())
                });
            });
        }
    });
    let expected = "1 passed, 0 failed, 0 skipped";
    assert_eq!(last_lines(&reports), [expected; 2]);
}

#[test]
fn tests_of_few_ranks_can_be_left_out() {
    let reports = on_two_ranks(&["--ranks-above=2"], |registry| {
        registry
            .add("Suite.OfTwo", |_| anyhow::bail!("it must not run"))
            .ranks(2, 2);
        registry.add("Suite.OfTwoAndMore", |_| Ok(()));
        registry
            .add("Suite.OfThree", |_| anyhow::bail!("it cannot run"))
            .ranks(3, 3);
    });
    let expected = "1 passed, 0 failed, 1 skipped";
    assert_eq!(last_lines(&reports), [expected; 2]);
}

#[test]
fn a_panic_is_a_failure_that_tells_what_and_where() {
    remember_panics();
    let Outcome::Fail(text) = outcome(|| panic!("seven is {}", 7)) else {
        panic!()
    };
    assert!(
        text.contains("seven is 7") && text.contains("runner/tests.rs:"),
        "{text}"
    );
}

#[test]
fn a_skip_is_told_apart_from_an_error_even_under_context() {
    let skipped = outcome(|| Err(Skip("no NIC".into()).into()));
    assert_eq!(skipped, Outcome::Skip("no NIC".into()));
    let failed = outcome(|| Err(anyhow::anyhow!("cause").context("step")));
    assert_eq!(failed, Outcome::Fail("step: cause".into()));
}

#[test]
fn a_test_that_fails_or_panics_on_one_rank_fails_on_all_and_the_run_goes_on() {
    let reports = on_two_ranks(&[], |registry| {
        registry.add("A.FailsOnOne", |context| {
            anyhow::ensure!(context.rank() == 0, "not here");
            Ok(())
        });
        registry.add("A.PanicsOnZero", |context| {
            assert_eq!(context.rank(), 1, "on purpose");
            Ok(())
        });
        registry.add("A.Passes", |context| context.meet());
    });
    assert_eq!(last_lines(&reports), ["1 passed, 2 failed, 0 skipped"; 2]);
    assert!(reports.iter().all(Report::failed));
}

#[test]
fn a_skip_is_decided_by_all_ranks_and_one_that_is_not_is_a_failure() {
    let reports = on_two_ranks(&[], |registry| {
        registry.add("A.OneHasAnObstacle", |context| {
            let obstacle = (context.rank() == 1).then(|| "no device".to_owned());
            context.skip_unless(obstacle)?;
            anyhow::bail!("ran in spite of it")
        });
        registry
            .add("A.TooManyRanks", |_| anyhow::bail!("ran"))
            .ranks(3, 3);
        registry.add("A.SkipsAlone", |context| match context.rank() {
            0 => Err(Skip("alone".to_owned()).into()),
            _ => Ok(()),
        });
        let of_one = registry.add("A.OfOneRank", |context| {
            anyhow::ensure!(context.rank() == 0, "ran above its ranks");
            Ok(())
        });
        of_one.ranks(1, 1);
    });
    assert_eq!(last_lines(&reports), ["1 passed, 1 failed, 2 skipped"; 2]);
}

#[test]
fn what_a_failed_test_leaves_unread_does_not_reach_the_next() {
    let reports = on_two_ranks(&[], |registry| {
        registry
            .add("A.LeavesAMessage", |context| match context.rank() {
                0 => anyhow::bail!("before it reads"),
                _ => context.exchange(1).map(drop),
            })
            .seconds(3);
        registry.add("A.Exchanges", |context| {
            anyhow::ensure!(context.exchange(context.rank())? == [0, 1], "other values");
            Ok(())
        });
    });
    assert_eq!(last_lines(&reports), ["1 passed, 1 failed, 0 skipped"; 2]);
}

#[test]
fn a_test_that_hangs_on_one_rank_ends_the_run_after_its_deadline() {
    let start = Instant::now();
    let reports = on_two_ranks(&[], |registry| {
        registry.add("A.Passes", |_| Ok(()));
        registry
            .add("A.Hangs", |context| {
                context.stage("park on rank 1");
                while context.rank() == 1 {
                    thread::park();
                }
                Ok(())
            })
            .seconds(1);
        registry.add("A.Stuck", |_| Ok(()));
    });
    assert_eq!(last_lines(&reports), ["1 passed, 1 failed, 0 skipped"; 2]);
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_kernel_that_does_not_end_ends_the_run() {
    let reports = on_two_ranks(&[], |registry| {
        registry.add("A.Stuck", |_| {
            Err(Stuck("1 of 4 threads runs".into()).into())
        });
        registry.add("A.Later", |_| Ok(()));
    });
    assert_eq!(last_lines(&reports), ["0 passed, 1 failed, 0 skipped"; 2]);
}

#[test]
fn a_filter_that_selects_nothing_is_a_failure() {
    let reports = on_two_ranks(&["--filter", "Nowhere"], |registry| {
        registry.add("A.Passes", |_| Ok(()));
    });
    assert_eq!(last_lines(&reports), ["0 passed, 0 failed, 0 skipped"; 2]);
    assert!(reports.iter().all(Report::failed));
}
