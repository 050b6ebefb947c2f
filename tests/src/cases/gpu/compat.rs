// SPDX-License-Identifier: MIT
//! A file that was written for MSCCL++ runs.

use anyhow::ensure;

use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, TestResult};
use crate::kernels::User;

/// Twice, because the file's grid barrier goes on over launches.
pub(super) fn user(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    for tag in 0..2 {
        let outgoing = fixture.buffer(User::BYTES)?;
        let incoming = fixture.buffer(User::BYTES)?;
        let (out, into) = (fixture.register(&outgoing)?, fixture.register(&incoming)?);
        let link = fixture.pair(tag, &out, &into)?;
        let user = User {
            channel: link.channel,
            memories: [link.dst, link.src],
            outgoing,
            incoming,
            rank: context.rank(),
            has_fifo: !backend.posts_to_queue(),
            accumulates: backend.accumulate,
        };
        context.stage(format!("launch {tag}"));
        let (launched, failed) = user.launch()?;
        let ended = launched.finish(context.deadline());
        if ended.is_ok() {
            let step = failed.load_u64(0)?;
            ensure!(step == 0, "step {step} of port_channel_user.cu went wrong");
        }
        ended?;
        fixture.meet()?;
    }
    Ok(())
}
