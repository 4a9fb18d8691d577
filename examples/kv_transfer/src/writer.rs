//! The writer: writes pages of its cache under the leases of its readers.

use std::{
    collections::{BTreeMap, VecDeque},
    net::ToSocketAddrs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use verbs::{RemoteAccess, RemoteToken, WorkCompletion};

use super::{
    cause::Cause,
    engine::{Engine, Side},
    lane::{Lane, Outcome, Request, buffers, post_receives},
    lease::LeaseId,
    message::{Grant, Hello, Message, Welcome},
    options::Options,
    page::Pages,
    peer::{Peer, PeerId},
    shares::Shares,
};

/// An event at a writer.
#[derive(Debug, PartialEq, Eq)]
pub enum WriterEvent {
    /// A reader has lent pages; answer with [`Writer::write`].
    Granted {
        /// The lease.
        lease: LeaseId,
        /// The program's name for the content.
        tag: u64,
        /// Number of pages.
        pages: usize,
    },
    /// All pages of the lease are in place.
    Written(LeaseId),
    /// The lease has ended before. None of its writes is in flight.
    Ended(LeaseId, Cause),
    /// The reader has ended; all its leases have ended before.
    Lost(PeerId, String),
}

/// The writer's side of a transfer.
#[derive(Debug)]
pub struct Writer {
    engine: Engine<ReadingPeer>,
}

/// A reader, as the writer knows it.
#[derive(Debug)]
struct ReadingPeer {
    id: PeerId,
    peer: Peer,
    target: RemoteToken,
    page_len: u64,
    leases: BTreeMap<u32, Shares>,
    /// The highest number of a lease, granted or cancelled.
    last_lease: u32,
    max_leases: usize,
}

impl Writer {
    /// Registers a cache of `count` pages of `len` bytes on the first RDMA device.
    ///
    /// # Errors
    /// There is no device, or memory is not available.
    pub fn new(count: u32, len: u32, options: Options) -> anyhow::Result<Self> {
        let engine = Engine::new(count, len, RemoteAccess::empty(), options)?;
        Ok(Self { engine })
    }

    /// The cache.
    pub fn pages(&mut self) -> &mut Pages {
        &mut self.engine.pages
    }

    /// Connects all queue pairs to a reader; blocks. `session` is a number that no other writer of the reader uses.
    ///
    /// # Errors
    /// Connecting failed, a bound is reached, or the reader's pages have another length.
    pub fn connect(&mut self, addr: impl ToSocketAddrs, session: u64) -> anyhow::Result<PeerId> {
        let (max, lanes) = (self.engine.options.peers, self.engine.options.lanes);
        ensure!(
            self.engine.peers.len() < max,
            "there are {max} readers, the maximum"
        );
        let max_lanes = Options::MAX_LANES;
        ensure!(
            (1..=max_lanes).contains(&lanes),
            "{lanes} queue pairs are not in 1..={max_lanes}"
        );
        let addrs: Vec<_> = addr.to_socket_addrs()?.collect();
        let id = self.engine.next_id();
        let mut peer = Peer::new(lanes);
        let mut welcome = None;
        for number in 0..lanes {
            let (lane, of_lane) = self.connect_lane(&addrs, id, session, number)?;
            ensure!(
                *welcome.get_or_insert(of_lane) == of_lane,
                "the reader names different pages"
            );
            peer.connect(number, lane);
        }
        let Welcome {
            token: target,
            page_len,
        } = welcome.context("no lane")?;
        let len = self.engine.pages.page_len();
        ensure!(
            page_len as usize == len,
            "the reader's pages have {page_len} bytes, not {len}"
        );
        let (leases, max_leases) = (BTreeMap::new(), self.engine.options.leases);
        let reader = ReadingPeer {
            id,
            peer,
            target,
            page_len: page_len.into(),
            leases,
            last_lease: 0,
            max_leases,
        };
        self.engine.peers.insert(id, reader);
        Ok(id)
    }

    fn connect_lane(
        &self,
        addrs: &[std::net::SocketAddr],
        id: PeerId,
        session: u64,
        number: usize,
    ) -> anyhow::Result<(Lane, Welcome)> {
        let (lane, lanes) = (
            u8::try_from(number)?,
            u8::try_from(self.engine.options.lanes)?,
        );
        let hello = Hello {
            session,
            lane,
            lanes,
        };
        let builder = self.engine.builder().key(id.key(lane));
        let mut outgoing = builder.prepare_for(addrs)?;
        *outgoing.param_mut() = self.engine.options.param().private_data(hello.to_wire());
        let pool = buffers(&self.engine.pd)?;
        post_receives(&pool, |buf| outgoing.post_recv(buf))?;
        let endpoint = outgoing.connect()?;
        let welcome = Welcome::from_wire(&endpoint.peer_param().private_data)?;
        Ok((Lane::new(endpoint, pool), welcome))
    }

    /// Writes pages of the cache under a lease, one for each of the lease's pages. The pages must not change until the lease ends.
    ///
    /// # Errors
    /// The lease has ended or has its pages already, or the pages are not those of the cache and of the lease's number.
    pub fn write(&mut self, lease: LeaseId, sources: &[u32]) -> anyhow::Result<()> {
        let count = self.engine.pages.count();
        let reader = self
            .engine
            .peers
            .get_mut(&lease.peer)
            .context("the reader has ended")?;
        let shares = reader
            .leases
            .get_mut(&lease.number)
            .context("the lease has ended")?;
        ensure!(shares.ending.is_none(), "the lease is cancelled");
        ensure!(!shares.has_sources(), "the lease has its pages already");
        let expected = shares.targets.len();
        ensure!(
            sources.len() == expected,
            "{} pages for a lease of {expected}",
            sources.len()
        );
        let outside = sources.iter().find(|page| **page as usize >= count);
        ensure!(outside.is_none(), "page {outside:?} is not below {count}");
        let lanes = reader.peer.open();
        ensure!(!lanes.is_empty(), "the reader has ended");
        shares.stripe(sources, &lanes);
        reader.work(
            &self.engine.options,
            &self.engine.pages,
            &mut self.engine.events,
        );
        Ok(())
    }

    /// Cancels a lease. It has ended at [`WriterEvent::Ended`], once no write is in flight. A lease that has ended is left alone.
    pub fn cancel(&mut self, lease: LeaseId) {
        let reader = self.engine.peers.get_mut(&lease.peer);
        let shares = reader.and_then(|reader| reader.leases.get_mut(&lease.number));
        if let Some(shares) = shares {
            shares.ending.get_or_insert(Cause::Cancelled);
        }
    }

    /// Closes one queue pair to a reader: its unfinished pages are written by the others.
    pub fn close_lane(&mut self, peer: PeerId, lane: usize) {
        self.engine.close_lane(peer, lane);
    }

    /// Ends a reader.
    pub fn end(&mut self, peer: PeerId) {
        self.engine.end(peer);
    }

    /// Works for all readers until an event or until `timeout` has passed.
    ///
    /// # Errors
    /// The completion queue has failed.
    pub fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Option<WriterEvent>> {
        self.engine.next_event(timeout)
    }
}

impl Side for ReadingPeer {
    type Event = WriterEvent;

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn peer_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }

    /// Handles deadlines and ended lanes, and posts writes and messages.
    fn work(&mut self, _: &Options, pages: &Pages, events: &mut VecDeque<WriterEvent>) {
        let worked = self.reap().and_then(|()| self.finish(events));
        let worked = worked
            .and_then(|()| self.peer.pump())
            .and_then(|()| self.post(pages));
        if let Err(error) = worked {
            self.peer.end(&format!("{error:#}"));
        }
    }

    fn complete(
        &mut self,
        lane: usize,
        wc: WorkCompletion<'_>,
        _: &mut Pages,
        events: &mut VecDeque<WriterEvent>,
    ) -> anyhow::Result<()> {
        let outcome = self.peer.complete(lane, wc)?;
        let success = matches!(outcome, Outcome::Sent(_));
        match outcome {
            Outcome::Message(message) => self.receive(message, events),
            Outcome::Sent(Request::Page(write)) | Outcome::Unsent(Request::Page(write)) => {
                if let Some(shares) = self.leases.get_mut(&write.lease) {
                    shares.completed(write, success);
                }
                Ok(())
            }
            Outcome::Sent(_) | Outcome::Unsent(_) | Outcome::Nothing => Ok(()),
            Outcome::Immediate(_) => bail!("immediate data from a reader"),
        }
    }

    fn lost(self, reason: &str, _: &mut Pages, events: &mut VecDeque<WriterEvent>) {
        for number in self.leases.into_keys() {
            let lease = LeaseId {
                peer: self.id,
                number,
            };
            let cause = Cause::PeerLost(reason.to_owned());
            events.push_back(WriterEvent::Ended(lease, cause));
        }
        events.push_back(WriterEvent::Lost(self.id, reason.to_owned()));
    }
}

