//! Encoding and decoding of socket options.

#![forbid(unsafe_code)]

use std::{io, net::Shutdown, time::Duration};

use libc::c_int;
use rsocket::{Family, PathRecord, Socket};

use crate::{
    api::udp,
    errno::{compat, os},
    table::Opened,
};

/// Level of the rsockets options.
const SOL_RDMA: c_int = 0x10000;
/// Depth of the send queue.
const RDMA_SQSIZE: c_int = 0;
/// Depth of the receive queue.
const RDMA_RQSIZE: c_int = 1;
/// Maximum number of bytes sent inline.
const RDMA_INLINE: c_int = 2;
/// Number of buffers the peer may map for this side.
const RDMA_IOMAPSIZE: c_int = 3;
/// Route to the peer.
const RDMA_ROUTE: c_int = 4;

/// Options missing in `libc` on some targets.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
const IP_PROTOCOL: c_int = 52;

/// Maximum length in bytes of a datagram of [`Socket::datagram`].
const MAX_DATAGRAM_V4: u32 = 2032;
const MAX_DATAGRAM_V6: u32 = 2020;

/// Linux's maxima of `TCP_KEEPIDLE` and `TCP_KEEPINTVL`, and of `TCP_KEEPCNT`.
const MAX_KEEPALIVE_SECONDS: u32 = 32767;
const MAX_KEEPALIVE_PROBES: u32 = 127;

/// Offsets of fields in `struct tcp_info`.
const TCP_INFO_SIZE: usize = 104;
const TCP_INFO_SEND_MSS: usize = 16;
const TCP_INFO_RECV_MSS: usize = 20;
const TCP_INFO_SEND_WINDOW: usize = 80;
/// States in `struct tcp_info`.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

fn not_supported<T>() -> io::Result<T> {
    Err(os(libc::ENOTSUP))
}

/// Decodes an integer of four bytes. At the level of IP, fewer bytes are an integer of one, and none are zero, as in Linux.
pub(crate) fn int(level: c_int, value: &[u8]) -> io::Result<c_int> {
    match value.first_chunk() {
        Some(bytes) => Ok(c_int::from_ne_bytes(*bytes)),
        None if level == libc::IPPROTO_IP => Ok(value.first().copied().unwrap_or(0).into()),
        None => Err(os(libc::EINVAL)),
    }
}

/// Decodes an array of path records.
fn paths(value: &[u8]) -> io::Result<Vec<PathRecord>> {
    let chunks = value.chunks_exact(PathRecord::SIZE);
    if value.is_empty() || !chunks.remainder().is_empty() {
        return Err(os(libc::EINVAL));
    }
    Ok(chunks
        .filter_map(|chunk| Some(PathRecord::decode(chunk.try_into().ok()?)))
        .collect())
}

/// Truncates a value to the available room: an array to whole elements, at least one; a small number at the level of IP
/// to one byte, as in Linux.
pub(crate) fn fit(
    level: c_int,
    name: c_int,
    value: &mut Vec<u8>,
    capacity: usize,
) -> io::Result<()> {
    if (level, name) == (SOL_RDMA, RDMA_ROUTE) {
        if capacity < PathRecord::SIZE {
            return Err(os(libc::EINVAL));
        }
        value.truncate(capacity - capacity % PathRecord::SIZE);
    } else if level == libc::IPPROTO_IP
        && (1..4).contains(&capacity)
        && int(level, value).is_ok_and(|value| (0..=255).contains(&value))
    {
        value.truncate(1);
    } else {
        value.truncate(capacity);
    }
    Ok(())
}

fn flag(level: c_int, value: &[u8]) -> io::Result<bool> {
    int(level, value).map(|value| value != 0)
}

/// Checks a number from 1 to `max`.
fn at_most(value: c_int, max: u32) -> io::Result<u32> {
    let value = u32::try_from(value).ok();
    let checked = value.filter(|value| (1..=max).contains(value));
    checked.ok_or_else(|| os(libc::EINVAL))
}

