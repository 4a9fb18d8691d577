//! Connections without an explicit channel: blocking calls.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::Duration,
};

use cm::{
    ConnParam, ConnectFailure, DatagramEndpoint, Endpoint, EndpointBuilder, Listener, Membership,
};
use verbs::{Buf, RemoteToken, WcStatus, ah::GRH_LEN, cq::WcError, op};

use crate::support::{TEST_TIMEOUT, expect_bytes, local, local_v6};

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().timeout(TEST_TIMEOUT)
}

fn listen() -> (Listener, SocketAddr) {
    let listener = builder().listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Both ends of a connection, each with a receive of 64 bytes posted.
fn pair() -> (Endpoint, Endpoint) {
    let (listener, addr) = listen();
    let passive = thread::spawn(move || {
        let mut incoming = listener.request().unwrap();
        incoming
            .post_recv(incoming.reg_msgs([0; 64]).unwrap())
            .unwrap();
        incoming.accept().unwrap()
    });
    let mut outgoing = builder().prepare(addr).unwrap();
    outgoing
        .post_recv(outgoing.reg_msgs([0; 64]).unwrap())
        .unwrap();
    let active = outgoing.connect().unwrap();
    (active, passive.join().unwrap())
}

fn send(endpoint: &mut Endpoint, text: &[u8]) {
    endpoint
        .post_send(endpoint.reg_msgs(text).unwrap())
        .unwrap();
    let done = endpoint.send_comp().unwrap();
    done.ok().unwrap();
    assert_eq!(&**done.work().unwrap(), text);
}

fn receive(endpoint: &mut Endpoint) -> Vec<u8> {
    endpoint.recv_comp().unwrap().received().unwrap().to_vec()
}

fn token_of(bytes: &[u8]) -> RemoteToken {
    RemoteToken {
        addr: u64::from_be_bytes(bytes[..8].try_into().unwrap()),
        len: 64,
        rkey: u32::from_be_bytes(bytes[8..12].try_into().unwrap()),
    }
}

fn bytes_of(token: RemoteToken) -> Vec<u8> {
    [&token.addr.to_be_bytes()[..], &token.rkey.to_be_bytes()].concat()
}

/// The first program of the README.
fn first_program(addr: SocketAddr) -> verbs::Result<()> {
    let mut client = builder().prepare(addr)?;
    let buf = client.reg_msgs([0; 1024])?;
    client.post_recv(buf)?;

    let mut client = client.connect()?;
    let hello = client.reg_msgs(*b"hello")?;
    client.post(op::Send::new(hello).solicited())?;
    client.send_comp()?.into_work()?;

    let answer = client.recv_comp()?;
    assert_eq!(answer.received()?, b"hello");
    client.disconnect()
}

#[test]
fn first_program_fails_when_server_accepts_and_leaves() {
    let (listener, addr) = listen();
    let server = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = first_program(addr).unwrap_err();
    server.join().unwrap();
    let failed = WcError::of(&error).unwrap();
    assert_ne!(failed.status, WcStatus::SUCCESS, "{error}");
}

#[test]
fn accepted_client_gets_private_data_of_the_server() {
    let (listener, addr) = listen();
    let server = thread::spawn(move || {
        let mut incoming = listener.request().unwrap();
        *incoming.param_mut() = ConnParam::new().private_data(*b"welcome");
        incoming.accept().unwrap()
    });
    let param = ConnParam::new().private_data(*b"let me in");
    let client = builder().param(param).connect(addr).unwrap();
    let server = server.join().unwrap();
    let private_data = &client.peer_param().private_data;
    assert!(private_data.starts_with(b"welcome\0"), "{private_data:?}");
    let request_data = &server.peer_param().private_data;
    assert!(request_data.starts_with(b"let me in\0"), "{request_data:?}");
}

#[test]
fn endpoint_example_resembles_std_net() {
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut endpoint = listener.accept().unwrap();
        endpoint
            .post_recv(endpoint.reg_msgs([0; 64]).unwrap())
            .unwrap();
        receive(&mut endpoint)
    });
    let mut endpoint = cm::connect(addr).unwrap();
    assert_eq!(endpoint.id().peer_addr(), Some(addr));
    send(&mut endpoint, b"hello");
    assert_eq!(server.join().unwrap(), b"hello");
}

