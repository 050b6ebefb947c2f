// SPDX-License-Identifier: MIT
//! Has bindgen read the system's headers, and writes code that measures with Rust's compiler what it
//! made of them, and what rdma-sys has: for all that mscclpp-ib-sys declares, and nothing else.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use mscclpp_ib_sys::layout::{self, Constant, Function, Structure};

/// Types that rdma-sys has written by hand, with unions and other names for their fields.
const BY_HAND: [&str; 4] = ["ibv_gid", "ibv_async_event", "ibv_send_wr", "ibv_wc"];

/// Enumerations whose constants are newtypes in rdma-sys.
const NEWTYPES: [&str; 5] = [
    "ibv_wc_flags",
    "ibv_access_flags",
    "ib_uverbs_access_flags",
    "ibv_qp_attr_mask",
    "ibv_send_flags",
];
/// Enumerations that are not among its types: they have no object of their type, so that it left
/// them out.
const LEFT_OUT: [&str; 3] = ["ibv_gid_type", "ib_uverbs_query_port_flags", ""];

fn main() {
    println!("cargo::rerun-if-changed=src/headers.h");
    println!("cargo::rerun-if-changed=build.rs");
    // rdma-sys links libibverbs.
    println!("cargo::rustc-link-lib=mlx5");
    let out = env::var("OUT_DIR").unwrap();
    let bindings = bindings();
    fs::write(Path::new(&out).join("headers.rs"), &bindings).unwrap();

    let structures = layout::structures();
    let constants = layout::constants();
    let functions = layout::functions();

    let mut text = measures("headers", &structures, |_| true);
    text += &complete(&structures);
    text += &values("headers_constants", &constants, |constant| {
        format!("c::{}", constant.name)
    });
    let (there, newer): (Vec<_>, Vec<_>) = functions
        .iter()
        .partition(|function| bindings.contains(&format!("pub fn {}(", function.name)));
    text += &signatures("headers_functions", &there, "c");
    let names: Vec<_> = newer.iter().map(|function| function.name).collect();
    writeln!(text, "pub const NOT_IN_HEADERS: &[&str] = &{names:?};").unwrap();

    let named: Vec<_> = structures
        .iter()
        .filter(|structure| structure.name == structure.oracle)
        .copied()
        .collect();
    text += &measures("rdma_sys", &named, |structure| {
        !BY_HAND.contains(&structure.name)
    })
    .replace("c::", "r::");
    let had: Vec<_> = constants
        .iter()
        .filter(|constant| !LEFT_OUT.contains(&constant.enumeration))
        .copied()
        .collect();
    text += &values("rdma_sys_constants", &had, |constant| {
        let Constant {
            name, enumeration, ..
        } = constant;
        match enumeration {
            group if NEWTYPES.contains(group) => format!("r::{enumeration}::{name}.0"),
            _ => format!("r::{enumeration}::{name}"),
        }
    });
    fs::write(Path::new(&out).join("measures.rs"), text).unwrap();
}

fn bindings() -> String {
    let mut builder = bindgen::Builder::default()
        .header("src/headers.h")
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(false)
        .derive_copy(true)
        .allowlist_recursively(true)
        .allowlist_var("IBV?_.*");
    for structure in layout::structures() {
        builder = builder.allowlist_type(structure.oracle);
    }
    for constant in layout::constants() {
        if !constant.enumeration.is_empty() {
            builder = builder.allowlist_type(constant.enumeration);
        }
    }
    for function in layout::functions() {
        builder = builder.allowlist_function(function.name);
    }
    builder
        .generate()
        .expect("bindgen reads the headers")
        .to_string()
}

/// A function that measures each structure, and its fields where `fields` says so.
fn measures(name: &str, all: &[Structure], fields: impl Fn(&Structure) -> bool) -> String {
    let mut text = format!("pub fn {name}() -> Vec<Measured> {{\nvec![\n");
    for structure in all {
        let Structure { name, oracle, .. } = structure;
        writeln!(
            text,
            "Measured {{ name: {name:?}, size: size_of::<c::{oracle}>(), \
             align: align_of::<c::{oracle}>(), fields: vec!["
        )
        .unwrap();
        for field in structure.fields.iter().filter(|_| fields(structure)) {
            let c = field.oracle;
            // SAFETY, of what is written: the address of a field is taken, and nothing is read.
            writeln!(
                text,
                "({:?}, std::mem::offset_of!(c::{oracle}, {c}), \
                 field_size(|it: &c::{oracle}| unsafe {{ &raw const it.{c} }})),",
                field.name
            )
            .unwrap();
        }
        text += "] },\n";
    }
    text + "]\n}\n"
}

/// Code that only compiles if the structures of C have no other fields.
fn complete(all: &[Structure]) -> String {
    let mut text = String::new();
    for structure in all.iter().filter(|structure| !structure.is_union) {
        let Structure { name, oracle, .. } = structure;
        let fields: Vec<_> = structure
            .fields
            .iter()
            .map(|field| format!("{}: _", field.oracle))
            .collect();
        let fields = fields.join(", ");
        writeln!(
            text,
            "pub fn {name}_is_complete(it: &c::{oracle}) {{ let c::{oracle} {{ {fields} }} = it; }}"
        )
        .unwrap();
    }
    text
}

fn values(name: &str, all: &[Constant], path: impl Fn(&Constant) -> String) -> String {
    let mut text = format!("pub fn {name}() -> Vec<(&'static str, i64)> {{\nvec![\n");
    for constant in all {
        writeln!(text, "({:?}, {} as i64),", constant.name, path(constant)).unwrap();
    }
    text + "]\n}\n"
}

fn signatures(name: &str, all: &[&Function], module: &str) -> String {
    let mut text = format!("pub fn {name}() -> Vec<(&'static str, Sizes)> {{\nvec![\n");
    for function in all {
        let name = function.name;
        let arguments = vec!["_"; function.arguments.len()].join(", ");
        writeln!(
            text,
            "({name:?}, ({module}::{name} as unsafe extern \"C\" fn({arguments}) -> _).sizes()),"
        )
        .unwrap();
    }
    text + "]\n}\n"
}
