// SPDX-License-Identifier: MIT
//! One end of a connection before it is connected, and its wire form.

use std::net::SocketAddr;
use std::sync::Arc;

use mscclpp_bootstrap::host;
use mscclpp_bootstrap::link::{Acceptor, UnixAddress};
use serde::{Deserialize, Serialize};

use crate::context::{Context, ContextId};
use crate::cuda_ipc;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::gpu_queue::{GpuQueueProvider, HcaQueue, IbConfig, IbMode, QueueRecord};
#[cfg(feature = "ib")]
use crate::ib::IbQueue;
use crate::message;
use crate::transport::TransportKind;

/// More than any record takes; checked before decoding.
pub(crate) const MAX_RECORD: usize = 512;

/// What an endpoint is to be. Fill in what differs from the default:
///
/// ```
/// use mscclpp_port::{EndpointConfig, TransportKind};
///
/// let config = EndpointConfig {
///     max_write_queue_size: Some(64),
///     ..EndpointConfig::new(TransportKind::Ethernet)
/// };
/// # let _ = config;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointConfig {
    /// What to connect over.
    pub transport: TransportKind,
    /// The device whose kernels use the connection.
    pub device: Device,
    /// How many posts (writes, signals, accumulates, flushes) may wait in the connection's queue,
    /// at least 3; `None` leaves the number to the transport (1024 over Ethernet and over HCAs, 256
    /// over CUDA IPC). Over HCAs what is under way counts, too. Where kernels post themselves,
    /// [`IbConfig::max_send_wr`] counts instead.
    pub max_write_queue_size: Option<usize>,
    /// What an InfiniBand endpoint is to be; means nothing to others.
    pub ib: IbConfig,
}

impl EndpointConfig {
    /// A CPU endpoint for `transport`, with a queue of the usual size.
    #[must_use]
    pub fn new(transport: TransportKind) -> Self {
        Self {
            transport,
            device: Device::cpu(),
            max_write_queue_size: None,
            ib: IbConfig::default(),
        }
    }

    /// An endpoint on whose queue kernels post themselves: [`IbMode::GpuNetIo`] over `transport`,
    /// which must be one of `IB0` to `IB7`, with a shared queue of 1024 requests.
    #[must_use]
    pub fn gpu_initiated(transport: TransportKind) -> Self {
        let ib = IbConfig {
            mode: IbMode::GpuNetIo,
            ..IbConfig::default()
        };
        Self {
            ib,
            ..Self::new(transport)
        }
    }

    /// Checks what can be checked without a peer.
    pub(crate) fn check(&self) -> Result<()> {
        // What was asked for is never replaced by the proxy.
        if self.ib.mode == IbMode::GpuNetIo && !self.transport.is_ib() {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: format!(
                    "GPU-initiated needs an HCA: one of IB0 to IB7, not {}",
                    self.transport
                ),
            });
        }
        match self.transport {
            TransportKind::Ethernet => {}
            TransportKind::Unknown => {
                return Err(Error::InvalidUsage {
                    operation: "create an endpoint",
                    detail: "no transport was chosen".into(),
                });
            }
            TransportKind::CudaIpc => {
                cuda_ipc::check()?;
                if self.device.kind() != DeviceKind::Gpu {
                    return Err(Error::InvalidUsage {
                        operation: "create an endpoint",
                        detail: "CUDA IPC connects GPUs: its device must be one".into(),
                    });
                }
            }
            _ => self.ib.check()?,
        }
        if self.max_write_queue_size.is_some_and(|size| size < 3) {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: "its queue must hold a write, a signal and a flush: 3 posts".into(),
            });
        }
        self.device.check_available()
    }
}

/// One end of a connection to be: send its record to the peer, take the peer's, and give both to
/// [`Context::connect`]. Good for one connection.
pub struct Endpoint {
    pub(crate) config: EndpointConfig,
    pub(crate) context: Context,
    pub(crate) nonce: [u8; 16],
    pub(crate) acceptor: Arc<Acceptor>,
    /// Over an HCA: what requests will be posted to.
    pub(crate) queue: Option<EndpointQueue>,
}

