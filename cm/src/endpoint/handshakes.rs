//! Connections that a listener has accepted, and whose peers have not completed the handshake.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use verbs::{QueuePair, Result, Rts};

use super::{EndpointBuilder, Queues, connected::Endpoint};
use crate::{
    accept::ConnectRequest, channel::EventChannel, connection::Connection, event::Event, id::CmId,
    param::PeerParam, phases::Connected, registry::Key,
};

/// The half-open connections of a listener. Their events come to one channel, so that a peer that does not complete
/// its handshake holds up no other.
pub(crate) struct Handshakes<SW, RW> {
    // Destroyed before the identifiers, which the channel has.
    half_open: Mutex<Entries<SW, RW>>,
    channel: EventChannel,
}

/// In the order of their requests.
struct Entries<SW, RW>(Vec<HalfOpen<SW, RW>>);

struct HalfOpen<SW, RW> {
    key: Key,
    qp: QueuePair<verbs::Rc, Rts, SW, RW>,
    /// Once the peer has completed its handshake.
    established: Option<CmId<Connected>>,
    queues: Queues,
    peer: PeerParam,
    timeout: Option<Duration>,
}

impl<SW: 'static, RW: 'static> Handshakes<SW, RW> {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            half_open: Mutex::new(Entries(Vec::new())),
            channel: EventChannel::new()?,
        })
    }

    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    fn lock(&self) -> MutexGuard<'_, Entries<SW, RW>> {
        self.half_open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        let limit = usize::try_from(choices.backlog.max(1)).unwrap_or(usize::MAX);
        // Held while the request is accepted, so that another thread does not take the next event of the identifier
        // before there is an entry for it.
        let mut half_open = self.lock();
        let displaced = (half_open.0.len() >= limit).then(|| half_open.0.remove(0));
        let qp = request.accept(qp, &choices.param)?;
        half_open.0.push(HalfOpen {
            key,
            qp,
            established: None,
            queues,
            peer,
            timeout: choices.timeout,
        });
        drop(half_open);
        if let Some(HalfOpen { key, qp, .. }) = displaced {
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
        let mut half_open = self.lock();
        loop {
            if let Some(endpoint) = half_open.take_established()? {
                return Ok(Some(endpoint));
            }
            let Some(event) = self.channel.try_next()? else {
                return Ok(None);
            };
            match event {
                Event::Established(id) => half_open.establish(id),
                Event::ConnectFailed { id, .. } => half_open.remove(id.key()),
                _ => {}
            }
        }
    }
}

impl<SW, RW> Entries<SW, RW> {
    fn position(&self, key: Key) -> Option<usize> {
        self.0.iter().position(|entry| entry.key == key)
    }

    /// Records the end of a handshake.
    fn establish(&mut self, id: CmId<Connected>) {
        if let Some(found) = self.position(id.key()) {
            self.0[found].established = Some(id);
        }
    }

    /// Drops a connection that the peer has given up.
    fn remove(&mut self, key: Key) {
        if let Some(found) = self.position(key) {
            drop(self.0.remove(found));
        }
    }

    /// Makes an endpoint of an established connection, if there is one.
    fn take_established(&mut self) -> Result<Option<Endpoint<SW, RW>>> {
        let Some(index) = (self.0.iter()).position(|entry| entry.established.is_some()) else {
            return Ok(None);
        };
        // Needs descriptors, and there may be none.
        let channel = EventChannel::new()?;
        if let Some(id) = &mut self.0[index].established {
            id.migrate(&channel)?;
        }
        let HalfOpen {
            qp,
            established,
            queues,
            peer,
            timeout,
            ..
        } = self.0.remove(index);
        let connection = established.map(|id| Connection::new(id, qp)).transpose()?;
        Ok(connection.map(|connection| Endpoint::new(connection, peer, queues, channel, timeout)))
    }
}

impl<SW, RW> fmt::Debug for Handshakes<SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
