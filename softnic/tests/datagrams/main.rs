//! Datagram sockets of `rsocket` on several hosts of one fabric.
//!
//! Datagram sockets start with UDP sockets of the kernel on the same addresses, so the hosts have loopback addresses: those
//! of IPv4 are many, and the only one of IPv6 is on one host.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rsocket::{DatagramStats, Family, PollEntry, PollEvents, Socket, SocketStats, poll};
use softnic::{Fabric, Faults, Host};

/// Time-out of a wait that a correct test never reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which an answer counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

/// The network of all tests, since the engine of `rsocket` is on one. Tests run one at a time, for faults of their own.
fn network() -> MutexGuard<'static, Fabric> {
    static NETWORK: OnceLock<Mutex<Fabric>> = OnceLock::new();
    let network = NETWORK.get_or_init(|| Mutex::new(Fabric::seeded(3).keep_objects()));
    let network = network.lock().unwrap_or_else(PoisonError::into_inner);
    network.set_faults(Faults::default());
    network
}

fn v4(net: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, net, host).into()
}

/// A socket on a host, bound to a free port of an address.
fn bound(host: &Host, family: Family, addr: IpAddr) -> Socket {
    host.run(|| {
        let socket = Socket::datagram(family).unwrap();
        socket.bind(SocketAddr::new(addr, 0)).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT));
        socket.set_write_timeout(Some(TEST_TIMEOUT));
        socket
    })
}

/// Two hosts of a network, each with a socket.
fn pair(fabric: &Fabric, net: u8) -> ([Host; 2], [Socket; 2]) {
    let hosts = [1, 2].map(|host| fabric.host(v4(net, host)));
    let sockets = hosts
        .each_ref()
        .map(|host| bound(host, Family::V4, host.addr()));
    (hosts, sockets)
}

/// Sends a datagram and returns it as received, with the sender's address.
fn carry(from: &Socket, to: &Socket, bytes: &[u8]) -> (Vec<u8>, SocketAddr) {
    from.send_to(bytes, to.local_addr().unwrap()).unwrap();
    let mut buf = [0; 2048];
    let (len, source) = to.recv_from(&mut buf).unwrap();
    (buf[..len].to_vec(), source)
}

fn stats(socket: &Socket) -> DatagramStats {
    let stats = match socket.stats() {
        Some(SocketStats::Datagram(stats)) => Some(stats),
        _ => None,
    };
    stats.unwrap()
}

/// Exchanges datagrams until both directions are over the fabric: the first ones travel by UDP.
fn introduce(fabric: &Fabric, a: &Socket, b: &Socket) {
    let since = Instant::now();
    loop {
        let before = fabric.traffic().frames;
        carry(a, b, b"hello");
        let between = fabric.traffic().frames;
        carry(b, a, b"welcome");
        if before < between && between < fabric.traffic().frames {
            break;
        }
        assert!(
            since.elapsed() < TEST_TIMEOUT,
            "no datagram is on the fabric"
        );
    }
}

#[test]
fn datagrams_between_three_hosts_have_the_addresses_of_their_senders() {
    let fabric = network();
    let hosts = [1, 2, 3].map(|host| fabric.host(v4(1, host)));
    let sockets = hosts
        .each_ref()
        .map(|host| bound(host, Family::V4, host.addr()));
    for (index, from) in sockets.iter().enumerate() {
        for to in &sockets[..index] {
            let is_one_frame = || {
                introduce(&fabric, from, to);
                let before = fabric.traffic().frames;
                let (bytes, source) = carry(from, to, &[7; 1500]);
                assert_eq!(bytes, [7; 1500]);
                assert_eq!(source, from.local_addr().unwrap());
                fabric.traffic().frames == before + 1
            };
            // After a second without an answer, on a slow machine, the datagram travels by UDP.
            assert!((0..20).any(|_| is_one_frame()));
        }
    }
}

#[test]
fn lost_datagrams_do_not_arrive_and_the_others_arrive_once_and_in_order() {
    let fabric = network();
    let (_hosts, [a, b]) = pair(&fabric, 2);
    introduce(&fabric, &a, &b);
    fabric.set_faults(Faults {
        loss: 0.3,
        ..Faults::default()
    });
    let before = fabric.traffic().lost;
    b.set_read_timeout(Some(ANSWER_TIMEOUT));
    // After a second without an answer, one datagram travels by UDP, and may be late.
    let mut by_udp = BTreeSet::new();
    let mut arrived = Vec::new();
    let mut buf = [0; 64];
    let mut receive = || {
        let received = b.recv_from(&mut buf);
        received.map(|(len, _)| u32::from_be_bytes(buf[..len].try_into().unwrap()))
    };
    for number in 0..300_u32 {
        let sent = stats(&a).datagrams_sent_by_udp;
        a.send_to(&number.to_be_bytes(), b.local_addr().unwrap())
            .unwrap();
        if stats(&a).datagrams_sent_by_udp > sent {
            by_udp.insert(number);
        }
        arrived.extend(receive());
    }
    let lost = fabric.traffic().lost - before;
    assert!(lost > 0);
    b.set_read_timeout(Some(TEST_TIMEOUT));
    while u64::try_from(arrived.len()).unwrap() + lost < 300 {
        arrived.push(receive().unwrap());
    }
    let once: BTreeSet<_> = arrived.iter().copied().collect();
    assert_eq!(
        u64::try_from(once.len()).unwrap() + lost,
        300,
        "{arrived:?}"
    );
    arrived.retain(|number| !by_udp.contains(number));
    assert!(arrived.is_sorted(), "{arrived:?}, by UDP: {by_udp:?}");
}