/// The queue of an endpoint, not connected yet.
pub(crate) struct EndpointQueue {
    pub(crate) queue: MadeQueue,
    /// Behind the queue, which is made on it.
    pub(crate) hca: Arc<dyn GpuQueueProvider>,
    pub(crate) record: QueueRecord,
}

/// A queue, by those who post to it.
pub(crate) enum MadeQueue {
    Kernels(Box<dyn HcaQueue>),
    #[cfg(feature = "ib")]
    Host(Box<IbQueue>),
}

impl Endpoint {
    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// The record for the peer: transport, device, address, owner, and a random number that only
    /// those who get the record know. Send it over a channel that strangers cannot read.
    ///
    /// # Errors
    /// [`Error::Record`] if it cannot be expressed, which does not happen.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        message::encode("endpoint", &self.record())
    }

    pub(crate) fn record(&self) -> EndpointRecord {
        EndpointRecord {
            transport: self.config.transport,
            device: self.config.device,
            context: self.context.id(),
            rank: self.context.rank().and_then(|rank| rank.try_into().ok()),
            nonce: self.nonce,
            address: self.acceptor.local_addr(),
            queue: self.queue.as_ref().map(|queue| queue.record),
            socket: (self.config.transport != TransportKind::Ethernet)
                .then(|| self.socket())
                .flatten(),
        }
    }

    /// Where processes of this host reach it, where hosts have that.
    fn socket(&self) -> Option<HostSocket> {
        let address = self.acceptor.unix_address().inspect_err(|error| {
            tracing::debug!(%error, "NICs in software meet over the network");
        });
        Some(HostSocket {
            host: host::id(),
            address: address.ok()?.to_bytes(),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.context.forget_endpoint(self.nonce);
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("config", &self.config)
            .field("address", &self.acceptor.local_addr())
            .finish_non_exhaustive()
    }
}

/// What is sent of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndpointRecord {
    pub(crate) transport: TransportKind,
    pub(crate) device: Device,
    pub(crate) context: ContextId,
    pub(crate) rank: Option<u32>,
    pub(crate) nonce: [u8; 16],
    pub(crate) address: SocketAddr,
    /// Over HCAs, and only there.
    pub(crate) queue: Option<QueueRecord>,
    /// Where other processes of its host reach it.
    pub(crate) socket: Option<HostSocket>,
}

/// A socket that processes of one host reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostSocket {
    host: u64,
    address: [u8; 16],
}

impl HostSocket {
    /// Its address, if this process is on its host.
    pub(crate) fn here(&self) -> Option<UnixAddress> {
        (self.host == host::id()).then(|| UnixAddress::from_bytes(self.address))
    }
}