#[test]
fn messages_in_both_directions_then_disconnect_is_detected() {
    let (mut active, mut passive) = pair();
    send(&mut active, b"there");
    assert_eq!(receive(&mut passive), b"there");
    send(&mut passive, b"and back");
    assert_eq!(receive(&mut active), b"and back");

    // The peer's receive is flushed when this side disconnects.
    passive
        .post_recv(passive.reg_msgs([0; 8]).unwrap())
        .unwrap();
    let waiting = thread::spawn(move || {
        let status = passive.recv_comp().unwrap().status();
        (status, passive)
    });
    active.disconnect().unwrap();
    active.disconnect().unwrap();
    let (status, mut passive) = waiting.join().unwrap();
    assert_eq!(status, WcStatus::WR_FLUSH_ERR);
    assert!(passive.is_disconnected());
    let after_end = passive.recv_comp().map(drop).unwrap_err();
    assert_eq!(after_end.kind(), ErrorKind::NotConnected);
    passive.disconnect().unwrap();
}

/// Requests that are posted after the end return at once on every device.
#[test]
fn receive_posted_after_the_end_is_flushed() {
    let (mut active, mut passive) = pair();
    let ending = thread::spawn(move || passive.disconnect().map(|()| passive));
    active.disconnect().unwrap();
    for mut endpoint in [active, ending.join().unwrap().unwrap()] {
        // The receives posted before the end.
        while endpoint.recv_comp().is_ok() {}
        for _ in 0..2 {
            let buf = endpoint.reg_msgs([0; 8]).unwrap();
            endpoint.post_recv(buf).unwrap();
            let status = endpoint.recv_comp().unwrap().status();
            assert_eq!(status, WcStatus::WR_FLUSH_ERR);
        }
    }
}

/// The peer has no receive for the message in flight, and disconnects: the answer does not wait for the send.
#[test]
fn peer_disconnect_with_send_in_flight_is_answered() {
    let (mut active, mut passive) = pair();
    send(&mut active, b"as much as there is memory for");
    active
        .post_send(active.reg_msgs(*b"too much").unwrap())
        .unwrap();
    let ending = thread::spawn(move || passive.disconnect());
    let status = active.recv_comp().unwrap().status();
    assert_eq!(status, WcStatus::WR_FLUSH_ERR);
    let status = active.send_comp().unwrap().status();
    assert_eq!(status, WcStatus::WR_FLUSH_ERR);
    ending.join().unwrap().unwrap();
}

#[test]
fn peer_memory_is_read_and_written() {
    let (mut active, mut passive) = pair();
    let readable = passive.reg_read(64).unwrap();
    readable.write(0, b"to be read");
    send(&mut passive, &bytes_of(readable.token()));
    let remote = token_of(&receive(&mut active)).slice(0..10).unwrap();
    active
        .post_read(active.reg_msgs([0; 10]).unwrap(), remote)
        .unwrap();
    let done = active.send_comp().unwrap();
    done.ok().unwrap();
    assert_eq!(&**done.work().unwrap(), b"to be read");

    let writable = active.reg_write(64).unwrap();
    send(&mut active, &bytes_of(writable.token()));
    let remote = token_of(&receive(&mut passive));
    passive
        .post_write(passive.reg_msgs(*b"written").unwrap(), remote)
        .unwrap();
    passive.send_comp().unwrap().ok().unwrap();
    expect_bytes(&writable, b"written");
}

#[test]
fn gather_list_is_read_and_written_as_one() {
    let choices = builder().max_send_sge(2);
    let listener = choices.listen_for::<Vec<Buf>, Buf>(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (mut active, passive) = thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept().unwrap());
        let client = choices.connect_for::<Vec<Buf>, Buf>(addr).unwrap();
        (client, server.join().unwrap())
    });
    let readable = passive.reg_read(16).unwrap();
    readable.write(0, b"here and there");
    let parts = [8, 6].map(|len| active.reg_msgs(vec![0; len]).unwrap());
    let remote = readable.token().slice(0..14).unwrap();
    active.post_read(parts.into(), remote).unwrap();
    let done = active.send_comp().unwrap();
    done.ok().unwrap();
    assert_eq!(
        (&*done.work().unwrap()[0], &*done.work().unwrap()[1]),
        (&b"here and"[..], &b" there"[..])
    );
    drop(done);

    let writable = passive.reg_write(16).unwrap();
    let parts = [&b"from two"[..], b" places"].map(|part| active.reg_msgs(part).unwrap());
    active.post_write(parts.into(), writable.token()).unwrap();
    active.send_comp().unwrap().ok().unwrap();
    expect_bytes(&writable, b"from two places");
}

