//! Linux options without a counterpart in rsockets: hints are accepted, options a program would rely on are
//! refused. `OPTIONS.md` has the decision and the reason for each.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, PoisonError},
};

use libc::c_int;

use crate::{errno::os, options::int};

/// Options missing in `libc`.
const TCP_TX_DELAY: c_int = 37;
const IP_RECVERR_RFC4884: c_int = 26;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_RECVERR_RFC4884: c_int = 31;

/// Values that Linux accepts for an option; others fail with `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    /// All, read back as set.
    Any,
    /// All, read back as 0 or 1.
    Flag,
    /// From the first to the second.
    Within(c_int, c_int),
    /// From the first to the second, or -1 for the default.
    OrDefault(c_int, c_int),
    /// The default, which is without effect; others fail with `ENOTSUP`, because the program would rely on them.
    Only,
}

use Values::{Any, Flag, Only, OrDefault, Within};

const BIT: Values = Within(0, 1);
const NOT_NEGATIVE: Values = Within(0, c_int::MAX);

/// Options accepted and stored: level, name, default, and values.
const ACCEPTED: &[(c_int, c_int, c_int, Values)] = &[
    (libc::SOL_SOCKET, libc::SO_DEBUG, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_NO_CHECK, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 0, Any),
    (libc::SOL_SOCKET, libc::SO_BSDCOMPAT, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_PASSCRED, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, 0, NOT_NEGATIVE),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -1, Any),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU, -1, Any),
    (libc::SOL_SOCKET, libc::SO_CNX_ADVICE, 0, Any),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP_NEW, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS_NEW, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 0, Flag),
    (
        libc::SOL_SOCKET,
        libc::SO_BUSY_POLL_BUDGET,
        0,
        Within(0, 0xffff),
    ),
    (libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0, Within(0, 3)),
    (libc::SOL_SOCKET, libc::SO_RESERVE_MEM, 0, Any),
    (libc::SOL_SOCKET, libc::SO_TXREHASH, 1, OrDefault(0, 1)),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0, Flag),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 6, Within(1, 127)),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, 60, Any),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0, Any),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 0, Any),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1, Flag),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 0, BIT),
    (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK, 0, BIT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 0, NOT_NEGATIVE),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 0, Any),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 0, BIT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY, 0, Any),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE, 0, BIT),
    (libc::IPPROTO_IP, libc::IP_TTL, 64, OrDefault(1, 255)),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_RETOPTS, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, 0, Flag),
    (
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_WANT,
        Within(0, 5),
    ),
    (libc::IPPROTO_IP, libc::IP_RECVERR, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_FREEBIND, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_CHECKSUM, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 0, Flag),
    (libc::IPPROTO_IP, libc::IP_RECVFRAGSIZE, 0, Any),
    (libc::IPPROTO_IP, IP_RECVERR_RFC4884, 0, BIT),
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_UNICAST_HOPS,
        64,
        OrDefault(0, 255),
    ),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, 1, Within(0, 5)),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 0, Flag),
    (libc::IPPROTO_IPV6, IPV6_RECVERR_RFC4884, 0, BIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPOPTS, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVRTHDR, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVDSTOPTS, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPATHMTU, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 1, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_ADDR_PREFERENCES, 0, Any),
    (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVFRAGSIZE, 0, Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 0, Flag),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, 0, Only),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1, Only),
    (libc::SOL_SOCKET, libc::SO_MARK, 0, Only),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0, Only),
    (libc::SOL_SOCKET, libc::SO_WIFI_STATUS, 0, Only),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1, Only),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0, Only),
    (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, 0, Only),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING_NEW, 0, Only),
    (libc::SOL_SOCKET, libc::SO_RCVMARK, 0, Only),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 0, Only),
    (libc::IPPROTO_TCP, libc::TCP_INQ, 0, Only),
    (libc::IPPROTO_TCP, TCP_TX_DELAY, 0, Only),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, 0, Only),
    (libc::IPPROTO_IP, libc::IP_MINTTL, 0, Only),
    (libc::IPPROTO_IP, libc::IP_UNICAST_IF, 0, Only),
    (libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0, Only),
    (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, 0, Only),
    (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, 0, Only),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 0, Only),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF, 0, Only),
];

