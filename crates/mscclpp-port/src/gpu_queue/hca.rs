// SPDX-License-Identifier: MIT
//! The HCAs that `IB0` to `IB7` stand for.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use super::lock;
use super::provider::GpuQueueProvider;
use super::soft::SoftHca;
use crate::error::{Error, Result};
use crate::trace::Tracer;
use crate::transport::TransportKind;

/// An HCA (an RDMA network adapter) that a transport `IBn` stands for: entry n of
/// [`ContextConfig::hca_devices`](crate::ContextConfig::hca_devices), or without any the n-th RDMA
/// device of the machine.
///
/// `soft0`, `soft1` and so on are the NICs in software of `mscclpp-softnic`, every other name is that
/// of an RDMA device as libibverbs lists it (`ibv_devices`). Naming one that is not there costs
/// nothing; whoever uses it gets [`Error::HcaUnavailable`], never a NIC in software in its place.
///
/// With the feature `gpunetio`, NVIDIA's GPUNetIO makes the queues of an mlx5 device for
/// [`IbMode::GpuNetIo`](crate::IbMode::GpuNetIo): the shared object that `GPUNETIO_LIBRARY` names, or an
/// error. That has not been tried on any device. On RoCE it works on port 1 alone, and the library gives
/// the C library's `rand` a new seed where it connects a queue there.
///
/// ```
/// use mscclpp_port::{ContextConfig, Hca};
///
/// let mut config = ContextConfig::new([127, 0, 0, 1].into());
/// // IB0 is a NIC in software, IB1 an adapter of the machine.
/// config.hca_devices = vec![Hca::named("soft0"), Hca::named("mlx5_0")];
/// ```
#[derive(Clone)]
pub struct Hca(Source);

#[derive(Clone)]
enum Source {
    Named(String),
    Soft(mscclpp_softnic::Device),
    #[cfg(feature = "gpunetio-soft")]
    Doca(mscclpp_softnic::Device, String),
    #[cfg(all(test, not(loom)))]
    Made(Arc<dyn Fn() -> Result<Arc<dyn GpuQueueProvider>> + Send + Sync>),
}

/// What the name of a NIC in software begins with if GPUNetIO makes its queues.
#[cfg(feature = "gpunetio-soft")]
const DOCA: &str = "doca:";

