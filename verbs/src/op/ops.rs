//! Send operations, chosen when a queue pair is created.

use bitflags::bitflags;
use ibverbs_sys::ibv_qp_create_send_ops_flags as with;

use super::{Emit, EmitExtended, vendor::VendorAddress};
use crate::{
    ah::AddressHandle,
    bounded::{QpNum, SrqNum},
    mr::RemoteToken,
};

bitflags! {
    /// `ibv_qp_create_send_ops_flags`—The operations of an [extended
    /// batch](crate::qp::ExtendedBatch).
    ///
    /// # References
    /// [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendOps: u64 {
        /// [`Write`](super::Write).
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE")]
        const RDMA_WRITE = with::IBV_QP_EX_WITH_RDMA_WRITE.0 as u64;
        /// [`Write::imm_data`](super::Write::imm_data).
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM")]
        const RDMA_WRITE_WITH_IMM = with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64;
        /// [`Send`](super::Send), [`SendTo`](super::SendTo), [`SendFrame`](super::SendFrame).
        #[doc(alias = "IBV_QP_EX_WITH_SEND")]
        const SEND = with::IBV_QP_EX_WITH_SEND.0 as u64;
        /// [`Send::imm_data`](super::Send::imm_data), [`SendTo::imm_data`](super::SendTo::imm_data).
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_IMM")]
        const SEND_WITH_IMM = with::IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;
        /// [`Read`](super::Read).
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_READ")]
        const RDMA_READ = with::IBV_QP_EX_WITH_RDMA_READ.0 as u64;
        /// [`CompareSwap`](super::CompareSwap).
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP")]
        const ATOMIC_CMP_AND_SWP = with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64;
        /// [`FetchAdd`](super::FetchAdd).
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD")]
        const ATOMIC_FETCH_AND_ADD = with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64;
        /// [`LocalInvalidate`](super::LocalInvalidate).
        #[doc(alias = "IBV_QP_EX_WITH_LOCAL_INV")]
        const LOCAL_INV = with::IBV_QP_EX_WITH_LOCAL_INV.0 as u64;
        /// [`ExtendedBatch::bind_window`](crate::qp::ExtendedBatch::bind_window).
        #[doc(alias = "IBV_QP_EX_WITH_BIND_MW")]
        const BIND_MW = with::IBV_QP_EX_WITH_BIND_MW.0 as u64;
        /// [`Send::invalidate`](super::Send::invalidate).
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_INV")]
        const SEND_WITH_INV = with::IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64;
        /// [`SendTso`](super::SendTso), [`SendFrameTso`](super::SendFrameTso).
        #[doc(alias = "IBV_QP_EX_WITH_TSO")]
        const TSO = with::IBV_QP_EX_WITH_TSO.0 as u64;
        /// [`Flush`](super::Flush). Since rdma-core 45.
        const FLUSH = with::IBV_QP_EX_WITH_FLUSH.0 as u64;
        /// [`AtomicWrite`](super::AtomicWrite). Since rdma-core 44.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
        const ATOMIC_WRITE = with::IBV_QP_EX_WITH_ATOMIC_WRITE.0 as u64;
    }
}

impl SendOps {
    /// The C function of one operation.
    pub(crate) fn call(self) -> &'static str {
        match self {
            Self::RDMA_WRITE => "ibv_wr_rdma_write",
            Self::RDMA_WRITE_WITH_IMM => "ibv_wr_rdma_write_imm",
            Self::SEND => "ibv_wr_send",
            Self::SEND_WITH_IMM => "ibv_wr_send_imm",
            Self::RDMA_READ => "ibv_wr_rdma_read",
            Self::ATOMIC_CMP_AND_SWP => "ibv_wr_atomic_cmp_swp",
            Self::ATOMIC_FETCH_AND_ADD => "ibv_wr_atomic_fetch_add",
            Self::LOCAL_INV => "ibv_wr_local_inv",
            Self::BIND_MW => "ibv_wr_bind_mw",
            Self::SEND_WITH_INV => "ibv_wr_send_inv",
            Self::TSO => "ibv_wr_send_tso",
            Self::FLUSH => "ibv_wr_flush",
            Self::ATOMIC_WRITE => "ibv_wr_atomic_write",
            _ => "ibv_wr_start",
        }
    }
}

/// Collects the operation, and ignores its arguments.
impl Emit for SendOps {
    #[inline]
    fn send(&mut self) {
        *self |= Self::SEND;
    }

    #[inline]
    fn send_imm(&mut self, _imm_data: u32) {
        *self |= Self::SEND_WITH_IMM;
    }

    #[inline]
    fn send_inv(&mut self, _rkey: u32) {
        *self |= Self::SEND_WITH_INV;
    }

    #[inline]
    fn send_tso(&mut self, _header: &[u8], _mss: u16) {
        *self |= Self::TSO;
    }

    #[inline]
    fn rdma_write(&mut self, _remote: RemoteToken) {
        *self |= Self::RDMA_WRITE;
    }

    #[inline]
    fn rdma_write_imm(&mut self, _remote: RemoteToken, _imm_data: u32) {
        *self |= Self::RDMA_WRITE_WITH_IMM;
    }

    #[inline]
    fn rdma_read(&mut self, _remote: RemoteToken) {
        *self |= Self::RDMA_READ;
    }

    #[inline]
    fn atomic_cmp_swp(&mut self, _remote: RemoteToken, _compare: u64, _swap: u64) {
        *self |= Self::ATOMIC_CMP_AND_SWP;
    }

    #[inline]
    fn atomic_fetch_add(&mut self, _remote: RemoteToken, _add: u64) {
        *self |= Self::ATOMIC_FETCH_AND_ADD;
    }

    #[inline]
    fn local_inv(&mut self, _rkey: u32) {
        *self |= Self::LOCAL_INV;
    }

    #[inline]
    fn ud_addr(&mut self, _ah: &AddressHandle, _remote_qp: QpNum, _qkey: u32) {}

    #[inline]
    fn xrc_srq(&mut self, _srq: SrqNum) {}
}

impl EmitExtended for SendOps {
    #[inline]
    fn atomic_write(&mut self, _remote: RemoteToken, _value: &[u8; 8]) {
        *self |= Self::ATOMIC_WRITE;
    }

    #[inline]
    fn flush(&mut self, _remote: RemoteToken, _placement: u8, _selectivity: u8) {
        *self |= Self::FLUSH;
    }

    #[inline]
    fn vendor_addr(&mut self, _address: VendorAddress) {}
}
