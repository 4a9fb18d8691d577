//! Events: notifications of completion queues, and asynchronous events.

use super::ids::{CqId, QpNum, SrqId};

/// An event for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A completion queue that was armed has a completion.
    Completion(CqId),
    /// A completion queue was full.
    CqError(CqId),
    /// A completion of the queue pair was lost, or its queue pair failed otherwise.
    QpFatal(QpNum),
    /// The peer has sent a malformed request; the queue pair is in the error state.
    QpRequestError(QpNum),
    /// The peer has sent a request that its key does not allow; the queue pair is in the error state.
    QpAccessError(QpNum),
    /// The first packet has arrived at a queue pair that cannot send yet.
    CommunicationEstablished(QpNum),
    /// All requests that were begun before the send queue was stopped are done.
    SendQueueDrained(QpNum),
    /// The queue pair takes no more receives of its shared queue.
    LastWqeReached(QpNum),
    /// A shared receive queue has fewer receives than its limit.
    SrqLimit(SrqId),
    /// The port has a link again.
    PortActive,
    /// The port has lost its link.
    PortError,
    /// The device has failed for good.
    DeviceFatal,
}
