//! A send work request in the form of `ibv_wr_*`: call by call, in the provider's own memory.

use std::ptr::NonNull;

use ibverbs_sys as ffi;

use super::deferred::{Binding, Data, Deferred, Destination, Operation, Request};
use crate::wr_id::WrId;

/// A queue pair between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Debug)]
pub(super) struct Builder {
    // INVARIANT: as the caller of `new` has promised.
    qp: NonNull<ffi::ibv_qp_ex>,
}

/// Makes one call of the builder, all under one safety argument.
macro_rules! call {
    ($this:ident, $name:ident($($arg:expr),*)) => {
        // SAFETY: the queue pair is being built on, and has the operation (`Builder::new`). C keeps
        // no pointer argument, except for the address handle's, kept by the request.
        unsafe { ffi::$name($this.qp.as_ptr() $(, $arg)*) }
    };
}

impl Builder {
    /// Begins a request. The following calls describe the request.
    ///
    /// # Safety
    /// - While the result is used, `qp` exists, its send queue has no other user, and the last call
    ///   for `qp` that began or ended building was `ibv_wr_start`.
    /// - Only operations chosen at the queue pair's creation are built.
    #[inline]
    pub(super) unsafe fn new(
        qp: NonNull<ffi::ibv_qp_ex>,
        id: WrId,
        flags: ffi::ibv_send_flags,
    ) -> Self {
        let raw = qp.as_ptr();
        // SAFETY: the queue pair exists, and the field is the program's to write.
        unsafe { (*raw).wr_id = id.0 };
        // SAFETY: see above.
        unsafe { (*raw).wr_flags = flags.0 };
        Self { qp }
    }

    /// Describes the request: the operation, then the address, then the data.
    ///
    /// # Safety
    /// - The request's address handle or window exists, and the region of a binding is registered.
    #[inline]
    pub(super) unsafe fn build(&mut self, request: &Request, of: &Deferred) {
        match request.operation {
            Operation::BindMw(index) => {
                if let Some(binding) = of.binding(index) {
                    // SAFETY: the caller's promise.
                    unsafe { self.bind_mw(binding) };
                }
            }
            operation => self.operation(operation, of),
        }
        match request.destination {
            Destination::Peer => {}
            Destination::Datagram(ah, remote_qp, qkey) => {
                call!(self, ibv_wr_set_ud_addr(ah, remote_qp.get(), qkey));
            }
            Destination::Srq(srq) => call!(self, ibv_wr_set_xrc_srqn(srq.get())),
            Destination::Vendor(index) => {
                if let Some(address) = of.vendor_address(index) {
                    // SAFETY: the operation has been built, and is without an address.
                    unsafe { address.set(self.qp) };
                }
            }
        }
        match request.data {
            Data::None => {}
            Data::Element(sge) => call!(self, ibv_wr_set_sge(sge.lkey, sge.addr, sge.length)),
            Data::Elements(span) => {
                let list = of.elements(span);
                call!(self, ibv_wr_set_sge_list(list.len(), list.as_ptr()));
            }
            Data::Inline(span) => {
                let bytes = of.bytes(span);
                let data = bytes.as_ptr().cast_mut().cast();
                call!(self, ibv_wr_set_inline_data(data, bytes.len()));
            }
        }
    }

    #[inline]
    fn operation(&mut self, operation: Operation, of: &Deferred) {
        let be32 = ffi::__be32::from_ne;
        match operation {
            Operation::Send => call!(self, ibv_wr_send()),
            Operation::SendImm(imm) => call!(self, ibv_wr_send_imm(be32(imm))),
            Operation::SendInv(rkey) => call!(self, ibv_wr_send_inv(rkey)),
            Operation::SendTso { header, mss } => {
                let header = of.bytes(header);
                // No longer than the queue pair was made for: a `u16`.
                let len = u16::try_from(header.len()).unwrap_or(u16::MAX);
                let header = header.as_ptr().cast_mut().cast();
                call!(self, ibv_wr_send_tso(header, len, mss));
            }
            Operation::RdmaWrite(to) => call!(self, ibv_wr_rdma_write(to.rkey, to.addr)),
            Operation::RdmaWriteImm(to, imm) => {
                call!(self, ibv_wr_rdma_write_imm(to.rkey, to.addr, be32(imm)));
            }
            Operation::RdmaRead(from) => call!(self, ibv_wr_rdma_read(from.rkey, from.addr)),
            Operation::AtomicCmpSwp(to, compare, swap) => {
                call!(self, ibv_wr_atomic_cmp_swp(to.rkey, to.addr, compare, swap));
            }
            Operation::AtomicFetchAdd(to, add) => {
                call!(self, ibv_wr_atomic_fetch_add(to.rkey, to.addr, add));
            }
            Operation::LocalInv(rkey) => call!(self, ibv_wr_local_inv(rkey)),
            Operation::AtomicWrite(to, value) => {
                let value = value.as_ptr().cast();
                call!(self, ibv_wr_atomic_write(to.rkey, to.addr, value));
            }
            Operation::Flush(to, placement, selectivity) => {
                let len = usize::try_from(to.len).unwrap_or(usize::MAX);
                call!(
                    self,
                    ibv_wr_flush(to.rkey, to.addr, len, placement, selectivity)
                );
            }
            // Has a function of its own.
            Operation::BindMw(_) => {}
        }
    }

    /// Binds a window. The window has its new key before and after, and the old one during the
    /// call, as expected by providers.
    ///
    /// # Safety
    /// - The window exists without other users, and the region is registered.
    unsafe fn bind_mw(&mut self, binding: &Binding) {
        let mw = binding.mw;
        // SAFETY: the window exists without other users, as the caller promises.
        unsafe { (*mw).rkey = binding.rkey_before };
        call!(
            self,
            ibv_wr_bind_mw(mw, binding.rkey, &raw const binding.bind_info)
        );
        // SAFETY: see above.
        unsafe { (*mw).rkey = binding.rkey };
    }
}
