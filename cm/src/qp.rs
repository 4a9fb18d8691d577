//! State transitions of queue pairs with the attributes of the connection manager.

use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask};
use rdmacm_sys as ffi;
use verbs::{
    Context, Error, Init, QueuePair, Reset, Result, Rtr, Rts, Ud,
    error::{Refused, cvt_neg},
    qp::{Attributes, Psn, Queued, Routed, State, Transport, XrcReceiver, XrcRecv},
};

use crate::{
    depths::Depths,
    event::ConnectFailure,
    id::CmId,
    phase::Phase,
    phases::{HasDevice, IdPhase},
};

/// Attribute mask bits reported by kernels of 2014 and 2015, and accepted by no call.
const KERNEL_INTERNAL: u32 = 0xf << 21;

impl<P: HasDevice> CmId<P> {
    /// `rdma_init_qp_attr`—Moves a queue pair on the identifier's device to [`Init`](verbs::Init), ready for
    /// receives.
    ///
    /// # Errors
    /// - `InvalidInput`: the identifier is for another transport.
    /// - Any error of [`ibv_modify_qp`](QueuePair::to_init).
    ///
    /// On an error the queue pair is returned.
    ///
    /// # References
    /// [rdma_create_qp(3)](https://man7.org/linux/man-pages/man3/rdma_create_qp.3.html)
    #[doc(alias = "rdma_init_qp_attr")]
    #[doc(alias = "rdma_create_qp")]
    #[doc(alias = "rdma_create_qp_ex")]
    #[doc(alias = "rdma_destroy_qp")]
    #[expect(
        clippy::type_complexity,
        reason = "the queue pair that the caller gave"
    )]
    pub fn init_qp<T: Routed + Queued, SW, RW>(
        &self,
        qp: QueuePair<T, Reset, SW, RW>,
    ) -> Result<QueuePair<T, Init, SW, RW>, Refused<QueuePair<T, Reset, SW, RW>>> {
        let attributes = self
            .check_transport::<T>("rdma_init_qp_attr")
            .and_then(|()| self.attributes());
        #[cfg(feature = "tracing")]
        let _entered = self.span().enter_for(qp.qp_num());
        match attributes {
            Ok(attributes) => qp.to_init(&attributes),
            Err(error) => Err(Refused { value: qp, error }),
        }
    }
}

impl<P: HasDevice> CmId<P> {
    /// `rdma_init_qp_attr`—Moves the receiving end of an extended reliable connection to
    /// [`Init`](verbs::Init); like [`init_qp`](Self::init_qp).
    ///
    /// # Errors
    /// As for [`init_qp`](Self::init_qp).
    #[doc(alias = "rdma_create_qp")]
    pub fn init_xrc_receiver(
        &self,
        qp: XrcReceiver<Reset>,
    ) -> Result<XrcReceiver<Init>, Refused<XrcReceiver<Reset>>> {
        let attributes = self
            .check_transport::<XrcRecv>("rdma_init_qp_attr")
            .and_then(|()| self.attributes());
        match attributes {
            Ok(attributes) => qp.to_init(&attributes),
            Err(error) => Err(Refused { value: qp, error }),
        }
    }
}

impl<P: IdPhase> CmId<P> {
    /// `rdma_init_qp_attr`—Moves a datagram queue pair on the identifier's device to RTS. No peer is needed,
    /// only an identifier [bound](CmId::bind) to the address of a device. The queue pair accepts datagrams
    /// with the port space's Q_Key, by default 0x01234567.
    ///
    /// # Errors
    /// - `InvalidInput`: the identifier is not for datagrams.
    /// - `EINVAL`: the identifier has no device yet.
    /// - Any error of [`ibv_modify_qp`](QueuePair::to_init).
    ///
    /// # References
    /// [rdma_create_qp(3)](https://man7.org/linux/man-pages/man3/rdma_create_qp.3.html)
    #[doc(alias = "rdma_init_qp_attr")]
    #[doc(alias = "rdma_create_qp")]
    pub fn ready_datagram_qp<SW, RW>(
        &self,
        qp: QueuePair<Ud, Reset, SW, RW>,
    ) -> Result<QueuePair<Ud, Rts, SW, RW>> {
        self.check_transport::<Ud>("rdma_init_qp_attr")?;
        let qp = qp.to_init(&self.attributes()?)?;
        let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new())?;
        Ok(qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))?)
    }
}

