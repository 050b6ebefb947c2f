// SPDX-License-Identifier: MIT
//! Loading the library, present or not.

use std::path::Path;

use mscclpp_ib_sys::{LoadError, Verbs};

#[test]
fn a_missing_library_is_named_with_what_to_do() {
    let error = Verbs::load_from(Path::new("/nowhere/libibverbs.so.1")).unwrap_err();
    let LoadError::NotFound { tried, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(tried.len(), 1);
    let text = error.to_string();
    for part in ["/nowhere/libibverbs.so.1", "libibverbs1", "MSCCLPP_IBV_SO"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn another_library_is_refused_by_the_function_that_it_lacks() {
    let error = Verbs::load_from(Path::new("libc.so.6")).unwrap_err();
    assert!(matches!(error, LoadError::Symbol { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("ibv_get_device_list"), "{text}");
    assert!(text.contains("libc.so.6"), "{text}");
}

#[test]
fn the_systems_library_lists_devices_or_says_why_not() {
    let verbs = match Verbs::get() {
        Ok(verbs) => verbs,
        Err(reason) => {
            println!("SKIP the_systems_library_lists_devices_or_says_why_not: {reason}");
            return;
        }
    };
    let mut count = -1;
    // SAFETY: a valid integer; the list is freed by the library that made it.
    unsafe {
        let list = verbs.ibv_get_device_list(&mut count);
        let reason = std::io::Error::last_os_error();
        if list.is_null() {
            // A kernel without InfiniBand.
            assert_eq!(reason.raw_os_error(), Some(libc::ENOSYS), "{reason}");
        } else {
            assert!(count >= 0);
            assert!((*list.add(count as usize)).is_null());
            verbs.ibv_free_device_list(list);
        }
    }
    assert!(std::ptr::eq(verbs, Verbs::get().unwrap()));
}
