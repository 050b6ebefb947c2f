// SPDX-License-Identifier: MIT
//! Queues, made of registered memory.

use std::sync::{Arc, Mutex};

use mlx5_queue::{BLOCK_BYTES, COMPLETION_BYTES, DoorbellRecord};

use super::layout::{self, context, cq, qp};
use super::{
    Command, Devx, Kind, Object, Refusal, Status, Syndrome, Tables, UarOwner, UmemOwner, capability,
};
use crate::{CompletionQueue, MemoryRange, QueuePair, QueuePairConfig};

/// A completion queue, with what it lies in.
pub(super) struct Completions {
    queue: CompletionQueue,
    _memory: [Arc<UmemOwner>; 2],
    _page: Arc<UarOwner>,
}

impl Completions {
    pub(super) fn number(&self) -> u32 {
        self.queue.number()
    }
}

/// A queue pair, with what it lies in and stands on.
pub(super) struct Pair {
    pub(super) pair: QueuePair,
    /// What was set of its context, for queries.
    pub(super) context: Mutex<[u8; context::BYTES]>,
    _completions: Arc<Completions>,
    _memory: [Arc<UmemOwner>; 2],
    _page: Arc<UarOwner>,
}

impl Pair {
    pub(super) fn number(&self) -> u32 {
        self.pair.number().get()
    }
}

/// What a command names, looked up.
struct Named<'a> {
    command: Command,
    tables: &'a Tables,
}

impl Named<'_> {
    fn refuse(&self, syndrome: Syndrome, what: &str, number: u32) -> Refusal {
        let reason = format!("{what} {number:#x} does not exist");
        self.command.refuse(Status::BadResource, syndrome, reason)
    }

    /// `bytes` bytes of registered memory, which a command names if a bit of it says so.
    fn memory(
        &self,
        what: &str,
        is_named: bool,
        number: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(Arc<UmemOwner>, MemoryRange), Refusal> {
        if !is_named {
            let reason = format!("{what}: no umem is named");
            return Err(self
                .command
                .refuse(Status::BadParameter, Syndrome::Umem, reason));
        }
        let umem = self
            .tables
            .umems
            .get(&number)
            .and_then(std::sync::Weak::upgrade);
        let umem = umem.ok_or_else(|| self.refuse(Syndrome::Umem, "umem", number))?;
        let range = umem.range.slice(offset, bytes).ok_or_else(|| {
            let length = umem.range.len();
            let reason = format!("{what}: {bytes} bytes from {offset:#x} of {length}");
            self.command
                .refuse(Status::BadParameter, Syndrome::UmemBounds, reason)
        })?;
        Ok((umem, range))
    }

    fn page(&self, number: u32) -> Result<Arc<UarOwner>, Refusal> {
        let page = self
            .tables
            .pages
            .get(&number)
            .and_then(std::sync::Weak::upgrade);
        page.ok_or_else(|| self.refuse(Syndrome::Page, "page", number))
    }

    /// Refuses what is not modelled and would change what the queue does.
    fn only(&self, syndrome: Syndrome, is: bool, what: &str) -> Result<(), Refusal> {
        let reason = format!("{what} is all that there is");
        if is {
            Ok(())
        } else {
            Err(self.command.refuse(Status::BadParameter, syndrome, reason))
        }
    }
}

pub(super) fn completions(devx: &Devx, input: &[u8], output: &mut [u8]) -> Result<Object, Refusal> {
    let command = Command::CreateCq;
    command.lengths(input, 0x110, output, 0x10)?;
    let mut tables = devx.tables();
    let named = Named {
        command,
        tables: &tables,
    };
    named.only(
        Syndrome::Form,
        cq::ENTRY_SIZE.get(input) == 0,
        "an entry of 64 bytes",
    )?;
    named.only(
        Syndrome::Form,
        !cq::COLLAPSED.is_set(input),
        "an entry a completion",
    )?;
    named.only(
        Syndrome::Form,
        cq::OVERRUN_IGNORED.is_set(input),
        "overrun that is ignored",
    )?;
    let events = cq::EVENT_QUEUE.get(input);
    if events != capability::EVENT_QUEUE {
        return Err(named.refuse(Syndrome::EventQueue, "event queue", events));
    }
    let page = named.page(cq::PAGE.get(input))?;
    // At most 2^31: five bits.
    let entries = 1u32 << cq::LOG_SIZE.get(input);
    let (ring_memory, ring) = named.memory(
        "entries",
        cq::VALID.is_set(input),
        cq::UMEM.get(input),
        layout::get64(input, cq::OFFSET),
        u64::from(entries) * COMPLETION_BYTES as u64,
    )?;
    // The NIC ignores overrun, and so never reads this record. It has to be there all the same.
    let (record_memory, _) = named.memory(
        "record",
        cq::RECORD_VALID.is_set(input),
        cq::RECORD_UMEM.get(input),
        layout::get64(input, cq::RECORD_OFFSET),
        DoorbellRecord::BYTES as u64,
    )?;
    let queue = devx.device().create_completion_queue(ring, entries);
    let queue = queue.map_err(|error| Refusal::of_device(command.name(), &error))?;
    layout::NUMBER.set(output, queue.number());
    let queue = Arc::new(Completions {
        queue,
        _memory: [ring_memory, record_memory],
        _page: page,
    });
    tables
        .completions
        .retain(|_, queue| queue.strong_count() > 0);
    tables
        .completions
        .insert(queue.number(), Arc::downgrade(&queue));
    Ok(Object(Kind::Completions(queue)))
}

