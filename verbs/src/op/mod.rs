//! What can be posted to a send queue.
//!
//! | request | does | transports | work |
//! |---|---|---|---|
//! | [`Send`] | sends a message to a receive of the peer's | RC, UC | is read |
//! | [`SendTo`] | sends a datagram to an address | UD | is read, and has the address |
//! | [`Write`] | writes into the peer's memory | RC, UC | is read |
//! | [`Read`] | reads from the peer's memory | RC | is written |
//! | [`CompareSwap`], [`FetchAdd`] | change 8 bytes of the peer's memory in one step | RC | is written: the 8 bytes as they were |
//! | [`SendFrame`] | sends an Ethernet frame | raw packets | is read |
//! | [`LocalInvalidate`] | invalidates an RKey of this side | RC, UC | is kept |
//! | [`SendTso`] | sends datagrams that the device cuts | UD | is read, and has the address |
//! | [`SendFrameTso`] | sends frames that the device cuts | raw packets | is read |
//! | [`AtomicWrite`] | writes 8 bytes of the peer's memory in one step | RC, extended | is kept |
//! | [`Flush`] | makes the peer's memory hold what was written to it | RC, extended | is kept |
//!
//! Those marked as extended can only be posted by [extended batches](crate::ExtendedBatch), all
//! others in both ways.
//!
//! [`ToSrq`] makes a request for an extended reliable connection of each one that RC has.
//!
//! Each owns its work until it is posted; then the queue does. A request can be
//! [`unsignaled`](Send::unsignaled), and one that sends can carry its bytes [`inline`](Send::inline).

mod atomic;
mod builder;
mod datagram;
mod deferred;
mod emit;
mod flush;
mod frame;
mod inline;
mod invalidate;
mod ops;
mod rdma;
mod send;
mod to_srq;
mod tso;
mod wr;

use ibverbs_sys as ffi;

use crate::{qp::Transport, work::SgeList};

pub use atomic::{AtomicWrite, CompareSwap, FetchAdd};
pub use datagram::{DatagramWork, SendTo};
pub use flush::{Flush, Placement};
pub use frame::SendFrame;
pub use inline::{CanInline, Inline, InlineList};
pub use invalidate::LocalInvalidate;
pub use ops::SendOps;
pub use rdma::{Read, Write};
pub use send::Send;
pub use to_srq::ToSrq;
pub use tso::{SendFrameTso, SendTso};

use builder::Builder;
pub(crate) use deferred::{Binding, Deferred, Recording};
use emit::{Emit, EmitExtended};
pub(crate) use sealed::Parts;
pub(crate) use sealed::Segments;
use sealed::{Describe, DescribeExtended};
pub(crate) use wr::SendWr;

mod sealed {
    use super::{Emit, EmitExtended, ffi};
    use crate::ah::AddressHandle;

    /// What is known of a request besides its operation.
    pub trait Parts {
        /// Whether the elements are copied when the request is posted.
        const INLINE: bool = false;

        /// Whether the operation has elements.
        const DATA: bool = true;

        /// How many bytes the only element must have, where the device writes so many whatever it has.
        const EXACTLY: Option<u32> = None;

        /// How many bytes the first element has at least, because providers look at them.
        const LOOKED_AT: u32 = 0;

        /// The flags that the caller asked for.
        fn flags(&self) -> ffi::ibv_send_flags;

        /// How the device is to cut the data.
        #[inline]
        fn segments(&self) -> Option<Segments> {
            None
        }

        /// Where it is sent to, if it says so itself.
        #[inline]
        fn address(&self) -> Option<&AddressHandle> {
            None
        }
    }

    /// The sizes of a header, and of the data that follow each copy of it.
    #[derive(Clone, Copy, Debug)]
    pub struct Segments {
        pub header: usize,
        pub mss: u16,
    }

    /// A request that both ways of posting have.
    pub trait Describe: Parts {
        /// Says what the operation is, and what belongs to it.
        fn describe<E: Emit>(&self, to: &mut E);
    }

    /// A request that extended batches have.
    pub trait DescribeExtended: Parts {
        /// Says what the operation is, and what belongs to it.
        fn describe_extended<E: EmitExtended>(&self, to: &mut E);
    }

    impl<R: Describe> DescribeExtended for R {
        #[inline]
        fn describe_extended<E: EmitExtended>(&self, to: &mut E) {
            self.describe(to);
        }
    }
}

/// A request that the transport `T` carries, with the work it owns, for
/// [extended batches](crate::ExtendedBatch).
///
/// The requests of this module implement it, and nothing else can.
pub trait ExtendedRequest<T: Transport>: DescribeExtended {
    /// What the device reads or writes for it.
    type Work;

    /// Adds the elements that the device reads or writes.
    fn gather(&self, list: &mut SgeList);

    /// The work, when the request has been posted.
    fn into_work(self) -> Self::Work;
}

/// A request that can be posted by [`SendQueue::post`](crate::SendQueue::post), too.
///
/// The requests of this module implement it, and nothing else can.
pub trait SendRequest<T: Transport>: ExtendedRequest<T> + Describe {}

/// The options that every request has.
macro_rules! common_options {
    () => {
        /// Asks for no completion of its own when it succeeds: the work comes back with a later
        /// one.
        ///
        /// Every now and then the queue asks for one nevertheless, so that it never fills up with
        /// requests that would never come back. On iWARP it always does: there a later completion
        /// says nothing about the request.
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

/// Implements the traits of a request for the transports that satisfy a bound. What [`Parts`] has besides the flags
/// can be given.
macro_rules! request {
    ($name:ident, transport: $transport:path, work: $work:path, |$this:ident, $to:ident| $describe:block) => {
        request!($name, transport: $transport, work: $work, parts: {}, |$this, $to| $describe);
    };
    (
        $name:ident,
        transport: $transport:path,
        work: $work:path,
        parts: { $($part:item)* },
        |$this:ident, $to:ident| $describe:block
    ) => {
        impl<W> Parts for $name<W>
        where
            W: $work,
        {
            $($part)*

            #[inline]
            fn flags(&self) -> ffi::ibv_send_flags {
                self.flags
            }
        }

        impl<W> Describe for $name<W>
        where
            W: $work,
        {
            #[inline]
            fn describe<E: Emit>(&self, $to: &mut E) {
                let $this = self;
                $describe
            }
        }

        impl<T, W> ExtendedRequest<T> for $name<W>
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

        impl<T, W> SendRequest<T> for $name<W>
        where
            T: $transport,
            W: $work,
        {
        }
    };
}
pub(crate) use request;

/// Implements [`ExtendedRequest`] for a request without elements, whose work is only kept.
macro_rules! keeps_work {
    ($name:ident, transport: $transport:path) => {
        impl<W> Parts for $name<W> {
            const DATA: bool = false;

            #[inline]
            fn flags(&self) -> ffi::ibv_send_flags {
                self.flags
            }
        }

        impl<T, W> ExtendedRequest<T> for $name<W>
        where
            T: $transport,
        {
            type Work = W;

            #[inline]
            fn gather(&self, _list: &mut SgeList) {}

            #[inline]
            fn into_work(self) -> W {
                self.work
            }
        }
    };
}
pub(crate) use keeps_work;
