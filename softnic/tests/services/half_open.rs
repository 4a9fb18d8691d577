//! Half-open connections of a listener of `rsocket`.

use std::net::SocketAddr;

use cm::{ConnParam, Event, EventChannel};
use rsocket::proto::{ByteOrder, ConnectData, Target};
use verbs::{CompletionQueue, Init, QueuePair};

use crate::TEST_TIMEOUT;

/// A half-open connection of a stranger.
pub(crate) struct HalfOpen {
    _channel: EventChannel,
    _qp: QueuePair<verbs::Rc, Init>,
    _cq: CompletionQueue,
}

/// Requests a connection of a stream, with the private data of a stream or without.
pub(crate) fn request(source: Option<SocketAddr>, addr: SocketAddr, is_valid: bool) -> HalfOpen {
    let target = Target {
        addr: 0x1000,
        rkey: 1,
        len: 4096,
    };
    let data = ConnectData {
        order: ByteOrder::HOST,
        credits: 384,
        iomap_size: Some(0),
        targets: Target { len: 2, ..target },
        first: target,
    };
    let param = ConnParam::new().private_data(match is_valid {
        true => data.encode().to_vec(),
        false => vec![0xff; 20],
    });
    request_with(source, addr, &param)
}

/// Requests a connection, and completes no handshake.
pub(crate) fn request_with(
    source: Option<SocketAddr>,
    addr: SocketAddr,
    param: &ConnParam,
) -> HalfOpen {
    let channel = EventChannel::new().unwrap();
    let next = || channel.wait_timeout(TEST_TIMEOUT).unwrap().unwrap();
    let id = channel.create_id().unwrap();
    id.resolve_addr(source, addr, TEST_TIMEOUT).unwrap();
    let Event::AddrResolved(id) = next() else {
        unreachable!("no address");
    };
    id.resolve_route(TEST_TIMEOUT).unwrap();
    let Event::RouteResolved(id) = next() else {
        unreachable!("no route");
    };
    let ctx = id.context().unwrap();
    let cq = ctx.cq_builder(16).create().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
    let qp = id.init_qp(qp).unwrap();
    id.connect(&qp, param).unwrap();
    HalfOpen {
        _channel: channel,
        _qp: qp,
        _cq: cq,
    }
}
