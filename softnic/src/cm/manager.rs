//! The connection manager of one host: identifiers, messages and events.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::{
    claims::Claims,
    connection::{Connection, Phase},
    error::CmError,
    event::{CmEvent, Occurrence},
    id::{Id, IdNum, IdState},
    mad::MAD_LEN,
    message::{CommIds, Message},
    param::MaxDepths,
    port_space::PortSpace,
    ports::{Owner, Ports},
    private_data::PrivateData,
    remotes::Remotes,
    responses::{Reject, RejectInfo, Rejected},
    service::ServiceReply,
    timing::Timing,
};
use crate::{
    adversary::Adversary,
    engine::{MAX_RD_ATOMIC, Path},
    seed::{Seed, Sequence},
};

/// Code of the greatest path MTU, 4096 bytes.
const MTU_4096: u8 = 5;

/// Maximum backlog of a listener, and the default.
const MAX_BACKLOG: usize = 1024;

/// An unbound identifier on its way to another host.
#[derive(Debug)]
pub struct Unbound(Id);

/// The connection manager of one host.
#[derive(Debug)]
pub struct Manager {
    pub(super) local_addrs: Vec<IpAddr>,
    pub(super) ca_guid: u64,
    pub(super) ids: HashMap<IdNum, Id>,
    pub(super) ports: Ports,
    pub(super) timing: Timing,
    /// Code of the port's MTU, the path MTU of requests: 1 for 256 bytes to 5 for 4096.
    pub(super) mtu: u8,
    /// Connections by the peer's numbers.
    pub(super) remotes: Remotes,
    /// Passive ends of services, by the peer's address and request id.
    pub(super) services: HashMap<(IpAddr, u32), IdNum>,
    pub(super) out: VecDeque<(Path, [u8; MAD_LEN])>,
    events: VecDeque<CmEvent>,
    pub(super) timers: BinaryHeap<Reverse<(Duration, IdNum)>>,
    /// Packet sequence numbers.
    psns: Sequence,
    /// Communication ids.
    id_nums: Sequence,
    /// Number of identifiers created.
    created: u64,
    pub(super) last_group: u32,
    /// Decisions of the device.
    pub(super) adversary: Arc<Adversary>,
    /// Maximum numbers of reads and atomics in flight of the device.
    pub(super) max_depths: MaxDepths,
    /// RTUs that an adversary processes later, each with the time.
    pub(super) late_ready: Vec<(Duration, Path, CommIds)>,
    pub(super) is_removed: bool,
}

impl Manager {
    /// Creates the connection manager of a host, with a path MTU of 4096 bytes and the times of [`Timing::FABRIC`]. The seed
    /// determines the communication ids and the packet sequence numbers. Peers distinguish managers by `ca_guid` and
    /// their ids: each device, and each process, needs a GUID and a seed of its own.
    pub fn new(
        addresses: impl IntoIterator<Item = IpAddr>,
        ca_guid: u64,
        seed: impl Into<Seed>,
    ) -> Self {
        let seed = seed.into();
        Self {
            local_addrs: addresses.into_iter().collect(),
            ca_guid,
            ids: HashMap::new(),
            ports: Ports::default(),
            timing: Timing::FABRIC,
            mtu: MTU_4096,
            remotes: Remotes::default(),
            services: HashMap::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            timers: BinaryHeap::new(),
            psns: Sequence::of_24_bits(seed.part(0)),
            id_nums: Sequence::of_32_bits(seed.part(1)),
            created: 0,
            last_group: 0,
            adversary: Arc::default(),
            max_depths: MaxDepths::default(),
            late_ready: Vec::new(),
            is_removed: false,
        }
    }

    /// Shares the address with other managers: communication ids from now on have `slot` as their first byte, and ports are
    /// bound after a claim.
    pub fn share(&mut self, slot: u8, claims: Arc<dyn Claims>) {
        self.id_nums.restrict(slot);
        self.ports.share(claims);
    }

    /// Sets the times of connections made from now on.
    pub fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Sets the decisions of the device.
    pub(crate) fn set_adversary(&mut self, adversary: &Arc<Adversary>) {
        self.adversary = Arc::clone(adversary);
    }

