//! Options of TCP sockets that a move needs.
//!
//! Each side shows that it uses this library by the maximum segment size of its SYN, which no other program sets, and
//! which reaches no stream of data.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use interpose::real;
use libc::{c_int, c_void, socklen_t};
use rustix::net::sockopt;

/// Maximum segment size of a connecting socket.
const OF_CLIENT: c_int = 1213;

/// Maximum segment size of a listener, below the client's: the smaller of both is in force.
const OF_SERVER: c_int = 1209;

/// Size in bytes of the TCP option of time stamps, which a segment has less data with.
const TIMESTAMPS_SIZE: u32 = 12;

/// Bit of time stamps in `tcpi_options`.
const HAS_TIMESTAMPS: u8 = 1;

/// Offsets in `struct tcp_info`.
const OPTIONS_AT: usize = 5;
const SEND_MSS_AT: usize = 16;

const TCP_SAVE_SYN: c_int = 27;
const TCP_SAVED_SYN: c_int = 28;

fn set(tcp: BorrowedFd<'_>, name: c_int, value: c_int) -> io::Result<()> {
    set_at(tcp, libc::IPPROTO_TCP, name, value)
}

fn set_at(tcp: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let real = real!(
        setsockopt: unsafe extern "C-unwind" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int
    );
    let at = (&raw const value).cast();
    // SAFETY: the value is an `int` and outlives the call.
    let set = unsafe { real(tcp.as_raw_fd(), level, name, at, 4) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns an option of at most `N` bytes, with its length.
fn option<const N: usize>(tcp: BorrowedFd<'_>, name: c_int) -> Option<([u8; N], usize)> {
    option_at(tcp, libc::IPPROTO_TCP, name)
}

fn option_at<const N: usize>(
    tcp: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> Option<([u8; N], usize)> {
    let real = real!(
        getsockopt: unsafe extern "C-unwind" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int
    );
    let mut bytes = [0; N];
    let mut len = socklen_t::try_from(N).unwrap_or(0);
    let (at, size) = (bytes.as_mut_ptr().cast(), &raw mut len);
    // SAFETY: `len` is the size of the buffer; both outlive the call.
    let got = unsafe { real(tcp.as_raw_fd(), level, name, at, size) };
    let len = usize::try_from(len).unwrap_or(0).min(N);
    (got == 0).then_some((bytes, len))
}

/// Makes the SYN of a new socket show this library.
pub(crate) fn show_client(tcp: BorrowedFd<'_>) -> io::Result<()> {
    set(tcp, libc::TCP_MAXSEG, OF_CLIENT)
}

/// Makes a listener show this library, and keep the SYN of each connection.
pub(crate) fn show_server(tcp: BorrowedFd<'_>) -> io::Result<()> {
    set(tcp, TCP_SAVE_SYN, 1)?;
    set(tcp, libc::TCP_MAXSEG, OF_SERVER)
}

/// Shows this library again after the program has set a maximum segment size: less is within its limit. Returns whether the
/// socket shows this library.
pub(crate) fn show_within_limit(tcp: BorrowedFd<'_>) -> bool {
    let limit = option::<4>(tcp, libc::TCP_MAXSEG);
    let limit = limit.map_or(0, |(bytes, _)| c_int::from_ne_bytes(bytes));
    match sockopt::socket_acceptconn(tcp) {
        Ok(true) => limit >= OF_SERVER && show_server(tcp).is_ok(),
        _ => limit >= OF_CLIENT && show_client(tcp).is_ok(),
    }
}

/// Whether the peer of an accepted connection has shown this library. The kernel has the answer once.
pub(crate) fn is_client_shown(tcp: BorrowedFd<'_>) -> bool {
    let saved = option::<256>(tcp, TCP_SAVED_SYN);
    saved.is_some_and(|(bytes, len)| syn_mss(&bytes[..len]) == u16::try_from(OF_CLIENT).ok())
}

/// Whether the peer of an established connection has shown this library.
pub(crate) fn is_server_shown(tcp: BorrowedFd<'_>) -> bool {
    let Some((info, 20..)) = option::<64>(tcp, libc::TCP_INFO) else {
        return false;
    };
    let mut mss = [0; 4];
    mss.copy_from_slice(&info[SEND_MSS_AT..SEND_MSS_AT + 4]);
    let stamps = match info[OPTIONS_AT] & HAS_TIMESTAMPS {
        0 => 0,
        _ => TIMESTAMPS_SIZE,
    };
    u32::from_ne_bytes(mss) + stamps == OF_SERVER.unsigned_abs()
}

/// Returns the maximum segment size in the headers of a SYN.
fn syn_mss(headers: &[u8]) -> Option<u16> {
    let version = headers.first()? >> 4;
    let tcp = match version {
        4 => headers.get(usize::from(headers.first()? & 15) * 4..)?,
        _ => headers.get(40..)?,
    };
    let end = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..end)?;
    loop {
        match options {
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [1, rest @ ..] => options = rest,
            [kind, len, ..] if *kind > 1 => options = options.get(usize::from(*len).max(2)..)?,
            _ => return None,
        }
    }
}

/// Sets the number of bytes from which on a connection is readable. A connection that is readable then wakes its waits.
pub(crate) fn set_low_water(tcp: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set_at(tcp, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Returns the number of bytes from which on a connection is readable: 1 unless the program has set another.
pub(crate) fn low_water(tcp: BorrowedFd<'_>) -> Option<c_int> {
    let set = option_at::<4>(tcp, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    set.map(|(bytes, _)| c_int::from_ne_bytes(bytes))
}

/// Wakes all waits for sending, edge-triggered ones too.
pub(crate) fn nudge(tcp: BorrowedFd<'_>) {
    let current = option::<4>(tcp, libc::TCP_NOTSENT_LOWAT);
    let current = current.map_or(0, |(bytes, _)| c_int::from_ne_bytes(bytes));
    // Setting this option has this effect with any value. Fails only for another kind of socket.
    drop(set(tcp, libc::TCP_NOTSENT_LOWAT, current));
}

/// Resets a connection: both ends fail with `ECONNRESET`.
pub(crate) fn reset(tcp: BorrowedFd<'_>) {
    let real = real!(connect: unsafe extern "C-unwind" fn(c_int, *const libc::sockaddr, socklen_t) -> c_int);
    // SAFETY: an address is plain data, and all zeros are `AF_UNSPEC`.
    let unspecified: libc::sockaddr = unsafe { std::mem::zeroed() };
    // SAFETY: the address outlives the call.
    unsafe { real(tcp.as_raw_fd(), &raw const unspecified, 16) };
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
        os::fd::{AsFd, OwnedFd},
    };

    use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};

    use super::*;

    /// A connection on loopback, with sides that show the library or not.
    fn connection(at: SocketAddr, client_shows: bool, server_shows: bool) -> [TcpStream; 2] {
        let family = match at {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let new = || socket(family, SocketType::STREAM, None).unwrap();
        let listener: OwnedFd = new();
        if server_shows {
            show_server(listener.as_fd()).unwrap();
        }
        bind(&listener, &at).unwrap();
        listen(&listener, 9).unwrap();
        let listener = TcpListener::from(listener);
        let client: OwnedFd = new();
        if client_shows {
            show_client(client.as_fd()).unwrap();
        }
        connect(&client, &listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        [client.into(), server]
    }

    #[test]
    fn peer_is_shown_by_its_syn_alone_and_no_data() {
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            for (client_shows, server_shows) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let at = SocketAddr::new(ip, 0);
                let [mut client, mut server] = connection(at, client_shows, server_shows);
                assert_eq!(is_server_shown(client.as_fd()), server_shows, "{ip}");
                // Without `TCP_SAVE_SYN`, the server knows nothing.
                let expected = client_shows && server_shows;
                assert_eq!(is_client_shown(server.as_fd()), expected, "{ip}");
                client.write_all(b"data").unwrap();
                drop(client);
                let mut got = Vec::new();
                server.read_to_end(&mut got).unwrap();
                assert_eq!(got, b"data");
            }
        }
    }

    #[test]
    fn malformed_headers_show_nothing() {
        let mut syn = vec![0; 44];
        syn[0] = 0x45;
        syn[32] = 0x60;
        syn[40..].copy_from_slice(&[2, 4, 4, 0xbd]);
        assert_eq!(syn_mss(&syn), Some(1213));
        for len in 0..syn.len() {
            assert_eq!(syn_mss(&syn[..len]), None, "{len}");
        }
        for options in [[2, 0, 0, 0], [0, 2, 4, 5], [3, 200, 2, 4], [8, 0, 8, 0]] {
            syn[40..].copy_from_slice(&options);
            assert_eq!(syn_mss(&syn), None);
        }
    }

    #[test]
    fn reset_connection_fails_at_the_peer() {
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let [client, mut server] = connection(at, true, true);
        reset(client.as_fd());
        let failure = server.read(&mut [0]).unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::ConnectionReset);
    }
}