/// Decodes a type of service or traffic class. The two bits of congestion notification are the device's for a stream,
/// as they are TCP's.
fn traffic_class(level: c_int, value: &[u8], is_datagram: bool) -> io::Result<u8> {
    /// `INET_ECN_MASK`
    const ECN: u8 = 3;
    let class = match (level, int(level, value)?) {
        (libc::IPPROTO_IP, class) => class.to_le_bytes()[0],
        (_, -1) => 0,
        (_, class) => u8::try_from(class).map_err(|_| os(libc::EINVAL))?,
    };
    Ok(if is_datagram { class } else { class & !ECN })
}

/// Decodes a buffer size.
fn size(level: c_int, value: &[u8]) -> io::Result<u32> {
    let value = u32::try_from(int(level, value)?).unwrap_or(0);
    Ok(if compat() {
        value.saturating_mul(2)
    } else {
        value
    })
}

/// Decodes a number of entries, limited to the maximum.
fn count(level: c_int, value: &[u8]) -> io::Result<u16> {
    let value = int(level, value)?.clamp(0, 65534);
    u16::try_from(value).map_err(|_| os(libc::EINVAL))
}

/// Decodes a timeout. Zero is none; a negative number of seconds is a timeout of zero, as in Linux.
fn timeout(value: &[u8]) -> io::Result<Option<Duration>> {
    let (seconds, micros) = value
        .first_chunk::<16>()
        .map(|bytes| bytes.split_at(8))
        .ok_or_else(|| os(libc::EINVAL))?;
    let number = |bytes: &[u8]| bytes.try_into().map(i64::from_ne_bytes).unwrap_or(-1);
    let micros = u32::try_from(number(micros)).ok();
    let micros = micros.filter(|micros| *micros < 1_000_000);
    let micros = micros.ok_or_else(|| os(libc::EDOM))?;
    let Ok(seconds) = u64::try_from(number(seconds)) else {
        return Ok(Some(Duration::ZERO));
    };
    let timeout = Duration::new(seconds, micros * 1000);
    Ok((!timeout.is_zero()).then_some(timeout))
}

/// Ignores the error of a size set too late: existing buffers keep their size.
fn unless_too_late(set: io::Result<()>) -> io::Result<()> {
    match set {
        Err(err) if err.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        set => set,
    }
}

/// Sets an option. On a datagram socket, options unknown to rsockets are set on the UDP socket only.
pub(crate) fn set(opened: &Opened, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let socket = &*opened.socket;
    if level == SOL_RDMA || !socket.is_datagram() {
        return match set_own(socket, level, name, value) {
            Err(err) if level != SOL_RDMA && err.raw_os_error() == Some(libc::ENOTSUP) => {
                opened.noted.set(level, name, value)
            }
            set => set,
        };
    }
    udp::set_option(&socket.udp_socket()?, level, name, value)?;
    match set_own(socket, level, name, value) {
        Err(err) if err.raw_os_error() == Some(libc::ENOTSUP) => Ok(()),
        set => set,
    }
}

fn set_own(socket: &Socket, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => socket.set_reuse_addr(flag(level, value)?)?,
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            return unless_too_late(socket.set_receive_buffer(size(level, value)?));
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            return unless_too_late(socket.set_send_buffer(size(level, value)?));
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let on = flag(level, value)?;
            let seconds = int(level, value.get(4..).unwrap_or_default())?;
            let linger = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            socket.set_linger(on.then_some(linger));
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => socket.set_keep_alive(flag(level, value)?),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => socket.set_oob_inline(flag(level, value)?),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => {
            socket.set_read_timeout(timeout(value)?);
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => {
            socket.set_write_timeout(timeout(value)?);
        }
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            socket.set_tos(traffic_class(level, value, socket.is_datagram())?)?;
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => socket.set_v6_only(flag(level, value)?)?,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.set_no_delay(flag(level, value)?),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let seconds = at_most(int(level, value)?, MAX_KEEPALIVE_SECONDS)?;
            return socket.set_keep_idle(Duration::from_secs(seconds.into()));
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
            let seconds = at_most(int(level, value)?, MAX_KEEPALIVE_SECONDS)?;
            return socket.set_keep_interval(Duration::from_secs(seconds.into()));
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
            return socket.set_keep_count(at_most(int(level, value)?, MAX_KEEPALIVE_PROBES)?);
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            let millis = u64::try_from(int(level, value)?).map_err(|_| os(libc::EINVAL))?;
            socket.set_user_timeout(Some(Duration::from_millis(millis)));
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => drop(int(level, value)?),
        (SOL_RDMA, RDMA_SQSIZE) => return socket.set_send_queue(count(level, value)?),
        (SOL_RDMA, RDMA_RQSIZE) => return socket.set_receive_queue(count(level, value)?),
        (SOL_RDMA, RDMA_INLINE) => return socket.set_inline(count(level, value)?.into()),
        (SOL_RDMA, RDMA_IOMAPSIZE) => return socket.set_iomap_size(count(level, value)?),
        (SOL_RDMA, RDMA_ROUTE) => return socket.set_route(&paths(value)?),
        _ => return not_supported(),
    }
    Ok(())
}

