// SPDX-License-Identifier: MIT
//! What is said of a library that is not there, cannot be used, or can. Each case is a process of its
//! own: what one loads stays.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpunetio_sys::seam::Call;
use gpunetio_sys::{Error, Library, LibraryVersion};

/// What the process of a case does.
const CASE: &str = "what_a_case_gets";
const OVER: &str = "GPUNETIO_TEST_OVER";

/// In the process of a case: loads the library, and says what came of it.
#[test]
fn what_a_case_gets() {
    let Some(over) = std::env::var_os(OVER) else {
        return;
    };
    let load = || match over.to_str() {
        Some("table") => Library::over_table(),
        _ => Library::over_system(),
    };
    match load() {
        Ok(library) => {
            let LibraryVersion {
                version, warning, ..
            } = library.version();
            println!("loaded {version:?} {warning:?} {}", library.version());
            assert!(std::ptr::eq(library, load().unwrap()));
            let other = match over.to_str() {
                Some("table") => Library::over_system(),
                _ => Library::over_table(),
            };
            assert!(matches!(other, Err(Error::Elsewhere { .. })), "{other:?}");
            println!("then {}", other.unwrap_err());
        }
        Err(error) => {
            println!("error {error}");
            // The next call says the same.
            assert_eq!(load().map(|_| ()).unwrap_err(), error);
        }
    }
}

/// What a process says with these variables.
fn case(over: &str, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", CASE, "--nocapture", "--test-threads=1"]);
    for name in [
        "GPUNETIO_LIBRARY",
        "GPUNETIO_ALLOW_UNPINNED",
        "DOCA_SDK_LIB_PATH",
    ] {
        command.env_remove(name);
    }
    command.env(OVER, over).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    text
}

/// A shared object made of a few lines of C.
fn object(directory: &Path, name: &str, text: &str) -> PathBuf {
    let source = directory.join(name).with_extension("c");
    let path = directory.join(name).with_extension("so");
    std::fs::write(&source, text).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&path, &source])
        .status();
    assert!(status.unwrap().success());
    path
}

/// Says that it is a version.
fn of_version(number: u32) -> String {
    format!(
        "int doca_gpu_verbs_get_library_version(unsigned *v) {{ *v = {number:#x}; return 0; }}
         int doca_gpu_verbs_check_host_code_compatibility(unsigned v) {{ return 0; }}
         int doca_gpu_verbs_check_device_code_compatibility(unsigned v) {{ return v == 0; }}"
    )
}

#[test]
fn what_cannot_be_used_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let one = Path::new("1");
    let missing = directory.join("missing.so");
    let other = object(directory, "other", "int other(void) { return 1; }");
    let old = object(directory, "old", &of_version(0x02_00_01));
    let three = object(directory, "three", &of_version(0x03_00_00));
    let pinned = object(directory, "pinned", &of_version(0x04_00_01));
    for over in ["system", "table"] {
        let says = |variables: &[(&str, &Path)], parts: &[&str]| {
            let text = case(over, variables);
            let line = text.lines().find(|line| line.contains("error "));
            let line = line.unwrap_or_else(|| panic!("{text}"));
            for part in parts {
                assert!(line.contains(part), "{over}: {line}");
            }
        };
        let file = |path| ("GPUNETIO_LIBRARY", path);
        says(&[], &["GPUNETIO_LIBRARY is not set"]);
        says(&[file(Path::new(""))], &["GPUNETIO_LIBRARY is not set"]);
        says(&[file(&missing)], &["missing.so", "cannot be loaded"]);
        says(&[file(&other)], &["is no GPUNetIO", "get_library_version"]);
        says(
            &[file(&old), ("GPUNETIO_ALLOW_UNPINNED", one)],
            &["2.0.1", "understood"],
        );
        says(&[file(&three)], &["3.0.0", "GPUNETIO_ALLOW_UNPINNED=1"]);
        // Past its version it lacks all else.
        let lacking = ["is no GPUNetIO", "doca_"];
        says(&[file(&three), ("GPUNETIO_ALLOW_UNPINNED", one)], &lacking);
        says(&[file(&pinned)], &lacking);
        let closed = ("DOCA_SDK_LIB_PATH", directory);
        says(&[file(&pinned), closed], &["DOCA_SDK_LIB_PATH is set"]);
    }
}

