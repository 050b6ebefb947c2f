// SPDX-License-Identifier: MIT
//! The pages of docs/ whose Rust is compiled and run with the documentation's examples. The test
//! `book` holds this list against the pages.

macro_rules! pages {
    ($($name:ident = $path:literal;)*) => {
        $(
            #[doc = include_str!($path)]
            pub struct $name;
        )*
    };
}

pages! {
    Deadlines = "../../docs/deadlines.md";
    Setup = "../../docs/setup.md";
    Errors = "../../docs/errors.md";
    Tracing = "../../docs/tracing.md";
    Seeing = "../../docs/seeing.md";
    WithoutHardware = "../../docs/without-hardware.md";
}
