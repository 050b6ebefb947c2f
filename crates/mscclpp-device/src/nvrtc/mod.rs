// SPDX-License-Identifier: MIT
//! Compiles kernels for a GPU at run time, with NVIDIA's NVRTC.
//!
//! NVRTC is a shared library and is loaded when first asked for; building this
//! crate needs none. A program includes the device headers as
//! `<mscclpp/port_channel.hpp>` and so on; they come with the crate, and so do
//! `<cstdint>` and `<stdint.h>`. No include path and no CUDA installation is
//! needed.
//!
//! ```no_run
//! use mscclpp_device::nvrtc::{Arch, Nvrtc, Program, Target};
//!
//! let source = r#"
//!     #include <mscclpp/kernel.hpp>
//!     #include <mscclpp/port_channel.hpp>
//!     struct Args { mscclpp::DeviceHandle<mscclpp::PortChannel> channel; };
//!     MSCCLPP_KERNEL(notify, Args) { args.channel.signal(); }
//! "#;
//! let nvrtc = Nvrtc::load()?;
//! let cubin = nvrtc.compile(&Program::new("notify.cu", source), &Target::Cubin(Arch::from(90)))?;
//! println!("{} bytes", cubin.code.len());
//! # Ok::<(), mscclpp_device::nvrtc::NvrtcError>(())
//! ```

mod arch;
mod error;
mod library;

use std::ffi::CString;

pub use arch::{ARCHS_VARIABLE, Arch};
pub use error::NvrtcError;
pub use library::{LIBRARY_VARIABLE, Nvrtc};

use crate::headers;

/// A kernel's source and what it is compiled with.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    source: String,
    headers: Vec<(String, String)>,
    options: Vec<String>,
}

impl Program {
    /// A program of `source`; `name` stands in the compiler's messages.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            source: source.into(),
            headers: Vec::new(),
            options: Vec::new(),
        }
    }

    /// Adds a header of your own, included by `name`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// Adds an option of the compiler, such as `-DNAME=1`.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Gives each text that the compiled code depends on, the device headers' too.
    #[cfg(feature = "cuda")]
    pub(crate) fn each_text(&self, mut give: impl FnMut(&str)) {
        give(&self.name);
        give(&self.source);
        self.options.iter().for_each(|option| give(option));
        for (name, text) in &self.headers {
            give(name);
            give(text);
        }
        for (name, text) in headers::ALL {
            give(name);
            give(text);
        }
    }
}

/// What to compile to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code for this architecture.
    Cubin(Arch),
    /// Text that the driver compiles for this architecture or a later one.
    Ptx(Arch),
}

impl Target {
    fn arch(&self) -> &Arch {
        match self {
            Self::Cubin(arch) | Self::Ptx(arch) => arch,
        }
    }

    fn option(&self) -> String {
        match self {
            Self::Cubin(arch) => format!("--gpu-architecture=sm_{arch}"),
            Self::Ptx(arch) => format!("--gpu-architecture=compute_{arch}"),
        }
    }
}

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// A cubin's bytes, or the text of PTX without the final zero.
    pub code: Vec<u8>,
    /// What the compiler said: warnings, or nothing.
    pub log: String,
}

impl Nvrtc {
    /// Compiles `program` as C++17. May be called from several threads.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::Unsupported`] if this NVRTC does not know the
    /// architecture, [`NvrtcError::Compile`] with the log if the source has
    /// errors, and what the library itself reports.
    pub fn compile(&self, program: &Program, target: &Target) -> Result<Compiled, NvrtcError> {
        let supported = self.archs()?;
        if !supported.contains(&target.arch().number()) {
            return Err(NvrtcError::Unsupported {
                arch: target.arch().clone(),
                supported,
            });
        }
        let mut headers = vec![
            ("cstdint", "#include <mscclpp/cstdint_device.hpp>\n"),
            ("stdint.h", "#include <mscclpp/cstdint_device.hpp>\n"),
        ];
        headers.extend(headers::ALL);
        headers.extend(
            program
                .headers
                .iter()
                .map(|(n, t)| (n.as_str(), t.as_str())),
        );
        let (names, texts): (Vec<_>, Vec<_>) = headers.into_iter().unzip();

        let mut options = vec![target.option(), "--std=c++17".to_owned()];
        options.extend_from_slice(&program.options);

        let mut run = self.create(
            &text(&program.name)?,
            &text(&program.source)?,
            &texts_of(&names)?,
            &texts_of(&texts)?,
        )?;
        let outcome = run.compile(&texts_of(&options)?);
        let log = run.log().unwrap_or_default();
        if let Err(error) = outcome {
            return Err(match error {
                NvrtcError::Call { ref message, .. } if !log.is_empty() => NvrtcError::Compile {
                    program: program.name.clone(),
                    arch: target.arch().clone(),
                    message: message.clone(),
                    log,
                },
                other => other,
            });
        }
        let code = match target {
            Target::Cubin(_) => run.cubin()?,
            Target::Ptx(_) => run.ptx()?,
        };
        Ok(Compiled { code, log })
    }
}

fn text(text: &str) -> Result<CString, NvrtcError> {
    CString::new(text).map_err(|_| NvrtcError::Zero {
        start: text.chars().take(40).collect(),
    })
}

fn texts_of<T: AsRef<str>>(texts: &[T]) -> Result<Vec<CString>, NvrtcError> {
    texts.iter().map(|t| text(t.as_ref())).collect()
}
