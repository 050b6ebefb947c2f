// SPDX-License-Identifier: MIT
//! The pages of documentation say what is: commands, filters, links and variables exist, blocks of
//! code compile, tables of errors and defaults are complete and right.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use mscclpp_bootstrap::Deadlines;
use mscclpp_conformance::backend::Executor;
use mscclpp_conformance::cases;
use mscclpp_conformance::harness::Options;
use mscclpp_device::nvrtc::{Arch, Nvrtc, Program, Target};
use xtask::docs::{self, Block, Page, Suite};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn pages() -> Vec<Page> {
    docs::pages(&root()).unwrap()
}

#[test]
fn what_the_pages_name_exists() {
    let tests = [Executor::Host, Executor::Cuda]
        .into_iter()
        .flat_map(cases::all);
    let suite = Suite {
        tests: tests.map(|test| test.name).collect(),
        command: Some(Options::command()),
    };
    let faults = docs::check(&root(), suite).unwrap();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_page_with_rust_is_compiled() {
    let compiled = read("tests/src/book.rs");
    for page in pages() {
        let rust = |block: &&Block| block.language() == "rust" && block.marked("file").is_none();
        if page.blocks.iter().any(|block| rust(&block)) {
            assert!(
                compiled.contains(&format!("../{}\"", page.path)),
                "{}",
                page.path
            );
        }
        for block in &page.blocks {
            assert!(
                !block.info.contains("ignore"),
                "{}:{}",
                page.path,
                block.line
            );
        }
    }
}

/// Blocks of C++ that are no files: those of a page as one source, each line where the page has it.
fn sources() -> Vec<(String, String)> {
    let mut sources = Vec::new();
    for page in pages() {
        let mut source = String::new();
        for block in &page.blocks {
            if block.language() == "cpp" && block.marked("file").is_none() {
                source += &format!("#line {} \"{}\"\n{}", block.line + 1, page.path, block.text);
            }
        }
        if !source.is_empty() {
            sources.push((page.path, source));
        }
    }
    assert!(sources.len() >= 2);
    sources
}

#[test]
fn blocks_of_cpp_compile_for_cpu_threads() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.cpp");
    for (page, source) in sources() {
        fs::write(&file, source).unwrap();
        let output = Command::new("g++")
            .args([
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-c",
                "-o",
                "/dev/null",
                "-I",
            ])
            .arg(root().join("crates/mscclpp-device/include"))
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}: {text}");
    }
}

#[test]
fn blocks_of_cpp_compile_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("SKIP blocks_of_cpp_compile_with_nvrtc: {error}");
            return Ok(());
        }
    };
    let supported = nvrtc.archs()?;
    let arch = Arch::from_env()?
        .into_iter()
        .find(|arch| supported.contains(&arch.number()));
    let Some(arch) = arch else {
        println!("SKIP blocks_of_cpp_compile_with_nvrtc: it knows none of MSCCLPP_GPU_ARCHS");
        return Ok(());
    };
    for (page, source) in sources() {
        let program = Program::new("page.cpp", source);
        let compiled = nvrtc.compile(&program, &Target::Cubin(arch.clone()))?;
        assert!(compiled.log.is_empty(), "{page}: {}", compiled.log);
    }
    Ok(())
}

/// The variants of an enum, as its source has them.
fn variants(source: &str, name: &str) -> Vec<String> {
    let start = source
        .find(&format!("pub enum {name} {{"))
        .or(source.find(&format!("enum class {name} ")));
    let body = &source[start.unwrap()..];
    let body = &body[..body.find("\n}").unwrap()];
    let word = |line: &str| {
        let line = line.strip_prefix("    ").or(line.strip_prefix("  "))?;
        let end = line.find(|c: char| !c.is_alphanumeric())?;
        (line.starts_with(char::is_uppercase)).then(|| line[..end].to_owned())
    };
    body.lines().skip(1).filter_map(word).collect()
}

