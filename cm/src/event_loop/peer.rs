//! State of one connection in the event loop.

use std::io;

use verbs::{WcStatus, WorkCompletion, cq::WcError};

use super::{
    Failure,
    protocol::{Next, Protocol, Qp},
};
use crate::{CmId, Connection, Key, Refused, phases::Connected};

/// A connection before or after establishment, and the protocol's state.
pub(super) struct Peer<P: Protocol> {
    pub(super) key: Key,
    pub(super) state: P::State,
    link: Link<P>,
    end: End<P::Error>,
}

enum Link<P: Protocol> {
    /// Accepted, but not established yet.
    Accepted(Qp<P>),
    Established(Connection<P::Send, P::Receive>),
}

enum End<E> {
    NotYet,
    /// The protocol is done; disconnect once established. On iWARP the protocol can finish before the
    /// established event arrives.
    Wanted,
    /// This side has disconnected, the peer has not answered yet.
    Asked,
    /// Ended; removed once all requests in flight have been flushed, where the device flushes them.
    Ended {
        outcome: Result<(), E>,
        flushed: bool,
    },
}

impl<P: Protocol> Peer<P> {
    pub(super) fn accepted(key: Key, qp: Qp<P>, state: P::State) -> Self {
        Self {
            key,
            state,
            link: Link::Accepted(qp),
            end: End::NotYet,
        }
    }

    pub(super) fn established(
        connection: Connection<P::Send, P::Receive>,
        state: P::State,
    ) -> Self {
        Self {
            key: connection.key(),
            state,
            link: Link::Established(connection),
            end: End::NotYet,
        }
    }

    /// Attaches the identifier delivered with the established event.
    pub(super) fn join(self, id: CmId<Connected>) -> Result<Self, Failure> {
        let link = match self.link {
            Link::Accepted(qp) => {
                Link::Established(Connection::new(id, qp).map_err(|Refused { error, .. }| error)?)
            }
            established @ Link::Established(_) => established,
        };
        Ok(Self { link, ..self })
    }

    pub(super) fn qp(&self) -> &Qp<P> {
        match &self.link {
            Link::Accepted(qp) => qp,
            Link::Established(connection) => connection.qp(),
        }
    }

    pub(super) fn begin(&mut self, protocol: &mut P) {
        if let End::Ended { .. } = self.end {
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
    pub(super) fn complete(&mut self, wc: WorkCompletion<'_>, protocol: &mut P) {
        let qp = link_qp(&mut self.link);
        let next = match qp.complete(wc) {
            Err(_) => Err(Failure::StaleCompletion.into()),
            Ok(done) => match done.ok() {
                Ok(()) => protocol.completed(&mut self.state, qp, done),
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

    fn go_on(&mut self, next: Next) -> Result<(), P::Error> {
        match (next, &self.end, &mut self.link) {
            (Next::Disconnect, End::NotYet, Link::Accepted(_)) => self.end = End::Wanted,
            (Next::Disconnect, End::NotYet | End::Wanted, Link::Established(connection)) => {
                self.end = End::Asked;
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

    /// Flushes all requests in flight.
    pub(super) fn end(&mut self, outcome: Result<(), P::Error>) {
        let flushed = match (&self.end, &mut self.link) {
            (End::Ended { .. }, _) => return,
            (End::Asked, _) => Ok(()),
            (End::NotYet | End::Wanted, Link::Accepted(qp)) => qp.to_error(),
            (End::NotYet | End::Wanted, Link::Established(connection)) => {
                unless_ended(connection.disconnect())
            }
        };
        // On iWARP the kernel may have closed the queue pair already; requests in flight never complete then.
        let iwarp = self.qp().pd().context().is_iwarp();
        self.end = End::Ended {
            flushed: flushed.is_ok() && !iwarp,
            outcome: outcome.and(flushed.map_err(|err| Failure::from(err).into())),
        };
    }

    /// Ends the connection without waiting for requests in flight: the caller drops the queue pair at once.
    pub(super) fn abandon(&mut self, outcome: Result<(), P::Error>) {
        if !matches!(self.end, End::Ended { .. }) {
            self.end = End::Ended {
                outcome,
                flushed: false,
            };
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        let qp = self.qp();
        let in_flight = qp.send_queue().in_flight() + qp.receive_queue().in_flight();
        match self.end {
            End::NotYet | End::Wanted | End::Asked => false,
            End::Ended { flushed, .. } => in_flight == 0 || !flushed,
        }
    }

    /// Returns the outcome of the connection.
    pub(super) fn outcome(self, protocol: &mut P) -> Result<(), P::Error> {
        let closed = protocol.closed(self.state);
        match self.end {
            End::Ended { outcome, .. } => outcome.and(closed),
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

fn link_qp<P: Protocol>(link: &mut Link<P>) -> &mut Qp<P> {
    match link {
        Link::Accepted(qp) => qp,
        Link::Established(connection) => connection.qp_mut(),
    }
}
