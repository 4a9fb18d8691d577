//! The requests of an extended batch, kept as data until the batch is posted.
//!
//! A provider may hold the lock of the send queue from `ibv_wr_start` to `ibv_wr_complete`, so nothing of the program runs
//! between the two.

use std::{ptr, ptr::NonNull, slice};

use ibverbs_sys as ffi;

use super::{Builder, Emit, EmitExtended, vendor::VendorAddress};
use crate::{
    ah::AddressHandle,
    bounded::{QpNum, SrqNum},
    mr::RemoteToken,
    work::SgeList,
    wr_id::WrId,
};

/// Requests in their order of addition.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    requests: Vec<Request>,
    elements: Vec<ffi::ibv_sge>,
    /// Inline data and headers.
    bytes: Vec<u8>,
    /// Parts of requests, apart because they are long and rare.
    apart: Vec<Apart>,
}

// SAFETY: only `post` dereferences the pointers, under its caller's promise.
unsafe impl Send for Deferred {}
// SAFETY: see `Send`.
unsafe impl Sync for Deferred {}

/// One request. The ranges index the lists of the [`Deferred`].
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: WrId,
    pub(super) flags: ffi::ibv_send_flags,
    pub(super) operation: Operation,
    pub(super) destination: Destination,
    pub(super) data: Data,
}

/// An operation and its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send,
    SendImm(u32),
    SendInv(u32),
    SendTso {
        header: Span,
        mss: u16,
    },
    RdmaWrite(RemoteToken),
    RdmaWriteImm(RemoteToken, u32),
    RdmaRead(RemoteToken),
    AtomicCmpSwp(RemoteToken, u64, u64),
    AtomicFetchAdd(RemoteToken, u64),
    LocalInv(u32),
    AtomicWrite(RemoteToken, [u8; 8]),
    Flush(RemoteToken, u8, u8),
    /// The binding of this index.
    BindMw(usize),
}

/// A part that few requests have.
#[derive(Clone, Copy, Debug)]
enum Apart {
    Binding(Binding),
    Address(VendorAddress),
}

/// The address of a request, if needed by the transport.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination {
    Peer,
    Datagram(*mut ffi::ibv_ah, QpNum, u32),
    Srq(SrqNum),
    /// The vendor's address of this index.
    Vendor(usize),
}

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data {
    None,
    Element(ffi::ibv_sge),
    Elements(Span),
    Inline(Span),
}

/// A part of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    start: usize,
    end: usize,
}

/// The binding of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) mw: *mut ffi::ibv_mw,
    /// The key before the binding, the provider's name for the window.
    pub(crate) rkey_before: u32,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ffi::ibv_mw_bind_info,
}

/// A request in construction: described by [`Emit`], then given its data, then [kept](Self::keep).
pub(crate) struct Recording<'d> {
    deferred: &'d mut Deferred,
    request: Request,
}

impl Deferred {
    /// The number of requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Forgets all requests. The memory stays for the next ones.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.bytes.clear();
        self.apart.clear();
    }

    /// Begins one more request.
    #[inline]
    pub(crate) fn begin(&mut self, id: WrId, flags: ffi::ibv_send_flags) -> Recording<'_> {
        Recording {
            deferred: self,
            request: Request {
                id,
                flags,
                operation: Operation::Send,
                destination: Destination::Peer,
                data: Data::None,
            },
        }
    }

    /// `ibv_wr_start`, one call for each part of each request, `ibv_wr_complete`—Posts the requests. Returns the error
    /// number of the last call, 0 if there is none. Calls nothing but the provider, and does not panic.
    ///
    /// # Safety
    /// - `qp` exists, its send queue has no other user during the call, and `qp` was made for the
    ///   operations.
    /// - The address handles and the windows exist. The regions of bindings are registered.
    #[inline]
    pub(crate) unsafe fn post(&self, qp: NonNull<ffi::ibv_qp_ex>) -> i32 {
        // SAFETY: the queue pair exists and was made for extended posting. No building is in
        // progress: building ends in the call that begins it.
        unsafe { ffi::ibv_wr_start(qp.as_ptr()) };
        for request in &self.requests {
            // SAFETY: started above, and made for the operation.
            let mut builder = unsafe { Builder::new(qp, request.id, request.flags) };
            // SAFETY: the caller's promise of address handles, windows and regions.
            unsafe { builder.build(request, self) };
        }
        // SAFETY: started above.
        unsafe { ffi::ibv_wr_complete(qp.as_ptr()) }
    }

    pub(super) fn elements(&self, span: Span) -> &[ffi::ibv_sge] {
        self.elements.get(span.start..span.end).unwrap_or_default()
    }

    pub(super) fn binding(&self, index: usize) -> Option<&Binding> {
        match self.apart.get(index)? {
            Apart::Binding(binding) => Some(binding),
            Apart::Address(_) => None,
        }
    }

    pub(super) fn vendor_address(&self, index: usize) -> Option<&VendorAddress> {
        match self.apart.get(index)? {
            Apart::Binding(_) => None,
            Apart::Address(address) => Some(address),
        }
    }

    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        self.bytes.get(span.start..span.end).unwrap_or_default()
    }

    fn keep_bytes(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len();
        Span { start, end }
    }
}

