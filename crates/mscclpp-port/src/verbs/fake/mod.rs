// SPDX-License-Identifier: MIT
//! A libibverbs inside of the process, for tests: it keeps count of its objects, refuses to take one
//! back that another stands on, notes what it is asked, and fails where a test says so.

mod functions;
mod operations;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_char;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use mscclpp_ib_sys as sys;
use mscclpp_ib_sys::Verbs;

/// A device that is not there. It lives until the process ends.
#[repr(C)]
pub(crate) struct Fake {
    /// First, so that a pointer to it is one to the whole.
    device: sys::ibv_device,
    name: String,
    state: Mutex<State>,
}

// SAFETY: what it points to is never changed by others, and its state is behind a lock.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

/// What the tests say and see.
pub(crate) struct State {
    /// The call, counted from 0, that fails with an errno.
    fail_call: Option<(usize, i32)>,
    /// Functions that always fail, with an errno.
    fail: BTreeMap<&'static str, i32>,
    /// All calls that can fail.
    pub(crate) calls: Vec<&'static str>,
    /// Objects by their address: what each is, and the objects that it stands on.
    objects: BTreeMap<usize, (&'static str, Vec<usize>)>,
    next_number: u32,
    pub(crate) attributes: sys::ibv_device_attr,
    pub(crate) port: sys::ibv_port_attr,
    pub(crate) gids: BTreeMap<u32, sys::ibv_gid_entry>,
    events: VecDeque<sys::ibv_async_event>,
    /// A byte for each of them.
    events_pipe: (PipeReader, PipeWriter),
    /// Transitions: mask and attributes.
    pub(crate) modified: Vec<(i32, sys::ibv_qp_attr)>,
    pub(crate) posted: Vec<Posted>,
    /// How many requests a queue takes.
    pub(crate) room: usize,
    pub(crate) completions: VecDeque<sys::ibv_wc>,
    /// The completion queue whose channel has an event.
    pub(crate) asked: Option<usize>,
    /// Bytes of the contexts' extension, as this library says; none in one of long ago.
    pub(crate) extension: Option<usize>,
    /// Nobody writes to it: what waits for it is woken at once.
    channel_pipe: PipeReader,
}

/// A request that was posted.
pub(crate) struct Posted {
    pub(crate) request: sys::ibv_send_wr,
    pub(crate) pieces: Vec<sys::ibv_sge>,
    /// The bytes of an inline request.
    pub(crate) inline: Vec<u8>,
}

static FAKES: Mutex<Vec<&'static Fake>> = Mutex::new(Vec::new());

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// One more device, with a port and two GIDs.
    pub(crate) fn new() -> &'static Self {
        let mut fakes = lock(&FAKES);
        let name = format!("fake{}", fakes.len());
        let mut device = sys::ibv_device::zeroed();
        for (to, from) in device.name.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        let mut attributes = sys::ibv_device_attr::zeroed();
        attributes.max_mr_size = 1 << 30;
        attributes.max_qp = 100;
        attributes.max_qp_wr = 1024;
        attributes.max_cqe = 4096;
        attributes.max_sge = 4;
        attributes.max_qp_rd_atom = 16;
        attributes.max_qp_init_rd_atom = 8;
        attributes.atomic_cap = sys::IBV_ATOMIC_HCA;
        attributes.phys_port_cnt = 1;
        let mut port = sys::ibv_port_attr::zeroed();
        port.state = sys::IBV_PORT_ACTIVE;
        port.max_mtu = sys::IBV_MTU_4096;
        port.active_mtu = sys::IBV_MTU_1024;
        port.gid_tbl_len = 4;
        port.link_layer = sys::IBV_LINK_LAYER_ETHERNET;
        let mut state = State {
            fail_call: None,
            fail: BTreeMap::new(),
            calls: Vec::new(),
            objects: BTreeMap::new(),
            next_number: 1,
            attributes,
            port,
            gids: BTreeMap::new(),
            events: VecDeque::new(),
            events_pipe: std::io::pipe().unwrap(),
            modified: Vec::new(),
            posted: Vec::new(),
            room: usize::MAX,
            completions: VecDeque::new(),
            asked: None,
            extension: Some(size_of::<sys::verbs_context>()),
            channel_pipe: std::io::pipe().unwrap().0,
        };
        state.gid(0, sys::IBV_GID_TYPE_ROCE_V1, 0xfe80 << 112 | 1);
        state.gid(2, sys::IBV_GID_TYPE_ROCE_V2, 0xffff_0a4d_0001);
        let fake = Box::leak(Box::new(Self {
            device,
            name,
            state: Mutex::new(state),
        }));
        fakes.push(fake);
        fake
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Lets the call with this number, counted from 0, fail.
    pub(crate) fn fail_call(&self, number: usize, errno: i32) {
        self.state().fail_call = Some((number, errno));
    }

