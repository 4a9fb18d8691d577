//! Connections that a listener has accepted, and whose peers have not completed the handshake.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use verbs::{QueuePair, Result, Rts};

use super::{EndpointBuilder, Queues, connected::Endpoint};
use crate::{
    accept::ConnectRequest, channel::EventChannel, connection::Connection, event::Event,
    half_open::HalfOpen, id::CmId, param::PeerParam, phases::Connected,
};

/// The half-open connections of a listener. Their events come to one channel, so that a peer that does not complete
/// its handshake holds up no other.
pub(crate) struct Handshakes<SW, RW> {
    // Destroyed before the identifiers, which the channel has.
    entries: Mutex<Entries<SW, RW>>,
    channel: EventChannel,
}

struct Entries<SW, RW> {
    half_open: HalfOpen<Accepted<SW, RW>>,
    /// A complete handshake, until the program takes the connection.
    established: Option<(Accepted<SW, RW>, CmId<Connected>)>,
}

struct Accepted<SW, RW> {
    qp: QueuePair<verbs::Rc, Rts, SW, RW>,
    queues: Queues,
    peer: PeerParam,
    timeout: Option<Duration>,
}

impl<SW: 'static, RW: 'static> Handshakes<SW, RW> {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            entries: Mutex::new(Entries {
                half_open: HalfOpen::new(),
                established: None,
            }),
            channel: EventChannel::new()?,
        })
    }

    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    fn lock(&self) -> MutexGuard<'_, Entries<SW, RW>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a request, and does not wait for the peer. As many peers as the backlog has places can be half-open; one
    /// more ends the handshake that has taken longest.
    pub(super) fn begin(
        &self,
        mut request: ConnectRequest,
        choices: &EndpointBuilder,
    ) -> Result<()> {
        request.migrate(&self.channel)?;
        let (queues, qp) = Queues::with_qp(request.id(), choices)?;
        let (key, peer) = (request.id().key(), request.param().clone());
        let limit = usize::try_from(choices.backlog).unwrap_or(usize::MAX);
        // Held while the request is accepted, so that another thread does not take the next event of the identifier
        // before there is an entry for it.
        let mut entries = self.lock();
        let qp = request.accept(qp, &choices.param)?;
        let accepted = Accepted {
            qp,
            queues,
            peer,
            timeout: choices.timeout,
        };
        entries.half_open.add(key, accepted);
        let displaced = entries.half_open.displaced(limit);
        drop(entries);
        if let Some((key, Accepted { qp, .. })) = displaced {
            // Before the identifier.
            drop(qp);
            self.channel.cancel(key);
        }
        Ok(())
    }

    /// Takes the next connection whose peer has completed its handshake, if there is one. Never blocks. After an error,
    /// the connection stays for the next call.
    pub(super) fn try_next(&self) -> Result<Option<Endpoint<SW, RW>>> {
        // Held until the identifier has a channel of its own, so that no other thread takes its later events.
        let mut entries = self.lock();
        loop {
            if let Some(endpoint) = entries.take_established()? {
                return Ok(Some(endpoint));
            }
            let Some(event) = self.channel.try_next()? else {
                return Ok(None);
            };
            match event {
                Event::Established(id) => {
                    let accepted = entries.half_open.remove(id.key());
                    entries.established = accepted.map(|accepted| (accepted, id));
                }
                // The peer has given up.
                Event::ConnectFailed { id, .. } => drop(entries.half_open.remove(id.key())),
                _ => {}
            }
        }
    }
}

impl<SW, RW> Entries<SW, RW> {
    /// Makes an endpoint of an established connection, if there is one.
    fn take_established(&mut self) -> Result<Option<Endpoint<SW, RW>>> {
        let Some((_, id)) = &mut self.established else {
            return Ok(None);
        };
        // Needs descriptors, and there may be none.
        let channel = EventChannel::new()?;
        id.migrate(&channel)?;
        let Some((accepted, id)) = self.established.take() else {
            return Ok(None);
        };
        let Accepted {
            qp,
            queues,
            peer,
            timeout,
        } = accepted;
        let connection = Connection::new(id, qp)?;
        Ok(Some(Endpoint::new(
            connection, peer, queues, channel, timeout,
        )))
    }
}

impl<SW, RW> fmt::Debug for Handshakes<SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
