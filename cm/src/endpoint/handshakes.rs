//! Connections that a listener has accepted, and whose peers have not completed the handshake.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::AsFd as _,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::{Duration, Instant},
};

use verbs::{
    Error, Init, QueuePair, Result, Rts, cq::NoEntries, fd::wait_any_readable, waiting::EventFd,
};

use super::{EndpointBuilder, QueueChoice, Queues, Refusals, connected::Endpoint};
use crate::{
    accept::ConnectRequest,
    by_address::peer_ip,
    channel::EventChannel,
    connection::Connection,
    dial::Deadline,
    event::{ConnectFailure, Event},
    half_open::HalfOpen,
    id::CmId,
    param::PeerParam,
    phases::Connected,
    registry::Key,
};

const CALL: &str = "rdma_accept";

/// Interval between attempts to open a channel for an established connection while too many files are open.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The half-open connections of a listener. Their events come to one channel, so a half-open connection has no descriptors
/// for events of its own, and a peer that does not complete its handshake delays no other.
pub(crate) struct Handshakes<SW, RW, Q: QueueChoice> {
    // Destroyed before the identifiers, which the channel has.
    entries: Mutex<Entries<SW, RW, Q>>,
    /// Notified when an awaited handshake has ended, or when no thread sleeps on the channel any more.
    changed: Condvar,
    /// Notified when an awaited handshake has ended, for the thread that sleeps on the channel.
    event: EventFd,
    channel: EventChannel,
    timeout: Duration,
    limit: usize,
    /// Whether a call waits for each handshake, and takes its outcome. Otherwise connections are taken by any call, and
    /// failures are only counted.
    is_awaited: bool,
}

struct Entries<SW, RW, Q: QueueChoice> {
    half_open: HalfOpen<Accepted<SW, RW, Q>>,
    /// Ended handshakes until taken, in the order of their requests.
    ended: BTreeMap<Key, Ended<SW, RW, Q>>,
    /// Whether a blocked call sleeps on the channel, on behalf of all.
    is_watched: bool,
    refusals: Refusals,
}

/// A connection accepted by this side.
pub(crate) struct Accepted<SW, RW, Q: QueueChoice> {
    qp: QueuePair<verbs::Rc, Rts, SW, RW>,
    queues: Queues<Q>,
    peer: PeerParam,
    timeout: Option<Duration>,
    /// Task that waits for the outcome.
    waker: Option<Waker>,
}

enum Ended<SW, RW, Q: QueueChoice> {
    Established(Box<Established<SW, RW, Q>>),
    Failed(ConnectFailure),
}

/// A connection whose peer has completed the handshake, until a call takes it.
struct Established<SW, RW, Q: QueueChoice> {
    accepted: Accepted<SW, RW, Q>,
    id: CmId<Connected>,
    /// Events of its end that have been read meanwhile.
    events: Vec<Event>,
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Handshakes<SW, RW, Q> {
    pub(super) fn new(choices: &EndpointBuilder<Q>, is_awaited: bool) -> Result<Self> {
        Ok(Self {
            entries: Mutex::new(Entries {
                half_open: HalfOpen::new(),
                ended: BTreeMap::new(),
                is_watched: false,
                refusals: Refusals::default(),
            }),
            changed: Condvar::new(),
            event: EventFd::new()?,
            channel: choices.channel()?,
            timeout: choices.accept_timeout(),
            limit: usize::try_from(choices.backlog)
                .unwrap_or(usize::MAX)
                .max(1),
            is_awaited,
        })
    }

    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    fn lock(&self) -> MutexGuard<'_, Entries<SW, RW, Q>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn refusals(&self) -> Refusals {
        self.lock().refusals
    }

    /// Accepts a request, and does not wait for the peer. As many connections as the backlog has entries can be half-open;
    /// one more displaces another.
    pub(super) fn begin(
        &self,
        mut request: ConnectRequest,
        (queues, qp): (Queues<Q>, QueuePair<verbs::Rc, Init, SW, RW>),
        choices: &EndpointBuilder<Q>,
    ) -> Result<Key> {
        request.migrate(&self.channel)?;
        let (key, addr) = (request.id().key(), peer_ip(request.id()));
        let peer = request.param().clone();
        // Locked while the request is accepted, so that another thread does not take the next event of the identifier
        // before there is an entry for it.
        let mut entries = self.lock();
        let qp = request.accept(qp, &choices.conn_param())?;
        let accepted = Accepted {
            qp,
            queues,
            peer,
            timeout: choices.timeout,
            waker: None,
        };
        entries.half_open.add(key, addr, accepted);
        let is_full = entries.half_open.len() > self.limit;
        drop(entries);
        if is_full {
            self.displace();
        }
        Ok(key)
    }

