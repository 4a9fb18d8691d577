//! Interposed functions for socket options.

use std::{fs, io, sync::OnceLock, time::Duration};

use interpose::{interpose, os, store};
use libc::{c_int, c_void, socklen_t};
use rds::{
    info::Section,
    proto::control::{GetMrArgs, LEVEL, LatencyPoints},
};

use crate::{
    address, binding,
    control::{export, free, to_os_error},
    memory::{self, bytes, bytes_mut, check_place, write_out},
    sockets::AF_RDS,
    table::{SocketEntry, find, may_find, trying, with},
};

/// Socket options of level `SOL_RDS`.
mod name {
    use libc::c_int;

    pub(super) const CANCEL_SENT_TO: c_int = 1;
    pub(super) const GET_MR: c_int = 2;
    pub(super) const FREE_MR: c_int = 3;
    pub(super) const RECVERR: c_int = 5;
    pub(super) const CONG_MONITOR: c_int = 6;
    pub(super) const GET_MR_FOR_DEST: c_int = 7;
    pub(super) const TRANSPORT: c_int = 8;
    pub(super) const RXPATH_LATENCY: c_int = 10;
}

/// Transport over RDMA, by the kernel's number.
const INFINIBAND: c_int = 0;

/// Size of the address before the arguments of `RDS_GET_MR_FOR_DEST`.
const DESTINATION: usize = 128;

pub(crate) fn int(value: &[u8]) -> io::Result<c_int> {
    let value = value.first_chunk().ok_or_else(|| os(libc::EINVAL))?;
    Ok(c_int::from_ne_bytes(*value))
}

/// Maximum buffer size settable by this option.
fn max_buffer(option: c_int) -> u32 {
    static MAX: OnceLock<[u32; 2]> = OnceLock::new();
    let max = MAX.get_or_init(|| {
        ["wmem_max", "rmem_max"].map(|name| {
            let limit = fs::read_to_string(format!("/proc/sys/net/core/{name}"));
            let limit = limit.ok().and_then(|text| text.trim().parse().ok());
            limit.unwrap_or(212_992)
        })
    });
    match option {
        libc::SO_SNDBUF => max[0],
        libc::SO_RCVBUF => max[1],
        _ => u32::MAX / 2,
    }
}

/// Decodes a `struct timeval`; `None` for zero.
fn time(value: &[u8]) -> io::Result<Option<Duration>> {
    let (seconds, rest) = value
        .split_first_chunk::<8>()
        .ok_or_else(|| os(libc::EINVAL))?;
    let micros = rest.first_chunk::<8>().ok_or_else(|| os(libc::EINVAL))?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).map_err(|_| os(libc::EDOM))?;
    let micros = u64::try_from(i64::from_ne_bytes(*micros)).map_err(|_| os(libc::EDOM))?;
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
    Ok((!time.is_zero()).then_some(time))
}

