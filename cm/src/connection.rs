//! Established connections.

use std::fmt;

use rdmacm_sys as ffi;
use verbs::{Buf, QueuePair, Rc, Refused, Result, Rts, error::cvt_neg};

use crate::{
    channel::EventChannel,
    id::{CmId, wrong_qp},
    phases::Connected,
    registry::Key,
};

/// An established connection: a queue pair that is ready to send, and the identifier it was
/// connected with.
///
/// Dropping it destroys the queue pair, and then ends the connection, so the peer sees it end.
pub struct Connection<SW = Buf, RW = Buf, T = Rc> {
    // Destroyed before the identifier.
    qp: QueuePair<T, Rts, SW, RW>,
    id: CmId<Connected>,
}

impl<SW, RW, T: verbs::Routed + verbs::Queued> Connection<SW, RW, T> {
    /// Joins the identifier of an accepted connection, which comes with
    /// [`Event::Established`](crate::Event::Established), and the queue pair it was accepted with.
    ///
    /// # Errors
    /// - `InvalidInput`: it was accepted with another queue pair. Both are given back.
    #[expect(
        clippy::type_complexity,
        reason = "the two things that the caller gave"
    )]
    pub fn new(
        id: CmId<Connected>,
        qp: QueuePair<T, Rts, SW, RW>,
    ) -> Result<Self, Refused<(CmId<Connected>, QueuePair<T, Rts, SW, RW>)>> {
        let expected = id.expected_qp_num();
        if expected == Some(qp.qp_num()) {
            Ok(Self { qp, id })
        } else {
            let error = wrong_qp("Connection::new", qp.qp_num(), expected);
            Err(Refused {
                value: (id, qp),
                error,
            })
        }
    }

    pub(crate) fn from_parts(id: CmId<Connected>, qp: QueuePair<T, Rts, SW, RW>) -> Self {
        Self { qp, id }
    }

    /// The identifier.
    pub fn id(&self) -> &CmId<Connected> {
        &self.id
    }

    /// The name of the identifier, which its events carry.
    pub fn key(&self) -> Key {
        self.id.key()
    }

    /// The queue pair.
    pub fn qp(&self) -> &QueuePair<T, Rts, SW, RW> {
        &self.qp
    }

    /// The queue pair, to post to and to take work back from.
    #[inline]
    pub fn qp_mut(&mut self) -> &mut QueuePair<T, Rts, SW, RW> {
        &mut self.qp
    }

    /// `rdma_disconnect`—Ends the connection, or answers a peer that has. What is in flight comes
    /// back with the status [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR). The peer gets
    /// [`Event::Disconnected`](crate::Event::Disconnected), and so does this side, once the peer has
    /// answered.
    ///
    /// # Errors
    /// - `EINVAL`: the connection has ended already.
    ///
    /// # References
    /// [rdma_disconnect(3)](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html)
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<()> {
        // On iWARP the connection is closed through the queue pair, by the kernel.
        if !self.qp.pd().context().is_iwarp() {
            self.qp.to_error()?;
        }
        // SAFETY: the identifier exists for as long as `self` lives.
        let ret = unsafe { ffi::rdma_disconnect(self.id.as_raw()) };
        cvt_neg("rdma_disconnect", ret).map(drop)
    }

    /// `rdma_migrate_id`—Moves the identifier to another channel; see [`CmId::migrate`].
    ///
    /// # Errors
    /// As for [`CmId::migrate`].
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.id.migrate(channel)
    }

    /// The identifier and the queue pair, on their own. Drop the queue pair first.
    pub fn into_parts(self) -> (QueuePair<T, Rts, SW, RW>, CmId<Connected>) {
        (self.qp, self.id)
    }
}

impl<SW, RW, T: verbs::Routed + verbs::Queued> fmt::Debug for Connection<SW, RW, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id)
            .field("qp", &self.qp)
            .finish()
    }
}
