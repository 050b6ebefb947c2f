// SPDX-License-Identifier: MIT
//! GPUs, their driver, and how HCAs reach them.

use super::{Check, CheckStatus, Seen};
use crate::machine::GpuFunction;

pub(super) const CUDA: &str = "cuda driver";
pub(super) const GPU: &str = "gpu";
pub(super) const DEVICE_FILES: &str = "nvidia device files";
pub(super) const HCA_ACCESS: &str = "gpu memory for hcas";
pub(super) const NVRTC: &str = "nvrtc";
pub(super) const PEER_MAPPING: &str = "peer mapping";

pub(super) const NO_GPU: &str = "there is no GPU";
pub(super) const NO_CONNECTX: &str = "there is no ConnectX";

pub(super) fn checks(seen: &Seen<'_>) -> Vec<Check> {
    vec![
        list(seen),
        module(seen),
        cuda(seen),
        nvrtc(seen),
        files(seen),
        hca_access(seen),
        peer_mapping(seen),
    ]
}

/// What is there, where nothing is needed without a GPU.
fn unless_needed(seen: &Seen<'_>, check: Check) -> Check {
    if check.status != CheckStatus::Missing || seen.has_gpu() {
        return check;
    }
    Check::not_needed(check.name, format!("{NO_GPU} ({})", check.found))
}

fn list(seen: &Seen<'_>) -> Check {
    let by_driver = seen.live.cuda.as_ref().map_or(&[][..], |cuda| &cuda.gpus);
    let on_pci = seen.gpus();
    let names: Vec<String> = match (on_pci, by_driver) {
        ([], []) => {
            return Check::not_needed(GPU, "none on PCI: kernels run on CPU threads");
        }
        // A container may hide sysfs.
        ([], shown) => (shown.iter())
            .map(|gpu| format!("{} at {}", gpu.name, gpu.pci))
            .collect(),
        (gpus, _) => gpus
            .iter()
            .map(|gpu| {
                let node = match gpu.function.numa_node {
                    Some(node) => format!(", NUMA node {node}"),
                    None => String::new(),
                };
                format!("{} at {}{node}", gpu.name(), gpu.function.address)
            })
            .collect(),
    };
    Check::ok(GPU, names.join("; "))
}

/// The text behind `NVRM version:`, and whether the module is the open one.
fn version(seen: &Seen<'_>) -> Option<(String, bool)> {
    let text = seen.root.text("/proc/driver/nvidia/version")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("NVRM version:"))?;
    let number = |word: &&str| {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        word.contains('.') && word.split('.').all(digits)
    };
    let version = line.split_whitespace().find(number)?;
    Some((version.to_owned(), line.contains("Open Kernel Module")))
}

fn module(seen: &Seen<'_>) -> Check {
    const NAME: &str = "nvidia driver";
    let check = match version(seen) {
        Some((version, true)) => Check::ok(NAME, format!("{version}, the open kernel module")),
        Some((version, false)) => Check::ok(NAME, format!("{version}, the closed kernel module")),
        None => Check::missing(
            NAME,
            "/proc/driver/nvidia/version is not there: the kernel module is not loaded",
            "Debian: apt install nvidia-driver nvidia-open-kernel-dkms; Ubuntu: apt install \
             nvidia-driver-580-server-open (or newer); then modprobe nvidia",
        ),
    };
    unless_needed(seen, check)
}

fn cuda(seen: &Seen<'_>) -> Check {
    let check = match &seen.live.cuda {
        Ok(cuda) if !cuda.gpus.is_empty() => {
            let (major, minor) = cuda.version;
            let shown: Vec<&str> = cuda.gpus.iter().map(|gpu| gpu.pci.as_str()).collect();
            let shown = shown.join(", ");
            Check::ok(CUDA, format!("CUDA {major}.{minor}, shows {shown}"))
        }
        Ok(cuda) => {
            let (major, minor) = cuda.version;
            Check::missing(
                CUDA,
                format!("CUDA {major}.{minor}, shows no GPU to this process"),
                "look at CUDA_VISIBLE_DEVICES; in a container, docker run --gpus all",
            )
        }
        Err(why) => Check::missing(
            CUDA,
            why,
            "apt install libcuda1 (Debian) or libnvidia-compute-580-server (Ubuntu), of the kernel \
             module's version; docker run --gpus all; and the feature `cuda` where it is built",
        ),
    };
    unless_needed(seen, check)
}

fn nvrtc(seen: &Seen<'_>) -> Check {
    let check = match &seen.live.nvrtc {
        Ok(found) => Check::ok(NVRTC, found),
        Err(why) => Check::missing(
            NVRTC,
            why,
            "apt install libnvrtc12 (Debian, Ubuntu) or cuda-nvrtc-13-0 (NVIDIA's repository), or pip \
             install nvidia-cuda-nvrtc and set MSCCLPP_NVRTC_SO to its libnvrtc.so",
        ),
    };
    unless_needed(seen, check)
}

/// Device files that the CUDA driver opens for these GPUs.
pub(super) fn device_files(gpus: &[GpuFunction]) -> Vec<String> {
    let minors = gpus.iter().filter_map(|gpu| gpu.minor);
    let shared = ["/dev/nvidiactl", "/dev/nvidia-uvm"].map(str::to_owned);
    let mut files: Vec<String> = minors.map(|minor| format!("/dev/nvidia{minor}")).collect();
    files.extend(shared);
    files
}

