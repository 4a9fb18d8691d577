//! State of a datagram socket.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::{OwnedFd, RawFd},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use cm::Key;
use rustix::{event::epoll, io::Errno};
use verbs::{
    Context,
    ah::GRH_LEN,
    mr::PoolBuf,
    waiting::{Source, Waiters},
};

use super::{
    DatagramSocket, RecvMeta,
    local::{Done, LocalEndpoint, PeerPath},
    resolve,
    udp::Udp,
};
use crate::{
    engine::Engine,
    proto::{
        datagram::{
            DatagramStats, Encoded, Exchange, Node, Operation, Route, SLOT, canonical, fit,
            max_len_by_path, max_len_by_udp,
        },
        stream::{Direction, Readiness, Settings},
    },
    waiters::Interest,
    waiting::Pollable,
};

/// Maximum number of datagrams taken from UDP in one round.
const MAX_UDP_PER_ROUND: usize = 64;
/// Size in bytes of the receive buffer for UDP: a slot, the longest header, and one byte to detect overlong
/// datagrams.
const UDP_BUFFER_SIZE: usize = SLOT + 28 + 1;

/// Storage of a received datagram.
#[derive(Debug)]
enum Stored {
    /// A receive buffer of a local endpoint, reposted after reading.
    Receive(u64, PoolBuf),
    Copy(Vec<u8>),
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Receive(_, buffer) => buffer,
            Self::Copy(bytes) => bytes,
        }
    }
}

/// Mutable state of a datagram socket, behind one lock.
#[derive(Debug)]
pub(crate) struct DatagramState {
    this: Weak<DatagramSocket>,
    engine: Arc<Engine>,
    name: u64,
    /// `None` once closed.
    udp: Option<Udp>,
    /// `None` before the first use.
    node: Option<Node<u64, PeerPath, Stored>>,
    locals: BTreeMap<u64, LocalEndpoint>,
    next_local: u64,
    completions: Arc<OwnedFd>,
    settings: Settings,
    /// Source address of packets, if bound by the program.
    source: Option<IpAddr>,
    reuse_addr: bool,
    tos: Option<u8>,
    waiters: Waiters<Interest>,
    error: Option<io::Error>,
    start: Instant,
    closing: bool,
    /// The process is exiting: sends block, as if their threads had ended already.
    exiting: bool,
    /// Gathers a message from several buffers.
    scratch: Vec<u8>,
    /// UDP's send buffer was full, and has not become writable since.
    udp_full: bool,
}

impl DatagramState {
    pub(super) fn new(
        this: Weak<DatagramSocket>,
        engine: Arc<Engine>,
        name: u64,
        udp: Udp,
        completions: Arc<OwnedFd>,
        settings: Settings,
    ) -> Self {
        Self {
            this,
            engine,
            name,
            udp: Some(udp),
            node: None,
            locals: BTreeMap::new(),
            next_local: 0,
            completions,
            settings,
            source: None,
            reuse_addr: false,
            tos: None,
            waiters: Waiters::new(),
            error: None,
            start: Instant::now(),
            closing: false,
            exiting: false,
            scratch: Vec::new(),
            udp_full: false,
        }
    }

