// SPDX-License-Identifier: MIT
//! What this crate declares, as tables: each declaration is written once, by a macro that makes both
//! the item and its row. `cargo xtask bindings --check` holds the rows against the C headers.

/// A structure or union as it is declared here.
#[derive(Debug, Clone, Copy)]
pub struct Structure {
    /// Its name here.
    pub name: &'static str,
    /// The name that bindgen gives to it: that of C, or for a type without a name one made from its
    /// place.
    pub oracle: &'static str,
    /// Whether it is a union: of those, the members declared here may be some only.
    pub is_union: bool,
    /// In bytes.
    pub size: usize,
    /// In bytes.
    pub align: usize,
    /// All fields in their order.
    pub fields: &'static [Field],
}

/// A field of a [`Structure`].
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name here.
    pub name: &'static str,
    /// The name that bindgen gives to it.
    pub oracle: &'static str,
    /// In bytes from the start.
    pub offset: usize,
    /// In bytes.
    pub size: usize,
}

/// A constant as it is declared here.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    /// The name, here and in C.
    pub name: &'static str,
    /// The C enumeration that it belongs to; empty for those without a name and for macros.
    pub enumeration: &'static str,
    /// Its value.
    pub value: i64,
}

/// A function as it is declared here.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    /// The name, here and in C.
    pub name: &'static str,
    /// Whether older versions lack it.
    pub newer: bool,
    /// Sizes of its arguments in bytes.
    pub arguments: &'static [usize],
    /// Size of its result in bytes.
    pub result: usize,
}

/// The name that the oracle uses: another one if it is given.
macro_rules! oracle {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $other:literal) => {
        $other
    };
}
pub(crate) use oracle;

/// Declares structures and unions as C lays them out, and `STRUCTURES`, the table of them.
macro_rules! c_structures {
    ($(
        $(#[$meta:meta])*
        $kind:ident $name:ident $(= $c_name:literal)? {
            $($field:ident $(= $c_field:literal)? : $type:ty),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name { $(pub $field: $type),* }

            impl $name {
                /// All bytes zero: numbers are 0, pointers and functions absent.
                #[must_use]
                pub const fn zeroed() -> Self {
                    // SAFETY: the types of this macro have integers, raw pointers, optional
                    // functions, and arrays and structures of those: all valid as zeros.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        pub(crate) const STRUCTURES: &[crate::layout::Structure] = &[$(
            crate::layout::Structure {
                name: stringify!($name),
                oracle: crate::layout::oracle!($name $($c_name)?),
                is_union: matches!(stringify!($kind).as_bytes(), b"union"),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[$(
                    crate::layout::Field {
                        name: stringify!($field),
                        oracle: crate::layout::oracle!($field $($c_field)?),
                        offset: std::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                    }
                ),*],
            }
        ),*];
    };
}
pub(crate) use c_structures;

/// Declares constants, grouped by the C enumeration (`_` for none), and `CONSTANTS`, the table.
macro_rules! c_constants {
    (@name _) => { "" };
    (@name $enumeration:ident) => { stringify!($enumeration) };
    ($($enumeration:tt : $type:ty { $($name:ident = $value:expr),* $(,)? })*) => {
        $($(pub const $name: $type = $value;)*)*

        pub(crate) const CONSTANTS: &[crate::layout::Constant] = &[$($(
            crate::layout::Constant {
                name: stringify!($name),
                enumeration: crate::layout::c_constants!(@name $enumeration),
                value: $value as i64,
            }
        ),*),*];
    };
}
pub(crate) use c_constants;

/// All structures and unions of this crate.
#[must_use]
pub fn structures() -> Vec<Structure> {
    [
        crate::objects::STRUCTURES,
        crate::requests::STRUCTURES,
        crate::attributes::STRUCTURES,
    ]
    .concat()
}

/// All constants of this crate.
#[must_use]
pub fn constants() -> Vec<Constant> {
    crate::constants::CONSTANTS.to_vec()
}

/// All functions that this crate loads.
#[must_use]
pub fn functions() -> Vec<Function> {
    [crate::verbs::FUNCTIONS, crate::mlx5dv::FUNCTIONS].concat()
}
