//! Connection setup with rsockets and with raw peers.

use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    os::fd::AsFd,
    thread,
    time::Duration,
};

use cm::{CmId, ConnParam, ConnectResponse, Event, EventChannel};
use rsocket::{
    Family, Listener, Options, PollEntry, PollEvents, Socket, Stream, errno, poll,
    proto::{ByteOrder, ConnectData, Target},
};
use verbs::{CompletionQueue, Init, QueuePair};

use crate::{local, local_v6, probe::resolved, unresponsive_hosts::UnresponsiveHosts};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Both sides in one thread.
#[test]
fn connected_streams_agree_on_addresses() {
    for any in [local(), local_v6()] {
        let listener = Listener::bind(any).unwrap();
        for options in [Options::new(), Options::new().source(any)] {
            let mut client = options.connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, peer) = listener.accept().unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            assert_eq!(peer.ip(), any.ip());
            assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
            assert_eq!(server.local_addr().unwrap(), listener.local_addr().unwrap());
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
    }
}

/// A queue pair without an rsocket.
struct Raw {
    channel: EventChannel,
    qp: QueuePair<verbs::Rc, Init>,
    _cq: CompletionQueue,
}

pub(crate) fn raw_qp<P: cm::phases::HasDevice>(
    id: &CmId<P>,
) -> (QueuePair<verbs::Rc, Init>, CompletionQueue) {
    let ctx = id.context().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq_builder(16).create().unwrap();
    let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
    (id.init_qp(qp).unwrap(), cq)
}

/// Requests a connection like an rsocket and stops after the reply.
fn request_connection(addr: SocketAddr, data: &[u8]) -> (Raw, ConnectResponse) {
    let (channel, id) = resolved(addr);
    let (qp, cq) = raw_qp(&id);
    let param = ConnParam::new().private_data(data).rnr_retry_count(7);
    id.connect(&qp, &param).unwrap();
    let Event::ConnectResponse(response) = channel.wait().unwrap() else {
        unreachable!("refused");
    };
    let raw = Raw {
        channel,
        qp,
        _cq: cq,
    };
    (raw, response)
}

pub(crate) fn data() -> ConnectData {
    let buf = Target {
        addr: 0x1000,
        rkey: 1,
        len: 4096,
    };
    ConnectData {
        order: ByteOrder::HOST,
        credits: 384,
        iomap_size: Some(0),
        targets: Target { len: 2, ..buf },
        first: buf,
    }
}

#[test]
fn connect_without_completed_handshake_does_not_block_others() {
    let listener = Listener::bind(local()).unwrap();
    let (raw, response) = request_connection(listener.local_addr().unwrap(), &data().encode());
    let client = Options::new()
        .connect(listener.local_addr().unwrap())
        .unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    drop((server, response));
    drop((raw.qp, raw.channel));
}

#[test]
fn connect_to_another_protocol_version_is_unsupported() {
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    id.bind(local()).unwrap();
    let id = id.listen(1).unwrap();
    let addr = id.local_addr().unwrap();
    let listening = thread::spawn(move || {
        let Event::ConnectRequest(request) = channel.wait().unwrap() else {
            unreachable!("no connection request");
        };
        let (qp, cq) = raw_qp(request.id());
        let mut answer = data().encode();
        answer[0] = 2;
        let param = ConnParam::new().private_data(answer);
        let up = request.accept(qp, &param);
        // The peer disconnects after either outcome.
        drop(channel.wait());
        drop((up, cq, id));
    });
    let client = Socket::new(Family::V4).unwrap();
    assert_eq!(errno(&client.connect(addr).unwrap_err()), 95);
    assert_eq!(client.take_error().unwrap().raw_os_error(), Some(95));
    assert_eq!(errno(&client.connect(addr).unwrap_err()), 107);
    listening.join().unwrap();
}

/// A peer without receives, whose device answers RNR forever. Neither device gives up, and no
/// event arrives.
#[test]
fn user_timeout_with_unresponsive_peer_expires() {
    let options = Options::new().user_timeout(Duration::from_secs(1));
    let listener = options.listen(local()).unwrap();
    let (raw, response) = request_connection(listener.local_addr().unwrap(), &data().encode());
    let peer = response.establish(raw.qp).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT));
    // The stream waits for acknowledgement of its credit message.
    let read = stream.read(&mut [0]);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(
        stream.write(&[0]).unwrap_err().kind(),
        ErrorKind::TimedOut,
        "it is over"
    );
    assert_eq!(errno(&stream.take_error().unwrap()), 110);
    // Closing does not wait.
    stream.set_linger(TEST_TIMEOUT);
    drop((stream, peer));
}

