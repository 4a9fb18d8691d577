//! Identifiers of threads on no host, such as those of an engine for all hosts.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use cm::{ConnParam, Connection, Event, EventChannel};
use softnic::Fabric;

use crate::{TEST_TIMEOUT, at, hosts};

/// Takes the next event, of this kind.
macro_rules! expect_event {
    ($channel:expr, $kind:pat => $value:expr) => {
        match $channel.wait_timeout(TEST_TIMEOUT.unwrap()).unwrap() {
            Some($kind) => $value,
            other => panic!("{other:?}"),
        }
    };
}

#[test]
fn identifier_of_a_thread_on_no_host_belongs_to_the_host_with_its_address() {
    let timeout = TEST_TIMEOUT.unwrap();
    let fabric = Fabric::new();
    let [a, b] = hosts(&fabric, 41);
    let channel = a.run(|| EventChannel::new().unwrap());
    // This thread is on no host. By default its identifiers are on the channel's host.
    let mut server = channel.create_id().unwrap();
    server.bind(at(&b, 7471)).unwrap();
    let server = server.listen(1).unwrap();
    assert_eq!(server.bound_context().unwrap().unwrap().name(), "softnic1");

    let client = channel.create_id().unwrap();
    client.resolve_addr(None, at(&b, 7471), timeout).unwrap();
    let Some(Event::AddrResolved(client)) = channel.wait_timeout(timeout).unwrap() else {
        panic!("the address is not resolved");
    };
    assert_eq!(client.context().unwrap().name(), "softnic0");

    let mut other = channel.create_id().unwrap();
    other.set_tos(32).unwrap();
    other
        .resolve_addr(Some(at(&b, 0)), at(&a, 7471), timeout)
        .unwrap();
    let Some(Event::AddrResolved(other)) = channel.wait_timeout(timeout).unwrap() else {
        panic!("the address is not resolved");
    };
    assert_eq!(other.context().unwrap().name(), "softnic1");

    // A thread on a host has only the addresses of that host.
    let mut id = a.run(|| channel.create_id().unwrap());
    let refused = id.bind(at(&b, 0)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn identifier_read_by_a_thread_during_its_events_has_no_race() {
    let timeout = TEST_TIMEOUT.unwrap();
    let fabric = Fabric::new();
    let [a, _] = hosts(&fabric, 42);
    let _entered = a.enter();
    let channel = EventChannel::new().unwrap();
    let mut server = channel.create_id().unwrap();
    server.bind(at(&a, 0)).unwrap();
    let server = server.listen(1).unwrap();
    let addr = server.local_addr().unwrap();
    let client = channel.create_id().unwrap();
    client.resolve_addr(None, addr, timeout).unwrap();
    let client = expect_event!(channel, Event::AddrResolved(id) => id);
    client.resolve_route(timeout).unwrap();
    let client = expect_event!(channel, Event::RouteResolved(id) => id);
    let ctx = client.context().unwrap();
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
    let qp = || pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
    let client_qp = client.init_qp(qp()).unwrap();
    client.connect(&client_qp, &ConnParam::new()).unwrap();
    let request = expect_event!(channel, Event::ConnectRequest(request) => request);
    let server_qp = request.id().init_qp(qp()).unwrap();
    let server_qp = request.accept(server_qp, &ConnParam::new()).unwrap();
    let response = expect_event!(channel, Event::ConnectResponse(response) => response);
    let mut client = response.establish(client_qp).unwrap();
    let id = expect_event!(channel, Event::Established(id) => id);
    let server_side = Connection::new(id, server_qp).unwrap();

    let (start, is_over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            // At least one read, ordered neither before nor after the event.
            loop {
                let id = server_side.id();
                assert_eq!(id.local_addr(), Some(addr));
                assert_eq!(id.peer_gid(), id.local_gid());
                assert!(id.bound_context().unwrap().is_some());
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        start.wait();
        client.disconnect().unwrap();
        let key = expect_event!(channel, Event::Disconnected { key, .. } => key);
        assert_eq!(key, server_side.key());
        is_over.store(true, Ordering::Relaxed);
    });
}
