//! C enumerations, open to values unknown to this crate.

/// Declares types for C enumerations: any value is one, and the known ones have names.
macro_rules! named {
    ($(
        $(#[$attr:meta])*
        $name:ident($int:ty) {
            $($(#[$doc:meta])* $constant:ident = $value:expr;)*
        }
    )*) => {$(
        $(#[$attr])*
        ///
        /// Unknown values are preserved.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(
            /// C's number for the value.
            pub $int,
        );

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $(Self::$constant => f.write_str(stringify!($constant)),)*
                    Self(other) => write!(f, concat!(stringify!($name), "({})"), other),
                }
            }
        }
    )*};
}

pub(crate) use named;
