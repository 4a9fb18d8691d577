//! Sockets, as programs use them.

mod memory;
mod operation;
mod options;
mod received;
mod sending;
mod waiters;

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::{Duration, Instant},
};

pub use memory::{ExportOptions, RdmaBuffer};
pub use operation::{Atomic, Rdma};
use rustix::io::Errno;

use received::RxTimestamps;
pub use received::{Latency, Message, Notification, Received};
pub use sending::{SendOptions, Sent};
pub(crate) use waiters::Waiters;

use crate::{
    engine::{Engine, State},
    errno::socket_error,
    proto::{
        SocketId,
        node::{DEFAULT_LIMIT, Delivery, Event},
    },
    slots::Body,
};

/// What a socket can do without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness {
    /// There is something to receive.
    pub readable: bool,
    /// Less is sent and not acknowledged than may be. The destination may still be congested.
    pub writable: bool,
    /// Some peer has told anew which of its ports are congested. It is told once, and not to sockets
    /// that [monitor](Socket::set_congestion_monitor) congestion.
    pub map_changed: bool,
}

/// What somebody who does not wait in a call wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// When there is something to receive.
    Read,
    /// When something can be sent, too.
    ReadWrite,
}

/// How a socket waits, and what else was chosen.
#[derive(Debug, Default)]
struct SocketOptions {
    nonblocking: bool,
    read: Option<Duration>,
    write: Option<Duration>,
    recverr: bool,
    tos: u8,
    /// The transport has been chosen, of which there is one.
    transport: bool,
    /// When messages come is to be known exactly.
    exact: bool,
}

/// What to receive, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecvFlags {
    peek: bool,
    dont_wait: bool,
}

