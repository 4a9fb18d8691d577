//! Limits and time-outs of an event loop.

use std::time::Duration;

use crate::half_open::{ACCEPT_TIMEOUT, CONNECT_TIMEOUT};

/// Default maximum number of connections, half-open ones included.
const MAX_CONNECTIONS: usize = 4096;

/// Default maximum number of connections of one address, as a fraction of the maximum of all.
const ADDRESS_FRACTION: usize = 4;

/// Default maximum number of half-open connections: far more than honest handshakes of milliseconds need, and few enough
/// for their queue pairs and receives.
const MAX_HALF_OPEN: usize = 128;

/// Default maximum time of a connection's end, and of a stop, for the peer's answer to the disconnect request. The connection
/// manager retries for a time chosen by the peer, of up to many hours.
pub(super) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits and time-outs of an event loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) max_connections: usize,
    pub(super) max_per_address: Option<usize>,
    pub(super) max_half_open: usize,
    pub(super) handshake_timeout: Option<Duration>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) disconnect_timeout: Duration,
    pub(super) tick: Option<Duration>,
}

impl Settings {
    pub(super) const fn new() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            max_per_address: None,
            max_half_open: MAX_HALF_OPEN,
            handshake_timeout: None,
            idle_timeout: None,
            disconnect_timeout: DISCONNECT_TIMEOUT,
            tick: None,
        }
    }

    /// Maximum number of connections of one address.
    pub(super) fn per_address(&self) -> usize {
        let fraction = self.max_connections / ADDRESS_FRACTION;
        self.max_per_address.unwrap_or(fraction).max(1)
    }

    /// Maximum time from accepting a request to the end of the handshake.
    pub(super) fn accept_timeout(&self) -> Duration {
        self.handshake_timeout.unwrap_or(ACCEPT_TIMEOUT)
    }

    /// Maximum time from the start of the loop to the end of the active side's handshake.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.handshake_timeout.unwrap_or(CONNECT_TIMEOUT)
    }
}
