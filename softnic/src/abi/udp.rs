//! Options and calls of UDP sockets that rustix lacks.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
};

use libc::{c_int, cmsghdr, msghdr, sockaddr_storage, socklen_t};

use super::cm::{Address, read_address, storage};
use crate::cm::PortSpace;

/// Lets a socket over IPv6 exchange frames as Linux's rxe sends them: received ones have no UDP checksum, which the kernel
/// refuses otherwise, and sent ones have the flow label 0.
///
/// # Errors
/// - The socket is not over IPv6.
pub(crate) fn use_frames_of_ipv6(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    set(socket, libc::SOL_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)
}

/// A control message with a number, as long as the kernel's.
#[repr(C)]
struct SegmentControl<T> {
    header: cmsghdr,
    /// The number; the rest is padding.
    value: [T; 4],
}

/// Sends datagrams without a UDP checksum.
#[cfg(test)]
pub(crate) fn disable_checksums(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
}

/// Sends datagrams by one call, which the kernel cuts out of their bytes (`UDP_SEGMENT`): each has `size` bytes but for a
/// shorter last one.
///
/// # Errors
/// - `EINVAL`, `EIO` and others: the kernel or the interface sends only single datagrams, or none of this size.
/// - Those of `sendmsg(2)`.
pub(crate) fn send_segments(
    socket: &UdpSocket,
    to: SocketAddr,
    datagrams: &[IoSlice<'_>],
    size: u16,
) -> io::Result<()> {
    let mut name = storage(Address::Ip(to), PortSpace::Udp);
    // SAFETY: all fields are integers, so zero is a value.
    let mut header: cmsghdr = unsafe { mem::zeroed() };
    header.cmsg_len = size_of::<cmsghdr>() + size_of::<u16>();
    header.cmsg_level = libc::SOL_UDP;
    header.cmsg_type = libc::UDP_SEGMENT;
    let value = [size, 0, 0, 0];
    let mut control = SegmentControl { header, value };
    // SAFETY: all fields are integers and pointers, so zero is a value.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = socklen_t::try_from(size_of_val(&name)).unwrap_or(0);
    message.msg_iov = datagrams.as_ptr().cast_mut().cast();
    message.msg_iovlen = datagrams.len();
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the descriptor is open for the life of `socket`; name, control message and datagrams are readable and have the
    // lengths in the message. An `IoSlice` is an `iovec`. Assumption: `sendmsg` writes to none of them.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the kernel deliver datagrams of one sender and of one length, but for a shorter last one, together (`UDP_GRO`).
///
/// # Errors
/// - The kernel is older than 5.0.
pub(crate) fn merge_datagrams(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// A received range of bytes: a datagram, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Number of bytes, which may exceed the buffer's.
    pub(crate) len: usize,
    /// Length of each datagram but the last, at least 1.
    pub(crate) size: usize,
    pub(crate) from: SocketAddr,
}

/// Receives a datagram, or several after [`merge_datagrams`].
///
/// # Errors
/// - [`io::ErrorKind::WouldBlock`]: no datagram is pending.
/// - Those of `recvmsg(2)`.
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Received> {
    // SAFETY: all fields are integers, so zero is a value.
    let mut name: sockaddr_storage = unsafe { mem::zeroed() };
    // SAFETY: all fields are integers, so zero is a value.
    let header: cmsghdr = unsafe { mem::zeroed() };
    let value: [c_int; 4] = [0; 4];
    let mut control = SegmentControl { header, value };
    let mut part = IoSliceMut::new(buffer);
    // SAFETY: all fields are integers and pointers, so zero is a value.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = socklen_t::try_from(size_of_val(&name)).unwrap_or(0);
    message.msg_iov = (&raw mut part).cast();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open for the life of `socket`; name, control message and buffer are writable and have the
    // lengths in the message. An `IoSliceMut` is an `iovec`. Assumption: any bytes of the kernel are values of these fields.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: an address of the kernel is complete; one shorter than its family has the zero bytes of the storage.
    let from = unsafe { read_address((&raw const name).cast()) };
    let from = from.ok_or(io::ErrorKind::InvalidData)?.ip();
    let kind = (control.header.cmsg_level, control.header.cmsg_type);
    let [size, ..] = control.value;
    let size = match kind {
        (libc::SOL_UDP, libc::UDP_GRO) => usize::try_from(size).unwrap_or(0),
        _ => 0,
    };
    // A length of 0 has no meaning.
    let size = if size == 0 { len.max(1) } else { size };
    Ok(Received { len, size, from })
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
    fn datagrams_of_one_call_arrive_singly_or_together() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let [receiver, sender] = [(); 2].map(|()| UdpSocket::bind(local).unwrap());
            let (to, from) = (receiver.local_addr().unwrap(), sender.local_addr().unwrap());
            let parts = [&b"abcd"[..], b"efgh", b"ij"].map(IoSlice::new);
            let mut buffer = [0; 100];
            send_segments(&sender, to, &parts, 4).unwrap();
            for len in [4, 4, 2] {
                let received = receive(&receiver, &mut buffer).unwrap();
                let expected = Received {
                    len,
                    size: len,
                    from,
                };
                assert_eq!(received, expected);
            }
            let error = receive(&receiver, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            merge_datagrams(&receiver).unwrap();
            send_segments(&sender, to, &parts, 4).unwrap();
            let received = receive(&receiver, &mut buffer).unwrap();
            let expected = Received {
                len: 10,
                size: 4,
                from,
            };
            assert_eq!(received, expected);
            assert_eq!(&buffer[..10], b"abcdefghij");
            // A datagram alone, an empty one, and one longer than the buffer.
            for len in [7, 0, 2000] {
                sender.send_to(&vec![7; len], to).unwrap();
                let received = receive(&receiver, &mut buffer).unwrap();
                assert_eq!((received.len, received.size), (len, len.max(1)));
            }
        }
    }

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
