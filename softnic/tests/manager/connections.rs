//! States of a connection: events of both sides, and attributes of the queue pairs.

use softnic::{
    cm::{ConnParam, Message, Occurrence, PortSpace, Reject},
    engine::{AttributeMask, State},
};

use crate::wire::{ADDRS, PORT, Wire, param};

#[test]
fn request_reply_and_rtu_carry_parameters_and_data() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let (passive, requested, data) = wire.request();
    // The reads initiated by one side are the reads accepted by the other.
    let expected = ConnParam {
        initiator_depth: 4,
        responder_resources: 8,
        ..param(17)
    };
    assert_eq!(requested, expected);
    assert_eq!(data.as_slice().len(), 56);
    assert!(data.as_slice().starts_with(b"hello\0"));
    let (local, peer) = wire.managers[1].addrs(passive);
    assert_eq!(local, Some((ADDRS[1], PORT).into()));
    assert_eq!(peer, wire.managers[0].addrs(active).0);
    wire.accept(passive);
    let Occurrence::ConnectResponse {
        param: answer,
        private_data,
        ..
    } = wire.next(0).what
    else {
        unreachable!("no response")
    };
    assert_eq!((answer.qp_num, answer.rnr_retry_count), (18, 6));
    assert_eq!(private_data.as_slice().len(), 196);
    assert!(private_data.as_slice().starts_with(b"welcome\0"));
    assert!(wire.managers[1].note_established(active).is_err());
    wire.managers[0].establish(active).unwrap();
    assert_eq!(wire.next(1).what, Occurrence::Established);
    assert!(wire.managers[0].establish(active).is_err(), "once");
}

#[test]
fn both_ends_bring_their_queue_pairs_up_for_each_other() {
    let mut wire = Wire::new();
    let (active, passive) = wire.connected();
    let attributes = |host: usize, id, to| wire.managers[host].qp_attributes(id, to).unwrap();
    let (a, mask) = attributes(0, active, State::Rtr);
    let (b, _) = attributes(1, passive, State::Rtr);
    assert!(mask.contains(AttributeMask::PATH | AttributeMask::DEST_QP | AttributeMask::MTU));
    assert_eq!((a.dest_qp, b.dest_qp), (18, 17));
    assert_eq!((a.rq_psn, b.rq_psn), (b.sq_psn, a.sq_psn));
    assert_eq!(
        (a.path.unwrap().dst, b.path.unwrap().dst),
        (ADDRS[1].into(), ADDRS[0].into())
    );
    let (a, mask) = attributes(0, active, State::Rts);
    let (b, _) = attributes(1, passive, State::Rts);
    assert!(mask.contains(AttributeMask::SQ_PSN | AttributeMask::TIMEOUT));
    // The passive side's reply sets the limits of both sides.
    assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic), (4, 8));
    assert_eq!((b.max_rd_atomic, b.max_dest_rd_atomic), (8, 4));
    assert_eq!((a.retry_count, a.rnr_retry), (5, 6));
    assert_eq!((b.retry_count, b.rnr_retry), (5, 6));
    let (init, mask) = attributes(1, passive, State::Init);
    assert!(mask.contains(AttributeMask::ACCESS) && init.access.0 == 0x30e);
}

#[test]
fn peer_is_unknown_before_it_answers() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    assert!(wire.managers[0].qp_attributes(active, State::Init).is_ok());
    assert!(wire.managers[0].qp_attributes(active, State::Rtr).is_err());
}

#[test]
fn disconnect_request_notifies_the_peer_and_waits_for_its_reply() {
    let mut wire = Wire::new();
    let (active, passive) = wire.connected();
    wire.disconnect(0, active);
    assert_eq!(wire.next(1).what, Occurrence::Disconnected(0));
    assert!(wire.events[0].is_empty(), "the peer has not agreed");
    wire.disconnect(1, passive);
    assert_eq!(wire.next(0).what, Occurrence::Disconnected(0));
    for host in [0, 1] {
        assert_eq!(wire.next(host).what, Occurrence::TimewaitExit);
    }
    wire.run();
    assert!(wire.events.iter().all(Vec::is_empty));
}

#[test]
fn both_ends_can_disconnect_at_once() {
    let mut wire = Wire::new();
    let (active, passive) = wire.connected();
    wire.disconnect(0, active);
    wire.disconnect(1, passive);
    for host in [0, 1] {
        assert_eq!(wire.next(host).what, Occurrence::Disconnected(0));
    }
    wire.disconnect(0, active);
    wire.disconnect(1, passive);
    for host in [0, 1] {
        assert_eq!(wire.next(host).what, Occurrence::TimewaitExit);
    }
    wire.run();
    assert!(wire.events.iter().all(Vec::is_empty));
}

#[test]
fn destroying_an_end_disconnects_the_other() {
    let mut wire = Wire::new();
    let (active, passive) = wire.connected();
    wire.destroy(0, active);
    assert_eq!(wire.next(1).what, Occurrence::Disconnected(0));
    wire.destroy(1, passive);
    wire.run();
    assert!(wire.events.iter().all(Vec::is_empty));
}

#[test]
fn refusal_carries_its_reason_and_data() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    wire.asking();
    let (passive, ..) = wire.request();
    let now = wire.now;
    wire.managers[1]
        .reject(passive, Reject::CONSUMER, b"not today", now)
        .unwrap();
    let Occurrence::Rejected {
        reason,
        private_data,
    } = wire.next(0).what
    else {
        unreachable!("no refusal")
    };
    assert_eq!((reason, private_data.as_slice().len()), (28, 148));
    assert!(private_data.as_slice().starts_with(b"not today\0"));
    let again = wire.managers[1].reject(passive, Reject::CONSUMER, b"", now);
    assert!(again.is_err());
}

