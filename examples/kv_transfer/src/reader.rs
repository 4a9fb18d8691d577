//! The reader: owns the pages, grants leases of them, and counts the immediates of its writers.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use cm::{Incoming, Listener, SharedQueues};
use verbs::{RemoteAccess, WorkCompletion, mr::PoolBuf};

use super::{
    cause::Cause,
    engine::{Engine, Side},
    lane::{Lane, Outcome, Payload, buffers, post_receives},
    lease::{Lease, LeaseId},
    message::{Grant, Hello, Immediate, MAX_LEASE, MAX_PAGES, Message, Share, Welcome},
    options::Options,
    page::{PageSet, Pages},
    peer::{Peer, PeerId},
};

/// An event at a reader.
#[derive(Debug)]
pub enum ReaderEvent {
    /// All pages of the lease are in place, and belong to the program until [`Pages::give_back`].
    Arrived(LeaseId, PageSet),
    /// The lease has ended before, and its pages are free.
    Ended(LeaseId, Cause),
    /// The writer has ended; all its leases have ended before.
    Lost(PeerId, String),
}

/// The reader's side of a transfer.
#[derive(Debug)]
pub struct Reader {
    listener: Listener<Payload, PoolBuf, SharedQueues>,
    engine: Engine<WritingPeer>,
}

/// A writer, as the reader knows it.
#[derive(Debug)]
struct WritingPeer {
    id: PeerId,
    peer: Peer,
    session: u64,
    connect_by: Instant,
    leases: BTreeMap<u32, Lease>,
    lease_count: u32,
    /// Shares of failed lanes, answered once the lane has ended here too.
    unanswered: Vec<Share>,
}

impl Reader {
    /// Registers `count` pages of `len` bytes on the first RDMA device, and listens.
    ///
    /// # Errors
    /// There is no device, or memory or address are not available.
    pub fn bind(
        addr: impl ToSocketAddrs,
        count: u32,
        len: u32,
        options: Options,
    ) -> anyhow::Result<Self> {
        let engine = Engine::new(count, len, RemoteAccess::WRITE, options)?;
        let listener = engine.builder().listen_for(addr)?;
        Ok(Self { listener, engine })
    }

    /// The address of the listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// The pages. Only those of [`ReaderEvent::Arrived`] have their final bytes.
    pub fn pages(&mut self) -> &mut Pages {
        &mut self.engine.pages
    }

    /// Accepts one queue pair of a writer. Returns the writer once all its queue pairs are connected. Blocks for at most `timeout`,
    /// and for the handshake.
    ///
    /// # Errors
    /// The request was refused, or the handshake failed. Other writers are not affected.
    pub fn accept(&mut self, timeout: Duration) -> anyhow::Result<Option<PeerId>> {
        let Some(incoming) = self.listener.request_timeout(timeout)? else {
            return Ok(None);
        };
        match self.admit(&incoming.param().private_data) {
            Ok((id, hello)) => self.connect(incoming, id, hello),
            Err(error) => {
                incoming.reject(error.to_string().as_bytes())?;
                Err(error.context("refused a writer"))
            }
        }
    }

    /// Finds or adds the peer of a connection request.
    fn admit(&mut self, private_data: &[u8]) -> anyhow::Result<(PeerId, Hello)> {
        let hello = Hello::from_wire(private_data)?;
        let mut peers = self.engine.peers.values();
        if let Some(writer) = peers.find(|peer| peer.session == hello.session) {
            let same = writer.peer.lane_count() == usize::from(hello.lanes);
            ensure!(
                same && writer.peer.is_pending(hello.lane.into()),
                "lane {} is connected",
                hello.lane
            );
            return Ok((writer.id, hello));
        }
        let max = self.engine.options.peers;
        ensure!(
            self.engine.peers.len() < max,
            "there are {max} writers, the maximum"
        );
        let id = self.engine.next_id();
        let peer = WritingPeer {
            id,
            peer: Peer::new(hello.lanes.into()),
            session: hello.session,
            connect_by: Instant::now() + self.engine.options.ack_timeout,
            leases: BTreeMap::new(),
            lease_count: 0,
            unanswered: Vec::new(),
        };
        self.engine.peers.insert(id, peer);
        Ok((id, hello))
    }