fn number(value: impl TryInto<c_int>) -> Vec<u8> {
    let value = value.try_into().unwrap_or(c_int::MAX);
    value.to_ne_bytes().to_vec()
}

fn period(timeout: Option<Duration>) -> Vec<u8> {
    let timeout = timeout.unwrap_or_default();
    let seconds = timeout.as_secs().to_ne_bytes();
    let micros = u64::from(timeout.subsec_micros()).to_ne_bytes();
    [seconds, micros].concat()
}

/// Returns the segment size reported to programs. Some programs send datagrams of this size to the same peer,
/// so the maximum length of a datagram is the limit.
fn segment(socket: &Socket) -> u32 {
    let max = match socket.family() {
        _ if compat() => u32::MAX,
        Family::V4 => MAX_DATAGRAM_V4,
        Family::V6 => MAX_DATAGRAM_V6,
    };
    socket.max_segment().min(max)
}

/// Returns peer credentials as Linux does for a peer on another host.
fn no_credentials() -> Vec<u8> {
    let none = u32::MAX.to_ne_bytes();
    [[0; 4], none, none].concat()
}

/// Returns `SO_MEMINFO` with the sizes of the buffers.
fn memory_info(socket: &Socket) -> Vec<u8> {
    const SIZE: usize = 36;
    let mut info = vec![0; SIZE];
    for (at, value) in [(4, socket.receive_buffer()), (12, socket.send_buffer())] {
        info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    info
}

fn tcp_info(socket: &Socket) -> Vec<u8> {
    let mut info = vec![0; TCP_INFO_SIZE];
    info[0] = if socket.is_connected() {
        ESTABLISHED
    } else if socket.is_listening() {
        LISTEN
    } else {
        CLOSE
    };
    let mss = segment(socket).to_ne_bytes();
    let window = u32::from(socket.send_queue()).to_ne_bytes();
    for (at, value) in [
        (TCP_INFO_SEND_MSS, mss),
        (TCP_INFO_RECV_MSS, mss),
        (TCP_INFO_SEND_WINDOW, window),
    ] {
        info[at..at + 4].copy_from_slice(&value);
    }
    info
}

/// Returns the value of an option.
pub(crate) fn get(opened: &Opened, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
    let socket = &*opened.socket;
    let is_own = matches!(
        (level, name),
        (SOL_RDMA, _)
            | (
                libc::SOL_SOCKET,
                libc::SO_RCVBUF | libc::SO_SNDBUF | libc::SO_ERROR
            )
    );
    if is_own || !socket.is_datagram() {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_COOKIE) {
            return Ok(opened.generation.to_ne_bytes().to_vec());
        }
        return match get_own(socket, level, name) {
            Err(err) if err.raw_os_error() == Some(libc::ENOTSUP) => opened.noted.get(level, name),
            value => value,
        };
    }
    udp::option(&socket.udp_socket()?, level, name)
}

