// SPDX-License-Identifier: MIT
//! The HCAs that `IB0` to `IB7` stand for.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::lock;
use super::provider::GpuQueueProvider;
use super::soft::SoftHca;
use crate::error::{Error, Result};
use crate::transport::TransportKind;

/// An HCA (an RDMA network adapter) that a transport `IBn` stands for: entry n of
/// [`ContextConfig::hca_devices`](crate::ContextConfig::hca_devices).
///
/// This build has NICs in software only, those of `mscclpp-softnic`, called `soft0`, `soft1` and so
/// on. Naming another costs nothing; whoever uses it gets [`Error::HcaUnavailable`], never a NIC in
/// software in its place.
#[derive(Clone)]
pub struct Hca(Source);

#[derive(Clone)]
enum Source {
    Named(String),
    Soft(mscclpp_softnic::Device),
    #[cfg(all(test, not(loom)))]
    Made(Arc<dyn Fn() -> Result<Arc<dyn GpuQueueProvider>> + Send + Sync>),
}

impl Hca {
    /// The HCA of this name. A context opens it when it first needs it; two contexts open two.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self(Source::Named(name.into()))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Source::Named(name) => name,
            Source::Soft(device) => device.name(),
            #[cfg(all(test, not(loom)))]
            Source::Made(_) => "made by a test",
        }
    }

    /// An HCA that a test opens in its own way.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn made(
        make: impl Fn() -> Result<Arc<dyn GpuQueueProvider>> + Send + Sync + 'static,
    ) -> Self {
        Self(Source::Made(Arc::new(make)))
    }

    fn open(&self, transport: TransportKind) -> Result<Arc<dyn GpuQueueProvider>> {
        let device = match &self.0 {
            Source::Soft(device) => device.clone(),
            #[cfg(all(test, not(loom)))]
            Source::Made(make) => return make(),
            Source::Named(name) => {
                use mscclpp_softnic::{Device, DeviceConfig, Error as SoftError};
                Device::open(name, DeviceConfig::default()).map_err(|error| match error {
                    SoftError::UnknownDevice { .. } => Error::HcaUnavailable {
                        transport,
                        detail: format!(
                            "{name:?} is no HCA that this build can use: it has NICs in software \
                             only, called soft0, soft1, ..."
                        ),
                    },
                    error => Error::hca(name, "open it", error),
                })?
            }
        };
        Ok(Arc::new(SoftHca::new(device)?))
    }
}

/// An opened NIC in software: several contexts may share it, and a test may have told it to
/// misbehave.
impl From<mscclpp_softnic::Device> for Hca {
    fn from(device: mscclpp_softnic::Device) -> Self {
        Self(Source::Soft(device))
    }
}

impl fmt::Debug for Hca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hca").field(&self.name()).finish()
    }
}

/// The HCAs of a context, opened when they are first used.
pub(crate) struct Hcas(Vec<Slot>);

struct Slot {
    hca: Hca,
    opened: Mutex<Option<Arc<dyn GpuQueueProvider>>>,
}

impl Hcas {
    pub(crate) fn new(devices: &[Hca]) -> Self {
        let closed = |hca: &Hca| Slot {
            hca: hca.clone(),
            opened: Mutex::default(),
        };
        Self(devices.iter().map(closed).collect())
    }

    /// The HCA of a transport, opened.
    pub(crate) fn get(&self, transport: TransportKind) -> Result<Arc<dyn GpuQueueProvider>> {
        let entry = index(transport).and_then(|index| self.0.get(index));
        let Some(Slot { hca, opened }) = entry else {
            return Err(Error::HcaUnavailable {
                transport,
                detail: format!(
                    "it stands for none of the {} HCAs of this context: name them in \
                     ContextConfig::hca_devices or in MSCCLPP_HCA_DEVICES (for example soft0)",
                    self.0.len()
                ),
            });
        };
        let mut opened = lock(opened);
        if let Some(provider) = &*opened {
            return Ok(Arc::clone(provider));
        }
        Ok(Arc::clone(opened.insert(hca.open(transport)?)))
    }
}

impl Hcas {
    /// Lets go of those that nobody else holds; each is opened again when it is used again.
    pub(crate) fn close_unused(&self) {
        for slot in &self.0 {
            lock(&slot.opened).take_if(|hca| Arc::strong_count(hca) == 1);
        }
    }
}

/// The number in a transport's name.
fn index(transport: TransportKind) -> Option<usize> {
    let first = u8::from(TransportKind::IB0);
    (transport.is_ib()).then(|| usize::from(u8::from(transport) - first))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn gpunetio_a_real_name_never_gets_a_nic_in_software() {
        let hcas = Hcas::new(&[Hca::named("soft0"), Hca::named("mlx5_0"), Hca::named("")]);
        assert_eq!(hcas.get(TransportKind::IB0).unwrap().name(), "soft0");
        for (transport, text) in [
            (TransportKind::IB1, "mlx5_0"),
            (TransportKind::IB1, "soft0, soft1"),
            (TransportKind::IB2, "software"),
            (TransportKind::IB3, "MSCCLPP_HCA_DEVICES"),
            (TransportKind::IB3, "hca_devices"),
        ] {
            let error = hcas.get(transport).map(drop).unwrap_err();
            assert!(
                matches!(error, Error::HcaUnavailable { .. }) && error.to_string().contains(text),
                "{error}"
            );
        }
    }
}
