//! Integers in network byte order: the kernel's `__be16`, `__be32` and `__be64`.
//!
//! Distinct types rather than aliases as in C, so that a value in the wrong order does not compile. Values in network
//! order with a plain integer type in C (the port of `sockaddr_in`, addresses of a flow filter) stay plain integers.

use core::fmt;

macro_rules! be {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(
            /// The bytes in wire order, as a native integer.
            pub $int,
        );

        impl $name {
            /// Converts from native order.
            #[inline]
            #[must_use]
            pub const fn from_ne(value: $int) -> Self {
                Self(value.to_be())
            }

            /// Converts to native order.
            #[inline]
            #[must_use]
            pub const fn to_ne(self) -> $int {
                <$int>::from_be(self.0)
            }
        }

        impl From<$int> for $name {
            #[inline]
            fn from(value: $int) -> Self {
                Self::from_ne(value)
            }
        }

        impl From<$name> for $int {
            #[inline]
            fn from(value: $name) -> Self {
                value.to_ne()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.to_ne())
            }
        }
    )*};
}

be! {
    /// 16 bits in network order.
    __be16(u16);
    /// 32 bits in network order.
    __be32(u32);
    /// 64 bits in network order.
    __be64(u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn be_conversion_round_trips() {
        assert_eq!(__be16::from_ne(0x1234).to_ne(), 0x1234);
        assert_eq!(u32::from(__be32::from(0x1234_5678)), 0x1234_5678);
    }

    #[test]
    fn first_byte_in_memory_is_the_most_significant() {
        assert_eq!(
            __be64::from_ne(0x0102_0304_0506_0708).0.to_ne_bytes(),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
    }

    #[test]
    fn debug_format_shows_the_native_value() {
        assert_eq!(format!("{:?}", __be32::from_ne(0x1b)), "0x1b");
    }
}