impl ReadingPeer {
    fn receive(
        &mut self,
        message: Message,
        events: &mut VecDeque<WriterEvent>,
    ) -> anyhow::Result<()> {
        match message {
            Message::Grant(grant) => self.grant(grant, events),
            Message::Cancel(number) => {
                self.last_lease = self.last_lease.max(number);
                match self.leases.get_mut(&number) {
                    Some(shares) => {
                        shares.ending.get_or_insert(Cause::CancelledByPeer);
                        Ok(())
                    }
                    // It has ended, or its grant will be ignored.
                    None => self.peer.push(Message::Released(number)),
                }
            }
            Message::Again(share) => {
                let next = self.peer.open().first().copied();
                if let Some(shares) = self.leases.get_mut(&share.lease) {
                    // Without a lane, the peer is lost.
                    let repeat_on = next.filter(|_| shares.ending.is_none());
                    shares.answered(share, repeat_on);
                }
                Ok(())
            }
            Message::InPlace(share) => {
                if let Some(shares) = self.leases.get_mut(&share.lease) {
                    shares.answered(share, None);
                }
                Ok(())
            }
            Message::Credit => Ok(()),
            other => bail!("unexpected message {other:?} from a reader"),
        }
    }

    fn grant(&mut self, grant: Grant, events: &mut VecDeque<WriterEvent>) -> anyhow::Result<()> {
        let Grant {
            lease: number,
            millis,
            tag,
            pages,
        } = grant;
        if number <= self.last_lease {
            return Ok(()); // sent again after the failure of a lane
        }
        self.last_lease = number;
        // A lease ends for the reader with the last page, and here with its acknowledgement, which may arrive after the next grants.
        let (max, unacknowledged) = (self.max_leases, self.max_leases);
        ensure!(
            self.leases.len() < max + unacknowledged,
            "the reader grants more than {max} leases, before {unacknowledged} others are acknowledged"
        );
        for page in &pages {
            self.token(*page)?;
        }
        let count = pages.len();
        let deadline = Instant::now() + Duration::from_millis(millis.into());
        self.leases.insert(number, Shares::new(pages, deadline));
        let lease = LeaseId {
            peer: self.id,
            number,
        };
        events.push_back(WriterEvent::Granted {
            lease,
            tag,
            pages: count,
        });
        Ok(())
    }

