//! Integers in network byte order: the kernel's `__be16`, `__be32` and `__be64`.
//!
//! C has only names for them; here they are types, so that a value in the wrong order does not
//! compile. What is in network order by meaning but not by its C type (a `sockaddr_in`'s port,
//! the addresses of a flow filter) stays a plain integer.

use core::fmt;

macro_rules! be {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(
            /// The bytes as they are on the wire, read as an integer of this machine.
            pub $int,
        );

        impl $name {
            /// Brings an integer into network order.
            #[inline]
            #[must_use]
            pub const fn from_ne(value: $int) -> Self {
                Self(value.to_be())
            }

            /// The integer in this machine's order.
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
    fn a_round_trip_keeps_the_value() {
        assert_eq!(__be16::from_ne(0x1234).to_ne(), 0x1234);
        assert_eq!(u32::from(__be32::from(0x1234_5678)), 0x1234_5678);
    }

    #[test]
    fn the_first_byte_in_memory_is_the_highest() {
        assert_eq!(
            __be64::from_ne(0x0102_0304_0506_0708).0.to_ne_bytes(),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
    }

    #[test]
    fn debug_shows_the_value_of_this_machine() {
        assert_eq!(format!("{:?}", __be32::from_ne(0x1b)), "0x1b");
    }
}
