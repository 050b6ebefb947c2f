// SPDX-License-Identifier: MIT
//! How a context is made.

use std::net::IpAddr;

use mscclpp_bootstrap::{Bootstrap, Deadlines, JobKey};

use crate::env::env;
use crate::gpu_queue::Hca;
use crate::trace::Tracer;

/// How a [`Context`](crate::Context) is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ContextConfig {
    /// The address that peers connect to; not the unspecified one.
    pub ip: IpAddr,
    /// The rank that errors and records name.
    pub rank: Option<usize>,
    /// The key that peers prove to have. Without, whoever sees an endpoint's record can connect.
    pub job_key: Option<JobKey>,
    /// How long things may take: by default what the environment says, or the bootstrap.
    ///
    /// A peer that takes and acknowledges nothing for [`Deadlines::stall`], although there is
    /// something to, fails its connection with [`Error::Stalled`](crate::Error::Stalled); so long
    /// the network may be silent, too.
    ///
    /// Over an HCA it says how long the machine at the other end may be silent, a port be down, and an
    /// HCA have requests without doing any. Requests that nobody acknowledges fail earlier, on a NIC in
    /// software after less than 5 s ([`Error::QueueFailed`](crate::Error::QueueFailed), RETRY_EXC_ERR),
    /// so that a process that is stopped for longer loses its connections there; on others as
    /// [`IbConfig::timeout`](crate::IbConfig::timeout) says
    /// ([`Error::RequestFailed`](crate::Error::RequestFailed)).
    pub deadlines: Deadlines,
    /// The HCAs that `IB0`, `IB1`, ... stand for, in this order; by default those that
    /// `MSCCLPP_HCA_DEVICES` names; if there are none, for the RDMA devices that libibverbs lists. Each
    /// is opened when it is first used.
    pub hca_devices: Vec<Hca>,
    /// Who is told of what connections over Ethernet do, and NICs in software that are opened by their
    /// names; nobody by default.
    pub trace: Option<Tracer>,
}

impl ContextConfig {
    /// The default at an address.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            rank: None,
            job_key: None,
            deadlines: env().deadlines,
            hca_devices: env().hca_devices.iter().map(Hca::named).collect(),
            trace: None,
        }
    }

    /// The default for a bootstrap's rank: at the bootstrap's address and with its job key. A
    /// bootstrap that has no address gets the loopback address, which serves one machine.
    #[must_use]
    pub fn of_rank(bootstrap: &dyn Bootstrap) -> Self {
        let ip = bootstrap.local_ip().unwrap_or_else(|| {
            tracing::debug!("the bootstrap has no address: peers must be on this machine");
            std::net::Ipv4Addr::LOCALHOST.into()
        });
        Self {
            rank: Some(bootstrap.rank()),
            job_key: bootstrap.job_key(),
            deadlines: bootstrap.deadlines(),
            ..Self::new(ip)
        }
    }
}
