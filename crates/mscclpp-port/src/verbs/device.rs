// SPDX-License-Identifier: MIT
//! Devices: finding them, opening one, and what it says about itself.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use mscclpp_ib_sys as sys;
use mscclpp_ib_sys::Verbs;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::capabilities::DeviceCapabilities;
use super::error::{Errno, VerbsError};
use super::event::AsyncEvent;
use super::list::List;
use super::port::{Gid, GidKind, PortAttributes};

/// An opened RDMA device (an HCA). Two openings of one device are two of these.
pub struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: NonNull<sys::ibv_context>,
    name: String,
    capabilities: DeviceCapabilities,
}

// SAFETY: libibverbs locks what it changes in a context; the rest is only read.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Names of the devices, in the library's order. None is no error.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Library`] without libibverbs.
    pub fn list() -> Result<Vec<String>, VerbsError> {
        Self::list_in(Verbs::get()?)
    }

    pub(crate) fn list_in(verbs: &'static Verbs) -> Result<Vec<String>, VerbsError> {
        let list = List::new(verbs)?;
        let devices = list.map(|list| list.named()).unwrap_or_default();
        Ok(devices.into_iter().map(|(name, _)| name).collect())
    }

    /// Opens a device by its name.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Library`], [`VerbsError::NoDevice`], [`VerbsError::UnknownDevice`],
    /// [`VerbsError::Call`].
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        Self::open_in(Verbs::get()?, name)
    }

    pub(crate) fn open_in(verbs: &'static Verbs, name: &str) -> Result<Arc<Self>, VerbsError> {
        let Some(list) = List::new(verbs)? else {
            return Err(VerbsError::NoDevice {
                reason: "this kernel has no InfiniBand".into(),
            });
        };
        let devices = list.named();
        let Some((_, device)) = devices.iter().find(|(found, _)| found == name) else {
            let found: Vec<_> = devices.into_iter().map(|(name, _)| name).collect();
            return Err(match found.is_empty() {
                true => VerbsError::NoDevice {
                    reason: "libibverbs lists none".into(),
                },
                false => VerbsError::UnknownDevice {
                    name: name.into(),
                    found,
                },
            });
        };
        // SAFETY: a device of a list that is not freed yet.
        let context = unsafe { verbs.ibv_open_device(*device) };
        let Some(context) = NonNull::new(context) else {
            return Err(call(name, "open it", Errno::last()));
        };
        // From here on dropping it closes it.
        let mut device = Self {
            verbs,
            context,
            name: name.into(),
            capabilities: DeviceCapabilities::NONE,
        };
        device.capabilities = device.query()?;
        let events = device.event_fd();
        // So that taking events never blocks.
        fcntl_getfl(events)
            .and_then(|flags| fcntl_setfl(events, flags | OFlags::NONBLOCK))
            .map_err(|errno| device.failed("watch its events", Errno(errno.raw_os_error())))?;
        Ok(Arc::new(device))
    }

    fn query(&self) -> Result<DeviceCapabilities, VerbsError> {
        let mut attributes = sys::ibv_device_attr::zeroed();
        // SAFETY: an open context and a structure to write to.
        let code = unsafe {
            self.verbs
                .ibv_query_device(self.context.as_ptr(), &mut attributes)
        };
        match code {
            0 => Ok(DeviceCapabilities::new(&attributes)),
            code => Err(self.failed("ask what it can do", Errno::returned(code))),
        }
    }

    /// Its name, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> &DeviceCapabilities {
        &self.capabilities
    }

    /// A port as it is now.
    ///
    /// # Errors
    ///
    /// [`VerbsError::UnknownPort`], [`VerbsError::Call`].
    pub fn port(&self, number: u8) -> Result<PortAttributes, VerbsError> {
        let ports = self.capabilities.ports;
        if !(1..=ports).contains(&number) {
            return Err(VerbsError::UnknownPort {
                device: self.name.clone(),
                port: number,
                ports,
            });
        }
        let mut port = sys::ibv_port_attr::zeroed();
        let context = self.context.as_ptr();
        // SAFETY: an open context and a structure to write to.
        match unsafe { self.verbs.ibv_query_port(context, number, &mut port) } {
            0 => Ok(PortAttributes::new(number, &port)),
            code => Err(self.failed("query its port", Errno::returned(code))),
        }
    }

    /// The GIDs that a port has now. Indices without one are left out.
    ///
    /// # Errors
    ///
    /// [`VerbsError::UnknownPort`], [`VerbsError::Call`].
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, VerbsError> {
        let port = self.port(port)?;
        // One call has those of all ports.
        let mut room = 0;
        for number in 1..=self.capabilities.ports {
            room += self.port(number)?.gid_table_len as usize;
        }
        let mut entries = vec![sys::ibv_gid_entry::zeroed(); room];
        let (context, first) = (self.context.as_ptr(), entries.as_mut_ptr());
        // SAFETY: an open context and room for as many as said.
        let count = unsafe { self.verbs.ibv_query_gid_table(context, first, room, 0) };
        let Ok(count) = usize::try_from(count) else {
            return match Errno::returned(count as i32) {
                Errno(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(self.older_gids(&port)),
                errno => Err(self.failed("read its table of GIDs", errno)),
            };
        };
        let entries = entries[..count].iter();
        Ok(entries
            .filter(|entry| entry.port_num == u32::from(port.number))
            .filter(|entry| entry.gid.bytes() != [0; 16])
            .map(|entry| Gid {
                index: entry.gid_index,
                raw: entry.gid.bytes(),
                kind: GidKind::from_number(entry.gid_type),
                netdev: interface_name(entry.ndev_ifindex),
            })
            .collect())
    }

    /// For libraries that have no call for the kind of a GID: sysfs has it.
    fn older_gids(&self, port: &PortAttributes) -> Vec<Gid> {
        let (context, number) = (self.context.as_ptr(), port.number);
        let attribute = |what: &str, index: u32| {
            let name = &self.name;
            let path =
                format!("/sys/class/infiniband/{name}/ports/{number}/gid_attrs/{what}/{index}");
            std::fs::read_to_string(path).ok()
        };
        let gid = |index: u32| {
            let mut gid = sys::ibv_gid::zeroed();
            // SAFETY: an open context and a structure to write to.
            let code = unsafe {
                self.verbs
                    .ibv_query_gid(context, number, index as i32, &mut gid)
            };
            let raw = gid.bytes();
            let kind = || {
                let text = attribute("types", index)?;
                GidKind::from_sysfs(&text, port.link_layer)
            };
            (code == 0 && raw != [0; 16]).then(|| Gid {
                index,
                raw,
                kind: kind().unwrap_or(GidKind::Unknown(u32::MAX)),
                netdev: attribute("ndevs", index).map(|name| name.trim().into()),
            })
        };
        (0..port.gid_table_len).filter_map(gid).collect()
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn take_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut event = sys::ibv_async_event::zeroed();
        // SAFETY: an open context, whose descriptor does not block, and a structure to write to.
        let code = unsafe {
            self.verbs
                .ibv_get_async_event(self.context.as_ptr(), &mut event)
        };
        if code != 0 {
            return match Errno::last() {
                Errno(libc::EAGAIN | libc::EINTR) => Ok(None),
                errno => Err(self.failed("take its events", errno)),
            };
        }
        // SAFETY: filled by the call, and acknowledged once, after it was read.
        unsafe {
            let read = AsyncEvent::read(&event);
            self.verbs.ibv_ack_async_event(&mut event);
            Ok(Some(read))
        }
    }

    /// A descriptor that is readable while there is an event.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open for as long as the context, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }

    /// Whether the device is reached by way of a data-direct function too, by which memory of a GPU
    /// can be registered ([`DmaBufRoute::DataDirect`](super::DmaBufRoute)).
    #[must_use]
    pub fn has_data_direct(&self) -> bool {
        let Ok(mlx5) = sys::Mlx5dv::get() else {
            return false;
        };
        let mut path = [0; 512];
        // SAFETY: an open context; the second call only for a device of mlx5, with room for as much
        // as said.
        unsafe {
            let device = (*self.context.as_ptr()).device;
            let context = self.context.as_ptr();
            mlx5.mlx5dv_is_supported(device)
                && mlx5.mlx5dv_get_data_direct_sysfs_path(context, path.as_mut_ptr(), path.len())
                    == 0
        }
    }

    /// Whether libmlx5 drives it.
    #[cfg(feature = "gpunetio")]
    pub(crate) fn is_mlx5(&self) -> bool {
        // SAFETY: an open context, whose device lives as long.
        sys::Mlx5dv::get()
            .is_ok_and(|mlx5| unsafe { mlx5.mlx5dv_is_supported((*self.context.as_ptr()).device) })
    }

    /// A failed call of this device.
    pub(super) fn failed(&self, operation: &'static str, errno: Errno) -> VerbsError {
        call(&self.name, operation, errno)
    }

    /// Says that something was not given back: the kernel keeps it until the process ends.
    pub(super) fn kept(&self, what: &str, code: i32) {
        let errno = Errno::returned(code);
        tracing::warn!(device = self.name, %errno, "{what} could not be given back");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: open, and what was made in it is gone: it holds this.
        let code = unsafe { self.verbs.ibv_close_device(self.context.as_ptr()) };
        if code != 0 {
            self.kept("the device", code);
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.event_fd().as_raw_fd();
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("event_fd", &events)
            .finish_non_exhaustive()
    }
}

fn call(device: &str, operation: &'static str, errno: Errno) -> VerbsError {
    VerbsError::Call {
        device: device.into(),
        operation,
        detail: String::new(),
        errno,
    }
}

fn interface_name(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for as long a name as there is.
    unsafe {
        let found = libc::if_indextoname(index, name.as_mut_ptr());
        (!found.is_null()).then(|| CStr::from_ptr(found).to_string_lossy().into_owned())
    }
}
