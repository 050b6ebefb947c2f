// SPDX-License-Identifier: MIT
//! A queue pair made by the library's low-level calls, and exported for kernels.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex};

use gpunetio_sys::device::DevQp;
use gpunetio_sys::ffi::*;

use super::super::layout::QueueLayout;
use super::super::lock;
use super::calls::{Calls, Failed, Object, call, object};
use super::exported::check;
use crate::error::{Error, Result};

/// `IBV_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;

/// A queue pair in RESET, with all that it stands on: let go of in this order.
pub(super) struct Made {
    exported: Exported,
    pub(super) pair: Object<DocaQp>,
    _completions: Object<DocaCq>,
    _memory: [Object<DocaUmem>; 3],
    _page: Object<DocaUar>,
    pub(super) device: Object<DocaDev>,
    _gpu: Object<DocaGpu>,
    pub(super) shown: Shown,
    pub(super) calls: Arc<Calls>,
}

/// What the library says that kernels are to use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) number: u32,
    pub(super) doorbell: u64,
}

/// Held while the library's one table of doorbells that GPUs see is changed.
static DOORBELLS: Mutex<()> = Mutex::new(());

/// A queue pair that was exported to a GPU.
struct Exported {
    raw: *mut DocaExportedQp,
    gpu: *mut DocaGpu,
    calls: Arc<Calls>,
}

// SAFETY: as for `Object`.
unsafe impl Send for Exported {}
// SAFETY: as for `Object`.
unsafe impl Sync for Exported {}

impl Drop for Exported {
    fn drop(&mut self) {
        let _one = lock(&DOORBELLS);
        let result = call!(self.calls, doca_gpu_verbs_unexport_qp, self.gpu, self.raw);
        if let Err(error) = result {
            tracing::warn!(%error, "a queue pair of GPUNetIO's cannot be taken back from its GPU");
        }
    }
}

