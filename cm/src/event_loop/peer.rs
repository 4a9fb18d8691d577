//! State of one connection in the event loop.

use std::{io, net::SocketAddr, time::Instant};

use verbs::{WcStatus, WorkCompletion, cq::WcError};

use super::{
    Failure,
    protocol::{Next, Protocol, Qp},
    settings::Settings,
};
use crate::{
    CmId, ConnectFailure, Connection, Key, Refused,
    by_address::{PeerIp, Serial, peer_ip},
    phases::Connected,
};

/// A connection before or after establishment, and the protocol's state.
pub(super) struct Peer<P: Protocol> {
    pub(super) key: Key,
    /// Address counted for the connection, and the number among the connections of the address.
    pub(super) addr: PeerIp,
    pub(super) serial: Serial,
    /// Time of the last completion, or of the start of the current stage: half-open, established or ending.
    pub(super) since: Instant,
    /// Earliest entry of the connection in the timers.
    pub(super) timer: Option<Instant>,
    pub(super) state: P::State,
    link: PeerLink<P>,
    end: End<P::Error>,
}

enum PeerLink<P: Protocol> {
    /// Accepted, but not established yet.
    Accepted(Qp<P>),
    Established(Connection<P::Send, P::Receive>),
}

enum End<E> {
    NotYet,
    /// The protocol is done; disconnect once established. On iWARP the protocol can finish before the
    /// established event arrives.
    Wanted,
    /// The protocol has failed before the established event, which a message may overtake; disconnect once established. An end
    /// before would reject the connection, although the peer has it already.
    Failed(E),
    /// This side has disconnected, the peer has not answered yet.
    Asked,
    /// Ended; removed once all requests in flight have been flushed, where the device flushes them.
    Ended {
        outcome: Result<(), E>,
        flushed: bool,
    },
}

impl<P: Protocol> Peer<P> {
    pub(super) fn accepted((key, addr): (Key, PeerIp), qp: Qp<P>, state: P::State) -> Self {
        Self::new((key, addr), PeerLink::Accepted(qp), state)
    }

    fn new((key, addr): (Key, PeerIp), link: PeerLink<P>, state: P::State) -> Self {
        Self {
            key,
            addr,
            serial: 0,
            since: Instant::now(),
            timer: None,
            state,
            link,
            end: End::NotYet,
        }
    }

    pub(super) fn established(
        connection: Connection<P::Send, P::Receive>,
        state: P::State,
    ) -> Self {
        let peer = (connection.key(), peer_ip(connection.id()));
        Self::new(peer, PeerLink::Established(connection), state)
    }

    /// Attaches the identifier delivered with the established event.
    pub(super) fn join(self, id: CmId<Connected>) -> Result<Self, Failure> {
        let link = match self.link {
            PeerLink::Accepted(qp) => PeerLink::Established(
                Connection::new(id, qp).map_err(|Refused { error, .. }| error)?,
            ),
            established @ PeerLink::Established(_) => established,
        };
        Ok(Self { link, ..self })
    }

    /// Whether the connection is established, and neither side has ended it.
    pub(super) fn is_established(&self) -> bool {
        matches!(
            (&self.link, &self.end),
            (PeerLink::Established(_), End::NotYet | End::Wanted)
        )
    }

    pub(super) fn parts_mut(&mut self) -> (&mut P::State, &mut Qp<P>) {
        (&mut self.state, link_qp(&mut self.link))
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.link {
            PeerLink::Accepted(_) => None,
            PeerLink::Established(connection) => connection.id().peer_addr(),
        }
    }

