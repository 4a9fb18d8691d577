//! Retries of a queue pair, exhausted by a failed request.

use std::{fmt, net::SocketAddr, time::Duration};

use super::status::WcStatus;
use crate::{bounded::QpNum, qp::QpAttr};

/// Peer and retry limits of a queue pair, after which a request fails with
/// [`RETRY_EXC_ERR`](WcStatus::RETRY_EXC_ERR) or [`RNR_RETRY_EXC_ERR`](WcStatus::RNR_RETRY_EXC_ERR).
///
/// The failures of `cm`'s endpoints include this value. For another queue pair, see
/// [`QpAttr::attempts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempts {
    /// The peer's queue pair.
    pub dest_qp_num: QpNum,
    /// The peer's address, where a connection manager knows it.
    pub peer: Option<SocketAddr>,
    /// Maximum number of retransmissions of an unacknowledged packet.
    pub retry_count: u8,
    /// Minimum timeout for the acknowledgement of each transmission; `None`: unlimited.
    pub ack_timeout: Option<Duration>,
    /// Maximum number of retransmissions of a message without a receive posted by the peer; 7 is
    /// unlimited.
    pub rnr_retry: u8,
}

impl QpAttr {
    /// The peer, retry counts and timeout of the queue pair.
    /// [`WcError::with_attempts`](crate::cq::WcError::with_attempts) adds them to a failure.
    pub fn attempts(&self) -> Attempts {
        Attempts {
            dest_qp_num: self.dest_qp_num,
            peer: None,
            retry_count: self.retry_count,
            ack_timeout: ack_timeout(self.timeout),
            rnr_retry: self.rnr_retry,
        }
    }
}

/// The time that a number stands for: 4.096 µs times two to the power of it, and 0 for no end.
fn ack_timeout(exponent: u8) -> Option<Duration> {
    let exponent = u32::from(exponent & 31);
    (exponent > 0).then(|| Duration::from_nanos(4096 << exponent))
}

impl Attempts {
    /// Writes the peer and the retries for a request that has ended with `status`, which has to be
    /// an end of retries.
    pub(super) fn write(&self, status: WcStatus, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "peer {peer}, queue pair {}", self.dest_qp_num)?,
            None => write!(f, "peer's queue pair {}", self.dest_qp_num)?,
        }
        match status {
            WcStatus::RNR_RETRY_EXC_ERR => write!(f, ", {}", Retries(self.rnr_retry)),
            _ => {
                write!(f, ", {}", Retries(self.retry_count))?;
                match self.ack_timeout {
                    Some(timeout) => write!(f, ", at least {timeout:.1?} for each attempt"),
                    None => Ok(()),
                }
            }
        }
    }
}

struct Retries(u8);

impl fmt::Display for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("sent once, without a retry"),
            1 => f.write_str("sent twice"),
            retries => write!(f, "sent once, and {retries} times again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_are_powers_of_two() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }
}
