//! Sending messages, and what goes with them.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    sync::{Arc, MutexGuard},
    time::{Duration, Instant},
};

use rustix::io::Errno;
use verbs::RemoteRegion;

use super::{Atomic, Rdma, Socket, lock};
use crate::{
    device::Device,
    engine::{Progress, State},
    errno::socket_error,
    outbound::{Operands, Outbound},
    proto::{
        connection::{self, Draft, Report, Status},
        node::{self, Delivery, LocalMessage, SocketError},
        wire::{Cookie, FRAGMENT},
    },
};

/// How a message is sent, and what goes with it.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    to: Option<SocketAddr>,
    dont_wait: bool,
    cookie: Option<Cookie>,
    // Boxed, since most messages have neither, and then there is little to be moved.
    rdma: Option<Box<Rdma>>,
    atomic: Option<Box<Atomic>>,
    silent: bool,
}

/// A message that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sent {
    /// The number of its bytes.
    pub len: usize,
    /// The number of its operation, if it has one: see [`Socket::barrier`].
    pub operation: Option<u64>,
}

impl SendOptions {
    /// To the default destination, waiting as the socket does.
    pub fn new() -> Self {
        Self::default()
    }

    /// To this socket.
    #[must_use]
    pub fn to(mut self, addr: SocketAddr) -> Self {
        self.to = Some(addr);
        self
    }

    /// `MSG_DONTWAIT`—Without waiting, whatever the socket does.
    #[must_use]
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn dont_wait(mut self) -> Self {
        self.dont_wait = true;
        self
    }

    /// `RDS_CMSG_RDMA_DEST`—With the name of memory of this socket that the receiver may use.
    #[must_use]
    #[doc(alias = "RDS_CMSG_RDMA_DEST")]
    pub fn cookie(mut self, cookie: Cookie) -> Self {
        self.cookie = Some(cookie);
        self
    }

