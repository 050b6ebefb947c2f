// SPDX-License-Identifier: MIT
//! Runs the tests on every rank in step, and prints what came of them.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;

use super::context::{Context, Stage};
use super::control::{Control, Told};
use super::filter::selected;
use super::options::Options;
use super::process;
use super::report::Report;
use super::test::{Outcome, Skip, Stuck, Test, TestResult, Verdict};

/// How long before a rank gives a test up its body's own waits end, so that an error of the body,
/// which lets the run go on, comes first.
const BODY_MARGIN: Duration = Duration::from_secs(2);

/// How long ranks wait for each other's outcome beyond the deadline of the test.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the selected tests, and prints what comes of them on rank 0. All ranks of `control` call it
/// with equal options and tests.
pub fn run(control: &Control, options: &Options, tests: Vec<Test>) -> Report {
    remember_panics();
    let tests: Vec<Arc<Test>> = tests
        .into_iter()
        .filter(|test| selected(options, test))
        .map(Arc::new)
        .collect();
    let mut report = Report::new(control.rank() == 0);
    if tests.is_empty() {
        report.nothing_selected(options);
    }
    for (number, test) in tests.iter().enumerate() {
        let start = Instant::now();
        let limit = Deadline::after(test.deadline + GRACE);
        let told = run_here(control, options, number as u32, test);
        match control.agree(number as u32, told, limit) {
            Ok(Told {
                what: verdict,
                measurements,
            }) => {
                report.add(&test.name, &verdict, start.elapsed(), &measurements);
                if let Verdict::Fail { go_on: false, .. } = verdict {
                    report.not_run(&tests[number + 1..]);
                    break;
                }
            }
            Err(error) => {
                report.lost(&test.name, &error);
                break;
            }
        }
    }
    report.summary();
    report
}

/// This rank's part of one test: its body on a thread of its own, until the deadline.
fn run_here(control: &Control, options: &Options, number: u32, test: &Arc<Test>) -> Told<Outcome> {
    if control.ranks() < test.min_ranks {
        let reason = format!(
            "needs {} ranks, this run has {}",
            test.min_ranks,
            control.ranks()
        );
        return only(Outcome::Skip(reason));
    }
    let ranks = control.ranks().min(test.max_ranks);
    if control.rank() >= ranks {
        return only(Outcome::Idle);
    }
    let stage = Stage::default();
    let context = Context {
        control: control.clone(),
        number,
        ranks,
        deadline: Deadline::after(test.deadline.saturating_sub(BODY_MARGIN)),
        profile: options.profile,
        threads: options.threads.is_some(),
        stress: options.stress.map(Duration::from_secs),
        stage: stage.clone(),
        measurements: Mutex::default(),
    };
    let (done, result) = mpsc::channel();
    let body = Arc::clone(test);
    let spawned = thread::Builder::new()
        .name("test".to_owned())
        .spawn(move || {
            let what = outcome(|| (body.body)(&context));
            let measurements = context
                .measurements
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner);
            let _ = done.send(Told { what, measurements });
        });
    let thread = match spawned {
        Ok(thread) => thread,
        Err(error) => return only(Outcome::Fail(format!("no thread: {error}"))),
    };
    match result.recv_timeout(test.deadline) {
        Ok(told) => {
            let _ = thread.join();
            told
        }
        Err(RecvTimeoutError::Disconnected) => only(Outcome::Fail(
            "the thread of the test ended without an outcome".into(),
        )),
        Err(RecvTimeoutError::Timeout) => only(Outcome::Hung(hung(test, &stage))),
    }
}

fn only(what: Outcome) -> Told<Outcome> {
    Told {
        what,
        measurements: Vec::new(),
    }
}

fn outcome(body: impl FnOnce() -> TestResult) -> Outcome {
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Outcome::Pass,
        Ok(Err(error)) => {
            if let Some(Skip(reason)) = error.downcast_ref() {
                return Outcome::Skip(reason.clone());
            }
            let text = format!("{error:#}");
            if error.is::<Stuck>() {
                Outcome::Hung(text)
            } else {
                Outcome::Fail(text)
            }
        }
        Err(payload) => Outcome::Fail(format!("panicked {}", panic_text(payload.as_ref()))),
    }
}

fn hung(test: &Test, stage: &Stage) -> String {
    let threads = process::threads().join("; ");
    format!(
        "still running after {:?}: {stage}; threads: {threads}",
        test.deadline
    )
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps where a panic of this thread happened, besides what the default hook prints.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            LAST_PANIC.with_borrow_mut(|last| *last = info.location().map(ToString::to_string));
            default(info);
        }));
    });
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let place = LAST_PANIC.take().unwrap_or_else(|| "somewhere".to_owned());
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("with a payload that is no text");
    format!("at {place}: {text}")
}

#[cfg(test)]
mod tests;
