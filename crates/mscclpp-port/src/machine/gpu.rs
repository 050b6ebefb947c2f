// SPDX-License-Identifier: MIT
//! NVIDIA's GPUs, as PCI and the kernel's driver know them.

use super::{Function, NVIDIA, Root};

/// Display controllers: for screens, and without a connector.
const CLASSES: [u32; 2] = [0x0300, 0x0302];

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuFunction {
    pub(crate) function: Function,
    /// Its product's name, by the driver.
    pub(crate) model: Option<String>,
    /// N of its `/dev/nvidiaN`, by the driver.
    pub(crate) minor: Option<u32>,
}

impl GpuFunction {
    /// All of them, by address.
    pub(crate) fn all(root: &Root) -> Vec<Self> {
        let functions = Function::all(root).into_iter();
        functions
            .filter(|function| function.vendor == NVIDIA)
            .filter(|function| CLASSES.contains(&(function.class >> 8)))
            .map(|function| Self::of(root, function))
            .collect()
    }

    fn of(root: &Root, function: Function) -> Self {
        let path = format!("/proc/driver/nvidia/gpus/{}/information", function.address);
        let text = root.text(&path).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
            Some(value.trim().to_owned())
        };
        Self {
            function,
            model: field("Model"),
            minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
        }
    }

    /// Its name, as well as it is known.
    pub(crate) fn name(&self) -> String {
        match &self.model {
            Some(model) => model.clone(),
            None => format!("device {:04x}:{:04x}", NVIDIA, self.function.device),
        }
    }
}
