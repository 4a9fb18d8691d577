//! The writer: writes pages of its cache under the leases of its readers.

use std::{
    collections::{BTreeMap, VecDeque},
    net::ToSocketAddrs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use verbs::{CompletionQueue, ProtectionDomain, RemoteAccess, RemoteToken, WorkCompletion};

use super::{
    cause::Cause,
    lane::{Lane, Outcome, Request, buffers, post_receives},
    lease::LeaseId,
    message::{Grant, Hello, Message, Welcome},
    options::Options,
    page::Pages,
    peer::{Peer, PeerId},
    reader::TICK,
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
    // Queue pairs are dropped before the memory.
    peers: BTreeMap<PeerId, ReadingPeer>,
    pages: Pages,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    options: Options,
    peer_count: u32,
    events: VecDeque<WriterEvent>,
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
        let device = cm::devices()?
            .into_iter()
            .next()
            .context("there is no RDMA device")?;
        let pd = device.alloc_pd()?;
        let cq = device.cq_builder(options.entries()).waitable().create()?;
        let pages = Pages::new(&pd, count, len, RemoteAccess::empty())?;
        let (peers, events) = (BTreeMap::new(), VecDeque::new());
        Ok(Self {
            peers,
            pages,
            pd,
            cq,
            options,
            peer_count: 0,
            events,
        })
    }

    /// The cache.
    pub fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }

    /// Connects all queue pairs to a reader; blocks. `session` is a number that no other writer of the reader uses.
    ///
    /// # Errors
    /// Connecting failed, a bound is reached, or the reader's pages have another length.
    pub fn connect(&mut self, addr: impl ToSocketAddrs, session: u64) -> anyhow::Result<PeerId> {
        let (max, lanes) = (self.options.peers, self.options.lanes);
        ensure!(
            self.peers.len() < max,
            "there are {max} readers, the maximum"
        );
        let max_lanes = Options::MAX_LANES;
        ensure!(
            (1..=max_lanes).contains(&lanes),
            "{lanes} queue pairs are not in 1..={max_lanes}"
        );
        let addrs: Vec<_> = addr.to_socket_addrs()?.collect();
        self.peer_count += 1;
        let id = PeerId(self.peer_count);
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
        let len = self.pages.page_len();
        ensure!(
            page_len as usize == len,
            "the reader's pages have {page_len} bytes, not {len}"
        );
        let (leases, max_leases) = (BTreeMap::new(), self.options.leases);
        let reader = ReadingPeer {
            id,
            peer,
            target,
            page_len: page_len.into(),
            leases,
            last_lease: 0,
            max_leases,
        };
        self.peers.insert(id, reader);
        Ok(id)
    }

    fn connect_lane(
        &self,
        addrs: &[std::net::SocketAddr],
        id: PeerId,
        session: u64,
        number: usize,
    ) -> anyhow::Result<(Lane, Welcome)> {
        let (lane, lanes) = (u8::try_from(number)?, u8::try_from(self.options.lanes)?);
        let hello = Hello {
            session,
            lane,
            lanes,
        };
        let builder = self
            .options
            .builder(&self.cq)
            .pd(&self.pd)
            .key(id.key(lane));
        let mut outgoing = builder.prepare_for(addrs)?;
        *outgoing.param_mut() = self.options.param().private_data(hello.to_wire());
        let pool = buffers(&self.pd)?;
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
        let count = self.pages.count();
        let reader = self
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
        reader.work(&self.pages, &mut self.events);
        Ok(())
    }

    /// Cancels a lease. It has ended at [`WriterEvent::Ended`], once no write is in flight. A lease that has ended is left alone.
    pub fn cancel(&mut self, lease: LeaseId) {
        let reader = self.peers.get_mut(&lease.peer);
        let shares = reader.and_then(|reader| reader.leases.get_mut(&lease.number));
        if let Some(shares) = shares {
            shares.ending.get_or_insert(Cause::Cancelled);
        }
    }

    /// Closes one queue pair to a reader: its unfinished pages are written by the others.
    pub fn close_lane(&mut self, peer: PeerId, lane: usize) {
        if let Some(reader) = self.peers.get_mut(&peer) {
            reader.peer.close(lane, "closed by this side");
        }
    }

    /// Ends a reader.
    pub fn end(&mut self, peer: PeerId) {
        if let Some(reader) = self.peers.get_mut(&peer) {
            reader.peer.end("ended by this side");
        }
    }

    /// Works for all readers until an event or until `timeout` has passed.
    ///
    /// # Errors
    /// The completion queue has failed.
    pub fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Option<WriterEvent>> {
        let until = Instant::now() + timeout;
        loop {
            self.sweep();
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(None);
            }
            self.poll(remaining.min(TICK))?;
        }
    }

    fn poll(&mut self, timeout: Duration) -> anyhow::Result<()> {
        for wc in self.cq.wait(Some(timeout))? {
            let Some((id, lane)) = PeerId::of(&wc) else {
                continue;
            };
            let Some(reader) = self.peers.get_mut(&id) else {
                continue;
            };
            if let Err(error) = reader.complete(lane, wc, &mut self.events) {
                reader.peer.end(&format!("{error:#}"));
            }
        }
        Ok(())
    }

    /// Handles deadlines and ended lanes, and posts writes and messages.
    fn sweep(&mut self) {
        for reader in self.peers.values_mut() {
            reader.work(&self.pages, &mut self.events);
        }
        let ended = self
            .peers
            .values()
            .filter_map(|reader| Some((reader.id, reader.peer.lost()?.to_owned())));
        let ended: Vec<_> = ended.collect();
        for (id, reason) in ended {
            let leases = self.peers.remove(&id).map(|reader| reader.leases);
            for number in leases.unwrap_or_default().into_keys() {
                let cause = Cause::PeerLost(reason.clone());
                self.events
                    .push_back(WriterEvent::Ended(LeaseId { peer: id, number }, cause));
            }
            self.events.push_back(WriterEvent::Lost(id, reason));
        }
    }
}

impl ReadingPeer {
    fn complete(
        &mut self,
        lane: usize,
        wc: WorkCompletion<'_>,
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
        let max = self.max_leases;
        ensure!(
            self.leases.len() < max,
            "the reader grants more than {max} leases"
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

    fn work(&mut self, pages: &Pages, events: &mut VecDeque<WriterEvent>) {
        let worked = self.reap().and_then(|()| self.finish(events));
        let worked = worked
            .and_then(|()| self.peer.pump())
            .and_then(|()| self.post(pages));
        if let Err(error) = worked {
            self.peer.end(&format!("{error:#}"));
        }
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
