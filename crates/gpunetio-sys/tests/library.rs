// SPDX-License-Identifier: MIT
//! What is compiled in, and that users' shared objects export none of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpunetio_sys::library_version;
use gpunetio_sys::seam::Call;

#[test]
fn it_tells_which_library_it_is() {
    let library = library_version().unwrap();
    let [major, minor, patch] = library.version;
    assert!(matches!((major, minor), (3 | 4, 0)));
    let text = library.to_string();
    assert!(
        text.starts_with(&format!("GPUNetIO {major}.{minor}.{patch}")),
        "{text}"
    );
    match library.warning {
        None => assert!(
            text.ends_with(&format!("commit {}", library.pinned)),
            "{text}"
        ),
        Some(warning) => {
            assert!(
                text.contains("not the pinned") && text.ends_with(warning),
                "{text}"
            );
        }
    }
    assert!(
        library
            .license
            .contains("SPDX-License-Identifier: BSD-3-Clause")
    );
    // 4.0.1 is pinned: what is another version is not it, and has to say so.
    assert!((major, patch) == (4, 1) || library.warning.is_some());
}

/// Where cargo has put the examples of this build; none in a sanitized one, where xtask does not
/// build examples.
fn example(test: &str, name: &str) -> Option<PathBuf> {
    if std::env::var_os("MSCCLPP_SANITIZED").is_some() {
        println!("SKIP {test}: examples are not built with the sanitizers");
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let directory = program.parent().and_then(Path::parent).unwrap();
    let path = directory.join("examples").join(name);
    assert!(path.is_file(), "{} was not built", path.display());
    Some(path)
}

/// The symbols that `nm` finds, those of the loader with `-D`.
fn symbols(path: &Path, arguments: &[&str]) -> Vec<String> {
    let output = Command::new("nm")
        .args(arguments)
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.rsplit(' ').next())
        .map(str::to_owned)
        .collect()
}

/// Symbols of the library, and of the table under it.
fn of_the_library(name: &String) -> bool {
    Call::ALL.iter().any(|call| call.symbol() == name)
        || ["doca", "gnx_"].iter().any(|word| name.contains(word))
}

/// Checks an object that has at least so many of the table's functions inside.
fn exports_the_users_function_alone(path: &Path, at_least: usize) {
    let inside = symbols(path, &["--defined-only"]);
    let forwarders = Call::ALL
        .iter()
        .filter(|call| inside.iter().any(|name| name == call.symbol()));
    let forwarders = forwarders.count();
    assert!(forwarders >= at_least, "{forwarders}");
    let inside = inside.iter().filter(|name| of_the_library(name)).count();
    let exported = symbols(path, &["-D", "--defined-only"]);
    assert!(exported.iter().any(|name| name == "users_entry"));
    let mut exported: Vec<_> = exported.into_iter().filter(of_the_library).collect();
    // An enumeration that the library throws: compilers show its type to other objects, which
    // have to know it when they catch it. It is no function.
    exported.retain(|name| name != "_ZTI10doca_error" && name != "_ZTS10doca_error");
    assert!(exported.is_empty(), "{exported:?}");
    // Nor does it look for any in other objects, or need a library that has them.
    let wanted = symbols(path, &["-D", "--undefined-only"]);
    let foreign =
        |name: &String| of_the_library(name) || name.starts_with("cu") || name.contains("ibv_");
    let wanted: Vec<_> = wanted.into_iter().filter(foreign).collect();
    assert!(wanted.is_empty(), "{wanted:?}");
    let shown = path.display();
    println!("{shown}: {inside} symbols inside, {forwarders} of the table, none exported");
}

#[test]
fn a_shared_object_made_by_cargo_exports_nothing_of_it() {
    let name = "a_shared_object_made_by_cargo_exports_nothing_of_it";
    if let Some(path) = example(name, "libshared_object.so") {
        exports_the_users_function_alone(&path, 25);
    }
}

/// As a C++ project does it, with no list of what is to be exported.
#[test]
fn a_shared_object_made_by_a_c_compiler_exports_nothing_of_it() {
    let name = "a_shared_object_made_by_a_c_compiler_exports_nothing_of_it";
    let Some(archive) = example(name, "libshared_object.a") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("libuser.so");
    let output = Command::new("g++")
        .args(["-shared", "-o"])
        .arg(&path)
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    exports_the_users_function_alone(&path, Call::ALL.len());
}
