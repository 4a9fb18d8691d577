//! Established connections.

use std::fmt;

use rdmacm_sys as ffi;
use verbs::{
    Buf, QueuePair, Result, Rts, WcStatus,
    cq::Attempts,
    error::{Refused, cvt_neg},
    qp::QpAttr,
};

use crate::{
    channel::EventChannel,
    id::{CmId, wrong_qp},
    phases::Connected,
    registry::Key,
    trace::note,
};

/// An established connection: a queue pair in the state RTS, and the corresponding identifier.
///
/// Drop destroys the queue pair, and then disconnects, so that the peer gets an event.
pub struct Connection<SW = Buf, RW = Buf, T = verbs::Rc> {
    // Dropped before the identifier.
    qp: QueuePair<T, Rts, SW, RW>,
    id: CmId<Connected>,
}

impl<SW, RW, T: verbs::qp::Routed + verbs::qp::Queued> Connection<SW, RW, T> {
    /// Joins the identifier of an accepted connection, delivered with
    /// [`Event::Established`](crate::Event::Established), and the accepted queue pair.
    ///
    /// # Errors
    /// - `InvalidInput`: the connection was accepted with another queue pair. Both arguments are returned.
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

    /// Key of the identifier, as found in events.
    pub fn key(&self) -> Key {
        self.id.key()
    }

    /// The queue pair.
    pub fn qp(&self) -> &QueuePair<T, Rts, SW, RW> {
        &self.qp
    }

    /// Mutable queue pair, for posting requests and for matching completions.
    #[inline]
    pub fn qp_mut(&mut self) -> &mut QueuePair<T, Rts, SW, RW> {
        &mut self.qp
    }

    /// Retries of the queue pair and the peer's address, for the error of a request completed with `status`. Queries
    /// the device only if `status` means exhausted retries, and is `None` otherwise.
    pub fn attempts(&self, status: WcStatus) -> Option<Attempts> {
        attempts(status, || self.qp.query(), &self.id)
    }

    /// `rdma_disconnect`—Ends the connection, or answers the disconnect of the peer. Requests in flight
    /// complete with the status [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR). The peer gets
    /// [`Event::Disconnected`](crate::Event::Disconnected), and so does this side, once the peer has
    /// answered.
    ///
    /// # Errors
    /// - `EINVAL`: the connection has already ended.
    ///
    /// # References
    /// [rdma_disconnect(3)](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html)
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<()> {
        let iwarp = self.qp.pd().context().is_iwarp();
        disconnect(&self.id, iwarp, || self.qp.to_error())
    }

    /// `rdma_migrate_id`—Moves the identifier to another channel; see [`CmId::migrate`].
    ///
    /// # Errors
    /// As for [`CmId::migrate`].
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.id.migrate(channel)
    }

    /// Splits the connection into queue pair and identifier. Drop the queue pair first.
    pub fn into_parts(self) -> (QueuePair<T, Rts, SW, RW>, CmId<Connected>) {
        (self.qp, self.id)
    }
}

/// [`Connection::attempts`], for a queue pair with another owner.
pub(crate) fn attempts(
    status: WcStatus,
    query: impl FnOnce() -> Result<QpAttr>,
    id: &CmId<Connected>,
) -> Option<Attempts> {
    if !status.is_end_of_retries() {
        return None;
    }
    let mut attempts = query().ok()?.attempts();
    attempts.peer = id.peer_addr();
    Some(attempts)
}

/// [`Connection::disconnect`], for a queue pair with another owner. On iWARP the kernel closes the connection through
/// the queue pair; elsewhere `to_error` flushes the queue pair first.
pub(crate) fn disconnect(
    id: &CmId<Connected>,
    iwarp: bool,
    to_error: impl FnOnce() -> Result<()>,
) -> Result<()> {
    note!(debug, id, "disconnecting");
    if !iwarp {
        #[cfg(feature = "tracing")]
        let _entered = id.span().enter();
        to_error()?;
    }
    id.disconnect()
}

impl CmId<Connected> {
    /// `rdma_disconnect`—Ends the connection of a queue pair with another owner, as
    /// [`Connection::disconnect`] does. Before, unless the device is iWARP, move the queue pair to the
    /// [error state](verbs::qp::QpHandle::to_error).
    ///
    /// # Errors
    /// - `EINVAL`: the connection has already ended.
    ///
    /// # References
    /// [rdma_disconnect(3)](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html)
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        // SAFETY: the identifier exists for as long as `self` lives.
        let ret = unsafe { ffi::rdma_disconnect(self.as_raw()) };
        cvt_neg("rdma_disconnect", ret).map(drop)
    }
}

impl<SW, RW, T: verbs::qp::Routed + verbs::qp::Queued> fmt::Debug for Connection<SW, RW, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id)
            .field("qp", &self.qp)
            .finish()
    }
}
