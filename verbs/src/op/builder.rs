//! A send work request as `ibv_wr_*` builds it: call by call, in the provider's own memory.

use std::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    slice,
};

use ibverbs_sys as ffi;

use super::{Emit, EmitExtended};
use crate::{
    ah::AddressHandle,
    bounded::{QpNum, SrqNum},
    mr::RemoteToken,
    work::{MAX_SGE, SgeList},
    wr_id::WrId,
};

/// The pointer that an element was made of.
#[expect(clippy::cast_possible_truncation, reason = "it was a pointer")]
fn start(addr: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr as usize)
}

/// A queue pair between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`.
#[derive(Debug)]
pub(crate) struct Builder {
    // INVARIANT: as the caller of `new` has promised.
    qp: NonNull<ffi::ibv_qp_ex>,
}

/// Makes one call, whose safety is that of every other.
macro_rules! call {
    ($this:ident, $name:ident($($arg:expr),*)) => {
        // SAFETY: the queue pair is being built on, and has the operation (`Builder::new`). C keeps
        // no pointer that it is given, except for the address handle's, which the request keeps.
        unsafe { ffi::$name($this.qp.as_ptr() $(, $arg)*) }
    };
}

impl Builder {
    /// Begins a request. The calls that follow describe it.
    ///
    /// # Safety
    /// - For as long as the result is used, `qp` exists, `ibv_wr_start` was the last of the three
    ///   calls on it, and nobody else uses its send queue.
    /// - Only operations that the queue pair was made for are called.
    #[inline]
    pub(crate) unsafe fn new(
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

    /// The memory that the device will read or write.
    #[inline]
    pub(crate) fn sges(&mut self, sges: &SgeList) {
        match sges.elements() {
            [sge] => call!(self, ibv_wr_set_sge(sge.lkey, sge.addr, sge.length)),
            list => call!(self, ibv_wr_set_sge_list(list.len(), list.as_ptr())),
        }
    }

    /// The bytes that are copied now. If the provider's lists are `wrong`, they are joined first.
    ///
    /// # Safety
    /// - The elements are memory that can be read.
    #[inline]
    pub(crate) unsafe fn inline(&mut self, sges: &SgeList, wrong: bool) {
        match sges.elements() {
            [sge] => {
                let data = start(sge.addr);
                call!(self, ibv_wr_set_inline_data(data, sge.length as usize));
            }
            // SAFETY: the caller's promise.
            list if wrong => unsafe { self.joined(list) },
            list => {
                let mut bufs = [const { MaybeUninit::uninit() }; MAX_SGE];
                for (buf, sge) in bufs.iter_mut().zip(list) {
                    buf.write(ffi::ibv_data_buf {
                        addr: start(sge.addr),
                        length: sge.length as usize,
                    });
                }
                // As many of them as there are elements, which are at most `MAX_SGE`, are written.
                let first = bufs.as_ptr().cast();
                call!(self, ibv_wr_set_inline_data_list(list.len(), first));
            }
        }
    }

    /// # Safety
    /// - The elements are memory that can be read.
    #[cold]
    unsafe fn joined(&mut self, list: &[ffi::ibv_sge]) {
        let mut joined = Vec::new();
        for sge in list.iter().filter(|sge| sge.length > 0) {
            let start = start(sge.addr).cast::<u8>();
            // SAFETY: the caller's promise.
            joined.extend_from_slice(unsafe { slice::from_raw_parts(start, sge.length as usize) });
        }
        let data = joined.as_mut_ptr().cast();
        call!(self, ibv_wr_set_inline_data(data, joined.len()));
    }

    /// Binds a window.
    ///
    /// # Safety
    /// - The window exists, and the region that `bind_info` names is registered.
    pub(crate) unsafe fn bind_mw(
        &mut self,
        mw: *mut ffi::ibv_mw,
        rkey: u32,
        bind_info: &ffi::ibv_mw_bind_info,
    ) {
        call!(self, ibv_wr_bind_mw(mw, rkey, bind_info));
    }
}

impl Emit for Builder {
    #[inline]
    fn send(&mut self) {
        call!(self, ibv_wr_send());
    }

    #[inline]
    fn send_imm(&mut self, imm_data: u32) {
        call!(self, ibv_wr_send_imm(ffi::__be32::from_ne(imm_data)));
    }

    #[inline]
    fn send_inv(&mut self, rkey: u32) {
        call!(self, ibv_wr_send_inv(rkey));
    }

    #[inline]
    fn send_tso(&mut self, header: &[u8], mss: u16) {
        // No longer than the queue pair was made for: a `u16`.
        let len = u16::try_from(header.len()).unwrap_or(u16::MAX);
        let header = header.as_ptr().cast_mut().cast();
        call!(self, ibv_wr_send_tso(header, len, mss));
    }

    #[inline]
    fn rdma_write(&mut self, remote: RemoteToken) {
        call!(self, ibv_wr_rdma_write(remote.rkey, remote.addr));
    }

    #[inline]
    fn rdma_write_imm(&mut self, remote: RemoteToken, imm_data: u32) {
        let imm_data = ffi::__be32::from_ne(imm_data);
        call!(
            self,
            ibv_wr_rdma_write_imm(remote.rkey, remote.addr, imm_data)
        );
    }

    #[inline]
    fn rdma_read(&mut self, remote: RemoteToken) {
        call!(self, ibv_wr_rdma_read(remote.rkey, remote.addr));
    }

    #[inline]
    fn atomic_cmp_swp(&mut self, remote: RemoteToken, compare: u64, swap: u64) {
        call!(
            self,
            ibv_wr_atomic_cmp_swp(remote.rkey, remote.addr, compare, swap)
        );
    }

    #[inline]
    fn atomic_fetch_add(&mut self, remote: RemoteToken, add: u64) {
        call!(self, ibv_wr_atomic_fetch_add(remote.rkey, remote.addr, add));
    }

    #[inline]
    fn local_inv(&mut self, rkey: u32) {
        call!(self, ibv_wr_local_inv(rkey));
    }

    #[inline]
    fn ud_addr(&mut self, ah: &AddressHandle, remote_qp: QpNum, qkey: u32) {
        call!(self, ibv_wr_set_ud_addr(ah.as_raw(), remote_qp.get(), qkey));
    }

    #[inline]
    fn xrc_srq(&mut self, srq: SrqNum) {
        call!(self, ibv_wr_set_xrc_srqn(srq.get()));
    }
}

impl EmitExtended for Builder {
    #[inline]
    fn atomic_write(&mut self, remote: RemoteToken, value: &[u8; 8]) {
        let value = value.as_ptr().cast();
        call!(self, ibv_wr_atomic_write(remote.rkey, remote.addr, value));
    }

    #[inline]
    fn flush(&mut self, remote: RemoteToken, placement: u8, selectivity: u8) {
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        call!(
            self,
            ibv_wr_flush(remote.rkey, remote.addr, len, placement, selectivity)
        );
    }
}
