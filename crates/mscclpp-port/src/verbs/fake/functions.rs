// SPDX-License-Identifier: MIT
//! The fake's functions, under their names. Pointers are those that it gave out itself.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};

use mscclpp_ib_sys::*;

use super::operations::{poll_cq, post_recv, post_send, query_port, req_notify_cq};
use super::{FAKES, Fake, lock};

thread_local! {
    /// Events that this thread has taken and not acknowledged. An event does not say its device.
    pub(super) static UNACKNOWLEDGED: Cell<i32> = const { Cell::new(0) };
}

fn set_errno<T>(errno: i32) -> *mut T {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

pub(super) fn code(result: Result<(), i32>) -> c_int {
    result.err().unwrap_or(0)
}

/// # Safety
///
/// A context that this library gave out.
pub(super) unsafe fn fake_of(context: *mut ibv_context) -> &'static Fake {
    // SAFETY: its device is the first field of a fake, which lives for ever.
    unsafe { &*(*context).device.cast::<Fake>() }
}

fn address(object: *mut ibv_context) -> usize {
    object.addr()
}

/// The functions by name.
macro_rules! functions {
    ($($(#[$newer:ident])? fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller keeps to the manual page.
                #[allow(unused_unsafe, clippy::multiple_unsafe_ops_per_block)]
                unsafe { $body }
            }
        )*

        pub(super) fn symbol(name: &str) -> Option<NonNull<c_void>> {
            match name {
                $(stringify!($name) => NonNull::new($name as *mut c_void),)*
                _ => None,
            }
        }

        pub(super) fn old_symbol(name: &str) -> Option<NonNull<c_void>> {
            match name {
                $($(stringify!($name) => { stringify!($newer); None })?)*
                _ => symbol(name),
            }
        }
    };
}