    /// The memory of a reader's page.
    fn token(&self, page: u32) -> anyhow::Result<RemoteToken> {
        let start = u64::from(page) * self.page_len;
        Ok(self.target.slice(start..start + self.page_len)?)
    }

    /// Asks the reader about the groups of ended lanes.
    fn reap(&mut self) -> anyhow::Result<()> {
        for lane in self.peer.reap() {
            let Some(next) = self.peer.open().first().copied() else {
                continue;
            };
            for (number, shares) in &mut self.leases {
                for share in shares.lane_ended(*number, lane, next) {
                    self.peer.push(Message::Lost(share))?;
                }
            }
        }
        Ok(())
    }

    /// Ends leases that are written, and cancelled leases without writes in flight.
    fn finish(&mut self, events: &mut VecDeque<WriterEvent>) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (number, shares) in &mut self.leases {
            if shares.is_written() && shares.ending.is_none() {
                ended.push(*number);
                continue;
            }
            if shares.deadline <= now {
                shares.ending.get_or_insert(Cause::Deadline);
            }
            if shares.ending.is_some() && shares.is_quiet() {
                ended.push(*number);
            }
        }
        for number in ended {
            let lease = LeaseId {
                peer: self.id,
                number,
            };
            let ending = self.leases.remove(&number).and_then(|shares| shares.ending);
            events.push_back(match ending {
                None => WriterEvent::Written(lease),
                Some(cause) => {
                    self.peer.push(Message::Released(number))?;
                    WriterEvent::Ended(lease, cause)
                }
            });
        }
        Ok(())
    }

    /// Posts the writes for which the lanes have capacity.
    fn post(&mut self, pages: &Pages) -> anyhow::Result<()> {
        for (number, shares) in &mut self.leases {
            for group in 0..shares.group_count() {
                while let Some(next) = shares.next(*number, group) {
                    let Some(lane) = self.peer.lane(next.lane) else {
                        break;
                    };
                    if !lane.can_write(next.immediate.is_some()) {
                        break;
                    }
                    let start = u64::from(next.target) * self.page_len;
                    let target = self.target.slice(start..start + self.page_len)?;
                    lane.write(pages.slice(next.source), target, next.write, next.immediate)?;
                    shares.posted(group);
                }
            }
        }
        Ok(())
    }
}
