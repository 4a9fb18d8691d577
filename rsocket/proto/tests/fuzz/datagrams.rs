//! A datagram socket with arbitrary messages over UDP and to its queue pair.

use std::{net::SocketAddr, time::Duration};

use fastrand::Rng;
use rsocket_proto::datagram::{
    Exchange, Node, Operation, Origin, Route, SLOT, canonical, max_len_by_path, max_len_by_udp,
};

/// Header bytes of each message in the input: kind and length.
const HEAD: usize = 2;
const DEPTH: u16 = 4;

fn peer(byte: u8) -> SocketAddr {
    let port = u16::from(byte >> 2);
    match byte & 3 {
        0 => ([10, 9, 0, 1], port).into(),
        1 => ([0, 0, 0, 0, 0, 0xffff, 0x0a09, 1], port).into(),
        _ => ([0xfd00, 0, 0, 0, 0, 0, 0, 1], port).into(),
    }
}

/// Runs the messages of an input, each with its kind in the first byte and its length in the second.
pub(crate) fn run(input: &[u8]) {
    let mut node: Node<(), (), Vec<u8>> = Node::new(DEPTH, DEPTH);
    let mut rest = input;
    let mut now = Duration::ZERO;
    let mut queued = 0;
    while let Some((&[what, len], after)) = rest.split_first_chunk::<HEAD>() {
        let (bytes, after) = after.split_at(after.len().min(len.into()));
        rest = after;
        now += Duration::from_millis(len.into());
        let peer = peer(what >> 2);
        match what & 3 {
            0 => {
                if node.local(peer).is_none() {
                    node.add_peer(peer, (), now);
                }
                if let Ok(outcome) = node.udp_received(peer, bytes, now) {
                    let data = outcome.payload.is_some();
                    assert_eq!(outcome.answer, data);
                    let decoded = Exchange::decode(bytes, canonical(peer).ip());
                    let (header, payload) = decoded.unwrap();
                    assert_eq!(header.operation == Operation::Data, data);
                    assert!(header.qp_num > 1 && header.qp_num < 0x00ff_ffff);
                    assert_eq!(payload.len() + header.encode().len(), bytes.len());
                    if outcome.resolve {
                        node.path_resolved(peer, (len & 1 == 0).then_some(()), now);
                    }
                    if let Some(payload) = outcome.payload {
                        let arrival = node.arrived_by_udp(peer, payload.to_vec());
                        queued += usize::from(arrival.is_ok());
                    }
                }
            }
            1 => {
                let arrival = node.arrived(bytes.to_vec(), 0, 0, now);
                assert!(arrival.is_err() || Origin::decode(bytes).is_ok());
                queued += usize::from(arrival.is_ok());
            }
            2 => {
                if let Some(dequeued) = node.take() {
                    queued -= 1;
                    assert!(dequeued.message.get(dequeued.range).is_some());
                }
            }
            _ => match node.route(peer, now) {
                Some(Route::Direct { qp_num, .. }) => assert!(qp_num > 1),
                Some(Route::Exchange(())) => assert!(node.local(peer).is_some()),
                None => assert!(node.local(peer).is_none()),
            },
        }
        assert!(queued <= DEPTH.into() && node.peers() <= 256);
        assert_eq!(node.readiness().readable, queued > 0);
        assert!(max_len_by_udp(peer.ip()) < SLOT && max_len_by_path(peer.ip(), len.into()) < 256);
    }
}

/// Creates one almost valid message.
pub(crate) fn step(rng: &mut Rng) -> Vec<u8> {
    let what = rng.u8(..);
    let from = canonical(peer(what >> 2));
    let mut bytes = match what & 3 {
        0 => {
            let header = Exchange {
                operation: if rng.bool() {
                    Operation::Data
                } else {
                    Operation::Answer
                },
                qp_num: *rng.choice(&[0, 1, 7, 8, 0x00ff_ffff]).unwrap(),
                addr: from.ip(),
            };
            header.encode().to_vec()
        }
        1 => Origin(from).encode().to_vec(),
        _ => Vec::new(),
    };
    for _ in 0..rng.u8(0..20) {
        bytes.push(rng.u8(..));
    }
    let len = u8::try_from(bytes.len()).unwrap();
    [&[what, len], &bytes[..]].concat()
}
