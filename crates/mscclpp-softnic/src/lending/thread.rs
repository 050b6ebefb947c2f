// SPDX-License-Identifier: MIT
//! Exports and imports of memory, on a thread of their own: they may take a
//! moment, and the engine never waits.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use mlx5_queue::MemoryKey;

use crate::capability::DeviceAddress;
use crate::engine::Inner;
use crate::memory::{Export, Imported, MemoryRange, NicMemory};
use crate::nic::SpaceId;
use crate::nic::loans::Offer;

/// A registration over one link: this one's or the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Loan {
    pub(crate) peer: DeviceAddress,
    /// The link's number.
    pub(crate) link: u64,
    pub(crate) key: MemoryKey,
}

/// What is to be done.
pub(crate) enum Job {
    Export(Loan, MemoryRange),
    Import {
        loan: Loan,
        offer: Offer,
        descriptor: Option<OwnedFd>,
        memories: Vec<(SpaceId, Arc<dyn NicMemory>)>,
    },
    /// Unmapping may take a moment, too.
    Drop(Vec<Arc<dyn Any + Send + Sync>>),
}

/// What has come of it.
pub(crate) enum Done {
    Exported(Loan, Option<(Offer, Option<OwnedFd>)>),
    Imported(Loan, Vec<(SpaceId, Imported)>),
}

/// The thread, started when it is first needed.
pub(crate) struct LendingThread {
    inner: Weak<Inner>,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl LendingThread {
    pub(crate) fn new(inner: Weak<Inner>) -> Self {
        Self {
            inner,
            jobs: None,
            thread: None,
        }
    }

    /// Has something done; the job again if there can be no thread.
    pub(crate) fn ask(&mut self, job: Job) -> Result<(), Job> {
        if self.jobs.is_none()
            && let Some(inner) = self.inner.upgrade()
        {
            let (jobs, asked) = channel();
            let name = format!("{}-lending", inner.name);
            let weak = Weak::clone(&self.inner);
            match thread::Builder::new()
                .name(name)
                .spawn(move || run(&weak, &asked))
            {
                Ok(thread) => (self.jobs, self.thread) = (Some(jobs), Some(thread)),
                Err(error) => {
                    tracing::warn!(%error, "a NIC in software lends and borrows no memory");
                }
            }
        }
        match &self.jobs {
            Some(jobs) => jobs.send(job).map_err(|error| error.0),
            None => Err(job),
        }
    }

    /// Ends it; to be waited for when no lock is held that it may need.
    pub(crate) fn stop(&mut self) -> Option<JoinHandle<()>> {
        self.jobs = None;
        self.inner = Weak::new();
        self.thread.take()
    }
}

fn run(inner: &Weak<Inner>, asked: &Receiver<Job>) {
    // What was asked of a device that has ended meanwhile, nobody waits for.
    let has_ended = || inner.upgrade().is_none_or(|inner| inner.has_ended());
    for job in asked {
        let done = match job {
            Job::Drop(owners) => {
                drop(owners);
                continue;
            }
            _ if has_ended() => continue,
            Job::Export(loan, range) => Done::Exported(loan, export(loan, &range)),
            Job::Import {
                loan,
                offer,
                descriptor,
                memories,
            } => Done::Imported(loan, import(loan, &offer, descriptor, &memories)),
        };
        if let Some(inner) = inner.upgrade() {
            inner.note(done);
        }
    }
}

fn export(loan: Loan, range: &MemoryRange) -> Option<(Offer, Option<OwnedFd>)> {
    let peer = loan.peer;
    match range.memory().export(range) {
        Ok(Some(export)) if export.description.len() <= Export::MAX_DESCRIPTION => {
            let offer = Offer {
                address: range.address(),
                length: range.len(),
                descriptor: export.descriptor.is_some(),
                description: export.description,
            };
            Some((offer, export.descriptor))
        }
        Ok(Some(_)) => {
            tracing::warn!(%peer, ?range, "an export's description is too long");
            None
        }
        Ok(None) => {
            tracing::debug!(%peer, ?range, "a registration cannot be lent: bytes go by the link");
            None
        }
        Err(fault) => {
            tracing::debug!(%peer, ?range, %fault, "a registration is not lent: bytes go by the link");
            None
        }
    }
}

fn import(
    loan: Loan,
    offer: &Offer,
    descriptor: Option<OwnedFd>,
    memories: &[(SpaceId, Arc<dyn NicMemory>)],
) -> Vec<(SpaceId, Imported)> {
    let Loan { peer, key, .. } = loan;
    let descriptor = descriptor.as_ref().map(AsFd::as_fd);
    let mut imported = Vec::new();
    for (space, memory) in memories {
        match memory.import(&offer.description, descriptor, offer.length) {
            Ok(Some(range)) => imported.push((*space, range)),
            Ok(None) => {}
            Err(fault) => {
                let key = key.get();
                tracing::debug!(%peer, key, %fault, "a peer's registration cannot be mapped");
            }
        }
    }
    imported
}
