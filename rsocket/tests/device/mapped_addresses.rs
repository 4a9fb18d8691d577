//! IPv4 addresses on IPv6 sockets, as Java's sockets have them all.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rsocket::{Family, Listener, Socket, Stream, errno};

use crate::{local, local_v6};

const EINVAL: i32 = 22;
const EAFNOSUPPORT: i32 = 97;
const ENETUNREACH: i32 = 101;

fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// All addresses of both families.
fn any() -> SocketAddr {
    SocketAddr::new("::".parse().unwrap(), 0)
}

/// A pair of sockets over IPv4, whose client is bound to `source` if given.
fn connects(bound: SocketAddr, source: Option<SocketAddr>) {
    let listener = Socket::new(Family::V6).unwrap();
    listener.bind(bound).unwrap();
    listener.listen(1).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = SocketAddr::new(mapped(local()).ip(), port);
    let client = Socket::new(Family::V6).unwrap();
    let source = source.map(|source| {
        client.bind(source).unwrap();
        client.local_addr().unwrap().port()
    });
    client.connect(to).unwrap();
    let (server, peer) = listener.accept().unwrap();
    let name = client.local_addr().unwrap();
    assert_eq!((name.ip(), name), (to.ip(), peer));
    assert!(source.is_none_or(|port| port == name.port()), "{source:?}");
    assert_eq!(client.peer_addr().unwrap(), to);
    assert_eq!(server.local_addr().unwrap(), to);
    assert_eq!(server.peer_addr().unwrap(), peer);
    client.send(b"!").unwrap();
    assert_eq!(server.recv(&mut [0]).unwrap(), 1);
}

#[test]
fn ipv6_socket_connects_over_ipv4_by_mapped_addresses() {
    for bound in [any(), mapped(local())] {
        for source in [None, Some(any()), Some(mapped(local()))] {
            connects(bound, source);
        }
    }
}

#[test]
fn stream_and_listener_accept_mapped_addresses() {
    let listener = Listener::bind(mapped(local())).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = SocketAddr::new(mapped(local()).ip(), port);
    let mut client = Stream::connect(to).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"!").unwrap();
    server.read_exact(&mut [0]).unwrap();
}

#[test]
fn address_of_the_other_family_is_refused() {
    let number = |result: std::io::Result<()>| errno(&result.unwrap_err());
    let v4 = Socket::new(Family::V4).unwrap();
    for other in [local_v6(), mapped(local()), any()] {
        assert_eq!(number(v4.bind(other)), EAFNOSUPPORT);
        assert_eq!(number(v4.connect(other)), EAFNOSUPPORT);
    }
    v4.bind(local()).unwrap();
    let v6 = Socket::new(Family::V6).unwrap();
    v6.set_v6_only(true).unwrap();
    assert_eq!(number(v6.bind(mapped(local()))), EINVAL);
    assert_eq!(number(v6.connect(mapped(local()))), ENETUNREACH);
    v6.bind(local_v6()).unwrap();
}

#[test]
fn datagrams_of_ipv6_sockets_have_mapped_addresses() {
    let [one, other] = [(); 2].map(|()| {
        let socket = Socket::datagram(Family::V6).unwrap();
        socket.bind(mapped(local())).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60)));
        socket
    });
    let [from, to] = [&one, &other].map(|socket| socket.local_addr().unwrap());
    assert!(from.is_ipv6() && to.is_ipv6(), "{from}, {to}");
    // Over UDP at first, then between the devices.
    for _ in 0..100 {
        one.send_to(b"?", to).unwrap();
        assert_eq!(other.recv_from(&mut [0]).unwrap(), (1, from));
    }
    one.connect(to).unwrap();
    assert_eq!(one.peer_addr().unwrap(), to);
    other.send_to(b"!", from).unwrap();
    assert_eq!(one.recv(&mut [0]).unwrap(), 1);
}
