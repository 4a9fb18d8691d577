//! The socket API.

mod descriptors;
mod memory;
mod operation;
mod options;
mod received;
mod sending;

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

pub use memory::{ExportOptions, RdmaBuffer};
pub use operation::{Atomic, Rdma};
use rustix::io::Errno;

pub(crate) use descriptors::Descriptors;
use received::RxTimestamps;
pub use received::{Event, Latency, Message, Notification, RecvMeta};
pub use sending::{SendOptions, Sent};

use crate::{
    engine::{Engine, EngineState, Guard, WaitMode},
    errno::socket_error,
    proto::{
        SocketId,
        node::{self, DEFAULT_LIMIT, Delivery, SocketStats},
    },
    slots::FrameBody,
};

/// Readiness of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness {
    /// A message or another event can be received.
    pub readable: bool,
    /// The send buffer has room. The destination may still be congested.
    pub writable: bool,
    /// A port of a refused send is no longer congested, since the last query. Always `false` with
    /// [congestion monitoring](Socket::set_congestion_monitor).
    pub map_changed: bool,
}

/// Conditions for readiness of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Something can be received.
    Read,
    /// Something can be received, or the send buffer has room.
    ReadWrite,
}

/// Options of a socket outside of the protocol.
#[derive(Debug, Default)]
struct SocketOptions {
    nonblocking: bool,
    read: Option<Duration>,
    write: Option<Duration>,
    recverr: bool,
    tos: u8,
    /// `SO_RDS_TRANSPORT` was set.
    transport: bool,
}

/// Flags of a receive call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecvFlags {
    peek: bool,
    dont_wait: bool,
}

/// A socket for reliable datagrams, similar to [`std::net::UdpSocket`].
///
/// Messages of up to 1 MiB are delivered whole, once, and in order for each pair of sockets, even
/// if the connection between the hosts is lost and reestablished. The peer is another socket of
/// this crate, or an `AF_RDS` socket of a Linux kernel.
///
/// A successful send means the message is queued. Closing the socket or exiting the process
/// discards unacknowledged messages.
///
/// # Examples
/// ```
/// # let _fabric = doctest::lasting_host();
/// # let peer = rds::Socket::bind("10.9.0.2:4000")?;
/// let socket = rds::Socket::bind("10.9.0.1:4000")?;
/// socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap())?;
/// # peer.send_to(b"welcome", "10.9.0.1:4000".parse().unwrap())?;
/// let mut answer = [0; 100];
/// let (len, from) = socket.recv_from(&mut answer)?;
/// println!("{from}: {:?}", &answer[..len]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # References
/// [rds(7)](https://man7.org/linux/man-pages/man7/rds.7.html)
#[derive(Debug)]
pub struct Socket {
    id: SocketId,
    descriptors: Arc<Descriptors>,
    limits: Mutex<(u32, u32)>,
    options: Mutex<SocketOptions>,
    engine: Engine,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Socket {
    /// Creates an unbound socket on the [shared](Engine::shared) engine.
    ///
    /// # Errors
    /// - `NotFound`: there is no RDMA device.
    /// - Any error of creating descriptors or a thread.
    pub fn new() -> io::Result<Self> {
        Self::of(&Engine::shared()?)
    }

    /// Creates a socket bound to `addr`; port 0 selects a free port.
    ///
    /// # Errors
    /// As for [`new`](Self::new) and [`bind_to`](Self::bind_to).
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let socket = Self::new()?;
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to bind to");
        for addr in addr.to_socket_addrs()? {
            match socket.bind_to(addr) {
                Ok(_) => return Ok(socket),
                Err(err) => last = err,
            }
        }
        Err(last)
    }

    pub(crate) fn of(engine: &Engine) -> io::Result<Self> {
        let mut state = engine.inner().lock()?;
        let id = state.node.socket();
        let descriptors = Arc::new(Descriptors::new(id, state.options.busy_poll));
        state.sockets.insert(id, Arc::clone(&descriptors));
        drop(state);
        Ok(Self {
            id,
            descriptors,
            limits: Mutex::new((DEFAULT_LIMIT, DEFAULT_LIMIT)),
            options: Mutex::default(),
            engine: engine.clone(),
        })
    }

