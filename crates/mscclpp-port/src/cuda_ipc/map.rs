// SPDX-License-Identifier: MIT
//! A GPU's memory in several processes: sharing it, and mapping what others share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use mscclpp_bootstrap::{Deadline, JobKey, host};
use mscclpp_device::cuda::{CudaError, Export, Gpu, ImportedMemory};

use super::open_once::{OpenOnce, Opened};
use super::server::{self, ExportServer};
use crate::context::{Context, ContextId};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::{self, GpuMemory, Keep};
use crate::memory::{IpcHandle, IpcRecord, Mapped, ProcessId, RegistrationTable};
use crate::random::random_bytes;
use crate::sync::lock_plain as lock;
use crate::transport::TransportKind;

/// The name of this process.
pub(crate) fn process_id() -> Result<ProcessId> {
    static ID: OnceLock<Result<ProcessId>> = OnceLock::new();
    ID.get_or_init(random_bytes).clone()
}

/// What a context shares and maps with.
#[derive(Default)]
pub(crate) struct Sharing {
    server: Mutex<Option<Arc<ExportServer>>>,
    /// The first GPU that the context had to do with: for it peers' memory is mapped.
    gpu: OnceLock<Device>,
}

impl Sharing {
    /// The context uses a GPU.
    pub(crate) fn note(&self, device: Device) {
        self.gpu.get_or_init(|| device);
    }
}

/// The tables of this process's contexts that share memory.
static SHARING: Mutex<Option<HashMap<ContextId, Weak<RegistrationTable>>>> = Mutex::new(None);

/// Memory that was opened by the driver's own handles, of which each may be open once.
static OPENED: OpenOnce<ImportedMemory> = OpenOnce::new();

impl Context {
    /// Shares `len` bytes at `offset` of a GPU's memory with processes of this host: what to tell
    /// them, and what has to live as long as they may ask.
    pub(crate) fn share_memory(
        &self,
        memory: &Arc<GpuMemory>,
        offset: u64,
        len: u64,
        for_signals: bool,
    ) -> Result<(IpcRecord, Keep)> {
        self.sharing().note(memory.device());
        let gpu = (memory.gpu().uuid()).map_err(gpu::failed(memory.device(), "tell its UUID"))?;
        self.enter_process();
        // Now, although it is made anew when somebody asks: whether it can be, and how.
        let (offset, handle, keep): (_, _, Keep) = match memory.export(offset, len)? {
            Export::Fd { block, offset, .. } => {
                let server = self.export_server()?;
                let (socket, id) = server.place();
                let handle = IpcHandle::Descriptor { socket, id, block };
                (offset, handle, server)
            }
            Export::Legacy { handle, offset } => {
                let mut halves = [[0; 32]; 2];
                halves[0].copy_from_slice(&handle[..32]);
                halves[1].copy_from_slice(&handle[32..]);
                (offset, IpcHandle::Legacy(halves), Arc::new(()))
            }
        };
        let record = IpcRecord {
            host: host::id(),
            process: process_id()?,
            gpu,
            for_signals,
            offset,
            handle,
        };
        Ok((record, keep))
    }

    /// Lets other contexts of this process find what this one shares.
    fn enter_process(&self) {
        let mut sharing = lock(&SHARING);
        let tables = sharing.get_or_insert_default();
        tables.retain(|_, table| table.strong_count() > 0);
        tables.insert(self.id(), Arc::downgrade(self.table()));
    }

    fn export_server(&self) -> Result<Arc<ExportServer>> {
        let mut server = lock(&self.sharing().server);
        if let Some(server) = &*server {
            return Ok(Arc::clone(server));
        }
        let table = Arc::clone(self.table());
        let export = move |key| {
            let registration =
                (table.registration(key)).ok_or("it is not registered any more, or never was")?;
            let region = &registration.region;
            let (memory, offset) = (region.in_gpu(region.base().as_ptr()))
                .filter(|_| registration.ipc.is_some())
                .ok_or("it is not open over CUDA IPC")?;
            match memory.export(offset, region.len()) {
                Ok(Export::Fd { fd, .. }) => Ok(fd),
                Ok(Export::Legacy { .. }) => Err("it has no descriptor".into()),
                Err(error) => Err(error.to_string()),
            }
        };
        let made = ExportServer::start(self.acceptor()?, self.job_key(), self.deadlines(), export)?;
        Ok(Arc::clone(server.insert(Arc::new(made))))
    }

