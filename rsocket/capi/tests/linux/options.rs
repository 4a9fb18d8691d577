//! Options: results of each value and length, and the value read back.

use libc::{c_int, socklen_t};

use crate::{
    option_table::{self, Row},
    sockets::{Kind::Rdma, Kind::Tcp, Outcome, Stream, connected},
};

/// Options whose values differ, with the reason.
const DIFFERENT: [(&str, &str); 22] = [
    ("SO_DEBUG", "needs a privilege"),
    ("SO_SNDBUF", "TCP doubles the size, and has other limits"),
    ("SO_RCVBUF", "as SO_SNDBUF"),
    ("SO_PRIORITY", "needs a privilege above 6"),
    ("SO_LINGER", "a structure, compared by itself"),
    ("SO_BSDCOMPAT", "of no effect in Linux"),
    ("SO_PASSCRED", "refused by newer kernels"),
    ("SO_RCVTIMEO", "a structure, compared by itself"),
    ("SO_SNDTIMEO", "as SO_RCVTIMEO"),
    ("SO_RCVTIMEO_NEW", "as SO_RCVTIMEO"),
    ("SO_SNDTIMEO_NEW", "as SO_RCVTIMEO"),
    ("SO_BUSY_POLL", "needs a privilege to be raised"),
    ("SO_MAX_PACING_RATE", "8 bytes if there is room"),
    ("SO_CNX_ADVICE", "cannot be read in Linux"),
    ("SO_PREFER_BUSY_POLL", "needs a privilege"),
    ("SO_BUSY_POLL_BUDGET", "cannot be read in Linux"),
    ("SO_RESERVE_MEM", "refused without a memory cgroup"),
    ("TCP_THIN_DUPACK", "of no effect in Linux"),
    ("TCP_FASTOPEN_KEY", "keys of 16 bytes"),
    ("IP_RECVFRAGSIZE", "refused on a stream by Linux"),
    ("IPV6_ADDR_PREFERENCES", "bits with different defaults"),
    ("TCP_FASTOPEN_CONNECT", "depends on a sysctl"),
];

/// Options whose numbers TCP rounds or limits by its timers, buffers and sysctls.
const ROUNDED: [&str; 4] = [
    "TCP_LINGER2",
    "TCP_DEFER_ACCEPT",
    "TCP_WINDOW_CLAMP",
    "TCP_FASTOPEN",
];

/// Options of IPv6 that Linux takes for zero if the length is too short.
const SHORT_IS_ZERO: [&str; 3] = ["IPV6_DONTFRAG", "IPV6_AUTOFLOWLABEL", "IPV6_RECVFRAGSIZE"];

const VALUES: [c_int; 13] = [
    0,
    1,
    2,
    5,
    -1,
    c_int::MIN,
    127,
    128,
    255,
    256,
    32767,
    32768,
    c_int::MAX,
];

/// Lengths of a value; the last is -1 for the kernel.
const LENS: [socklen_t; 6] = [0, 1, 3, 4, 8, socklen_t::MAX];

const ROOM: socklen_t = 64;

fn option(row: Row) -> (c_int, c_int) {
    let level = match row.level {
        "SOL_SOCKET" => libc::SOL_SOCKET,
        "IPPROTO_TCP" => libc::IPPROTO_TCP,
        "IPPROTO_IP" => libc::IPPROTO_IP,
        "IPPROTO_IPV6" => libc::IPPROTO_IPV6,
        other => panic!("{other}"),
    };
    (level, row.number)
}

fn family(level: c_int) -> c_int {
    match level {
        libc::IPPROTO_IPV6 => libc::AF_INET6,
        _ => libc::AF_INET,
    }
}

type Read = Result<Vec<u8>, c_int>;

/// Result of setting a value, and the value read back.
fn set_and_read(
    socket: &Stream,
    option: (c_int, c_int),
    value: &[u8],
    len: socklen_t,
) -> (Outcome, Read) {
    let set = socket.set_with_len(option, value, len);
    (set, socket.get(option, ROOM))
}

/// Options that are carried out or stored, and known to this kernel.
fn settable() -> Vec<Row> {
    let rows = option_table::rows().into_iter().filter(|row| {
        let kinds = ["carried out", "noted", "flag"];
        kinds.iter().any(|kind| row.decision.starts_with(kind))
    });
    let supported = rows.filter(|row| {
        let option = option(*row);
        let tcp = Stream::open(Tcp, family(option.0));
        tcp.get(option, ROOM) != Err(libc::ENOPROTOOPT)
    });
    let rows: Vec<_> = supported
        .filter(|row| DIFFERENT.iter().all(|(name, _)| *name != row.name))
        .collect();
    assert!(rows.len() > 50, "{} options", rows.len());
    rows
}

