//! Counterparts of the cases in `test_rdmacm.py` of pyverbs, rdma-core's test suite, with the same names.
//! `verbs/tests/pyverbs.md` has the complete list.

use std::net::SocketAddr;

use cm::{ConnParam, ConnectFailure, Connection, Event, EventChannel};
use verbs::{
    Completed, RemoteAccess, WcStatus,
    ah::{AddressVector, Addressed},
    op,
    qp::{AckTimeout, QpState},
};

use crate::{
    connections, datagrams,
    support::{self, Halfway, Side, TEST_TIMEOUT, expect_bytes, expect_event, local, next},
};

const ROUNDS: usize = 10;

/// Sends messages in both directions.
fn traffic(side: &mut Side, active: &mut Connection, passive: &mut Connection) {
    for round in 0..ROUNDS {
        let text = |from: char| format!("{from}{round}").repeat(100).into_bytes();
        // The length of a posted receive.
        connections::exchange(side, active, passive, &text('c')[..64]);
        connections::exchange(side, passive, active, &text('s')[..64]);
    }
}

#[test]
fn rdmacm_async_traffic() {
    let timeout = AckTimeout::new(21).unwrap();
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = support::listen(&channel, local());
    let Halfway {
        mut side,
        mut active,
        active_qp,
    } = Halfway::new(&channel, addr);
    active.set_ack_timeout(timeout).unwrap();
    active.connect(&active_qp, &ConnParam::new()).unwrap();
    let request = support::request(&channel);
    let passive_qp = side.qp(request.id());
    let passive_qp = request.accept(passive_qp, &ConnParam::new()).unwrap();
    let response = support::response(&channel);
    let mut active = response.establish(active_qp).unwrap();
    assert_eq!(active.qp().query().unwrap().timeout, timeout.get());
    let passive =
        expect_event!(&channel, Event::Established(id) => Connection::new(id, passive_qp));
    let mut passive = passive.unwrap();
    traffic(&mut side, &mut active, &mut passive);
    active.disconnect().unwrap();
    assert_eq!(connections::disconnected(&channel), passive.key());
}

#[test]
fn rdmacm_async_reject_traffic() {
    const WHY: &[u8] = b"connection rejected";
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = support::listen(&channel, local());
    let halfway = Halfway::new(&channel, addr);
    let connecting = halfway
        .active
        .connect(&halfway.active_qp, &ConnParam::new());
    connecting.unwrap();
    support::request(&channel).reject(WHY).unwrap();
    match next(&channel) {
        Event::ConnectFailed {
            failure: ConnectFailure::Rejected { private_data, .. },
            ..
        } => assert_eq!(&private_data[..WHY.len()], WHY),
        other => panic!("{other:?}"),
    }
}

/// The program creates the queue pair; librdmacm supplies only the attributes.
#[test]
fn rdmacm_async_traffic_external_qp() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = support::listen(&channel, local());
    let Halfway {
        mut side,
        active,
        active_qp,
    } = Halfway::new(&channel, addr);
    assert_eq!(active_qp.query().unwrap().state, QpState::INIT);
    active.connect(&active_qp, &ConnParam::new()).unwrap();
    let request = support::request(&channel);
    let qp = side.qp(request.id());
    let qp_num = qp.qp_num();
    let passive_qp = request.accept(qp, &ConnParam::new()).unwrap();
    assert_eq!(passive_qp.query().unwrap().state, QpState::RTS);
    let response = support::response(&channel);
    let mut active = response.establish(active_qp).unwrap();
    let attr = active.qp().query().unwrap();
    assert_eq!((attr.state, attr.dest_qp_num), (QpState::RTS, qp_num));
    let established =
        expect_event!(&channel, Event::Established(id) => Connection::new(id, passive_qp));
    let mut passive = established.unwrap();
    traffic(&mut side, &mut active, &mut passive);
}

#[test]
fn rdmacm_async_udp_traffic() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = datagrams::listen(&channel, local());
    let id = datagrams::resolve(&channel, addr);
    let mut client = datagrams::Side::new(&id);
    id.resolve_service(b"").unwrap();
    let request = datagrams::request(&channel);
    let mut server = datagrams::Side::new(request.id());
    let _answered = request.accept(&server.qp, b"").unwrap();
    let (_id, peer) = datagrams::service(&channel);
    let to_server = peer.destination(&client.pd).unwrap();
    for round in 0..ROUNDS {
        let text = format!("message {round}").into_bytes();
        let work = client.pd.register_buf(text.clone()).unwrap();
        client.qp.post(to_server.send(work)).unwrap();
        assert_eq!(server.receive(), text);
        let ah = server.pd.create_ah(&address_vector(&server)).unwrap();
        let work = Addressed::new(server.pd.register_buf(text.clone()).unwrap(), &ah);
        let answer = op::SendTo::new(work, client.qp.qp_num(), peer.qkey);
        server.qp.post(answer).unwrap();
        assert_eq!(client.receive(), text);
        for side in [&mut client, &mut server] {
            // The completion of a send may come after the answer.
            side.sent();
            side.make_room();
        }
    }
}