fn get_own(socket: &Socket, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => number(socket.reuse_addr()),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(socket.receive_buffer()),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(socket.send_buffer()),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let linger = socket.linger();
            let on = number(linger.is_some());
            [on, number(linger.unwrap_or_default().as_secs())].concat()
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => number(socket.keep_alive()),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => number(socket.oob_inline()),
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let error = socket.take_error();
            number(error.map_or(0, |error| rsocket::errno(&error)))
        }
        (libc::SOL_SOCKET, libc::SO_PEERCRED) => no_credentials(),
        (libc::SOL_SOCKET, libc::SO_MEMINFO) => memory_info(socket),
        (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => number(1),
        // 0 means unknown.
        (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID) => number(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => number(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) | (libc::IPPROTO_IP, IP_PROTOCOL) => {
            number(libc::IPPROTO_TCP)
        }
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => number(match socket.family() {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        }),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => number(socket.is_listening()),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => period(socket.read_timeout()),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => period(socket.write_timeout()),
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            number(socket.tos())
        }
        (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU) => {
            socket.peer_addr()?;
            number(socket.max_segment())
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => number(socket.v6_only()),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => number(socket.no_delay()),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => number(segment(socket)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => number(socket.keep_idle().as_secs()),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => number(socket.keep_interval().as_secs()),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => number(socket.keep_count()),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            number(socket.user_timeout().unwrap_or_default().as_millis())
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) if compat() => number(1),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => tcp_info(socket),
        (SOL_RDMA, RDMA_SQSIZE) => number(socket.send_queue()),
        (SOL_RDMA, RDMA_RQSIZE) => number(socket.receive_queue()),
        (SOL_RDMA, RDMA_INLINE) => number(socket.inline()),
        (SOL_RDMA, RDMA_IOMAPSIZE) => number(socket.iomap_size()),
        (SOL_RDMA, RDMA_ROUTE) => {
            let paths = socket.route()?;
            paths.into_iter().flat_map(PathRecord::encode).collect()
        }
        _ => return not_supported(),
    })
}

/// Converts the argument of `rshutdown`.
pub(crate) fn shutdown(how: c_int) -> io::Result<Shutdown> {
    match how {
        libc::SHUT_RD => Ok(Shutdown::Read),
        libc::SHUT_WR => Ok(Shutdown::Write),
        libc::SHUT_RDWR => Ok(Shutdown::Both),
        _ => Err(os(libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int_option_is_decoded_and_clamped() {
        let [ip, tcp] = [libc::IPPROTO_IP, libc::IPPROTO_TCP];
        assert_eq!(int(ip, &[7]).unwrap(), 7);
        assert_eq!(int(tcp, &(-3_i32).to_ne_bytes()).unwrap(), -3);
        assert_eq!(int(ip, &[]).unwrap(), 0);
        assert!(int(tcp, &[1, 2, 3]).is_err());
        assert_eq!(count(SOL_RDMA, &70_000_i32.to_ne_bytes()).unwrap(), 65534);
        assert_eq!(count(SOL_RDMA, &(-1_i32).to_ne_bytes()).unwrap(), 0);
    }

    #[test]
    fn route_option_with_partial_path_is_refused() {
        let path = PathRecord {
            pkey: 0xffff,
            ..PathRecord::default()
        };
        let mut value = [path.encode(), path.encode()].concat();
        assert_eq!(paths(&value).unwrap(), [path, path]);
        assert!(paths(&value[1..]).is_err());
        assert!(paths(&[]).is_err());
        assert!(fit(SOL_RDMA, RDMA_ROUTE, &mut value, 71).is_err());
        fit(SOL_RDMA, RDMA_ROUTE, &mut value, 143).unwrap();
        assert_eq!(value.len(), 72);
        fit(SOL_RDMA, RDMA_SQSIZE, &mut value, 2).unwrap();
        assert_eq!(value.len(), 2);
    }

    #[test]
    fn timeval_option_round_trips() {
        let time = Some(Duration::from_micros(1_500_001));
        assert_eq!(timeout(&period(time)).unwrap(), time);
        assert_eq!(timeout(&period(None)).unwrap(), None);
        let much = [1_u64.to_ne_bytes(), 1_000_000_u64.to_ne_bytes()].concat();
        assert_eq!(timeout(&much).unwrap_err().raw_os_error(), Some(libc::EDOM));
        assert!(timeout(&[0; 8]).is_err());
    }
}
