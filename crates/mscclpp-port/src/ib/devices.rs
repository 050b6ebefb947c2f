// SPDX-License-Identifier: MIT
//! The RDMA devices of this machine, by name.

use std::sync::Arc;

use super::hca::IbHca;
use crate::error::{Error, Result};
use crate::gpu_queue::GpuQueueProvider;
use crate::transport::TransportKind;
use crate::verbs::{Device, VerbsError};

/// Their names, in the order of libibverbs.
pub(crate) fn names() -> impl Iterator<Item = String> {
    Device::list().unwrap_or_default().into_iter()
}

/// Why a transport stands for none, where nobody named any.
pub(crate) fn missing() -> String {
    const NAME: &str = "or name HCAs in ContextConfig::hca_devices or MSCCLPP_HCA_DEVICES (soft0 is a \
                        NIC in software)";
    match Device::list() {
        Err(error) => format!("{error}; {NAME}"),
        Ok(names) if names.is_empty() => {
            let reason = "libibverbs lists none".into();
            format!("{}; {NAME}", VerbsError::NoDevice { reason })
        }
        Ok(names) => format!(
            "there are {} RDMA devices ({}); {NAME}",
            names.len(),
            names.join(", ")
        ),
    }
}

/// Opens one.
pub(crate) fn open(name: &str, transport: TransportKind) -> Result<Arc<dyn GpuQueueProvider>> {
    let opened = Device::open(name).and_then(IbHca::new);
    let hca = opened.map_err(|error| match error {
        VerbsError::Library(_) | VerbsError::NoDevice { .. } | VerbsError::UnknownDevice { .. } => {
            Error::HcaUnavailable {
                transport,
                detail: format!("{name:?}: {error}; NICs in software are called soft0, soft1, ..."),
            }
        }
        error => error.into_error(transport),
    })?;
    #[cfg(feature = "gpunetio")]
    if hca.is_mlx5() {
        return Ok(Arc::new(crate::gpu_queue::DocaHca::real(hca)));
    }
    Ok(Arc::new(hca))
}
