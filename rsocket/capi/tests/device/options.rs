//! `OPTIONS.md`, checked row by row on sockets.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    ptr,
};

use libc::c_int;
use rsocket_capi as capi;

use crate::option_table::{self, Row};

const ROOM: usize = 256;

fn level(row: Row) -> c_int {
    match row.level {
        "SOL_SOCKET" => libc::SOL_SOCKET,
        "IPPROTO_TCP" => libc::IPPROTO_TCP,
        "IPPROTO_IP" => libc::IPPROTO_IP,
        "IPPROTO_IPV6" => libc::IPPROTO_IPV6,
        other => panic!("{other}"),
    }
}

/// Converts a return value of -1 to `errno`.
fn result(returned: c_int) -> Result<(), Option<i32>> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error()),
    }
}

fn set(fd: c_int, row: Row, value: &[u8]) -> Result<(), Option<i32>> {
    let len = value.len().try_into().unwrap();
    // SAFETY: `len` bytes are readable.
    result(unsafe { capi::rsetsockopt(fd, level(row), row.number, value.as_ptr().cast(), len) })
}

fn get(fd: c_int, row: Row) -> Result<Vec<u8>, Option<i32>> {
    let mut value = vec![0; ROOM];
    let mut len = ROOM.try_into().unwrap();
    let buffer = value.as_mut_ptr().cast();
    // SAFETY: `len` bytes are writable.
    result(unsafe { capi::rgetsockopt(fd, level(row), row.number, buffer, &raw mut len) })?;
    value.truncate(len.try_into().unwrap());
    Ok(value)
}

/// A new socket, and both ends of a connection, of one family.
struct Sockets {
    new: c_int,
    ends: [c_int; 2],
}

