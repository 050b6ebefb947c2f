// SPDX-License-Identifier: MIT
//! Each declaration of `mscclpp-ib-sys` is that of the headers.

use mscclpp_ib_oracle::{self as oracle, Measured, Sizes};
use mscclpp_ib_sys::layout::{self, Constant, Function, Structure};

/// What differs, in words.
fn structures(ours: &[Structure], theirs: &[Measured]) -> Vec<String> {
    let mut faults = Vec::new();
    for theirs in theirs {
        let name = theirs.name;
        let Some(ours) = ours.iter().find(|ours| ours.name == name) else {
            faults.push(format!("{name} is not declared"));
            continue;
        };
        let ((size, align), c) = ((ours.size, ours.align), (theirs.size, theirs.align));
        if (size, align) != c {
            faults.push(format!(
                "{name}: size and alignment {:?}, in C {c:?}",
                (size, align)
            ));
        }
        for (field, offset, size) in &theirs.fields {
            let found = ours.fields.iter().find(|ours| ours.name == *field);
            let ours = found.map(|ours| (ours.offset, ours.size));
            if ours != Some((*offset, *size)) {
                let c = (offset, size);
                faults.push(format!(
                    "{name}.{field}: offset and size {ours:?}, in C {c:?}"
                ));
            }
        }
    }
    faults
}

fn constants(ours: &[Constant], theirs: &[(&str, i64)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, c) in theirs {
        let ours = ours
            .iter()
            .find(|ours| ours.name == *name)
            .map(|ours| ours.value);
        // bindgen takes enumerations for unsigned, or for signed, by their values.
        if ours.map(|value| value as i32) != Some(*c as i32) {
            faults.push(format!("{name}: {ours:?}, in C {c}"));
        }
    }
    faults
}

fn functions(ours: &[Function], theirs: &[(&str, Sizes)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, c) in theirs {
        let found = ours.iter().find(|ours| ours.name == *name);
        let ours = found.map(|ours| (ours.arguments.to_vec(), ours.result));
        if ours.as_ref() != Some(c) {
            faults.push(format!("{name}: arguments and result {ours:?}, in C {c:?}"));
        }
    }
    faults
}

fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn count_fields(all: &[Measured]) -> usize {
    all.iter().map(|structure| structure.fields.len()).sum()
}

#[test]
fn structures_are_those_of_the_headers() {
    let (ours, theirs) = (layout::structures(), oracle::headers());
    none(structures(&ours, &theirs));
    assert_eq!(ours.len(), theirs.len());
    let fields: usize = ours.iter().map(|structure| structure.fields.len()).sum();
    assert_eq!(fields, count_fields(&theirs));
    println!("{} structures with {fields} fields", ours.len());
}

#[test]
fn constants_are_those_of_the_headers() {
    let (ours, theirs) = (layout::constants(), oracle::headers_constants());
    none(constants(&ours, &theirs));
    assert_eq!(ours.len(), theirs.len());
    println!("{} constants", ours.len());
}

#[test]
fn functions_are_those_of_the_headers() {
    let (ours, theirs) = (layout::functions(), oracle::headers_functions());
    none(functions(&ours, &theirs));
    let missing = oracle::NOT_IN_HEADERS;
    assert_eq!(ours.len(), theirs.len() + missing.len());
    // These headers may be older than a function, but only than one that may be missing.
    for name in missing {
        assert!(
            ours.iter().any(|ours| ours.name == *name && ours.newer),
            "{name}"
        );
    }
    println!(
        "{} functions; newer than these headers: {missing:?}",
        theirs.len()
    );
}

#[test]
fn rdma_sys_agrees() {
    let theirs = oracle::rdma_sys();
    none(structures(&layout::structures(), &theirs));
    let values = oracle::rdma_sys_constants();
    none(constants(&layout::constants(), &values));
    let fields = count_fields(&theirs);
    println!(
        "{} structures with {fields} fields, {} constants",
        theirs.len(),
        values.len()
    );
}

#[test]
fn a_declaration_that_is_changed_is_found() {
    let theirs = oracle::headers();
    for index in 0..theirs.len() {
        let mut ours = layout::structures();
        ours[index].size += 8;
        assert_eq!(structures(&ours, &theirs).len(), 1);
        let mut ours = layout::structures();
        ours[index].align *= 2;
        assert_eq!(structures(&ours, &theirs).len(), 1);
        for field in 0..theirs[index].fields.len() {
            for change in [
                |it: &mut layout::Field| it.offset += 4,
                |it: &mut layout::Field| it.size += 1,
                |it: &mut layout::Field| it.name = "renamed",
            ] {
                let mut ours = layout::structures();
                let mut fields = ours[index].fields.to_vec();
                change(&mut fields[field]);
                ours[index].fields = fields.leak();
                assert_eq!(structures(&ours, &theirs).len(), 1);
            }
        }
        let mut ours = layout::structures();
        ours.remove(index);
        assert_eq!(structures(&ours, &theirs).len(), 1);
    }
    let theirs = oracle::headers_constants();
    for index in 0..theirs.len() {
        let mut ours = layout::constants();
        ours[index].value += 1;
        assert_eq!(constants(&ours, &theirs).len(), 1);
    }
    let theirs = oracle::headers_functions();
    for (name, _) in &theirs {
        let mut ours = layout::functions();
        let changed = ours.iter_mut().find(|ours| ours.name == *name).unwrap();
        changed.arguments = &[];
        assert_eq!(functions(&ours, &theirs).len(), 1);
    }
}
