// SPDX-License-Identifier: MIT
//! Every rank to every other one at once.

use crate::backend::{Backend, MANY};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::AllPairs;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    registry
        .add_on(
            backend,
            format!("PortChannelMeshTest.AllPairsPut{}", backend.suffix),
            all_pairs,
        )
        .ranks(2, usize::MAX)
        .seconds(180);
}

fn all_pairs(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let (elements, rounds) = context.profile().pick((4 << 10, 20), (256 << 10, 50));
    let buffer = fixture.buffer(8 * elements * context.ranks() as u64)?;
    let memory = fixture.register(&buffer)?;
    let links = fixture.link(&fixture.peers(), 0, &memory, &memory)?;
    let channels = links.into_iter().map(|link| link.channel).collect();
    context.stage(format!("{rounds} rounds of {elements} words to all"));
    AllPairs {
        channels,
        buffer,
        elements,
        rounds,
        rank: context.rank(),
    }
    .launch(backend.threads(context.profile().pick(4, 16), MANY))?
    .finish(context.deadline())?;
    fixture.meet()
}
