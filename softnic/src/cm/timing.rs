//! Times of the connection manager.

use std::time::Duration;

use super::timers::time;

/// Times and retries of a connection manager. Both sides of a connection use those of the active side, as sent in the
/// request (REQ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time within which a side answers a message, as 4.096 µs · 2^n, 0 to 31.
    pub response_timeout: u8,
    /// Twice the time of a packet's way to the peer, added to the answer's time for connection requests.
    pub round_trip: Duration,
    /// Maximum number of retries of a message, 0 to 15.
    pub max_retries: u8,
    /// Acknowledgement timeout of connections without the option, as 4.096 µs · 2^n, 1 to 31.
    pub ack_timeout: u8,
}

impl Timing {
    /// Times for hosts of one process: a lost message is sent again after 268 ms, a sixteenth of Linux's time. Eight
    /// acknowledgement timeouts, of 268 ms as well, exceed the second granted by `cm` to a disconnected peer for
    /// acknowledgements.
    pub const FABRIC: Self = Self {
        response_timeout: 16,
        round_trip: Duration::ZERO,
        max_retries: 15,
        ack_timeout: 16,
    };

    /// Times of Linux on `RoCE`, for networks: a request is sent again after 4.8 s, and given up after 77 s.
    pub const LINUX: Self = Self {
        response_timeout: 20,
        // `CMA_IBOE_PACKET_LIFETIME` is 16.
        round_trip: Duration::from_nanos(2 * (4096 << 16)),
        max_retries: 15,
        ack_timeout: 17,
    };

    /// Interval between the copies of a connection request.
    pub(super) fn request_interval(self) -> Duration {
        time(self.response_timeout) + self.round_trip
    }
}