pub(super) fn pair(devx: &Devx, input: &[u8], output: &mut [u8]) -> Result<Object, Refusal> {
    let command = Command::CreateQp;
    command.lengths(input, 0x110, output, 0x10)?;
    let tables = devx.tables();
    let named = Named {
        command,
        tables: &tables,
    };
    let wanted = layout::from(input, context::AT);
    named.only(
        Syndrome::Form,
        context::SERVICE.get(wanted) == 0,
        "reliable connection",
    )?;
    named.only(
        Syndrome::Form,
        context::RECEIVE_TYPE.get(wanted) == 3,
        "no receive queue",
    )?;
    named.only(
        Syndrome::Form,
        !context::NO_SEND_QUEUE.is_set(wanted),
        "a send queue",
    )?;
    let with_record = context::RECORD_MODE.get(wanted) == 0;
    named.only(
        Syndrome::RecordMode,
        with_record,
        "a doorbell record that counts",
    )?;

    let number = context::DOMAIN.get(wanted);
    let domain = tables.domains.get(&number);
    let domain = domain.ok_or_else(|| named.refuse(Syndrome::Domain, "domain", number))?;
    let number = context::SEND_CQ.get(wanted);
    let completions = tables
        .completions
        .get(&number)
        .and_then(std::sync::Weak::upgrade);
    let completions = completions
        .ok_or_else(|| named.refuse(Syndrome::CompletionQueue, "completion queue", number))?;
    let page = named.page(context::PAGE.get(wanted))?;
    let blocks = 1u32 << context::LOG_SEND_SIZE.get(wanted);
    let (ring_memory, ring) = named.memory(
        "send queue",
        qp::RING_VALID.is_set(input),
        qp::RING_UMEM.get(input),
        layout::get64(input, qp::RING_OFFSET),
        u64::from(blocks) * BLOCK_BYTES as u64,
    )?;
    let (record_memory, record) = named.memory(
        "record",
        context::RECORD_VALID.is_set(wanted),
        context::RECORD_UMEM.get(wanted),
        layout::get64(wanted, context::RECORD_OFFSET),
        DoorbellRecord::BYTES as u64,
    )?;
    let pair = domain.create_queue_pair(QueuePairConfig {
        send_ring: ring,
        send_blocks: blocks,
        record,
        send_completions: &completions.queue,
        receive: None,
        page: &page.page,
        trigger: None,
    });
    let pair = pair.map_err(|error| Refusal::of_device(command.name(), &error))?;
    layout::NUMBER.set(output, pair.number().get());
    let mut kept = [0; context::BYTES];
    keep_creation(&mut kept, wanted, devx);
    Ok(Object(Kind::Pair(Box::new(Pair {
        pair,
        context: Mutex::new(kept),
        _completions: completions,
        _memory: [ring_memory, record_memory],
        _page: page,
    }))))
}

/// What a queue pair's context keeps for life; the rest is as before a connection.
fn keep_creation(kept: &mut [u8; context::BYTES], wanted: &[u8], devx: &Devx) {
    let mut new = [0; context::BYTES];
    for field in [
        context::SERVICE,
        context::DOMAIN,
        context::LOG_SEND_SIZE,
        context::PAGE,
        context::USER_INDEX,
        context::SEND_CQ,
        context::RECEIVE_TYPE,
    ] {
        field.set(&mut new, field.get(wanted));
    }
    // Firmware says the port's until a path has one.
    context::MTU.set(&mut new, devx.device().capabilities().mtu.code().into());
    *kept = new;
}

/// As the context was after creation.
pub(super) fn forget_connection(kept: &mut [u8; context::BYTES], devx: &Devx) {
    let old = *kept;
    keep_creation(kept, &old, devx);
}