    /// Sets the maximum numbers of reads and atomics in flight: of peers, and of the device itself.
    pub(crate) fn set_max_depths(&mut self, responder: u8, initiator: u8) {
        self.max_depths = MaxDepths {
            responder: responder.min(MAX_RD_ATOMIC),
            initiator: initiator.min(MAX_RD_ATOMIC),
        };
    }

    /// Sets the MTU of the port, 256 to 4096 bytes: the path MTU of connections requested from now on.
    pub fn set_mtu(&mut self, mtu: u32) {
        let code = (mtu / 128).max(2).ilog2();
        self.mtu = u8::try_from(code).map_or(MTU_4096, |code| code.min(MTU_4096));
    }

    /// A pseudorandom number of 24 bits: the first packet sequence number of a connection.
    pub(super) fn random_psn(&mut self) -> u32 {
        self.psns.draw()
    }

    /// Creates an identifier.
    pub fn create_id(&mut self, space: PortSpace) -> IdNum {
        self.add(Id::new(space))
    }

    pub(super) fn add(&mut self, mut id: Id) -> IdNum {
        self.created += 1;
        id.serial = self.created;
        loop {
            let num = IdNum(self.id_nums.draw());
            // In messages, 0 means no number.
            if num.0 != 0 && !self.ids.contains_key(&num) {
                self.ids.insert(num, id);
                return num;
            }
        }
    }

    /// Takes an unbound identifier out, for the manager of another host. `None` for other identifiers.
    pub fn withdraw(&mut self, num: IdNum) -> Option<Unbound> {
        if !matches!(self.ids.get(&num)?.state, IdState::Idle) {
            return None;
        }
        self.ids.remove(&num).map(Unbound)
    }

    /// Takes over an unbound identifier with its options.
    pub fn adopt(&mut self, unbound: Unbound) -> IdNum {
        self.add(unbound.0)
    }

    pub(super) fn id(&mut self, num: IdNum) -> Result<&mut Id, CmError> {
        self.ids.get_mut(&num).ok_or(CmError::NotFound(num))
    }

    pub(super) fn connection(&mut self, num: IdNum) -> Option<&mut Connection> {
        match &mut self.ids.get_mut(&num)?.state {
            IdState::Connection(connection) => Some(connection),
            _ => None,
        }
    }

    /// Whether the device has been [removed](Self::remove_device).
    pub fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Number of identifiers.
    pub fn id_count(&self) -> usize {
        self.ids.len()
    }