impl<P: IdPhase> CmId<P> {
    /// `rdma_init_qp_attr`—Attributes known by the connection manager for a transition to `S`, for queue
    /// pairs moved by the program with changes of its own.
    ///
    /// Pass the queue pair in RTS to
    /// [`ConnectResponse::establish_ready`](crate::ConnectResponse::establish_ready) or
    /// [`ConnectRequest::accept_ready`](crate::ConnectRequest::accept_ready).
    ///
    /// # Errors
    /// - `EINVAL`: the attributes are not known in this phase.
    ///
    /// # Examples
    /// ```no_run
    /// # fn f(
    /// #     response: cm::ConnectResponse,
    /// #     qp: verbs::QueuePair<verbs::Rc, verbs::Init>,
    /// # ) -> verbs::Result<()> {
    /// use verbs::{Rtr, Rts, attr::Mtu, qp::{Attributes, RnrTimer}};
    /// let to_rtr: Attributes<verbs::Rc, Rtr> = response.id().attributes()?;
    /// let qp = qp.to_rtr(&to_rtr.mtu(Mtu::B512).min_rnr_timer(RnrTimer::new(1)?))?;
    /// let to_rts: Attributes<verbs::Rc, Rts> = response.id().attributes()?;
    /// let connection = response.establish_ready(qp.to_rts(&to_rts)?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # References
    /// [rdma_init_qp_attr(3)](https://man7.org/linux/man-pages/man3/rdma_init_qp_attr.3.html)
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn attributes<T: Transport, S: State>(&self) -> Result<Attributes<T, S>> {
        let (attr, mask) = self.raw_attributes::<S>()?;
        Ok(Attributes::from_raw(attr, mask))
    }

    fn raw_attributes<S: State>(&self) -> Result<(ibv_qp_attr, u32)> {
        self.known_attributes::<S>()
            .map_err(|err| self.requested_failure(err))
    }

    fn known_attributes<S: State>(&self) -> Result<(ibv_qp_attr, u32)> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = S::RAW;
        let mut mask = 0;
        // SAFETY: the identifier exists for as long as `self` lives; `attr` and `mask` are valid for writes,
        // and C keeps no pointer to them.
        let ret = unsafe { ffi::rdma_init_qp_attr(self.as_raw(), &raw mut attr, &raw mut mask) };
        cvt_neg("rdma_init_qp_attr", ret).map_err(|err| err.detail(format!("to {}", S::NAME)))?;
        #[expect(clippy::cast_sign_loss, reason = "a mask, which C keeps in an int")]
        let mask = mask as u32;
        Ok((attr, mask & !KERNEL_INTERNAL))
    }

    /// Maps the failure of a call on a requested identifier. A request withdrawn by the peer still exists for
    /// the program until the event is read. The kernel has already removed the connection, and fails each
    /// call with `EINVAL`: this is the end of the peer, not an error of this side.
    pub(crate) fn requested_failure(&self, error: Error) -> Error {
        let unfinished = matches!(P::PHASE.0, Phase::Requested | Phase::Responded);
        let withdrawn = unfinished
            && error.raw_os_error() == Some(libc::EINVAL)
            && self.known_attributes::<Init>().is_err();
        if withdrawn {
            let call = error.call();
            return ConnectFailure::Disconnected.into_error(call);
        }
        error
    }

    /// Moves a queue pair to RTS, with at most `depths` reads and atomics at once; iWARP negotiates both by itself.
    pub(crate) fn bring_up<T: Routed + Queued, SW, RW>(
        &self,
        mut qp: QueuePair<T, Init, SW, RW>,
        depths: Depths,
    ) -> Result<QueuePair<T, Rts, SW, RW>> {
        #[cfg(feature = "tracing")]
        let _entered = self.span().enter_for(qp.qp_num());
        // Port and P_Key may have become known, or changed, since the initialization of the queue pair.
        qp.modify(&self.attributes()?)?;
        let limits = Limits::new(qp.pd().context(), depths)?;
        let to_rtr = self.to_rtr(limits)?;
        let qp = qp.to_rtr(&to_rtr)?;
        let (mut attr, mask) = self.raw_attributes::<Rts>()?;
        limits.apply(&mut attr);
        let qp = qp.to_rts(&Attributes::from_raw(attr, mask))?;
        #[cfg(feature = "tracing")]
        crate::trace::ready(to_rtr.as_raw());
        Ok(qp)
    }

    /// Like [`bring_up`](Self::bring_up), for an end without requests.
    pub(crate) fn bring_up_receiver(
        &self,
        mut qp: XrcReceiver<Init>,
        depths: Depths,
    ) -> Result<XrcReceiver<Rts>>
    where
        P: HasDevice,
    {
        qp.modify(&self.attributes()?)?;
        let limits = Limits::new(&self.context()?, depths)?;
        let qp = qp.to_rtr(&self.to_rtr(limits)?)?;
        Ok(qp.to_rts(&self.attributes()?)?)
    }

    fn to_rtr<T: Transport>(&self, limits: Limits) -> Result<Attributes<T, Rtr>> {
        let (mut attr, mask) = self.raw_attributes::<Rtr>()?;
        check_mtu(&attr, mask)?;
        limits.apply(&mut attr);
        Ok(Attributes::from_raw(attr, mask))
    }
}

