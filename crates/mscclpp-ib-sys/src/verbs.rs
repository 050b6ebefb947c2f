// SPDX-License-Identifier: MIT
//! The functions of libibverbs, under their names: those of the library, and those that
//! `infiniband/verbs.h` has as inline functions.

use std::ffi::{OsString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::attributes::{
    ibv_async_event, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_port_attr, ibv_qp_attr,
    ibv_qp_init_attr,
};
use crate::constants::IB_UVERBS_ACCESS_OPTIONAL_RANGE;
use crate::functions::functions;
use crate::library::{LoadError, Loaded, Wanted, no_such_function};
use crate::objects::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, verbs_context,
};

/// The environment variable that may hold the library's path.
pub const LIBRARY_VARIABLE: &str = "MSCCLPP_IBV_SO";

const WANTED: Wanted = Wanted {
    library: "libibverbs",
    package: "libibverbs1 and ibverbs-providers",
    variable: LIBRARY_VARIABLE,
    names: &["libibverbs.so.1", "libibverbs.so"],
};

functions! {
    /// A loaded libibverbs. May be shared by threads. It stays loaded until the process ends.
    ///
    /// The methods are the functions of the same names; ibv_…(3) says what each does, needs and
    /// returns.
    struct Verbs
    called {
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    }
    wrapped {
        fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
        fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    }
    newer {
        fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
        fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr;
        fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize;
    }
}

impl Verbs {
    /// The library that `MSCCLPP_IBV_SO` names, else the system's. It is loaded by the first call,
    /// and later ones return the same result.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn get() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<Result<Verbs, LoadError>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| WANTED.load().and_then(Self::of));
        loaded.as_ref().map_err(Clone::clone)
    }

    /// The library in a file.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load_from(path: &Path) -> Result<Self, LoadError> {
        WANTED.load_first([OsString::from(path)]).and_then(Self::of)
    }

    /// A library of functions that are in the process already: one that was linked, or that a test
    /// stands in its place.
    ///
    /// # Errors
    ///
    /// [`LoadError::Symbol`].
    ///
    /// # Safety
    ///
    /// Each function has the type and does what verbs.h and the manual pages say of its name.
    pub unsafe fn from_symbols(
        name: &str,
        symbols: &dyn Fn(&str) -> Option<NonNull<c_void>>,
    ) -> Result<Self, LoadError> {
        Self::of(Loaded::given(WANTED.library, name, symbols))
    }

    /// The file that was loaded.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Inline in verbs.h. The exported function of this name fills a shorter structure, without the
    /// link layer; a context that has more says so by a mark.
    ///
    /// # Safety
    ///
    /// An open context and a structure to write to.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller's promise. A context with the mark is the last field of a
        // `verbs_context` of at least `sz` bytes.
        unsafe {
            if let Some(extended) = verbs_get_ctx(context)
                && has(extended, std::mem::offset_of!(verbs_context, query_port))
                && let Some(query_port) = (*extended).query_port
            {
                return query_port(context, port, attr, size_of::<ibv_port_attr>());
            }
            attr.write(ibv_port_attr::zeroed());
            (self.ibv_query_port)(context, port, attr)
        }
    }

    /// A macro in verbs.h: with optional access flags (such as relaxed ordering) a newer function,
    /// which leaves those out that the kernel does not know. A library without it gets none.
    ///
    /// # Safety
    ///
    /// A live protection domain, and memory that lives until it is deregistered.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr {
        let required = access & !IB_UVERBS_ACCESS_OPTIONAL_RANGE;
        // SAFETY: the caller's promise.
        unsafe {
            match self.ibv_reg_mr_iova2 {
                Some(register) if required != access => {
                    register(pd, addr, length, addr as u64, access)
                }
                // Not negative: the flags above bit 29 are none of verbs.h.
                _ => (self.ibv_reg_mr)(pd, addr, length, required as c_int),
            }
        }
    }

    /// Null and EOPNOTSUPP where the library is older than it (rdma-core 34).
    ///
    /// # Safety
    ///
    /// A live protection domain and an open DMA buffer.
    pub unsafe fn ibv_reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_uint,
    ) -> *mut ibv_mr {
        let Some(register) = self.ibv_reg_dmabuf_mr else {
            return no_such_function();
        };
        // SAFETY: the caller's promise.
        unsafe { register(pd, offset, length, iova, fd, access as c_int) }
    }

    /// Inline in verbs.h: the GIDs of all ports. How many, or a negative errno: -EOPNOTSUPP where the
    /// library is older than it (rdma-core 31).
    ///
    /// # Safety
    ///
    /// An open context and room for `max_entries`, which are all that there are.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> isize {
        let Some(query) = self._ibv_query_gid_table else {
            return -(libc::EOPNOTSUPP as isize);
        };
        // SAFETY: the caller's promise.
        unsafe {
            query(
                context,
                entries,
                max_entries,
                flags,
                size_of::<ibv_gid_entry>(),
            )
        }
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verbs").field(&self.file).finish()
    }
}

/// The extended context around a context, if it has one.
///
/// # Safety
///
/// An open context.
unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller's promise; the mark says that there is a `verbs_context` around it.
    unsafe {
        ((*context).abi_compat.addr() == usize::MAX).then(|| {
            let offset = std::mem::offset_of!(verbs_context, context);
            context.byte_sub(offset).cast()
        })
    }
}

/// Whether the library's extended context reaches to the front as far as a field: it is as large as
/// its `sz` says, and ends where ours does.
///
/// # Safety
///
/// From [`verbs_get_ctx`].
unsafe fn has(extended: *mut verbs_context, offset: usize) -> bool {
    // SAFETY: the caller's promise: `sz` is there in every version.
    unsafe { (*extended).sz >= size_of::<verbs_context>() - offset }
}
