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
    param::PeerParam, registry::Key,
};

/// The half-open connections of a listener. Their events come to one channel, so that a peer that does not complete
/// its handshake holds up no other.
pub(crate) struct Handshakes<SW, RW> {
    // Destroyed before the identifiers, which the channel has.
    half_open: Mutex<Vec<HalfOpen<SW, RW>>>,
    channel: EventChannel,
}

struct HalfOpen<SW, RW> {
    key: Key,
    qp: QueuePair<verbs::Rc, Rts, SW, RW>,
    queues: Queues,
    peer: PeerParam,
    timeout: Option<Duration>,
}

impl<SW: 'static, RW: 'static> Handshakes<SW, RW> {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            half_open: Mutex::default(),
            channel: EventChannel::new()?,
        })
    }

    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HalfOpen<SW, RW>>> {
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
        let displaced = (half_open.len() >= limit).then(|| half_open.remove(0));
        let qp = request.accept(qp, &choices.param)?;
        half_open.push(HalfOpen {
            key,
            qp,
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

    /// Takes the next connection whose peer has completed its handshake, if there is one. Never blocks.
    pub(super) fn try_next(&self) -> Result<Option<Endpoint<SW, RW>>> {
        // Held until the identifier has a channel of its own, so that no other thread takes its later events.
        let mut half_open = self.lock();
        let mut take = |key| {
            let found = half_open.iter().position(|entry| entry.key == key)?;
            Some(half_open.remove(found))
        };
        while let Some(event) = self.channel.try_next()? {
            match event {
                Event::Established(mut id) => {
                    let Some(entry) = take(id.key()) else {
                        continue;
                    };
                    let channel = EventChannel::new()?;
                    id.migrate(&channel)?;
                    let connection = Connection::new(id, entry.qp)?;
                    let HalfOpen {
                        peer,
                        queues,
                        timeout,
                        ..
                    } = entry;
                    let endpoint = Endpoint::new(connection, peer, queues, channel, timeout);
                    return Ok(Some(endpoint));
                }
                Event::ConnectFailed { id, .. } => drop(take(id.key())),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl<SW, RW> fmt::Debug for Handshakes<SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
