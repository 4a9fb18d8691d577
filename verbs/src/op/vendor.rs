//! Requests of vendors' transports.

use std::ptr::NonNull;

use ibverbs_sys as ffi;

use super::{DescribeExtended, EmitExtended, ExtendedRequest, Parts};
use crate::{
    ah::AddressHandle, bounded::QpNum, mr::RemoteToken, qp::VendorTransport, work::SgeList,
};

/// A request of a vendor's transport, for [`ExtendedBatch::push_vendor`](crate::qp::ExtendedBatch::push_vendor): an operation of `ibv_wr_*`, a
/// destination, and its own work.
///
/// The queue pair has to be made for the operation with [`send_ops`](crate::qp::QueuePairBuilder::send_ops). As for the requests
/// of this module, the queue keeps the work until its completion, and refuses a request without a free slot, with too many
/// elements, or beyond its token.
///
/// # Safety
/// - All methods return the same for the same request, and do not unwind.
/// - [`gather`](Self::gather) adds elements of the work, of memory for which the rules of [`Gather`](crate::work::Gather) hold
///   from then on until the work is dropped; and those of [`Scatter`](crate::work::Scatter) if the device writes: for
///   [`RdmaRead`](VendorOperation::RdmaRead), [`CompareSwap`](VendorOperation::CompareSwap) and
///   [`FetchAdd`](VendorOperation::FetchAdd).
/// - The [`destination`](Self::destination)'s address handle exists until the work is dropped.
/// - The transport defines the operation with this kind of destination, for queue pairs made for the operation, without inline
///   data: libefa copies inline data over the memory that an RDMA request names.
///
/// # Examples
/// A write to a queue pair that the request names:
/// ```
/// use verbs::{Buf, RemoteToken, ah::Addressed, ah::HasAddress, work::{Gather, SgeList}};
/// use verbs::op::{VendorDestination, VendorOperation, VendorRequest};
/// use verbs::qp::{QpNum, VendorTransport};
///
/// struct WriteTo<T> {
///     work: Addressed<Buf>,
///     to: RemoteToken,
///     peer: QpNum,
///     transport: std::marker::PhantomData<T>,
/// }
///
/// // SAFETY: the work owns the memory, which is only read, and the address handle. The transport is chosen for its writes.
/// unsafe impl<T: VendorTransport> VendorRequest for WriteTo<T> {
///     type Transport = T;
///     type Work = Addressed<Buf>;
///
///     fn operation(&self) -> VendorOperation {
///         VendorOperation::RdmaWrite(self.to)
///     }
///
///     fn destination(&self) -> VendorDestination<'_> {
///         VendorDestination::queue_pair(self.work.ah(), self.peer, 0x1234)
///     }
///
///     fn gather(&self, list: &mut SgeList) {
///         self.work.gather(list);
///     }
///
///     fn into_work(self) -> Self::Work {
///         self.work
///     }
/// }
/// ```
pub unsafe trait VendorRequest {
    /// The transport of the request.
    type Transport: VendorTransport;
    /// The memory for the device to read or write, and the address handle.
    type Work;

    /// The operation of the device.
    fn operation(&self) -> VendorOperation;

    /// The receiver.
    fn destination(&self) -> VendorDestination<'_>;

    /// Adds the elements for the device to read or write.
    fn gather(&self, list: &mut SgeList);

    /// The work, when the request has been posted.
    fn into_work(self) -> Self::Work;

    /// Whether the request asks for a completion of its own on success. The queue asks for one from time to time all the
    /// same, and for each on a transport without order.
    fn is_signaled(&self) -> bool {
        true
    }

    /// Maximum number of elements, where the device has fewer for this operation than `max_send_sge` of the queue pair. A
    /// request with more is refused when it is added to a batch.
    fn max_sge(&self) -> Option<u32> {
        None
    }
}

/// The operation of a [`VendorRequest`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum VendorOperation {
    /// `ibv_wr_send`—Sends a message.
    Send,
    /// `ibv_wr_send_imm`—Sends a message with a number.
    SendImm(u32),
    /// `ibv_wr_rdma_write`—Writes into this memory of the peer.
    RdmaWrite(RemoteToken),
    /// `ibv_wr_rdma_write_imm`—Writes into this memory of the peer, which consumes a receive with the number.
    RdmaWriteImm(RemoteToken, u32),
    /// `ibv_wr_rdma_read`—Reads from this memory of the peer. The limit of reads in flight
    /// ([`max_rd_atomic`](crate::qp::Attributes::max_rd_atomic)) is not checked: transports of vendors have none.
    RdmaRead(RemoteToken),
    /// `ibv_wr_atomic_cmp_swp`—Replaces the number at the start of this memory of the peer by the second number, if it equals the
    /// first one. The work is one element of 8 bytes, and receives the former number. Reads in flight are as for
    /// [`RdmaRead`](Self::RdmaRead).
    CompareSwap(RemoteToken, u64, u64),
    /// `ibv_wr_atomic_fetch_add`—Adds to the number at the start of this memory of the peer; see [`CompareSwap`](Self::CompareSwap).
    FetchAdd(RemoteToken, u64),
}