/// A step, and its error.
pub(super) type Step<T> = Result<T, (&'static str, Failed)>;

/// Says of a step what it was to do.
pub(super) fn step<T>(what: &'static str, result: Result<T, Failed>) -> Step<T> {
    result.map_err(|error| (what, error))
}

impl Made {
    /// In the memory of `layout`.
    pub(super) fn new(hca: &str, calls: Arc<Calls>, layout: &QueueLayout) -> Result<Self> {
        let named = |(operation, error)| Error::hca(hca, operation, error);
        let (made, device) = Self::make(calls, layout).map_err(named)?;
        let mut bytes = [0; size_of::<DevQp>()];
        made.calls.ground().read(device as u64, &mut bytes)?;
        // SAFETY: it has the size, and any bytes are one: numbers and addresses.
        let exported: DevQp = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
        let mut number = 0;
        step(
            "ask for the number of a queue pair",
            call!(
                made.calls,
                doca_verbs_qp_get_qpn,
                made.pair.raw(),
                &raw mut number
            ),
        )
        .map_err(named)?;
        let wrong = |reason| Error::UnfitQueue {
            hca: hca.into(),
            queue: number,
            reason,
        };
        check(&exported, number, layout).map_err(wrong)?;
        Ok(Self {
            shown: Shown {
                number,
                doorbell: exported.sq_db as u64,
            },
            ..made
        })
    }

    /// With the place of what was exported, in the device's memory.
    fn make(calls: Arc<Calls>, layout: &QueueLayout) -> Step<(Self, *mut DevQp)> {
        let with = &calls;
        let name = with.ground().gpu();
        let gpu = step(
            "open a GPU",
            object!(with, doca_gpu_create => doca_gpu_destroy, name.as_ptr()),
        )?;
        let device = step(
            "open a device",
            object!(with, doca_verbs_dev_open => doca_verbs_dev_close, with.ground().domain().as_ptr()),
        )?;
        let page = step("allocate a doorbell page", page(with, &device))?;
        let rings = layout.rings.address();
        let size = |entries: u32| u64::from(entries) * 64;
        let umem = |at, bytes| {
            step(
                "register a queue",
                memory(with, &gpu, &device, rings + at, bytes),
            )
        };
        let entries = umem(layout.completions, size(layout.entries + 1))?;
        let ring = umem(layout.ring, size(layout.blocks))?;
        let record = umem(layout.record, 8)?;
        let completions = step(
            "create a completion queue",
            completions(with, &device, layout.entries, &entries, &page),
        )?;
        let pair = step(
            "create a queue pair",
            pair(
                with,
                &device,
                layout.blocks,
                [&ring, &record],
                &page,
                &completions,
            ),
        )?;

        let mut raw = ptr::null_mut();
        let (send, handler) = (rings + layout.ring, handler::GPU_SM_DB);
        let one = lock(&DOORBELLS);
        step(
            "export a queue pair",
            // SAFETY: as in `call!`; the ring is the memory that was registered for the send queue.
            with.run("doca_gpu_verbs_export_qp", || unsafe {
                with.library.export_qp(
                    gpu.raw(),
                    pair.raw(),
                    handler,
                    ptr::with_exposed_provenance_mut(send as usize),
                    completions.raw(),
                    record_mode_ext::VALID_DBR,
                    &raw mut raw,
                )
            }),
        )?;
        drop(one);
        let exported = Exported {
            raw,
            gpu: gpu.raw(),
            calls: Arc::clone(with),
        };
        let mut place = ptr::null_mut();
        step(
            "export a queue pair",
            call!(with, doca_gpu_verbs_get_qp_dev, raw, &raw mut place),
        )?;
        let made = Self {
            exported,
            pair,
            _completions: completions,
            _memory: [ring, entries, record],
            _page: page,
            device,
            _gpu: gpu,
            shown: Shown {
                number: 0,
                doorbell: 0,
            },
            calls,
        };
        Ok((made, place))
    }

    /// Whether it is in error.
    pub(super) fn has_error(&self) -> Result<bool, Failed> {
        let mut error = DocaErrorInfo::default();
        let raw = self.exported.raw;
        call!(
            self.calls,
            doca_gpu_verbs_query_last_error,
            raw,
            &raw mut error
        )?;
        Ok(error.has_error)
    }
}

/// A page for this queue alone, if the driver has such, or else one of the usual kind.
fn page(calls: &Arc<Calls>, device: &Object<DocaDev>) -> Result<Object<DocaUar>, Failed> {
    let of = |kind| {
        let page =
            object!(calls, doca_verbs_uar_create => doca_verbs_uar_destroy, device.raw(), kind)?;
        // The library says that it has made one where it has not.
        let mut register = ptr::null_mut();
        call!(
            calls,
            doca_verbs_uar_reg_addr_get,
            page.raw(),
            &raw mut register
        )?;
        if register.is_null() {
            return Err(Failed {
                call: "doca_verbs_uar_create",
                code: gpunetio_sys::result::DocaError::NO_MEMORY.0,
                reason: Some("it made a page without a register".into()),
            });
        }
        Ok(page)
    };
    of(uar_type::NONCACHE_DEDICATED).or_else(|_| of(uar_type::NONCACHE))
}

/// Registers memory of the device for the HCA's own use.
fn memory(
    calls: &Arc<Calls>,
    gpu: &Object<DocaGpu>,
    device: &Object<DocaDev>,
    address: u64,
    bytes: u64,
) -> Result<Object<DocaUmem>, Failed> {
    let start = ptr::with_exposed_provenance_mut(address as usize);
    // Whole pages: dma-bufs have no others, and nothing else lies in the last one.
    let bytes = bytes.next_multiple_of(super::hca::PAGE) as usize;
    let mut fd = NO_DMABUF;
    let exported = call!(
        calls,
        doca_gpu_get_dmabuf_fd,
        gpu.raw(),
        start,
        bytes,
        &raw mut fd
    );
    let dmabuf = exported.ok().filter(|()| fd >= 0).map(|()| {
        // SAFETY: the library has just made it, and forgets it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    // Without a dma-buf the driver of the GPU has to know of RDMA itself.
    let fd = dmabuf.as_ref().map_or(NO_DMABUF, OwnedFd::as_raw_fd);
    object!(
        calls,
        doca_verbs_umem_create => doca_verbs_umem_destroy,
        device.raw(), gpu.raw(), start, bytes, LOCAL_WRITE, fd, 0
    )
}

fn completions(
    calls: &Arc<Calls>,
    device: &Object<DocaDev>,
    entries: u32,
    memory: &Object<DocaUmem>,
    page: &Object<DocaUar>,
) -> Result<Object<DocaCq>, Failed> {
    let attr = object!(calls, doca_verbs_cq_attr_create => doca_verbs_cq_attr_destroy)?;
    let raw = attr.raw();
    call!(calls, doca_verbs_cq_attr_set_cq_size, raw, entries)?;
    call!(
        calls,
        doca_verbs_cq_attr_set_external_umem,
        raw,
        memory.raw(),
        0
    )?;
    call!(calls, doca_verbs_cq_attr_set_external_uar, raw, page.raw())?;
    // Entries are as many as requests, so that none can be lost.
    call!(
        calls,
        doca_verbs_cq_attr_set_cq_overrun,
        raw,
        overrun::ENABLE
    )?;
    call!(calls, doca_verbs_cq_attr_set_cq_collapsed, raw, 0)?;
    object!(calls, doca_verbs_cq_create => doca_verbs_cq_destroy, device.raw(), raw)
}

fn pair(
    calls: &Arc<Calls>,
    device: &Object<DocaDev>,
    blocks: u32,
    [ring, record]: [&Object<DocaUmem>; 2],
    page: &Object<DocaUar>,
    completions: &Object<DocaCq>,
) -> Result<Object<DocaQp>, Failed> {
    let attr = object!(calls, doca_verbs_qp_init_attr_create => doca_verbs_qp_init_attr_destroy)?;
    let raw = attr.raw();
    let mode = record_mode::DBR_VALID;
    call!(calls, doca_verbs_qp_init_attr_set_pd, raw, device.raw())?;
    call!(
        calls,
        doca_verbs_qp_init_attr_set_external_umem,
        raw,
        ring.raw(),
        0
    )?;
    call!(
        calls,
        doca_verbs_qp_init_attr_set_external_umem_dbr,
        raw,
        record.raw(),
        0
    )?;
    call!(
        calls,
        doca_verbs_qp_init_attr_set_external_uar,
        raw,
        page.raw()
    )?;
    call!(calls, doca_verbs_qp_init_attr_set_qp_type, raw, QP_TYPE_RC)?;
    call!(calls, doca_verbs_qp_init_attr_set_sq_wr, raw, blocks)?;
    call!(calls, doca_verbs_qp_init_attr_set_send_max_sges, raw, 1)?;
    call!(
        calls,
        doca_verbs_qp_init_attr_set_send_cq,
        raw,
        completions.raw()
    )?;
    call!(calls, doca_verbs_qp_init_attr_set_send_dbr_mode, raw, mode)?;
    object!(calls, doca_verbs_qp_create => doca_verbs_qp_destroy, device.raw(), raw)
}
