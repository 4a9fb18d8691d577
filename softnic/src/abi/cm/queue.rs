//! Pending events of a channel.

use std::sync::Arc;

use crate::{
    abi::{acks::Acks, event_queue::EventQueue},
    cm::{GroupId, Occurrence},
};

/// Destination of an identifier's events.
#[derive(Clone, Debug)]
pub(in crate::abi) struct CmSubject {
    /// Address of the identifier's C struct.
    pub(in crate::abi) addr: usize,
    pub(in crate::abi) queue: Arc<CmEvents>,
    /// Unacknowledged events.
    pub(in crate::abi) acks: Arc<Acks>,
}

/// A pending event.
#[derive(Debug)]
pub(in crate::abi) struct Queued {
    /// Address of the identifier's C struct.
    pub(in crate::abi) addr: usize,
    pub(in crate::abi) what: Occurrence,
    pub(in crate::abi) acks: Arc<Acks>,
}

/// Pending events of a channel.
pub(in crate::abi) type CmEvents = EventQueue<Queued>;

impl Queued {
    /// Whether the event belongs to a membership.
    pub(super) fn is_of_group(&self, group: GroupId) -> bool {
        matches!(self.what, Occurrence::MulticastJoined { membership, .. } if membership == group)
    }
}