fn files(seen: &Seen<'_>) -> Check {
    if seen.gpus().is_empty() {
        return Check::not_needed(DEVICE_FILES, format!("{NO_GPU} (on PCI)"));
    }
    let files = device_files(seen.gpus());
    let denied: Vec<&str> = (files.iter().map(String::as_str))
        .filter(|file| seen.live.denied.iter().any(|denied| denied == file))
        .collect();
    let absent: Vec<&str> = (files.iter().map(String::as_str))
        .filter(|file| !seen.root.exists(file))
        .collect();
    if !absent.is_empty() {
        return Check::missing(
            DEVICE_FILES,
            format!("not there: {}", absent.join(", ")),
            "nvidia-modprobe -u -c=0 (apt install nvidia-modprobe); in a container, docker run --gpus \
             all",
        );
    }
    if !denied.is_empty() {
        return Check::missing(
            DEVICE_FILES,
            format!("this user may not open {}", denied.join(", ")),
            "add the user to the group that owns them (Debian: video), or load the module with \
             NVreg_DeviceFileMode=0666",
        );
    }
    Check::ok(DEVICE_FILES, files.join(", "))
}

fn hca_access(seen: &Seen<'_>) -> Check {
    if !seen.has_gpu() || !seen.has_hca() {
        let what = if seen.has_gpu() {
            "there is no HCA"
        } else {
            NO_GPU
        };
        return Check::not_needed(HCA_ACCESS, what);
    }
    let loaded = |module: &str| seen.root.exists(&format!("/sys/module/{module}"));
    let mut ways = Vec::new();
    match &seen.live.cuda {
        Ok(cuda) if !cuda.gpus.is_empty() && cuda.gpus.iter().all(|gpu| gpu.dma_buf) => {
            ways.push("dma-buf, by the CUDA driver");
        }
        Ok(_) => {}
        // Without CUDA: those modules have it that are open.
        Err(_) if version(seen).is_some_and(|(_, open)| open) => {
            ways.push("dma-buf, which the open kernel module has");
        }
        Err(_) => {}
    }
    if loaded("nvidia_peermem") {
        ways.push("nvidia_peermem");
    }
    if !ways.is_empty() {
        return Check::ok(HCA_ACCESS, ways.join("; "));
    }
    if loaded("nv_peer_mem") {
        return Check::missing(
            HCA_ACCESS,
            "nv_peer_mem, which is older than the driver's own module and refuses some memory",
            "modprobe -r nv_peer_mem; apt remove nvidia-peer-memory-dkms; modprobe nvidia_peermem",
        );
    }
    Check::missing(
        HCA_ACCESS,
        "neither dma-buf nor nvidia_peermem",
        "modprobe nvidia_peermem (it comes with the driver), or install the driver's open kernel module \
         (Debian: nvidia-open-kernel-dkms), which has dma-buf",
    )
}

fn peer_mapping(seen: &Seen<'_>) -> Check {
    if !seen.has_gpu() || seen.adapters.is_empty() {
        let what = if seen.has_gpu() { NO_CONNECTX } else { NO_GPU };
        return Check::not_needed(PEER_MAPPING, what);
    }
    let fix = |others: &str| {
        format!(
            "echo 'options nvidia NVreg_RegistryDwords=\"{others}PeerMappingOverride=1;\"' > \
             /etc/modprobe.d/nvidia-peer-mapping.conf; update-initramfs -u; reboot"
        )
    };
    let Some(text) = seen.root.text("/proc/driver/nvidia/params") else {
        let found = "/proc/driver/nvidia/params cannot be read";
        return Check::missing(PEER_MAPPING, found, fix(""));
    };
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = lines.find(|(name, _)| *name == key)?;
        Some(value.trim().trim_matches('"').to_owned())
    };
    let dwords = value("RegistryDwords").unwrap_or_default();
    let set = dwords
        .split(';')
        .any(|part| part.trim() == "PeerMappingOverride=1");
    match set {
        true => Check::ok(PEER_MAPPING, format!("RegistryDwords is {dwords:?}")),
        false => Check::missing(
            PEER_MAPPING,
            format!("RegistryDwords is {dwords:?}: kernels cannot ring a ConnectX's doorbell"),
            fix(&dwords),
        ),
    }
}

/// How far each port is from each GPU.
pub(super) fn distances(seen: &Seen<'_>) -> Vec<Check> {
    let gpus = seen.gpus().iter();
    gpus.map(|gpu| {
        let address = gpu.function.address;
        let name = format!("gpu {address} to hcas");
        match seen.survey.nearest(&address) {
            Ok(nearest) => Check::ok(name, nearest.to_string()),
            Err(_) if !seen.has_hca() => Check::not_needed(name, "there is no HCA"),
            Err(error) if seen.devices.is_empty() => {
                Check::missing(name, error.to_string(), "see rdma driver")
            }
            Err(error) => Check::missing(name, error.to_string(), "see the ports of the HCAs"),
        }
    })
    .collect()
}