    fn connect(
        &mut self,
        mut incoming: Incoming<Payload, PoolBuf, SharedQueues>,
        id: PeerId,
        hello: Hello,
    ) -> anyhow::Result<Option<PeerId>> {
        let page_len = u32::try_from(self.engine.pages.page_len())?;
        let welcome = Welcome {
            token: self.engine.pages.token(),
            page_len,
        };
        *incoming.param_mut() = self.engine.options.param().private_data(welcome.to_wire());
        incoming.set_key(id.key(hello.lane));
        let pool = buffers(&self.engine.pd)?;
        post_receives(&pool, |buf| incoming.post_recv(buf))?;
        let lane = Lane::new(incoming.accept()?, pool);
        let writer = self
            .engine
            .peers
            .get_mut(&id)
            .context("the writer has ended")?;
        writer.peer.connect(hello.lane.into(), lane);
        Ok(writer.peer.is_complete().then_some(id))
    }

    /// Lends free pages to a writer, until `time` has passed. `tag` names the content that the writer is to write.
    ///
    /// # Errors
    /// The peer has ended, a bound is reached, or there are too few free pages.
    pub fn grant(
        &mut self,
        to: PeerId,
        tag: u64,
        count: usize,
        time: Duration,
    ) -> anyhow::Result<LeaseId> {
        let writer = self
            .engine
            .peers
            .get_mut(&to)
            .context("the writer has ended")?;
        ensure!(
            writer.peer.is_complete(),
            "the writer has not connected all its queue pairs"
        );
        ensure!(
            (1..=MAX_PAGES).contains(&count),
            "{count} pages are not in 1..={MAX_PAGES}"
        );
        let max = self.engine.options.leases;
        ensure!(
            writer.leases.len() < max,
            "the writer has {max} leases, the maximum"
        );
        let leased: usize = writer
            .leases
            .values()
            .map(|lease| lease.pages.0.len())
            .sum();
        let max = self.engine.options.pages;
        ensure!(
            leased + count <= max,
            "{leased} and {count} pages are above {max}, the maximum of a writer"
        );
        ensure!(
            writer.lease_count < MAX_LEASE,
            "the writer has had {MAX_LEASE} leases: it must connect again"
        );
        let millis = u32::try_from(time.as_millis())?;
        let free = self.engine.pages.free();
        let pages = self
            .engine
            .pages
            .take(count)
            .with_context(|| format!("{free} pages are free, not {count}"))?;
        let lease = writer.lease_count + 1;
        let grant = Grant {
            lease,
            millis,
            tag,
            pages: pages.0.clone(),
        };
        if let Err(error) = writer.peer.push(Message::Grant(grant)) {
            self.engine.pages.give_back(pages);
            return Err(error);
        }
        writer.lease_count = lease;
        writer
            .leases
            .insert(lease, Lease::new(pages, Instant::now() + time));
        Ok(LeaseId {
            peer: to,
            number: lease,
        })
    }

    /// Cancels a lease. Its pages are free at [`ReaderEvent::Ended`], once the writer is known to be done. A lease that has ended
    /// is left alone.
    pub fn cancel(&mut self, lease: LeaseId) {
        if let Some(writer) = self.engine.peers.get_mut(&lease.peer) {
            writer.cancel(
                lease.number,
                Cause::Cancelled,
                self.engine.options.ack_timeout,
            );
        }
    }

    /// Closes one queue pair to a writer, which continues on the others.
    pub fn close_lane(&mut self, peer: PeerId, lane: usize) {
        self.engine.close_lane(peer, lane);
    }

    /// Ends a writer.
    pub fn end(&mut self, peer: PeerId) {
        self.engine.end(peer);
    }

    /// Works for all writers until an event or until `timeout` has passed.
    ///
    /// # Errors
    /// The completion queue has failed.
    pub fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Option<ReaderEvent>> {
        self.engine.next_event(timeout)
    }
}