/// Route to this device.
fn address_vector(side: &datagrams::Side) -> AddressVector {
    let table = side.pd.context().query_gid_table().unwrap();
    let here = |gid: verbs::Gid| gid.to_ip() == local().ip();
    let entry = table.iter().find(|entry| here(entry.gid)).unwrap();
    AddressVector::global(1, entry.gid_index.try_into().unwrap(), entry.gid)
}

/// Sends to a group with two members, and optionally after one member has left.
fn multicast(last: u8, also_after_leaving: bool) {
    let channel = EventChannel::new().unwrap();
    let addr = SocketAddr::from(([239, 7, 7, last], 0));
    let (mut id, mut other) = (
        datagrams::resolve_addr(&channel, addr),
        datagrams::resolve_addr(&channel, addr),
    );
    let (mut from, mut to) = (datagrams::Side::new(&id), datagrams::Side::new(&other));
    let group = datagrams::join(&channel, &mut id, addr);
    let joined = datagrams::join(&channel, &mut other, addr);
    joined.attach(&mut to.qp).unwrap();
    let all = group.destination(&from.pd).unwrap();
    for round in 0..ROUNDS {
        let text = format!("to all {round}").into_bytes();
        let work = from.pd.register_buf(text.clone()).unwrap();
        from.qp.post(all.send(work)).unwrap();
        from.sent();
        assert_eq!(to.receive(), text);
        to.make_room();
    }
    joined.detach(&mut to.qp).unwrap();
    other.leave_multicast(addr).unwrap();
    if also_after_leaving {
        // The message to the group is lost, and the next one arrives.
        let work = from.pd.register_buf(*b"to nobody").unwrap();
        from.qp.post(all.send(work)).unwrap();
        let ah = from.pd.create_ah(&address_vector(&from)).unwrap();
        let work = Addressed::new(from.pd.register_buf(*b"to you").unwrap(), &ah);
        let request = op::SendTo::new(work, to.qp.qp_num(), group.qkey);
        from.qp.post(request).unwrap();
        assert_eq!(to.receive(), b"to you");
    }
    id.leave_multicast(addr).unwrap();
}

#[test]
fn rdmacm_async_multicast_traffic() {
    multicast(1, false);
}

/// The join requests a full membership; `cm` has a single call for both kinds.
#[test]
fn rdmacm_async_ex_multicast_traffic() {
    multicast(2, false);
    let channel = EventChannel::new().unwrap();
    let addr = SocketAddr::from(([239, 7, 7, 3], 0));
    let mut id = datagrams::resolve_addr(&channel, addr);
    let group = datagrams::join(&channel, &mut id, addr);
    assert_eq!((group.addr, group.qkey), (addr.into(), 0x0123_4567));
}

#[test]
fn rdmacm_async_ex_leave_multicast_traffic() {
    multicast(4, true);
}

/// A connection, and memory of the passive side accessible by the active side.
fn remote(access: RemoteAccess, run: impl Fn(&mut Side, &mut Connection, &verbs::RemoteRegion)) {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = support::listen(&channel, local());
    let (mut side, mut active, _passive) = connections::connect(&channel, addr);
    let region = side.pd.alloc_remote(64, access).unwrap();
    for _ in 0..ROUNDS {
        region.write(0, &[b's'; 64]);
        run(&mut side, &mut active, &region);
    }
}

/// Payload of the next completed request.
fn done(side: &mut Side, connection: &mut Connection) -> verbs::Buf {
    loop {
        let completions = side.cq.wait(Some(TEST_TIMEOUT)).unwrap();
        assert!(completions.len() > 0, "nothing completed");
        for wc in completions {
            assert_eq!(wc.status(), WcStatus::SUCCESS);
            if let Completed::Send(done) = connection.qp_mut().complete(wc).unwrap() {
                return done.into_work().unwrap();
            }
        }
    }
}

#[test]
fn rdmacm_async_read() {
    remote(RemoteAccess::READ, |side, active, region| {
        let work = side.pd.register_buf([b'c'; 64]).unwrap();
        let request = op::Read::new(work, region.token());
        active.qp_mut().post(request).unwrap();
        assert_eq!(&*done(side, active), &[b's'; 64]);
    });
}

#[test]
fn rdmacm_async_write() {
    remote(RemoteAccess::WRITE, |side, active, region| {
        let work = side.pd.register_buf([b'c'; 64]).unwrap();
        let request = op::Write::new(work, region.token());
        active.qp_mut().post(request).unwrap();
        done(side, active);
        expect_bytes(region, &[b'c'; 64]);
    });
}
