// SPDX-License-Identifier: MIT
//! ThreadSanitizer with a standard library that is not built with it: see
//! `thread_sanitizer/std_sync.c`. Building the library with it (`-Zbuild-std`) would need its
//! sources, which no stable toolchain has unless they are asked for; this needs nothing more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// Not of the library, but of the sanitizer.
const FETCH_SUB: &str = "__tsan_atomic64_fetch_sub";

/// The libraries' functions that put threads in order: what `std_sync.c` calls
/// them, and the parts that their names in the library have, in this order.
const FUNCTIONS: [(&str, &[&str]); 12] = [
    (
        "LOCK_CONTENDED",
        &["5mutex5futex", "5Mutex14lock_contended"],
    ),
    (
        "READ_CONTENDED",
        &["6rwlock5futex", "6RwLock14read_contended"],
    ),
    (
        "WRITE_CONTENDED",
        &["6rwlock5futex", "6RwLock15write_contended"],
    ),
    ("CONDVAR_WAIT", &["7condvar5futex", "7Condvar4wait"]),
    (
        "CONDVAR_WAIT_TIMEOUT",
        &["7condvar5futex", "7Condvar12wait_timeout"],
    ),
    ("BARRIER_WAIT", &["4sync7barrier", "7Barrier4wait"]),
    (
        "SCOPED_END",
        &["6scoped", "9ScopeData29decrement_num_running_threads"],
    ),
    ("ONCE_CALL", &["4once5futex", "4Once4call"]),
    ("PRINT", &["2io5stdio6__print"]),
    ("EPRINT", &["2io5stdio7__eprint"]),
    ("TEST_MAIN", &["4test", "16test_main_static"]),
    ("FETCH_SUB", &[FETCH_SUB]),
];

/// Makes what has to be linked, in `directory`, and returns the file of the
/// linker's arguments. Its name is all that cargo knows of them.
///
/// # Errors
///
/// When there is no C compiler or no `readelf`, or the libraries of this
/// toolchain have not the functions that are known.
pub fn link_arguments(rustc: &Path, host: &str, directory: &Path) -> Result<PathBuf> {
    let names = names(&libraries(rustc, host)?)?;
    fs::create_dir_all(directory).context("the directory of std_sync.o")?;
    let source = directory.join("std_sync.c");
    fs::write(&source, include_str!("thread_sanitizer/std_sync.c"))
        .context("writing std_sync.c")?;
    let object = directory.join("std_sync.o");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-c", "-o"]);
    compiler.arg(&object).arg(&source);
    for (macro_name, symbol) in &names {
        compiler.arg(format!("-D{macro_name}=\"{symbol}\""));
    }
    output(&mut compiler)?;
    let mut arguments = format!("\"{}\"\n", object.display());
    for (_, symbol) in &names {
        arguments += &format!("-Wl,--wrap={symbol}\n");
    }
    let file = directory.join("std_sync.link");
    fs::write(&file, arguments).context("writing std_sync.link")?;
    Ok(file)
}

/// What is not reported. First that two things of the library's own are freed, which its threads count
/// in code of the library, unseen: the buffer of what a test prints, and what a scope of threads shares
/// with them. Then what is sent: the sanitizer notes what a system call has read when that returns, and
/// by then the peer may have answered into the same memory.
const SUPPRESSIONS: &str = "\
race:<alloc::sync::Arc<std::sync::poison::mutex::Mutex<alloc::vec::Vec<u8>>>>::drop_slow
race:<alloc::sync::Arc<std::thread::scoped::ScopeData> as core::ops::drop::Drop>::drop
race:<mscclpp_port::ethernet::socket::Socket>::send
";

/// Writes the file of what is not reported.
///
/// # Errors
///
/// When it cannot be written.
pub fn suppressions(directory: &Path) -> Result<PathBuf> {
    let file = directory.join("suppressions.txt");
    fs::write(&file, SUPPRESSIONS).context("writing suppressions.txt")?;
    Ok(file)
}

fn output(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}\n{errors}", output.status);
    }
    Ok(output)
}

/// The standard library and that of test programs, as they are linked.
fn libraries(rustc: &Path, host: &str) -> Result<Vec<PathBuf>> {
    let found = output(Command::new(rustc).args(["--print", "target-libdir", "--target", host]))?;
    let directory = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let files = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["libstd-", "libtest-"]
            .iter()
            .any(|start| name.starts_with(start))
            && name.ends_with(".rlib")
    };
    Ok(files
        .flatten()
        .map(|file| file.path())
        .filter(is_one)
        .collect())
}

/// Each function's symbol.
fn names(libraries: &[PathBuf]) -> Result<Vec<(&'static str, String)>> {
    let mut symbols = vec![FETCH_SUB.to_owned()];
    for library in libraries {
        // Not nm: it takes the library's bitcode for the code.
        let found = output(
            Command::new("readelf")
                .args(["--symbols", "--wide"])
                .arg(library),
        )?;
        let text = String::from_utf8_lossy(&found.stdout);
        let functions = text
            .lines()
            .filter(|line| line.contains(" FUNC ") && !line.contains(" UND "));
        symbols
            .extend(functions.filter_map(|line| line.split_whitespace().last().map(str::to_owned)));
    }
    let find = |(macro_name, parts): &(&'static str, &[&str])| {
        let mut fitting = symbols.iter().filter(|symbol| fits(symbol, parts));
        match (fitting.next(), fitting.next()) {
            (Some(symbol), None) => Ok((*macro_name, symbol.clone())),
            (found, _) => bail!(
                "{} function named {} in {libraries:?}: std_sync.c is not made for this toolchain",
                if found.is_some() {
                    "more than one"
                } else {
                    "no"
                },
                parts.join("…")
            ),
        }
    };
    FUNCTIONS.iter().map(find).collect()
}

/// Whether the symbol is `parts`, in order, with the last at its end.
fn fits(symbol: &str, parts: &[&str]) -> bool {
    let mut rest = symbol;
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_known_by_its_path_in_the_library() {
        let wait = "_RNvMNtNtNtNtCsjrHSEGnQ3l9_3std3sys4sync7condvar5futexNtB2_7Condvar4wait";
        let parts: &[&str] = &["7condvar5futex", "7Condvar4wait"];
        assert!(fits(wait, parts));
        assert!(!fits(&wait.replace("4wait", "12wait_timeout"), parts));
        assert!(!fits(&format!("{wait}s"), parts));
    }
}
