// SPDX-License-Identifier: MIT
//! Payload that is older than its signal, looked for as long as asked for (`--stress`).

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_port::{IbConfig, QueueForm};

use crate::backend::{Backend, MANY, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, Stuck, TestResult};
use crate::kernels::Generations;

const MESSAGES: u64 = 6;
/// 64-bit words of a message: what fits one packet of most networks, and what does not.
const WORDS: [u64; 2] = [24, 3000];

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let name = |test: &str| format!("PortChannelOrderingTest.{test}{}", backend.suffix);
    registry
        .add_on(backend, name("StaleDataStress"), stress)
        .ranks(2, 2)
        .seconds(900);
    registry
        .add_on(backend, name("StaleDataIsFound"), is_found)
        .ranks(2, 2)
        .seconds(120);
}

/// Both forms of a queue; one of what has none.
fn forms(backend: &Backend) -> &'static [QueueForm] {
    match backend.posts_to_queue() {
        true => &[QueueForm::Exclusive, QueueForm::Shared],
        false => &[QueueForm::Shared],
    }
}

fn generations(
    context: &Context,
    fixture: &Fixture<'_>,
    tag: u32,
    words: u64,
) -> anyhow::Result<Generations> {
    let bytes = 16 * MESSAGES * words;
    let (outgoing, incoming) = (fixture.buffer(bytes)?, fixture.buffer(bytes)?);
    let (out, into) = (fixture.register(&outgoing)?, fixture.register(&incoming)?);
    Ok(Generations {
        channel: fixture.pair(tag, &out, &into)?.channel,
        outgoing,
        incoming,
        first: 0,
        rounds: 0,
        messages: MESSAGES,
        words,
        rank: context.rank(),
        planted: false,
    })
}

/// The NIC in software is not strict: what is looked at here is the fast path.
fn open<'a>(
    context: &'a Context,
    backend: &'static Backend,
    queue_form: QueueForm,
) -> anyhow::Result<Fixture<'a>> {
    let setup = Setup {
        queue: IbConfig {
            queue_form,
            ..IbConfig::default()
        },
        ..Setup::default()
    };
    Fixture::with(context, backend, &setup)
}

fn stress(context: &Context, backend: &'static Backend) -> TestResult {
    let forms = forms(backend);
    let share = context.stress() / (forms.len() * WORDS.len()) as u32;
    let mut messages = 0;
    for form in forms {
        let fixture = open(context, backend, *form)?;
        for (tag, words) in (0..).zip(WORDS) {
            let mut kernel = generations(context, &fixture, tag, words)?;
            let what = format!("{form:?}, messages of {} bytes", 8 * words);
            context.stage(what.clone());
            messages += go_on(context, backend, &mut kernel, share).context(what)?;
        }
        fixture.meet()?;
    }
    context.measure("messages checked", messages as f64, "");
    context.measure("in", context.stress().as_secs_f64(), "s");
    Ok(())
}

/// Rounds until the time is over, in launches of about half a second. How many messages came.
fn go_on(
    context: &Context,
    backend: &Backend,
    kernel: &mut Generations,
    time: Duration,
) -> anyhow::Result<u64> {
    let start = Instant::now();
    kernel.rounds = 20;
    loop {
        let threads = backend.threads(2, MANY);
        let took = kernel.launch(threads)?.finish(context.deadline())?;
        kernel.first += kernel.rounds;
        // Rank 0 says how many more rounds there are: as many as take half a second.
        let more = match start.elapsed() < time {
            true => (kernel.rounds as f64 * 0.5 / took.as_secs_f64()).clamp(1.0, 1e6) as u64,
            false => 0,
        };
        kernel.rounds = context.exchange(more)?[0];
        if kernel.rounds == 0 {
            return Ok(kernel.first * MESSAGES);
        }
    }
}

/// One signal of rank 0 has no message. Rank 1's kernel has to report the older one in its place.
fn is_found(context: &Context, backend: &'static Backend) -> TestResult {
    for form in forms(backend) {
        let fixture = open(context, backend, *form)?;
        for (tag, words) in (0..).zip(WORDS) {
            let kernel = Generations {
                rounds: 20,
                planted: context.rank() == 0,
                ..generations(context, &fixture, tag, words)?
            };
            let what = format!("{form:?}, {words} words");
            context.stage(what.clone());
            let ended = kernel
                .launch(backend.threads(2, MANY))?
                .finish(context.deadline());
            match ended {
                Ok(_) if context.rank() == 0 => {}
                Ok(_) => bail!("{what}: a signal without its message was not found"),
                Err(error) if context.rank() == 0 || error.is::<Stuck>() => return Err(error),
                Err(error) => {
                    // The last round.
                    let right = error.to_string().contains("wrong value in iteration 19");
                    ensure!(right, "{what}: {error}");
                }
            }
            fixture.meet()?;
        }
    }
    Ok(())
}
