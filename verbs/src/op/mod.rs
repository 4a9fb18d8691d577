//! Requests for a send queue.
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
//! | [`Flush`] | completes when earlier writes to the peer's memory have taken effect | RC, extended | is kept |
//!
//! The requests marked as extended can only be posted by [extended
//! batches](crate::qp::ExtendedBatch), all others by both APIs.
//!
//! [`ToSrq`] turns a request of RC into one for an extended reliable connection. A vendor's crate defines requests for a
//! [transport of the vendor](crate::qp::VendorTransport) by [`VendorRequest`].
//!
//! Each request owns its work until posted; then the queue does. A [refused](crate::error::PostError) request is
//! returned, can be asked for its work and its destination, and can be posted again. A request can be
//! [`unsignaled`](Send::unsignaled), and a request with data to send can carry
//! the data [`inline`](Send::inline).

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
mod vendor;
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
pub use vendor::{VendorDestination, VendorOperation, VendorRequest};

use builder::Builder;
pub(crate) use deferred::{Binding, Deferred, Recording};
use emit::{Emit, EmitExtended};
pub(crate) use sealed::Parts;
pub(crate) use sealed::Segments;
use sealed::{Describe, DescribeExtended};
pub(crate) use vendor::Vendor;
pub(crate) use wr::SendWr;

mod sealed {
    use super::{Emit, EmitExtended, ffi};
    use crate::ah::AddressHandle;

    /// Properties of a request besides its operation.
    pub trait Parts {
        /// Whether the elements are copied when the request is posted.
        const INLINE: bool = false;

        /// Whether the operation has elements.
        const DATA: bool = true;

        /// Minimum length in bytes of the first element, where providers read its bytes.
        const LOOKED_AT: u32 = 0;

        /// The number of bytes of the peer's memory accessed by the request, if not that of the elements.
        const REMOTE_BYTES: Option<u64> = None;

        /// Whether the peer answers with data, limited in number by `max_rd_atomic`.
        const READS: bool = false;

        /// The length of the peer's memory, by its token. Requests without a token have no limit.
        #[inline]
        fn remote_len(&self) -> u64 {
            u64::MAX
        }

        /// The required length in bytes of the only element, where the device writes a fixed number
        /// of bytes regardless of the length.
        #[inline]
        fn exactly(&self) -> Option<u32> {
            None
        }

        /// Maximum number of elements, where the transport has fewer for the operation than for others.
        #[inline]
        fn max_sge(&self) -> Option<u32> {
            None
        }

        /// The flags chosen by the caller.
        fn flags(&self) -> ffi::ibv_send_flags;

        /// The segmentation of the data by the device.
        #[inline]
        fn segments(&self) -> Option<Segments> {
            None
        }

        /// The destination, if the request has its own.
        #[inline]
        fn address(&self) -> Option<&AddressHandle> {
            None
        }
    }

    /// The sizes of a header, and of the data behind each copy of the header.
    #[derive(Clone, Copy, Debug)]
    pub struct Segments {
        pub header: usize,
        pub mss: u16,
    }

    /// A request supported by both APIs of posting.
    pub trait Describe: Parts {
        /// Describes the operation and its arguments.
        fn describe<E: Emit>(&self, to: &mut E);
    }

    /// A request for extended batches.
    pub trait DescribeExtended: Parts {
        /// Describes the operation and its arguments.
        fn describe_extended<E: EmitExtended>(&self, to: &mut E);
    }

    impl<R: Describe> DescribeExtended for R {
        #[inline]
        fn describe_extended<E: EmitExtended>(&self, to: &mut E) {
            self.describe(to);
        }
    }
}

/// A request supported by the transport `T`, with its own work, for [extended
/// batches](crate::qp::ExtendedBatch).
///
/// A sealed trait, implemented by the requests of this module only.
#[diagnostic::on_unimplemented(
    message = "`{T}` does not support `{Self}`",
    label = "the transport does not support this request",
    note = "`Rc` supports all requests but those with an address; `Uc` supports sends and writes; `Ud` supports `SendTo`"
)]
pub trait ExtendedRequest<T: Transport>: DescribeExtended {
    /// The memory for the device to read or write.
    type Work;

    /// Adds the elements for the device to read or write.
    fn gather(&self, list: &mut SgeList);

    /// The work, when the request has been posted.
    fn into_work(self) -> Self::Work;
}

/// A request also supported by [`SendQueue::post`](crate::qp::SendQueue::post).
///
/// A sealed trait, implemented by the requests of this module only.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be posted by `ibv_post_send` to a queue pair of `{T}`",
    label = "the call or the transport does not support this request",
    note = "flushes and atomic writes need an extended batch; `Uc` supports sends and writes; `Ud` supports `SendTo`"
)]
pub trait SendRequest<T: Transport>: ExtendedRequest<T> + Describe {}

/// The options common to all requests.
macro_rules! common_options {
    () => {
        /// Requests no completion of its own on success: the work returns with a later completion.
        ///
        /// The queue still requests one from time to time, so that unsignaled requests never fill the
        /// queue. On iWARP, where a later completion does not imply earlier ones, every request has a
        /// completion.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        #[inline]
        pub fn unsignaled(mut self) -> Self {
            self.flags.0 &= !ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
            self
        }

        /// Starts only after all earlier RDMA reads and atomics are done.
        #[doc(alias = "IBV_SEND_FENCE")]
        #[inline]
        pub fn fenced(mut self) -> Self {
            self.flags |= ffi::ibv_send_flags::IBV_SEND_FENCE;
            self
        }

        /// The work, unposted.
        pub fn into_work(self) -> W {
            self.work
        }

        /// The work.
        pub fn work(&self) -> &W {
            &self.work
        }

        /// Whether the request asks for a completion of its own on success.
        pub fn is_signaled(&self) -> bool {
            self.flags.0 & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
        }
    };
}
pub(crate) use common_options;

/// The getter of a request for the peer's memory.
macro_rules! remote_memory {
    () => {
        /// The peer's memory.
        pub fn remote(&self) -> RemoteToken {
            self.remote
        }
    };
}
pub(crate) use remote_memory;

/// Implements the traits of a request for the transports that satisfy a bound. Items of [`Parts`]
/// besides the flags can be given.
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
        keeps_work!($name, transport: $transport, parts: {});
    };
    ($name:ident, transport: $transport:path, parts: { $($part:item)* }) => {
        impl<W> Parts for $name<W> {
            const DATA: bool = false;

            $($part)*

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
