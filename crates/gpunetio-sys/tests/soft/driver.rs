// SPDX-License-Identifier: MIT
//! A queue pair of the library's low-level calls, each undone when it is dropped.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use gpunetio_sys::device::DevQp;
use gpunetio_sys::ffi::*;
use gpunetio_sys::result::DocaError;
use gpunetio_sys::seam::{self, Backend};
use gpunetio_sys::version;
use mlx5_queue::{
    Completion, Doorbell, DoorbellRecord, Flags, Operation, QueueIndex, QueueNumber, RingSize,
    Syndrome, WorkRequest,
};
use mscclpp_softnic::DeviceAddress;

use crate::backend::SoftHca;

pub(crate) const ENTRIES: u32 = 64;

/// Which call failed, and how.
pub(crate) type Failed = (&'static str, DocaError);

/// What is undone at the end, the last first.
type Undo = Vec<Box<dyn FnOnce()>>;

pub(crate) struct Queue {
    backend: Arc<dyn Backend>,
    undo: Undo,
    pub(crate) qp: *mut DocaQp,
    pub(crate) exported: *mut DocaExportedQp,
    dev: *mut DocaDev,
    /// As the GPU's code would have it.
    pub(crate) device: DevQp,
    head: QueueIndex,
    polled: QueueIndex,
}

impl Drop for Queue {
    fn drop(&mut self) {
        undo(&mut self.undo);
    }
}

fn undo(list: &mut Undo) {
    while let Some(step) = list.pop() {
        step();
    }
}

/// Calls the library, and names the call if it fails.
macro_rules! call {
    ($backend:expr, $function:path $(, $argument:expr)*) => {{
        // SAFETY: pointers are places for results, or objects that are alive.
        let result = seam::with($backend, || unsafe { $function($($argument),*) });
        let result = result.expect("no closed library");
        result.ok().map_err(|error| (stringify!($function), error))
    }};
}

/// The same, of something that is undone at the end by another call on it, which must not fail.
macro_rules! made {
    ($undo:expr, $backend:expr, $destroy:path, $($argument:ident),+) => {{
        let backend = Arc::clone($backend);
        $undo.push(Box::new(move || call!(&backend, $destroy, $($argument),+).unwrap()));
    }};
}

/// A place for a result.
fn none<T>() -> *mut T {
    ptr::null_mut()
}

impl Queue {
    /// In state RESET, exported.
    pub(crate) fn new(hca: &Arc<SoftHca>, backend: &Arc<dyn Backend>) -> Result<Self, Failed> {
        let mut list = Undo::new();
        match Self::make(hca, backend, &mut list) {
            Ok((qp, exported, dev, device)) => Ok(Self {
                backend: Arc::clone(backend),
                undo: list,
                qp,
                exported,
                dev,
                device,
                head: QueueIndex::ZERO,
                polled: QueueIndex::ZERO,
            }),
            Err(failed) => {
                undo(&mut list);
                Err(failed)
            }
        }
    }

    fn make(
        hca: &Arc<SoftHca>,
        backend: &Arc<dyn Backend>,
        list: &mut Undo,
    ) -> Result<(*mut DocaQp, *mut DocaExportedQp, *mut DocaDev, DevQp), Failed> {
        let mut gpu = none();
        call!(
            backend,
            doca_gpu_create,
            c"0000:01:00.0".as_ptr(),
            &raw mut gpu
        )?;
        made!(list, backend, doca_gpu_destroy, gpu);
        let mut dev = none();
        call!(backend, doca_verbs_dev_open, hca.pd(), &raw mut dev)?;
        made!(list, backend, doca_verbs_dev_close, dev);
        let mut uar = none();
        call!(
            backend,
            doca_verbs_uar_create,
            dev,
            uar_type::NONCACHE_DEDICATED,
            &raw mut uar
        )
        .or_else(|_| {
            call!(
                backend,
                doca_verbs_uar_create,
                dev,
                uar_type::NONCACHE,
                &raw mut uar
            )
        })?;
        made!(list, backend, doca_verbs_uar_destroy, uar);

        let ring_bytes = ENTRIES as usize * 64;
        let (entries, entries_umem) = memory(
            hca,
            backend,
            list,
            gpu,
            dev,
            ring_bytes + 64,
            Completion::UNWRITTEN,
        )?;
        let (queue, queue_umem) = memory(hca, backend, list, gpu, dev, ring_bytes, 0)?;
        let (_, record_umem) = memory(hca, backend, list, gpu, dev, 4096, 0)?;
        let _ = entries;

        let mut cq = none();
        attributes(
            backend,
            doca_verbs_cq_attr_create,
            doca_verbs_cq_attr_destroy,
            |attr| {
                call!(backend, doca_verbs_cq_attr_set_cq_size, attr, ENTRIES)?;
                call!(
                    backend,
                    doca_verbs_cq_attr_set_external_umem,
                    attr,
                    entries_umem,
                    0
                )?;
                call!(backend, doca_verbs_cq_attr_set_external_uar, attr, uar)?;
                call!(
                    backend,
                    doca_verbs_cq_attr_set_cq_overrun,
                    attr,
                    overrun::ENABLE
                )?;
                call!(backend, doca_verbs_cq_create, dev, attr, &raw mut cq)
            },
        )?;
        made!(list, backend, doca_verbs_cq_destroy, cq);

        let mut qp = none();
        attributes(
            backend,
            doca_verbs_qp_init_attr_create,
            doca_verbs_qp_init_attr_destroy,
            |attr| {
                call!(backend, doca_verbs_qp_init_attr_set_pd, attr, dev)?;
                call!(
                    backend,
                    doca_verbs_qp_init_attr_set_external_umem,
                    attr,
                    queue_umem,
                    0
                )?;
                call!(
                    backend,
                    doca_verbs_qp_init_attr_set_external_umem_dbr,
                    attr,
                    record_umem,
                    0
                )?;
                call!(backend, doca_verbs_qp_init_attr_set_external_uar, attr, uar)?;
                call!(
                    backend,
                    doca_verbs_qp_init_attr_set_qp_type,
                    attr,
                    QP_TYPE_RC
                )?;
                call!(backend, doca_verbs_qp_init_attr_set_sq_wr, attr, ENTRIES)?;
                call!(backend, doca_verbs_qp_init_attr_set_send_cq, attr, cq)?;
                call!(backend, doca_verbs_qp_init_attr_set_send_max_sges, attr, 1)?;
                call!(
                    backend,
                    doca_verbs_qp_init_attr_set_send_dbr_mode,
                    attr,
                    record_mode::DBR_VALID
                )?;
                call!(backend, doca_verbs_qp_create, dev, attr, &raw mut qp)
            },
        )?;
        made!(list, backend, doca_verbs_qp_destroy, qp);

        let mut exported = none();
        let (handler, mode) = (handler::GPU_SM_DB, record_mode_ext::VALID_DBR);
        call!(
            backend,
            version::export_qp,
            gpu,
            qp,
            handler,
            queue,
            cq,
            mode,
            &raw mut exported
        )?;
        made!(list, backend, doca_gpu_verbs_unexport_qp, gpu, exported);
        let mut device = none();
        call!(
            backend,
            doca_gpu_verbs_get_qp_dev,
            exported,
            &raw mut device
        )?;
        // SAFETY: the GPU's memory is this process's.
        Ok((qp, exported, dev, unsafe { device.read() }))
    }

    pub(crate) fn number(&self) -> u32 {
        let mut number = 0;
        call!(
            &self.backend,
            doca_verbs_qp_get_qpn,
            self.qp,
            &raw mut number
        )
        .unwrap();
        number
    }

    /// To a queue pair of a device, on a port of this kind.
    pub(crate) fn connect(
        &self,
        peer: DeviceAddress,
        number: u32,
        kind: i32,
    ) -> Result<(), Failed> {
        use attribute::*;
        let backend = &self.backend;
        self.modify(
            NEXT_STATE
                | PKEY_INDEX
                | PORT_NUM
                | ALLOW_REMOTE_WRITE
                | ALLOW_REMOTE_READ
                | ATOMIC_MODE,
            |attr| {
                call!(
                    backend,
                    doca_verbs_qp_attr_set_next_state,
                    attr,
                    state::INIT
                )?;
                call!(backend, doca_verbs_qp_attr_set_port_num, attr, 1)?;
                call!(backend, doca_verbs_qp_attr_set_allow_remote_write, attr, 1)?;
                call!(backend, doca_verbs_qp_attr_set_allow_remote_read, attr, 1)?;
                call!(
                    backend,
                    doca_verbs_qp_attr_set_atomic_mode,
                    attr,
                    atomic_mode::IB_SPEC
                )
            },
        )?;
        let mut address = none();
        call!(
            backend,
            doca_verbs_ah_attr_create,
            self.dev,
            &raw mut address
        )?;
        let mut list = Undo::new();
        made!(list, backend, doca_verbs_ah_attr_destroy, address);
        let connected = (|| {
            call!(
                backend,
                doca_verbs_ah_attr_set_gid,
                address,
                DocaGid { raw: peer.0 }
            )?;
            call!(backend, doca_verbs_ah_attr_set_addr_type, address, kind)?;
            call!(backend, doca_verbs_ah_attr_set_sgid_index, address, 0)?;
            call!(backend, doca_verbs_ah_attr_set_hop_limit, address, 64)?;
            self.modify(
                NEXT_STATE
                    | RQ_PSN
                    | DEST_QP_NUM
                    | PATH_MTU
                    | AH_ATTR
                    | MIN_RNR_TIMER
                    | MAX_DEST_RD_ATOMIC,
                |attr| {
                    call!(backend, doca_verbs_qp_attr_set_next_state, attr, state::RTR)?;
                    call!(backend, doca_verbs_qp_attr_set_rq_psn, attr, 0)?;
                    call!(backend, doca_verbs_qp_attr_set_dest_qp_num, attr, number)?;
                    call!(backend, doca_verbs_qp_attr_set_path_mtu, attr, mtu::B1K)?;
                    call!(backend, doca_verbs_qp_attr_set_ah_attr, attr, address)?;
                    call!(backend, doca_verbs_qp_attr_set_min_rnr_timer, attr, 12)?;
                    call!(backend, doca_verbs_qp_attr_set_max_dest_rd_atomic, attr, 16)
                },
            )
        })();
        undo(&mut list);
        connected?;
        self.modify(
            NEXT_STATE | SQ_PSN | ACK_TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
            |attr| {
                call!(backend, doca_verbs_qp_attr_set_next_state, attr, state::RTS)?;
                call!(backend, doca_verbs_qp_attr_set_sq_psn, attr, 0)?;
                call!(backend, doca_verbs_qp_attr_set_ack_timeout, attr, 8)?;
                call!(backend, doca_verbs_qp_attr_set_retry_cnt, attr, 1)?;
                call!(backend, doca_verbs_qp_attr_set_rnr_retry, attr, 1)?;
                call!(backend, doca_verbs_qp_attr_set_max_rd_atomic, attr, 16)
            },
        )
    }

    fn modify(
        &self,
        mask: i32,
        set: impl FnOnce(*mut DocaQpAttr) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let backend = &self.backend;
        attributes(
            backend,
            doca_verbs_qp_attr_create,
            doca_verbs_qp_attr_destroy,
            |attr| {
                set(attr)?;
                call!(backend, doca_verbs_qp_modify, self.qp, attr, mask)
            },
        )
    }

    /// Whether the library says that the queue pair is in error.
    pub(crate) fn has_error(&self) -> bool {
        let mut error = DocaErrorInfo::default();
        let exported = self.exported;
        call!(
            &self.backend,
            doca_gpu_verbs_query_last_error,
            exported,
            &raw mut error
        )
        .unwrap();
        error.has_error
    }

    /// Posts one request, by stores to what was exported.
    pub(crate) fn post(&mut self, operation: Operation<'_>) {
        let number = QueueNumber::new(self.device.sq_num).unwrap();
        let request = WorkRequest {
            queue: number,
            index: self.head.get() as u16,
            flags: Flags::SIGNALLED,
            operation,
        };
        let mut bytes = [0; 64];
        request.encode(&mut bytes).unwrap();
        let slot = self.head.get() as usize % ENTRIES as usize;
        self.head = QueueIndex::new(self.head.get() + 1);
        let word = u32::from_ne_bytes(DoorbellRecord::send_word(self.head));
        let bell = u64::from_ne_bytes(Doorbell::new(number, self.head).encode());
        // SAFETY: the GPU's memory is this process's; the slot is free, since its completion was
        // read. The NIC reads whole words.
        unsafe {
            for (place, word) in bytes.chunks_exact(8).enumerate() {
                let word = u64::from_ne_bytes(word.try_into().unwrap());
                let at = self.device.sq_wqe_daddr.cast::<u64>().add(slot * 8 + place);
                std::sync::atomic::AtomicU64::from_ptr(at)
                    .store(word, std::sync::atomic::Ordering::Relaxed);
            }
            std::sync::atomic::AtomicU32::from_ptr(self.device.sq_dbrec)
                .store(word, std::sync::atomic::Ordering::Release);
            std::sync::atomic::AtomicU64::from_ptr(self.device.sq_db)
                .store(bell, std::sync::atomic::Ordering::Release);
        }
    }

    /// The next completion's failure, if it is one.
    pub(crate) fn poll(&mut self) -> Option<Syndrome> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let size = RingSize::new(ENTRIES).unwrap();
        loop {
            let slot = self.polled.get() as usize % ENTRIES as usize;
            let at = self
                .device
                .cq_sq
                .cqe_daddr
                .cast::<u64>()
                .wrapping_add(slot * 8);
            let mut bytes = [0; 64];
            // The last word first: it is what becomes visible last.
            for place in (0..8).rev() {
                // SAFETY: inside of the ring, whose memory is this process's.
                let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(at.add(place)) };
                let word = word.load(std::sync::atomic::Ordering::Acquire);
                bytes[place * 8..place * 8 + 8].copy_from_slice(&word.to_ne_bytes());
            }
            if let Some(found) = Completion::poll(&bytes, self.polled, size).unwrap() {
                self.polled = QueueIndex::new(self.polled.get() + 1);
                return found.failure().map(|failure| failure.syndrome);
            }
            assert!(std::time::Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }
}

/// Attributes, made for one call and destroyed after it.
fn attributes<A>(
    backend: &Arc<dyn Backend>,
    create: unsafe extern "C" fn(*mut *mut A) -> DocaError,
    destroy: unsafe extern "C" fn(*mut A) -> DocaError,
    with: impl FnOnce(*mut A) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut attr = none();
    call!(backend, create, &raw mut attr)?;
    let result = with(attr);
    call!(backend, destroy, attr).unwrap();
    result
}

/// Memory of the GPU, filled with a byte and registered by a dma-buf.
fn memory(
    hca: &Arc<SoftHca>,
    backend: &Arc<dyn Backend>,
    list: &mut Undo,
    gpu: *mut DocaGpu,
    dev: *mut DocaDev,
    bytes: usize,
    fill: u8,
) -> Result<(*mut c_void, *mut DocaUmem), Failed> {
    let memory = hca.allocate(bytes);
    let owner = Arc::clone(hca);
    list.push(Box::new(move || owner.free(memory)));
    // SAFETY: it was just allocated.
    unsafe { ptr::write_bytes(memory.cast::<u8>(), fill, bytes) };
    let mut fd = NO_DMABUF;
    call!(
        backend,
        doca_gpu_get_dmabuf_fd,
        gpu,
        memory,
        bytes,
        &raw mut fd
    )?;
    // SAFETY: it is ours.
    let fd = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let mut umem = none();
    let local_write = 1;
    call!(
        backend,
        doca_verbs_umem_create,
        dev,
        gpu,
        memory,
        bytes,
        local_write,
        raw,
        0,
        &raw mut umem
    )?;
    made!(list, backend, doca_verbs_umem_destroy, umem);
    Ok((memory, umem))
}
