// SPDX-License-Identifier: MIT
//! What is counted on a connection.

use std::sync::Arc;
use std::time::Duration;

use super::{Connection, Ends};
use crate::counters::{Counters, PostCells};
use crate::sync::lock_plain as lock;

impl Connection {
    /// Where one proxy counts what it posts.
    pub(crate) fn new_poster(&self) -> Arc<PostCells> {
        let mut proxies = lock(&self.inner.proxies);
        // Nobody else posts there any more, so nothing is lost.
        proxies.retain(|cells| {
            let is_used = Arc::strong_count(cells) > 1;
            if !is_used {
                self.inner.posts.take_over(cells);
            }
            is_used
        });
        let cells = Arc::<PostCells>::default();
        proxies.push(Arc::clone(&cells));
        cells
    }

    /// What has been done on the connection so far. Reads what others count, and holds nobody up;
    /// may be called from any thread, as often as one likes. Where kernels of a GPU post themselves,
    /// three words are copied from its memory.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let inner = &*self.inner;
        let link = self.link();
        let counts = link.counts();
        let posts = (link.queue().is_none()).then(|| {
            let proxies = lock(&inner.proxies);
            let mut posts = inner.posts.read();
            proxies.iter().for_each(|cells| posts += cells.read());
            posts
        });
        let Ends { rank, peer, number } = inner.ends;
        Counters {
            rank,
            peer,
            transport: inner.config.transport,
            connection: number,
            posts,
            waits: inner.waits.read(),
            doorbells: counts.doorbells,
            completions: counts.completions,
            retries: counts.retries,
            queue: counts.queue,
            last_error: inner.status.error(),
        }
    }

    /// How many proxies' counts are kept apart.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn posters(&self) -> usize {
        lock(&self.inner.proxies).len()
    }

    /// Counts a call of the host that had to wait for the peer.
    pub(crate) fn waited(&self, time: Duration) {
        self.inner.waits.add(time);
    }
}