#[test]
fn sockets_of_a_killed_host_are_silent_and_the_next_host_at_the_address_answers() {
    let fabric = network();
    let (hosts, [a, b]) = pair(&fabric, 3);
    introduce(&fabric, &a, &b);
    let addr = b.local_addr().unwrap();
    fabric.kill(&hosts[1]);
    a.send_to(b"lost", addr).unwrap();
    b.set_read_timeout(Some(ANSWER_TIMEOUT));
    assert!(b.recv_from(&mut [0; 64]).is_err());
    drop(b);

    let next = fabric.host(hosts[1].addr());
    let b = next.run(|| {
        let socket = Socket::datagram(Family::V4).unwrap();
        socket.bind(addr).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT));
        socket
    });
    // The new socket speaks first: the peer's path leads to the old one's queue pair.
    introduce(&fabric, &b, &a);
}

/// Number of open descriptors of the process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn devices_of_hosts_killed_without_sockets_are_closed() {
    let fabric = network();
    let counts = [(); 50].map(|()| {
        let (hosts, [a, b]) = pair(&fabric, 5);
        introduce(&fabric, &a, &b);
        drop((a, b));
        // No identifier is left for an event of the removal.
        hosts.iter().for_each(|host| fabric.kill(host));
        descriptors()
    });
    // Two for each device that stays open would be 180 more; calls in progress, and other tests, have some.
    assert!(counts[49] < counts[4] + 90, "{counts:?}");
}

/// As `FIONREAD` of a UDP socket, over UDP and over the fabric.
#[test]
fn unread_is_the_length_of_the_next_datagram() {
    let fabric = network();
    let (_hosts, [a, b]) = pair(&fabric, 6);
    let unread_after_each = || {
        for len in [5, 0, 1200, 1] {
            assert_eq!(b.unread().unwrap(), 0);
            let bytes = vec![7; len];
            a.send_to(&bytes, b.local_addr().unwrap()).unwrap();
            let mut entries = [PollEntry::socket(&b, PollEvents::IN)];
            assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1);
            assert_eq!(b.unread().unwrap(), len);
            let mut buf = [0; 2048];
            let (received, _) = b.recv_from(&mut buf).unwrap();
            assert_eq!(buf[..received], bytes);
        }
    };
    unread_after_each();
    introduce(&fabric, &a, &b);
    unread_after_each();
}

#[test]
fn sockets_of_both_families_reach_hosts_of_their_addresses() {
    let fabric = network();
    let both = fabric.host_with_addrs(&[v4(4, 1), Ipv6Addr::LOCALHOST.into()]);
    let other = fabric.host(v4(4, 2));
    // IPv6 sockets with IPv4 addresses, on two hosts.
    let mapped = |host: &Host| match host.addr() {
        IpAddr::V4(addr) => IpAddr::from(addr.to_ipv6_mapped()),
        addr => addr,
    };
    let [a, b] = [&both, &other].map(|host| bound(host, Family::V6, mapped(host)));
    introduce(&fabric, &a, &b);
    // IPv6 addresses, on one host.
    let pair = [(); 2].map(|()| bound(&both, Family::V6, Ipv6Addr::LOCALHOST.into()));
    introduce(&fabric, &pair[0], &pair[1]);
    let sources: BTreeSet<_> = pair
        .iter()
        .map(|socket| socket.local_addr().unwrap())
        .collect();
    assert_eq!(sources.len(), 2);
    assert!(sources.iter().all(|addr| addr.ip() == Ipv6Addr::LOCALHOST));
}

#[test]
fn socket_counts_datagrams_by_queue_pair_and_by_udp() {
    let fabric = network();
    let (_hosts, [a, b]) = pair(&fabric, 9);
    carry(&a, &b, b"hello");
    let first = (stats(&a), stats(&b));
    assert_eq!(
        (first.0.datagrams_sent, first.0.datagrams_sent_by_udp),
        (1, 1)
    );
    assert_eq!(
        (
            first.1.datagrams_received,
            first.1.datagrams_received_by_udp
        ),
        (1, 1)
    );
    introduce(&fabric, &a, &b);
    let (sent, received) = (stats(&a), stats(&b));
    carry(&a, &b, &[7; 1000]);
    let (then, arrived) = (stats(&a), stats(&b));
    assert_eq!(then.datagrams_sent, sent.datagrams_sent + 1);
    assert_eq!(then.datagrams_sent_by_udp, sent.datagrams_sent_by_udp);
    assert_eq!(then.bytes_sent, sent.bytes_sent + 1000);
    assert_eq!(arrived.datagrams_received, received.datagrams_received + 1);
    assert_eq!(
        arrived.datagrams_received_by_udp,
        received.datagrams_received_by_udp
    );
    assert_eq!(arrived.bytes_received, received.bytes_received + 1000);
    assert_eq!(arrived.datagrams_dropped, 0);
    assert_eq!(Socket::new(Family::V4).unwrap().stats(), None);
}
