//! The granule of a registration: the unit in which its device respects the bounds of memory.

use std::{io, ptr::NonNull};

use ibverbs_sys::ibv_access_flags as flag;

use super::region::Terms;
use crate::{
    error::{Error, Result},
    pd::ProtectionDomain,
    quirk,
};

/// Number of bytes of which buffers of a registration begin and end at multiples: 1 where the device accesses the bytes
/// named by a request, and the size of a page where it accesses the start of a page at any offset.
///
/// A request then accesses other bytes of the pages that it names, and no other pages. So two owners never share a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granule(usize);

impl Granule {
    /// The device respects the bounds of every byte.
    pub(super) const BYTE: Self = Self(1);

    /// The granule of a registration with these options.
    ///
    /// Assumption: where memory is paged on demand, a device accesses the bytes that a request names, and no
    /// others. False on Soft-RoCE, whose kernel offers no attribute to recognise a driver without the fault.
    pub(super) fn of(pd: &ProtectionDomain, terms: &Terms) -> Result<Self> {
        let paged = terms.access & flag::IBV_ACCESS_ON_DEMAND.0 != 0;
        if paged && quirk::paging_ignores_offsets(pd.context())? {
            return Ok(Self(page_size()));
        }
        Ok(Self::BYTE)
    }

    /// Refuses memory that shares a granule with other memory, and options that the device does not combine with
    /// granules of more than a byte.
    pub(super) fn check(self, range: NonNull<[u8]>, terms: &Terms) -> Result<()> {
        if self == Self::BYTE {
            return Ok(());
        }
        let start = range.cast::<u8>().addr().get();
        let options = flag::IBV_ACCESS_HUGETLB.0 | flag::IBV_ACCESS_MW_BIND.0;
        let reason = if !self.divides(start) || !self.divides(range.len()) {
            format!(
                "Soft-RoCE accesses the start of a page paged on demand at any offset; register whole \
                 pages of {} bytes, such as a `Mapping` of a multiple of that size",
                self.0
            )
        } else if terms.access & options != 0 || terms.iova.is_some_and(|iova| iova != start as u64)
        {
            "Soft-RoCE accesses the start of a page paged on demand at any offset; leave out huge pages, \
             windows and other addresses"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::refused(
            "ibv_reg_mr",
            io::ErrorKind::Unsupported,
            reason,
        ))
    }

    /// Whether a buffer can begin or end at this address, or at this offset in a registration.
    pub(super) fn divides(self, bytes: usize) -> bool {
        bytes.is_multiple_of(self.0)
    }

    /// The number of bytes.
    pub(super) fn bytes(self) -> usize {
        self.0
    }
}

/// Size of the largest page of this process's architectures, in bytes: 4 to 64 KiB on ARM64, 4 KiB on x86-64.
pub(super) const MAX_PAGE: u32 = 1 << 16;

/// Size of a page of this process, in bytes.
pub(super) fn page_size() -> usize {
    // SAFETY: has no arguments in memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(MAX_PAGE as usize)
}
