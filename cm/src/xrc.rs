//! Extended reliable connections: identifiers, and the receiving end.

use std::{
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys::ibv_qp_type;
use rdmacm_sys as ffi;
use verbs::{
    Result, Rts,
    error::{Refused, cvt_neg, cvt_ptr},
    qp::{Transport, XrcReceiver, XrcRecv, XrcSend},
};

use crate::{
    addr::{Addr, RawAddr},
    channel::EventChannel,
    id::{CmId, RawId, wrong_qp},
    phase::Phase,
    phases::{Connected, Idle},
    port_space::PortSpace,
    registry::Key,
};

/// Direction of an end of an extended reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XrcEnd {
    /// The connecting and sending end, with a queue pair of type [`XrcSend`].
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    Send,
    /// The listening and receiving end, with an [`XrcReceiver`].
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    Receive,
}

impl XrcEnd {
    fn to_raw(self) -> ibv_qp_type {
        match self {
            Self::Send => XrcSend::RAW,
            Self::Receive => XrcRecv::RAW,
        }
    }
}

impl EventChannel {
    /// `rdma_create_ep` with `IBV_QPT_XRC_SEND` or `IBV_QPT_XRC_RECV`—Creates an identifier for an
    /// extended reliable connection, in [`PortSpace::Ib`], bound to the local address `addr`.
    ///
    /// The steps are those of other identifiers. With [`XrcEnd::Send`], connect with a queue pair of type
    /// [`XrcSend`]; with [`XrcEnd::Receive`], requests are [accepted](crate::ConnectRequest::accept_xrc) with
    /// an [`XrcReceiver`].
    ///
    /// # Errors
    /// As for [`bind`](CmId::bind). Missing device support is reported later, on creation of the
    /// [domain](verbs::Context::open_xrcd) or the queue pair.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::net::{Ipv4Addr, SocketAddr};
    /// use cm::{ConnParam, ConnectRequest, EventChannel, XrcConnection, XrcEnd};
    /// # fn listen(channel: &EventChannel) -> verbs::Result<()> {
    /// let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7471));
    /// let listener = channel.create_xrc_id(XrcEnd::Receive, any)?.listen(8)?;
    /// # Ok(())
    /// # }
    /// # fn accept(request: ConnectRequest, srq: &verbs::SharedReceiveQueue<verbs::Buf>) -> verbs::Result<()> {
    /// // After a request has arrived:
    /// let xrcd = request.id().context()?.open_xrcd()?;
    /// let qp = request.id().init_xrc_receiver(xrcd.create_qp()?)?;
    /// let param = ConnParam::new().private_data(srq.srq_num()?.get().to_be_bytes());
    /// let qp = request.accept_xrc(qp, &param)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The other end:
    /// ```no_run
    /// use cm::{CmId, ConnParam, ConnectResponse, phases::RouteResolved};
    /// use verbs::{Init, QueuePair, op, qp::XrcSend, srq::SrqNum};
    /// # fn connect(id: CmId<RouteResolved>, qp: &QueuePair<XrcSend, Init>) -> verbs::Result<()> {
    /// id.connect(qp, &ConnParam::new())?;
    /// # Ok(())
    /// # }
    /// # fn established(response: ConnectResponse, qp: QueuePair<XrcSend, Init>) -> verbs::Result<()> {
    /// // After a response with the number of a shared receive queue:
    /// let number = match response.param().private_data[..] {
    ///     [a, b, c, d, ..] => SrqNum::new(u32::from_be_bytes([a, b, c, d]))?,
    ///     _ => panic!("no number"),
    /// };
    /// let mut connection = response.establish(qp)?;
    /// let hello = connection.qp().pd().register_buf(*b"hello")?;
    /// connection.qp_mut().post(op::ToSrq::new(op::Send::new(hello), number))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # References
    /// [rdma_create_ep(3)](https://man7.org/linux/man-pages/man3/rdma_create_ep.3.html)
    #[doc(alias = "rdma_create_ep")]
    pub fn create_xrc_id(&self, end: XrcEnd, addr: impl Into<Addr>) -> Result<CmId<Idle>> {
        const CALL: &str = "rdma_create_ep";
        let addr = addr.into();
        let mut source = RawAddr::new(addr);
        let mut info = ffi::rdma_addrinfo::zeroed();
        // A passive identifier is only bound, so this creates identifiers for both ends.
        info.ai_flags = ffi::RAI_PASSIVE;
        info.ai_qp_type = as_int(end.to_raw().0);
        info.ai_port_space = as_int(PortSpace::Ib.to_raw().0);
        info.ai_src_len = source.len();
        info.ai_src_addr = source.as_mut_ptr();
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is valid for writes; the address referenced by `info` outlives the call. Assumption:
        // librdmacm copies its arguments before a call returns. No queue pair is requested.
        let ret = unsafe {
            ffi::rdma_create_ep(
                &raw mut raw,
                &raw mut info,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let raw = cvt_neg(CALL, ret)
            .and_then(|_| cvt_ptr(CALL, raw))
            .map_err(|err| err.detail(format!("{end:?} at {addr}")))?;
        self.take_over(raw)
    }

    /// Moves an identifier from librdmacm's internal channel to this one.
    fn take_over(&self, raw: NonNull<ffi::rdma_cm_id>) -> Result<CmId<Idle>> {
        let channel = self.handle();
        // SAFETY: the identifier is new, and exclusively owned; the channel is open for as long as `self`
        // lives. No event has been read from the channel, so the call does not wait for an acknowledgement.
        let ret = unsafe { ffi::rdma_migrate_id(raw.as_ptr(), channel.as_ptr()) };
        if let Err(err) = cvt_neg("rdma_migrate_id", ret) {
            // SAFETY: as above; the identifier has no queue pair, and is not used afterwards.
            unsafe { ffi::rdma_destroy_ep(raw.as_ptr()) };
            return Err(err);
        }
        let key = channel.registry().add(Phase::Idle);
        // SAFETY: as above. The context is a number returned with events; without any request, no event is
        // pending yet.
        unsafe { (*raw.as_ptr()).context = key.to_context() };
        // SAFETY: the identifier is new, and exclusively owned.
        let raw = unsafe { RawId::new(raw, key, Arc::clone(channel)) };
        Ok(CmId::begin(raw))
    }
}

fn as_int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(0)
}

/// The receiving end of an established extended reliable connection.
///
/// Incoming messages consume receives of the shared receive queues named by the peer. Drop releases the queue
/// pair, and then disconnects.
#[derive(Debug)]
pub struct XrcConnection {
    // Dropped before the identifier.
    qp: XrcReceiver<Rts>,
    id: CmId<Connected>,
}

impl XrcConnection {
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
        qp: XrcReceiver<Rts>,
    ) -> Result<Self, Refused<(CmId<Connected>, XrcReceiver<Rts>)>> {
        let expected = id.expected_qp_num();
        if expected == Some(qp.qp_num()) {
            return Ok(Self { qp, id });
        }
        let error = wrong_qp("XrcConnection::new", qp.qp_num(), expected);
        let value = (id, qp);
        Err(Refused { value, error })
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
    pub fn qp(&self) -> &XrcReceiver<Rts> {
        &self.qp
    }

    /// `rdma_disconnect`—Ends the connection, or answers the peer's disconnect; like
    /// [`Connection::disconnect`](crate::Connection::disconnect).
    ///
    /// # Errors
    /// - `EINVAL`: the connection has already ended.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<()> {
        // SAFETY: the identifier exists for as long as `self` lives.
        let ret = unsafe { ffi::rdma_disconnect(self.id.as_raw()) };
        cvt_neg("rdma_disconnect", ret).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xrc_end_matches_c() {
        assert_eq!(XrcEnd::Send.to_raw(), ibv_qp_type::IBV_QPT_XRC_SEND);
        assert_eq!(XrcEnd::Receive.to_raw(), ibv_qp_type::IBV_QPT_XRC_RECV);
        assert_eq!(
            (XrcEnd::Send.to_raw().0, XrcEnd::Receive.to_raw().0),
            (9, 10)
        );
    }
}