    /// Deadline of the current stage.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let timeout = match (&self.link, &self.end) {
            (PeerLink::Accepted(_), End::NotYet | End::Wanted | End::Failed(_)) => {
                settings.accept_timeout()
            }
            (PeerLink::Established(_), End::NotYet | End::Wanted | End::Failed(_)) => {
                settings.idle_timeout?
            }
            (_, End::Asked | End::Ended { .. }) => settings.disconnect_timeout,
        };
        self.since.checked_add(timeout)
    }

    /// The failure of a connection whose deadline has passed.
    pub(super) fn expiry(&self) -> Failure {
        match (&self.link, &self.end) {
            (PeerLink::Accepted(_), End::NotYet | End::Wanted | End::Failed(_)) => {
                Failure::HandshakeTimeout
            }
            (PeerLink::Established(_), End::NotYet | End::Wanted | End::Failed(_)) => {
                Failure::IdleTimeout
            }
            (_, End::Asked | End::Ended { .. }) => Failure::DisconnectTimeout,
        }
    }

    pub(super) fn qp(&self) -> &Qp<P> {
        match &self.link {
            PeerLink::Accepted(qp) => qp,
            PeerLink::Established(connection) => connection.qp(),
        }
    }

    pub(super) fn begin(&mut self, protocol: &mut P) {
        if let End::Ended { .. } = self.end {
            return;
        }
        self.since = Instant::now();
        if let End::Failed(_) = self.end {
            self.end(Ok(()));
            return;
        }
        let begun = protocol.established(&mut self.state, link_qp(&mut self.link));
        let next = match self.end {
            End::Wanted => Next::Disconnect,
            _ => Next::Wait,
        };
        if let Err(err) = begun.and_then(|()| self.go_on(next)) {
            self.end(Err(err));
        }
    }

    /// Passes a completion to the protocol.
    pub(super) fn complete(&mut self, wc: WorkCompletion<'_>, protocol: &mut P, now: Instant) {
        if self.is_established() {
            self.since = now;
        }
        let is_accepted = matches!(self.link, PeerLink::Accepted(_));
        let qp = link_qp(&mut self.link);
        let next = match qp.complete(wc) {
            Err(_) => Err(Failure::StaleCompletion.into()),
            Ok(done) => match done.ok() {
                // The protocol is not asked again after its failure.
                Ok(()) if matches!(self.end, End::Failed(_)) => return,
                Ok(()) => {
                    let receives = qp.receive_queue().in_flight();
                    let next = protocol.completed(&mut self.state, qp, done);
                    let has_posted = qp.receive_queue().in_flight() > receives;
                    match next {
                        Err(err) if is_accepted => {
                            self.end = End::Failed(err);
                            return;
                        }
                        next => next.and_then(|next| {
                            self.flush_later_receives(has_posted)?;
                            Ok(next)
                        }),
                    }
                }
                // The connection has ended; an event reports this as well.
                Err(err) if is_end::<P>(&err, qp) => Ok(Next::Wait),
                // The peer has disconnected before the acknowledgement of the last message arrived.
                Err(err)
                    if err.status == WcStatus::RETRY_EXC_ERR && protocol.is_over(&self.state) =>
                {
                    self.end(Ok(()));
                    return;
                }
                Err(err) => Err(Failure::from(err).into()),
            },
        };
        match next.and_then(|next| self.go_on(next)) {
            Ok(()) => {}
            Err(err) => self.end(Err(err)),
        }
    }

    /// Flushes receives posted after the end: see [`Ending::advance`](crate::endpoint::Ending::advance).
    fn flush_later_receives(&mut self, has_posted: bool) -> Result<(), Failure> {
        let is_flushed = matches!(self.end, End::Asked | End::Ended { flushed: true, .. });
        let qp = link_qp(&mut self.link);
        if has_posted && is_flushed && !qp.pd().context().is_iwarp() {
            qp.to_error()?;
        }
        Ok(())
    }

    fn go_on(&mut self, next: Next) -> Result<(), P::Error> {
        match (next, &self.end, &mut self.link) {
            (Next::Disconnect, End::NotYet, PeerLink::Accepted(_)) => self.end = End::Wanted,
            (Next::Disconnect, End::NotYet | End::Wanted, PeerLink::Established(connection)) => {
                self.end = End::Asked;
                self.since = Instant::now();
                unless_ended(connection.disconnect()).map_err(Failure::from)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Disconnects, or will once the connection is established.
    pub(super) fn stop(&mut self) {
        if let Err(err) = self.go_on(Next::Disconnect) {
            self.end(Err(err));
        }
    }

    /// Ends the connection because of an event of the connection manager: `cause` unless either side has disconnected.
    pub(super) fn end_by_event(&mut self, cause: Option<ConnectFailure>, protocol: &P) {
        let failed = cause.filter(|_| !protocol.is_over(&self.state));
        self.end(failed.map_or(Ok(()), |cause| Err(Failure::from(cause).into())));
    }

    /// Flushes all requests in flight. An earlier failure of the protocol is the outcome.
    pub(super) fn end(&mut self, outcome: Result<(), P::Error>) {
        let flushed = match (&self.end, &mut self.link) {
            (End::Ended { .. }, _) => return,
            (End::Asked, _) => Ok(()),
            (_, PeerLink::Accepted(qp)) => qp.to_error(),
            (_, PeerLink::Established(connection)) => unless_ended(connection.disconnect()),
        };
        let outcome = self.take_failure().map_or(outcome, Err);
        self.since = Instant::now();
        // On iWARP the kernel may have closed the queue pair already; requests in flight never complete then.
        let iwarp = self.qp().pd().context().is_iwarp();
        self.end = End::Ended {
            flushed: flushed.is_ok() && !iwarp,
            outcome: outcome.and(flushed.map_err(|err| Failure::from(err).into())),
        };
    }

    /// Ends the connection without waiting for requests in flight: the caller drops the queue pair at once.
    pub(super) fn abandon(&mut self, outcome: Result<(), P::Error>) {
        let outcome = self.take_failure().map_or(outcome, Err);
        if !matches!(self.end, End::Ended { .. }) {
            self.end = End::Ended {
                outcome,
                flushed: false,
            };
        }
    }

    /// The failure of the protocol before the established event.
    fn take_failure(&mut self) -> Option<P::Error> {
        match std::mem::replace(&mut self.end, End::Wanted) {
            End::Failed(err) => Some(err),
            end => {
                self.end = end;
                None
            }
        }
    }

    /// Whether the end has been noticed.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.end, End::Ended { .. })
    }

    pub(super) fn is_gone(&self) -> bool {
        let qp = self.qp();
        let in_flight = qp.send_queue().in_flight() + qp.receive_queue().in_flight();
        match self.end {
            End::NotYet | End::Wanted | End::Failed(_) | End::Asked => false,
            End::Ended { flushed, .. } => in_flight == 0 || !flushed,
        }
    }

    /// Returns the outcome of the connection.
    pub(super) fn outcome(self, protocol: &mut P) -> Result<(), P::Error> {
        let closed = protocol.closed(self.state);
        match self.end {
            End::Ended { outcome, .. } => outcome.and(closed),
            End::Failed(err) => Err(err),
            End::NotYet | End::Wanted | End::Asked => closed,
        }
    }
}

/// Whether a request has failed only because the connection has ended.
///
/// On iWARP a peer may disconnect as soon as the last message has arrived, and the request fails if the
/// kernel has not completed the send by then.
fn is_end<P: Protocol>(err: &WcError, qp: &Qp<P>) -> bool {
    match err.status {
        WcStatus::WR_FLUSH_ERR => true,
        WcStatus::LOC_QP_OP_ERR => qp.pd().context().is_iwarp(),
        _ => false,
    }
}

/// Ignores the error of a disconnect that raced with the peer's.
fn unless_ended(disconnected: verbs::Result<()>) -> verbs::Result<()> {
    disconnected.or_else(|err| match err.kind() {
        io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(err),
    })
}

fn link_qp<P: Protocol>(link: &mut PeerLink<P>) -> &mut Qp<P> {
    match link {
        PeerLink::Accepted(qp) => qp,
        PeerLink::Established(connection) => connection.qp_mut(),
    }
}