/// The limits of this side for the depths of the peer.
#[derive(Clone, Copy)]
struct Limits {
    chosen: Depths,
    /// `None` on iWARP, where the kernel negotiates.
    device: Option<Depths>,
}

impl Limits {
    fn new(ctx: &Context, chosen: Depths) -> Result<Self> {
        let device = if ctx.is_iwarp() {
            None
        } else {
            Some(Depths::of_device(ctx)?)
        };
        Ok(Self { chosen, device })
    }

    /// Lowers the depths of the connection manager, which are the peer's.
    fn apply(self, attr: &mut ibv_qp_attr) {
        let Some(device) = self.device else {
            return;
        };
        let peer = Depths {
            responder_resources: attr.max_dest_rd_atomic,
            initiator_depth: attr.max_rd_atomic,
        };
        let in_force = self.chosen.in_force(peer, device);
        attr.max_dest_rd_atomic = in_force.responder_resources;
        attr.max_rd_atomic = in_force.initiator_depth;
    }
}

/// Refuses a path MTU outside of the codes 1 (256 bytes) to 5 (4096 bytes), as a failure of the peer. The kernel passes the code
/// of the peer's request on unchecked, and some devices accept any. The attributes of iWARP have no path MTU.
fn check_mtu(attr: &ibv_qp_attr, mask: u32) -> Result<()> {
    let code = attr.path_mtu.0;
    if mask & ibv_qp_attr_mask::IBV_QP_PATH_MTU.0 == 0 || (1..=5).contains(&code) {
        return Ok(());
    }
    let status = -libc::EINVAL;
    let failure = ConnectFailure::Failed { status }.into_error("ibv_modify_qp");
    Err(failure.detail(format!("the peer's path MTU has the unknown code {code}")))
}

#[cfg(test)]
mod tests {
    use ibverbs_sys::ibv_mtu;

    use super::*;
    use crate::endpoint::is_of_peer;

    #[test]
    fn unknown_path_mtu_is_a_failure_of_the_peer() {
        let mut attr = ibv_qp_attr::zeroed();
        let with_mtu = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0;
        for code in 0..=16 {
            attr.path_mtu = ibv_mtu(code);
            let is_known = (1..=5).contains(&code);
            let checked = check_mtu(&attr, with_mtu);
            assert_eq!(checked.is_ok(), is_known, "{code}");
            assert_eq!(
                checked.is_err_and(|err| is_of_peer(&err)),
                !is_known,
                "{code}"
            );
            check_mtu(&attr, !with_mtu).unwrap();
        }
    }
}
