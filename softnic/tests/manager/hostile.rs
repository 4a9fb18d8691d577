//! Hostile messages: a manager with live connections accepts any bytes, and a peer's messages take bounded memory.

use fastrand::Rng;
use softnic::cm::{MAD_LEN, Message, Occurrence, PortSpace};

use crate::wire::{ADDRS, Wire};

/// Number of schedules of a plain test run.
const SEEDS: u64 = 200;

/// Mutates messages exchanged by two managers, and delivers the mutants to both.
#[test]
fn changed_messages_do_no_harm_to_other_connections() {
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let mut wire = Wire::new();
        let (active, passive) = wire.connected();
        let recorded: Vec<_> = wire
            .sent
            .iter()
            .map(|(_, message)| message.encode(1))
            .collect();
        for _ in 0..200 {
            let mut bytes: [u8; MAD_LEN] = recorded[rng.usize(..recorded.len())];
            // The two connection numbers are kept, so that most messages match a connection.
            for _ in 0..rng.usize(1..6) {
                bytes[rng.usize(24 + 8..MAD_LEN)] = rng.u8(..);
            }
            bytes[17] = rng.u8(0x10..0x1b);
            let to = rng.usize(..2);
            let (src, dst) = (ADDRS[1 - to].into(), ADDRS[to].into());
            let now = wire.now;
            wire.managers[to].handle_message(src, dst, &bytes, now);
            wire.step();
        }
        for (host, id) in [(0, active), (1, passive)] {
            wire.destroy(host, id);
        }
        wire.run();
    }
}

/// A connection ignores messages from an address other than the peer's.
#[test]
fn unknown_host_cannot_end_a_connection() {
    let mut wire = Wire::new();
    wire.connected();
    let recorded: Vec<_> = wire
        .sent
        .iter()
        .map(|(_, message)| message.encode(1))
        .collect();
    wire.events = Default::default();
    for bytes in recorded {
        for attribute in 0x11..0x19 {
            let mut forged = bytes;
            forged[17] = attribute;
            for to in [0, 1] {
                let (src, dst) = ([10, 9, 0, 66].into(), ADDRS[to].into());
                let now = wire.now;
                wire.managers[to].handle_message(src, dst, &forged, now);
            }
        }
    }
    wire.step();
    assert!(wire.events.iter().all(Vec::is_empty), "{:?}", wire.events);
}

#[test]
fn requests_beyond_the_backlog_are_not_kept() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 4);
    wire.asking();
    wire.next(1);
    let request = wire.sent.iter().find_map(|(_, message)| match message {
        Message::Request(request) => Some(request.clone()),
        _ => None,
    });
    let mut request = request.unwrap();
    for number in 0..1000 {
        request.local_comm_id = 1000 + number;
        request.param.qp_num = 1000 + number;
        let bytes = Message::Request(request.clone()).encode(1);
        let now = wire.now;
        wire.managers[1].handle_message(ADDRS[0].into(), ADDRS[1].into(), &bytes, now);
    }
    wire.step();
    let is_request =
        |event: &&softnic::cm::CmEvent| matches!(event.what, Occurrence::ConnectRequest { .. });
    assert_eq!(wire.events[1].iter().filter(is_request).count(), 3);
}