#[test]
fn gather_list_is_sent_and_received_as_one_message() {
    let choices = builder().max_send_sge(2).max_recv_sge(2);
    let listener = choices.listen_for::<[Buf; 2], Vec<Buf>>(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut incoming = listener.request().unwrap();
        let parts = [3, 8].map(|len| incoming.reg_msgs(vec![0; len]).unwrap());
        incoming.post_recv(parts.into()).unwrap();
        let mut endpoint = incoming.accept().unwrap();
        let done = endpoint.recv_comp().unwrap();
        let parts = done.into_work().unwrap();
        (parts[0].to_vec(), parts[1][..5].to_vec())
    });
    let mut endpoint = choices.connect_for::<[Buf; 2], Vec<Buf>>(addr).unwrap();
    let parts = [&b"gather"[..], b"ed"].map(|part| endpoint.reg_msgs(part).unwrap());
    endpoint.post_send(parts).unwrap();
    endpoint.send_comp().unwrap().ok().unwrap();
    assert_eq!(server.join().unwrap(), (b"gat".to_vec(), b"hered".to_vec()));
}

#[test]
fn post_with_every_option_returns_the_payload() {
    let choices = builder().max_send_wr(1).max_inline_data(16);
    let (listener, addr) = listen();
    let server = thread::spawn(move || listener.accept().unwrap());
    let mut endpoint = choices.connect(addr).unwrap();
    let mut server = server.join().unwrap();
    server.post_recv(server.reg_msgs([0; 64]).unwrap()).unwrap();
    let empty = endpoint.reg_msgs([0]).unwrap();
    endpoint
        .post(op::Send::new(empty).imm_data(7).inline(b"inline"))
        .unwrap();
    let full = endpoint
        .post_send(endpoint.reg_msgs(*b"too much").unwrap())
        .unwrap_err();
    assert_eq!(full.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(&*full.value.unwrap(), b"too much");
    let done = server.recv_comp().unwrap();
    assert_eq!(
        (done.received().unwrap(), done.imm_data()),
        (&b"inline"[..], Some(7))
    );
}

#[test]
fn connect_rejected_has_private_data_of_the_peer() {
    let (listener, addr) = listen();
    let server: JoinHandle<()> = thread::spawn(move || {
        let incoming = listener.request().unwrap();
        assert!(incoming.param().private_data.starts_with(b"let me in\0"));
        incoming.reject(b"full").unwrap();
    });
    let param = ConnParam::new().private_data(*b"let me in");
    let err = builder().param(param).connect(addr).unwrap_err();
    server.join().unwrap();
    assert_eq!(err.kind(), ErrorKind::ConnectionRefused);
    let Some(ConnectFailure::Rejected {
        reason: 28,
        private_data,
    }) = ConnectFailure::of(&err)
    else {
        panic!("{err:?}")
    };
    assert!(private_data.starts_with(b"full\0"));
}

#[test]
fn connect_without_listener_is_refused_and_without_route_unreachable() {
    let mut addr = local();
    addr.set_port(9);
    let err = builder().connect(addr).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::ConnectionRefused);
    assert!(err.to_string().contains("no listener there"), "{err}");
    let err = builder().connect("203.0.113.1:9").unwrap_err();
    assert_eq!(err.call(), "rdma_resolve_addr");
    assert!(err.to_string().contains("203.0.113.1:9"), "{err}");
    let err = builder().connect("no port").unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
}

#[test]
fn every_blocking_call_times_out() {
    let short = Duration::from_millis(50);
    let choices = EndpointBuilder::new().timeout(short);
    let listener = choices.listen(local()).unwrap();
    let err = listener.request().map(drop).unwrap_err();
    assert_eq!(
        (err.call(), err.kind()),
        ("rdma_get_request", ErrorKind::TimedOut)
    );
    assert!(listener.request_timeout(short).unwrap().is_none());
    // No accept.
    let addr = listener.local_addr().unwrap();
    let outgoing = EndpointBuilder::new().timeout(Duration::from_secs(1));
    // On a slow machine, the resolution may take the time.
    let mut errors = (0..20).map(|_| outgoing.connect(addr).unwrap_err());
    let err = errors.find(|err| err.call() == "rdma_connect").unwrap();
    assert_eq!(err.kind(), ErrorKind::TimedOut);

    let (mut active, _passive) = pair();
    active.set_timeout(Some(short));
    let err = active.recv_comp().map(drop).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::TimedOut);
    let err = active.send_comp().map(drop).unwrap_err();
    assert_eq!(
        (err.call(), err.kind()),
        ("rdma_get_send_comp", ErrorKind::TimedOut)
    );
}

