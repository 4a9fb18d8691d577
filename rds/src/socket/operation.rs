//! RDMA and atomic operations before a message.

use std::io;

use rustix::io::Errno;
use verbs::{ProtectionDomain, RemoteRegion};

use crate::proto::{
    connection::{self, AtomicOp, Direction, Report},
    wire::{Cookie, MAX_MESSAGE},
};

/// Maximum number of local pieces of an operation.
const MAX_PIECES: usize = 1024;

/// `RDS_CMSG_RDMA_ARGS`—An RDMA read or write of the peer's memory, performed before the message.
///
/// Local memory is registered with the socket's device: an [`RdmaBuffer`](crate::RdmaBuffer), or
/// memory from [`register`](crate::Socket::register). The device no longer accesses it after the
/// [notification](Self::notify).
///
/// # Examples
/// ```no_run
/// # fn f(socket: &rds::Socket, cookie: rds::Cookie) -> std::io::Result<()> {
/// use rds::{Rdma, SendOptions};
/// let pages = socket.alloc(4096)?;
/// pages.write(0, b"hello");
/// let write = Rdma::write(vec![pages.slice(0..5)], cookie).notify().token(7);
/// socket.send_msg(&[], &SendOptions::new().rdma(write))?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RDS_CMSG_RDMA_ARGS")]
#[derive(Clone, Debug)]
pub struct Rdma {
    direction: Direction,
    cookie: Cookie,
    offset: u64,
    remote_len: Option<u64>,
    pub(super) local: Vec<RemoteRegion>,
    fence: bool,
    report: Report,
}

macro_rules! reporting {
    () => {
        /// User token, returned in the notification; 0 by default.
        #[must_use]
        pub fn token(mut self, token: u64) -> Self {
            self.report.token = token;
            self
        }

        /// `RDS_RDMA_NOTIFY_ME`—Requests a [notification](crate::Event::Operation) of the end of
        /// the operation. Its success does not prove the message received: if the connection is lost
        /// before the peer's acknowledgement, the message is dropped, as by Linux, without another
        /// notification. [`remote_complete`](Self::remote_complete) distinguishes the two.
        #[must_use]
        #[doc(alias = "RDS_RDMA_NOTIFY_ME")]
        pub fn notify(mut self) -> Self {
            self.report.notify = true;
            self
        }

        /// `RDS_RDMA_REMOTE_COMPLETE`—Notifies success after the peer's acknowledgement of the
        /// message, instead of after the send completion.
        #[must_use]
        #[doc(alias = "RDS_RDMA_REMOTE_COMPLETE")]
        pub fn remote_complete(mut self) -> Self {
            self.report.remote = true;
            self
        }

        /// `RDS_RDMA_FENCE`—Sends the message after the operation has completed. Without a fence,
        /// the message may arrive before an RDMA read is complete.
        #[must_use]
        #[doc(alias = "RDS_RDMA_FENCE")]
        pub fn fence(mut self) -> Self {
            self.fence = true;
            self
        }

        /// Offset in the peer's memory; 0 by default.
        #[must_use]
        pub fn at(mut self, offset: u64) -> Self {
            self.offset = offset;
            self
        }
    };
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned())
}

fn check_device(piece: &RemoteRegion, pd: &ProtectionDomain) -> io::Result<()> {
    if piece.pd() == pd {
        return Ok(());
    }
    Err(invalid(
        "local memory is registered with another device or another engine",
    ))
}

impl Rdma {
    /// Writes `local`, piece by piece.
    pub fn write(local: Vec<RemoteRegion>, cookie: Cookie) -> Self {
        Self::new(Direction::Write, local, cookie)
    }

    /// Reads into `local`, piece by piece.
    pub fn read(local: Vec<RemoteRegion>, cookie: Cookie) -> Self {
        Self::new(Direction::Read, local, cookie)
    }

    fn new(direction: Direction, local: Vec<RemoteRegion>, cookie: Cookie) -> Self {
        Self {
            direction,
            cookie,
            offset: 0,
            remote_len: None,
            local,
            fence: false,
            report: Report::default(),
        }
    }

    /// Length of the peer's memory in bytes, at least the length of the local pieces; equal by
    /// default.
    #[must_use]
    pub fn remote_len(mut self, len: u64) -> Self {
        self.remote_len = Some(len);
        self
    }

    reporting!();

