// SPDX-License-Identifier: MIT
//! The wire form of a registration: its key and what a sender must know to check; for HCAs, which take
//! addresses, the address and a key of each; for processes that reach a GPU's memory themselves, how.

use serde::{Deserialize, Serialize};

use crate::context::ContextId;
use crate::error::Error;
use crate::memory::{IpcRecord, Owner};
use crate::message;
use crate::transport::{TransportFlags, TransportKind};

/// More than any record takes; checked before decoding.
const MAX_RECORD: usize = 768;

/// What is sent of a registration, or of a range of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryRecord {
    pub(crate) key: u64,
    /// Start of the range in the registration.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) owner: Owner,
    pub(crate) transports: TransportFlags,
    /// Address of the registration's first byte, modulo 8.
    pub(crate) misalignment: u8,
    /// Address of the registration's first byte for HCAs; 0 if it has no keys of those.
    pub(crate) address: u64,
    /// One for each HCA, in the order of their numbers.
    pub(crate) keys: Vec<HcaKey>,
    /// For CUDA IPC, and only then.
    pub(crate) ipc: Option<IpcRecord>,
}

/// The key of a registration on one of its owner's HCAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HcaKey {
    pub(crate) transport: TransportKind,
    pub(crate) key: u32,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    key: u64,
    offset: u64,
    size: u64,
    context: ContextId,
    rank: Option<u32>,
    transports: TransportFlags,
    misalignment: u8,
    address: u64,
    keys: Vec<HcaKey>,
    ipc: Option<IpcRecord>,
}