impl Side for WritingPeer {
    type Event = ReaderEvent;

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn peer_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }

    /// Handles deadlines and ended lanes, and sends messages.
    fn work(&mut self, options: &Options, _: &Pages, _: &mut VecDeque<ReaderEvent>) {
        self.expire(Instant::now(), options.ack_timeout);
        self.peer.reap();
        if let Err(error) = self.answer().and_then(|()| self.peer.pump()) {
            self.peer.end(&format!("{error:#}"));
        }
    }

    fn complete(
        &mut self,
        lane: usize,
        wc: WorkCompletion<'_>,
        pages: &mut Pages,
        events: &mut VecDeque<ReaderEvent>,
    ) -> anyhow::Result<()> {
        match self.peer.complete(lane, wc)? {
            Outcome::Immediate(immediate) => self.count(immediate, events),
            Outcome::Message(Message::Released(number)) => {
                if let Some(lease) = self.leases.remove(&number) {
                    pages.give_back(lease.pages);
                    let cause = lease
                        .ending
                        .map_or(Cause::CancelledByPeer, |(cause, _)| cause);
                    events.push_back(ReaderEvent::Ended(
                        LeaseId {
                            peer: self.id,
                            number,
                        },
                        cause,
                    ));
                }
                Ok(())
            }
            Outcome::Message(Message::Lost(share)) => {
                let lanes = self.peer.lane_count();
                ensure!(
                    usize::from(share.lane) < lanes,
                    "lane {} is not below {lanes}",
                    share.lane
                );
                ensure!(
                    self.unanswered.len() < 64,
                    "the writer repeats too many groups"
                );
                self.peer.close(share.lane.into(), "failed at the writer");
                self.unanswered.push(share);
                Ok(())
            }
            Outcome::Message(Message::Credit)
            | Outcome::Sent(_)
            | Outcome::Unsent(_)
            | Outcome::Nothing => Ok(()),
            Outcome::Message(other) => bail!("unexpected message {other:?} from a writer"),
        }
    }

    fn lost(self, reason: &str, pages: &mut Pages, events: &mut VecDeque<ReaderEvent>) {
        for (number, lease) in self.leases {
            pages.give_back(lease.pages);
            let lease_id = LeaseId {
                peer: self.id,
                number,
            };
            let cause = Cause::PeerLost(reason.to_owned());
            events.push_back(ReaderEvent::Ended(lease_id, cause));
        }
        events.push_back(ReaderEvent::Lost(self.id, reason.to_owned()));
    }
}

impl WritingPeer {
    fn cancel(&mut self, number: u32, cause: Cause, ack_timeout: Duration) {
        let Some(lease) = self
            .leases
            .get_mut(&number)
            .filter(|lease| lease.ending.is_none())
        else {
            return;
        };
        lease.ending = Some((cause, Instant::now() + ack_timeout));
        if let Err(error) = self.peer.push(Message::Cancel(number)) {
            self.peer.end(&format!("{error:#}"));
        }
    }

    /// Cancels leases at their deadline. A writer that acknowledges no cancellation is ended.
    fn expire(&mut self, now: Instant, ack_timeout: Duration) {
        let leases = self.leases.iter();
        let expired = leases.filter(|(_, lease)| lease.ending.is_none() && lease.deadline <= now);
        let expired: Vec<u32> = expired.map(|(number, _)| *number).collect();
        for number in expired {
            self.cancel(number, Cause::Deadline, ack_timeout);
        }
        let mut endings = self
            .leases
            .values()
            .filter_map(|lease| lease.ending.as_ref());
        if endings.any(|(_, until)| *until <= now) {
            self.peer
                .end("the writer has not acknowledged a cancellation in time");
        }
        if !self.peer.is_complete() && self.connect_by <= now {
            self.peer
                .end("the writer has not connected all its queue pairs in time");
        }
    }

    fn count(
        &mut self,
        immediate: Immediate,
        events: &mut VecDeque<ReaderEvent>,
    ) -> anyhow::Result<()> {
        let number = immediate.lease;
        // The lease has ended: a group written just before the writer's acknowledgement.
        let Some(lease) = self.leases.get_mut(&number) else {
            ensure!(
                number <= self.lease_count,
                "immediate data name lease {number}, never granted"
            );
            return Ok(());
        };
        if !lease.count(immediate)? || lease.ending.is_some() {
            return Ok(()); // the end of a cancelled lease is its acknowledgement
        }
        if let Some(lease) = self.leases.remove(&number) {
            events.push_back(ReaderEvent::Arrived(
                LeaseId {
                    peer: self.id,
                    number,
                },
                lease.pages,
            ));
        }
        Ok(())
    }

    /// Answers shares of lanes that have ended: nothing arrives by them any more.
    fn answer(&mut self) -> anyhow::Result<()> {
        let ended = self
            .unanswered
            .extract_if(.., |share| self.peer.is_closed(share.lane.into()));
        let ended: Vec<Share> = ended.collect();
        for share in ended {
            let lease = self.leases.get(&share.lease);
            let repeat = lease.is_some_and(|lease| !lease.has_group(share.group));
            self.peer.push(match repeat {
                true => Message::Again(share),
                false => Message::InPlace(share),
            })?;
        }
        Ok(())
    }
}
