//! Options of the UDP sockets behind datagram sockets.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

use libc::{c_int, socklen_t};

/// Maximum size of an option value in bytes.
const MAX_OPTION_LEN: usize = 256;

/// `setsockopt(2)`
pub(crate) fn set_option(
    udp: &UdpSocket,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let len = socklen_t::try_from(value.len()).unwrap_or(socklen_t::MAX);
    // SAFETY: the descriptor is open for the life of `udp`, and `len` bytes of the value are readable. Assumption: the
    // kernel reads and writes no more of an option than its length.
    let ret = unsafe { libc::setsockopt(udp.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    match ret {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `getsockopt(2)`
pub(crate) fn option(udp: &UdpSocket, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
    let mut value = vec![0; MAX_OPTION_LEN];
    let mut len = socklen_t::try_from(MAX_OPTION_LEN).unwrap_or(0);
    let buffer = value.as_mut_ptr().cast();
    // SAFETY: the descriptor is open for the life of `udp`, and `len` bytes are writable. Assumption: the kernel reads and
    // writes no more of an option than its length.
    let ret = unsafe { libc::getsockopt(udp.as_raw_fd(), level, name, buffer, &raw mut len) };
    if ret != 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(len as usize);
    Ok(value)
}
