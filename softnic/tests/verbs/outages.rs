//! Links that go down, killed hosts, and the books.

use std::{io, time::Duration};

use cm::{Endpoint, EndpointBuilder};
use softnic::Fabric;
use verbs::{WcStatus, attr::PortState, event::EventType, op};

use crate::end::{Connected, End, TEST_TIMEOUT};

#[test]
fn link_down_and_up_reports_port_events_and_loses_no_message() {
    let mut this = Connected::new(Fabric::new());
    let port = |ctx: &verbs::Context| ctx.query_port(1).unwrap().state();
    this.qp_b
        .post_recv(this.b.pd.alloc_buf(64).unwrap())
        .unwrap();
    this.fabric.link_down(&this.hosts[0]);
    assert_eq!(port(&this.a.ctx), PortState::DOWN);
    assert_eq!(port(&this.b.ctx), PortState::ACTIVE);
    let events = this.a.ctx.async_events().unwrap();
    let event = events.wait_timeout(TEST_TIMEOUT.unwrap()).unwrap().unwrap();
    assert_eq!(event.event_type, EventType::PORT_ERR);
    let work = this.a.filled(b"late");
    this.qp_a.post(op::Send::new(work)).unwrap();
    assert!(this.b.poll(&mut this.qp_b).is_empty());
    this.fabric.link_up(&this.hosts[0]);
    let event = events.wait_timeout(TEST_TIMEOUT.unwrap()).unwrap().unwrap();
    assert_eq!(event.event_type, EventType::PORT_ACTIVE);
    let received = this.b.reap(&mut this.qp_b, 1).pop().unwrap();
    assert_eq!(&received.buf[..received.len], b"late");
    assert_eq!(this.a.reap(&mut this.qp_a, 1)[0].status, WcStatus::SUCCESS);
}

#[test]
fn killed_host_is_silent_to_its_peers_and_fails_to_itself() {
    let mut this = Connected::new(Fabric::new());
    this.qp_b
        .post_recv(this.b.pd.alloc_buf(64).unwrap())
        .unwrap();
    this.fabric.kill(&this.hosts[1]);
    let flushed = this.b.reap(&mut this.qp_b, 1);
    assert_eq!(flushed[0].status, WcStatus::WR_FLUSH_ERR);
    let work = this.a.filled(b"lost");
    this.qp_a.post(op::Send::new(work)).unwrap();
    let failed = this.a.reap(&mut this.qp_a, 1);
    assert_eq!(failed[0].status, WcStatus::RETRY_EXC_ERR);
    // A new host takes the address over.
    let reborn = this.fabric.host("10.9.0.2".parse().unwrap());
    drop(End::new(&reborn));
}

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().timeout(Duration::from_secs(60))
}

/// Two ends of a connection between the hosts of a fabric.
fn endpoints(fabric: &Fabric) -> (softnic::Host, Endpoint, Endpoint) {
    let (client, server) = (
        fabric.host("10.9.0.1".parse().unwrap()),
        fabric.host("10.9.0.2".parse().unwrap()),
    );
    let listener = server.run(|| builder().listen("10.9.0.2:7471").unwrap());
    let accepting = server.spawn(move || {
        let mut incoming = listener.request().unwrap();
        let buf = incoming.reg_msgs([0; 64]).unwrap();
        incoming.post_recv(buf).unwrap();
        incoming.accept().unwrap()
    });
    let active = client.run(|| builder().connect("10.9.0.2:7471").unwrap());
    (server, active, accepting.join().unwrap())
}

#[test]
fn endpoint_of_a_killed_host_flushes_its_receives() {
    let fabric = Fabric::new();
    let (server, mut active, mut passive) = endpoints(&fabric);
    fabric.kill(&server);
    let flushed = server.run(|| passive.recv_comp().unwrap().status());
    assert_eq!(flushed, WcStatus::WR_FLUSH_ERR);
    // The peer gets no message, and a request to disconnect has no answer.
    let unanswered = active.disconnect().unwrap_err();
    assert_eq!(unanswered.kind(), io::ErrorKind::TimedOut, "{unanswered}");
}

#[test]
fn books_count_objects_not_destroyed() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    assert!(fabric.books().is_empty());
    let end = End::new(&host);
    let qp = end.qp();
    let expected = "10.9.0.1: 1 protection domain, 1 completion queue, 1 queue pair";
    assert_eq!(fabric.books().to_string(), expected);
    assert_eq!(fabric.books().len(), 3);
    drop(qp);
    drop(end);
    assert!(fabric.books().is_empty());
}

#[test]
#[should_panic(expected = "1 protection domain, 1 completion queue")]
fn fabric_that_is_dropped_before_its_objects_fails_the_test() {
    let fabric = Fabric::new();
    let end = End::new(&fabric.host("10.9.0.1".parse().unwrap()));
    drop(fabric);
    drop(end);
}

#[test]
fn objects_of_the_whole_process_can_be_left_alone() {
    let fabric = Fabric::new().keep_objects();
    let end = End::new(&fabric.host("10.9.0.1".parse().unwrap()));
    drop(fabric);
    drop(end);
}
