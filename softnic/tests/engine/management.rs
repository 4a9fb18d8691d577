//! Queue pair 1: accepted frames, and the bound of its receive queue.

use std::time::Duration;

use softnic::{
    engine::{Engine, MANAGEMENT_LEN, Path},
    wire::{Deth, Frame},
};

use crate::shadow::Shadow;

const ADDRS: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

/// The frame of a datagram from the first host to the second.
fn frame() -> Vec<u8> {
    let mut sender = Engine::new([ADDRS[0].into()], 1);
    let path = Path::new(ADDRS[0].into(), ADDRS[1].into());
    sender.send_management(path, [7; MANAGEMENT_LEN]);
    let mut bytes = Vec::new();
    assert!(sender.transmit(Duration::ZERO, &mut Shadow::new(8), &mut bytes));
    bytes
}

#[test]
fn datagrams_reach_the_manager_of_the_peer() {
    let mut engine = Engine::new([ADDRS[1].into()], 2);
    engine.handle_frame(&frame(), Duration::ZERO, &mut Shadow::new(8));
    let datagram = engine.poll_management().unwrap();
    assert_eq!(
        (datagram.from, datagram.to),
        (ADDRS[0].into(), ADDRS[1].into())
    );
    assert_eq!(datagram.bytes, [7; MANAGEMENT_LEN]);
    assert_eq!(
        (engine.poll_management(), engine.dropped_frames()),
        (None, 0)
    );
}

#[test]
fn other_keys_lengths_and_hosts_are_dropped() {
    let bytes = frame();
    let right = Frame::decode(&bytes).unwrap();
    assert_eq!(right.extensions.deth.unwrap().qkey, 0x8001_0000);
    let mut wrong_key = right;
    wrong_key.extensions.deth = Some(Deth {
        qkey: 0x8001_0001,
        src_qp: 1,
    });
    let mut short = right;
    short.payload = &right.payload[..MANAGEMENT_LEN - 4];
    let mut engine = Engine::new([ADDRS[1].into()], 2);
    for wrong in [wrong_key, short] {
        let mut bytes = Vec::new();
        wrong.encode(&mut bytes).unwrap();
        engine.handle_frame(&bytes, Duration::ZERO, &mut Shadow::new(8));
    }
    Engine::new([ADDRS[0].into()], 1).handle_frame(&bytes, Duration::ZERO, &mut Shadow::new(8));
    assert_eq!(
        (engine.poll_management(), engine.dropped_frames()),
        (None, 2)
    );
}

#[test]
fn datagrams_that_are_not_taken_are_bounded() {
    let bytes = frame();
    let mut engine = Engine::new([ADDRS[1].into()], 2);
    for _ in 0..3000 {
        engine.handle_frame(&bytes, Duration::ZERO, &mut Shadow::new(8));
    }
    let mut accepted = 0;
    while engine.poll_management().is_some() {
        accepted += 1;
    }
    assert_eq!(accepted, 1024);
}
