//! Spans and events for the crate `tracing`, with the target `cm`. Without the feature `tracing` nothing of this exists, and
//! [`note`] expands to nothing. Nothing that posts or polls is in here.
//!
//! A subscriber is code of the program: no lock of this crate is held while one runs.

/// Emits an event in the span of an identifier: `note!(level, id, fields…, "text")`.
macro_rules! note {
    ($level:ident, $id:expr, $($event:tt)+) => {{
        #[cfg(feature = "tracing")]
        $id.span().run(|| {
            tracing::$level!(target: "cm", $($event)+);
        });
    }};
}
pub(crate) use note;

#[cfg(feature = "tracing")]
pub(crate) use enabled::*;

#[cfg(feature = "tracing")]
mod enabled {
    use std::{
        fmt,
        sync::{Arc, Once},
    };

    use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask};
    use tracing::{
        Span, debug,
        field::{self, display},
        span::Entered,
        warn,
    };
    use verbs::{Gid, attr::Mtu, qp::QpNum};

    use crate::{
        addr::Addr,
        channel::ChannelHandle,
        event::{ConnectFailure, Event, event_name},
        id::{CmId, RawId},
        phases::IdPhase,
        registry::Key,
    };

    /// The span of an identifier, shared with the registry of the channel, for events that carry only the key.
    #[derive(Clone, Debug)]
    pub(crate) struct IdSpan(Arc<Recorded>);

    /// A span with each of its later fields recorded once: formatters print a field for every record.
    #[derive(Debug)]
    struct Recorded {
        span: Span,
        peer: Once,
        qp: Once,
    }

    impl IdSpan {
        /// The span of an identifier not seen by any subscriber yet.
        pub(crate) fn none() -> Self {
            Self::of(Span::none())
        }

        fn new(key: Key) -> Self {
            // The level at which the span is still there for the failures.
            let (key, empty) = (key.number(), field::Empty);
            Self::of(tracing::warn_span!(target: "cm", "cm_id", key, peer = empty, qp = empty))
        }

        /// Whether a subscriber may have seen the identifier.
        pub(crate) fn has_begun(&self) -> bool {
            !self.0.span.is_none()
        }

        fn of(span: Span) -> Self {
            let (peer, qp) = (Once::new(), Once::new());
            Self(Arc::new(Recorded { span, peer, qp }))
        }

        /// Enters the span, so that events of `verbs` have this context.
        pub(crate) fn enter(&self) -> Entered<'_> {
            self.0.span.enter()
        }

        /// Enters the span, with the queue pair of the identifier.
        pub(crate) fn enter_for(&self, qp: QpNum) -> Entered<'_> {
            self.set_qp(qp);
            self.enter()
        }

        /// Runs a call in the span.
        pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> R {
            self.0.span.in_scope(call)
        }

        fn record(&self, once: &Once, name: &str, value: impl fmt::Display) {
            once.call_once(|| {
                self.0.span.record(name, display(value));
            });
        }

        pub(crate) fn set_peer(&self, peer: Addr) {
            self.record(&self.0.peer, "peer", peer);
        }

        pub(crate) fn set_qp(&self, qp: QpNum) {
            self.record(&self.0.qp, "qp", qp);
        }
    }

    impl RawId {
        /// Begins the span of a new identifier.
        pub(crate) fn begin_span(&mut self) {
            let span = IdSpan::new(self.key());
            if let Some(peer) = self.any_peer_addr() {
                span.set_peer(peer);
            }
            self.channel().registry().set_span(self.key(), span.clone());
            self.set_span(span);
        }
    }

    impl<P: IdPhase> CmId<P> {
        pub(crate) fn span(&self) -> &IdSpan {
            self.raw().span()
        }
    }

    /// Reports an event about to be returned to the program.
    pub(crate) fn delivered(mut event: Event, channel: &ChannelHandle) -> Event {
        match &mut event {
            Event::AddrInfoResolved { id, found } => {
                let found = found.len();
                note!(debug, id, found, "name looked up");
            }
            Event::AddrInfoError { id, error } => note!(warn, id, %error, "name not looked up"),
            Event::AddrResolved(id) => {
                let (local, gid) = (id.any_local_addr().map(display), id.local_gid());
                note!(debug, id, local, %gid, "address resolved");
            }
            Event::AddrError { id, error } => note!(warn, id, %error, "address not resolved"),
            Event::RouteResolved(id) => {
                let (gid, peer_gid) = (id.local_gid(), id.peer_gid());
                note!(debug, id, %gid, %peer_gid, "route resolved");
            }
            Event::RouteError { id, error } => note!(warn, id, %error, "route not resolved"),
            Event::ConnectRequest(request) => {
                let (listener, peer_qp) = (request.listener().number(), request.param().qp_num);
                let id = request.id_mut();
                id.raw_mut().begin_span();
                let gid = id.local_gid();
                note!(debug, id, listener, %gid, %peer_qp, "connection requested by the peer");
            }
            Event::ServiceRequest(request) => {
                let listener = request.listener().number();
                let id = request.id_mut();
                id.raw_mut().begin_span();
                note!(
                    debug,
                    id,
                    listener,
                    "datagram address requested by the peer"
                );
            }
            Event::ConnectResponse(response) => {
                let peer_qp = response.param().qp_num;
                note!(debug, response.id(), %peer_qp, "accepted by the peer");
            }
            Event::ConnectFailed { id, failure } => note!(warn, id, %failure, "not connected"),
            Event::Established(id) => note!(debug, id, "established"),
            Event::ServiceResolved { id, peer } => {
                note!(debug, id, peer_qp = %peer.qp_num, "datagram address resolved");
            }
            other => notified(other, channel),
        }
        event
    }

    /// Reports an event with only the key of its identifier.
    fn notified(event: &Event, channel: &ChannelHandle) {
        let of = |key: Key| channel.registry().span(key).unwrap_or_else(IdSpan::none);
        match event {
            Event::MulticastJoined { key, group } => of(*key).run(|| {
                let gid = group.vector.grh.map(|route| display(route.dgid));
                debug!(target: "cm", addr = %group.addr, gid, "multicast group joined");
            }),
            Event::MulticastFailed { key, addr, error } => of(*key).run(|| {
                warn!(target: "cm", %addr, %error, "multicast group not joined");
            }),
            Event::Disconnected { key, cause } => of(*key).run(|| disconnected(cause.as_ref())),
            Event::DeviceRemoval(key) => of(*key).run(|| {
                warn!(target: "cm", "device removed");
            }),
            Event::AddrChange(key) => of(*key).run(|| {
                warn!(target: "cm", "local address moved to another device");
            }),
            Event::TimewaitExit(key) => of(*key).run(|| {
                debug!(target: "cm", "timewait state over");
            }),
            Event::Other { key, event, status } => of(*key).run(|| {
                let event = event_name(*event);
                debug!(target: "cm", event, status, "event ignored");
            }),
            Event::User { key, status, arg } => of(*key).run(|| {
                debug!(target: "cm", status, arg, "user event");
            }),
            // Reported with its identifier.
            _ => {}
        }
    }

    /// Reports a queue pair brought up with these attributes for `Rtr`, in the span entered by the caller.
    pub(crate) fn ready((attr, mask): (&ibv_qp_attr, u32)) {
        let has = |bit: ibv_qp_attr_mask| mask & bit.0 != 0;
        let peer_qp = has(ibv_qp_attr_mask::IBV_QP_DEST_QPN)
            .then(|| display(QpNum::from_low_bits(attr.dest_qp_num)));
        let is_global = has(ibv_qp_attr_mask::IBV_QP_AV) && attr.ah_attr.is_global != 0;
        let peer_gid = is_global.then(|| display(Gid::from(attr.ah_attr.grh.dgid)));
        let mtu = Mtu(attr.path_mtu.0).bytes();
        debug!(target: "cm", peer_qp, peer_gid, mtu, "queue pair ready to send");
    }

    fn disconnected(cause: Option<&ConnectFailure>) {
        match cause {
            None => debug!(target: "cm", "disconnected"),
            Some(cause) => warn!(target: "cm", %cause, "connection lost"),
        }
    }
}