#[cfg(feature = "gpunetio-soft")]
fn doca(name: String, device: mscclpp_softnic::Device) -> Result<Arc<dyn GpuQueueProvider>> {
    use super::doca::DocaHca;
    let hca = DocaHca::soft(name, device, DocaHca::INFINI_BAND, None)?;
    Ok(Arc::new(hca))
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
            #[cfg(feature = "gpunetio-soft")]
            Source::Doca(_, name) => name,
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

    /// An opened NIC in software whose queues NVIDIA's GPUNetIO makes, as for the name `doca:soft0`.
    /// They lie in the memory of the device whose kernels post ([`QueuePlacement::Device`]). For tests:
    /// a process that has used one uses no RDMA device.
    ///
    /// [`QueuePlacement::Device`]: crate::QueuePlacement::Device
    #[cfg(feature = "gpunetio-soft")]
    #[must_use]
    pub fn doca(device: mscclpp_softnic::Device) -> Self {
        let name = format!("{DOCA}{}", device.name());
        Self(Source::Doca(device, name))
    }

    fn open(
        &self,
        transport: TransportKind,
        trace: Option<&Tracer>,
    ) -> Result<Arc<dyn GpuQueueProvider>> {
        let device = match &self.0 {
            Source::Soft(device) => device.clone(),
            #[cfg(feature = "gpunetio-soft")]
            Source::Doca(device, name) => return doca(name.clone(), device.clone()),
            #[cfg(all(test, not(loom)))]
            Source::Made(make) => return make(),
            Source::Named(name) => {
                use mscclpp_softnic::{Device, DeviceConfig, Error as SoftError};
                #[cfg(feature = "gpunetio-soft")]
                if let Some(nic) = name.strip_prefix(DOCA) {
                    let device = Device::open(nic, DeviceConfig::default());
                    let device = device.map_err(|error| Error::hca(name, "open it", error))?;
                    if let Some(tracer) = trace {
                        tracer.watch(&device);
                    }
                    return doca(name.clone(), device);
                }
                match Device::open(name, DeviceConfig::default()) {
                    Err(SoftError::UnknownDevice { .. }) => return rdma::open(name, transport),
                    opened => {
                        let device = opened.map_err(|error| Error::hca(name, "open it", error))?;
                        if let Some(tracer) = trace {
                            tracer.watch(&device);
                        }
                        device
                    }
                }
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
pub(crate) struct Hcas {
    named: Vec<Slot>,
    /// What there is, where nobody named any: looked up when it is first asked for.
    found: OnceLock<Vec<Slot>>,
    trace: Option<Tracer>,
}

struct Slot {
    hca: Hca,
    opened: Mutex<Option<Arc<dyn GpuQueueProvider>>>,
}

impl Slot {
    fn closed(hca: Hca) -> Self {
        Self {
            hca,
            opened: Mutex::default(),
        }
    }
}

impl Hcas {
    pub(crate) fn new(devices: &[Hca], trace: Option<Tracer>) -> Self {
        Self {
            named: devices.iter().cloned().map(Slot::closed).collect(),
            found: OnceLock::new(),
            trace,
        }
    }

    fn slots(&self) -> &[Slot] {
        if !self.named.is_empty() {
            return &self.named;
        }
        self.found.get_or_init(|| {
            let names = rdma::names();
            names.map(Hca::named).map(Slot::closed).collect()
        })
    }

    /// The HCA of a transport, opened.
    pub(crate) fn get(&self, transport: TransportKind) -> Result<Arc<dyn GpuQueueProvider>> {
        let Some(Slot { hca, opened }) = index(transport).and_then(|index| self.slots().get(index))
        else {
            let detail = if self.named.is_empty() {
                rdma::missing()
            } else {
                format!(
                    "it stands for none of the {} HCAs of this context: name more in \
                     ContextConfig::hca_devices or in MSCCLPP_HCA_DEVICES",
                    self.named.len()
                )
            };
            return Err(Error::HcaUnavailable { transport, detail });
        };
        let mut opened = lock(opened);
        if let Some(provider) = &*opened {
            return Ok(Arc::clone(provider));
        }
        Ok(Arc::clone(
            opened.insert(hca.open(transport, self.trace.as_ref())?),
        ))
    }
}

impl Hcas {
    /// Those that are open.
    pub(crate) fn opened(&self) -> Vec<Arc<dyn GpuQueueProvider>> {
        (self
            .named
            .iter()
            .chain(self.found.get().into_iter().flatten()))
        .filter_map(|slot| lock(&slot.opened).clone())
        .collect()
    }

    /// Lets go of those that nobody else holds; each is opened again when it is used again.
    pub(crate) fn close_unused(&self) {
        for slot in self
            .named
            .iter()
            .chain(self.found.get().into_iter().flatten())
        {
            lock(&slot.opened).take_if(|hca| Arc::strong_count(hca) == 1);
        }
    }
}

/// RDMA devices, where this build knows them.
#[cfg(feature = "ib")]
use crate::ib::devices as rdma;

#[cfg(not(feature = "ib"))]
mod rdma {
    use super::{Arc, Error, GpuQueueProvider, Result, TransportKind};

    const WITHOUT: &str = "this build knows NICs in software only (soft0, soft1, ...): build \
                           mscclpp-port with the feature `ib` for others";

    pub(super) fn names() -> impl Iterator<Item = String> {
        std::iter::empty()
    }

    pub(super) fn missing() -> String {
        format!(
            "no HCA is named in ContextConfig::hca_devices or in MSCCLPP_HCA_DEVICES; {WITHOUT}"
        )
    }

    pub(super) fn open(name: &str, transport: TransportKind) -> Result<Arc<dyn GpuQueueProvider>> {
        Err(Error::HcaUnavailable {
            transport,
            detail: format!("{name:?} cannot be used: {WITHOUT}"),
        })
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
        let hcas = Hcas::new(
            &[Hca::named("soft0"), Hca::named("mlx5_0"), Hca::named("")],
            None,
        );
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

    #[test]
    fn ib_without_names_the_transports_stand_for_the_devices_that_there_are() {
        let hcas = Hcas::new(&[], None);
        let devices: Vec<String> = rdma::names().collect();
        for (transport, name) in [TransportKind::IB0, TransportKind::IB1]
            .iter()
            .zip(&devices)
        {
            assert_eq!(hcas.get(*transport).unwrap().name(), name);
        }
        if devices.len() < 8 {
            let error = hcas.get(TransportKind::IB7).map(drop).unwrap_err();
            assert!(matches!(error, Error::HcaUnavailable { .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("MSCCLPP_HCA_DEVICES") && !text.contains('\n'),
                "{text}"
            );
        }
    }
}
