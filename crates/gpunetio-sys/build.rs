// SPDX-License-Identifier: MIT
//! Makes the objects that tests put under the library (feature `seam`), from this crate's own
//! `seam.c`. Without that feature nothing is done.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "seam")]
    seam::build();
}

#[cfg(feature = "seam")]
mod seam {
    use std::env;
    use std::ffi::OsStr;
    use std::path::Path;

    /// What the library may need and a machine without a GPU or an RDMA device does not have.
    const STAND_INS: [&str; 6] = [
        "libcuda.so.1",
        "libcudart.so.11.0",
        "libcudart.so.12",
        "libcudart.so.13",
        "libibverbs.so.1",
        "libmlx5.so.1",
    ];

    pub(crate) fn build() {
        println!("cargo::rerun-if-changed=src/seam");
        object("seam.so", &["src/seam/seam.c"]);
        for name in STAND_INS {
            // An empty file of C.
            object(name, &["-nostdlib", "-x", "c", "/dev/null"]);
        }
    }

    /// A shared object that has its name as its SONAME, too.
    fn object(name: &str, arguments: &[&str]) {
        let directory = env::var_os("OUT_DIR").expect("cargo sets it");
        let path = Path::new(&directory).join(name);
        let mut compiler = cc::Build::new().get_compiler().to_command();
        compiler
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"])
            .args(["-fPIC", "-shared"])
            .arg(format!("-Wl,-soname,{name}"));
        compiler.args(arguments).arg(OsStr::new("-o")).arg(&path);
        let status = compiler.status().expect("a C compiler can be started");
        assert!(status.success(), "{compiler:?}: {status}");
    }
}
