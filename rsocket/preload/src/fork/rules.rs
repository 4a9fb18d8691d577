//! The effect of a call on a stream during its move. `CALLS.md` has the table.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::frame::{Head, Kind, Secret};

/// Limit between a proof and its confirmation, which needs no call of the peer's program.
pub(crate) const CONFIRM_LIMIT: Duration = Duration::from_secs(20);

/// Aim of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Data, which only the peer's program can send.
    Receive,
    /// To send, which never waits longer than the given time for the peer's part of the move.
    Send,
}

/// Decision for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Use TCP for ever. `skips`: an offer may be the first that arrives, or has arrived.
    Tcp { skips: bool },
    /// Use the RDMA stream for ever.
    Rdma,
    /// Connect to this RDMA port with this secret.
    Join { port: u16, secret: Secret },
    /// Try again later.
    Wait,
    /// Reset the connection.
    Reset,
}

/// Time since the beginning of a state, and the time a call to send may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) age: Duration,
    pub(crate) send_limit: Duration,
}

impl MovePhase {
    /// The phase without the thread, which could not be started or has panicked.
    pub(crate) fn without_thread(self) -> Self {
        match self {
            Self::Awaiting => Self::Abandoned,
            Self::Joining => Self::Failed,
            // The accepting side decides, or TCP is in use.
            Self::Proved { .. } | Self::Failed | Self::Abandoned => self,
        }
    }
}

impl Clock {
    fn is_over(self, need: Need) -> bool {
        need == Need::Send && self.age >= self.send_limit
    }
}

/// The accepting side after its offer. `head` are the first bytes of the TCP connection.
pub(crate) fn accepting(is_confirmed: bool, head: Head, need: Need, clock: Clock) -> Verdict {
    match head {
        // The peer has been notified, and sends nothing more by TCP.
        _ if is_confirmed => Verdict::Rdma,
        Head::Nothing if !clock.is_over(need) => Verdict::Wait,
        // The peer uses TCP, or this side does: the offer is withdrawn before the first byte is sent.
        _ => Verdict::Tcp { skips: false },
    }
}

/// State of the connecting side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MovePhase {
    /// No offer so far.
    Awaiting,
    /// Connecting by RDMA. No proof has been sent.
    Joining,
    /// A proof has been sent: the accepting side decides.
    Proved { secret: Secret },
    /// There was an offer, and there is no RDMA connection. No proof has been sent.
    Failed,
    /// There was no offer so far, and no thread to wait for it.
    Abandoned,
}

/// The connecting side before its first byte. `head` are the first bytes of the TCP connection.
pub(crate) fn connecting(phase: MovePhase, head: Head, need: Need, clock: Clock) -> Verdict {
    match (phase, head) {
        (MovePhase::Failed, _) => Verdict::Tcp { skips: false },
        (MovePhase::Abandoned, head) => Verdict::Tcp {
            skips: head.may_be_offer(),
        },
        (MovePhase::Awaiting, Head::Frame(frame)) => match frame.kind {
            Kind::Offer { port } => Verdict::Join {
                port,
                secret: frame.secret,
            },
            _ => Verdict::Reset,
        },
        (MovePhase::Awaiting | MovePhase::Joining, Head::Nothing) => match clock.is_over(need) {
            true => Verdict::Tcp {
                skips: phase == MovePhase::Awaiting,
            },
            false => Verdict::Wait,
        },
        (MovePhase::Proved { secret }, Head::Frame(frame))
            if (frame.kind, frame.secret) == (Kind::Confirm, secret) =>
        {
            Verdict::Rdma
        }
        (MovePhase::Proved { .. }, Head::Nothing) if clock.age < CONFIRM_LIMIT => Verdict::Wait,
        (MovePhase::Proved { .. }, Head::Nothing) => Verdict::Reset,
        // The accepting side has withdrawn its offer, or has made none: these are data, or the end.
        (_, Head::Other | Head::Partial) => Verdict::Tcp { skips: false },
        (MovePhase::Joining | MovePhase::Proved { .. }, Head::Frame(_)) => Verdict::Reset,
    }
}