impl VendorOperation {
    fn remote(self) -> Option<RemoteToken> {
        match self {
            Self::Send | Self::SendImm(_) => None,
            Self::RdmaWrite(token)
            | Self::RdmaWriteImm(token, _)
            | Self::RdmaRead(token)
            | Self::CompareSwap(token, ..)
            | Self::FetchAdd(token, _) => Some(token),
        }
    }
}

/// The destination of a [`VendorRequest`].
#[derive(Clone, Copy, Debug)]
pub struct VendorDestination<'r> {
    ah: &'r AddressHandle,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    QueuePair(QpNum, u32),
    Call(SetAddress, [u64; 2]),
}

/// A vendor's call that sets the address of the operation built last: with the queue pair, the address handle, and two
/// arguments.
type SetAddress = unsafe fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_ah, [u64; 2]);

impl<'r> VendorDestination<'r> {
    /// `ibv_wr_set_ud_addr`—The queue pair `peer` at an address, with this Q_Key.
    pub fn queue_pair(ah: &'r AddressHandle, peer: QpNum, qkey: u32) -> Self {
        let kind = Kind::QueuePair(peer, qkey);
        Self { ah, kind }
    }

    /// Calls `set`, such as `mlx5dv_wr_set_dc_addr`, with the queue pair, the address handle and these arguments, after the
    /// operation's own call.
    ///
    /// # Safety
    /// - Between `ibv_wr_start` and `ibv_wr_complete`, `set` may be called for a queue pair of the request's transport, with
    ///   this address handle and these arguments. It does not unwind, calls nothing but the provider, and keeps no pointer
    ///   but the handle.
    pub unsafe fn by_call(
        ah: &'r AddressHandle,
        set: unsafe fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_ah, [u64; 2]),
        arguments: [u64; 2],
    ) -> Self {
        let kind = Kind::Call(set, arguments);
        Self { ah, kind }
    }
}

/// An address set by a vendor's call, kept for the post.
#[derive(Clone, Copy, Debug)]
pub struct VendorAddress {
    // INVARIANT: as `VendorDestination::by_call` demands.
    set: SetAddress,
    ah: *mut ffi::ibv_ah,
    arguments: [u64; 2],
}

impl VendorAddress {
    /// Sets the address.
    ///
    /// # Safety
    /// - `qp` is of the request's transport, and an operation without an address has just been built on it. The address
    ///   handle exists.
    pub(super) unsafe fn set(&self, qp: NonNull<ffi::ibv_qp_ex>) {
        // SAFETY: the invariant, and the caller's promise.
        unsafe { (self.set)(qp.as_ptr(), self.ah, self.arguments) };
    }
}

/// A request of a vendor's among those of this crate.
#[derive(Debug)]
pub(crate) struct Vendor<R>(pub(crate) R);

impl<R: VendorRequest> Parts for Vendor<R> {
    fn remote_len(&self) -> u64 {
        let remote = self.0.operation().remote();
        remote.map_or(u64::MAX, |token| token.len)
    }

    fn max_sge(&self) -> Option<u32> {
        self.0.max_sge()
    }

    fn exactly(&self) -> Option<u32> {
        match self.0.operation() {
            VendorOperation::CompareSwap(..) | VendorOperation::FetchAdd(..) => Some(8),
            _ => None,
        }
    }

    fn flags(&self) -> ffi::ibv_send_flags {
        match self.0.is_signaled() {
            true => ffi::ibv_send_flags::IBV_SEND_SIGNALED,
            false => ffi::ibv_send_flags(0),
        }
    }

    fn address(&self) -> Option<&AddressHandle> {
        Some(self.0.destination().ah)
    }
}

impl<R: VendorRequest> DescribeExtended for Vendor<R> {
    fn describe_extended<E: EmitExtended>(&self, to: &mut E) {
        match self.0.operation() {
            VendorOperation::Send => to.send(),
            VendorOperation::SendImm(imm_data) => to.send_imm(imm_data),
            VendorOperation::RdmaWrite(token) => to.rdma_write(token),
            VendorOperation::RdmaWriteImm(token, imm_data) => to.rdma_write_imm(token, imm_data),
            VendorOperation::RdmaRead(token) => to.rdma_read(token),
            VendorOperation::CompareSwap(token, compare, swap) => {
                to.atomic_cmp_swp(token, compare, swap);
            }
            VendorOperation::FetchAdd(token, add) => to.atomic_fetch_add(token, add),
        }
        let VendorDestination { ah, kind } = self.0.destination();
        match kind {
            Kind::QueuePair(peer, qkey) => to.ud_addr(ah, peer, qkey),
            Kind::Call(set, arguments) => to.vendor_addr(VendorAddress {
                set,
                ah: ah.as_raw(),
                arguments,
            }),
        }
    }
}

impl<R: VendorRequest> ExtendedRequest<R::Transport> for Vendor<R> {
    type Work = R::Work;

    fn gather(&self, list: &mut SgeList) {
        self.0.gather(list);
    }

    fn into_work(self) -> R::Work {
        self.0.into_work()
    }
}