fn timeval(time: Option<Duration>) -> [u8; 16] {
    let time = time.unwrap_or_default();
    let mut value = [0; 16];
    value[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
    value[8..].copy_from_slice(&u64::from(time.subsec_micros()).to_ne_bytes());
    value
}

fn set_general(entry: &SocketEntry, option: c_int, value: &[u8]) -> io::Result<()> {
    let socket = &entry.socket;
    match option {
        libc::SO_SNDBUF | libc::SO_RCVBUF | libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE => {
            let bytes = u32::try_from(int(value)?).unwrap_or(u32::MAX);
            let bytes = bytes.min(max_buffer(option));
            if matches!(option, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) {
                socket.set_send_limit(bytes)
            } else {
                socket.set_recv_limit(bytes)
            }
        }
        libc::SO_RCVTIMEO => {
            socket.set_read_timeout(time(value)?);
            Ok(())
        }
        libc::SO_SNDTIMEO => {
            socket.set_write_timeout(time(value)?);
            Ok(())
        }
        libc::SO_BUSY_POLL => {
            let micros = u64::try_from(int(value)?).map_err(|_| os(libc::EINVAL))?;
            socket.set_busy_poll(Duration::from_micros(micros));
            Ok(())
        }
        libc::SO_ZEROCOPY => {
            entry.settings().zero_copy = int(value)? != 0;
            Ok(())
        }
        libc::SO_TIMESTAMP => {
            entry.settings().timestamp = int(value)? != 0;
            Ok(())
        }
        // An address cannot be shared between sockets.
        libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_PRIORITY => int(value).map(drop),
        _ => Err(os(libc::ENOPROTOOPT)),
    }
}

/// # Safety
/// Memory in the value belongs to the program, and may be accessed by devices.
unsafe fn set_rds(entry: &SocketEntry, option: c_int, value: &[u8]) -> io::Result<()> {
    let socket = &entry.socket;
    match option {
        name::CANCEL_SENT_TO => {
            if !entry.settings().bound {
                return Err(os(libc::ENOTCONN));
            }
            socket.cancel_sent_to(Some(address::read(value, libc::EINVAL)?))
        }
        name::GET_MR | name::GET_MR_FOR_DEST => {
            let args = match option {
                name::GET_MR => Some(value),
                _ => value.get(DESTINATION..),
            };
            let args = args.ok_or_else(|| os(libc::EINVAL))?;
            let args = GetMrArgs::decode(args).map_err(to_os_error)?;
            // SAFETY: as the caller promises.
            unsafe { export(socket, &args) }.map(drop)
        }
        name::FREE_MR => {
            // A deferred bind has an RDMA device.
            let is_rdma = match socket.transport()? {
                Some(transport) => transport == INFINIBAND,
                None => entry.settings().bound,
            };
            free(socket, value, is_rdma)
        }
        name::RECVERR => socket.set_recverr(int(value)? != 0),
        name::CONG_MONITOR => socket.set_congestion_monitor(int(value)? != 0),
        name::TRANSPORT => socket.set_transport(int(value)?),
        name::RXPATH_LATENCY => {
            let points = LatencyPoints::decode(value).map_err(|_| os(libc::EFAULT))?;
            let points = (value[0] != 0).then_some(points);
            entry.settings().latency = points;
            Ok(())
        }
        _ => Err(os(libc::ENOPROTOOPT)),
    }
}

unsafe fn set(
    entry: &SocketEntry,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> io::Result<c_int> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    // SAFETY: as the caller promises.
    let value = unsafe { bytes(value, len) }?;
    if level == LEVEL && option != name::FREE_MR {
        binding::complete_bind(&entry.socket)?;
    }
    match level {
        libc::SOL_SOCKET => set_general(entry, option, value)?,
        // SAFETY: as the caller promises.
        LEVEL => unsafe { set_rds(entry, option, value) }?,
        _ => return Err(os(libc::ENOPROTOOPT)),
    }
    Ok(0)
}

fn get_general(entry: &SocketEntry, option: c_int) -> io::Result<Vec<u8>> {
    let socket = &entry.socket;
    // The kernel returns twice the value set.
    let twice = |bytes: u32| c_int::try_from(bytes.saturating_mul(2)).unwrap_or(c_int::MAX);
    let value = match option {
        libc::SO_SNDBUF => twice(socket.send_limit()),
        libc::SO_RCVBUF => twice(socket.recv_limit()),
        libc::SO_RCVTIMEO => return Ok(timeval(socket.read_timeout()).to_vec()),
        libc::SO_SNDTIMEO => return Ok(timeval(socket.write_timeout()).to_vec()),
        libc::SO_BUSY_POLL => c_int::try_from(socket.busy_poll().as_micros()).unwrap_or(c_int::MAX),
        libc::SO_TYPE => libc::SOCK_SEQPACKET,
        libc::SO_DOMAIN => AF_RDS,
        libc::SO_ZEROCOPY => entry.settings().zero_copy.into(),
        libc::SO_TIMESTAMP => entry.settings().timestamp.into(),
        libc::SO_ERROR
        | libc::SO_PROTOCOL
        | libc::SO_ACCEPTCONN
        | libc::SO_REUSEADDR
        | libc::SO_REUSEPORT
        | libc::SO_PRIORITY => 0,
        _ => return Err(os(libc::ENOPROTOOPT)),
    };
    Ok(value.to_ne_bytes().to_vec())
}

/// `RDS_INFO_*` of the process. Returns the size of an element, or `ENOSPC` with the size needed.
///
/// # Safety
/// `len` is valid, and `value` points to `len` writable bytes.
unsafe fn get_info(
    entry: &SocketEntry,
    section: Section,
    value: *mut c_void,
    len: &mut socklen_t,
) -> io::Result<c_int> {
    let encoded = entry.socket.engine().info()?.encode(section);
    let capacity = usize::try_from(*len).unwrap_or(0);
    *len = socklen_t::try_from(encoded.len()).unwrap_or(socklen_t::MAX);
    if encoded.len() > capacity {
        return Err(os(libc::ENOSPC));
    }
    // SAFETY: as the caller promises.
    let out = unsafe { bytes_mut(value, encoded.len()) }?;
    out.copy_from_slice(&encoded);
    Ok(c_int::try_from(section.element_size()).unwrap_or(0))
}

unsafe fn get(
    entry: &SocketEntry,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> io::Result<c_int> {
    // SAFETY: as the caller promises.
    let mut capacity = unsafe { memory::value(len) }?;
    check_place(len)?;
    let got = match (level, option, Section::from_option(option)) {
        (libc::SOL_SOCKET, ..) => get_general(entry, option)?,
        (LEVEL, _, Some(section)) => {
            // SAFETY: as the caller promises.
            let ret = unsafe { get_info(entry, section, value, &mut capacity) };
            // SAFETY: not null, and valid as the caller promises.
            unsafe { store(len, capacity) };
            return ret;
        }
        (LEVEL, name::RECVERR, _) => c_int::from(entry.socket.recverr()).to_ne_bytes().to_vec(),
        (LEVEL, name::TRANSPORT, _) => {
            let transport = entry.socket.transport()?;
            transport.unwrap_or(-1).to_ne_bytes().to_vec()
        }
        _ => return Err(os(libc::ENOPROTOOPT)),
    };
    if level == LEVEL && usize::try_from(capacity).unwrap_or(0) < got.len() {
        return Err(os(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    unsafe { write_out(&got, value, len) }?;
    Ok(0)
}

interpose! {
    false, may_find, find, trying:
    fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t,
    ) -> c_int => set;
}

interpose! {
    false, may_find, find, with:
    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t,
    ) -> c_int => get;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeval_round_trips() {
        let half = Some(Duration::from_millis(1500));
        assert_eq!(time(&timeval(half)).unwrap(), half);
        assert_eq!(time(&timeval(None)).unwrap(), None);
        assert_eq!(
            time(&[0; 15]).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        assert_eq!(
            time(&[0xff; 16]).unwrap_err().raw_os_error(),
            Some(libc::EDOM)
        );
    }
}
