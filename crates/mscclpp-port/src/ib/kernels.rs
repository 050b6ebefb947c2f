// SPDX-License-Identifier: MIT
//! What queues that kernels post to need to know of an HCA that libibverbs opened.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::IbHca;
use super::port::Wish;
use crate::error::{Error, Result};
use crate::gpu_queue::{HcaAddress, Mtu, PortRecord};
use crate::random::random_u64;
use crate::transport::TransportKind;
use crate::verbs::LinkLayer;

/// The port that such a queue is for.
pub(crate) struct KernelPort {
    pub(crate) number: u8,
    pub(crate) gid: HcaAddress,
    pub(crate) gid_index: u32,
    pub(crate) mtu: Mtu,
    pub(crate) max_message: u64,
    pub(crate) record: PortRecord,
}

impl IbHca {
    /// Whether it is an mlx5 device, whose queues kernels can post to.
    pub(crate) fn is_mlx5(&self) -> bool {
        self.device.is_mlx5()
    }

    /// Its protection domain, as libibverbs has it; lives as long as this.
    pub(crate) fn raw_domain(&self) -> NonNull<c_void> {
        self.domain.raw().cast()
    }

    /// The port and GID to use.
    pub(crate) fn port_for_kernels(
        &self,
        port: Option<u8>,
        gid_index: Option<u32>,
    ) -> Result<KernelPort> {
        let transport = TransportKind::IB0;
        let wish = Wish {
            port,
            gid_index,
            ..Wish::default()
        };
        let choice = self.choose(transport, wish)?;
        let attributes = (self.device.port(choice.port)).map_err(|e| e.into_error(transport))?;
        let ethernet = attributes.link_layer == LinkLayer::Ethernet;
        if ethernet && choice.port != 1 {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: format!(
                    "port {} of RoCE was chosen, and GPUNetIO resolves addresses on port 1 alone: \
                     use port 1 (IbConfig::port)",
                    choice.port
                ),
            });
        }
        Ok(KernelPort {
            number: choice.port,
            gid: HcaAddress(choice.gid.raw),
            gid_index: choice.gid.index,
            mtu: (attributes.active_mtu)
                .and_then(|mtu| Mtu::from_code(mtu.code()))
                .unwrap_or(Mtu::SMALLEST),
            max_message: attributes.max_message.into(),
            record: PortRecord {
                ethernet,
                lid: attributes.lid,
                needs_gid: attributes.needs_gid(),
                first_packet: random_u64()? as u32 & 0xff_ffff,
            },
        })
    }
}
