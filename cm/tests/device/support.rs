//! Shared helpers: the device's addresses, waiting for events, and the first steps of connections.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use cm::{
    CmId, ConnParam, ConnectRequest, ConnectResponse, Event, EventChannel,
    phases::{HasDevice, Listening, RouteResolved},
};
use verbs::{CompletionQueue, Context, Init, ProtectionDomain, QueuePair, RemoteRegion, Rts};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Address of the guest's RDMA device.
pub(crate) fn local() -> SocketAddr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// IPv6 address of the guest's RDMA device.
pub(crate) fn local_v6() -> IpAddr {
    let address =
        std::env::var("A6").expect("left out: the device has no IPv6 address (variable A6)");
    address.parse().unwrap()
}

/// Whether the device may deliver a write after its completion: only with rules of softnic's adversary.
fn is_late() -> bool {
    std::env::var_os("SOFTNIC_ADVERSARY").is_some()
}

/// Waits until the processor reads `expected` after a write of a peer, whose completion is that of the device only.
pub(crate) fn expect_bytes(region: &RemoteRegion, expected: &[u8]) {
    let start = Instant::now();
    let mut bytes = vec![0; expected.len()];
    region.read(0, &mut bytes);
    while bytes != expected {
        assert!(is_late(), "{bytes:?}");
        assert!(start.elapsed() < TEST_TIMEOUT, "{bytes:?}");
        thread::yield_now();
        region.read(0, &mut bytes);
    }
}

pub(crate) fn next(channel: &EventChannel) -> Event {
    channel
        .wait_timeout(TEST_TIMEOUT)
        .unwrap()
        .expect("no event came")
}

/// Takes the next event of the given kind; panics on another.
macro_rules! expect_event {
    ($channel:expr, $kind:pat => $value:expr) => {
        match $crate::support::next($channel) {
            $kind => $value,
            other => panic!("expected {}, and {other:?} came", stringify!($kind)),
        }
    };
}

pub(crate) use expect_event;

pub(crate) fn listen(channel: &EventChannel, addr: SocketAddr) -> (CmId<Listening>, SocketAddr) {
    let mut id = channel.create_id().unwrap();
    id.bind(addr).unwrap();
    let listener = id.listen(8).unwrap();
    let bound = listener.local_addr().unwrap();
    assert_ne!(bound.port(), 0);
    (listener, bound)
}

pub(crate) fn resolve(channel: &EventChannel, addr: SocketAddr) -> CmId<RouteResolved> {
    channel
        .create_id()
        .unwrap()
        .resolve_addr(None, addr, TEST_TIMEOUT)
        .unwrap();
    let id = expect_event!(channel, Event::AddrResolved(id) => id);
    id.resolve_route(TEST_TIMEOUT).unwrap();
    expect_event!(channel, Event::RouteResolved(id) => id)
}

/// Resources of a queue pair.
pub(crate) struct Side {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
}

impl Side {
    pub(crate) fn new(ctx: &Context) -> Self {
        let cq = ctx.cq_builder(64).waitable().create().unwrap();
        Self {
            pd: ctx.alloc_pd().unwrap(),
            cq,
        }
    }

    pub(crate) fn qp<P: HasDevice>(&self, id: &CmId<P>) -> QueuePair<verbs::Rc, Init> {
        let qp = self
            .pd
            .qp_builder(&self.cq, &self.cq)
            .max_send_wr(4)
            .max_recv_wr(4);
        id.init_qp(qp.create().unwrap()).unwrap()
    }
}

/// Both ends of a connection during setup.
pub(crate) struct Halfway {
    pub(crate) side: Side,
    pub(crate) active: CmId<RouteResolved>,
    pub(crate) active_qp: QueuePair<verbs::Rc, Init>,
}

impl Halfway {
    pub(crate) fn new(channel: &EventChannel, addr: SocketAddr) -> Self {
        let active = resolve(channel, addr);
        let side = Side::new(&active.context().unwrap());
        let active_qp = side.qp(&active);
        Self {
            side,
            active,
            active_qp,
        }
    }
}

pub(crate) fn request(channel: &EventChannel) -> ConnectRequest {
    expect_event!(channel, Event::ConnectRequest(request) => request)
}

pub(crate) fn response(channel: &EventChannel) -> ConnectResponse {
    expect_event!(channel, Event::ConnectResponse(response) => response)
}

/// A requested connection: resources, the active queue pair, and the request.
pub(crate) fn request_data(
    channel: &EventChannel,
    addr: SocketAddr,
) -> (Side, QueuePair<verbs::Rc, Init>, ConnectRequest) {
    let Halfway {
        side,
        active,
        active_qp,
    } = Halfway::new(channel, addr);
    active.connect(&active_qp, &ConnParam::new()).unwrap();
    (side, active_qp, request(channel))
}

/// An accepted connection: resources, the active queue pair, and the passive one.
pub(crate) fn accepted(
    channel: &EventChannel,
    addr: SocketAddr,
) -> (Side, QueuePair<verbs::Rc, Init>, QueuePair<verbs::Rc, Rts>) {
    let (side, active_qp, request) = request_data(channel, addr);
    let passive_qp = side.qp(request.id());
    let passive_qp = request.accept(passive_qp, &ConnParam::new()).unwrap();
    (side, active_qp, passive_qp)
}

/// Client side of a connection.
pub(crate) type ClientSide = (Side, QueuePair<verbs::Rc, Init>);

/// A client with a reply and an incomplete handshake.
pub(crate) fn silent_client(
    channel: &EventChannel,
    addr: SocketAddr,
) -> (ClientSide, ConnectResponse) {
    let half = Halfway::new(channel, addr);
    half.active
        .connect(&half.active_qp, &ConnParam::new())
        .unwrap();
    ((half.side, half.active_qp), response(channel))
}