    /// The first `end` bytes of a registration, given by its key, its context and its rank, as copies
    /// of this process reach them.
    pub(crate) fn map_memory(
        &self,
        (key, owner, rank): (u64, ContextId, Option<usize>),
        record: &IpcRecord,
        end: u64,
        deadline: Deadline,
    ) -> Result<Mapped> {
        if record.host != host::id() {
            return Err(Error::Unsupported {
                operation: "reach a peer's memory",
                transport: TransportKind::CudaIpc,
                missing: "the peer is on another host",
            });
        }
        if record.process == process_id()? {
            return own(key, owner, record);
        }
        let gpu = match self.sharing().gpu.get() {
            Some(device) => gpu::open(*device)?,
            // The owner's own, unless it is hidden from this process; then any.
            None => (Gpu::by_uuid(&record.gpu))
                .or_else(|_| Gpu::open(0))
                .map_err(gpu::failed(Device::gpu(0), "open the GPU"))?,
        };
        import(&gpu, (key, rank), record, end, (self.job_key(), deadline))
    }
}

/// Memory of another context of this process, or of this one.
fn own(key: u64, owner: ContextId, record: &IpcRecord) -> Result<Mapped> {
    let table = (lock(&SHARING).as_ref()).and_then(|tables| tables.get(&owner)?.upgrade());
    let registration = table.and_then(|table| table.registration(key));
    let registration = registration.ok_or_else(|| Error::Record {
        what: "memory",
        detail: "it names memory of this process that is not registered".into(),
    })?;
    Ok(Mapped {
        address: registration.region.base().addr().get() as u64,
        for_signals: record.for_signals,
        keep: Arc::clone(&registration.region) as _,
    })
}

fn import(
    gpu: &Gpu,
    (key, rank): (u64, Option<usize>),
    record: &IpcRecord,
    end: u64,
    (job_key, deadline): (Option<&JobKey>, Deadline),
) -> Result<Mapped> {
    let device = Device::gpu(gpu.ordinal().cast_signed());
    let failed = gpu::failed(device, "map a peer's memory");
    let (address, keep): (u64, Keep) = match &record.handle {
        IpcHandle::Descriptor { socket, id, block } => {
            let export = Export::Fd {
                fd: server::ask((*socket, *id), job_key, key, rank, deadline)?,
                block: *block,
                offset: record.offset,
            };
            let memory = ImportedMemory::open(gpu, export, end).map_err(failed)?;
            (memory.address(), Arc::new(memory))
        }
        IpcHandle::Legacy(halves) => {
            let memory = open_legacy(gpu, halves, record.offset + end).map_err(failed)?;
            (memory.address() + record.offset, memory)
        }
    };
    Ok(Mapped {
        address,
        for_signals: record.for_signals,
        keep,
    })
}

/// The first `end` bytes at least of memory that another process shares by the driver's own handle.
pub(crate) fn open_legacy(
    gpu: &Gpu,
    halves: &[[u8; 32]; 2],
    end: u64,
) -> Result<Arc<Opened<ImportedMemory>>, CudaError> {
    let memory = OPENED.open(halves, || {
        let mut handle = [0; 64];
        handle[..32].copy_from_slice(&halves[0]);
        handle[32..].copy_from_slice(&halves[1]);
        let export = Export::Legacy { handle, offset: 0 };
        ImportedMemory::open(gpu, export, end)
    })?;
    if end > memory.len() {
        let what = "a range inside the exported allocation";
        return Err(CudaError::Size { what, bytes: end });
    }
    Ok(Arc::new(memory))
}
