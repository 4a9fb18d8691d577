//! Memory regions: memory registered with a device.
//!
//! Three kinds, for the three ways in which a device and a program can share bytes:
//!
//! - [`Buf`]: one owner at a time. Either the program or the device may write, never both: posting
//!   moves the buffer to the device, the completion returns the buffer.
//! - [`SharedBuf`]: frozen. Any number of requests may read it at once, and so may the program.
//! - [`RemoteRegion`]: a peer may read or write at any time. No reference to the bytes exists; the
//!   program copies in and out.
//!
//! | item | is |
//! |---|---|
//! | [`Buf`], [`SharedBuf`], [`NullBuf`] | registered memory for requests of this process |
//! | [`BufPool`], [`PoolBuf`], [`SharedPoolBuf`], [`LocalPool`] | many buffers in one registration |
//! | [`RemoteRegion`], [`RemoteToken`], [`RemoteAccess`] | memory for peers, the peer's name for it, the peer's rights |
//! | [`Registration`], [`RemoteRegistration`] | options of a registration |
//! | [`Reregistration`], [`NotReregistered`] | changes to a registration |
//! | [`Memory`], [`OwnedMemory`], [`RawMemory`], [`Prefix`] | kinds of memory that can be registered |
//! | [`MemoryHandle`] | memory registered several times, as with several devices |
//! | [`RegionParts`], [`RemoteTokens`] | memory longer than a registration can be, and the peer's names for it |
//! | [`RevokedMemory`] | memory of a region after its end, readable in place |
//! | [`Mapping`], [`HugePage`], [`SharedMemory`], [`ProviderMemory`] | such memory, from the kernel or the provider |
//! | [`UnmappedRegion`], [`UnmappedRegistration`], [`DmaBufRange`], [`NullRegion`] | regions without an address in the process |
//! | [`Everything`], [`Advice`] | on-demand paging |
//! | [`DmaHandle`], [`DmaHints`], [`TphMemory`] | hints for the device's accesses |
//!
//! # References
//! [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html),
//! [ibv_rereg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_rereg_mr.3.html),
//! [ibv_reg_dmabuf_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_dmabuf_mr.3.html),
//! [ibv_advise_mr(3)](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html)

/// The atomics of the free list.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
/// The reference count of frozen buffers.
mod count {
    pub(super) use std::sync::Arc;
}
mod bound;
mod buf;
mod builder;
mod copying;
mod dmah;
mod free_list;
mod frozen;
mod granule;
mod handle;
mod local_pool;
mod mapping;
mod memory;
mod null;
mod on_demand;
mod parts;
mod pool;
mod pool_buf;
mod provider_memory;
mod region;
mod remote;
mod rereg;
mod revoked;
mod shared_memory;
mod unmapped;
mod unmapped_builder;

#[cfg(test)]
mod interleavings;

pub(crate) use bound::BoundRegions;
pub use buf::{Buf, SharedBuf};
pub use builder::{Registration, RemoteRegistration};
pub use dmah::{DmaHandle, DmaHints, TphMemory};
pub use handle::MemoryHandle;
pub use local_pool::LocalPool;
pub use mapping::{HugePage, Mapping};
pub use memory::{Memory, OwnedMemory, Prefix, RawMemory};
pub use null::{NullBuf, NullRegion};
pub use on_demand::{Advice, Everything};
pub use parts::{RegionParts, RemoteTokens};
pub use pool::BufPool;
pub use pool_buf::{PoolBuf, SharedPoolBuf};
pub use provider_memory::ProviderMemory;
pub use remote::{RemoteRegion, RemoteToken};
pub use rereg::{NotReregistered, Reregistration};
pub use revoked::RevokedMemory;
pub use shared_memory::SharedMemory;
pub use unmapped::{DmaBufRange, UnmappedRegion};
pub use unmapped_builder::UnmappedRegistration;

pub use crate::access::RemoteAccess;