    fn udp(&self) -> io::Result<&Udp> {
        self.udp.as_ref().ok_or_else(closed)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Prepares for the first use and binds an unbound socket.
    fn begin(&mut self) -> io::Result<()> {
        if self.node.is_some() {
            return Ok(());
        }
        let udp = self.udp()?;
        if udp.local_addr()?.port() == 0 {
            udp.bind(udp.any())?;
        }
        self.engine
            .watch_udp(self.name, Weak::clone(&self.this), udp)?;
        self.settings = fit(self.settings);
        let Settings {
            send_depth,
            recv_depth,
            ..
        } = self.settings;
        self.node = Some(Node::new(send_depth, recv_depth));
        Ok(())
    }

    pub(super) fn bind(&mut self, addr: SocketAddr) -> io::Result<()> {
        self.udp()?.bind(addr)?;
        let ip = addr.ip().to_canonical();
        self.source = Some(ip).filter(|ip| !ip.is_unspecified());
        self.begin()
    }

    pub(super) fn connect(&mut self, peer: Option<SocketAddr>) -> io::Result<()> {
        let Some(peer) = peer else {
            self.udp()?.disconnect()?;
            if let Some(node) = &mut self.node {
                node.connect(None);
            }
            return Ok(());
        };
        self.udp()?.check(canonical(peer))?;
        self.begin()?;
        self.local_for(canonical(peer))?;
        self.udp()?.connect(peer)?;
        if let Some(node) = &mut self.node {
            node.connect(Some(peer));
        }
        Ok(())
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp()?.local_addr()
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        let peer = self.node.as_ref()?.connected()?;
        Some(self.udp().ok()?.to_program(peer))
    }

    pub(super) fn settings(&self) -> Settings {
        let mut settings = self.settings;
        if let Some(local) = self.locals.values().next() {
            settings.inline = u32::try_from(local.inline()).unwrap_or(u32::MAX);
        }
        settings
    }

    pub(super) fn set_settings(&mut self, set: impl FnOnce(&mut Settings)) -> io::Result<()> {
        if self.node.is_some() {
            let reason = "the sizes of a socket are set before its first use";
            return Err(verbs::Error::from_io("setsockopt", Errno::INVAL)
                .detail(reason)
                .into());
        }
        set(&mut self.settings);
        Ok(())
    }

    pub(super) fn set_reuse_addr(&mut self, reuse: bool) -> io::Result<()> {
        self.udp()?.set_reuse_addr(reuse)?;
        self.reuse_addr = reuse;
        Ok(())
    }

    pub(super) fn set_v6_only(&self, only: bool) -> io::Result<()> {
        self.udp()?.set_v6_only(only)
    }

    pub(super) fn set_tos(&mut self, tos: u8) -> io::Result<()> {
        self.udp()?.set_tos(tos)?;
        self.tos = Some(tos);
        Ok(())
    }

    pub(super) fn keeps_fd(&self, fd: RawFd) -> bool {
        self.udp.as_ref().is_some_and(|udp| udp.keeps_fd(fd))
    }

    pub(super) fn duplicate_udp(&self) -> io::Result<UdpSocket> {
        self.udp()?.duplicate()
    }

    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Returns the local endpoint for a peer, creating both if unknown.
    fn local_for(&mut self, peer: SocketAddr) -> io::Result<u64> {
        let existing = self.node.as_ref().and_then(|node| node.local(peer));
        if let Some(local) = existing {
            return Ok(local);
        }
        let name = match self.source.map(|ip| (ip, self.local_at(ip, peer))) {
            // Few devices have a loopback address. The route to the peer may lead to another device.
            Some((ip, Err(_))) if ip.is_loopback() => {
                self.local_at(Udp::source_for(peer)?, peer)?
            }
            Some((_, found)) => found?,
            None => self.local_at(Udp::source_for(peer)?, peer)?,
        };
        let now = self.now();
        if let Some(node) = &mut self.node {
            node.add_peer(peer, name, now);
        }
        Ok(name)
    }

    /// Returns the local endpoint with an address, creating an unknown one.
    fn local_at(&mut self, ip: IpAddr, peer: SocketAddr) -> io::Result<u64> {
        let existing = self.locals.iter().find(|(_, local)| local.is_for(ip));
        match existing {
            Some((&name, _)) => Ok(name),
            None => self.add_local(ip, peer),
        }
    }

    fn add_local(&mut self, ip: IpAddr, peer: SocketAddr) -> io::Result<u64> {
        let port = self.local_addr()?.port();
        let addr = match (ip, peer) {
            // The interface of the route to the peer.
            (IpAddr::V6(ip), SocketAddr::V6(peer)) => {
                SocketAddrV6::new(ip, port, 0, peer.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, port),
        };
        let local = LocalEndpoint::new(&self.engine, addr, self.reuse_addr, &self.settings)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(
            &self.completions,
            local.completions(),
            data,
            epoll::EventFlags::IN,
        )?;
        self.engine.bound(local.key(), Weak::clone(&self.this));
        if let Some(node) = &mut self.node {
            node.limit_sending(local.send_depth());
        }
        let name = self.next_local;
        self.next_local += 1;
        self.locals.insert(name, local);
        Ok(name)
    }

    /// Removes a failed local endpoint. Its peers get another one.
    fn remove_local(&mut self, name: u64) {
        let Some(local) = self.locals.remove(&name) else {
            return;
        };
        if let Some(node) = &mut self.node {
            node.remove_local(|removed| removed == name);
            for _ in 0..local.sending() {
                node.end_send();
            }
        }
        self.engine.forget(local.key());
    }

    pub(super) fn device_removed(&mut self, key: Key) -> Option<Context> {
        let mut locals = self.locals.iter();
        let (&name, local) = locals.find(|(_, local)| local.key() == key)?;
        let ctx = local.context().clone();
        self.remove_local(name);
        self.wake();
        Some(ctx)
    }

    /// Fails if the socket is closed, or with the pending error.
    fn check_open(&mut self) -> io::Result<()> {
        if self.udp.is_none() || self.closing {
            return Err(closed());
        }
        self.take_error().map_or(Ok(()), Err)
    }

    pub(super) fn send(
        &mut self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
    ) -> io::Result<Option<usize>> {
        self.check_open()?;
        if self.exiting {
            return Ok(None);
        }
        let connected = self.node.as_ref().and_then(Node::connected);
        let peer = to.or(connected).ok_or_else(|| {
            let reason = "no destination: name one, or connect the socket";
            verbs::Error::from_io("sendmsg", Errno::DESTADDRREQ).detail(reason)
        })?;
        let peer = canonical(peer);
        self.udp()?.check(peer)?;
        self.begin()?;
        let name = self.local_for(peer)?;
        let len = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        let now = self.now();
        let (Some(node), Some(local)) = (&mut self.node, self.locals.get_mut(&name)) else {
            return Err(removed());
        };
        if node.is_write_shut() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // The limit is independent of the route, which the program does not know.
        let max = max_len_by_udp(peer.ip());
        if len > max {
            let reason = format!("{len} bytes; a datagram has at most {max}");
            return Err(verbs::Error::from_io("sendmsg", Errno::MSGSIZE)
                .detail(reason)
                .into());
        }
        if let Some(Route::Direct { path, qp_num, .. }) = node.route(peer, now)
            && len <= max_len_by_path(peer.ip(), path.mtu)
        {
            let path = path.clone();
            if !node.begin_send() {
                return Ok(None);
            }
            self.scratch.clear();
            self.scratch.extend_from_slice(&local.header());
            for buf in bufs {
                self.scratch.extend_from_slice(buf);
            }
            return match local.send(&self.scratch, &path, qp_num) {
                Ok(()) => {
                    node.sent(len);
                    Ok(Some(len))
                }
                Err(err) => {
                    node.end_send();
                    Err(err)
                }
            };
        }
        self.send_by_udp(bufs, peer, name)
    }

    /// Sends a datagram over UDP: without a route, or beyond the device's MTU.
    fn send_by_udp(
        &mut self,
        bufs: &[IoSlice<'_>],
        peer: SocketAddr,
        local: u64,
    ) -> io::Result<Option<usize>> {
        let local = self.locals.get(&local).ok_or_else(removed)?;
        let header = exchange(local, Operation::Data);
        let mut pieces = vec![IoSlice::new(&header)];
        pieces.extend(bufs.iter().map(|buf| IoSlice::new(buf)));
        let udp = self.udp()?;
        match udp.send(&pieces, peer) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                self.engine.watch_udp_writable(self.name, udp, true)?;
                self.udp_full = true;
                Ok(None)
            }
            sent => {
                let len = sent? - header.len();
                if let Some(node) = &mut self.node {
                    node.sent_by_udp(len);
                }
                Ok(Some(len))
            }
        }
    }

    pub(super) fn recv(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> io::Result<Option<RecvMeta>> {
        self.check_open()?;
        let node = self.node.as_mut().ok_or_else(|| {
            let reason = "the socket has no address: bind or connect it, or send first";
            verbs::Error::from_io("recvmsg", Errno::INVAL).detail(reason)
        })?;
        let Some(first) = node.first() else {
            return Ok(node.is_read_shut().then_some(RecvMeta {
                len: 0,
                full_len: 0,
                source: None,
            }));
        };
        let bytes = &first.message.as_ref()[first.range.clone()];
        let mut rest = bytes;
        for buf in bufs {
            let (piece, after) = rest.split_at(rest.len().min(buf.len()));
            buf[..piece.len()].copy_from_slice(piece);
            rest = after;
        }
        let received = RecvMeta {
            len: bytes.len() - rest.len(),
            full_len: bytes.len(),
            source: Some(first.source),
        };
        if !peek
            && let Some(dequeued) = node.take()
            && let Stored::Receive(name, buffer) = dequeued.message
            && let Some(local) = self.locals.get_mut(&name)
        {
            local.repost(buffer)?;
        }
        Ok(Some(RecvMeta {
            source: received.source.map(|source| self.to_program(source)),
            ..received
        }))
    }

    /// The length of the next datagram to read, 0 if there is none.
    pub(super) fn unread(&self) -> usize {
        let first = self.node.as_ref().and_then(Node::first);
        first.map_or(0, |first| first.range.len())
    }

    pub(super) fn stats(&self) -> DatagramStats {
        self.node.as_ref().map(Node::stats).unwrap_or_default()
    }

    fn to_program(&self, addr: SocketAddr) -> SocketAddr {
        self.udp.as_ref().map_or(addr, |udp| udp.to_program(addr))
    }

    /// Receives from UDP, and wakes writers when UDP has room again.
    pub(super) fn udp_ready(&mut self) {
        if self.udp_full
            && let Some(udp) = &self.udp
            && udp.is_writable()
        {
            // A failure causes only superfluous notifications.
            drop(self.engine.watch_udp_writable(self.name, udp, false));
            self.udp_full = false;
            self.wake();
        }
        let mut buffer = [0; UDP_BUFFER_SIZE];
        for _ in 0..MAX_UDP_PER_ROUND {
            let Some(udp) = &self.udp else { return };
            match udp.receive(&mut buffer) {
                Ok((len, from)) => {
                    if let Some(bytes) = buffer.get(..len) {
                        self.handle_udp(from, bytes);
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => {
                    // An ICMP error, such as an unreachable port.
                    self.error.get_or_insert(err);
                    self.wake();
                    break;
                }
            }
        }
    }

    /// Handles a UDP message. Ignores malformed messages, and senders beyond the reach of any RDMA device.
    fn handle_udp(&mut self, from: SocketAddr, bytes: &[u8]) {
        let peer = canonical(from);
        if Exchange::decode(bytes, peer.ip()).is_err() {
            return;
        }
        let Ok(name) = self.local_for(peer) else {
            return;
        };
        let now = self.now();
        let (Some(node), Some(local)) = (&mut self.node, self.locals.get(&name)) else {
            return;
        };
        let Ok(outcome) = node.udp_received(peer, bytes, now) else {
            return;
        };
        if outcome.answer
            && let Some(udp) = &self.udp
        {
            let header = exchange(local, Operation::Answer);
            // If the answer is lost, the next message causes another.
            drop(udp.send(&[IoSlice::new(&header)], peer));
        }
        if outcome.resolve {
            let this = Weak::clone(&self.this);
            if resolve::start(&self.engine, this, local.addr(), peer, self.tos).is_err() {
                node.path_resolved(peer, None, now);
            }
        }
        if let Some(payload) = outcome.payload {
            // Without room, the datagram is lost.
            drop(node.arrived_by_udp(peer, Stored::Copy(payload.to_vec())));
            self.wake();
        }
    }

    pub(super) fn path_resolved(&mut self, peer: SocketAddr, path: Option<PeerPath>) {
        let now = self.now();
        if let Some(node) = &mut self.node {
            node.path_resolved(peer, path, now);
        }
    }

    pub(super) fn shut_down(&mut self, direction: Direction) -> io::Result<()> {
        self.begin()?;
        if let Some(node) = &mut self.node {
            node.shut_down(direction);
        }
        self.wake();
        Ok(())
    }

    /// Whether sends block because the process exits.
    pub(super) fn set_exiting(&mut self, exiting: bool) {
        self.exiting = exiting;
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.node.as_ref().is_none_or(Node::is_flushed)
    }

    /// Starts closing: no further sends and receives. Returns whether this is the first call.
    pub(super) fn begin_close(&mut self) -> bool {
        let new = !self.closing;
        self.closing = true;
        new
    }

    /// Releases all resources. Returns the identifiers of the local endpoints.
    pub(super) fn end(&mut self) -> Vec<Key> {
        if let Some(udp) = self.udp.take() {
            self.engine.unwatch_udp(&udp);
        }
        let locals = std::mem::take(&mut self.locals);
        self.node = None;
        self.wake();
        locals.into_values().map(|local| local.key()).collect()
    }
}

impl Pollable for DatagramState {
    fn readiness(&self) -> Readiness {
        if self.exiting {
            return Readiness::default();
        }
        let fresh = Readiness {
            writable: true,
            ..Readiness::default()
        };
        let readiness = self.node.as_ref().map_or(fresh, Node::readiness);
        Readiness {
            writable: readiness.writable && !self.udp_full,
            hung_up: readiness.hung_up || self.udp.is_none(),
            failed: self.error.is_some(),
            ..readiness
        }
    }
}

impl Source for DatagramState {
    type Interest = Interest;
    type Error = io::Error;

    fn waiters(&mut self) -> &mut Waiters<Interest> {
        &mut self.waiters
    }

    fn process(&mut self) -> io::Result<bool> {
        let now = self.now();
        let Some(node) = &mut self.node else {
            return Ok(false);
        };
        let mut progressed = false;
        let mut broken = Vec::new();
        for (&name, local) in &mut self.locals {
            let scope = local.scope();
            let processed = local.process(|done| match done {
                Done::Sent { ok } => {
                    node.end_send();
                    if !ok {
                        broken.push(name);
                    }
                    None
                }
                Done::Broken => {
                    broken.push(name);
                    None
                }
                Done::Received(buffer) => {
                    let dropped = node.arrived(Stored::Receive(name, buffer), GRH_LEN, scope, now);
                    match dropped {
                        Err(Stored::Receive(_, buffer)) => Some(buffer),
                        _ => None,
                    }
                }
            });
            match processed {
                Ok(some) => progressed |= some,
                Err(_) => broken.push(name),
            }
        }
        // A queue pair does not recover from an error. The next datagram creates another.
        for name in broken {
            progressed = true;
            self.remove_local(name);
        }
        if progressed {
            self.wake();
        }
        Ok(progressed)
    }

    fn drain_events(&mut self) -> io::Result<()> {
        self.locals
            .values_mut()
            .try_for_each(LocalEndpoint::drain_events)
    }

    fn arm(&mut self) -> io::Result<()> {
        self.locals.values_mut().try_for_each(LocalEndpoint::arm)
    }
}

fn closed() -> io::Error {
    verbs::Error::from_io("socket", Errno::BADF)
        .detail("the socket is closed")
        .into()
}

fn removed() -> io::Error {
    let reason = "the device of the socket's address is removed";
    verbs::Error::from_io("sendmsg", Errno::NETDOWN)
        .detail(reason)
        .into()
}

/// Encodes the header of a UDP message from a local endpoint.
fn exchange(local: &LocalEndpoint, operation: Operation) -> Encoded {
    Exchange {
        operation,
        qp_num: local.qp_num(),
        addr: local.addr().ip(),
    }
    .encode()
}