    /// `RDS_CMSG_RDMA_ARGS`—After an operation on memory of the peer's.
    #[must_use]
    #[doc(alias = "RDS_CMSG_RDMA_ARGS")]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = Some(Box::new(rdma));
        self
    }

    /// `RDS_CMSG_ATOMIC_FADD` and the like—After an operation on a number of the peer's, which comes
    /// after the other operation if there are both.
    #[must_use]
    pub fn atomic(mut self, atomic: Atomic) -> Self {
        self.atomic = Some(Box::new(atomic));
        self
    }

    /// `RDS_RDMA_SILENT`—If it has no bytes, the message is not sent, but its operations are done.
    #[must_use]
    #[doc(alias = "RDS_RDMA_SILENT")]
    pub fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    fn has_operation(&self) -> bool {
        self.rdma.is_some() || self.atomic.is_some()
    }

    /// Whether nothing goes with the message.
    fn is_plain(&self) -> bool {
        self.cookie.is_none() && !self.has_operation()
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

impl Socket {
    /// Sends a message to the default destination; see [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As for [`send_to`](Self::send_to).
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new())?;
        Ok(sent.len)
    }

    /// Sends a message, of 1 MiB at most. It is queued, and sent again until the peer has it.
    ///
    /// Blocks, unless [nonblocking](Self::set_nonblocking), while as much is waiting to be
    /// acknowledged as [may be](Self::set_send_limit), or the destination can take no more.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no address.
    /// - `InvalidInput`: nobody can have that address, or the port is 1.
    /// - `Unsupported`: the addresses are of different kinds.
    /// - `WouldBlock`: it would have to wait. [`errno`](crate::errno()) is `ENOBUFS` if the
    ///   destination can take no more.
    /// - `TimedOut`: it has waited for [long enough](Self::set_write_timeout).
    /// - `Interrupted`: a signal came while it waited, and its handler was installed without `SA_RESTART`, or
    ///   the wait has a time limit. Of the calls that wait at once, only one notices.
    /// - `EMSGSIZE`: the message is longer than 1 MiB, or than [may wait](Self::set_send_limit).
    /// - `OutOfMemory`: no memory could be registered for it (`ulimit -l`).
    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        let sent = self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new().to(to))?;
        Ok(sent.len)
    }

    /// `sendmsg(2)`—Sends the bytes of all `bufs` as one message, in a way that `options` says.
    ///
    /// An operation on memory of a socket of the same engine is done at once. An atomic one is
    /// done by the device, as those of other hosts are, and blocks until it is, even where nothing else
    /// does.
    ///
    /// # Errors
    /// As for [`send_to`](Self::send_to), and:
    /// - `InvalidInput`: it has an operation *and* a cookie; the memory of an operation is of
    ///   another device, none at all, or more than is meant at the peer; or the socket does not
    ///   export what the cookie names.
    /// - `Unsupported`: an atomic operation on memory of a socket of the same engine, whose device has
    ///   none, or speaks iWARP. Or an operation before a message to port 0 of this host.
    /// - `EFAULT`: the number of an atomic operation is at no multiple of 8.
    /// - `EMSGSIZE`: an operation on more than 1 MiB, or more than 1024 pieces; or on more than fit into
    ///   [the send queue](crate::EngineOptions::sends): 1024 do by default if the device takes 8 with a
    ///   request, as most do.
    ///
    /// # References
    /// [sendmsg(2)](https://man7.org/linux/man-pages/man2/sendmsg.2.html)
    pub fn send_msg(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<Sent> {
        let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        match u32::try_from(bytes) {
            Ok(len) if len <= FRAGMENT && options.is_plain() => {
                // To lock everything twice would take longer than to copy that.
                let state = self.lock()?;
                let device = state.device_of(self.id).map_err(socket_error)?;
                let payload = Outbound::copy(bufs, device.map(AsRef::as_ref))?;
                let draft = Draft {
                    silent: options.silent,
                    ..Draft::new(len, Arc::new(payload))
                };
                self.submit(state, draft, options)
            }
            _ => {
                let (len, device) = self.check(bytes, options)?;
                let payload = Outbound::copy(bufs, device.as_deref())?;
                self.transmit(len, device, payload, options)
            }
        }
    }

    /// `MSG_ZEROCOPY`—Sends registered memory as a message, without a copy: it must not be changed,
    /// or the receiver may get something else, until [`recv`](Self::recv) says that `name` is
    /// [free](crate::Received::ZeroCopyDone).
    ///
    /// # Errors
    /// As for [`send_msg`](Self::send_msg), and:
    /// - `InvalidInput`: there is an operation, too.
    #[doc(alias = "MSG_ZEROCOPY")]
    #[doc(alias = "RDS_CMSG_ZCOPY_COOKIE")]
    pub fn send_zerocopy(
        &self,
        memory: &RemoteRegion,
        name: u32,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        if options.has_operation() {
            return Err(invalid("an operation with a message that is not copied"));
        }
        let (len, _) = self.check(memory.len(), options)?;
        let payload = Outbound::borrow(memory.clone(), name);
        self.transmit(len, None, payload, options)
    }

    /// Whether it can be sent, before anything is copied; the number of bytes, and the device that
    /// is to send them.
    fn check(&self, bytes: usize, options: &SendOptions) -> io::Result<(u32, Option<Arc<Device>>)> {
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut state = self.lock()?;
        let to = state.node.can_send(self.id, options.to, len);
        let to = to.map_err(socket_error)?;
        if options.has_operation() {
            if options.cookie.is_some() {
                return Err(invalid("an operation and a cookie with one message"));
            }
            let unsupported = |reason: &'static str| {
                let kind = io::ErrorKind::Unsupported;
                Err(io::Error::new(kind, reason))
            };
            let is_here = state.node.is_here(to.ip());
            if is_here && to.port() == 0 {
                return unsupported("an operation before a ping to this host");
            }
            if options.atomic.is_some() && is_here && !state.has_local_atomics(to.ip()) {
                return unsupported("the device of this host has no atomic operations");
            }
        }
        if let Some(cookie) = options.cookie {
            if !state.exports.contains(self.id, cookie.rkey) {
                return Err(invalid(
                    "a cookie of memory that the socket does not export",
                ));
            }
            state.exports.sent_to(self.id, cookie.rkey, to.ip());
        }
        let device = state.device_of(self.id).map_err(socket_error)?;
        Ok((len, device.cloned()))
    }

    /// Sends what is in memory of `device`, if it is.
    fn transmit(
        &self,
        len: u32,
        device: Option<Arc<Device>>,
        mut payload: Outbound,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        // Whether a connection never has room for it.
        let mut too_many = false;
        let (mut rdma, mut atomic) = (None, None);
        if let Some(wanted) = &options.rdma {
            // Without one, the error says why.
            let own = device.clone().map_or_else(|| self.device(), Ok)?;
            let checked = wanted.check(&own.pd, own.elements)?;
            too_many = checked.requests > own.room();
            rdma = Some(Box::new(checked));
        }
        if let Some(wanted) = &options.atomic {
            atomic = Some(Box::new(wanted.check(&self.device()?.pd)?));
        }
        // Whose it is has been looked at before the bytes were.
        let state = self.engine.inner().lock_here();
        if options.has_operation() {
            let to = state.node.can_send(self.id, options.to, len);
            let ip = to.map_err(socket_error)?.ip();
            if too_many && !state.node.is_here(ip) {
                return Err(Errno::MSGSIZE.into());
            }
            let pieces = options.rdma.as_ref().map(|rdma| rdma.local.clone());
            payload.operands = Some(Box::new(Operands {
                peer: ip,
                rdma: pieces.unwrap_or_default(),
                atomic: options.atomic.as_ref().map(|atomic| atomic.place.clone()),
            }));
        }
        let draft = Draft {
            cookie: options.cookie,
            silent: options.silent,
            rdma,
            atomic,
            urgent: payload.name().is_some() || options.has_operation(),
            ..Draft::new(len, Arc::new(payload))
        };
        draft.payload.keep_to(state.devices_here());
        self.submit(state, draft, options)
    }

    /// Sends a message when it may be sent.
    fn submit<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        mut draft: Draft<Arc<Outbound>>,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        let len = draft.len;
        // Whether nobody notices if it leaves with the next ones.
        let deferrable = !draft.urgent && len <= FRAGMENT;
        let peer = draft.payload.operands().map(|operands| operands.peer);
        let (dont_wait, timeout) = {
            let socket = lock(&self.options);
            (options.dont_wait || socket.nonblocking, socket.write)
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.waiters.set_blocked(&mut state.node, false);
        let mut looked = false;
        loop {
            let refused = match state.node.send(self.id, options.to, draft) {
                Ok(sent) => {
                    let operation = match (peer, &sent) {
                        (Some(peer), node::Sent::Queued(_, id)) => {
                            state.operations.begin(self.id, peer, *id);
                            Some(*id)
                        }
                        _ => None,
                    };
                    let at_once = self.sent(&mut state, sent, deferrable);
                    let (len, operation) = (len as usize, operation.or(at_once));
                    return Ok(Sent { len, operation });
                }
                Err(refused) => refused,
            };
            draft = refused.draft;
            self.engine.inner().drive(&mut state);
            match refused.error {
                SocketError::Full | SocketError::Congested(_) if !dont_wait => {}
                SocketError::Full | SocketError::Congested(_) => {
                    if !looked && self.engine.inner().look(&mut state) {
                        looked = true;
                        continue;
                    }
                    self.waiters.set_blocked(&mut state.node, true);
                    return Err(socket_error(refused.error));
                }
                error => return Err(socket_error(error)),
            }
            state = self
                .engine
                .inner()
                .wait(&self.waiters, false, state, deadline)?;
            draft.payload.keep_to(state.devices_here());
        }
    }

    /// A message is on its way, or has come; returns the number of its operation if that has ended. One that
    /// is `patient` may leave with the next ones.
    fn sent(
        &self,
        state: &mut State,
        sent: node::Sent<Arc<Outbound>>,
        deferrable: bool,
    ) -> Option<u64> {
        let now = self.engine.inner().now();
        let mut operation = None;
        if let node::Sent::Queued(connection, _) = sent {
            if deferrable && self.engine.inner().delay(state, now, connection) {
                return None;
            }
            // It leaves before anything is looked at, if there is room for it.
            self.engine.inner().drive_at(state, now);
            if !state.look_to_send(now, connection) {
                return None;
            }
        }
        if let node::Sent::Local(message) = sent {
            operation = self.deliver(state, now, message);
        }
        self.engine.inner().drive_at(state, now);
        operation
    }

    /// Does the operations of a message to a socket of this process, and delivers it. Returns the number of the
    /// last, if there is one. Apart from what is sent to other hosts.
    #[inline(never)]
    fn deliver(
        &self,
        state: &mut State,
        now: Duration,
        message: LocalMessage<Arc<Outbound>>,
    ) -> Option<u64> {
        let LocalMessage { from, to, draft } = message;
        let ended = |state: &mut State, status, report: Report| {
            state.node.ended(connection::Notification {
                owner: self.id,
                token: report.token,
                status,
                requested: report.notify,
            });
            status == Status::Success
        };
        // Whether the operations, if there are any, have all been done.
        let mut done = None;
        if let Some((rdma, operands)) = draft.rdma.as_ref().zip(draft.payload.operands()) {
            let status = state.local_rdma(to.ip(), rdma, &operands.rdma);
            done = Some(ended(state, status, rdma.report));
        }
        let place = draft.payload.operands().and_then(|all| all.atomic.as_ref());
        if let Some((atomic, place)) = draft.atomic.as_ref().zip(place) {
            let status = match done {
                // Between hosts, the connection would be lost with the first.
                Some(false) => Status::Dropped,
                _ => state.local_atomic(to.ip(), atomic, place),
            };
            done = Some(ended(state, status, atomic.report));
        }
        let operation = done.map(|done| state.operations.at_once(self.id, to.ip(), !done));
        if done != Some(false) && !draft.is_silent() {
            let delivery = Delivery {
                connection: None,
                sequence: 0,
                times: Some((now, now)),
                from,
                len: draft.len,
                bodies: draft.payload.bodies(),
                cookie: draft.cookie,
            };
            let owner = state.node.deliver_local(to, delivery);
            if let Some((owner, rdma)) = owner.zip(draft.rdma) {
                state.exports.used(owner, rdma.rkey, from.ip());
            }
        }
        state.over(self.id, &draft.payload);
        operation
    }

    /// `RDS_BARRIER`—Waits until an operation on memory of `peer`, and all before it, have ended;
    /// returns the last up to which all have. The number is that of [`Sent::operation`].
    ///
    /// Kernels had this in 2007 only.
    ///
    /// # Errors
    /// - `WouldBlock`: they have not, and it does not wait.
    /// - `TimedOut`: it has waited for [long enough](Self::set_write_timeout).
    /// - `EIO`: they have, but one of them has failed, which is told once.
    #[doc(alias = "RDS_BARRIER")]
    pub fn barrier(&self, peer: IpAddr, operation: u64, dont_wait: bool) -> io::Result<u64> {
        let (nonblocking, timeout) = {
            let options = lock(&self.options);
            (options.nonblocking, options.write)
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock()?;
        let mut looked = false;
        loop {
            let progress = state.operations.progress(self.id, peer, operation);
            match progress {
                Progress { failed: true, .. } => return Err(Errno::IO.into()),
                Progress { ended, .. } if ended >= operation => return Ok(ended),
                _ if dont_wait || nonblocking => {
                    if !looked && self.engine.inner().look(&mut state) {
                        looked = true;
                        continue;
                    }
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                _ => {}
            }
            state = self
                .engine
                .inner()
                .wait(&self.waiters, false, state, deadline)?;
        }
    }
}