    /// Local address and peer address of an identifier.
    pub fn addrs(&self, num: IdNum) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let id = self.ids.get(&num);
        id.map_or((None, None), |id| (id.local, id.peer))
    }

    /// Whether an identifier is bound to the device.
    pub fn has_device(&self, num: IdNum) -> bool {
        self.ids.get(&num).is_some_and(Id::has_device)
    }

    /// Port space of an identifier.
    pub fn port_space(&self, num: IdNum) -> Option<PortSpace> {
        self.ids.get(&num).map(|id| id.space)
    }

    /// Binds an identifier to an address of this host, or to a wildcard address. Port 0 chooses an unused port.
    ///
    /// # Errors
    /// - [`CmError::AddressNotAvailable`]: the address is not one of this host, or all ports are taken.
    /// - [`CmError::AddressInUse`]: another identifier has the port.
    /// - [`CmError::Invalid`]: the identifier is bound.
    pub fn bind(&mut self, num: IdNum, addr: SocketAddr) -> Result<(), CmError> {
        if !addr.ip().is_unspecified() && !self.local_addrs.contains(&addr.ip()) {
            return Err(CmError::AddressNotAvailable(addr));
        }
        if self.is_removed {
            return Err(CmError::DeviceRemoved);
        }
        let id = self.ids.get_mut(&num).ok_or(CmError::NotFound(num))?;
        if !matches!(id.state, IdState::Idle) {
            return Err(CmError::Invalid("the identifier is bound"));
        }
        let owner = Owner {
            id: num,
            addr: addr.ip(),
            reuse_addr: id.options.reuse_addr,
            af_only: id.options.af_only.unwrap_or(addr.is_ipv4()),
        };
        let port = self.ports.bind(id.space, addr.port(), owner)?;
        id.local = Some(SocketAddr::new(addr.ip(), port));
        id.state = IdState::Bound;
        Ok(())
    }

    /// Starts listening. An unbound identifier is bound to an unused port of the wildcard address.
    ///
    /// # Errors
    /// - [`CmError::AddressInUse`]: another identifier shares the address.
    /// - [`CmError::Invalid`]: the identifier is in use.
    pub fn listen(&mut self, num: IdNum, backlog: usize) -> Result<(), CmError> {
        if matches!(self.id(num)?.state, IdState::Idle) {
            self.bind(num, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let id = self.ids.get_mut(&num).ok_or(CmError::NotFound(num))?;
        let (IdState::Bound, Some(addr)) = (&id.state, id.local) else {
            return Err(CmError::Invalid("the identifier is in use"));
        };
        if !self.ports.may_listen(id.space, addr.port(), num) {
            return Err(CmError::AddressInUse(addr));
        }
        let backlog = match backlog {
            0 => MAX_BACKLOG,
            backlog => backlog.min(MAX_BACKLOG),
        };
        id.state = IdState::Listening {
            backlog,
            waiting: 0,
        };
        Ok(())
    }

    /// Hands a request over to the program, and frees the request's place in the backlog. Returns false if the request
    /// is gone.
    pub fn take_request(&mut self, child: IdNum) -> bool {
        let Some(id) = self.ids.get_mut(&child) else {
            return false;
        };
        let listener = id.waits_at.take();
        if let Some(listener) = listener
            && let Some(id) = self.ids.get_mut(&listener)
            && let IdState::Listening { waiting, .. } = &mut id.state
        {
            *waiting = waiting.saturating_sub(1);
        }
        listener.is_some()
    }

    /// Adds a request to a listener's backlog; `None` if the backlog is full.
    pub(super) fn add_request(&mut self, listener: IdNum, mut child: Id) -> Option<IdNum> {
        let IdState::Listening { backlog, waiting } = &mut self.ids.get_mut(&listener)?.state
        else {
            return None;
        };
        if *waiting >= *backlog {
            return None;
        }
        *waiting += 1;
        child.waits_at = Some(listener);
        Some(self.add(child))
    }

    /// The listener for an address and port.
    pub(super) fn listener(&self, space: PortSpace, addr: SocketAddr) -> Option<IdNum> {
        let owners = self.ports.at(space, addr.port()).iter();
        let listens = |owner: &&Owner| {
            let id = self.ids.get(&owner.id);
            let is_listening = id.is_some_and(|id| matches!(id.state, IdState::Listening { .. }));
            is_listening && owner.takes(addr.ip())
        };
        // An exact address takes precedence over a wildcard.
        let found = owners
            .filter(listens)
            .min_by_key(|owner| owner.addr.is_unspecified());
        found.map(|owner| owner.id)
    }

    /// Whether an identifier listens at a port, at any address.
    pub(super) fn listens_at(&self, space: PortSpace, port: u16) -> bool {
        let owners = self.ports.at(space, port).iter();
        let mut ids = owners.filter_map(|owner| self.ids.get(&owner.id));
        ids.any(|id| matches!(id.state, IdState::Listening { .. }))
    }

    /// Destroys an identifier. The peer gets one message without retries, and requests in the backlog are rejected.
    pub fn destroy_id(&mut self, num: IdNum, now: Duration) {
        for child in self.waiting_at(num) {
            self.destroy_id(child, now);
        }
        self.leave_peer(num, now);
        self.take_request(num);
        let Some(id) = self.ids.remove(&num) else {
            return;
        };
        if let Some(local) = id.local {
            self.ports.release(id.space, local.port(), num);
        }
        match &id.state {
            IdState::Connection(connection) => {
                let numbers = (connection.ids.remote, connection.dest_qp);
                self.remotes.remove(connection.peer_guid, numbers, num);
                // A request rejected before the program's answer may be retried by the peer.
                if connection.is_passive && connection.is_reported {
                    let until = now + connection.retry.total();
                    self.remotes.end(connection.remote_id(), until);
                }
            }
            IdState::Service(service) if service.is_passive => {
                self.services
                    .remove(&(service.path.dst, service.request_id));
            }
            _ => {}
        }
        self.events.retain(|event| event.id != num);
    }

    /// The message that ends a connection if the process ends now, and the path to the peer; `None` without a connection. The
    /// peer gets such a message from the kernel of an ended process.
    pub fn last_message(&self, num: IdNum) -> Option<(Path, [u8; MAD_LEN])> {
        let connection = self.live(num)?;
        let ids = connection.ids;
        let tid = match connection.phase {
            Phase::Established => u64::from(num.0),
            _ => connection.tid,
        };
        let reason = match connection.phase {
            Phase::RequestSent => Reject::TIMEOUT,
            _ => Reject::CONSUMER,
        };
        let message = match connection.phase {
            Phase::Established => Message::Disconnect(ids, connection.dest_qp),
            Phase::DisconnectReceived => Message::Disconnected(ids),
            Phase::RequestSent
            | Phase::RequestReceived
            | Phase::ReplySent
            | Phase::ReplyReceived => {
                let reject = self.rejection(connection, reason, PrivateData::EMPTY);
                Message::Reject(Box::new(reject))
            }
            Phase::DisconnectSent | Phase::TimeWait(_) | Phase::Idle => return None,
        };
        Some((connection.path, message.encode(tid)))
    }

    /// A rejection of a connection in its phase.
    fn rejection(&self, connection: &Connection, reason: u16, private_data: PrivateData) -> Reject {
        let info = match reason {
            Reject::TIMEOUT => RejectInfo::Guid(self.ca_guid),
            _ => RejectInfo::None,
        };
        let about = match connection.phase {
            Phase::RequestReceived => Rejected::Request,
            Phase::ReplyReceived => Rejected::Reply,
            _ => Rejected::Other,
        };
        Reject {
            ids: connection.ids,
            about,
            reason,
            info,
            private_data,
        }
    }

    /// Sends the message for the destruction of an identifier, by phase: REJ, DREQ, DREP or SIDR REP.
    fn leave_peer(&mut self, num: IdNum, now: Duration) {
        match self.ids.get(&num).map(|id| &id.state) {
            Some(IdState::Connection(connection)) => match connection.phase {
                Phase::RequestSent => self.refuse(num, Reject::TIMEOUT, PrivateData::EMPTY, now),
                Phase::RequestReceived | Phase::ReplySent | Phase::ReplyReceived => {
                    self.refuse(num, Reject::CONSUMER, PrivateData::EMPTY, now);
                }
                Phase::Established | Phase::DisconnectReceived => {
                    self.send_disconnect(num, now);
                }
                Phase::DisconnectSent | Phase::TimeWait(_) | Phase::Idle => {}
            },
            Some(IdState::Service(service)) if service.is_unanswered() => {
                self.answer_service(num, ServiceReply::REJECTED, 0, PrivateData::EMPTY);
            }
            _ => {}
        }
    }

    /// Requests in a listener's backlog, the oldest first.
    fn waiting_at(&self, listener: IdNum) -> Vec<IdNum> {
        match self.ids.get(&listener).map(|id| &id.state) {
            Some(IdState::Listening { waiting: 1.., .. }) => {}
            _ => return Vec::new(),
        }
        self.oldest_first(|id| id.waits_at == Some(listener))
    }

    /// Matching identifiers in the order of their creation.
    fn oldest_first(&self, matches: impl Fn(&Id) -> bool) -> Vec<IdNum> {
        let matching = self.ids.iter().filter(|(_, id)| matches(id));
        let mut serials: Vec<_> = matching.map(|(num, id)| (id.serial, *num)).collect();
        serials.sort_unstable();
        serials.into_iter().map(|(_, num)| num).collect()
    }

    /// A connection that has not ended.
    pub(super) fn live(&self, num: IdNum) -> Option<&Connection> {
        match &self.ids.get(&num)?.state {
            IdState::Connection(connection) => Some(&**connection).filter(|conn| conn.is_live()),
            _ => None,
        }
    }

    /// Sends a rejection, and ends the connection.
    pub(super) fn refuse(&mut self, num: IdNum, reason: u16, data: PrivateData, now: Duration) {
        let Some(IdState::Connection(connection)) = self.ids.get(&num).map(|id| &id.state) else {
            return;
        };
        let reject = self.rejection(connection, reason, data);
        let Some(connection) = self.connection(num) else {
            return;
        };
        let (path, tid) = (connection.path, connection.tid);
        connection.pending = None;
        if matches!(connection.phase, Phase::ReplySent | Phase::ReplyReceived) {
            connection.enter_time_wait(now);
        } else {
            connection.phase = Phase::Idle;
        }
        self.send(path, tid, &Message::Reject(Box::new(reject)));
    }

    pub(super) fn send(&mut self, path: Path, tid: u64, message: &Message) {
        self.out.push_back((path, message.encode(tid)));
    }

    /// Takes the oldest message, and the path to the receiver.
    pub fn transmit(&mut self) -> Option<(Path, [u8; MAD_LEN])> {
        self.out.pop_front()
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    pub(super) fn push(&mut self, id: IdNum, what: Occurrence) {
        self.events.push_back(CmEvent { id, what });
    }

    /// Raises an event of a connection, unless the connection is not accepted yet or the end has been reported.
    pub(super) fn report(&mut self, num: IdNum, what: Occurrence) {
        let Some(connection) = self.connection(num) else {
            return;
        };
        let exits = what == Occurrence::TimewaitExit;
        if !connection.is_reported || connection.has_ended != exits {
            return;
        }
        connection.has_ended |= matches!(what, Occurrence::Disconnected(_));
        self.push(num, what);
    }

    /// Removes the device: raises an event on each bound identifier. Afterwards no message is sent or processed.
    pub fn remove_device(&mut self) {
        self.is_removed = true;
        self.out.clear();
        self.timers.clear();
        for num in self.oldest_first(|id| id.has_device() && id.waits_at.is_none()) {
            self.push(num, Occurrence::DeviceRemoval);
        }
    }

    /// Sets whether the address may be shared with other identifiers of the same option.
    ///
    /// # Errors
    /// - [`CmError::NotFound`]: no identifier has this number.
    pub fn set_reuse_addr(&mut self, num: IdNum, reuse: bool) -> Result<(), CmError> {
        self.id(num)?.options.reuse_addr = reuse;
        Ok(())
    }

    /// Sets whether an IPv6 wildcard excludes IPv4.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is already bound.
    pub fn set_af_only(&mut self, num: IdNum, only: bool) -> Result<(), CmError> {
        let id = self.id(num)?;
        if !matches!(id.state, IdState::Idle) {
            return Err(CmError::Invalid("the identifier is bound"));
        }
        id.options.af_only = Some(only);
        Ok(())
    }

    /// Sets the traffic class of the path.
    ///
    /// # Errors
    /// - [`CmError::NotFound`]: no identifier has this number.
    pub fn set_tos(&mut self, num: IdNum, tos: u8) -> Result<(), CmError> {
        self.id(num)?.options.tos = tos;
        Ok(())
    }

    /// Sets the acknowledgement timeout, as 4.096 µs · 2^n.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is for datagrams.
    pub fn set_ack_timeout(&mut self, num: IdNum, timeout: u8) -> Result<(), CmError> {
        let id = self.id(num)?;
        if id.space.kind() != crate::engine::QpKind::Rc || timeout > 31 {
            return Err(CmError::Invalid("datagrams have no acknowledgements"));
        }
        id.options.ack_timeout = Some(timeout);
        Ok(())
    }

    /// Sets the vendor options for the peer.
    ///
    /// # Errors
    /// - [`CmError::NotFound`]: no identifier has this number.
    pub fn set_ece(&mut self, num: IdNum, ece: super::param::Ece) -> Result<(), CmError> {
        self.id(num)?.ece = ece;
        Ok(())
    }
}
