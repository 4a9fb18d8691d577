//! Connections with a private event channel: blocking calls, similar to `std::net`.

mod builder;
mod connected;
mod datagram;
mod ending;
mod handshakes;
mod incoming;
mod outgoing;
mod queues;

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::BorrowedFd,
};

use verbs::{CompletionQueue, Error, Result};

pub use builder::{EndpointBuilder, connect};
pub use connected::Endpoint;
pub use datagram::DatagramEndpoint;
pub(crate) use ending::Ending;
#[cfg(feature = "tokio")]
pub(crate) use ending::{Closing, DISCONNECT_TIMEOUT, disconnected};
#[cfg(feature = "tokio")]
pub(crate) use handshakes::Handshakes;
#[cfg(test)]
pub(crate) use incoming::is_of_peer;
pub use incoming::{Incoming, Listener, Refusals};
pub use outgoing::Outgoing;
#[cfg(feature = "tokio")]
pub(crate) use queues::PrivateCqs;
pub(crate) use queues::Queues;
pub use queues::{PrivateQueues, QueueChoice, SharedQueues};

/// Tries each address resolved from a name, until one succeeds.
fn each_addr<T>(
    call: &'static str,
    addr: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let addrs = addr
        .to_socket_addrs()
        .map_err(|err| Error::refused(call, err.kind(), err))?;
    let mut last = None;
    for addr in addrs {
        match attempt(addr) {
            Ok(value) => return Ok(value),
            Err(error) => {
                #[cfg(feature = "tracing")]
                tracing::debug!(target: "cm", call, %addr, %error, "address failed");
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| {
        let reason = "the name stands for no address";
        Error::refused(call, io::ErrorKind::InvalidInput, reason)
    }))
}

/// Notification descriptor of a queue created as waitable.
fn notify_fd<'a>(call: &'static str, queue: &'a CompletionQueue) -> Result<BorrowedFd<'a>> {
    queue.notify_fd().ok_or_else(|| {
        let reason = "the queue has no completion channel";
        Error::refused(call, io::ErrorKind::Unsupported, reason)
    })
}

/// Error for a completion without a matching request: an endpoint's queues are private, so the device is
/// faulty.
pub(crate) fn unmatched_completion(call: &'static str) -> Error {
    let reason = "the completion matches no posted request";
    Error::refused(call, io::ErrorKind::InvalidData, reason)
}

/// Memory registration calls of librdmacm.
macro_rules! registration {
    () => {
        /// Protection domain of memory and queue pair.
        pub fn pd(&self) -> &ProtectionDomain {
            &self.queues.pd
        }

        /// `rdma_reg_msgs`—Registers memory for sending and receiving messages.
        ///
        /// Drop is `rdma_dereg_mr`. Enters the kernel.
        ///
        /// # Errors
        /// As for [`alloc_buf`](ProtectionDomain::alloc_buf).
        #[doc(alias = "rdma_reg_msgs")]
        #[doc(alias = "rdma_dereg_mr")]
        pub fn reg_msgs(&self, memory: impl Into<Box<[u8]>>) -> Result<Buf> {
            self.queues.pd.register_buf(memory)
        }

        /// `rdma_reg_read`—Allocates memory readable by the peer, given the [token](RemoteRegion::token).
        ///
        /// # Errors
        /// As for [`alloc_remote`](ProtectionDomain::alloc_remote).
        #[doc(alias = "rdma_reg_read")]
        pub fn reg_read(&self, len: usize) -> Result<RemoteRegion> {
            self.queues.pd.alloc_remote(len, RemoteAccess::READ)
        }

        /// `rdma_reg_write`—Allocates memory writable by the peer, given the [token](RemoteRegion::token).
        ///
        /// # Errors
        /// As for [`alloc_remote`](ProtectionDomain::alloc_remote).
        #[doc(alias = "rdma_reg_write")]
        pub fn reg_write(&self, len: usize) -> Result<RemoteRegion> {
            self.queues.pd.alloc_remote(len, RemoteAccess::WRITE)
        }
    };
}
pub(crate) use registration;

/// Receive posting call of librdmacm.
macro_rules! receiving {
    ($($qp:tt)+) => {
        /// `rdma_post_recv`, `rdma_post_recvv`—Posts memory for one message. Several buffers, in a vector or
        /// an array, are filled in order.
        ///
        /// # Errors
        /// The memory is returned in the error; see [`post_recv`](verbs::QueuePair::post_recv).
        #[doc(alias = "rdma_post_recv")]
        #[doc(alias = "rdma_post_recvv")]
        pub fn post_recv(&mut self, work: RW) -> Result<(), verbs::error::PostError<RW>>
        where
            RW: Scatter,
        {
            self.$($qp)+.post_recv(work)
        }
    };
}
pub(crate) use receiving;
