// SPDX-License-Identifier: MIT
//! What only the library has: there is nothing here to hold it against, but `mlx5-queue` reads it.

use mlx5_queue::{
    BLOCK_BYTES, DataSegment, DataSegments, Flags, MemoryKey, Operation as Read, Payload,
    QueueIndex, QueueNumber, RemoteAddress, WorkRequest,
};

use super::calls::{Call, Operation, foreign};
use super::machine::{Kernel, Machine, Outcome};
use super::queue::{NUMBER, Queue, Sharing};

const BLOCKS: u32 = 8;

fn key(stored: u32) -> MemoryKey {
    MemoryKey::new(u32::from_be(stored))
}

/// Posts each on the library's side. The names of those that `mlx5-queue` has read, and of the others.
pub(crate) fn read(machine: &dyn Machine) -> Outcome<[Vec<String>; 2]> {
    let mut names = [Vec::new(), Vec::new()];
    let mut queue = Queue::new(machine, Kernel::Theirs, BLOCKS)?;
    for start in [0, (1 << 16) - 1] {
        for call in foreign() {
            queue.begin(Sharing::Gpu, start);
            queue.call(machine, &call)?;
            let ring = queue.image().ring;
            let slot = QueueIndex::new(start).slot(queue.size()) as usize;
            let block = &ring[slot * BLOCK_BYTES..][..BLOCK_BYTES];
            let understood = expect(&call, start, block)?;
            let name = match call.size {
                12 | 28 => format!("{} of {} bytes", call.operation.name(), call.size),
                _ => call.operation.name().to_owned(),
            };
            let list = &mut names[usize::from(!understood)];
            if !list.contains(&name) {
                list.push(name);
            }
        }
    }
    Ok(names)
}

/// Whether it is read as what was asked for; an error if as something else.
fn expect(call: &Call, index: u64, block: &[u8]) -> Outcome<bool> {
    let segment = |address, key: u32, bytes| -> Outcome<DataSegment> {
        DataSegment::new(address, self::key(key), bytes).map_err(|error| error.to_string())
    };
    let remote = RemoteAddress {
        address: call.remote,
        key: key(call.remote_key),
    };
    let scratch = segment(0x00b1_b2b3_b4b5_b6b8, 0x00d1_d25a_u32.to_be(), 8)?;
    let local = segment(call.local, call.local_key, call.size.max(1) as u32)?;
    let list = [local.encode()];
    let bytes = [call.value.to_ne_bytes(); 4].concat();
    let write = |payload, immediate| Read::Write {
        remote,
        payload,
        immediate,
    };
    let operation = match call.operation {
        Operation::Word4 => write(Payload::Inline(&bytes[..4]), None),
        Operation::Inline => write(Payload::Inline(&bytes[..call.size as usize]), None),
        Operation::PutImmediate => write(
            Payload::Gather(DataSegments::new(&list)),
            // The library stores it as it is given.
            Some((call.value as u32).swap_bytes()),
        ),
        Operation::GetDump => Read::Read {
            remote,
            scatter: DataSegments::new(&list),
        },
        Operation::CompareSwap => Read::CompareSwap {
            remote,
            compare: call.value,
            swap: !call.value,
            result: scratch,
        },
        Operation::WaitFor => Read::Wait {
            queue: QueueNumber::new(call.size as u32).map_err(|error| error.to_string())?,
            index: call.value as u32,
        },
        Operation::Dump => Read::Dump { source: local },
        // Masked atomics: `mlx5-queue` refuses them.
        _ => return Ok(false),
    };
    let wanted = WorkRequest {
        queue: QueueNumber::new(NUMBER).map_err(|error| error.to_string())?,
        index: QueueIndex::new(index).low16(),
        flags: Flags::SIGNALLED,
        operation,
    };
    match WorkRequest::decode(block) {
        Ok(read) if read == wanted => Ok(true),
        read => Err(format!(
            "{}: {read:x?}, not {wanted:x?}",
            call.operation.name()
        )),
    }
}
