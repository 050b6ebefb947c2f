// SPDX-License-Identifier: MIT
//! The C++ side's view of a thread (`host_device.hpp`) and the functions behind
//! it.

use std::ffi::{c_int, c_void};

use super::launch::ThreadState;
use super::memory::{Order, Scope, Word};
use crate::trace::RingHandle;

pub(crate) const VERSION: u32 = 1;

/// Twin of `mscclpp::host::ThreadContext`.
#[repr(C)]
pub(crate) struct ThreadContext {
    pub(crate) version: u32,
    pub(crate) thread_idx: u32,
    pub(crate) block_idx: u32,
    pub(crate) block_dim: u32,
    pub(crate) grid_dim: u32,
    pub(crate) reserved: u32,
    /// Null: describe yourself.
    pub(crate) args: *const c_void,
    pub(crate) hooks: *const Hooks,
    /// A [`ThreadState`], or a [`Description`] where `args` is null.
    pub(crate) this: *const c_void,
    /// A `trace::RingHandle`, or null.
    pub(crate) trace: *const RingHandle,
}

/// What an entry says of itself.
#[derive(Default)]
pub(crate) struct Description {
    pub(crate) told: std::cell::Cell<Option<(u64, bool)>>,
}

/// Twin of `mscclpp::host::Hooks`.
#[repr(C)]
pub(crate) struct Hooks {
    describe: unsafe extern "C" fn(*const c_void, u64, u32),
    barrier: unsafe extern "C" fn(*const c_void, c_int) -> c_int,
    relax: unsafe extern "C" fn(*const c_void),
    load: unsafe extern "C" fn(*const c_void, *const c_void, u32, c_int, c_int) -> u64,
    store: unsafe extern "C" fn(*const c_void, *mut c_void, u64, u32, c_int, c_int),
    fetch_add: unsafe extern "C" fn(*const c_void, *mut c_void, u64, u32, c_int, c_int) -> u64,
    compare_exchange:
        unsafe extern "C" fn(*const c_void, *mut c_void, u64, u64, u32, c_int, c_int) -> u64,
    fence: unsafe extern "C" fn(*const c_void, c_int, c_int),
    store_mmio: unsafe extern "C" fn(*const c_void, *mut c_void, u64),
}

const _: () = assert!(size_of::<ThreadContext>() == 56 && size_of::<Hooks>() == 72);

pub(crate) static HOOKS: Hooks = Hooks {
    describe,
    barrier,
    relax,
    load,
    store,
    fetch_add,
    compare_exchange,
    fence,
    store_mmio,
};

/// # Safety
///
/// `this` is the `this` of the calling thread's [`ThreadContext`], made for a
/// running kernel.
unsafe fn state<'a>(this: *const c_void) -> &'a ThreadState {
    // SAFETY: `launch` points `this` at a ThreadState that outlives the entry's call, and the C++
    // side hands it back unchanged.
    unsafe { &*this.cast::<ThreadState>() }
}

unsafe extern "C" fn describe(this: *const c_void, args_size: u64, modelled: u32) {
    // SAFETY: where `args` is null, `this` points to a Description that outlives the entry's call.
    let description = unsafe { &*this.cast::<Description>() };
    description.told.set(Some((args_size, modelled != 0)));
}

unsafe extern "C" fn barrier(this: *const c_void, predicate: c_int) -> c_int {
    // SAFETY: called by the C++ side with its context's `this`.
    let state = unsafe { state(this) };
    state.barrier(predicate != 0).into()
}

unsafe extern "C" fn relax(this: *const c_void) {
    // SAFETY: called by the C++ side with its context's `this`.
    let state = unsafe { state(this) };
    state.memory.relax();
}

unsafe extern "C" fn load(
    this: *const c_void,
    address: *const c_void,
    bytes: u32,
    order: c_int,
    scope: c_int,
) -> u64 {
    // SAFETY: called by the C++ side with its context's `this`; the address is one that the kernel
    // may access atomically, aligned and `bytes` wide.
    let (state, word) = unsafe { (state(this), Word::new(address as usize, bytes)) };
    state.memory.load(word, Order::of(order), Scope::of(scope))
}

unsafe extern "C" fn store(
    this: *const c_void,
    address: *mut c_void,
    value: u64,
    bytes: u32,
    order: c_int,
    scope: c_int,
) {
    // SAFETY: as for `load`.
    let (state, word) = unsafe { (state(this), Word::new(address as usize, bytes)) };
    state
        .memory
        .store(word, value, Order::of(order), Scope::of(scope));
}

unsafe extern "C" fn fetch_add(
    this: *const c_void,
    address: *mut c_void,
    operand: u64,
    bytes: u32,
    order: c_int,
    scope: c_int,
) -> u64 {
    // SAFETY: as for `load`.
    let (state, word) = unsafe { (state(this), Word::new(address as usize, bytes)) };
    state
        .memory
        .fetch_add(word, operand, Order::of(order), Scope::of(scope))
}

unsafe extern "C" fn compare_exchange(
    this: *const c_void,
    address: *mut c_void,
    expected: u64,
    desired: u64,
    bytes: u32,
    order: c_int,
    scope: c_int,
) -> u64 {
    // SAFETY: as for `load`.
    let (state, word) = unsafe { (state(this), Word::new(address as usize, bytes)) };
    state
        .memory
        .compare_exchange(word, expected, desired, Order::of(order), Scope::of(scope))
}

unsafe extern "C" fn fence(this: *const c_void, order: c_int, scope: c_int) {
    // SAFETY: called by the C++ side with its context's `this`.
    let state = unsafe { state(this) };
    state.memory.fence(Order::of(order), Scope::of(scope));
}

unsafe extern "C" fn store_mmio(this: *const c_void, address: *mut c_void, value: u64) {
    // SAFETY: as for `load`; a register is 8 bytes wide.
    let (state, word) = unsafe { (state(this), Word::new(address as usize, 8)) };
    state.memory.store_mmio(word, value);
}