functions! {
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
        let fakes = lock(&FAKES);
        let mut list: Vec<*mut ibv_device> =
            fakes.iter().map(|fake| std::ptr::from_ref::<Fake>(fake).cast_mut().cast()).collect();
        *num_devices = list.len() as c_int;
        list.push(null_mut());
        Box::into_raw(list.into_boxed_slice()).cast()
    }
    fn ibv_free_device_list(list: *mut *mut ibv_device) {
        let mut len = 1;
        while !(*list.add(len - 1)).is_null() {
            len += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, len)));
    }
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        (&raw const (*device).name).cast()
    }
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        let fake = &*device.cast::<Fake>();
        let mut state = match fake.enter("ibv_open_device") {
            Ok(state) => state,
            Err(errno) => return set_errno(errno),
        };
        let mut extended = Box::new(verbs_context::zeroed());
        extended.sz = state.extension.unwrap_or_default();
        extended.query_port = Some(query_port);
        extended.context.device = device;
        extended.context.async_fd = state.events_pipe.0.as_raw_fd();
        extended.context.ops.poll_cq = Some(poll_cq);
        extended.context.ops.req_notify_cq = Some(req_notify_cq);
        extended.context.ops.post_send = Some(post_send);
        extended.context.ops.post_recv = Some(post_recv);
        extended.context.abi_compat = match state.extension {
            None => null_mut(),
            Some(_) => std::ptr::without_provenance_mut(usize::MAX),
        };
        let context = &raw mut (*Box::into_raw(extended)).context;
        state.add("device", context, &[]);
        context
    }
    fn ibv_close_device(context: *mut ibv_context) -> c_int {
        let fake = fake_of(context);
        code(fake.enter("ibv_close_device").and_then(|mut state| state.remove(context)).map(|()| {
            let extended = context.byte_sub(std::mem::offset_of!(verbs_context, context));
            drop(Box::from_raw(extended.cast::<verbs_context>()));
        }))
    }
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        let taken = fake_of(context)
            .enter("ibv_get_async_event")
            .and_then(|mut state| state.take_event().ok_or(libc::EAGAIN));
        match taken {
            Ok(taken) => {
                *event = taken;
                UNACKNOWLEDGED.with(|count| count.set(count.get() + 1));
                0
            }
            Err(errno) => {
                set_errno::<()>(errno);
                -1
            }
        }
    }
    fn ibv_ack_async_event(event: *mut ibv_async_event) {
        UNACKNOWLEDGED.with(|count| count.set(count.get() - 1));
        // So that reading it later is found.
        *event = ibv_async_event::zeroed();
    }
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        code(fake_of(context).enter("ibv_query_device").map(|state| *attr = state.attributes))
    }
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
        // The structure of old programs ends before the link layer.
        let mut full = ibv_port_attr::zeroed();
        let result = query_port(context, port, &mut full, size_of::<ibv_port_attr>());
        let known = std::mem::offset_of!(ibv_port_attr, link_layer);
        attr.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast(), known);
        result
    }
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
        let found = fake_of(context)
            .enter("ibv_query_gid")
            .and_then(|state| state.gids.get(&(index as u32)).copied().ok_or(libc::ENODATA));
        match found {
            Ok(entry) if port == 1 => {
                *gid = entry.gid;
                0
            }
            _ => -1,
        }
    }
    #[newer]
    fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, _flags: u32, size: usize) -> isize {
        assert_eq!(size, size_of::<ibv_gid_entry>());
        match fake_of(context).enter("_ibv_query_gid_table") {
            Ok(state) => {
                assert!(state.gids.len() <= max_entries);
                for (index, entry) in state.gids.values().enumerate() {
                    entries.add(index).write(*entry);
                }
                state.gids.len() as isize
            }
            Err(errno) => -(errno as isize),
        }
    }
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        match fake_of(context).enter("ibv_alloc_pd") {
            Ok(mut state) => {
                let pd = Box::into_raw(Box::new(ibv_pd { context, handle: 0 }));
                state.add("protection domain", pd, &[address(context)]);
                pd
            }
            Err(errno) => set_errno(errno),
        }
    }
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        let fake = fake_of((*pd).context);
        let result = fake.enter("ibv_dealloc_pd").and_then(|mut state| state.remove(pd));
        code(result.map(|()| drop(Box::from_raw(pd))))
    }
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        register("ibv_reg_mr", pd, addr, length, access as c_uint)
    }
    #[newer]
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr {
        assert_eq!(iova, addr.addr() as u64);
        register("ibv_reg_mr_iova2", pd, addr, length, access)
    }
    #[newer]
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, _offset: u64, length: usize, iova: u64, _fd: c_int, access: c_int) -> *mut ibv_mr {
        let addr = std::ptr::without_provenance_mut(iova as usize);
        register("ibv_reg_dmabuf_mr", pd, addr, length, access as c_uint)
    }
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        let fake = fake_of((*mr).context);
        let result = fake.enter("ibv_dereg_mr").and_then(|mut state| state.remove(mr));
        code(result.map(|()| drop(Box::from_raw(mr))))
    }
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq {
        assert_eq!(comp_vector, 0);
        match fake_of(context).enter("ibv_create_cq") {
            Ok(mut state) => {
                let mut cq = ibv_cq::zeroed();
                cq.context = context;
                cq.cq_context = cq_context;
                cq.channel = channel;
                // More than was asked for, as real ones do.
                cq.cqe = cqe + 1;
                let cq = Box::into_raw(Box::new(cq));
                let parents = [address(context), channel.addr()];
                state.add("completion queue", cq, &parents[..2 - usize::from(channel.is_null())]);
                cq
            }
            Err(errno) => set_errno(errno),
        }
    }
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        let fake = fake_of((*cq).context);
        let result = fake.enter("ibv_destroy_cq").and_then(|mut state| state.remove(cq));
        code(result.map(|()| drop(Box::from_raw(cq))))
    }
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        match fake_of(context).enter("ibv_create_comp_channel") {
            Ok(mut state) => {
                let mut channel = ibv_comp_channel::zeroed();
                channel.context = context;
                channel.fd = state.channel_pipe.as_raw_fd();
                let channel = Box::into_raw(Box::new(channel));
                state.add("completion channel", channel, &[address(context)]);
                channel
            }
            Err(errno) => set_errno(errno),
        }
    }
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        let fake = fake_of((*channel).context);
        let result = fake.enter("ibv_destroy_comp_channel").and_then(|mut state| state.remove(channel));
        code(result.map(|()| drop(Box::from_raw(channel))))
    }
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int {
        let asked = fake_of((*channel).context).state().asked.take();
        match asked {
            Some(queue) => {
                *cq = std::ptr::with_exposed_provenance_mut(queue);
                *cq_context = (**cq).cq_context;
                0
            }
            None => {
                set_errno::<()>(libc::EAGAIN);
                -1
            }
        }
    }
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
        (*cq).comp_events_completed += nevents;
    }
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        let context = (*pd).context;
        let mut state = match fake_of(context).enter("ibv_create_qp") {
            Ok(state) => state,
            Err(errno) => return set_errno(errno),
        };
        assert_eq!(((*attr).qp_type, (*attr).sq_sig_all), (IBV_QPT_RC, 0));
        (*attr).cap.max_send_wr += 1;
        let mut qp = ibv_qp::zeroed();
        qp.context = context;
        qp.pd = pd;
        qp.send_cq = (*attr).send_cq;
        qp.recv_cq = (*attr).recv_cq;
        qp.qp_num = state.next_number;
        state.next_number += 1;
        let parents = [pd.addr(), qp.send_cq.addr(), qp.recv_cq.addr()];
        let qp = Box::into_raw(Box::new(qp));
        state.add("queue pair", qp, &parents);
        qp
    }
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
        let result = fake_of((*qp).context).enter("ibv_modify_qp").map(|mut state| {
            state.modified.push((mask, *attr));
            (*qp).state = (*attr).qp_state;
        });
        code(result)
    }
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, _mask: c_int, _init: *mut ibv_qp_init_attr) -> c_int {
        code(fake_of((*qp).context).enter("ibv_query_qp").map(|_| (*attr).qp_state = (*qp).state))
    }
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        let fake = fake_of((*qp).context);
        let result = fake.enter("ibv_destroy_qp").and_then(|mut state| state.remove(qp));
        code(result.map(|()| drop(Box::from_raw(qp))))
    }
}

