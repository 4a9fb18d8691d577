//! Messages between queue pairs of two fabrics, and properties of their sockets.

use std::{fs, io::ErrorKind};

use softnic::{
    Fabric,
    wire::{Frame, PORT},
};
use verbs::{WcStatus, op};

use crate::{
    addr,
    end::{End, send},
    pattern,
};

#[test]
fn messages_of_several_packets_pass_in_both_directions() {
    let fabrics = [Fabric::new(), Fabric::new()];
    let hosts =
        [(1, 0), (2, 1)].map(|(host, of)| fabrics[of].host_over_udp(addr(1, host)).unwrap());
    let [mut a, mut b] = hosts.each_ref().map(End::new);
    let [mut qp_a, mut qp_b] = a.connect(&b);
    for (seed, len) in (0..).zip([1, 4096, 4097, 100_000]) {
        let bytes = pattern(len, seed);
        send((&mut a, &mut qp_a), (&mut b, &mut qp_b), &bytes);
        send((&mut b, &mut qp_b), (&mut a, &mut qp_a), &bytes);
    }
}

#[test]
fn lost_frames_are_sent_again() {
    let fabrics = [1, 2].map(|seed| Fabric::seeded(seed).loss(0.05));
    let hosts =
        [(1, 0), (2, 1)].map(|(host, of)| fabrics[of].host_over_udp(addr(2, host)).unwrap());
    let [mut a, mut b] = hosts.each_ref().map(End::new);
    let [mut qp_a, mut qp_b] = a.connect(&b);
    for seed in 0..10 {
        let bytes = pattern(50_000, seed);
        send((&mut a, &mut qp_a), (&mut b, &mut qp_b), &bytes);
    }
    assert!(fabrics[0].traffic().lost > 0);
}

#[test]
fn requests_to_a_peer_that_is_gone_fail() {
    let fabrics = [Fabric::new(), Fabric::new().keep_objects()];
    let hosts =
        [(1, 0), (2, 1)].map(|(host, of)| fabrics[of].host_over_udp(addr(3, host)).unwrap());
    let [mut a, b] = hosts.each_ref().map(End::new);
    let [mut qp_a, qp_b] = a.connect(&b);
    let [_, second] = fabrics;
    drop(second);
    let message = a.pd.register_buf([1; 100]).unwrap();
    qp_a.post(op::Send::new(message)).unwrap();
    let (status, _) = a.reap(&mut qp_a);
    assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    drop(qp_b);
}

#[test]
fn recording_has_frames_of_both_directions_as_on_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.pcap");
    let fabrics = [Fabric::new().record_to(&path).unwrap(), Fabric::new()];
    let hosts =
        [(1, 0), (2, 1)].map(|(host, of)| fabrics[of].host_over_udp(addr(4, host)).unwrap());
    let [mut a, mut b] = hosts.each_ref().map(End::new);
    let [mut qp_a, mut qp_b] = a.connect(&b);
    send((&mut a, &mut qp_a), (&mut b, &mut qp_b), b"to the peer");
    send((&mut b, &mut qp_b), (&mut a, &mut qp_a), b"to this one");
    let file = fs::read(&path).unwrap();
    let mut rest = &file[24..];
    let mut directions = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let [.., a, b, c, d] = *header;
        let len = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap();
        let frame = Frame::decode(&after[..len]).unwrap();
        assert_eq!(frame.src_port, PORT);
        directions.push((frame.ip.src(), frame.payload.to_vec()));
        rest = &after[len..];
    }
    for (host, payload) in [(1, "to the peer"), (2, "to this one")] {
        let expected = (addr(4, host), payload.as_bytes().to_vec());
        assert!(directions.contains(&expected), "{directions:?}");
    }
}

#[test]
fn address_of_one_host_is_refused_to_another_and_free_after_the_fabric() {
    let (first, second) = (Fabric::new(), Fabric::new());
    let host = first.host_over_udp(addr(5, 1)).unwrap();
    let refused = second.host_over_udp(addr(5, 1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse, "{refused}");
    drop(host);
    drop(first);
    // The receiving thread of the first host ends at once, and the socket with the thread.
    let mut again = second.host_over_udp(addr(5, 1));
    while again
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    {
        std::thread::yield_now();
        again = second.host_over_udp(addr(5, 1));
    }
    again.unwrap();
}

#[test]
fn manual_fabric_and_address_of_another_machine_are_refused() {
    let manual = Fabric::manual(7).host_over_udp(addr(6, 1)).unwrap_err();
    assert_eq!(manual.kind(), ErrorKind::InvalidInput, "{manual}");
    let foreign = Fabric::new()
        .host_over_udp([203, 0, 113, 9].into())
        .unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable, "{foreign}");
}