impl Recording<'_> {
    /// Sets the memory for the device to read or write.
    #[inline]
    pub(crate) fn sges(&mut self, sges: &SgeList) {
        if let [sge] = sges.elements() {
            self.request.data = Data::Element(*sge);
            return;
        }
        let list = &mut self.deferred.elements;
        let start = list.len();
        list.extend_from_slice(sges.elements());
        let end = list.len();
        self.request.data = Data::Elements(Span { start, end });
    }

    /// Copies the bytes of the elements.
    ///
    /// # Safety
    /// - The elements are readable memory.
    #[inline]
    pub(crate) unsafe fn inline(&mut self, sges: &SgeList) {
        let start = self.deferred.bytes.len();
        for sge in sges.elements().iter().filter(|sge| sge.length > 0) {
            #[expect(clippy::cast_possible_truncation, reason = "it was a pointer")]
            let first = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's promise.
            let bytes = unsafe { slice::from_raw_parts(first, sge.length as usize) };
            self.deferred.bytes.extend_from_slice(bytes);
        }
        let end = self.deferred.bytes.len();
        self.request.data = Data::Inline(Span { start, end });
    }

    pub(crate) fn bind_mw(&mut self, binding: Binding) {
        let list = &mut self.deferred.apart;
        self.request.operation = Operation::BindMw(list.len());
        list.push(Apart::Binding(binding));
    }

    /// Adds the request.
    #[inline]
    pub(crate) fn keep(self) {
        self.deferred.requests.push(self.request);
    }
}

impl Emit for Recording<'_> {
    #[inline]
    fn send(&mut self) {
        self.request.operation = Operation::Send;
    }

    #[inline]
    fn send_imm(&mut self, imm_data: u32) {
        self.request.operation = Operation::SendImm(imm_data);
    }

    #[inline]
    fn send_inv(&mut self, rkey: u32) {
        self.request.operation = Operation::SendInv(rkey);
    }

    #[inline]
    fn send_tso(&mut self, header: &[u8], mss: u16) {
        let header = self.deferred.keep_bytes(header);
        self.request.operation = Operation::SendTso { header, mss };
    }

    #[inline]
    fn rdma_write(&mut self, remote: RemoteToken) {
        self.request.operation = Operation::RdmaWrite(remote);
    }

    #[inline]
    fn rdma_write_imm(&mut self, remote: RemoteToken, imm_data: u32) {
        self.request.operation = Operation::RdmaWriteImm(remote, imm_data);
    }

    #[inline]
    fn rdma_read(&mut self, remote: RemoteToken) {
        self.request.operation = Operation::RdmaRead(remote);
    }

    #[inline]
    fn atomic_cmp_swp(&mut self, remote: RemoteToken, compare: u64, swap: u64) {
        self.request.operation = Operation::AtomicCmpSwp(remote, compare, swap);
    }

    #[inline]
    fn atomic_fetch_add(&mut self, remote: RemoteToken, add: u64) {
        self.request.operation = Operation::AtomicFetchAdd(remote, add);
    }

    #[inline]
    fn local_inv(&mut self, rkey: u32) {
        self.request.operation = Operation::LocalInv(rkey);
    }

    #[inline]
    fn ud_addr(&mut self, ah: &AddressHandle, remote_qp: QpNum, qkey: u32) {
        self.request.destination = Destination::Datagram(ah.as_raw(), remote_qp, qkey);
    }

    #[inline]
    fn xrc_srq(&mut self, srq: SrqNum) {
        self.request.destination = Destination::Srq(srq);
    }
}

impl EmitExtended for Recording<'_> {
    #[inline]
    fn atomic_write(&mut self, remote: RemoteToken, value: &[u8; 8]) {
        self.request.operation = Operation::AtomicWrite(remote, *value);
    }

    #[inline]
    fn flush(&mut self, remote: RemoteToken, placement: u8, selectivity: u8) {
        self.request.operation = Operation::Flush(remote, placement, selectivity);
    }

    #[inline]
    fn vendor_addr(&mut self, address: VendorAddress) {
        let list = &mut self.deferred.apart;
        self.request.destination = Destination::Vendor(list.len());
        list.push(Apart::Address(address));
    }
}
