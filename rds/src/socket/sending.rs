//! Sending of messages.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustix::io::Errno;
use verbs::RemoteRegion;

use super::{Atomic, Rdma, Socket, lock};
use crate::{
    device::Device,
    engine::{EngineState, Guard, Progress},
    errno::socket_error,
    outbound::{Operands, Outbound},
    proto::{
        connection::{self, Draft, Report, Status},
        node::{self, Delivery, LocalMessage, SocketError},
        wire::{Cookie, FRAGMENT},
    },
    slots::FrameBody,
};

/// Options of a send: destination, flags, cookie, operations.
///
/// ```
/// # let _fabric = doctest::lasting_host();
/// # let peer = rds::Socket::bind("10.9.0.2:4000")?;
/// use std::io::IoSlice;
///
/// let socket = rds::Socket::bind("10.9.0.1:4000")?;
/// let options = rds::SendOptions::new().to("10.9.0.2:4000".parse().unwrap()).dont_wait();
/// let sent = socket.send_msg(&[IoSlice::new(b"header"), IoSlice::new(b"body")], &options)?;
/// assert_eq!(sent.len, 10);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    to: Option<SocketAddr>,
    dont_wait: bool,
    cookie: Option<Cookie>,
    // Boxed, because most messages have none, and small options are cheap to move.
    rdma: Option<Box<Rdma>>,
    atomic: Option<Box<Atomic>>,
    silent: bool,
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sent {
    /// Number of bytes sent.
    pub len: usize,
    /// Number of the operation, if any: see [`Socket::barrier`].
    pub operation: Option<u64>,
}

impl SendOptions {
    /// Sends to the default destination, in the blocking mode of the socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends to this address.
    #[must_use]
    pub fn to(mut self, addr: SocketAddr) -> Self {
        self.to = Some(addr);
        self
    }

    /// `MSG_DONTWAIT`—Sends without blocking.
    #[must_use]
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn dont_wait(mut self) -> Self {
        self.dont_wait = true;
        self
    }

    /// `RDS_CMSG_RDMA_DEST`—Sends the cookie of memory exported by this socket.
    #[must_use]
    #[doc(alias = "RDS_CMSG_RDMA_DEST")]
    pub fn cookie(mut self, cookie: Cookie) -> Self {
        self.cookie = Some(cookie);
        self
    }