/// A socket for reliable datagrams, in the manner of [`std::net::UdpSocket`].
///
/// Messages of up to 1 MiB arrive whole, once, and in the order in which one socket has sent them to
/// another, however often the connection between the hosts is lost meanwhile. The peer is another of
/// these, or a socket of a Linux kernel (`AF_RDS` over RDMA).
///
/// That a message is sent means that it is queued. A socket that is closed, or whose process ends,
/// takes with it what nobody has acknowledged.
///
/// # Examples
/// ```no_run
/// let socket = rds::Socket::bind("10.9.0.1:4000")?;
/// socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap())?;
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
    waiters: Arc<Waiters>,
    limits: Mutex<(u32, u32)>,
    options: Mutex<SocketOptions>,
    engine: Engine,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Socket {
    /// A socket without an address, of the [shared](Engine::shared) engine.
    ///
    /// # Errors
    /// - `NotFound`: there is no RDMA device.
    /// - Whatever making descriptors or a thread fails with.
    pub fn new() -> io::Result<Self> {
        Self::of(&Engine::shared()?)
    }

    /// A socket with an address; port 0 stands for any that is free.
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
        let waiters = Arc::new(Waiters::new(id, state.busy_poll())?);
        state.sockets.insert(id, Arc::clone(&waiters));
        drop(state);
        Ok(Self {
            id,
            waiters,
            limits: Mutex::new((DEFAULT_LIMIT, DEFAULT_LIMIT)),
            options: Mutex::default(),
            engine: engine.clone(),
        })
    }

    fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        self.engine.inner().lock()
    }

    /// The engine that the socket belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// `bind(2)`—Gives the socket its address, for good, and returns it; port 0 stands for any that
    /// is free. Peers can connect to this host from now on.
    ///
    /// # Errors
    /// - `InvalidInput`: it has one already, no host can have that one, or the port is 1.
    /// - `AddrInUse`: another socket has it; another process has RDS at that address; or the kernel
    ///   has, as the module `rds_rdma` is loaded. The text says which.
    /// - `AddrNotAvailable`: no RDMA device has that address.
    /// - `Unsupported`: the process is the child of one that has had an address of a device.
    /// - `ENOPROTOOPT`: it is this host's own, and another [transport](Self::set_transport) chosen.
    ///
    /// # References
    /// [rds(7)](https://man7.org/linux/man-pages/man7/rds.7.html)
    pub fn bind_to(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let mut state = self.lock()?;
        let bound = state.node.can_bind(self.id, addr).map_err(socket_error)?;
        if bound.ip().is_loopback() && lock(&self.options).transport {
            return Err(Errno::NOPROTOOPT.into());
        }
        state.open(bound)?;
        let bound = state.node.bind(self.id, bound).map_err(socket_error)?;
        self.engine.inner().drive(&mut state);
        Ok(bound)
    }

    /// `connect(2)`—Says where messages go that do not say it themselves. It can be said again.
    /// Nothing is sent, and whether anybody is there does not matter.
    ///
    /// # Errors
    /// - `InvalidInput`: no host can have that address.
    /// - `Unsupported`: the socket cannot reach it, having an address of another kind.
    pub fn connect(&self, addr: SocketAddr) -> io::Result<()> {
        let mut state = self.lock()?;
        state.node.connect(self.id, addr).map_err(socket_error)
    }

    /// `getsockname(2)`—The address, if it has one.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    pub fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        let names = self.lock()?.node.names(self.id);
        names.map(|(local, _)| local).map_err(socket_error)
    }

    /// `getpeername(2)`—The default destination, if it has one.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    pub fn peer_addr(&self) -> io::Result<Option<SocketAddr>> {
        let names = self.lock()?.node.names(self.id);
        names.map(|(_, peer)| peer).map_err(socket_error)
    }

    /// Receives the next message into `buf`, waiting for one unless
    /// [nonblocking](Self::set_nonblocking). Returns the number of bytes, and who has sent it. What
    /// does not fit is lost; see [`recv`](Self::recv) for a message of any length.
    ///
    /// What is received beside messages stays, for [`recv`](Self::recv).
    ///
    /// # Errors
    /// - `WouldBlock`: there is none, and it does not wait.
    /// - `TimedOut`: it has waited for [long enough](Self::set_read_timeout).
    /// - `Interrupted`: a signal came while it waited, and its handler was installed without `SA_RESTART`, or
    ///   the wait has a time limit. Of the calls that wait at once, only one notices.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let message = self.receive_message(RecvFlags::default())?;
        Ok((message.copy_to(&mut [IoSliceMut::new(buf)]), message.from()))
    }

    /// Receives the next message, if there is one, with its bytes where they are. What is received
    /// beside messages stays.
    ///
    /// # Errors
    /// - `WouldBlock`: there is none.
    pub fn try_recv_message(&self) -> io::Result<Message> {
        self.receive_message(RecvFlags {
            dont_wait: true,
            peek: false,
        })
    }

    fn receive_message(&self, flags: RecvFlags) -> io::Result<Message> {
        let (mut state, waited) = self.until(flags, |socket, state| {
            let pending = state.node.pending(socket.id);
            Ok(pending.map_err(socket_error)?.message)
        })?;
        self.take_message(&mut state, waited)
    }

    /// `recvmsg(2)`—Receives what is next: a message, the end of an operation, or news of
    /// congestion. Waits for it unless [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    ///
    /// # References
    /// [recvmsg(2)](https://man7.org/linux/man-pages/man2/recvmsg.2.html)
    pub fn recv(&self) -> io::Result<Received> {
        self.receive(RecvFlags::default())
    }

    /// The same without waiting, whatever the socket does.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn try_recv(&self) -> io::Result<Received> {
        self.receive(RecvFlags {
            dont_wait: true,
            peek: false,
        })
    }

    fn receive(&self, flags: RecvFlags) -> io::Result<Received> {
        let (mut state, waited) = self.until(flags, |socket, state| {
            let pending = state.node.pending(socket.id).map_err(socket_error)?;
            Ok(pending.message || pending.event || socket.waiters.has_zero_copy_done())
        })?;
        let pending = state.node.pending(self.id).map_err(socket_error)?;
        if !pending.event && !self.waiters.has_zero_copy_done() {
            let message = self.take_message(&mut state, waited)?;
            return Ok(Received::Message(message));
        }
        self.take_other(&mut state)
    }

    /// Takes what comes before messages, which there is.
    #[inline(never)]
    fn take_other(&self, state: &mut State) -> io::Result<Received> {
        let received = if let Some(name) = self.waiters.take_zero_copy_done() {
            Received::ZeroCopyDone(name)
        } else {
            match state.node.receive(self.id).map_err(socket_error)? {
                Some(Event::Operation(notification)) => Received::Operation(Notification {
                    token: notification.token,
                    status: notification.status,
                }),
                Some(Event::Congestion(ports)) => Received::Congestion(ports),
                Some(Event::Message(delivery)) => {
                    Received::Message(self.message(state, delivery, false))
                }
                None => return Err(io::ErrorKind::WouldBlock.into()),
            }
        };
        self.received(state);
        Ok(received)
    }

    /// Takes the next message, which there is; for it, this call may have `waited`.
    #[inline(always)]
    fn take_message(&self, state: &mut State, waited: bool) -> io::Result<Message> {
        let delivery = state.node.receive_message(self.id).map_err(socket_error)?;
        let delivery = delivery.ok_or(io::ErrorKind::WouldBlock)?;
        let message = self.message(state, delivery, waited);
        self.received(state);
        Ok(message)
    }

    /// Something has been received: room may have become free, of which peers hear.
    fn received(&self, state: &mut State) {
        self.engine.inner().received(state, self.id);
        self.waiters.show_if_watched(&mut state.node);
    }

    /// A message, whose sender is on the link of this socket. It has just come if the call has `waited`.
    #[inline(always)]
    fn message(&self, state: &State, delivery: Delivery<Body>, waited: bool) -> Message {
        let Delivery {
            from,
            times,
            len,
            bodies,
            cookie,
            ..
        } = delivery;
        let clock = self.engine.inner().clock();
        let now = if waited {
            clock.after(state.looked_at)
        } else {
            clock.now()
        };
        let (began, whole) = times.unwrap_or((now, now));
        Message {
            from: state.sender(self.id, from),
            timestamps: RxTimestamps::new(clock.epoch(), began, whole, now),
            len,
            bodies,
            cookie,
        }
    }

    /// `MSG_PEEK`—Copies the next message to `bufs`, and leaves it there. Returns the number of
    /// bytes copied, the number that it has, and who has sent it; nothing, without waiting, if
    /// something else is to be received first.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    #[doc(alias = "MSG_PEEK")]
    pub fn peek(
        &self,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<(usize, usize, SocketAddr)>> {
        let flags = RecvFlags {
            peek: true,
            dont_wait: false,
        };
        let (state, _) = self.until(flags, |socket, state| {
            let peeked = state.node.peek(socket.id).map_err(socket_error)?;
            Ok(peeked.is_some() || socket.waiters.show(&mut state.node).readable)
        })?;
        let peeked = state.node.peek(self.id).map_err(socket_error)?;
        Ok(peeked.map(|delivery| {
            let copied = received::copy(&delivery.bodies, bufs);
            let from = state.sender(self.id, delivery.from);
            (copied, delivery.len as usize, from)
        }))
    }

    /// Waits until it `is_ready`, and says whether it has had to wait.
    #[inline]
    fn until(
        &self,
        flags: RecvFlags,
        mut is_ready: impl FnMut(&Self, &mut State) -> io::Result<bool>,
    ) -> io::Result<(MutexGuard<'_, State>, bool)> {
        let (dont_wait, timeout) = {
            let options = lock(&self.options);
            (flags.dont_wait || options.nonblocking, options.read)
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock()?;
        let mut looked = false;
        // Before that, everything is as it was left, and shown.
        let mut waited = false;
        loop {
            if is_ready(self, &mut state)? {
                return Ok((state, waited));
            }
            if waited && !flags.peek {
                self.engine.inner().drive(&mut state);
                self.waiters.show_if_watched(&mut state.node);
            }
            waited = true;
            if dont_wait {
                if !looked && self.engine.inner().look(&mut state) {
                    looked = true;
                    continue;
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            state = self
                .engine
                .inner()
                .wait(&self.waiters, !flags.peek, state, deadline)?;
        }
    }

    /// What can be done without waiting.
    ///
    /// The descriptor of the socket is readable from then on when there is something to receive,
    /// or a peer's congestion has changed; and, if `interest` is
    /// [`ReadWrite`](Interest::ReadWrite), when something can be sent, until that is tried. So who
    /// finds nothing here sleeps until the descriptor is readable, and asks again.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    pub fn readiness(&self, interest: Interest) -> io::Result<Readiness> {
        let mut state = self.lock()?;
        self.waiters.watch();
        self.engine.inner().observe(&mut state, self.id);
        let blocked = interest == Interest::ReadWrite;
        self.waiters.set_blocked(&mut state.node, blocked);
        let readiness = self.waiters.show(&mut state.node);
        if readiness.map_changed {
            self.waiters.told();
            self.waiters.show(&mut state.node);
        }
        Ok(readiness)
    }

    /// What of `wanted` can be done without waiting, for who sleeps on a descriptor for each: that of the
    /// socket if there is nothing to receive, or to be told of congestion, and
    /// [`room_fd`](Self::room_fd) if nothing can be sent.
    ///
    /// Any number of threads may do so for one socket, each for something else. As with
    /// [`Interest::Read`], the descriptor of the socket tells nothing of sending from then on, if what it
    /// tells of is wanted.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    /// - Whatever making a descriptor fails with.
    pub fn readiness_of(&self, wanted: Readiness) -> io::Result<Readiness> {
        let mut state = self.lock()?;
        if wanted.writable {
            self.waiters.watch_room()?;
        }
        self.engine.inner().observe(&mut state, self.id);
        if wanted.readable || wanted.map_changed {
            self.waiters.watch();
            self.waiters.set_blocked(&mut state.node, false);
        }
        let now = self.waiters.show(&mut state.node);
        let readiness = Readiness {
            readable: now.readable && wanted.readable,
            writable: now.writable && wanted.writable,
            map_changed: now.map_changed && wanted.map_changed,
        };
        if readiness.map_changed {
            self.waiters.told();
            self.waiters.show(&mut state.node);
        }
        Ok(readiness)
    }

    /// A descriptor that is readable while less is sent and not acknowledged than may be. Who finds it so
    /// asks [`readiness_of`](Self::readiness_of), since it may have been readable for somebody else.
    ///
    /// # Errors
    /// Whatever making a descriptor fails with.
    pub fn room_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.waiters.watch_room()
    }

    /// Wakes a task when something changes next.
    pub(crate) fn wake_on_change(&self, waker: &Waker) {
        self.waiters.add_task(waker);
        // Where it belongs to the parent of this process, the next call says so.
        if let Ok(mut state) = self.lock() {
            self.engine.inner().observe(&mut state, self.id);
        }
    }

    /// `RDS_CANCEL_SENT_TO`—Takes back what the socket has sent to an address, or to all, and
    /// nobody has acknowledged. Some of it may have arrived.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no address.
    #[doc(alias = "RDS_CANCEL_SENT_TO")]
    pub fn cancel_sent_to(&self, to: Option<SocketAddr>) -> io::Result<()> {
        let mut state = self.lock()?;
        state.node.cancel(self.id, to).map_err(socket_error)?;
        self.engine.inner().drive(&mut state);
        Ok(())
    }

    /// The bytes that wait to be acknowledged (`SIOCOUTQ`), and to be received (`SIOCINQ`).
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    pub fn queued(&self) -> io::Result<(u64, u64)> {
        let mut state = self.lock()?;
        state.node.retire_acked();
        state.node.waiting(self.id).map_err(socket_error)
    }
}

impl AsFd for Socket {
    /// Readable when there is something to receive; see also [`readiness`](Self::readiness).
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.waiters.watch();
        if let Ok(mut state) = self.lock() {
            self.engine.inner().observe(&mut state, self.id);
            self.waiters.show(&mut state.node);
        }
        fd
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if lock(&self.options).exact {
            self.engine.inner().clock().want_exact(false);
        }
        // That of a parent is not this process's to close.
        if let Ok(mut state) = self.lock() {
            // What waits to be sent with more is sent.
            self.engine.inner().drive(&mut state);
            state.forget(self.id);
            // It is open.
            let _: Result<(), _> = state.node.close(self.id);
            self.engine.inner().drive(&mut state);
        }
    }
}
