//! Extended reliable connections (XRC) between two hosts, made by `cm`.

use std::net::SocketAddr;

use cm::{CmId, ConnParam, Event, EventChannel, XrcConnection, XrcEnd, phases::RouteResolved};
use softnic::{Fabric, Host};
use verbs::{WcStatus, op, qp::XrcSend, srq::SrqNum};

use crate::{TEST_TIMEOUT, at, hosts};

/// Takes the next event of the given kind; panics on another.
macro_rules! expect_event {
    ($channel:expr, $kind:pat => $value:expr) => {
        match $channel.wait_timeout(TEST_TIMEOUT.unwrap()).unwrap() {
            Some($kind) => $value,
            other => panic!("expected {}, and {other:?} came", stringify!($kind)),
        }
    };
}

/// A sending end on a host, with the route to a peer.
fn resolved(channel: &EventChannel, host: &Host, peer: SocketAddr) -> CmId<RouteResolved> {
    let timeout = TEST_TIMEOUT.unwrap();
    let id = host.run(|| channel.create_xrc_id(XrcEnd::Send, at(host, 0)).unwrap());
    id.resolve_addr(None, peer, timeout).unwrap();
    let id = expect_event!(channel, Event::AddrResolved(id) => id);
    id.resolve_route(timeout).unwrap();
    expect_event!(channel, Event::RouteResolved(id) => id)
}

#[test]
fn xrc_connection_by_cm_delivers_to_the_named_queue_and_disconnects() {
    let fabric = Fabric::seeded(5).loss(0.02).speed(20);
    let [a, b] = hosts(&fabric, 31);
    let [ours, theirs] = [&a, &b].map(|host| host.run(|| EventChannel::new().unwrap()));
    let listener = b.run(|| theirs.create_xrc_id(XrcEnd::Receive, at(&b, 0)));
    let listener = listener.unwrap().listen(8).unwrap();

    // The sending end asks for a connection.
    let id = resolved(&ours, &a, listener.local_addr().unwrap());
    let ctx = id.context().unwrap();
    let (pd, mut cq) = (
        ctx.alloc_pd().unwrap(),
        ctx.cq_builder(8).waitable().create().unwrap(),
    );
    let qp = pd.qp_builder::<XrcSend>(&cq, &cq).max_send_wr(4).create();
    let qp = id.init_qp(qp.unwrap()).unwrap();
    id.connect(&qp, &ConnParam::new()).unwrap();

    // The receiving end accepts, and names the second of two queues.
    let request = expect_event!(theirs, Event::ConnectRequest(request) => request);
    let their_ctx = request.id().context().unwrap();
    let (their_pd, xrcd) = (
        their_ctx.alloc_pd().unwrap(),
        their_ctx.open_xrcd().unwrap(),
    );
    let mut queues = [(); 2].map(|()| {
        let cq = their_ctx.cq_builder(8).waitable().create().unwrap();
        let mut srq = their_pd.create_xrc_srq(&xrcd, &cq, 8, 1).unwrap();
        srq.post(their_pd.alloc_buf(64).unwrap()).unwrap();
        (srq, cq)
    });
    let receiver = request
        .id()
        .init_xrc_receiver(xrcd.create_qp().unwrap())
        .unwrap();
    let number = queues[1].0.srq_num().unwrap();
    let param = ConnParam::new().private_data(number.get().to_be_bytes());
    let receiver = request.accept_xrc(receiver, &param).unwrap();

    let response = expect_event!(ours, Event::ConnectResponse(response) => response);
    let number = match response.param().private_data[..] {
        [a, b, c, d, ..] => SrqNum::new(u32::from_be_bytes([a, b, c, d])).unwrap(),
        _ => panic!("no number"),
    };
    let mut connection = response.establish(qp).unwrap();
    let accepted = expect_event!(theirs, Event::Established(id) => id);
    let mut receiving = XrcConnection::new(accepted, receiver).unwrap();

    let hello = pd.register_buf(*b"hello").unwrap();
    let message = op::ToSrq::new(op::Send::new(hello), number);
    connection.qp_mut().post(message).unwrap();
    let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
    assert_eq!(wc.status(), WcStatus::SUCCESS);
    drop(connection.qp_mut().complete(wc).unwrap());
    let [(_, first), (srq, second)] = &mut queues;
    let wc = second.wait(TEST_TIMEOUT).unwrap().next().unwrap();
    let received = srq.complete(wc).unwrap();
    assert_eq!(received.received().unwrap(), b"hello");
    assert_eq!(first.poll().unwrap().count(), 0);
    drop(received);

    connection.disconnect().unwrap();
    let key = expect_event!(theirs, Event::Disconnected { key, .. } => key);
    assert_eq!(key, receiving.key());
    receiving.disconnect().unwrap();
}