    /// Ends the half-open connection that gives way to a new request. Returns false if there is none.
    pub(super) fn displace(&self) -> bool {
        let mut entries = self.lock();
        let Some((key, accepted)) = entries.half_open.displace() else {
            return false;
        };
        entries.refusals.displaced += 1;
        self.drop_half_open(entries, key, accepted, ConnectFailure::Displaced);
        true
    }

    /// Ends the connections that have been half-open for too long.
    fn expire(&self) {
        loop {
            let mut entries = self.lock();
            let Some((key, accepted)) = entries.half_open.expired(self.timeout, Instant::now())
            else {
                return;
            };
            entries.refusals.timed_out += 1;
            let failure = ConnectFailure::Unreachable {
                status: -libc::ETIMEDOUT,
            };
            self.drop_half_open(entries, key, accepted, failure);
        }
    }

    /// Time until the next connection has been half-open for too long, or until the next attempt for an established one that
    /// needs descriptors.
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        let entries = self.lock();
        if !entries.ended.is_empty() {
            return Some(RETRY_INTERVAL);
        }
        let at = entries.half_open.next_expiry(self.timeout)?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    fn drop_half_open(
        &self,
        mut entries: MutexGuard<'_, Entries<SW, RW, Q>>,
        key: Key,
        accepted: Accepted<SW, RW, Q>,
        failure: ConnectFailure,
    ) {
        let Accepted {
            qp, queues, waker, ..
        } = accepted;
        if self.is_awaited {
            entries.ended.insert(key, Ended::Failed(failure));
        }
        drop(entries);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.notify_waiters();
        drop((qp, queues));
        // After its queue pair.
        self.channel.cancel(key);
    }

    /// Wakes the blocked calls: one of them sleeps on the channel.
    fn notify_waiters(&self) {
        self.event.notify();
        self.changed.notify_all();
    }

    /// Handles the pending events. Never blocks. Unless a call waits for each handshake, stops at the first connection, so that
    /// the events of others wake other calls.
    fn process(&self) -> Result<()> {
        self.expire();
        let mut entries = self.lock();
        while (self.is_awaited || entries.ended.is_empty())
            && let Some(event) = self.channel.try_next()?
        {
            let (key, outcome) = match event {
                Event::Established(id) => (id.key(), Ok(id)),
                // The peer has given up.
                Event::ConnectFailed { id, failure } => (id.key(), Err(failure)),
                // Established already, and not taken yet.
                Event::Disconnected { key, .. } | Event::DeviceRemoval(key) => {
                    entries.keep(key, event);
                    continue;
                }
                _ => continue,
            };
            let Some(mut accepted) = entries.half_open.remove(key) else {
                continue;
            };
            let waker = accepted.waker.take();
            match outcome {
                Ok(id) => {
                    let established = Established {
                        accepted,
                        id,
                        events: Vec::new(),
                    };
                    let ended = Ended::Established(Box::new(established));
                    entries.ended.insert(key, ended);
                }
                Err(failure) => {
                    entries.refusals.failed += 1;
                    if self.is_awaited {
                        entries.ended.insert(key, Ended::Failed(failure));
                    }
                }
            }
            if let Some(waker) = waker {
                waker.wake();
            }
            self.notify_waiters();
        }
        Ok(())
    }

    /// Takes the next connection whose peer has completed its handshake, if there is one. Never blocks. Without a descriptor
    /// free for its events, or after an error, the connection stays for the next call.
    pub(super) fn try_next(&self) -> Result<Option<Endpoint<SW, RW, Q>>> {
        self.process()?;
        let mut is_empty = self.lock().ended.is_empty();
        while !is_empty {
            let channel = match self.new_channel() {
                Err(err) if is_exhausted(&err) => return Ok(None),
                other => other?,
            };
            let mut entries = self.lock();
            let first = entries.ended.pop_first();
            if let Some((key, Ended::Established(mut established))) = first {
                return match established.id.migrate(&channel) {
                    Ok(()) => established.endpoint(channel).map(Some),
                    Err(err) => {
                        let ended = Ended::Established(established);
                        entries.ended.insert(key, ended);
                        if is_exhausted(&err) {
                            Ok(None)
                        } else {
                            Err(err)
                        }
                    }
                };
            }
            is_empty = entries.ended.is_empty();
        }
        Ok(None)
    }

    /// Takes the outcome of an awaited handshake, if it has ended. Never blocks.
    fn try_take(&self, key: Key) -> Option<Result<Endpoint<SW, RW, Q>>> {
        let is_established = matches!(self.lock().ended.get(&key)?, Ended::Established(_));
        let channel = is_established.then(|| self.new_channel());
        let mut entries = self.lock();
        // Moved under the lock, so that no other thread takes the next event of the identifier here.
        let migrated = match entries.ended.remove(&key)? {
            Ended::Established(mut established) => channel?.and_then(|channel| {
                established.id.migrate(&channel)?;
                Ok((established, channel))
            }),
            Ended::Failed(failure) => Err(failure.into_error(CALL)),
        };
        drop(entries);
        Some(migrated.and_then(|(established, channel)| established.endpoint(channel)))
    }

