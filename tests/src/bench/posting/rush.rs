// SPDX-License-Identifier: MIT
//! Posts as fast as can be.

use anyhow::ensure;
use mscclpp_device::LaunchDims;

use super::measure::{Args, BLOCK, Bench};
use super::report::{Call, Condition, Form, Metric, Posters, Subject};

/// Posts of each block with a queue of its own; their requests fit the ring.
const RUSH: u64 = 2000;
pub(super) const RUSH_BLOCKS: u32 = 4096;
pub(super) const BLOCKS: [u32; 4] = [1, 8, 32, 128];
/// Posts to one queue by all threads together, at most: their requests fill the largest ring.
const SHARED_RUSH: u64 = 16384;
pub(super) const SHARED_BLOCKS: u32 = 32768;
const THREADS: [u32; 5] = [1, 32, 128, 512, 1024];

/// Twin of `posting::Rush`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Rush {
    arrived: u64,
    spans: u64,
    posts: u64,
    queue_per_block: u64,
}

impl Bench {
    /// Posts as fast as can be.
    pub(super) fn rushes(&self) -> Vec<Subject> {
        let mut forms = vec![Form::Exclusive, Form::Shared];
        if self.theirs.is_some() {
            forms.extend([Form::TheirExclusive, Form::TheirShared]);
        }
        let mut subjects = Vec::new();
        for form in forms {
            let own = BLOCKS.map(|blocks| Posters {
                queues: blocks,
                threads: blocks,
            });
            let common = THREADS.map(|threads| Posters { queues: 1, threads });
            let shares = matches!(form, Form::Shared | Form::TheirShared);
            // One thread on one queue is among the first.
            let common = common
                .into_iter()
                .filter(|posters| shares && posters.threads > 1);
            for posters in own.into_iter().chain(common) {
                subjects.push(Subject {
                    form,
                    call: Call::PutWithSignal,
                    condition: Condition::BackToBack,
                    metric: Metric::Rate,
                    posters,
                });
            }
        }
        subjects
    }

    /// Millions of posts a second.
    pub(super) fn rush(&self, subject: Subject) -> anyhow::Result<f64> {
        let Subject { form, posters, .. } = subject;
        let Posters { queues, threads } = posters;
        let own = queues == threads;
        let memory = if own { &self.many } else { &self.one };
        memory.reset(&self.stream)?;
        self.results.clear(&self.stream)?;
        let posts = if own {
            RUSH
        } else {
            RUSH.min(SHARED_RUSH / u64::from(threads))
        };
        let rush = Rush {
            arrived: self.results.at(0),
            spans: self.results.at(1),
            posts,
            queue_per_block: own.into(),
        };
        let dims = match own {
            true => LaunchDims {
                grid: queues,
                block: 1,
            },
            false => LaunchDims {
                grid: threads.div_ceil(BLOCK),
                block: threads.min(BLOCK),
            },
        };
        match form {
            Form::TheirExclusive | Form::TheirShared => {
                let kernels = self.their_kernels()?;
                let kernel = match form {
                    Form::TheirExclusive => &kernels.rush_exclusive,
                    _ => &kernels.rush_shared,
                };
                self.end(kernel, dims, Args(self.theirs(memory)?, rush))?;
            }
            _ => {
                let handles = (0..queues).map(|number| Self::channel(memory, form, number));
                self.channels.set(handles);
                self.end(&self.ours.rush, dims, Args(self.channels.address(), rush))?;
            }
        }
        let results = self
            .results
            .read(&self.stream, 1 + 3 * u64::from(threads))?;
        let (spans, _) = results[1..].as_chunks::<3>();
        ensure!(spans.iter().all(|span| span[2] == 0), "a post failed");
        let start = spans.iter().map(|span| span[0]).min().unwrap_or(0);
        let end = spans.iter().map(|span| span[1]).max().unwrap_or(0);
        ensure!(end > start, "the clock stands still");
        Ok((posts * u64::from(threads)) as f64 / (end - start) as f64 * 1e3)
    }
}