impl EndpointRecord {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let record: Self = message::decode("endpoint", bytes, MAX_RECORD)?;
        record.check()?;
        Ok(record)
    }

    /// Refuses what no endpoint says of itself.
    pub(crate) fn check(&self) -> Result<()> {
        let detail = match &self.queue {
            Some(queue) if self.transport.is_ib() => queue.check().err(),
            None if !self.transport.is_ib() => None,
            _ => Some("its queue is not that of its transport"),
        };
        match detail {
            None => Ok(()),
            Some(detail) => Err(Error::Record {
                what: "endpoint",
                detail: detail.into(),
            }),
        }
    }

    pub(crate) fn rank(&self) -> Option<usize> {
        self.rank.map(|rank| rank as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::gpu_queue::{HcaAddress, PortRecord, QueueAddress};

    #[test]
    fn gpu_initiated_without_an_hca_is_refused() {
        for transport in [TransportKind::Ethernet, TransportKind::CudaIpc] {
            let error = EndpointConfig::gpu_initiated(transport)
                .check()
                .unwrap_err();
            assert!(error.to_string().contains("needs an HCA"), "{error}");
        }
        assert!(EndpointConfig::new(TransportKind::Ethernet).check().is_ok());
    }

    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = EndpointRecord> {
        let bytes = any::<([u8; 16], [u8; 16], [u8; 16], Option<(u64, [u8; 16])>)>();
        let queue = (1u8..4, 1u8..6, 1u32..1 << 24, any::<(bool, bool, u8)>());
        let others = any::<(Option<u32>, SocketAddr)>();
        (0u8..11, bytes, queue, others).prop_map(|(transport, bytes, queue, (rank, address))| {
            let transport: TransportKind = transport.try_into().unwrap();
            let (context, nonce, hca, socket) = bytes;
            let (mode, mtu, number, (atomics, atomic_signals, outstanding_reads)) = queue;
            let queue = QueueRecord {
                mode: mode.try_into().unwrap(),
                atomic_signals,
                atomics,
                mtu: mtu.try_into().unwrap(),
                queue: QueueAddress {
                    hca: HcaAddress(hca),
                    number,
                },
                outstanding_reads,
                port: Some(PortRecord {
                    ethernet: atomics,
                    lid: number as u16,
                    needs_gid: atomic_signals,
                    first_packet: number,
                }),
            };
            EndpointRecord {
                transport,
                device: Device::cpu(),
                context: ContextId::from_bytes(context),
                rank,
                nonce,
                // The rest of a v6 address (flow, scope) means nothing to another host.
                address: SocketAddr::new(address.ip(), address.port()),
                queue: transport.is_ib().then_some(queue),
                socket: socket.map(|(host, address)| HostSocket { host, address }),
            }
        })
    }

    proptest! {
        #[test]
        fn a_record_survives_the_wire(record in records()) {
            let bytes = message::encode("endpoint", &record).unwrap();
            prop_assert!(bytes.len() <= MAX_RECORD);
            prop_assert_eq!(EndpointRecord::decode(&bytes).unwrap(), record);
        }
    }

    #[test]
    fn what_is_not_there_yet_says_what_is_missing() {
        let context = Context::for_tests();
        let has_gpu = Device::gpu(0).check_available().is_ok();
        if !has_gpu {
            let endpoint = context.create_endpoint(EndpointConfig::new(TransportKind::CudaIpc));
            let error = endpoint.map(drop).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("CUDA"), "{error}");
        }
        // Without InfiniBand in the build, that is what is missing; else it is the HCA.
        let none = EndpointConfig::new(TransportKind::IB7);
        match context.create_endpoint(none).map(drop).unwrap_err() {
            Error::Unsupported { missing, .. } if !cfg!(feature = "ib") => {
                assert!(missing.contains("InfiniBand"), "{missing}");
            }
            Error::HcaUnavailable { detail, .. } if cfg!(feature = "ib") => {
                assert!(detail.contains("MSCCLPP_HCA_DEVICES"), "{detail}");
            }
            error => panic!("{error}"),
        }
        let unknown = EndpointConfig::new(TransportKind::Unknown).check();
        assert!(matches!(unknown, Err(Error::InvalidUsage { .. })));
        let gpu = EndpointConfig {
            device: Device::gpu(1000),
            ..EndpointConfig::new(TransportKind::Ethernet)
        };
        assert!(matches!(gpu.check(), Err(Error::DeviceUnavailable { .. })));
        let small = EndpointConfig {
            max_write_queue_size: Some(2),
            ..EndpointConfig::new(TransportKind::Ethernet)
        };
        assert!(matches!(small.check(), Err(Error::InvalidUsage { .. })));
    }

    #[test]
    fn fuzz_endpoint_record() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(record) = mscclpp_fuzz::in_proportion(bytes, || EndpointRecord::decode(bytes))
            {
                let again = message::encode("endpoint", &record).unwrap();
                assert_eq!(EndpointRecord::decode(&again).unwrap(), record);
            }
        });
    }
}
