// SPDX-License-Identifier: MIT
//! The library's headers as a host's compiler takes them.

use std::fs;
use std::path::Path;

use crate::ptx;

/// What stands in place of CUDA's headers.
const HOST: &str = include_str!("host.hpp");

/// Writes the device headers of `include` into `to`, changed for a host's compiler, and beside them
/// what they include of CUDA.
pub(crate) fn for_host(include: &Path, to: &Path) -> Result<(), String> {
    let mut statements = 0;
    for part in ["", "common", "device"] {
        let files = fs::read_dir(include.join(part)).map_err(|error| describe(include, error))?;
        fs::create_dir_all(to.join(part)).map_err(|error| describe(to, error))?;
        for file in files.filter_map(Result::ok).map(|entry| entry.path()) {
            let Some(name) = file.file_name().filter(|_| file.is_file()) else {
                continue;
            };
            let text = fs::read_to_string(&file).map_err(|error| describe(&file, error))?;
            let (mut text, count) =
                ptx::without(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            statements += count;
            if name == "doca_gpunetio_verbs_dev.h" {
                text = unpacked(&text)?;
            }
            let path = to.join(part).join(name);
            fs::write(&path, text).map_err(|error| describe(&path, error))?;
        }
    }
    if statements == 0 {
        return Err(format!("{}: no inline PTX", include.display()));
    }
    fs::create_dir_all(to.join("cuda")).map_err(|error| describe(to, error))?;
    for name in ["cuda.h", "cuda/atomic"] {
        fs::write(to.join(name), HOST).map_err(|error| describe(to, error))?;
    }
    Ok(())
}

/// C++ gives no references to fields of packed structures, and the functions take some to those of
/// the queue pair's and its completion queue's. Their layout is the same without: posts.cpp and the
/// checks of `gpunetio-sys` have their sizes and offsets.
fn unpacked(text: &str) -> Result<String, String> {
    const ALIGNED: &str = "__attribute__((__aligned__(8)))";
    let packed = format!("{ALIGNED} __attribute__((__packed__));");
    match text.matches(&packed).count() {
        2 => Ok(text.replace(&packed, &format!("{ALIGNED};"))),
        count => Err(format!(
            "{count} structures are packed and aligned, not those of a queue pair and its \
             completion queue"
        )),
    }
}

fn describe(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
