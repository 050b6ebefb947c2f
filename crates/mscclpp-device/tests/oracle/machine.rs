// SPDX-License-Identifier: MIT
//! Who runs the kernels of posts.cpp, and what they are given.

use std::any::Any;

use mscclpp_device::abi::QueueChannel;
use mscclpp_device::executor::memory::Scope;

use super::calls::Call;

/// What goes wrong, in words.
pub(crate) type Outcome<T> = Result<T, String>;

/// Twin of `Args` in posts.cpp.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Args {
    pub(crate) channel: QueueChannel,
    /// Address of a queue pair in the library's layout.
    pub(crate) pair: u64,
    /// Address of words: the end of what is posted, the request that failed, and what was found.
    pub(crate) outcome: u64,
    pub(crate) start: u64,
    pub(crate) call: Call,
    pub(crate) sharing: u32,
    /// Whether the counters begin at `start`.
    pub(crate) fresh: u32,
}

const _: () = assert!(size_of::<Call>() == 48 && size_of::<Args>() == 224);

/// A kernel of posts.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Ours,
    Theirs,
}

impl Kernel {
    pub(crate) const ALL: [Self; 2] = [Self::Ours, Self::Theirs];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
        }
    }
}

/// Memory that kernels and this process see.
pub(crate) trait Memory {
    fn address(&self) -> u64;
    fn len(&self) -> usize;
    fn read(&self, at: usize, out: &mut [u8]);
    fn write(&self, at: usize, bytes: &[u8]);

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }

    fn word(&self, index: usize) -> u64 {
        let mut word = [0; 8];
        self.read(8 * index, &mut word);
        u64::from_ne_bytes(word)
    }
}

/// Memory of the machine's own, at an address.
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) _kept: Box<dyn Any>,
}

/// What a kernel was seen to do, where the machine tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A store to the send ring.
    Request,
    Record(u32),
    Doorbell(u64),
    Release(Scope),
}

/// Runs kernels, each with one thread.
pub(crate) trait Machine {
    fn shared(&self, bytes: usize) -> Outcome<Box<dyn Memory>>;
    fn own(&self, bytes: usize) -> Outcome<Place>;
    /// To its end. The steps are in their order; none where the machine does not see them.
    fn run(&self, kernel: Kernel, args: Args) -> Outcome<Option<Vec<Step>>>;
}
