//! Services of datagrams.

use softnic::cm::{IdNum, Occurrence, PortSpace};

use crate::wire::{ADDRS, Wire};

fn ask(wire: &mut Wire) -> IdNum {
    let id = wire.resolved(PortSpace::Udp);
    let now = wire.now;
    wire.managers[0].resolve_service(id, b"who", now).unwrap();
    id
}

fn question(wire: &mut Wire) -> IdNum {
    match wire.next(1).what {
        Occurrence::ServiceRequest {
            child,
            private_data,
        } => {
            assert_eq!(private_data.as_slice().len(), 180);
            assert!(private_data.as_slice().starts_with(b"who\0"));
            assert!(wire.managers[1].take_request(child));
            child
        }
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn peer_names_its_queue_pair() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Udp, 8);
    ask(&mut wire);
    let child = question(&mut wire);
    wire.managers[1].accept_service(child, 99, b"I").unwrap();
    let Occurrence::ServiceResolved {
        path,
        qp_num,
        qkey,
        private_data,
    } = wire.next(0).what
    else {
        unreachable!("no answer")
    };
    assert_eq!((path.dst, qp_num, qkey), (ADDRS[1].into(), 99, 0x0123_4567));
    assert_eq!(private_data.as_slice().len(), 136);
    let twice = wire.managers[1].accept_service(child, 99, b"");
    assert!(twice.is_err(), "once");
}

#[test]
fn refusals_have_positive_statuses() {
    let mut wire = Wire::new();
    ask(&mut wire);
    let absent = wire.next(0).what;
    assert!(
        matches!(absent, Occurrence::Unreachable { status: 1, .. }),
        "{absent:?}"
    );
    wire.listen(PortSpace::Udp, 8);
    ask(&mut wire);
    let child = question(&mut wire);
    wire.destroy(1, child);
    let refused = wire.next(0).what;
    assert!(
        matches!(refused, Occurrence::Unreachable { status: 2, .. }),
        "{refused:?}"
    );
}

#[test]
fn lost_answer_is_retransmitted() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Udp, 8);
    ask(&mut wire);
    let child = question(&mut wire);
    wire.loss = 1.0;
    wire.managers[1].accept_service(child, 99, b"").unwrap();
    wire.step();
    wire.loss = 0.0;
    let answer = wire.next(0).what;
    assert!(
        matches!(answer, Occurrence::ServiceResolved { qp_num: 99, .. }),
        "{answer:?}"
    );
    wire.run();
    assert!(wire.events[1].is_empty(), "the program is asked once");
}

#[test]
fn service_request_without_answer_times_out() {
    let mut wire = Wire::new();
    wire.loss = 1.0;
    ask(&mut wire);
    let failed = wire.next(0).what;
    assert!(
        matches!(failed, Occurrence::Unreachable { status: -110, .. }),
        "{failed:?}"
    );
}