impl MemoryRecord {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let wire = Wire {
            key: self.key,
            offset: self.offset,
            size: self.size,
            context: self.owner.context,
            rank: self.owner.rank.and_then(|rank| u32::try_from(rank).ok()),
            transports: self.transports,
            misalignment: self.misalignment,
            address: self.address,
            keys: self.keys.clone(),
            ipc: self.ipc.clone(),
        };
        message::encode("memory", &wire)
    }

    /// Decodes and checks: a range that is empty or passes the end of the address space, a
    /// misalignment above 7, or keys that are not those of its transports, are refused.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wire: Wire = message::decode("memory", bytes, MAX_RECORD)?;
        let fail = |detail: &str| {
            Err(Error::Record {
                what: "memory",
                detail: detail.into(),
            })
        };
        if wire.size == 0 || wire.offset.checked_add(wire.size).is_none() {
            return fail("its range is empty or passes the end of the address space");
        }
        if wire.misalignment > 7 {
            return fail("its alignment is impossible");
        }
        let ascending = wire.keys.is_sorted_by(|a, b| a.transport < b.transport);
        let known = (wire.keys.iter())
            .all(|key| key.transport.is_ib() && wire.transports.has(key.transport));
        let all = (wire.transports & TransportFlags::ALL_IB).count() as usize == wire.keys.len();
        if !ascending || !known || !all {
            return fail("its keys are not those of its transports");
        }
        if wire.ipc.is_some() != wire.transports.has(TransportKind::CudaIpc) {
            return fail("what it says of CUDA IPC is not for its transports");
        }
        if let Some(Err(detail)) = (wire.ipc.as_ref()).map(|ipc| ipc.check(wire.offset + wire.size))
        {
            return fail(detail);
        }
        let end = wire.address.checked_add(wire.offset + wire.size);
        if end.is_none() || (wire.keys.is_empty() && wire.address != 0) {
            return fail("its address is impossible");
        }
        Ok(Self {
            key: wire.key,
            offset: wire.offset,
            size: wire.size,
            owner: Owner {
                context: wire.context,
                rank: wire.rank.map(|rank| rank as usize),
            },
            transports: wire.transports,
            misalignment: wire.misalignment,
            address: wire.address,
            keys: wire.keys,
            ipc: wire.ipc,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::IpcHandle;
    use proptest::prelude::*;

    fn ipc() -> impl Strategy<Value = IpcRecord> {
        let handle = prop_oneof![
            any::<([u8; 16], [u8; 16])>().prop_map(|(socket, id)| IpcHandle::Descriptor {
                socket,
                id,
                block: u64::MAX
            }),
            any::<[[u8; 32]; 2]>().prop_map(IpcHandle::Legacy),
        ];
        let names = any::<(u64, [u8; 16], bool)>();
        (names, "[ -~]{0,64}", handle).prop_map(|((host, process, for_signals), gpu, handle)| {
            IpcRecord {
                host,
                process,
                gpu,
                for_signals,
                offset: 0,
                handle,
            }
        })
    }

    fn records() -> impl Strategy<Value = MemoryRecord> {
        let owner = (any::<[u8; 16]>(), any::<Option<u32>>());
        (
            any::<u64>(),
            any::<u32>(),
            1u64..,
            owner,
            0u16..1 << 11,
            (0u8..8, any::<u64>(), any::<[u32; 8]>()),
            ipc(),
        )
            .prop_map(
                |(key, offset, size, (context, rank), transports, hca, ipc)| {
                    let (misalignment, address, keys) = hca;
                    let transports: TransportFlags = transports.try_into().unwrap();
                    let keys: Vec<HcaKey> = (TransportKind::ALL.into_iter())
                        .filter(|kind| kind.is_ib())
                        .zip(keys)
                        .filter(|(kind, _)| transports.has(*kind))
                        .map(|(transport, key)| HcaKey { transport, key })
                        .collect();
                    let offset = u64::from(offset);
                    let size = size.min(u64::MAX - offset);
                    let address = if keys.is_empty() { 0 } else { address };
                    MemoryRecord {
                        key,
                        offset,
                        size,
                        owner: Owner {
                            context: ContextId::from_bytes(context),
                            rank: rank.map(|rank| rank as usize),
                        },
                        transports,
                        misalignment,
                        address: address.min(u64::MAX - offset - size),
                        keys,
                        ipc: transports.has(TransportKind::CudaIpc).then_some(ipc),
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn a_record_survives_the_wire(record in records()) {
            let bytes = record.encode().unwrap();
            prop_assert!(bytes.len() <= MAX_RECORD);
            prop_assert_eq!(MemoryRecord::decode(&bytes).unwrap(), record);
        }

        #[test]
        fn a_cut_record_is_refused(record in records(), cut in 1usize..40) {
            let bytes = record.encode().unwrap();
            let cut = bytes.len().saturating_sub(cut);
            prop_assert!(MemoryRecord::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn gpunetio_keys_that_do_not_fit_the_transports_are_refused() {
        let good = MemoryRecord {
            key: 1,
            offset: 8,
            size: 8,
            owner: Owner {
                context: ContextId::from_bytes([1; 16]),
                rank: None,
            },
            transports: TransportKind::Ethernet | TransportKind::IB1,
            misalignment: 0,
            address: 4096,
            keys: vec![HcaKey {
                transport: TransportKind::IB1,
                key: 7,
            }],
            ipc: None,
        };
        let decodes = |record: &MemoryRecord| MemoryRecord::decode(&record.encode().unwrap());
        assert_eq!(decodes(&good).unwrap(), good);
        let mut bad = vec![good.clone(); 6];
        bad[0].keys.clear();
        bad[1].keys.push(good.keys[0]);
        bad[2].keys[0].transport = TransportKind::IB2;
        bad[3].keys[0].transport = TransportKind::Ethernet;
        bad[4].address = u64::MAX - 15;
        bad[5].transports = TransportKind::Ethernet.into();
        for bad in bad {
            assert!(decodes(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_shared_must_hold_the_range_and_belong_to_the_transports() {
        let ipc = IpcRecord {
            host: 1,
            process: [2; 16],
            gpu: "GPU-0".into(),
            for_signals: false,
            offset: 4096,
            handle: IpcHandle::Descriptor {
                socket: [3; 16],
                id: [4; 16],
                block: 8192,
            },
        };
        let good = MemoryRecord {
            key: 1,
            offset: 96,
            size: 4000,
            owner: Owner {
                context: ContextId::from_bytes([1; 16]),
                rank: None,
            },
            transports: TransportKind::CudaIpc.into(),
            misalignment: 0,
            address: 0,
            keys: Vec::new(),
            ipc: Some(ipc.clone()),
        };
        let decodes = |record: &MemoryRecord| MemoryRecord::decode(&record.encode().unwrap());
        assert_eq!(decodes(&good).unwrap(), good);
        let with = |ipc| MemoryRecord {
            ipc,
            ..good.clone()
        };
        let bad = [
            with(None),
            MemoryRecord {
                size: 4001,
                ..good.clone()
            },
            MemoryRecord {
                transports: TransportKind::Ethernet.into(),
                ..good.clone()
            },
            with(Some(IpcRecord {
                offset: u64::MAX,
                handle: IpcHandle::Legacy([[5; 32]; 2]),
                ..ipc.clone()
            })),
            with(Some(IpcRecord {
                gpu: "x".repeat(65),
                ..ipc
            })),
        ];
        for bad in bad {
            assert!(decodes(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fuzz_memory_record() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(record) = mscclpp_fuzz::in_proportion(bytes, || MemoryRecord::decode(bytes)) {
                let again = MemoryRecord::decode(&record.encode().unwrap()).unwrap();
                assert_eq!(again, record);
            }
        });
    }
}
