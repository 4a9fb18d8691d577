//! Events: notifications of completion queues, and asynchronous events.

use super::ids::{CqId, QpNum, SrqId};

/// An event for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A completion for an armed completion queue.
    Completion(CqId),
    /// A completion queue was full, and a completion is lost.
    CqError(CqId),
    /// A completion of the queue pair was lost, or the queue pair failed for another reason.
    QpFatal(QpNum),
    /// The peer sent a malformed request; the queue pair is in the error state.
    QpRequestError(QpNum),
    /// The peer sent a request without the right key or access; the queue pair is in the error state.
    QpAccessError(QpNum),
    /// The first packet arrived at a queue pair before RTS.
    CommunicationEstablished(QpNum),
    /// All requests started before `State::Sqd` are done.
    SendQueueDrained(QpNum),
    /// The queue pair takes no more receives from the shared queue.
    LastWqeReached(QpNum),
    /// A shared receive queue has fewer receives than the limit.
    SrqLimit(SrqId),
    /// The port's link is up.
    PortActive,
    /// The port's link is down.
    PortError,
    /// The port has got its GIDs, or lost them.
    GidChange,
    /// The device has failed for good.
    DeviceFatal,
}
