//! InfiniBand addresses.

use crate::ib_addr;
use core::cmp::Ordering;
use core::ffi::c_int;
use ibverbs_sys::__be32;

/// All 16 bytes, in network order.
///
/// # Safety
///
/// `addr` is readable.
#[inline]
unsafe fn bytes(addr: *const ib_addr) -> [u8; 16] {
    // SAFETY: the caller's address is readable, and every field of the union is plain bytes.
    unsafe { (*addr).ib_u.uib_addr8 }
}

/// `ib_addr_any(a)`—1 if the address is all zero, or 0.
///
/// # Safety
///
/// `a` is readable.
#[inline]
#[must_use]
pub unsafe fn ib_addr_any(a: *const ib_addr) -> c_int {
    // SAFETY: as the caller promised.
    c_int::from(u128::from_be_bytes(unsafe { bytes(a) }) == 0)
}

/// `ib_addr_loopback(a)`—1 if the address is `::1`, or 0.
///
/// # Safety
///
/// `a` is readable.
#[inline]
#[must_use]
pub unsafe fn ib_addr_loopback(a: *const ib_addr) -> c_int {
    // SAFETY: as the caller promised.
    c_int::from(u128::from_be_bytes(unsafe { bytes(a) }) == 1)
}

/// `ib_addr_set(addr, w1, w2, w3, w4)`—Sets the address.
///
/// # Safety
///
/// `addr` is writable.
#[inline]
pub unsafe fn ib_addr_set(addr: *mut ib_addr, w1: __be32, w2: __be32, w3: __be32, w4: __be32) {
    // SAFETY: as the caller promised.
    unsafe { (*addr).ib_u.uib_addr32 = [w1, w2, w3, w4] };
}

/// `ib_addr_cmp(a1, a2)`—Compares, like `memcmp`.
///
/// # Safety
///
/// `a1` and `a2` are readable.
#[inline]
#[must_use]
pub unsafe fn ib_addr_cmp(a1: *const ib_addr, a2: *const ib_addr) -> c_int {
    // SAFETY: as the caller promised.
    match unsafe { bytes(a1).cmp(&bytes(a2)) } {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}
