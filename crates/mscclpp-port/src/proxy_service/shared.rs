// SPDX-License-Identifier: MIT
//! What a service's callers and its proxy thread share.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use mscclpp_device::abi::{MAX_MEMORIES, MAX_SEMAPHORES};

use crate::connection::Connection;
use crate::counters::PostCells;
use crate::error::{Error, Result};
use crate::flush::FlushWord;
use crate::gpu_queue::MemoryTable;
use crate::memory::RegisteredMemory;
use crate::semaphore::Host2DeviceSemaphore;
use crate::sync::lock_plain as lock;
use crate::table::Table;
use crate::trace::ProxyTrace;

/// At most one warning about triggers of no connection in this time.
const WARNING_EVERY: Duration = Duration::from_secs(1);

/// A connection as one service sees it. Connections may serve several services; each has a flush
/// word of its own, because positions of two FIFOs cannot be compared.
pub(crate) struct Lane {
    pub(super) index: usize,
    pub(crate) connection: Connection,
    pub(crate) flush: Arc<FlushWord>,
    /// Counted by the proxy's thread alone.
    pub(crate) posts: Arc<PostCells>,
    /// What memory ids mean to kernels that post on the connection themselves.
    pub(crate) memories: Option<MemoryTable>,
}

impl Lane {
    pub(crate) fn is_of(&self, connection: &Connection) -> bool {
        Arc::ptr_eq(self.connection.sticky(), connection.sticky())
    }
}

/// An entry of the semaphore table.
pub(crate) struct Entry {
    pub(crate) semaphore: Arc<Host2DeviceSemaphore>,
    pub(crate) lane: Arc<Lane>,
}

/// The tables that triggers name entries of.
pub(crate) struct Tables {
    pub(crate) semaphores: Table<Entry>,
    pub(crate) memories: Table<RegisteredMemory>,
    /// Semaphores are added under this lock. It is taken before a table's own.
    lanes: Mutex<Vec<Arc<Lane>>>,
    strays: Mutex<Strays>,
    pub(super) trace: OnceLock<ProxyTrace>,
}

/// Triggers that name no connection, so that no connection can be told.
#[derive(Default)]
struct Strays {
    first: Option<Error>,
    count: u64,
    warned: Option<Instant>,
}

impl Tables {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            semaphores: Table::new("semaphores", MAX_SEMAPHORES),
            memories: Table::new("memories", MAX_MEMORIES),
            lanes: Mutex::default(),
            strays: Mutex::default(),
            trace: OnceLock::new(),
        })
    }

    pub(super) fn add_semaphore(&self, semaphore: Arc<Host2DeviceSemaphore>) -> Result<u32> {
        let mut lanes = lock(&self.lanes);
        // First: a lane that no semaphore has would keep its connection open for nothing.
        self.semaphores.next(1)?;
        let lane = self.lane(&mut lanes, semaphore.connection())?;
        self.semaphores.push(Entry { semaphore, lane })
    }

    /// The lane of a connection, made when it is first seen.
    fn lane(&self, lanes: &mut Vec<Arc<Lane>>, connection: &Connection) -> Result<Arc<Lane>> {
        if let Some(lane) = lanes.iter().find(|lane| lane.is_of(connection)) {
            return Ok(Arc::clone(lane));
        }
        let queue = connection.link().queue();
        let memories = queue
            .map(|queue| MemoryTable::new(queue.ends, connection.local_device()))
            .transpose()?;
        if let Some(table) = &memories {
            // Whoever adds one meanwhile enters it afterwards.
            for id in 0..self.memories.len() {
                table.set(id, self.memory(id)?)?;
            }
        }
        let lane = Arc::new(Lane {
            index: lanes.len(),
            connection: connection.clone(),
            flush: FlushWord::new()?,
            posts: connection.new_poster(),
            memories,
        });
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }

    /// Adds a memory, also for the kernels that post themselves.
    pub(super) fn add_memory(&self, memory: RegisteredMemory) -> Result<u32> {
        let id = self.memories.push(memory.clone())?;
        for table in lock(&self.lanes)
            .iter()
            .filter_map(|lane| lane.memories.as_ref())
        {
            table.set(id, &memory)?;
        }
        Ok(id)
    }

    /// The rank of the service's connections, where they have one.
    pub(super) fn rank(&self) -> Option<usize> {
        lock(&self.lanes).first()?.connection.ends().rank
    }

    pub(crate) fn memory(&self, id: u32) -> Result<&RegisteredMemory> {
        self.memories.get(id).ok_or_else(|| Error::UnknownMemory {
            id,
            known: self.memories.len(),
        })
    }

    pub(crate) fn semaphore(&self, id: u32) -> Result<&Entry> {
        self.semaphores
            .get(id)
            .ok_or_else(|| Error::UnknownSemaphore {
                id,
                known: self.semaphores.len(),
            })
    }

    /// Records a trigger of no connection: the first error is kept, all are counted.
    pub(super) fn stray(&self, error: Error) {
        let mut strays = lock(&self.strays);
        strays.count += 1;
        let now = Instant::now();
        if strays.warned.is_none_or(|at| now - at >= WARNING_EVERY) {
            strays.warned = Some(now);
            tracing::warn!(%error, count = strays.count, "a trigger was dropped");
        }
        strays.first.get_or_insert(error);
    }

    pub(super) fn strays(&self) -> (Option<Error>, u64) {
        let strays = lock(&self.strays);
        (strays.first.clone(), strays.count)
    }
}