    fn lock(&self) -> io::Result<Guard<'_>> {
        self.engine.inner().lock()
    }

    /// The engine of the socket.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// `bind(2)`—Binds the socket permanently, and returns the bound address; port 0 selects a free
    /// port. From now on, peers can connect to this host.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is bound, the address is not a host's, or the port is 1.
    /// - `AddrInUse`: another socket is bound to the address, another process uses RDS on its IP,
    ///   or the kernel module `rds_rdma` is loaded. The text names the reason.
    /// - `AddrNotAvailable`: no RDMA device has the address.
    /// - `OutOfMemory`: the process may lock too little memory (`RLIMIT_MEMLOCK`) for one connection of the device. 8 MiB
    ///   suffice.
    /// - `Unsupported`: the process is a child of a process with open RDMA devices.
    /// - `ENOPROTOOPT`: a loopback address, after [`set_transport`](Self::set_transport).
    ///
    /// # References
    /// [rds(7)](https://man7.org/linux/man-pages/man7/rds.7.html)
    pub fn bind_to(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let bound = self.lock()?.node.can_bind(self.id, addr);
        let bound = bound.map_err(socket_error)?;
        if bound.ip().is_loopback() && lock(&self.options).transport {
            let reason =
                format!("{bound} has no RDMA device, but transport 0, InfiniBand, is selected");
            return Err(verbs::Error::from_io("bind", Errno::NOPROTOOPT)
                .detail(reason)
                .into());
        }
        let mut state = self.engine.inner().open(bound)?;
        let is_first = !state.node.is_local(bound.ip());
        let bound = state.node.bind(self.id, bound).map_err(socket_error)?;
        if is_first {
            // Connections from an address are retried while a socket is bound to the address.
            state.set_timers();
        }
        self.engine.inner().drive(&mut state);
        Ok(bound)
    }

    /// `connect(2)`—Sets the default destination; repeatable. Sends nothing, and succeeds even if
    /// the peer does not exist.
    ///
    /// # Errors
    /// - `InvalidInput`: the address is not a host's.
    /// - `Unsupported`: the socket is bound to an address of another family or scope.
    pub fn connect(&self, addr: SocketAddr) -> io::Result<()> {
        let mut state = self.lock()?;
        state.node.connect(self.id, addr).map_err(socket_error)
    }

    /// `getsockname(2)`—The bound address, or the unspecified IPv4 address with port 0.
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let bound = self.bound_addr()?;
        Ok(bound.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into()))
    }

    /// The bound address, if any.
    fn bound_addr(&self) -> io::Result<Option<SocketAddr>> {
        let names = self.lock()?.node.names(self.id);
        names.map(|(local, _)| local).map_err(socket_error)
    }

    /// `getpeername(2)`—The default destination.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no default destination.
    /// - `Unsupported`: the socket belongs to the parent process.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let names = self.lock()?.node.names(self.id);
        let (_, peer) = names.map_err(socket_error)?;
        Ok(peer.ok_or(io::ErrorKind::NotConnected)?)
    }

    /// Receives the next message into `buf`, like [`recv_from`](Self::recv_from). Returns the number
    /// of bytes.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buf)?.0)
    }

    /// Receives the next message into `buf`. Returns the number of bytes and the sender. Excess
    /// bytes are discarded; use [`recv_message`](Self::recv_message) for messages of any length.
    /// Blocks unless [nonblocking](Self::set_nonblocking).
    ///
    /// Other events stay queued for [`recv_event`](Self::recv_event).
    ///
    /// # Errors
    /// - `WouldBlock`: no message, on a nonblocking socket or within the
    ///   [timeout](Self::set_read_timeout).
    /// - `Interrupted`: a signal handler has run, with or without `SA_RESTART`.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let message = self.recv_message()?;
        Ok((message.copy_to(&mut [IoSliceMut::new(buf)]), message.from()))
    }

    /// Receives the next message without a copy. Blocks unless
    /// [nonblocking](Self::set_nonblocking).
    ///
    /// Other events stay queued for [`recv_event`](Self::recv_event).
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn recv_message(&self) -> io::Result<Message> {
        self.receive_message(RecvFlags::default())
    }

    /// Receives like [`recv_message`](Self::recv_message), without blocking.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn try_recv_message(&self) -> io::Result<Message> {
        self.receive_message(RecvFlags {
            dont_wait: true,
            peek: false,
        })
    }

    fn receive_message(&self, flags: RecvFlags) -> io::Result<Message> {
        let mut state = self.until(flags, |socket, state| {
            let pending = state.node.pending(socket.id);
            Ok(pending.map_err(socket_error)?.message)
        })?;
        self.take_message(&mut state)
    }

    /// `recvmsg(2)`—Receives the next message or other event, without a copy. Blocks unless
    /// [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    ///
    /// # References
    /// [recvmsg(2)](https://man7.org/linux/man-pages/man2/recvmsg.2.html)
    pub fn recv_event(&self) -> io::Result<Event> {
        self.receive(RecvFlags::default())
    }

    /// Receives like [`recv_event`](Self::recv_event), without blocking.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn try_recv_event(&self) -> io::Result<Event> {
        self.receive(RecvFlags {
            dont_wait: true,
            peek: false,
        })
    }

    fn receive(&self, flags: RecvFlags) -> io::Result<Event> {
        let mut state = self.until(flags, |socket, state| {
            let pending = state.node.pending(socket.id).map_err(socket_error)?;
            Ok(pending.message || pending.event || socket.descriptors.has_zero_copy_done())
        })?;
        let pending = state.node.pending(self.id).map_err(socket_error)?;
        if !pending.event && !self.descriptors.has_zero_copy_done() {
            let message = self.take_message(&mut state)?;
            return Ok(Event::Message(message));
        }
        self.take_other(&mut state)
    }

    /// Takes an event with priority over messages. The caller has checked for one.
    #[inline(never)]
    fn take_other(&self, state: &mut EngineState) -> io::Result<Event> {
        let received = if let Some(name) = self.descriptors.take_zero_copy_done() {
            Event::ZeroCopyDone(name)
        } else {
            match state.node.receive(self.id).map_err(socket_error)? {
                Some(node::Event::Operation(notification)) => Event::Operation(Notification {
                    token: notification.token,
                    status: notification.status,
                }),
                Some(node::Event::Congestion(ports)) => Event::Congestion(ports),
                Some(node::Event::Message(delivery)) => {
                    Event::Message(self.message(state, delivery))
                }
                None => return Err(io::ErrorKind::WouldBlock.into()),
            }
        };
        self.received(state);
        Ok(received)
    }

    /// Takes the next message. The caller has checked for one.
    #[inline(always)]
    fn take_message(&self, state: &mut EngineState) -> io::Result<Message> {
        let delivery = state.node.receive_message(self.id).map_err(socket_error)?;
        let delivery = delivery.ok_or(io::ErrorKind::WouldBlock)?;
        let message = self.message(state, delivery);
        self.received(state);
        Ok(message)
    }

    /// Completes a receive: peers are informed of room in the receive buffer, and the descriptor is
    /// updated.
    fn received(&self, state: &mut EngineState) {
        self.engine.inner().drive(state);
        self.descriptors.show_if_watched(&mut state.node);
    }

    /// Converts a delivery, adding the scope id of this socket to the sender.
    #[inline(always)]
    fn message(&self, state: &EngineState, delivery: Delivery<FrameBody>) -> Message {
        let Delivery {
            from,
            times,
            len,
            bodies,
            cookie,
            ..
        } = delivery;
        let epoch = self.engine.inner().epoch;
        let now = epoch.elapsed();
        let (began, last_frame) = times.unwrap_or((now, now));
        Message {
            from: state.sender(self.id, from),
            timestamps: RxTimestamps::new(epoch, began, last_frame, now),
            len,
            bodies,
            cookie,
        }
    }

    /// Receives like [`recv`](Self::recv), and leaves the message queued.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buf)?.0)
    }

    /// Receives like [`recv_from`](Self::recv_from), and leaves the message queued.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    #[doc(alias = "MSG_PEEK")]
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let peeked = self.peek_next(&mut [IoSliceMut::new(buf)], false)?;
        let RecvMeta { len, source, .. } = peeked.ok_or(io::ErrorKind::WouldBlock)?;
        Ok((len, source))
    }

    /// `recvmsg(2)` with `MSG_PEEK`—Copies the next message to `bufs` and leaves the message queued;
    /// `None` if another [event](Self::recv_event) comes first. Blocks unless
    /// [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn peek_msg(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<Option<RecvMeta>> {
        self.peek_next(bufs, true)
    }

    /// Peeks at the next message, or, with `before_events`, only if no other event comes first.
    fn peek_next(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        before_events: bool,
    ) -> io::Result<Option<RecvMeta>> {
        let flags = RecvFlags {
            peek: true,
            dont_wait: false,
        };
        let is_event_next = |socket: &Self, event: bool| {
            before_events && (event || socket.descriptors.has_zero_copy_done())
        };
        let state = self.until(flags, |socket, state| {
            let pending = state.node.pending(socket.id).map_err(socket_error)?;
            Ok(pending.message || is_event_next(socket, pending.event))
        })?;
        let pending = state.node.pending(self.id).map_err(socket_error)?;
        if is_event_next(self, pending.event) {
            return Ok(None);
        }
        let peeked = state.node.peek(self.id).map_err(socket_error)?;
        Ok(peeked.map(|delivery| RecvMeta {
            len: received::copy(&delivery.bodies, bufs),
            full_len: delivery.len as usize,
            source: state.sender(self.id, delivery.from),
        }))
    }

    /// Blocks until `is_ready`.
    #[inline]
    fn until(
        &self,
        flags: RecvFlags,
        mut is_ready: impl FnMut(&Self, &mut EngineState) -> io::Result<bool>,
    ) -> io::Result<Guard<'_>> {
        let mut mode = {
            let options = lock(&self.options);
            self.mode(flags.dont_wait || options.nonblocking, options.read)
        };
        let mut state = self.lock()?;
        while !is_ready(self, &mut state)? {
            state = self.engine.inner().wait(state, self.id, &mut mode)?;
        }
        Ok(state)
    }

    fn mode(&self, dont_wait: bool, timeout: Option<Duration>) -> WaitMode {
        WaitMode::new(dont_wait, timeout, self.descriptors.busy_poll())
    }

    /// The current readiness. Does not block.
    ///
    /// Arms the descriptor: it becomes readable when an event can be received, when the port of a
    /// refused send is no longer congested, and, with [`ReadWrite`](Interest::ReadWrite), when the send buffer has room,
    /// until the next send. If not ready, poll the descriptor and query again.
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    /// - `EMFILE`, `ENFILE`: too many open files. The first call creates the descriptor.
    pub fn readiness(&self, interest: Interest) -> io::Result<Readiness> {
        let mut state = self.lock()?;
        self.descriptors.watch()?;
        state.schedule.watch(self.id);
        let blocked = interest == Interest::ReadWrite;
        self.descriptors.set_blocked(&mut state.node, blocked);
        let readiness = self.descriptors.show(&mut state.node);
        if readiness.map_changed {
            self.descriptors.clear_map_changed();
            self.descriptors.show(&mut state.node);
        }
        Ok(readiness)
    }

    /// The part of `interest` that is ready, for callers with one descriptor per condition: the
    /// socket's descriptor for receiving and congestion, and [`writable_fd`](Self::writable_fd) for
    /// sending. Does not block.
    ///
    /// Any number of threads can poll one socket for different conditions. If `readable` or
    /// `map_changed` is set, the socket's descriptor no longer includes room to send, as with
    /// [`Interest::Read`].
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    /// - Any error of creating a descriptor.
    pub fn readiness_of(&self, interest: Readiness) -> io::Result<Readiness> {
        let mut state = self.lock()?;
        if interest.writable {
            self.descriptors.watch_writable()?;
        }
        state.schedule.watch(self.id);
        if interest.readable || interest.map_changed {
            self.descriptors.watch()?;
            self.descriptors.set_blocked(&mut state.node, false);
        }
        let now = self.descriptors.show(&mut state.node);
        let readiness = Readiness {
            readable: now.readable && interest.readable,
            writable: now.writable && interest.writable,
            map_changed: now.map_changed && interest.map_changed,
        };
        if readiness.map_changed {
            self.descriptors.clear_map_changed();
            self.descriptors.show(&mut state.node);
        }
        Ok(readiness)
    }

    /// A descriptor readable while the send buffer has room. Confirm with
    /// [`readiness_of`](Self::readiness_of), because another thread may have used the room.
    ///
    /// # Errors
    /// Any error of creating a descriptor.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.descriptors.watch_writable()
    }

    /// Wakes a task at the next change of the socket.
    pub(crate) fn wake_on_change(&self, waker: &Waker) {
        // If the socket belongs to the parent process, the next call fails.
        if let Ok(mut state) = self.lock() {
            state.schedule.waiters.add_task(self.id, waker);
        }
    }

    /// `RDS_CANCEL_SENT_TO`—Cancels unacknowledged messages to an address, or to all. Some may have
    /// been delivered.
    ///
    /// # Errors
    /// - `NotConnected`: the socket is unbound.
    #[doc(alias = "RDS_CANCEL_SENT_TO")]
    pub fn cancel_sent_to(&self, to: Option<SocketAddr>) -> io::Result<()> {
        let mut state = self.lock()?;
        state.node.cancel(self.id, to).map_err(socket_error)?;
        self.engine.inner().drive(&mut state);
        Ok(())
    }

    /// Bytes in the send buffer (`SIOCOUTQ`) and in the receive buffer (`SIOCINQ`).
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    pub fn queued(&self) -> io::Result<(u64, u64)> {
        let mut state = self.lock()?;
        state.node.retire_acked();
        state.node.waiting(self.id).map_err(socket_error)
    }

    /// Returns the statistics of the socket. Takes the engine's lock, which sends and receives take too, for the time of a copy.
    ///
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// let receiver = rds::Socket::bind("10.9.0.2:4000")?;
    /// let socket = rds::Socket::bind("10.9.0.1:4000")?;
    /// socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap())?;
    /// receiver.recv(&mut [0; 5])?;
    /// assert_eq!(socket.stats()?.bytes_sent, 5);
    /// assert_eq!(receiver.stats()?.messages_received, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    pub fn stats(&self) -> io::Result<SocketStats> {
        self.lock()?
            .node
            .socket_stats(self.id)
            .map_err(socket_error)
    }
}

impl AsFd for Socket {
    /// A descriptor readable when something can be received; see also
    /// [`readiness`](Self::readiness). The first call creates the descriptor; without a free one
    /// (`EMFILE`), returns a descriptor that is always readable, until a later call succeeds.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let Ok(fd) = self.descriptors.watch() else {
            return self.engine.inner().readable_fd();
        };
        if let Ok(mut state) = self.lock() {
            state.schedule.watch(self.id);
            self.descriptors.show(&mut state.node);
        }
        fd
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A socket of the parent process stays open.
        if let Ok(mut state) = self.lock() {
            let exports = state.forget(self.id);
            // The socket is open.
            let _: Result<(), _> = state.node.close(self.id);
            self.engine.inner().drive(&mut state);
            // Without the lock, because deregistration is slow.
            drop(state);
            drop(exports);
        }
    }
}
