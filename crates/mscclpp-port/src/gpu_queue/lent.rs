// SPDX-License-Identifier: MIT
//! What NICs in software of two processes of one host say of a GPU's memory, so that one reaches the
//! other's.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use mscclpp_device::cuda::{self, CudaError, Gpu, ImportedMemory};
use mscclpp_softnic::{Export, Imported, MemoryFault, MemoryRange};
use serde::{Deserialize, Serialize};

use crate::buffer::Buffer;
use crate::cuda_ipc::{ProcessId, open_legacy, process_id};
use crate::error::Error;
use crate::gpu::Keep;
use crate::message;

const WHAT: &str = "a GPU's memory for another NIC";

/// Where a registration is in the allocation that is shared.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    process: ProcessId,
    offset: u64,
    handle: Handle,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Handle {
    /// The descriptor that comes with the record, and the bytes of the allocation.
    Descriptor { block: u64 },
    /// The driver's own name of it, 64 bytes.
    Legacy([[u8; 32]; 2]),
}

fn fault(error: Error) -> MemoryFault {
    MemoryFault(error.to_string())
}

fn refused(error: CudaError) -> MemoryFault {
    MemoryFault(error.to_string())
}

/// A registration of a buffer's, as another process of this host reaches it.
pub(super) fn export(range: &MemoryRange) -> Result<Option<Export>, MemoryFault> {
    let memory = range.owner().downcast_ref().and_then(Buffer::gpu);
    let Some(memory) = memory else {
        return Ok(None);
    };
    let offset = range.address() - memory.address();
    let exported = memory.export(offset, range.len()).map_err(fault)?;
    let (offset, handle, descriptor) = match exported {
        cuda::Export::Fd { fd, block, offset } => (offset, Handle::Descriptor { block }, Some(fd)),
        cuda::Export::Legacy { handle, offset } => {
            let mut halves = [[0; 32]; 2];
            halves[0].copy_from_slice(&handle[..32]);
            halves[1].copy_from_slice(&handle[32..]);
            (offset, Handle::Legacy(halves), None)
        }
    };
    let record = Record {
        process: process_id().map_err(fault)?,
        offset,
        handle,
    };
    let description = message::encode(WHAT, &record).map_err(fault)?;
    Ok(Some(Export {
        description,
        descriptor,
    }))
}

/// The first `length` bytes of another process's registration, as `gpu` reaches them.
pub(super) fn import(
    gpu: &Gpu,
    description: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    length: u64,
) -> Result<Imported, MemoryFault> {
    let record = decode(description, length)?;
    let offset = record.offset;
    let (address, owner): (u64, Keep) = match (record.handle, descriptor) {
        (Handle::Descriptor { block }, Some(descriptor)) => {
            let fd = descriptor.try_clone_to_owned();
            let fd = fd.map_err(|error| MemoryFault(error.to_string()))?;
            let export = cuda::Export::Fd { fd, block, offset };
            let memory = ImportedMemory::open(gpu, export, length).map_err(refused)?;
            (memory.address(), Arc::new(memory))
        }
        (Handle::Descriptor { .. }, None) => {
            return Err(MemoryFault("a descriptor was told of and none came".into()));
        }
        (Handle::Legacy(_), _) if record.process == process_id().map_err(fault)? => {
            let why = "the driver does not open its own process's handle of memory of cuMemAlloc";
            return Err(MemoryFault(why.into()));
        }
        (Handle::Legacy(halves), _) => {
            let memory = open_legacy(gpu, &halves, offset + length).map_err(refused)?;
            if memory.gpu() != *gpu {
                return Err(MemoryFault("it is open for another GPU".into()));
            }
            (memory.address() + offset, memory)
        }
    };
    // SAFETY: the driver has mapped so many bytes for the GPU, and they stay until the owner is
    // dropped; this program has no reference to them.
    Ok(unsafe { Imported::new(address, owner) })
}

/// A record whose `length` bytes lie in the allocation, as far as it says how large that is.
fn decode(description: &[u8], length: u64) -> Result<Record, MemoryFault> {
    let max = Export::MAX_DESCRIPTION;
    let record: Record = message::decode(WHAT, description, max).map_err(fault)?;
    let end = record.offset.checked_add(length);
    let fits = match record.handle {
        Handle::Descriptor { block } => end.is_some_and(|end| end <= block),
        Handle::Legacy(_) => end.is_some(),
    };
    if fits {
        Ok(record)
    } else {
        Err(MemoryFault("it passes the end of its allocation".into()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn encoded(offset: u64, handle: Handle) -> Vec<u8> {
        let process = [255; 16];
        let record = Record {
            process,
            offset,
            handle,
        };
        message::encode(WHAT, &record).unwrap()
    }

    #[test]
    fn the_longest_record_fits() {
        let legacy = encoded(u64::MAX, Handle::Legacy([[255; 32]; 2]));
        assert!(legacy.len() <= Export::MAX_DESCRIPTION, "{}", legacy.len());
    }

    #[test]
    fn what_is_not_inside_of_the_allocation_is_refused() {
        let fits = |offset, length| {
            decode(&encoded(offset, Handle::Descriptor { block: 100 }), length).is_ok()
        };
        assert!(fits(0, 100) && fits(99, 1));
        assert!(!fits(0, 101) && !fits(100, 1) && !fits(u64::MAX, 1));
        let legacy = encoded(u64::MAX, Handle::Legacy([[0; 32]; 2]));
        assert!(decode(&legacy, 0).is_ok());
        assert!(decode(&legacy, 1).is_err());
    }

    #[test]
    fn fuzz_lent() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok(record) = decode(bytes, 64) else {
                return;
            };
            let again = message::encode(WHAT, &record).unwrap();
            assert_eq!(decode(&again, 64), Ok(record));
        });
    }
}
