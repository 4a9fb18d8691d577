//! Options of UDP sockets over IPv6 that rustix lacks.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

use libc::{c_int, socklen_t};

/// Lets a socket over IPv6 exchange frames as Linux's rxe sends them: received ones have no UDP checksum, which the kernel
/// refuses otherwise, and sent ones have the flow label 0.
///
/// # Errors
/// - The socket is not over IPv6.
pub(crate) fn use_frames_of_ipv6(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    set(socket, libc::SOL_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)
}

/// `setsockopt(2)` of a number.
fn set(socket: &UdpSocket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    let value = (&raw const value).cast();
    // SAFETY: the descriptor is open for the life of `socket`, and `len` bytes of the value are readable. Assumption: the
    // kernel reads no more of an option than its length.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_without_a_checksum_is_received() {
        let [receiver, sender] = [(); 2].map(|()| UdpSocket::bind("[::1]:0").unwrap());
        use_frames_of_ipv6(&receiver).unwrap();
        set(&sender, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        receiver.set_nonblocking(true).unwrap();
        // Delivered by the call, on the loopback interface.
        let to = receiver.local_addr().unwrap();
        assert_eq!(sender.send_to(b"frame", to).unwrap(), 5);
        assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 5);
        let v4 = UdpSocket::bind("127.0.0.1:0").unwrap();
        use_frames_of_ipv6(&v4).unwrap_err();
    }
}
