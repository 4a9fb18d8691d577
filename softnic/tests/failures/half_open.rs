//! Listeners of rsockets without memory, descriptors or objects of the device for a request.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    time::Duration,
};

use cm::{ConnParam, ConnectResponse, Event, EventChannel};
use rsocket::{
    Listener, Options, Refusals,
    proto::{ByteOrder, ConnectData, Target},
};
use softnic::{Call, Fabric, Host, Limits, When};
use verbs::{CompletionQueue, Init, QueuePair};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A request for a connection, whose handshake stays incomplete.
struct Requested {
    channel: EventChannel,
    _qp: QueuePair<verbs::Rc, Init>,
    _cq: CompletionQueue,
}

fn next(channel: &EventChannel) -> Event {
    let event = channel.wait_timeout(TEST_TIMEOUT).unwrap();
    event.expect("no event in time")
}

fn request(host: &Host, addr: SocketAddr) -> Requested {
    host.run(|| {
        let channel = EventChannel::new().unwrap();
        let id = channel.create_id().unwrap();
        id.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
        let Event::AddrResolved(id) = next(&channel) else {
            unreachable!("no address");
        };
        id.resolve_route(TEST_TIMEOUT).unwrap();
        let Event::RouteResolved(id) = next(&channel) else {
            unreachable!("no route");
        };
        let ctx = id.context().unwrap();
        let cq = ctx.cq_builder(16).create().unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
        let qp = id.init_qp(qp).unwrap();
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
        let param = ConnParam::new().private_data(data.encode());
        id.connect(&qp, &param).unwrap();
        Requested {
            channel,
            _qp: qp,
            _cq: cq,
        }
    })
}

/// Requests a connection, and waits for the reply.
fn half_open(host: &Host, addr: SocketAddr) -> (ConnectResponse, Requested) {
    let requested = request(host, addr);
    match next(&requested.channel) {
        Event::ConnectResponse(response) => (response, requested),
        other => unreachable!("{other:?}"),
    }
}

/// A server, a host whose handshakes stay incomplete, and a client.
fn hosts(fabric: &Fabric) -> ([Host; 3], Listener, SocketAddr) {
    let hosts = [1, 2, 3].map(|number| fabric.host([10, 9, 0, number].into()));
    let listener = hosts[0].run(|| Listener::bind("10.9.0.1:0").unwrap());
    let addr = listener.local_addr().unwrap();
    (hosts, listener, addr)
}

/// Exchanges a byte over a new connection.
fn exchange(client: &Host, listener: &Listener, addr: SocketAddr) {
    let mut client = client.run(|| {
        let options = Options::new().connect_timeout(TEST_TIMEOUT);
        options.connect(addr).unwrap()
    });
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    server.set_read_timeout(Some(TEST_TIMEOUT));
    server.read_exact(&mut [0]).unwrap();
}

/// The objects of a request and of an established connection, each with the number of the call.
const OBJECTS: [(Call, u64, i32); 7] = [
    (Call::AllocPd, 1, libc::ENOMEM),
    (Call::CreateCompChannel, 1, libc::EMFILE),
    (Call::CreateCq, 2, libc::ENOSPC),
    (Call::CreateQp, 1, libc::EAGAIN),
    (Call::RegMr, 1, libc::ENOMEM),
    (Call::RegMr, 2, libc::ENOMEM),
    // The send buffer.
    (Call::RegMr, 3, libc::ENOMEM),
];

#[test]
fn connect_without_memory_of_the_listener_displaces_half_open_connection() {
    let fabric = Fabric::new().keep_objects();
    let ([server, flood, client], listener, addr) = hosts(&fabric);
    let mut half_opened = vec![half_open(&flood, addr)];
    for (displaced, (call, number, errno)) in (1..).zip(OBJECTS) {
        half_opened.push(half_open(&flood, addr));
        half_opened.push(half_open(&flood, addr));
        let failing = server.fail(call, When::Nth(number), errno);
        exchange(&client, &listener, addr);
        assert_eq!(failing.failed(), 1, "{call}");
        let refusals = listener.refusals();
        assert_eq!(
            (refusals.displaced, refusals.failed),
            (displaced, 0),
            "{call}"
        );
    }
}

/// Nothing can be displaced for the request, which waits for memory.
#[test]
fn connect_without_memory_of_the_listener_waits() {
    let fabric = Fabric::new().keep_objects();
    let ([server, _, client], listener, addr) = hosts(&fabric);
    for (call, number, errno) in OBJECTS.into_iter().take(6) {
        let failing = server.fail(call, When::Nth(number), errno);
        exchange(&client, &listener, addr);
        assert_eq!(failing.failed(), 1, "{call}");
    }
    assert_eq!(listener.refusals(), Refusals::default());
}

/// A server with the limits of a service, each reached before the backlog of 128, and a flood of one host that completes
/// no handshake.
#[test]
fn connect_to_listener_with_limits_succeeds_during_a_flood() {
    let limits = [
        // Some sixteen half-open connections with their queues.
        Limits::new().locked_memory(2 << 20),
        Limits::new().descriptors(24),
        Limits::new().queue_pairs(16),
        Limits::new().completion_queues(32),
        Limits::new().memory_regions(32),
        Limits::new().protection_domains(16),
    ];
    for limits in limits {
        let fabric = Fabric::new().keep_objects();
        let ([server, flood, client], listener, addr) = hosts(&fabric);
        server.set_limits(limits);
        let _half_open = [(); 8].map(|()| half_open(&flood, addr));
        let mut requested = Vec::new();
        for _ in 0..10 {
            requested.extend((0..4).map(|_| request(&flood, addr)));
            exchange(&client, &listener, addr);
        }
        let Refusals {
            displaced, failed, ..
        } = listener.refusals();
        assert!(
            displaced > 0 && failed == 0,
            "{displaced}, {failed}: {limits:?}"
        );
    }
}