#[test]
fn every_error_and_status_is_explained() {
    let page = Page::parse("", &read("docs/errors.md"));
    let told: Vec<&str> = page.spans.iter().map(|(_, span)| span.as_str()).collect();
    let sources = [
        ("crates/mscclpp-port/src/error/mod.rs", "Error", 40),
        (
            "crates/mscclpp-bootstrap/src/error.rs",
            "BootstrapError",
            30,
        ),
        (
            "crates/mscclpp-device/include/mscclpp/status.hpp",
            "Status",
            7,
        ),
    ];
    for (file, name, at_least) in sources {
        let variants = variants(&read(file), name);
        assert!(variants.len() >= at_least, "{variants:?}");
        let missing: Vec<_> = variants
            .iter()
            .filter(|name| !told.contains(&name.as_str()))
            .collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

#[test]
fn every_column_of_counters_is_explained() {
    let page = read("docs/seeing.md");
    let told: Vec<&str> = page.split("| column | of `").skip(1).collect();
    let source = read("crates/mscclpp-port/src/counters/table.rs");
    let tables: Vec<&str> = source.split("Table::new(&[").skip(1).collect();
    assert_eq!(tables.len(), 4);
    for table in tables {
        let columns = table[..table.find("])").unwrap()].split('"');
        let columns: Vec<&str> = columns.skip(1).step_by(2).collect();
        let explains = |text: &&&str| {
            // Its own rows alone: another table may have a column of that name.
            let rows = text.split("\n\n").next().unwrap_or_default();
            columns
                .iter()
                .all(|name| rows.contains(&format!("`{name}`")))
        };
        assert!(told.iter().any(|text| explains(&text)), "{columns:?}");
    }
}

/// The cells of the row of a table that begins with this code.
fn row(page: &str, first: &str) -> Vec<String> {
    let start = format!("| `{first}`");
    let line = page
        .lines()
        .find(|line| line.starts_with(&start))
        .unwrap_or_else(|| panic!("{first}"));
    line.trim_matches('|')
        .split(" | ")
        .map(|cell| cell.trim().to_owned())
        .collect()
}

#[test]
fn defaults_are_what_the_tuning_page_says() {
    let page = read("docs/tuning.md");
    let deadlines = Deadlines::read(|_| None);
    for (variable, default) in [
        ("MSCCLPP_BOOTSTRAP_TIMEOUT", deadlines.step),
        ("MSCCLPP_SILENCE_TIMEOUT", deadlines.silence),
        ("MSCCLPP_CONNECTION_TIMEOUT", deadlines.stall),
        ("MSCCLPP_SELF_TEST_TIMEOUT", deadlines.self_test),
        ("MSCCLPP_PROXY_STOP_TIMEOUT", deadlines.proxy_stop),
    ] {
        assert_eq!(
            row(&page, variable)[1..3],
            [default.as_secs().to_string(), "s".into()],
            "{variable}"
        );
    }
    let fifo = row(&page, "ProxyService::new(fifo_size)");
    assert_eq!(fifo[1], mscclpp_port::DEFAULT_FIFO_SIZE.to_string());
    if std::env::var_os("MSCCLPP_GPU_ARCHS").is_none() {
        let archs: Vec<String> = Arch::from_env()
            .unwrap()
            .iter()
            .map(Arch::to_string)
            .collect();
        assert_eq!(row(&page, "MSCCLPP_GPU_ARCHS")[1], archs.join(","));
    }
}

#[test]
fn names_that_compile_unchanged_are_compiled() {
    let user = read("tests/compat/port_channel_user.cu");
    let page = read("docs/porting.md");
    let table = page.split("| header | names |").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    let page = Page::parse("", table);
    assert!(page.spans.len() > 30);
    for (_, name) in &page.spans {
        assert!(user.contains(name.as_str()), "{name}");
    }
}