#[test]
fn listener_is_shared_by_threads_and_connections_share_memory() {
    let (listener, addr) = listen();
    let endpoints = thread::scope(|scope| {
        let servers = [0, 1].map(|_| scope.spawn(|| listener.accept().unwrap()));
        let clients = [0, 1].map(|_| builder().connect(addr).unwrap());
        let servers = servers.map(|server| server.join().unwrap());
        (servers, clients)
    });
    let ([first, second], clients) = endpoints;
    assert_eq!(first.pd().as_raw(), second.pd().as_raw());
    assert_ne!(clients[0].pd().as_raw(), clients[1].pd().as_raw());
    let shared = builder().pd(clients[0].pd()).prepare(addr).unwrap();
    assert_eq!(shared.pd().as_raw(), clients[0].pd().as_raw());
}

#[test]
fn endpoint_into_parts_keeps_the_connection() {
    let (active, mut passive) = pair();
    let (mut connection, mut send_cq, _recv_cq, channel) = active.into_parts();
    let pd = connection.qp().pd().clone();
    let hello = pd.register_buf(*b"by hand").unwrap();
    connection.qp_mut().post(op::Send::new(hello)).unwrap();
    let wc = send_cq.wait(Some(TEST_TIMEOUT)).unwrap().next().unwrap();
    assert!(connection.qp_mut().complete(wc).is_ok());
    assert_eq!(receive(&mut passive), b"by hand");
    assert!(channel.try_next().unwrap().is_none());
}

#[test]
fn endpoint_dropped_disconnects() {
    let (active, mut passive) = pair();
    drop(active);
    let flushed = passive.recv_comp().unwrap();
    assert_eq!(flushed.status(), WcStatus::WR_FLUSH_ERR);
}

fn datagrams(addr: SocketAddr) {
    let mut server = builder().bind(addr).unwrap();
    server.set_private_data(*b"a server").unwrap();
    let refused = server.set_private_data([0; 137]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`DatagramEndpoint::set_private_data` failed: 137 bytes of private data, and at most 136 here; send the rest in \
         messages"
    );
    let at = server.local_addr().unwrap();
    server
        .post_recv(server.reg_msgs([0; GRH_LEN + 64]).unwrap())
        .unwrap();
    let served = thread::spawn(move || {
        let done = server.recv_comp().unwrap();
        let text = done.received().unwrap()[GRH_LEN..].to_vec();
        (done.src_qp().unwrap(), text)
    });
    let mut client = builder().bind(addr).unwrap();
    let peer = client.resolve(at, b"").unwrap();
    client
        .post_ud_send(client.reg_msgs(*b"hello").unwrap(), &peer)
        .unwrap();
    client.send_comp().unwrap().ok().unwrap();
    let (from, text) = served.join().unwrap();
    assert_eq!(text, b"hello");
    assert_eq!(from, client.qp_mut().qp_num());
}

#[test]
fn datagram_endpoint_sends_to_an_address() {
    datagrams(local());
}

#[test]
fn datagram_endpoint_sends_to_an_ipv6_address() {
    datagrams(SocketAddr::new(local_v6(), 0));
}

#[test]
fn datagram_endpoint_joins_and_leaves_groups() {
    let group: SocketAddr = "239.1.2.9:7174".parse().unwrap();
    let mut member = builder().bind(local()).unwrap();
    let mut sender = builder().bind(local()).unwrap();
    member.join(group, Membership::Full).unwrap();
    let all = sender.join(group, Membership::Full).unwrap();
    member
        .post_recv(member.reg_msgs([0; GRH_LEN + 64]).unwrap())
        .unwrap();
    sender
        .post_ud_send(sender.reg_msgs(*b"all of you").unwrap(), &all)
        .unwrap();
    let done = member.recv_comp().unwrap();
    assert_eq!(&done.received().unwrap()[GRH_LEN..], b"all of you");
    member.leave(group).unwrap();
    let err = member.leave(group).unwrap_err();
    assert!(
        err.to_string().contains("not a member of 239.1.2.9"),
        "{err}"
    );
}

#[test]
fn datagram_endpoint_on_unspecified_address_fails() {
    let err = DatagramEndpoint::bind("0.0.0.0:0").unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    assert!(err.to_string().contains("0.0.0.0:0"), "{err}");
    let mut silent = builder().bind(local()).unwrap();
    silent.set_timeout(Some(Duration::from_millis(50)));
    let err = silent.recv_comp().map(drop).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::TimedOut);
}
