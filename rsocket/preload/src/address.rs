//! Checks of the program's addresses, as the kernel makes them before it looks at the socket.

use std::{io, slice};

use interpose::os;
use libc::{c_int, sa_family_t, sockaddr, sockaddr_in, socklen_t};
use rsocket::Family;

/// Bytes of `sockaddr_storage`, the maximum length.
const MAX_LEN: usize = 128;

/// Bytes of an IPv6 address without a scope, as in RFC 2133: the minimum length.
const V6_LEN: usize = 24;

/// Returns the bytes of an address.
///
/// # Safety
/// `addr` is null, or `len` bytes of `addr` are readable, and not written for `'a`.
unsafe fn bytes<'a>(addr: *const sockaddr, len: socklen_t) -> io::Result<&'a [u8]> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > MAX_LEN {
        return Err(os(libc::EINVAL));
    }
    if len == 0 {
        return Ok(&[]);
    }
    if addr.is_null() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: not null, and readable as the caller promises.
    Ok(unsafe { slice::from_raw_parts(addr.cast(), len) })
}

/// The family in an address of at least two bytes.
fn family_of(addr: &[u8]) -> Option<c_int> {
    let (family, _) = addr.split_first_chunk()?;
    Some(sa_family_t::from_ne_bytes(*family).into())
}

/// Checks length and family of an address for a socket of this family.
fn check(family: Family, addr: &[u8]) -> io::Result<()> {
    let (len, expected) = match family {
        Family::V4 => (size_of::<sockaddr_in>(), libc::AF_INET),
        Family::V6 => (V6_LEN, libc::AF_INET6),
    };
    if addr.len() < len {
        return Err(os(libc::EINVAL));
    }
    match family_of(addr) == Some(expected) {
        true => Ok(()),
        false => Err(os(libc::EAFNOSUPPORT)),
    }
}

/// Returns an address to bind to, complete. An IPv4 socket takes the unspecified family of the address 0.0.0.0 for its own.
///
/// # Errors
/// `EINVAL`, `EFAULT` and `EAFNOSUPPORT`, as from the kernel.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn to_bind(
    family: Family,
    addr: *const sockaddr,
    len: socklen_t,
) -> io::Result<Vec<u8>> {
    // SAFETY: as the caller promises.
    let mut addr = unsafe { bytes(addr, len) }?.to_vec();
    let is_any = addr.get(4..8).is_some_and(|ip| ip == [0; 4]);
    if family == Family::V4 && family_of(&addr) == Some(libc::AF_UNSPEC) && is_any {
        let family = sa_family_t::try_from(libc::AF_INET).unwrap_or(0);
        addr[..2].copy_from_slice(&family.to_ne_bytes());
    }
    check(family, &addr)?;
    // The scope of an IPv6 address may be missing.
    addr.resize(MAX_LEN, 0);
    Ok(addr)
}

/// Checks the address of an unconnected stream's peer. Returns false for `AF_UNSPEC`, which disconnects.
///
/// # Errors
/// As for [`to_bind`].
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn is_peer(
    family: Family,
    addr: *const sockaddr,
    len: socklen_t,
) -> io::Result<bool> {
    // SAFETY: as the caller promises.
    let addr = unsafe { bytes(addr, len) }?;
    if family_of(addr) == Some(libc::AF_UNSPEC) {
        return Ok(false);
    }
    check(family, addr).map(|()| true)
}