/// For a library that lists no devices, for one of these reasons.
pub(super) fn symbol_without_devices(errno: Option<i32>, name: &str) -> Option<NonNull<c_void>> {
    unsafe extern "C" fn none(num_devices: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller keeps to the manual page.
        unsafe { *num_devices = 0 };
        Box::into_raw(Box::new([null_mut::<ibv_device>()])).cast()
    }
    unsafe extern "C" fn fails<const ERRNO: i32>(_: *mut c_int) -> *mut *mut ibv_device {
        set_errno(ERRNO)
    }
    let list = match errno {
        None => none as *mut c_void,
        Some(libc::ENOSYS) => fails::<{ libc::ENOSYS }> as *mut c_void,
        Some(_) => fails::<{ libc::EPERM }> as *mut c_void,
    };
    match name {
        "ibv_get_device_list" => NonNull::new(list),
        name => symbol(name),
    }
}

unsafe fn register(
    function: &'static str,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: a domain of this library.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let mut state = match unsafe { fake_of(context) }.enter(function) {
        Ok(state) => state,
        Err(errno) => return set_errno(errno),
    };
    let mr = Box::into_raw(Box::new(ibv_mr {
        context,
        pd,
        addr,
        length,
        // Where tests find it again.
        handle: access,
        lkey: 0x1000 + state.next_number,
        rkey: 0x2000 + state.next_number,
    }));
    state.next_number += 1;
    state.add("memory region", mr, &[pd.addr()]);
    mr
}