    /// `RDS_CMSG_RDMA_ARGS`—Performs an RDMA operation before the message.
    #[must_use]
    #[doc(alias = "RDS_CMSG_RDMA_ARGS")]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = Some(Box::new(rdma));
        self
    }

    /// `RDS_CMSG_ATOMIC_FADD` and others—Performs an atomic operation before the message, after the
    /// RDMA operation if there is one.
    #[must_use]
    pub fn atomic(mut self, atomic: Atomic) -> Self {
        self.atomic = Some(Box::new(atomic));
        self
    }

    /// `RDS_RDMA_SILENT`—Performs the operations without sending the message, if it is empty.
    #[must_use]
    #[doc(alias = "RDS_RDMA_SILENT")]
    pub fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    fn has_operation(&self) -> bool {
        self.rdma.is_some() || self.atomic.is_some()
    }

    /// Whether the message has no cookie and no operation.
    fn is_plain(&self) -> bool {
        self.cookie.is_none() && !self.has_operation()
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

impl Socket {
    /// Sends a message to the default destination, like [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As for [`send_to`](Self::send_to).
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new())?;
        Ok(sent.len)
    }

    /// Sends a message of at most 1 MiB. The message is queued, and retransmitted until
    /// acknowledged.
    ///
    /// Blocks, unless [nonblocking](Self::set_nonblocking), while the [send
    /// buffer](Self::set_send_limit) is full or the destination is congested.
    ///
    /// # Errors
    /// - `NotConnected`: the socket is unbound.
    /// - `InvalidInput`: the address is not a host's, or the port is 1.
    /// - `Unsupported`: the families of the addresses differ.
    /// - `WouldBlock`: the send buffer is full, or the destination is congested, on a nonblocking
    ///   socket or for the whole [timeout](Self::set_write_timeout). [`errno`](crate::errno())
    ///   distinguishes these: `EAGAIN`, `ENOBUFS` and `ETIMEDOUT`.
    /// - `Interrupted`: a signal handler has run, with or without `SA_RESTART`.
    /// - `EMSGSIZE`: the message is longer than 1 MiB, or than the [send buffer](Self::set_send_limit).
    /// - `OutOfMemory`: over the limit of locked memory (`ulimit -l`).
    /// - `PermissionDenied`: the kernel refuses requests, because the user, a group or a capability of this process has
    ///   changed since it opened the device, and Linux is older than 5.0. Queued messages are not sent.
    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        let sent = self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new().to(to))?;
        Ok(sent.len)
    }

    /// `sendmsg(2)`—Sends `bufs` as one message, with `options`.
    ///
    /// Operations on memory of sockets of the same engine are performed immediately. An atomic
    /// operation goes through the device, to be atomic with those of peers, and blocks until
    /// completion, even on a nonblocking socket.
    ///
    /// # Errors
    /// As for [`send_to`](Self::send_to), and:
    /// - `InvalidInput`: an operation together with a cookie; local memory of another device; an
    ///   operation without local memory, or with more local than remote memory; or a cookie not
    ///   exported by this socket.
    /// - `Unsupported`: an atomic operation on memory of the same engine, on a device without
    ///   atomics or with iWARP; or an operation before a ping to this host.
    /// - `EFAULT`: the address of an atomic operation is not a multiple of 8.
    /// - `EMSGSIZE`: an operation with more than 1 MiB, more than 1024 pieces, or too many pieces
    ///   for [the send queue](crate::EngineOptions::sends). By default 1024 pieces fit if the
    ///   device supports 8 scatter/gather entries, as most do.
    ///
    /// # References
    /// [sendmsg(2)](https://man7.org/linux/man-pages/man2/sendmsg.2.html)
    pub fn send_msg(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<Sent> {
        let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        if let Ok(len) = u32::try_from(bytes)
            && len <= FRAGMENT
            && options.is_plain()
        {
            // Locking twice would cost more than copying under the lock.
            let state = self.lock()?;
            // Held until the end of the call: destroying a removed device enters the kernel.
            let device = state.device_of(self.id).map_err(socket_error)?.cloned();
            let alloc = |len| FrameBody::try_alloc(device.as_deref(), len).ok_or(());
            if let Ok(payload) = Outbound::copy(bufs, alloc) {
                let draft = Draft {
                    silent: options.silent,
                    ..Draft::new(len, Arc::new(payload))
                };
                return self.submit(state, draft, options);
            }
        }
        let (len, device) = self.check(bytes, options)?;
        let payload = Outbound::copy(bufs, |len| FrameBody::alloc(device.as_deref(), len))?;
        self.transmit(len, device, payload, options)
    }

    /// `MSG_ZEROCOPY`—Sends registered memory without a copy. Do not change the memory until
    /// [`recv_event`](Self::recv_event) returns [`ZeroCopyDone`](crate::Event::ZeroCopyDone) with `name`, or
    /// the receiver may get the new content.
    ///
    /// # Errors
    /// As for [`send_msg`](Self::send_msg), and:
    /// - `InvalidInput`: `options` has an operation.
    #[doc(alias = "MSG_ZEROCOPY")]
    #[doc(alias = "RDS_CMSG_ZCOPY_COOKIE")]
    pub fn send_zerocopy(
        &self,
        memory: &RemoteRegion,
        name: u32,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        if options.has_operation() {
            return Err(invalid("a zero-copy message cannot have an operation"));
        }
        let (len, _) = self.check(memory.len(), options)?;
        let payload = Outbound::borrow(memory.clone(), name);
        self.transmit(len, None, payload, options)
    }

    /// Validates a send before copying. Returns the length and the sending device.
    fn check(&self, bytes: usize, options: &SendOptions) -> io::Result<(u32, Option<Arc<Device>>)> {
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut state = self.lock()?;
        let to = state.node.can_send(self.id, options.to, len);
        let to = to.map_err(socket_error)?;
        if options.has_operation() {
            if options.cookie.is_some() {
                return Err(invalid(
                    "a message cannot have both an operation and a cookie",
                ));
            }
            let unsupported = |reason: &'static str| {
                let kind = io::ErrorKind::Unsupported;
                Err(io::Error::new(kind, reason))
            };
            let is_local = state.node.is_local(to.ip());
            if is_local && to.port() == 0 {
                return unsupported("a ping to this host cannot have an operation");
            }
            if options.atomic.is_some() && is_local && !state.has_local_atomics(to.ip()) {
                return unsupported("the local device does not support atomic operations");
            }
        }
        if let Some(cookie) = options.cookie {
            let Some(exported) = state.exports.get_mut(self.id, cookie.rkey) else {
                return Err(invalid("the cookie is not an export of this socket"));
            };
            exported.sent_to(to.ip());
        }
        let device = state.device_of(self.id).map_err(socket_error)?;
        Ok((len, device.cloned()))
    }

    /// Sends a payload already in memory of `device`, if there is one.
    fn transmit(
        &self,
        len: u32,
        device: Option<Arc<Device>>,
        mut payload: Outbound,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        // The operation never fits into a send queue.
        let mut too_many = false;
        let (mut rdma, mut atomic) = (None, None);
        if let Some(operation) = &options.rdma {
            // Without a device, the error explains why.
            let device = device.clone().map_or_else(|| self.device(), Ok)?;
            let checked = operation.check(&device.pd, device.elements)?;
            too_many = checked.requests > device.send_entries();
            rdma = Some(Box::new(checked));
        }
        if let Some(operation) = &options.atomic {
            atomic = Some(Box::new(operation.check(&self.device()?.pd)?));
        }
        // `check` has rejected sockets of a parent process.
        let state = self.engine.inner().lock_here();
        if options.has_operation() {
            let to = state.node.can_send(self.id, options.to, len);
            let ip = to.map_err(socket_error)?.ip();
            if too_many && !state.node.is_local(ip) {
                let reason = "more local pieces than the send queue has room for";
                return Err(verbs::Error::from_io("sendmsg", Errno::MSGSIZE)
                    .detail(reason)
                    .into());
            }
            let pieces = options.rdma.as_ref().map(|rdma| rdma.local.clone());
            payload.operands = Some(Box::new(Operands {
                peer: ip,
                rdma: pieces.unwrap_or_default(),
                atomic: options.atomic.as_ref().map(|atomic| atomic.result.clone()),
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
        draft.payload.restrict_to(state.devices());
        self.submit(state, draft, options)
    }

    /// Queues the message, blocking while the buffer is full or the destination congested.
    fn submit<'s>(
        &'s self,
        mut state: Guard<'s>,
        mut draft: Draft<Arc<Outbound>>,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        state.check_refusal()?;
        let len = draft.len;
        let peer = draft.payload.operands().map(|operands| operands.peer);
        let mut mode = {
            let socket = lock(&self.options);
            self.mode(options.dont_wait || socket.nonblocking, socket.write)
        };
        self.descriptors.set_blocked(&mut state.node, false);
        loop {
            let refused = match state.node.send(self.id, options.to, draft) {
                Ok(sent) => {
                    let operation = match (peer, &sent) {
                        (Some(peer), node::Dispatched::Queued(_, id)) => {
                            state.operations.begin(self.id, peer, *id);
                            Some(*id)
                        }
                        _ => None,
                    };
                    let at_once = self.sent(state, sent);
                    let (len, operation) = (len as usize, operation.or(at_once));
                    return Ok(Sent { len, operation });
                }
                Err(refused) => refused,
            };
            draft = refused.draft;
            self.engine.inner().drive(&mut state);
            if !matches!(refused.error, SocketError::Full | SocketError::Congested(_)) {
                return Err(socket_error(refused.error));
            }
            if mode.dont_wait {
                if mode.poll_once(&mut state)? {
                    continue;
                }
                self.descriptors.set_blocked(&mut state.node, true);
                return Err(socket_error(refused.error));
            }
            state = self.engine.inner().wait(state, self.id, &mut mode)?;
            draft.payload.restrict_to(state.devices());
        }
    }

    /// Posts a queued message, or delivers a local one. Returns the number of a local operation.
    fn sent<'s>(
        &'s self,
        mut state: Guard<'s>,
        sent: node::Dispatched<Arc<Outbound>>,
    ) -> Option<u64> {
        let now = self.engine.inner().now();
        let mut operation = None;
        if let node::Dispatched::Queued(..) = sent {
            // Post before polling.
            state.drive(now);
            if !state.complete() {
                return None;
            }
        }
        if let node::Dispatched::Local(message) = sent {
            (state, operation) = self.deliver(state, now, message);
        }
        state.drive(now);
        operation
    }

    /// Performs the operations of a local message and delivers it. Returns the number of the last
    /// operation. Releases the lock for an atomic operation. Not inlined, to keep the remote path
    /// short.
    #[inline(never)]
    fn deliver<'s>(
        &'s self,
        mut state: Guard<'s>,
        now: Duration,
        message: LocalMessage<Arc<Outbound>>,
    ) -> (Guard<'s>, Option<u64>) {
        let LocalMessage { from, to, draft } = message;
        let ended = |state: &mut EngineState, status, report: Report| {
            state.node.ended(connection::Notification {
                owner: self.id,
                token: report.token,
                status,
                requested: report.notify,
            });
            status == Status::Success
        };
        // Whether all operations have succeeded; `None` without operations.
        let mut done = None;
        if let Some((rdma, operands)) = draft.rdma.as_ref().zip(draft.payload.operands()) {
            let status = state.local_rdma(to.ip(), rdma, &operands.rdma);
            done = Some(ended(&mut state, status, rdma.report));
        }
        let result = draft.payload.operands().and_then(|all| all.atomic.as_ref());
        if let Some((atomic, result)) = draft.atomic.as_ref().zip(result) {
            let status = match done {
                // A remote connection would be lost with the first failure.
                Some(false) => Status::Dropped,
                _ => match state.local_atomic(to.ip(), atomic) {
                    Some(operation) => {
                        drop(state);
                        let status = operation.perform(result);
                        state = self.engine.inner().lock_here();
                        status
                    }
                    None => Status::RemoteError,
                },
            };
            done = Some(ended(&mut state, status, atomic.report));
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
                state.export_used(owner, rdma.rkey, from.ip());
            }
        }
        state.report_zero_copy_done(self.id, &draft.payload);
        (state, operation)
    }

    /// `RDS_BARRIER`—Waits for the end of an operation on memory of `peer`, and of all earlier
    /// ones. Returns the number up to which operations have ended. `operation` is from
    /// [`Sent::operation`]. Blocks unless [nonblocking](Self::set_nonblocking).
    ///
    /// Kernels have supported this option in 2007 only.
    ///
    /// # Errors
    /// - `WouldBlock`: operations are in progress, in nonblocking mode or after the
    ///   [timeout](Self::set_write_timeout).
    /// - `EIO`: all have ended, and one has failed. Reported once.
    #[doc(alias = "RDS_BARRIER")]
    pub fn barrier(&self, peer: IpAddr, operation: u64) -> io::Result<u64> {
        self.wait_for_end(peer, operation, false)
    }

    /// Returns like [`barrier`](Self::barrier), without blocking.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn try_barrier(&self, peer: IpAddr, operation: u64) -> io::Result<u64> {
        self.wait_for_end(peer, operation, true)
    }

    fn wait_for_end(&self, peer: IpAddr, operation: u64, dont_wait: bool) -> io::Result<u64> {
        let mut mode = {
            let options = lock(&self.options);
            self.mode(dont_wait || options.nonblocking, options.write)
        };
        let mut state = self.lock()?;
        loop {
            match state.operations.progress(self.id, peer, operation) {
                Progress { failed: true, .. } => {
                    let reason = "an operation has failed; its notification has the reason";
                    return Err(verbs::Error::from_io("RDS_BARRIER", Errno::IO)
                        .detail(reason)
                        .into());
                }
                Progress { ended, .. } if ended >= operation => return Ok(ended),
                Progress { .. } => {}
            }
            state = self.engine.inner().wait(state, self.id, &mut mode)?;
        }
    }
}