/// Levels of a TCP socket. `getsockopt` fails with `ENOTSUP` at others, `setsockopt` with `ENOPROTOOPT`, as in Linux.
const LEVELS: [c_int; 4] = [
    libc::SOL_SOCKET,
    libc::IPPROTO_TCP,
    libc::IPPROTO_IP,
    libc::IPPROTO_IPV6,
];

/// Size of an algorithm name in bytes, including the final zero.
const TCP_CA_NAME_MAX: usize = 16;

/// Default congestion control algorithm of a stream: the device's.
const CONGESTION: &[u8] = b"device";

/// Stored values of a socket's options.
#[derive(Debug, Default)]
pub(crate) struct Noted(Mutex<BTreeMap<(c_int, c_int), Vec<u8>>>);

/// Returns the default and the values of an accepted option.
fn accepted(level: c_int, name: c_int) -> Option<(c_int, Values)> {
    let mut entries = ACCEPTED.iter();
    let found = entries.find(|entry| (entry.0, entry.1) == (level, name));
    found.map(|entry| (entry.2, entry.3))
}

impl Values {
    /// Returns the value read back after `value` has been set.
    fn stored(self, value: c_int, default: c_int) -> io::Result<c_int> {
        match self {
            Any => Ok(value),
            Flag => Ok((value != 0).into()),
            OrDefault(..) if value == -1 => Ok(default),
            Only if value != default => Err(os(libc::ENOTSUP)),
            Only => Ok(default),
            Within(min, max) | OrDefault(min, max) => match (min..=max).contains(&value) {
                true => Ok(value),
                false => Err(os(libc::EINVAL)),
            },
        }
    }
}

