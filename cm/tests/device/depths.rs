//! The numbers of reads and atomics in force after a handshake, as documented by `ConnParam`.

use cm::{ConnParam, Connection, Event, EventChannel};
use verbs::{RemoteAccess, op};

use crate::support::{Halfway, expect_event, listen, local, request, response};

/// `responder_resources` and `initiator_depth` of one side.
type Choice = (u8, u8);

/// Two connected ends, the active one first.
fn connect(
    channel: &EventChannel,
    active: Choice,
    passive: Choice,
) -> (crate::support::Side, [Connection; 2]) {
    let param = |(responder_resources, initiator_depth)| {
        ConnParam::new()
            .responder_resources(responder_resources)
            .initiator_depth(initiator_depth)
    };
    let (_listener, addr) = listen(channel, local());
    let half = Halfway::new(channel, addr);
    let (side, active_qp) = (half.side, half.active_qp);
    half.active.connect(&active_qp, &param(active)).unwrap();
    let request = request(channel);
    let passive_qp = side.qp(request.id());
    let passive_qp = request.accept(passive_qp, &param(passive)).unwrap();
    let active = response(channel).establish(active_qp).unwrap();
    let passive = expect_event!(channel, Event::Established(id) => Connection::new(id, passive_qp));
    (side, [active, passive.unwrap()])
}

/// The depths in force: of the operations served, and of those of this side.
fn in_force(connection: &Connection) -> Choice {
    let attr = connection.qp().query().unwrap();
    (attr.max_dest_rd_atomic, attr.max_rd_atomic)
}

#[test]
fn depths_in_force_are_the_smaller_of_both_sides() {
    const MAX: u8 = 255;
    for (active, passive) in [
        ((MAX, MAX), (MAX, MAX)),
        ((4, 2), (MAX, MAX)),
        ((MAX, MAX), (4, 2)),
        ((8, 8), (2, 4)),
        ((2, 4), (8, 8)),
        ((4, 0), (4, 4)),
        ((4, 4), (4, 0)),
        ((0, 4), (4, 4)),
        ((4, 4), (0, 4)),
    ] {
        let channel = EventChannel::new().unwrap();
        let (side, [a, b]) = connect(&channel, active, passive);
        let attr = side.pd.context().query_device().unwrap();
        let served = |count: u8| u32::from(count).min(attr.max_qp_rd_atom());
        let local_depth = |count: u8| u32::from(count).min(attr.max_qp_init_rd_atom());
        let of_active = local_depth(active.1).min(served(passive.0));
        let of_passive = local_depth(passive.1).min(served(active.0));
        let found = [in_force(&a), in_force(&b)]
            .map(|(served, local_depth)| (u32::from(served), u32::from(local_depth)));
        let expected = [(of_passive, of_active), (of_active, of_passive)];
        assert_eq!(found, expected, "{active:?} {passive:?}");
    }
}

#[test]
fn read_after_a_handshake_without_reads_is_refused_on_both_sides() {
    for (active, passive, refusing) in [((4, 4), (0, 4), 0), ((0, 4), (4, 4), 1)] {
        let channel = EventChannel::new().unwrap();
        let (side, mut ends) = connect(&channel, active, passive);
        let region = side.pd.alloc_remote(8, RemoteAccess::READ).unwrap();
        for (index, end) in ends.iter_mut().enumerate() {
            let read = op::Read::new(side.pd.alloc_buf(8).unwrap(), region.token());
            let posted = end.qp_mut().post(read);
            if index == refusing {
                let text = posted.unwrap_err().error.to_string();
                assert!(text.contains("initiator_depth"), "{text}");
            } else {
                posted.unwrap();
            }
        }
    }
}