    /// Opens the channel of an established connection. Half-open connections give way to its descriptors.
    fn new_channel(&self) -> Result<EventChannel> {
        loop {
            match EventChannel::with_reaper(self.channel.handle().reaper()) {
                Err(err) if is_exhausted(&err) && self.displace() => {}
                other => return other,
            }
        }
    }

    /// Ends a handshake whose outcome is not awaited any more.
    fn abandon(&self, key: Key) {
        let mut entries = self.lock();
        let ended = entries.ended.remove(&key);
        let accepted = entries.half_open.remove(key);
        drop(entries);
        drop((ended, accepted));
        self.channel.cancel(key);
    }

    /// Blocks until a handshake has ended, at most until `deadline`. One of the calls that wait sleeps on the channel, and
    /// handles the events of all; the others sleep until notified.
    fn wait(&self, key: Key, deadline: Deadline) -> Result<Endpoint<SW, RW, Q>> {
        loop {
            self.process()?;
            if let Some(outcome) = self.try_take(key) {
                return outcome;
            }
            let remaining = deadline.remaining();
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(deadline.missed(CALL));
            }
            let mut entries = self.lock();
            if entries.ended.contains_key(&key) {
                continue;
            }
            if entries.is_watched {
                let remaining = remaining.unwrap_or(self.timeout);
                let woken = self.changed.wait_timeout(entries, remaining);
                drop(woken.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            entries.is_watched = true;
            drop(entries);
            let fds = [self.channel.handle().event_fd(), self.event.as_fd()];
            let readable = wait_any_readable(CALL, fds, remaining);
            self.event.drain();
            self.lock().is_watched = false;
            self.changed.notify_all();
            readable?;
        }
    }
}

impl<SW, RW, Q: QueueChoice> Entries<SW, RW, Q> {
    /// Keeps an event for the endpoint of an established connection that no call has taken yet.
    fn keep(&mut self, key: Key, event: Event) {
        if let Some(Ended::Established(established)) = self.ended.get_mut(&key) {
            established.events.push(event);
        }
    }
}

impl<SW, RW, Q: QueueChoice> Established<SW, RW, Q> {
    /// Makes the endpoint, after the identifier has moved to `channel`.
    fn endpoint(self, channel: EventChannel) -> Result<Endpoint<SW, RW, Q>> {
        let Accepted {
            qp,
            queues,
            peer,
            timeout,
            ..
        } = self.accepted;
        let connection = Connection::new(self.id, qp)?;
        let mut endpoint = Endpoint::new(connection, peer, queues, channel, timeout);
        for event in self.events {
            endpoint.notice(event)?;
        }
        Ok(endpoint)
    }
}

/// Whether the process, the device or a completion queue of the program is at a limit, as any peer can cause it.
pub(crate) fn is_exhausted(error: &Error) -> bool {
    let at_limit = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    let of_system = error
        .raw_os_error()
        .is_some_and(|errno| at_limit.contains(&errno));
    of_system || NoEntries::of(error).is_some()
}

/// A handshake awaited by a call. Drop ends it, unless the outcome has been taken.
pub(crate) struct Awaited<SW: 'static, RW: 'static, Q: QueueChoice> {
    handshakes: Arc<Handshakes<SW, RW, Q>>,
    key: Key,
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Awaited<SW, RW, Q> {
    pub(super) fn new(handshakes: Arc<Handshakes<SW, RW, Q>>, key: Key) -> Self {
        Self { handshakes, key }
    }

    /// Blocks until the handshake has ended, at most until `deadline`.
    pub(super) fn wait(self, deadline: Deadline) -> Result<Endpoint<SW, RW, Q>> {
        self.handshakes.wait(self.key, deadline)
    }

    /// Handles the pending events of all handshakes.
    #[cfg(feature = "tokio")]
    pub(crate) fn process(&self) -> Result<()> {
        self.handshakes.process()
    }

    /// Takes the outcome, or has the task woken once there is one.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll(
        &self,
        task: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<Endpoint<SW, RW, Q>>> {
        use std::task::Poll;
        if let Some(accepted) = self.handshakes.lock().half_open.get_mut(self.key) {
            accepted.waker = Some(task.waker().clone());
            return Poll::Pending;
        }
        let outcome = self.handshakes.try_take(self.key);
        // Without an entry the outcome has been taken: the future was polled after its end.
        outcome.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Drop for Awaited<SW, RW, Q> {
    fn drop(&mut self) {
        self.handshakes.abandon(self.key);
    }
}

impl<SW, RW, Q: QueueChoice> fmt::Debug for Handshakes<SW, RW, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
