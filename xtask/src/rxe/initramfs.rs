// SPDX-License-Identifier: MIT
//! The guest's initial file system: busybox, a script and modules, as a cpio archive.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};

use super::{kernel::Kernel, preflight};

const INIT: &str = include_str!("init.sh");

/// Modules that the guest needs; what they depend on comes with them.
const MODULES: [&str; 13] = [
    "virtio_pci",
    "virtio_console",
    "9p",
    "9pnet_virtio",
    "overlay",
    "dummy",
    "veth",
    "sch_netem",
    // Soft-RoCE asks for it by a name that only modprobe would resolve.
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_cm",
    "rdma_rxe",
];

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const LINK: u32 = 0o120_777;
const CONSOLE: u32 = 0o020_600;

/// Makes the archive for a kernel.
///
/// # Errors
///
/// When a module or busybox is missing or cannot be read.
pub fn build(kernel: &Kernel) -> Result<Vec<u8>> {
    let files = kernel.modules()?;
    let mut order = Order {
        files: &files,
        builtin: &kernel.builtin()?,
        names: Vec::new(),
        modules: Vec::new(),
    };
    for name in MODULES {
        order.add(name)?;
    }
    let busybox = preflight::program("busybox").context("there is no busybox")?;
    let mut archive = Archive::default();
    for name in [
        "bin", "dev", "layer", "lower", "modules", "new", "proc", "sys",
    ] {
        archive.add(name, DIRECTORY, b"");
    }
    archive.add("dev/console", CONSOLE, b"");
    archive.add("bin/busybox", PROGRAM, &fs::read(busybox)?);
    archive.add("bin/sh", LINK, b"busybox");
    archive.add("init", PROGRAM, INIT.as_bytes());
    let list: String = order
        .names
        .iter()
        .map(|name| format!("{name}.ko\n"))
        .collect();
    archive.add("modules/order", FILE, list.as_bytes());
    for (name, module) in order.names.iter().zip(&order.modules) {
        archive.add(&format!("modules/{name}.ko"), FILE, module);
    }
    Ok(archive.end())
}

/// Modules, each behind those that it depends on.
struct Order<'a> {
    files: &'a HashMap<String, PathBuf>,
    builtin: &'a [String],
    names: Vec<String>,
    modules: Vec<Vec<u8>>,
}

impl Order<'_> {
    fn add(&mut self, name: &str) -> Result<()> {
        let here = |names: &[String]| names.iter().any(|known| known == name);
        if here(&self.names) || here(self.builtin) {
            return Ok(());
        }
        let path = (self.files.get(name)).ok_or_else(|| anyhow!("the kernel has no {name}"))?;
        let module = fs::read(path).with_context(|| path.display().to_string())?;
        for needed in dependencies(&module) {
            self.add(&needed)?;
        }
        self.names.push(name.to_owned());
        self.modules.push(module);
        Ok(())
    }
}

/// What a module says that it depends on: a string in it, `depends=a,b`.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next();
    String::from_utf8_lossy(list.unwrap_or_default())
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// A cpio archive in the "newc" form, which `Documentation/driver-api/early-userspace` of the kernel
/// describes.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        // The console's numbers; others have none.
        let (major, minor) = if mode == CONSOLE { (5, 1) } else { (0, 0) };
        let size = u32::try_from(data.len()).expect("a file of the archive has less than 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        let (owner, group, links, time, device, check) = (0, 0, 1, 0, 0, 0);
        let fields = [
            self.entries,
            mode,
            owner,
            group,
            links,
            time,
            size,
            device,
            device,
            major,
            minor,
            name_size,
            check,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_as_modules_have_them() {
        let module = b"\x7fELF\0license=GPL\0depends=ib_core,ip6-udp-tunnel\0intree=Y\0";
        assert_eq!(dependencies(module), ["ib_core", "ip6_udp_tunnel"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
        assert!(dependencies(b"text").is_empty());
    }

    #[test]
    fn modules_come_behind_what_they_need_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = HashMap::new();
        for (name, needs) in [("a", "b,c"), ("b", "c,d"), ("c", ""), ("d", "")] {
            let path = directory.path().join(name);
            fs::write(&path, format!("\0depends={needs}\0")).unwrap();
            files.insert(name.to_owned(), path);
        }
        let mut order = Order {
            files: &files,
            builtin: &["d".to_owned()],
            names: Vec::new(),
            modules: Vec::new(),
        };
        order.add("a").unwrap();
        order.add("c").unwrap();
        assert_eq!(order.names, ["c", "b", "a"]);
        assert!(order.add("e").unwrap_err().to_string().contains('e'));
    }

    #[test]
    fn an_archive_has_the_form_that_kernels_read() {
        let mut archive = Archive::default();
        archive.add("ab", FILE, b"12345");
        let bytes = archive.end();
        let text = String::from_utf8_lossy(&bytes);
        let fields = [1, 0o100_644, 0, 0, 1, 0, 5, 0, 0, 0, 0, 3, 0];
        let header: String = fields.iter().map(|field| format!("{field:08X}")).collect();
        assert_eq!(&text[..110], format!("070701{header}"));
        assert_eq!(&bytes[110..113], b"ab\0");
        // Data and headers start at multiples of four.
        assert_eq!(&bytes[116..121], b"12345");
        assert_eq!(&bytes[124..130], b"070701");
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
        assert!(bytes.len().is_multiple_of(4));
    }
}