#[test]
fn option_values_are_those_of_tcp() {
    for row in settable() {
        let option = option(row);
        for value in VALUES {
            let [tcp, rdma] = [Tcp, Rdma].map(|kind| {
                let socket = Stream::open(kind, family(option.0));
                set_and_read(&socket, option, &value.to_ne_bytes(), 4)
            });
            if ROUNDED.contains(&row.name) {
                assert_eq!(tcp.0, rdma.0, "{row:?} {value}");
            } else {
                assert_eq!(tcp, rdma, "{row:?} {value}");
            }
        }
    }
}

#[test]
fn option_lengths_are_those_of_tcp() {
    let value: Vec<u8> = [1_i32, 1].into_iter().flat_map(i32::to_ne_bytes).collect();
    for row in settable() {
        let option = option(row);
        let is_ipv6 = option.0 == libc::IPPROTO_IPV6;
        for len in LENS {
            let short = len < 4 && SHORT_IS_ZERO.contains(&row.name);
            // Without a byte, Linux refuses some options of IP, and takes others for zero.
            let empty = len == 0 && option.0 == libc::IPPROTO_IP;
            if !short && !empty {
                let [tcp, rdma] = [Tcp, Rdma].map(|kind| {
                    let socket = Stream::open(kind, family(option.0));
                    set_and_read(&socket, option, &value, len).0
                });
                assert_eq!(tcp, rdma, "{row:?} of {len} bytes");
            }
            // IPv6 takes a negative length for a large one.
            if is_ipv6 && len == socklen_t::MAX || ROUNDED.contains(&row.name) {
                continue;
            }
            let [tcp, rdma] = [Tcp, Rdma].map(|kind| {
                let socket = Stream::open(kind, family(option.0));
                socket.get(option, len)
            });
            assert_eq!(tcp, rdma, "{row:?} with room for {len} bytes");
        }
    }
}

#[test]
fn option_that_is_only_read_or_unknown_is_refused_as_by_tcp() {
    let read = option_table::rows()
        .into_iter()
        .filter(|row| row.decision == "read");
    let read = read.filter(|row| row.level != "IPPROTO_IPV6" && row.name != "IP_PROTOCOL");
    let set: Vec<_> = read.map(option).collect();
    assert!(set.len() > 8, "{set:?}");
    let unknown = [
        (libc::SOL_SOCKET, 250),
        (libc::IPPROTO_TCP, 250),
        (libc::IPPROTO_IP, 250),
        (libc::IPPROTO_UDP, 1),
        (12345, 1),
    ];
    let [tcp, rdma] = [Tcp, Rdma].map(|kind| Stream::open(kind, libc::AF_INET));
    for option in set.into_iter().chain(unknown) {
        for len in LENS {
            let [tcp, rdma] = [&tcp, &rdma].map(|socket| socket.set_with_len(option, &[1; 8], len));
            assert_eq!(tcp, rdma, "{option:?} of {len} bytes");
        }
    }
    for option in unknown {
        let [tcp, rdma] = [&tcp, &rdma].map(|socket| socket.get(option, ROOM));
        assert_eq!(tcp, rdma, "{option:?}");
    }
}

fn timeval(seconds: i64, micros: i64) -> Vec<u8> {
    [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat()
}

#[test]
fn timeout_and_linger_values_are_those_of_tcp() {
    let linger = |on: c_int, seconds: c_int| [on.to_ne_bytes(), seconds.to_ne_bytes()].concat();
    let times = [
        (0, 0),
        (2, 0),
        (2, 500_000),
        (-1, 0),
        (-1, 1),
        (0, -1),
        (1, 1_000_000),
        (i64::MIN, 0),
    ];
    let mut values: Vec<_> = [0, 0, 5, 5]
        .into_iter()
        .zip([0, 1, 0, 1])
        .map(|(seconds, on)| (libc::SO_LINGER, linger(on, seconds)))
        .collect();
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, 66, 67] {
        values.extend(times.map(|(seconds, micros)| (name, timeval(seconds, micros))));
    }
    for (name, value) in values {
        let option = (libc::SOL_SOCKET, name);
        for len in [0, 4, 8, 12, 15, 16] {
            if len > value.len() {
                continue;
            }
            let [tcp, rdma] = [Tcp, Rdma].map(|kind| {
                let socket = Stream::open(kind, libc::AF_INET);
                set_and_read(&socket, option, &value, len.try_into().unwrap())
            });
            assert_eq!(tcp, rdma, "{name} {value:?} of {len} bytes");
        }
    }
}

#[test]
fn recv_with_negative_timeout_returns_at_once() {
    let [tcp, rdma] = [Tcp, Rdma].map(|kind| {
        let [client, _server] = connected(kind);
        client
            .set((libc::SOL_SOCKET, libc::SO_RCVTIMEO), &timeval(-1, 0))
            .unwrap();
        client.recv(1, 0)
    });
    assert_eq!(tcp, Err(libc::EAGAIN));
    assert_eq!(rdma, Err(libc::EAGAIN));
}
