// SPDX-License-Identifier: MIT
//! A memory that other processes can map: what a GPU's is. Accesses end later.
#![allow(dead_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use mscclpp_softnic::*;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// In which order accesses act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// In that of their submission, as on a stream.
    Order,
    /// In any, and says so.
    Nothing,
    /// Says that it keeps the order, and lets the newest act first.
    NothingSecretly,
}

/// Host memory of other processes too, behind a queue of accesses.
pub(crate) struct SharedMemory {
    keeps: Keeps,
    /// Whether it maps what others export.
    imports: bool,
    exports: AtomicBool,
    /// How many mappings of others' memory there are.
    mapped: Arc<AtomicUsize>,
    /// While true, imports do not end, as in a driver that hangs.
    held: Mutex<bool>,
    let_go: Condvar,
    /// Imports that have begun.
    begun: AtomicUsize,
    state: Mutex<State>,
}

/// Called with where something was written.
type Watch = Box<dyn FnMut(u64) + Send>;

struct State {
    rng: fastrand::Rng,
    waiting: Vec<(AccessId, Access)>,
    /// One access has ended since somebody asked in vain.
    told: bool,
    after_write: Option<Watch>,
}

const MAGIC: &[u8; 8] = b"a memfd:";

impl SharedMemory {
    pub(crate) fn new(keeps: Keeps) -> Arc<Self> {
        Self::with(keeps, true)
    }

    pub(crate) fn with(keeps: Keeps, imports: bool) -> Arc<Self> {
        Arc::new(Self {
            keeps,
            imports,
            exports: AtomicBool::new(true),
            mapped: Arc::default(),
            held: Mutex::new(false),
            let_go: Condvar::new(),
            begun: AtomicUsize::new(0),
            state: Mutex::new(State {
                rng: fastrand::Rng::with_seed(7),
                waiting: Vec::new(),
                told: false,
                after_write: None,
            }),
        })
    }

    pub(crate) fn set_exports(&self, exports: bool) {
        self.exports.store(exports, SeqCst);
    }

    pub(crate) fn mapped(&self) -> usize {
        self.mapped.load(SeqCst)
    }

    pub(crate) fn hold_imports(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.let_go.notify_all();
    }

    /// Imports that have begun.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }

    pub(crate) fn after_write(&self, call: impl FnMut(u64) + Send + 'static) {
        self.state.lock().unwrap().after_write = Some(Box::new(call));
    }

    /// All of a buffer, as this memory reaches it.
    pub(crate) fn range(self: &Arc<Self>, buffer: &SharedBuffer) -> MemoryRange {
        let owner = buffer.0.clone();
        // SAFETY: the owner keeps the mapping, which this memory reaches as host
        // memory, by atomic copies.
        unsafe {
            MemoryRange::new(
                self.clone(),
                buffer.address(),
                buffer.0.length as u64,
                owner,
            )
        }
    }
}

impl NicMemory for SharedMemory {
    fn in_order(&self) -> bool {
        self.keeps != Keeps::Nothing
    }

    unsafe fn submit(&self, id: AccessId, access: Access) -> Submitted {
        self.state.lock().unwrap().waiting.push((id, access));
        Submitted::Pending
    }

    fn complete(&self) -> Option<(AccessId, AccessResult)> {
        let mut state = self.state.lock().unwrap();
        state.told = !state.told && !state.waiting.is_empty();
        if !state.told {
            return None;
        }
        let count = state.waiting.len();
        let at = match self.keeps {
            Keeps::Order => 0,
            Keeps::Nothing => state.rng.usize(..count),
            Keeps::NothingSecretly => count - 1,
        };
        let (id, access) = state.waiting.remove(at);
        let written = match &access {
            Access::Write { address, .. } | Access::Publish { address, .. } => Some(*address),
            Access::Copy { to, .. } => Some(*to),
            _ => None,
        };
        // SAFETY: the NIC promised as much when it submitted the access.
        let done = match unsafe { HostMemory::shared().submit(id, access) } {
            Submitted::Done(result) => result,
            Submitted::Pending => panic!("host memory completes at once"),
        };
        if let (Some(address), Some(call)) = (written, &mut state.after_write) {
            call(address);
        }
        Some((id, done))
    }

