// SPDX-License-Identifier: MIT
//! Tables of a library's functions.

/// Declares a library as a structure of functions, loads it, and has `FUNCTIONS`, the table of them.
/// Functions that are `called` get a method; those that are `wrapped` have one of their own, because
/// the header puts a macro or an inline function before them; `newer` ones may be missing.
macro_rules! functions {
    (@result) => { () };
    (@result $result:ty) => { $result };
    (
        $(#[$meta:meta])*
        struct $library:ident
        called { $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)* }
        wrapped { $(fn $wrapped:ident($($wrapped_arg:ident: $wrapped_type:ty),*) -> $wrapped_result:ty;)* }
        newer { $(fn $newer:ident($($newer_arg:ident: $newer_type:ty),*) -> $newer_result:ty;)* }
    ) => {
        $(#[$meta])*
        pub struct $library {
            file: String,
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            $($wrapped: unsafe extern "C" fn($($wrapped_type),*) -> $wrapped_result,)*
            $($newer: Option<unsafe extern "C" fn($($newer_type),*) -> $newer_result>,)*
        }

        pub(crate) const FUNCTIONS: &[crate::layout::Function] = &[
            $(crate::layout::Function {
                name: stringify!($name),
                newer: false,
                arguments: &[$(size_of::<$type>()),*],
                result: size_of::<crate::functions::functions!(@result $($result)?)>(),
            },)*
            $(crate::layout::Function {
                name: stringify!($wrapped),
                newer: false,
                arguments: &[$(size_of::<$wrapped_type>()),*],
                result: size_of::<$wrapped_result>(),
            },)*
            $(crate::layout::Function {
                name: stringify!($newer),
                newer: true,
                arguments: &[$(size_of::<$newer_type>()),*],
                result: size_of::<$newer_result>(),
            },)*
        ];

        impl $library {
            fn of(
                library: crate::library::Loaded<'_>,
            ) -> Result<Self, crate::library::LoadError> {
                // SAFETY: the types are those of the functions' declarations in C. The loader gives
                // the newest version of each, as it does to a program that is compiled with them.
                unsafe {
                    $(let $name = library.function(stringify!($name))?;)*
                    $(let $wrapped = library.function(stringify!($wrapped))?;)*
                    $(let $newer = library.newer_function(stringify!($newer));)*
                    Ok(Self {
                        $($name,)*
                        $($wrapped,)*
                        $($newer,)*
                        file: library.keep(),
                    })
                }
            }

            $(
                /// See the manual page.
                ///
                /// # Safety
                ///
                /// As the manual page says: pointers are live and of this library.
                pub unsafe fn $name(&self, $($arg: $type),*) $(-> $result)? {
                    // SAFETY: the caller's promise.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }
    };
}
pub(crate) use functions;
