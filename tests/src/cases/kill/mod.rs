// SPDX-License-Identifier: MIT
//! The kill matrix: in each moment of a job's life, each rank of four is killed, stopped, loses its
//! connections or is cut off. The others end in time and name it, keep nothing, and the next job
//! meets at the same port. One that comes back is not let in.

mod fault;
mod left;
mod moment;
mod network;
mod play;
mod run;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mscclpp_port::TransportKind;

use self::fault::Fault;
use self::moment::{Moment, What, moments};
pub(super) use self::play::{PART, play};
use self::run::Jobs;
use crate::backend::{BACKENDS, Executor};
use crate::harness::{Context, Profile, Registry, Skip, TestResult};

/// Ranks of a job.
const RANKS: usize = 4;

/// How many cases were run.
static CASES: AtomicUsize = AtomicUsize::new(0);

/// How many cases of the matrix this process has run.
pub fn kill_cases() -> usize {
    CASES.load(Relaxed)
}

pub(super) fn register(registry: &mut Registry, executor: Executor) {
    for (number, moment) in moments().into_iter().enumerate() {
        if moment.what == What::Receive {
            let body = move |context: &Context| cuts(context, number);
            let name = "KillBootstrap.WhoIsCutOff";
            registry.add(name, body).ranks(1, 1).seconds(200);
        }
        let of = moment.row.map(|row| &BACKENDS[row]);
        if of.is_some_and(|backend| backend.executor != executor) {
            continue;
        }
        let body = move |context: &Context| matrix(context, number);
        match of {
            Some(backend) => registry.of(backend, |registry, _| {
                registry.add(moment.name, body).ranks(1, 1).seconds(900);
            }),
            None => {
                registry.add(moment.name, body).ranks(1, 1).seconds(900);
            }
        }
    }
}

/// A link is cut for so short that nobody counts as dead; and for longer: then the one that is cut off
/// accuses nobody but itself.
fn cuts(context: &Context, number: usize) -> TestResult {
    let moment = moments().swap_remove(number);
    let mut jobs = Jobs::new(context, number, &moment)?;
    let victims = match context.profile() {
        Profile::Full => 0..RANKS,
        Profile::Quick => 2..3,
    };
    for victim in victims {
        context.stage(format!("a brief cut of rank {victim}"));
        (jobs.brief_cut(victim)).map_err(|error| error.context(format!("rank {victim}")))?;
        context.stage(format!("rank {victim} is cut off"));
        (jobs.cut_off(victim)).map_err(|error| error.context(format!("rank {victim}")))?;
        CASES.fetch_add(2, Relaxed);
    }
    Ok(())
}

/// The cases of one moment: all of them, or those that this moment has in the quick form. There each
/// moment sees the faults that are noticed at once and one of silence, and all faults and victims
/// have their turn. A machine's own HCAs reach past the network namespaces of a job, and GPUs' memory is
/// mapped within one only: there is no link to cut.
fn cases(number: usize, moment: &Moment, profile: Profile) -> Vec<(Fault, usize)> {
    let backend = moment.row.map(|row| &BACKENDS[row]);
    let own = backend
        .is_none_or(|of| of.provider.is_some() || (of.transport)(0) == TransportKind::Ethernet);
    let mut cases = match profile {
        Profile::Full => (Fault::ALL.into_iter())
            .flat_map(|fault| (0..RANKS).map(move |victim| (fault, victim)))
            .collect(),
        Profile::Quick => {
            let silent = [Fault::Stop, Fault::Cut][number % 2];
            vec![
                (Fault::Kill, number % RANKS),
                (Fault::Close, (number + 1) % RANKS),
                (silent, (number / 2 + 2) % RANKS),
            ]
        }
    };
    cases.retain(|(fault, _)| own || *fault != Fault::Cut);
    cases
}

fn matrix(context: &Context, number: usize) -> TestResult {
    let moment = moments().swap_remove(number);
    let mut jobs = Jobs::new(context, number, &moment)?;
    let mut missing = None;
    let mut slowest = [0.0_f64; Fault::ALL.len()];
    let mut count = 0;
    for (fault, victim) in cases(number, &moment, context.profile()) {
        context.stage(format!("{fault} of rank {victim}"));
        match jobs.run(fault, victim) {
            Ok(took) => {
                let slowest = &mut slowest[fault as usize];
                *slowest = slowest.max(took.as_secs_f64());
                count += 1;
                CASES.fetch_add(1, Relaxed);
            }
            Err(error) if error.is::<Skip>() => missing = Some(error),
            Err(error) => return Err(error.context(format!("{fault} of rank {victim}"))),
        }
    }
    context.stage("a job that nobody disturbs, at the same port");
    jobs.undisturbed()?;
    for (fault, slowest) in Fault::ALL.into_iter().zip(slowest) {
        if slowest > 0.0 {
            context.measure(format!("{fault}, to the last survivor's end"), slowest, "s");
        }
    }
    match missing {
        // What could be run has passed, and the rest is no pass.
        Some(skip) => Err(skip.context(format!("{count} cases passed"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_form_has_every_fault_on_every_rank() {
        let mut seen: Vec<(usize, usize)> = (moments().iter().enumerate())
            .flat_map(|(number, moment)| cases(number, moment, Profile::Quick))
            .map(|(fault, victim)| (fault as usize, victim))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), Fault::ALL.len() * RANKS);
    }
}