#[test]
fn service_without_listener_is_refused() {
    let mut wire = Wire::new();
    wire.asking();
    let refused = wire.next(0).what;
    assert!(matches!(refused, Occurrence::Rejected { reason: 8, .. }));
    // Datagrams at the same port are a separate service.
    wire.listen(PortSpace::Udp, 8);
    wire.asking();
    let refused = wire.next(0).what;
    assert!(matches!(refused, Occurrence::Rejected { reason: 8, .. }));
}

#[test]
fn destroying_a_listener_refuses_the_requests_that_wait() {
    let mut wire = Wire::new();
    let listener = wire.listen(PortSpace::Tcp, 8);
    let asking = [wire.asking(), wire.asking()];
    wire.run_to(wire.now);
    wire.destroy(1, listener);
    for _ in asking {
        let refused = wire.next(0).what;
        assert!(
            matches!(refused, Occurrence::Rejected { reason: 28, .. }),
            "{refused:?}"
        );
    }
}

#[test]
fn timed_out_peer_is_not_accepted() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let (passive, ..) = wire.request();
    wire.destroy(0, active);
    wire.run();
    assert!(
        wire.events[1].is_empty(),
        "the program has not accepted yet"
    );
    let now = wire.now;
    assert!(
        wire.managers[1]
            .accept(passive, param(18), b"", now)
            .is_err()
    );
    assert!(
        wire.managers[1]
            .qp_attributes(passive, State::Init)
            .is_err()
    );
}

#[test]
fn reply_that_is_refused_fails_the_passive_end() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.next(0);
    wire.destroy(0, active);
    let refused = wire.next(1).what;
    assert!(
        matches!(refused, Occurrence::Rejected { reason: 28, .. }),
        "{refused:?}"
    );
}

#[test]
fn disconnect_for_another_queue_pair_is_ignored() {
    let mut wire = Wire::new();
    let (_active, passive) = wire.connected();
    let sent = wire.sent.iter().find_map(|(_, message)| match message {
        Message::Ready(ids) => Some(*ids),
        _ => None,
    });
    let message = Message::Disconnect(sent.unwrap(), 99).encode(1);
    let (from, to) = (ADDRS[0].into(), ADDRS[1].into());
    let now = wire.now;
    wire.managers[1].handle_message(from, to, &message, now);
    wire.run();
    assert!(wire.events[1].is_empty());
    assert!(wire.managers[1].qp_attributes(passive, State::Rts).is_ok());
}

#[test]
fn late_copy_of_a_request_makes_no_new_connection() {
    let mut wire = Wire::new();
    let (active, passive) = wire.connected();
    let request = wire.sent.iter().find_map(|(_, message)| match message {
        Message::Request(_) => Some(message.encode(1)),
        _ => None,
    });
    wire.destroy(1, passive);
    wire.destroy(0, active);
    wire.run();
    wire.events = Default::default();
    wire.sent.clear();
    let (from, to) = (ADDRS[0].into(), ADDRS[1].into());
    let now = wire.now;
    wire.managers[1].handle_message(from, to, &request.unwrap(), now);
    wire.run();
    assert!(wire.events[1].is_empty(), "{:?}", wire.events[1]);
    let is_stale = |message: &Message| match message {
        Message::Reject(reject) => reject.reason == Reject::STALE,
        _ => false,
    };
    assert_eq!(wire.count(1, is_stale), 1);
}

#[test]
fn reads_in_flight_are_those_of_the_device_and_of_the_peer() {
    let all = |qp_num| ConnParam {
        responder_resources: ConnParam::DEVICE_MAX,
        initiator_depth: ConnParam::DEVICE_MAX,
        ..param(qp_num)
    };
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.resolved(PortSpace::Tcp);
    let now = wire.now;
    let requested = ConnParam {
        responder_resources: 3,
        ..all(17)
    };
    wire.managers[0]
        .connect(active, requested, b"", now)
        .unwrap();
    let (passive, received, _) = wire.request();
    assert_eq!(
        (received.initiator_depth, received.responder_resources),
        (3, 128)
    );
    wire.managers[1].accept(passive, all(18), b"", now).unwrap();
    wire.next(0);
    let attributes = |host: usize, id, to| wire.managers[host].qp_attributes(id, to).unwrap().0;
    assert_eq!(attributes(1, passive, State::Rts).max_rd_atomic, 3);
    assert_eq!(attributes(1, passive, State::Rtr).max_dest_rd_atomic, 128);
    assert_eq!(attributes(0, active, State::Rts).max_rd_atomic, 128);
    assert_eq!(attributes(0, active, State::Rtr).max_dest_rd_atomic, 3);
}

#[test]
fn private_data_beyond_their_field_are_refused() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.resolved(PortSpace::Tcp);
    let now = wire.now;
    let manager = &mut wire.managers[0];
    assert!(manager.connect(active, param(17), &[0; 57], now).is_err());
    manager.connect(active, param(17), &[0; 56], now).unwrap();
    let (passive, ..) = wire.request();
    let manager = &mut wire.managers[1];
    assert!(manager.accept(passive, param(18), &[0; 197], now).is_err());
    assert!(
        manager
            .reject(passive, Reject::CONSUMER, &[0; 149], now)
            .is_err()
    );
    manager.accept(passive, param(18), &[0; 196], now).unwrap();
}