    /// Validates the operation and converts it for the protocol.
    pub(super) fn check(
        &self,
        pd: &ProtectionDomain,
        elements: u32,
    ) -> io::Result<connection::Rdma> {
        if self.local.is_empty() {
            return Err(invalid("the operation has no local memory"));
        }
        if self.local.len() > MAX_PIECES {
            let pieces = self.local.len();
            let reason = format!("{pieces} local pieces, of at most {MAX_PIECES}");
            return Err(verbs::Error::from_io("sendmsg", Errno::MSGSIZE)
                .detail(reason)
                .into());
        }
        for piece in &self.local {
            check_device(piece, pd)?;
        }
        let len: u64 = self.local.iter().map(|piece| piece.len() as u64).sum();
        let remote = self.remote_len.unwrap_or(len);
        if remote > MAX_MESSAGE.into() {
            let reason = format!("{remote} bytes of remote memory, of at most {MAX_MESSAGE}");
            return Err(verbs::Error::from_io("sendmsg", Errno::MSGSIZE)
                .detail(reason)
                .into());
        }
        if len > remote {
            return Err(invalid("the local memory is longer than the remote memory"));
        }
        let requests = self.local.len().div_ceil(elements as usize);
        Ok(connection::Rdma {
            direction: self.direction,
            rkey: self.cookie.rkey,
            addr: self.offset.wrapping_add(self.cookie.offset.into()),
            // At most 1 MiB.
            len: u32::try_from(len).unwrap_or(MAX_MESSAGE),
            requests: u32::try_from(requests).unwrap_or(u32::MAX),
            fence: self.fence,
            report: self.report,
        })
    }
}

/// `RDS_CMSG_ATOMIC_FADD`, `RDS_CMSG_ATOMIC_CSWP`—An atomic operation on 8 bytes of the peer's
/// memory, performed before the message. Fetches the previous value.
///
/// The address is a multiple of 8, and the value in the peer's byte order. Memory exported by a
/// kernel rejects atomic operations.
#[doc(alias = "RDS_CMSG_ATOMIC_FADD")]
#[doc(alias = "RDS_CMSG_ATOMIC_CSWP")]
#[doc(alias = "RDS_CMSG_MASKED_ATOMIC_FADD")]
#[doc(alias = "RDS_CMSG_MASKED_ATOMIC_CSWP")]
#[derive(Clone, Debug)]
pub struct Atomic {
    op: AtomicOp,
    cookie: Cookie,
    offset: u64,
    pub(super) result: RemoteRegion,
    fence: bool,
    report: Report,
}

impl Atomic {
    /// Wrapping addition. `result` receives the previous value, 8 bytes.
    pub fn fetch_add(result: RemoteRegion, cookie: Cookie, add: u64) -> Self {
        Self::new(AtomicOp::FetchAdd(add), result, cookie)
    }

    /// Stores `swap` if the value equals `compare`. `result` receives the previous value, 8 bytes.
    pub fn compare_swap(result: RemoteRegion, cookie: Cookie, compare: u64, swap: u64) -> Self {
        Self::new(AtomicOp::CompareSwap(compare, swap), result, cookie)
    }

    /// Any atomic operation, for example from [`AtomicArgs`](crate::proto::control::AtomicArgs).
    pub fn new(op: AtomicOp, result: RemoteRegion, cookie: Cookie) -> Self {
        Self {
            op,
            cookie,
            offset: 0,
            result,
            fence: false,
            report: Report::default(),
        }
    }

    reporting!();

    /// Validates the operation and converts it for the protocol.
    pub(super) fn check(&self, pd: &ProtectionDomain) -> io::Result<connection::Atomic> {
        check_device(&self.result, pd)?;
        if self.result.len() != 8 {
            return Err(invalid(
                "the local memory of an atomic operation must have 8 bytes",
            ));
        }
        let addr = self.offset.wrapping_add(self.cookie.offset.into());
        let local = self.result.token().addr;
        if addr % 8 != 0 || !local.is_multiple_of(8) {
            let reason = format!(
                "an atomic operation at remote address {addr:#x} with local memory at {local:#x}: both must be \
                 multiples of 8"
            );
            return Err(verbs::Error::from_io("sendmsg", Errno::FAULT)
                .detail(reason)
                .into());
        }
        Ok(connection::Atomic {
            op: self.op,
            rkey: self.cookie.rkey,
            addr,
            fence: self.fence,
            report: self.report,
        })
    }
}