impl Sockets {
    fn open(variable: &str) -> Self {
        let ip: IpAddr = std::env::var(variable).unwrap().parse().unwrap();
        let family = if ip.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let socket = || {
            let fd = capi::rsocket(family, libc::SOCK_STREAM, 0);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            fd
        };
        let [listener, client, new] = [socket(), socket(), socket()];
        let any = interpose::encode(SocketAddr::new(ip, 0));
        // SAFETY: the address is readable in full length.
        result(unsafe { capi::rbind(listener, any.as_ptr().cast(), len_of(any.len())) }).unwrap();
        result(capi::rlisten(listener, 1)).unwrap();
        let mut name = [0_u8; 128];
        let mut len = len_of(name.len());
        // SAFETY: `len` bytes are writable.
        result(unsafe { capi::rgetsockname(listener, name.as_mut_ptr().cast(), &raw mut len) })
            .unwrap();
        // SAFETY: `len` bytes have been written.
        result(unsafe { capi::rconnect(client, name.as_ptr().cast(), len) }).unwrap();
        // SAFETY: null address and length.
        let server = unsafe { capi::raccept(listener, ptr::null_mut(), ptr::null_mut()) };
        assert!(server >= 0 && capi::rclose(listener) == 0);
        Self {
            new,
            ends: [client, server],
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for fd in self.ends.into_iter().chain([self.new]) {
            capi::rclose(fd);
        }
    }
}

fn len_of(len: usize) -> libc::socklen_t {
    len.try_into().unwrap()
}

const NOT_SUPPORTED: Option<i32> = Some(libc::ENOTSUP);
const UNKNOWN: Option<i32> = Some(libc::ENOPROTOOPT);
const INVALID: Option<i32> = Some(libc::EINVAL);

fn int(value: c_int) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// Checks a stored option with its default and range.
fn check_noted(fd: c_int, row: Row, values: &str) {
    let (before, range) = values.split_once(", ").unwrap_or((values, ""));
    assert_eq!(get(fd, row), Ok(int(before.parse().unwrap())), "{row:?}");
    let max = range
        .split_once(" to ")
        .map(|(_, max)| max.parse().unwrap());
    let beyond = match (max, range) {
        (Some(max), _) => Some(max + 1),
        (None, "at least 0") => Some(-1),
        _ => None,
    };
    if let Some(beyond) = beyond {
        assert_eq!(set(fd, row, &int(beyond)), Err(INVALID), "{row:?}");
    }
    let value = int(max.unwrap_or(7));
    assert_eq!(set(fd, row, &value), Ok(()), "{row:?}");
    assert_eq!(get(fd, row), Ok(value), "{row:?}");
}

/// Checks a row on a new or a connected socket.
fn check(fd: c_int, is_new: bool, row: Row) {
    let get = || get(fd, row);
    let set = |value: &[u8]| set(fd, row, value);
    match row.decision.split_once(' ').unwrap_or((row.decision, "")) {
        ("carried", "out") => {
            let value = get().unwrap_or_else(|err| panic!("{row:?}: {err:?}"));
            if is_new {
                assert_eq!(set(&value), Ok(()), "{row:?}");
            }
            assert_eq!(get(), Ok(value), "{row:?}");
        }
        ("noted", values) => check_noted(fd, row, values),
        ("flag", before) => {
            assert_eq!(get(), Ok(int(before.parse().unwrap())), "{row:?}");
            assert_eq!(set(&int(7)), Ok(()), "{row:?}");
            assert_eq!(get(), Ok(int(1)), "{row:?}");
        }
        ("a", "name") => {
            assert_eq!(set(b"cubic"), Ok(()), "{row:?}");
            assert!(get().unwrap().starts_with(b"cubic\0"), "{row:?}");
        }
        ("only", "an empty name") => {
            assert_eq!(set(b"\0"), Ok(()), "{row:?}");
            assert_eq!(set(b"rxe0\0"), Err(NOT_SUPPORTED), "{row:?}");
            assert_eq!(get(), Ok(Vec::new()), "{row:?}");
        }
        ("only", value) => {
            let value: c_int = value.parse().unwrap();
            assert_eq!(set(&int(value)), Ok(()), "{row:?}");
            assert_eq!(set(&int(value + 1)), Err(NOT_SUPPORTED), "{row:?}");
            assert_eq!(get(), Ok(int(value)), "{row:?}");
        }
        ("read", "") => {
            assert_eq!(set(&int(1)), Err(UNKNOWN), "{row:?}");
            if !is_new {
                assert!(get().is_ok_and(|value| value.len() >= 4), "{row:?}");
            }
        }
        ("read,", "set ignored") => {
            let before = get().unwrap_or_else(|err| panic!("{row:?}: {err:?}"));
            assert_eq!(set(&int(1000)), Ok(()), "{row:?}");
            assert_eq!(get(), Ok(before), "{row:?}");
        }
        ("set", "") => {
            assert_eq!(set(&int(1 << 18)), Ok(()), "{row:?}");
            assert_eq!(get(), Err(UNKNOWN), "{row:?}");
        }
        ("refused", "") => {
            let expected = match row.name {
                "TCP_ULP" => Some(libc::ENOENT),
                _ => UNKNOWN,
            };
            for value in [&[0; 4][..], &[1; 4], &[0; 64], b"tls\0"] {
                assert_eq!(set(value), Err(expected), "{row:?}");
            }
            assert_eq!(get(), Err(UNKNOWN), "{row:?}");
        }
        other => panic!("{row:?}: {other:?} is no decision"),
    }
}

#[test]
fn option_of_each_level_behaves_as_in_the_table() {
    let mut checked = 0;
    for (variable, levels) in [
        ("A", &["SOL_SOCKET", "IPPROTO_TCP", "IPPROTO_IP"][..]),
        ("A6", &["SOL_SOCKET", "IPPROTO_TCP", "IPPROTO_IPV6"]),
    ] {
        let sockets = Sockets::open(variable);
        let rows = option_table::rows();
        for row in rows.into_iter().filter(|row| levels.contains(&row.level)) {
            check(sockets.new, true, row);
            for fd in sockets.ends {
                check(fd, false, row);
            }
            checked += 1;
        }
    }
    assert!(checked > 250, "{checked} rows");
    let unlisted = Row {
        level: "SOL_SOCKET",
        name: "none",
        number: 250,
        decision: "refused",
    };
    check(Sockets::open("A").new, true, unlisted);
}

/// A datagram socket bound at an address, with its encoded name.
fn datagrams(ip: IpAddr) -> (c_int, Vec<u8>) {
    let family = if ip.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let fd = capi::rsocket(family, libc::SOCK_DGRAM, 0);
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    let any = interpose::encode(SocketAddr::new(ip, 0));
    // SAFETY: the address is readable in full length.
    result(unsafe { capi::rbind(fd, any.as_ptr().cast(), len_of(any.len())) }).unwrap();
    let mut name = vec![0_u8; 128];
    let mut len = len_of(name.len());
    // SAFETY: `len` bytes are writable.
    result(unsafe { capi::rgetsockname(fd, name.as_mut_ptr().cast(), &raw mut len) }).unwrap();
    name.truncate(len.try_into().unwrap());
    (fd, name)
}

/// Sends a datagram to a name. Returns the number of bytes sent.
fn send(fd: c_int, bytes: &[u8], to: &[u8]) -> Result<usize, Option<i32>> {
    let (data, name) = (bytes.as_ptr().cast(), to.as_ptr().cast());
    // SAFETY: both slices are readable in full length.
    let sent = unsafe { capi::rsendto(fd, data, bytes.len(), 0, name, len_of(to.len())) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error().raw_os_error())
}

/// Programs of UDP take the segment size of a connection to the same peer for the maximum length of a datagram.
#[test]
fn segment_of_a_stream_fits_in_a_datagram() {
    let maxseg = option_table::rows()
        .into_iter()
        .find(|row| row.name == "TCP_MAXSEG")
        .unwrap();
    for (variable, longest) in [("A", 2032), ("A6", 2020)] {
        let ip: IpAddr = std::env::var(variable).unwrap().parse().unwrap();
        let ((from, _), (to, name)) = (datagrams(ip), datagrams(ip));
        let sockets = Sockets::open(variable);
        let [new, connected] = [sockets.new, sockets.ends[0]].map(|fd| {
            let value = get(fd, maxseg).unwrap();
            usize::try_from(c_int::from_ne_bytes(value.try_into().unwrap())).unwrap()
        });
        // The limit of datagrams, and the path's MTU if smaller.
        assert_eq!(new, longest, "{variable}");
        assert!(connected <= longest, "{variable}: {connected}");
        for len in [new, connected] {
            assert_eq!(send(from, &vec![7; len], &name), Ok(len), "{variable}");
            let mut got = vec![0; len + 1];
            let buffer = got.as_mut_ptr().cast();
            // SAFETY: the buffer is writable in full length.
            let received = unsafe { capi::rrecv(to, buffer, got.len(), 0) };
            assert_eq!(usize::try_from(received), Ok(len), "{variable}");
        }
        let longer = send(from, &vec![7; longest + 1], &name);
        assert_eq!(longer, Err(Some(libc::EMSGSIZE)), "{variable}");
        assert!(capi::rclose(from) == 0 && capi::rclose(to) == 0);
    }
}
