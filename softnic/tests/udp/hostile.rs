//! Datagrams of a process that is no peer.

use std::net::{SocketAddr, UdpSocket};

use softnic::{
    Fabric,
    wire::{Bth, Extensions, Frame, IpHeader, Opcode, PORT},
};

use crate::{
    addr,
    end::{End, send},
    pattern,
};

/// Bytes of IP and UDP headers, which are no part of a datagram.
const HEADERS: usize = 28;

#[test]
fn datagrams_of_a_stranger_change_nothing() {
    let fabrics = [Fabric::new(), Fabric::new()];
    let hosts =
        [(1, 0), (2, 1)].map(|(host, of)| fabrics[of].host_over_udp(addr(8, host)).unwrap());
    let [mut a, mut b] = hosts.each_ref().map(End::new);
    let [mut qp_a, mut qp_b] = a.connect(&b);
    let stranger = UdpSocket::bind((addr(8, 3), 0)).unwrap();
    let to = SocketAddr::new(addr(8, 2), PORT);
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..20 {
        for _ in 0..50 {
            // Also longer than any frame, and empty.
            let len = [rng.usize(..100), rng.usize(..9000), 0][rng.usize(..3)];
            let garbage: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            stranger.send_to(&garbage, to).unwrap();
            // A frame of the peer's queue pair, but for the address of its sender.
            let forged = Frame {
                ip: IpHeader::new(addr(8, 3), addr(8, 2)).unwrap(),
                src_port: stranger.local_addr().unwrap().port(),
                udp_checksum: 0,
                bth: Bth::new(
                    Opcode::RC_SEND_ONLY,
                    qp_b.qp_num().into(),
                    rng.u32(..0x100_0000),
                ),
                extensions: Extensions::default(),
                payload: b"forged",
            };
            let mut bytes = Vec::new();
            forged.encode(&mut bytes).unwrap();
            stranger.send_to(&bytes[HEADERS..], to).unwrap();
        }
        let bytes = pattern(10_000, round);
        send((&mut a, &mut qp_a), (&mut b, &mut qp_b), &bytes);
    }
}
