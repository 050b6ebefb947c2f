// SPDX-License-Identifier: MIT
//! The functions of libmlx5 (mlx5dv) that registering a GPU's memory needs. It is optional: HCAs of
//! other makers have none.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use crate::functions::functions;
use crate::library::{LoadError, Wanted, no_such_function};
use crate::objects::{ibv_context, ibv_device, ibv_mr, ibv_pd};

const WANTED: Wanted = Wanted {
    library: "libmlx5",
    package: "ibverbs-providers",
    variable: "",
    names: &["libmlx5.so.1", "libmlx5.so"],
};

/// Access of a registration by way of the data-direct function of the HCA.
pub const MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT: c_int = 1;

functions! {
    /// A loaded libmlx5. May be shared by threads. It stays loaded until the process ends.
    struct Mlx5dv
    called {
        fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
    }
    wrapped {}
    newer {
        fn mlx5dv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int, mlx5_access: c_int) -> *mut ibv_mr;
        fn mlx5dv_get_data_direct_sysfs_path(context: *mut ibv_context, path: *mut c_char, length: usize) -> c_int;
    }
}

impl Mlx5dv {
    /// The system's library. It is loaded by the first call, and later ones return the same result.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn get() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<Result<Mlx5dv, LoadError>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| WANTED.load().and_then(Self::of));
        loaded.as_ref().map_err(Clone::clone)
    }

    /// The file that was loaded.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Null and EOPNOTSUPP where the library is older than it (rdma-core 54).
    ///
    /// # Safety
    ///
    /// A live protection domain of an mlx5 device and an open DMA buffer.
    #[expect(clippy::too_many_arguments, reason = "the library's")]
    pub unsafe fn mlx5dv_reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
        mlx5_access: c_int,
    ) -> *mut ibv_mr {
        let Some(register) = self.mlx5dv_reg_dmabuf_mr else {
            return no_such_function();
        };
        // SAFETY: the caller's promise.
        unsafe { register(pd, offset, length, iova, fd, access, mlx5_access) }
    }

    /// Writes the path of the data-direct function in sysfs. 0 or an errno: ENODEV if the device has
    /// none, EOPNOTSUPP where the library is older than the function.
    ///
    /// # Safety
    ///
    /// An open context of an mlx5 device, and room for `length` characters.
    pub unsafe fn mlx5dv_get_data_direct_sysfs_path(
        &self,
        context: *mut ibv_context,
        path: *mut c_char,
        length: usize,
    ) -> c_int {
        let Some(get) = self.mlx5dv_get_data_direct_sysfs_path else {
            return libc::EOPNOTSUPP;
        };
        // SAFETY: the caller's promise.
        unsafe { get(context, path, length) }
    }
}

impl fmt::Debug for Mlx5dv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mlx5dv").field(&self.file).finish()
    }
}
