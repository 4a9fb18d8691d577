//! Numbers with fewer bits in InfiniBand than in Rust: checked at construction, so that no later
//! call fails because of one.

use std::{fmt, io};

use crate::error::{Error, Result};

macro_rules! bounded {
    ($($(#[$doc:meta])* $name:ident($int:ty) <= $max:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name($int);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self($max);

            /// Checks the value against the maximum.
            ///
            /// # Errors
            /// - `InvalidInput`: the value is more than [`MAX`](Self::MAX).
            pub fn new(value: $int) -> Result<Self> {
                if value <= $max {
                    return Ok(Self(value));
                }
                let reason = concat!("at most ", $max);
                Err(Error::refused(stringify!($name), io::ErrorKind::InvalidInput, reason)
                    .detail(value.to_string()))
            }

            /// The value.
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl From<$name> for $int {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    )*};
}

bounded! {
    /// A packet sequence number: 24 bits.
    ///
    /// ```
    /// use verbs::qp::Psn;
    /// assert_eq!(Psn::new(0xff_ffff)?, Psn::MAX);
    /// assert_eq!(
    ///     Psn::new(1 << 24).unwrap_err().to_string(),
    ///     "`Psn` failed (16777216): at most 16777215"
    /// );
    /// assert_eq!(Psn::from_low_bits(0x1234_5678).get(), 0x34_5678);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    Psn(u32) <= 16777215;
    /// The number of a queue pair, the address used by its peers: 24 bits.
    QpNum(u32) <= 16777215;
    /// The number of a shared receive queue, the address used by [XRC](crate::qp::XrcSend) senders:
    /// 24 bits.
    SrqNum(u32) <= 16777215;
    /// Timeout for an acknowledgement: 4.096 µs times two to the power of this. 0 is
    /// unlimited, 14 about 67 ms.
    AckTimeout(u8) <= 31;
    /// Maximum number of retransmissions of an unacknowledged packet. Some devices, Soft-RoCE among
    /// them, treat 7 as unlimited.
    RetryCount(u8) <= 7;
    /// Maximum number of retries towards a receiver that is not ready (RNR); 7 is unlimited.
    RnrRetry(u8) <= 7;
    /// Delay requested from a sender by a receiver that is not ready (RNR NAK). A code, not a
    /// number: 0 is 655.36 ms, 1 is 10 µs, 12 is 640 µs, 31 is 491.52 ms.
    RnrTimer(u8) <= 31;
}

impl Psn {
    /// The low 24 bits of a number, for a sequence with an arbitrary start.
    pub const fn from_low_bits(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }
}

impl QpNum {
    /// The number of a queue pair as reported by a device or a peer. Bits above the low 24 are
    /// ignored.
    pub const fn from_low_bits(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }
}

impl SrqNum {
    /// The number of a shared receive queue as reported by a device or a peer. Bits above the low
    /// 24 are ignored.
    pub const fn from_low_bits(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }
}

impl fmt::Display for SrqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for QpNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_number_beyond_max_is_refused() {
        assert_eq!(RetryCount::new(7).unwrap(), RetryCount::MAX);
        assert_eq!(
            RetryCount::new(8).unwrap_err().to_string(),
            "`RetryCount` failed (8): at most 7"
        );
        assert!(AckTimeout::new(31).is_ok() && AckTimeout::new(32).is_err());
        assert!(RnrTimer::new(31).is_ok() && RnrTimer::new(32).is_err());
        assert_eq!(QpNum::new(0x11).unwrap().to_string(), "0x000011");
    }
}
