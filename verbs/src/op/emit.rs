//! The contents of a request, defined once for both APIs of posting.

use super::vendor::VendorAddress;
use crate::{
    ah::AddressHandle,
    bounded::{QpNum, SrqNum},
    mr::RemoteToken,
};

/// Where a request is described to: a struct for `ibv_post_send` ([`SendWr`](super::SendWr)), a record
/// for `ibv_wr_*` ([`Deferred`](super::Deferred)), or the set of operations that it needs
/// ([`SendOps`](super::SendOps)).
///
/// The operation comes first, then the address.
pub trait Emit {
    fn send(&mut self);
    fn send_imm(&mut self, imm_data: u32);
    fn send_inv(&mut self, rkey: u32);
    fn send_tso(&mut self, header: &[u8], mss: u16);
    fn rdma_write(&mut self, remote: RemoteToken);
    fn rdma_write_imm(&mut self, remote: RemoteToken, imm_data: u32);
    fn rdma_read(&mut self, remote: RemoteToken);
    fn atomic_cmp_swp(&mut self, remote: RemoteToken, compare: u64, swap: u64);
    fn atomic_fetch_add(&mut self, remote: RemoteToken, add: u64);
    fn local_inv(&mut self, rkey: u32);

    /// The address of a datagram. The request keeps the handle while in flight.
    fn ud_addr(&mut self, ah: &AddressHandle, remote_qp: QpNum, qkey: u32);

    /// Of an extended reliable connection.
    fn xrc_srq(&mut self, srq: SrqNum);
}

/// The operations of `ibv_wr_*` only.
pub trait EmitExtended: Emit {
    fn atomic_write(&mut self, remote: RemoteToken, value: &[u8; 8]);
    fn flush(&mut self, remote: RemoteToken, placement: u8, selectivity: u8);

    /// An address set by a vendor's call. The request keeps the handle while in flight.
    fn vendor_addr(&mut self, address: VendorAddress);
}
