//! Making connections, with peers that are rsockets and peers that are not.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
    time::Duration,
};

use cm::{CmId, ConnParam, ConnectResponse, Event, EventChannel, phases::RouteResolved};
use rsocket::{
    Family, Listener, Options, Socket, errno,
    proto::{ByteOrder, ConnectData, Target},
};
use verbs::{CompletionQueue, Init, QueuePair, Rc};

use crate::{local, local_v6};

const TIMEOUT: Duration = Duration::from_secs(5);

/// T-CN1, T-CN6: one thread is both sides.
#[test]
fn both_sides_know_each_others_names() {
    for any in [local(), local_v6()] {
        let listener = Listener::bind(any).unwrap();
        for options in [Options::new(), Options::new().source(any)] {
            let mut client = options.connect(listener.local_addr()).unwrap();
            let (mut server, peer) = listener.accept().unwrap();
            assert_eq!(peer, client.local_addr());
            assert_eq!(peer.ip(), any.ip());
            assert_eq!(client.peer_addr(), server.local_addr());
            assert_eq!(server.local_addr(), listener.local_addr());
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
    }
}

/// A queue pair, without any rsocket.
struct Raw {
    channel: EventChannel,
    qp: QueuePair<Rc, Init>,
    _cq: CompletionQueue,
}

fn raw_qp<P: cm::phases::HasDevice>(id: &CmId<P>) -> (QueuePair<Rc, Init>, CompletionQueue) {
    let ctx = id.context().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq_builder(16).create().unwrap();
    let qp = pd.qp_builder::<Rc>(&cq, &cq).create().unwrap();
    (id.init_qp(qp).unwrap(), cq)
}

/// Asks for a connection as an rsocket does, and does no more when it is answered.
fn ask(addr: SocketAddr, data: &[u8]) -> (Raw, ConnectResponse) {
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id().unwrap();
    id.resolve_addr(None, addr, TIMEOUT).unwrap();
    let Event::AddrResolved(id) = channel.wait().unwrap() else {
        unreachable!("no way to {addr}");
    };
    id.resolve_route(TIMEOUT).unwrap();
    let Event::RouteResolved(id) = channel.wait().unwrap() else {
        unreachable!("no route to {addr}");
    };
    let id: CmId<RouteResolved> = id;
    let (qp, cq) = raw_qp(&id);
    let param = ConnParam::new().private_data(data);
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

fn data() -> ConnectData {
    let place = Target {
        addr: 0x1000,
        rkey: 1,
        len: 4096,
    };
    ConnectData {
        order: ByteOrder::HOST,
        credits: 384,
        iomap_size: Some(0),
        targets: Target { len: 2, ..place },
        first: place,
    }
}

/// T-CN7: P9.
#[test]
fn who_asks_and_stops_holds_nobody_up() {
    let listener = Listener::bind(local()).unwrap();
    let (raw, response) = ask(listener.local_addr(), &data().encode());
    let client = Options::new().connect(listener.local_addr()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr());
    drop((server, response));
    drop((raw.qp, raw.channel));
}

/// T-WP4
#[test]
fn an_answer_of_another_version_is_not_supported() {
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    id.bind(local()).unwrap();
    let id = id.listen(1).unwrap();
    let addr = id.local_addr().unwrap();
    let answers = thread::spawn(move || {
        let Event::ConnectRequest(request) = channel.wait().unwrap() else {
            unreachable!("nobody asks");
        };
        let (qp, cq) = raw_qp(request.id());
        let mut answer = data().encode();
        answer[0] = 2;
        let param = ConnParam::new().private_data(answer);
        let up = request.accept(qp, &param);
        // The peer goes away then, whatever has come of it here.
        drop(channel.wait());
        drop((up, cq, id));
    });
    let client = Socket::new(Family::V4).unwrap();
    assert_eq!(errno(&client.connect(addr).unwrap_err()), 95);
    assert_eq!(client.take_error().unwrap().raw_os_error(), Some(95));
    assert_eq!(errno(&client.connect(addr).unwrap_err()), 107);
    answers.join().unwrap();
}
