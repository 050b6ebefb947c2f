// SPDX-License-Identifier: MIT
//! What libraries and drivers of a recorded machine would have answered: its `live` lines.
//!
//! ```text
//! ibverbs=FILE  mlx5=FILE  nvrtc=TEXT  compiler=TEXT  cuda=MAJOR.MINOR
//! env=NAME VALUE
//! no-cuda=REASON  no-compiler=REASON  denied=DEVICE_FILE
//! cuda-gpu PCI NAME DMA_BUF
//! asked HCA atomics=0|1 port=NUMBER:ACTIVE/MAX... [grh=1]
//! asked-not HCA REASON
//! ```

use std::ffi::OsString;

use super::super::live::{AskedHca, AskedPort, Cuda, CudaGpu};
use super::*;
use crate::ib::port::Wish;
use crate::verbs::Mtu;

fn no_library<T>(name: &str) -> Result<T, String> {
    Err(format!(
        "{name}: cannot open shared object file: No such file or directory"
    ))
}

impl Live {
    pub(super) fn recorded(lines: &[Vec<String>]) -> Self {
        let mut live = Self {
            ibverbs: no_library("libibverbs.so.1"),
            mlx5: no_library("libmlx5.so.1"),
            nvrtc: no_library("libnvrtc.so.13"),
            cuda: no_library("libcuda.so.1"),
            compiler: Err(String::new()),
            hcas: Default::default(),
            denied: Vec::new(),
            environment: Default::default(),
            wish: Wish::default(),
            named: Vec::new(),
        };
        for words in lines {
            live.take(words);
        }
        live
    }

    /// Sets a variable of the environment.
    pub(super) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.insert(name.into(), value.into());
    }

    fn take(&mut self, words: &[String]) {
        let (key, value) = words[0].split_once('=').unwrap_or((&words[0], ""));
        let text = value.to_owned();
        match key {
            "ibverbs" => self.ibverbs = Ok(text),
            "mlx5" => self.mlx5 = Ok(text),
            "nvrtc" => self.nvrtc = Ok(text),
            "compiler" => self.compiler = Ok(text),
            "no-compiler" => self.compiler = Err(text),
            "no-cuda" => self.cuda = Err(text),
            "env" => self.set(value, &words[1]),
            "denied" => self.denied.push(text),
            "cuda" => {
                let (major, minor) = value.split_once('.').unwrap();
                if self.cuda.is_err() {
                    self.cuda = Ok(Cuda::default());
                }
                let version = (major.parse().unwrap(), minor.parse().unwrap());
                self.cuda.iter_mut().for_each(|cuda| cuda.version = version);
            }
            "cuda-gpu" => {
                let gpu = CudaGpu {
                    pci: words[1].clone(),
                    name: words[2].clone(),
                    dma_buf: words[3] == "1",
                };
                // Lines of GPUs may stand before that of the driver.
                if self.cuda.is_err() {
                    self.cuda = Ok(Cuda::default());
                }
                self.cuda
                    .iter_mut()
                    .for_each(|cuda| cuda.gpus.push(gpu.clone()));
            }
            "asked" => drop(self.hcas.insert(words[1].clone(), Ok(asked(&words[2..])))),
            "asked-not" => drop(self.hcas.insert(words[1].clone(), Err(words[2].clone()))),
            _ => panic!("{words:?}"),
        }
    }
}

fn asked(words: &[String]) -> AskedHca {
    let mtu = |text: &str| {
        let codes = (1..=5).filter_map(Mtu::from_code);
        codes.into_iter().find(|mtu| mtu.to_string() == text)
    };
    let mut hca = AskedHca {
        atomics: false,
        ports: Default::default(),
    };
    for word in words {
        match word.split_once('=').unwrap() {
            ("atomics", value) => hca.atomics = value == "1",
            ("port", value) => {
                let (number, mtus) = value.split_once(':').unwrap();
                let (active, max) = mtus.split_once('/').unwrap();
                let port = AskedPort {
                    active_mtu: mtu(active),
                    max_mtu: mtu(max),
                    grh_required: false,
                };
                hca.ports.insert(number.parse().unwrap(), port);
            }
            ("grh", _) => hca
                .ports
                .values_mut()
                .for_each(|port| port.grh_required = true),
            other => panic!("{other:?}"),
        }
    }
    hca
}