    fn export(&self, range: &MemoryRange) -> Result<Option<Export>, MemoryFault> {
        if !self.exports.load(SeqCst) {
            return Err(MemoryFault("told not to".into()));
        }
        let Some(map) = range.owner().downcast_ref::<Map>() else {
            return Ok(None);
        };
        let offset = range.address() - map.start as u64;
        Ok(Some(Export {
            description: [&MAGIC[..], &offset.to_le_bytes()].concat(),
            descriptor: map
                .memory
                .as_ref()
                .map(|memory| memory.try_clone().unwrap()),
        }))
    }

    fn import(
        &self,
        description: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        length: u64,
    ) -> Result<Option<Imported>, MemoryFault> {
        self.begun.fetch_add(1, SeqCst);
        let held = self.held.lock().unwrap();
        drop(self.let_go.wait_while(held, |held| *held).unwrap());
        let offset = description
            .strip_prefix(MAGIC)
            .and_then(<[u8]>::as_array::<8>);
        let (Some(offset), Some(descriptor), true) = (offset, descriptor, self.imports) else {
            return Ok(None);
        };
        let offset = u64::from_le_bytes(*offset);
        let memory = descriptor.try_clone_to_owned().unwrap();
        let size = fstat(&memory)
            .map_err(|error| MemoryFault(error.to_string()))?
            .st_size as u64;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(MemoryFault("more than there is".into()));
        }
        let map = Map::new(memory, size as usize, Some(Arc::clone(&self.mapped)));
        let address = map.start as u64 + offset;
        // SAFETY: so many bytes from there are mapped while the map lives, and
        // reached by atomic copies.
        Ok(Some(unsafe { Imported::new(address, Arc::new(map)) }))
    }
}

/// A mapping of a memfd.
pub(crate) struct Map {
    start: *mut c_void,
    length: usize,
    /// Of one's own: mappings do without.
    memory: Option<OwnedFd>,
    counted: Option<Arc<AtomicUsize>>,
}

// SAFETY: plain memory, reached by atomic copies alone.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(memory: OwnedFd, length: usize, counted: Option<Arc<AtomicUsize>>) -> Self {
        let access = match counted {
            Some(_) => ProtFlags::READ,
            None => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping touches no memory there is.
        let start = unsafe {
            mmap(
                null_mut(),
                length,
                access,
                MapFlags::SHARED,
                memory.as_fd(),
                0,
            )
        }
        .unwrap();
        if let Some(counted) = &counted {
            counted.fetch_add(1, SeqCst);
        }
        Self {
            start,
            length,
            memory: counted.is_none().then_some(memory),
            counted,
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            counted.fetch_sub(1, SeqCst);
        }
        // SAFETY: mapped by `new`, and nobody uses it any more.
        unsafe { munmap(self.start, self.length) }.unwrap();
    }
}

/// Zeroed memory that can be exported.
#[derive(Clone)]
pub(crate) struct SharedBuffer(pub(crate) Arc<Map>);

impl SharedBuffer {
    pub(crate) fn new(length: usize) -> Self {
        let memory = memfd_create("softnic-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, length as u64).unwrap();
        Self(Arc::new(Map::new(memory, length, None)))
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.start as u64
    }

    /// What it can be mapped by.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.0.memory.as_ref().unwrap().as_fd()
    }

    fn host(&self) -> MemoryRange {
        // SAFETY: mapped memory, which the owner keeps.
        unsafe { HostMemory::range(self.0.start.cast(), self.0.length, self.0.clone()) }
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let range = self.host().slice(offset as u64, length as u64).unwrap();
        let access = Access::Read {
            address: range.address(),
            bytes: Bytes::from_elem(0, length),
        };
        // SAFETY: inside of the range.
        match unsafe { HostMemory::shared().submit(AccessId::new(0), access) } {
            Submitted::Done(bytes) => bytes.unwrap().into_vec(),
            Submitted::Pending => panic!("host memory completes at once"),
        }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let range = self
            .host()
            .slice(offset as u64, bytes.len() as u64)
            .unwrap();
        let access = Access::Write {
            address: range.address(),
            bytes: Bytes::from_slice(bytes),
        };
        // SAFETY: inside of the range.
        let done = unsafe { HostMemory::shared().submit(AccessId::new(0), access) };
        assert!(matches!(done, Submitted::Done(Ok(_))));
    }

    pub(crate) fn read_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().unwrap())
    }
}