impl Noted {
    /// Returns the initial options of an accepted socket.
    pub(crate) fn inherit(&self) -> Self {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(noted.clone()))
    }

    /// Stores an option.
    ///
    /// # Errors
    /// - `ENOENT`: no such upper layer protocol (`TCP_ULP`).
    /// - `EINVAL`: a value or length that Linux refuses.
    /// - `ENOTSUP`: the program would rely on the value.
    /// - `ENOPROTOOPT`: the option is unknown, or the program would rely on it.
    pub(crate) fn set(&self, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
        let number = || int(level, value);
        let has_contents = match level {
            libc::IPPROTO_TCP => matches!(name, libc::TCP_CONGESTION | libc::TCP_ULP),
            libc::IPPROTO_IP => name == libc::IP_FREEBIND,
            _ => false,
        };
        if has_contents && value.is_empty() {
            return Err(os(libc::EINVAL));
        }
        let noted = if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
            let len = value.iter().position(|byte| *byte == 0);
            let name = &value[..len.unwrap_or(value.len())];
            name[..name.len().min(TCP_CA_NAME_MAX - 1)].to_vec()
        } else if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP) {
            return Err(os(libc::ENOENT));
        } else if (level, name) == (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) {
            if value.iter().any(|byte| *byte != 0) {
                return Err(os(libc::ENOTSUP));
            }
            return Ok(());
        } else if let Some((default, values)) = accepted(level, name) {
            let stored = values.stored(number()?, default)?;
            stored.to_ne_bytes().to_vec()
        } else {
            if matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP) {
                // The length is checked first.
                number()?;
            }
            return Err(os(libc::ENOPROTOOPT));
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((level, name), noted);
        Ok(())
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// - `ENOPROTOOPT`: unknown option.
    /// - `ENOTSUP`: unknown level.
    pub(crate) fn get(&self, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let set = all.get(&(level, name)).cloned();
        drop(all);
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
            let mut name = set.unwrap_or_else(|| CONGESTION.to_vec());
            name.resize(TCP_CA_NAME_MAX, 0);
            return Ok(name);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) {
            return Ok(Vec::new());
        }
        match (set, accepted(level, name)) {
            (Some(set), _) => Ok(set),
            (None, Some((default, _))) => Ok(default.to_ne_bytes().to_vec()),
            (None, None) if LEVELS.contains(&level) => Err(os(libc::ENOPROTOOPT)),
            (None, None) => Err(os(libc::ENOTSUP)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_options_are_stored_and_demands_refused() {
        let noted = Noted::default();
        let get = |level, name| {
            let bytes = noted.get(level, name).unwrap();
            c_int::from_ne_bytes(bytes.try_into().unwrap())
        };
        for &(level, name, default, values) in ACCEPTED {
            assert_eq!(get(level, name), default);
            let set = |value: c_int| noted.set(level, name, &value.to_ne_bytes());
            let (value, stored) = match values {
                Any => (7, 7),
                Flag => (7, 1),
                Within(_, max) | OrDefault(_, max) => (max, max),
                Only => (default, default),
            };
            set(value).unwrap();
            assert_eq!(get(level, name), stored);
            // As `do_ip_setsockopt` of Linux 6.12: no bytes are zero, except for two options.
            let no_bytes = noted.set(level, name, &[]);
            if level == libc::IPPROTO_IP && !matches!(name, libc::IP_FREEBIND | libc::IP_TTL) {
                no_bytes.unwrap();
                set(value).unwrap();
            } else {
                let refused = no_bytes.unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
            }
            let (beyond, refused) = match values {
                Within(_, c_int::MAX) => (-1, libc::EINVAL),
                Within(_, max) | OrDefault(_, max) => (max + 1, libc::EINVAL),
                Only => (7, libc::ENOTSUP),
                Any | Flag => continue,
            };
            assert_eq!(set(beyond).unwrap_err().raw_os_error(), Some(refused));
            assert_eq!(get(level, name), stored);
        }
        // One byte, as IP's options may have, and more than a number.
        let ttl = (libc::IPPROTO_IP, libc::IP_TTL);
        noted.set(ttl.0, ttl.1, &[5]).unwrap();
        assert_eq!(get(ttl.0, ttl.1), 5);
        let longer = [7_i32.to_ne_bytes(), 9_i32.to_ne_bytes()].concat();
        noted.set(ttl.0, ttl.1, &longer).unwrap();
        assert_eq!(get(ttl.0, ttl.1), 7);
        let inherited = noted.inherit();
        let ttl = inherited.get(libc::IPPROTO_IP, libc::IP_TTL).unwrap();
        assert_eq!(ttl, 7_i32.to_ne_bytes());
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
            (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
            (libc::IPPROTO_TCP, libc::TCP_REPAIR),
            (libc::IPPROTO_IP, libc::IP_OPTIONS),
            (12345, 1),
        ] {
            let refused = noted.set(level, name, &[0; 4]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOPROTOOPT));
            assert!(noted.get(level, name).is_err());
        }
    }

    #[test]
    fn string_options_are_truncated_and_padded() {
        let noted = Noted::default();
        let congestion = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        let get = || noted.get(congestion.0, congestion.1).unwrap();
        assert_eq!(&get(), b"device\0\0\0\0\0\0\0\0\0\0");
        for value in [&b"cubic"[..], b"cubic\0rest"] {
            noted.set(congestion.0, congestion.1, value).unwrap();
            assert_eq!(&get(), b"cubic\0\0\0\0\0\0\0\0\0\0\0");
        }
        noted.set(congestion.0, congestion.1, &[b'x'; 40]).unwrap();
        assert_eq!(&get(), b"xxxxxxxxxxxxxxx\0");
        let ulp = noted.set(libc::IPPROTO_TCP, libc::TCP_ULP, b"tls");
        assert_eq!(ulp.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        let device = |name: &[u8]| noted.set(libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name);
        device(b"").unwrap();
        device(b"\0").unwrap();
        assert!(device(b"eth0").is_err());
    }
}
