// SPDX-License-Identifier: MIT
//! The steps of the build, each of which may end it with one sentence.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::checkout::{ALLOW_UNPINNED, Found, Pin, SOURCE_DIR, locate};

/// What the sources of the library and of the function table are compiled with: the library's
/// own switches that send its calls to verbs, mlx5 and CUDA's driver to functions of its
/// caller, and other names for what it calls of CUDA's run-time library.
struct Seam {
    /// Where headers are looked for. Their warnings are not ours.
    includes: Vec<PathBuf>,
}

/// What the library calls of CUDA's run-time library; the second list from 4.0 on.
const CUDA_CALLS: [&str; 18] = [
    "cudaDeviceGetAttribute",
    "cudaDeviceGetByPCIBusId",
    "cudaDeviceSynchronize",
    "cudaFree",
    "cudaGetDevice",
    "cudaGetErrorString",
    "cudaGetLastError",
    "cudaHostGetDevicePointer",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaMalloc",
    "cudaMemcpy",
    "cudaMemset",
    // From 4.0 on.
    "cudaMemcpyAsync",
    "cudaPointerGetAttributes",
    "cudaStreamCreateWithFlags",
    "cudaStreamDestroy",
    "cudaStreamSynchronize",
];

impl Seam {
    /// A compiler that is set up so, with nothing to compile yet.
    fn compiler(&self) -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(2).pic(true);
        build.flag("-fvisibility=hidden");
        build.define("DOCA_VERBS_USE_NET_WRAPPER", None);
        build.define("DOCA_GPUNETIO_USE_CUDA_WRAPPER", None);
        for call in CUDA_CALLS {
            build.define(call, Some(format!("gnx_{call}").as_str()));
        }
        for directory in &self.includes {
            build.flag("-isystem").flag(directory);
        }
        build
    }
}

/// Does all of it, and tells cargo.
pub(crate) fn build() -> Result<(), String> {
    features()?;
    for name in [
        SOURCE_DIR,
        ALLOW_UNPINNED,
        "XDG_CACHE_HOME",
        "HOME",
        "CUDA_HOME",
        "CUDA_PATH",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let pin = pin()?;
    let Found {
        directory,
        unpinned,
    } = locate(&pin, &|name| env::var_os(name))?;
    println!("cargo::rerun-if-changed={}", directory.display());
    let unpinned = unpinned.map(|fault| fault.to_string()).unwrap_or_default();
    if !unpinned.is_empty() {
        let place = directory.display();
        println!("cargo::warning={place} is not the pinned GPUNetIO: {unpinned}");
    }
    let [major, minor, patch] = version(&directory)?;
    if !matches!((major, minor), (3 | 4, 0)) {
        return Err(format!(
            "{} is GPUNetIO {major}.{minor}.{patch}; 3.0 and 4.0 are understood",
            directory.display()
        ));
    }
    let seam = Seam {
        includes: vec![directory.join("include"), directory.join("src"), cuda()?],
    };

    let mut ours = vec!["src/layout.cpp", "src/seam.cpp"];
    if major >= 4 {
        ours.push("src/seam_4.cpp");
    }
    let mut build = seam.compiler();
    build
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true);
    for file in ours {
        println!("cargo::rerun-if-changed={file}");
        build.file(file);
    }
    build.compile("gpunetio_seam");

    println!("cargo::rustc-cfg=gpunetio_major=\"{major}\"");
    let compiled = u32::from_be_bytes([0, major, minor, patch]);
    println!("cargo::rustc-env=GPUNETIO_COMPILED_VERSION={compiled}");
    println!("cargo::rustc-env=GPUNETIO_PINNED_COMMIT={}", pin.commit);
    let license = license(&directory)?;
    println!("cargo::rustc-env=GPUNETIO_LICENSE={}", license.display());
    println!(
        "cargo::rustc-env=GPUNETIO_UNPINNED={}",
        unpinned.replace('\n', " ")
    );
    Err(
        "the checkout and the declarations are in order, but this tree does not compile the \
         library's own files yet"
            .to_owned(),
    )
}

fn features() -> Result<(), String> {
    let on = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let missing = match (on("CUDA"), on("IB")) {
        (true, true) => return Ok(()),
        (true, false) => "`ib`",
        (false, true) => "`cuda`",
        (false, false) => "`cuda` and `ib`",
    };
    Err(format!(
        "the feature `gpunetio` needs {missing} too; it supports no ROCm"
    ))
}

fn pin() -> Result<Pin, String> {
    let path = Path::new("third_party.lock");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = fs::read_to_string(path).map_err(|error| format!("third_party.lock: {error}"))?;
    let file: toml::Table = text
        .parse()
        .map_err(|error| format!("third_party.lock: {error}"))?;
    let sources = file.get("source").and_then(toml::Value::as_array);
    let source = sources.into_iter().flatten().find_map(|source| {
        let field = |name: &str| source.get(name)?.as_str().map(str::to_owned);
        let pin = Pin {
            commit: field("commit")?,
            license: field("license")?,
        };
        (field("name")? == "gpunetio").then_some(pin)
    });
    source.ok_or_else(|| "third_party.lock does not pin gpunetio".to_owned())
}

/// As the library's header says.
fn version(directory: &Path) -> Result<[u8; 3], String> {
    let path = directory.join("include/common/doca_gpunetio_verbs_def.h");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let number = |part: &str| {
        let name = format!("DOCA_GPUNETIO_VERSION_{part}");
        let line = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let found = words.next() == Some("#define") && words.next() == Some(&name);
            found.then(|| words.next()).flatten()
        });
        let number = line.and_then(|number| number.parse().ok());
        number.ok_or_else(|| format!("{} defines no {name}", path.display()))
    };
    Ok([number("MAJOR")?, number("MINOR")?, number("PATCH")?])
}

/// The licence's text, which goes into every binary that has the library.
fn license(directory: &Path) -> Result<PathBuf, String> {
    let path = directory.join("LICENSE.txt");
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("{} is not there", path.display()))
}

/// Where CUDA's headers are.
fn cuda() -> Result<PathBuf, String> {
    let named = ["CUDA_HOME", "CUDA_PATH"].map(env::var_os);
    let places = named
        .into_iter()
        .flatten()
        .chain([OsString::from("/usr/local/cuda")]);
    let mut includes = places.map(|place| Path::new(&place).join("include"));
    includes
        .find(|include| include.join("cuda_runtime.h").is_file())
        .ok_or_else(|| {
            "GPUNetIO needs CUDA's headers, and there is no include/cuda_runtime.h in CUDA_HOME, \
         CUDA_PATH or /usr/local/cuda"
                .to_owned()
        })
}