/// A stream with undelivered data for an unresponsive peer. Dropping the stream waits at most for its linger
/// time.
#[test]
fn drop_with_linger_blocks_only_in_foreground() {
    let options = Options::new().linger(Duration::from_secs(3600));
    let listener = options.listen(local()).unwrap();
    let unacknowledged = || {
        let (raw, response) = request_connection(listener.local_addr().unwrap(), &data().encode());
        let peer = response.establish(raw.qp).unwrap();
        let (stream, _) = listener.accept().unwrap();
        (stream, peer)
    };
    let (by_runtime, _first) = unacknowledged();
    let (by_option, _second) = unacknowledged();
    by_option.set_linger_in_background(true);
    let (by_time, _third) = unacknowledged();
    by_time.set_linger(Duration::from_millis(50));
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop(by_option);
        done.send("in the background").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        runtime.block_on(async { drop(by_runtime) });
        done.send("on a runtime's thread").unwrap();
        drop(by_time);
        done.send("beyond its linger").unwrap();
    });
    for way in [
        "in the background",
        "on a runtime's thread",
        "beyond its linger",
    ] {
        assert_eq!(
            is_done.recv_timeout(TEST_TIMEOUT),
            Ok(way),
            "drop blocks {way}"
        );
    }
}

/// Unacknowledged keepalive probes end a wait by `poll`, for the socket and for its descriptor.
#[test]
fn keepalive_with_unresponsive_peer_times_out() {
    let listener = Socket::new(Family::V4).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(8).unwrap();
    listener.set_keep_alive(true);
    listener.set_keep_idle(Duration::from_secs(1)).unwrap();
    for waits_by_descriptor in [false, true] {
        let (raw, response) = request_connection(listener.local_addr().unwrap(), &data().encode());
        let peer = response.establish(raw.qp).unwrap();
        let (socket, _) = listener.accept().unwrap();
        assert!(socket.set_keep_count(0).is_err());
        assert!(socket.set_keep_interval(Duration::ZERO).is_err());
        // Set on an established connection.
        socket.set_keep_count(2).unwrap();
        socket.set_keep_interval(Duration::from_secs(1)).unwrap();
        socket.set_nonblocking(true);
        let mut buf = [0];
        loop {
            match socket.recv(&mut buf) {
                Err(err) if err.kind() == ErrorKind::WouldBlock => {}
                ended => {
                    assert_eq!(errno(&ended.unwrap_err()), 110);
                    break;
                }
            }
            let mut entries = [if waits_by_descriptor {
                PollEntry::fd(socket.as_fd(), PollEvents::IN)
            } else {
                PollEntry::socket(&socket, PollEvents::IN)
            }];
            assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1, "hangs");
        }
        let mut entries = [PollEntry::socket(&socket, PollEvents::IN)];
        poll(&mut entries, Some(Duration::ZERO)).unwrap();
        // The receive has reported the error.
        assert_eq!(entries[0].ready(), PollEvents::IN | PollEvents::HUP);
        assert_eq!(socket.recv(&mut [0]).unwrap(), 0);
        assert_eq!(errno(&socket.send(b"x").unwrap_err()), 32);
        drop((socket, peer));
    }
}

/// An absent host, and an address without a route.
#[test]
fn connect_to_absent_host_reports_unreachable() {
    let unroutable: SocketAddr = "203.0.113.1:7".parse().unwrap();
    let unresponsive_hosts = UnresponsiveHosts::new();
    for (addr, expected) in [(unroutable, 101), (unresponsive_hosts.host(), 110)] {
        let failed = Stream::connect(addr).unwrap_err();
        assert_eq!(errno(&failed), expected, "{addr}: {failed}");
        let socket = Socket::new(Family::V4).unwrap();
        assert_eq!(errno(&socket.connect(addr).unwrap_err()), expected);
        assert_eq!(errno(&socket.take_error().unwrap()), expected);
    }
}