#[test]
fn it_says_what_it_is_and_stays_where_it_was_put() {
    let name = "it_says_what_it_is_and_stays_where_it_was_put";
    let Some(library) = std::env::var_os("GPUNETIO_LIBRARY").filter(|name| !name.is_empty()) else {
        println!("SKIP {name}: no GPUNetIO: GPUNETIO_LIBRARY is not set");
        return;
    };
    let library = Path::new(&library);
    let one = Path::new("1");
    let text = case(
        "table",
        &[
            ("GPUNETIO_LIBRARY", library),
            ("GPUNETIO_ALLOW_UNPINNED", one),
        ],
    );
    assert!(text.contains("loaded ["), "{text}");
    assert!(text.contains("use another process"), "{text}");
    let pinned = text.contains("loaded [4, 0, 1]");
    assert_eq!(text.contains("not the pinned 4.0.1"), !pinned, "{text}");
    if !pinned {
        let text = case("table", &[("GPUNETIO_LIBRARY", library)]);
        assert!(
            text.contains("GPUNETIO_ALLOW_UNPINNED=1 makes a warning"),
            "{text}"
        );
    }
    print!("{text}");
}

/// The functions that another object finds in a file.
fn exported(file: &Path) -> Vec<String> {
    symbols(file, "--defined-only")
}

/// The dynamic symbols of a file, those of a kind, without their versions.
fn symbols(file: &Path, kind: &str) -> Vec<String> {
    let output = Command::new("nm").args(["-D", kind]).arg(file).output();
    let output = output.unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.rsplit(' ').next());
    let names = names.map(|name| name.split('@').next().unwrap_or(name));
    names.map(str::to_owned).collect()
}

/// Another version of the library may call what none did before: the object under it has all of it, so
/// that no call goes to a device of the machine.
#[test]
fn whatever_it_calls_is_under_it() {
    let name = "whatever_it_calls_is_under_it";
    let Some(library) = std::env::var_os("GPUNETIO_LIBRARY").filter(|name| !name.is_empty()) else {
        println!("SKIP {name}: no GPUNetIO: GPUNETIO_LIBRARY is not set");
        return;
    };
    let under = exported(Path::new(concat!(env!("OUT_DIR"), "/seam.so")));
    let mut calls = symbols(Path::new(&library), "--undefined-only");
    calls.retain(|name| {
        let of = ["ibv_", "mlx5dv_", "cu"];
        of.iter().any(|start| name.starts_with(start))
    });
    let (has, lacks): (Vec<_>, Vec<_>) = calls.into_iter().partition(|name| under.contains(name));
    assert_eq!(lacks, [""; 0], "not under the library");
    let of_the_table = |name: &String| Call::ALL.iter().any(|call| call.symbol() == name);
    let (table, fail): (Vec<_>, Vec<_>) = has.into_iter().partition(of_the_table);
    println!(
        "{} calls, and of those that always fail {fail:?}",
        table.len()
    );
    assert!(table.len() > 20, "{table:?}");
}

/// The functions under the library are in an object of their own, which is loaded where it is asked
/// for: neither a user's shared object nor a program exports them.
#[test]
fn nothing_of_what_goes_under_it_is_exported() {
    let name = "nothing_of_what_goes_under_it_is_exported";
    if std::env::var_os("MSCCLPP_SANITIZED").is_some() {
        println!("SKIP {name}: examples are not built with the sanitizers");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let directory = program.parent().and_then(Path::parent).unwrap();
    let object = directory.join("examples/libshared_object.so");
    let names = exported(&object);
    assert!(names.iter().any(|name| name == "users_entry"), "{names:?}");
    // It has them inside, as bytes.
    let bytes = std::fs::read(&object).unwrap();
    for call in Call::ALL {
        let symbol = call.symbol().as_bytes();
        let inside = bytes.windows(symbol.len()).any(|at| at == symbol);
        assert!(inside, "{call:?}");
    }
    for file in [object, program] {
        let mut names = exported(&file);
        names.retain(|name| {
            let of_the_table = Call::ALL.iter().any(|call| call.symbol() == name);
            of_the_table || ["doca", "gnx_"].iter().any(|word| name.contains(word))
        });
        assert_eq!(names, [""; 0], "{}", file.display());
    }
}