    /// Lets a function fail from now on.
    pub(crate) fn fail(&self, function: &'static str, errno: i32) {
        self.state().fail.insert(function, errno);
    }

    /// Lets everything succeed from now on.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        state.fail.clear();
        state.fail_call = None;
    }

    /// What was made and not given back.
    pub(crate) fn left(&self) -> Vec<&'static str> {
        self.state()
            .objects
            .values()
            .map(|(what, _)| *what)
            .collect()
    }

    /// Events that this thread has taken and not acknowledged: giving an object back would wait for
    /// those that concern it.
    pub(crate) fn unacknowledged() -> i32 {
        functions::UNACKNOWLEDGED.get()
    }

    /// The library that has all of these devices.
    pub(crate) fn verbs() -> &'static Verbs {
        static VERBS: OnceLock<Verbs> = OnceLock::new();
        VERBS.get_or_init(|| {
            // SAFETY: they have the types of verbs.h, and do what its pages say.
            unsafe { Verbs::from_symbols("fake", &functions::symbol) }.unwrap()
        })
    }

    /// The same, without the functions that were added to libibverbs later.
    pub(crate) fn old_verbs() -> &'static Verbs {
        static VERBS: OnceLock<Verbs> = OnceLock::new();
        VERBS.get_or_init(|| {
            // SAFETY: as above.
            unsafe { Verbs::from_symbols("old fake", &functions::old_symbol) }.unwrap()
        })
    }

    /// A library that lists no devices: it fails with an errno, or has an empty list.
    pub(crate) fn verbs_without_devices(errno: Option<i32>) -> &'static Verbs {
        static ALL: Mutex<Vec<&'static Verbs>> = Mutex::new(Vec::new());
        let symbols = |name: &str| functions::symbol_without_devices(errno, name);
        // SAFETY: as above.
        let verbs = unsafe { Verbs::from_symbols("fake without devices", &symbols) }.unwrap();
        let verbs = Box::leak(Box::new(verbs));
        lock(&ALL).push(verbs);
        verbs
    }

    /// A call: refused if a test wants that.
    fn enter(&self, function: &'static str) -> Result<MutexGuard<'_, State>, i32> {
        let mut state = self.state();
        let number = state.calls.len();
        state.calls.push(function);
        match (state.fail_call, state.fail.get(function)) {
            (Some((wanted, errno)), _) if wanted == number => Err(errno),
            (_, Some(errno)) => Err(*errno),
            _ => Ok(state),
        }
    }
}

impl State {
    pub(crate) fn gid(&mut self, index: u32, kind: u32, address: u128) {
        let mut entry = sys::ibv_gid_entry::zeroed();
        entry.gid = sys::ibv_gid {
            raw: address.to_be_bytes(),
        };
        entry.gid_index = index;
        entry.port_num = 1;
        entry.gid_type = kind;
        self.gids.insert(index, entry);
    }

    fn add<T>(&mut self, what: &'static str, object: *mut T, parents: &[usize]) {
        self.objects.insert(object.addr(), (what, parents.to_vec()));
    }

    /// Takes an object back, if it is there and nothing stands on it.
    fn remove<T>(&mut self, object: *mut T) -> Result<(), i32> {
        let address = object.addr();
        if (self.objects.values()).any(|(_, parents)| parents.contains(&address)) {
            return Err(libc::EBUSY);
        }
        self.objects.remove(&address).map(drop).ok_or(libc::EINVAL)
    }

    /// Something happens to the device, and who waits for that is woken.
    pub(crate) fn event(&mut self, event: sys::ibv_async_event) {
        self.events.push_back(event);
        self.events_pipe.1.write_all(&[0]).unwrap();
    }

    fn take_event(&mut self) -> Option<sys::ibv_async_event> {
        let event = self.events.pop_front()?;
        self.events_pipe.0.read_exact(&mut [0]).unwrap();
        Some(event)
    }
}
