//! What can be posted to a send queue.
//!
//! | request | does | transports | work |
//! |---|---|---|---|
//! | [`Send`] | sends a message to a receive of the peer's | RC, UC | is read |
//! | [`SendTo`] | sends a datagram to an address | UD | is read, and has the address |
//! | [`Write`] | writes into the peer's memory | RC, UC | is read |
//! | [`Read`] | reads from the peer's memory | RC | is written |
//! | [`CompareSwap`], [`FetchAdd`] | change 8 bytes of the peer's memory in one step | RC | is written: the 8 bytes as they were |
//! | [`LocalInvalidate`] | invalidates an RKey of this side | RC, UC | is kept |
//!
//! Each owns its work until it is posted; then the queue does. A request can be
//! [`unsignaled`](Send::unsignaled), and one that sends can carry its bytes [`inline`](Send::inline).

mod atomic;
mod datagram;
mod inline;
mod invalidate;
mod rdma;
mod send;
mod wr;

use ibverbs_sys as ffi;

use crate::{qp::Transport, work::SgeList};

pub use atomic::{CompareSwap, FetchAdd};
pub use datagram::SendTo;
pub use inline::{CanInline, Inline};
pub use invalidate::LocalInvalidate;
pub use rdma::{Read, Write};
pub use send::Send;

pub(crate) use sealed::Describe;
pub(crate) use wr::SendWr;

mod sealed {
    use super::{SendWr, ffi};

    /// What of a work request depends on what is posted.
    pub trait Describe {
        /// Whether the elements are copied when the request is posted.
        const INLINE: bool = false;

        /// The flags that the caller asked for.
        fn flags(&self) -> ffi::ibv_send_flags;

        /// Sets the opcode, and the fields that belong to it.
        fn describe(&self, wr: &mut SendWr);
    }
}

/// A request that the transport `T` carries, with the work it owns.
///
/// The requests of this module implement it, and nothing else can.
pub trait SendRequest<T: Transport>: Describe {
    /// What the device reads or writes for it.
    type Work;

    /// Adds the elements that the device reads or writes.
    fn gather(&self, list: &mut SgeList);

    /// The work, when the request has been posted.
    fn into_work(self) -> Self::Work;
}

/// The options that every request has.
macro_rules! common_options {
    () => {
        /// Asks for no completion of its own when it succeeds: the work comes back with a later
        /// one.
        ///
        /// Every now and then the queue asks for one nevertheless, so that it never fills up with
        /// requests that would never come back.
        #[inline]
        pub fn unsignaled(mut self) -> Self {
            self.flags.0 &= !ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
            self
        }

        /// Starts only when all RDMA reads and atomics posted before it are done.
        #[inline]
        pub fn fenced(mut self) -> Self {
            self.flags |= ffi::ibv_send_flags::IBV_SEND_FENCE;
            self
        }

        /// The work, unposted.
        pub fn into_work(self) -> W {
            self.work
        }
    };
}
pub(crate) use common_options;

/// Implements [`Describe::flags`], and [`SendRequest`] for the transports that satisfy a bound.
macro_rules! request {
    ($name:ident, transport: $transport:path, work: $work:path, |$this:ident, $wr:ident| $describe:block) => {
        impl<W> Describe for $name<W>
        where
            W: $work,
        {
            #[inline]
            fn flags(&self) -> ffi::ibv_send_flags {
                self.flags
            }

            #[inline]
            fn describe(&self, $wr: &mut SendWr) {
                let $this = self;
                $describe
            }
        }

        impl<T, W> SendRequest<T> for $name<W>
        where
            T: $transport,
            W: $work,
        {
            type Work = W;

            #[inline]
            fn gather(&self, list: &mut SgeList) {
                Gather::gather(&self.work, list);
            }

            #[inline]
            fn into_work(self) -> W {
                self.work
            }
        }
    };
}
pub(crate) use request;
