//! Peers writing to memory of other connections.

use std::io::{ErrorKind, Read};

use rsocket::{
    Listener, Options, ProtectionGroup, Stream,
    proto::{ConnectData, Message, Target},
};

use crate::{local, probe::Probe};

const EVIL: &[u8] = b"EVIL!";
const LEN: u32 = 5;

/// A stream accepted by a listener, and its peer.
fn accepted(listener: &Listener) -> (Stream, Probe) {
    let encode = |data: ConnectData| data.encode().to_vec();
    let (probe, _) = Probe::connect(listener.local_addr().unwrap(), encode).unwrap();
    let (stream, _) = listener.accept().unwrap();
    (stream, probe)
}

#[test]
fn write_with_the_key_of_another_connection_is_refused() {
    let listener = Listener::bind(local()).unwrap();
    let (mut victim, mut honest) = accepted(&listener);
    let of_victim: [fn(&ConnectData) -> Target; 2] = [|peer| peer.first, |peer| peer.targets];
    for stolen in of_victim {
        let (mut stream, mut thief) = accepted(&listener);
        assert!(
            !thief.writes(EVIL, stolen(&honest.peer)),
            "write with a stolen key succeeded"
        );
        // The attempt breaks the attacker's own connection.
        assert_eq!(
            stream.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
    // The advertised data has not been overwritten.
    honest.send_message(Message::Data(LEN).encode());
    let mut got = [0xff; LEN as usize];
    victim.read_exact(&mut got).unwrap();
    assert_eq!(got, [0; LEN as usize]);
    honest.send_again(b"still here");
    let mut got = [0; 10];
    victim.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here");
}

/// The documented cost of a protection group.
#[test]
fn write_with_the_key_of_another_connection_of_the_group_succeeds() {
    let group = ProtectionGroup::new();
    let options = Options::new().protection_group(&group);
    let listener = options.listen(local()).unwrap();
    let (mut victim, mut honest) = accepted(&listener);
    let (_stream, mut other) = accepted(&listener);
    assert!(other.writes(EVIL, honest.peer.first));
    honest.send_message(Message::Data(LEN).encode());
    let mut got = [0; LEN as usize];
    victim.read_exact(&mut got).unwrap();
    assert_eq!(got, EVIL);
    // Another group, or none, is another protection domain.
    for options in [
        Options::new(),
        Options::new().protection_group(&ProtectionGroup::new()),
    ] {
        let listener = options.listen(local()).unwrap();
        let (_stream, mut outsider) = accepted(&listener);
        assert!(!outsider.writes(EVIL, honest.peer.first));
    }
}

/// Connecting sides are as separate as accepted ones.
#[test]
fn write_with_the_key_of_a_connecting_side_is_refused() {
    let listener = crate::probe::ListeningProbe::new();
    let mut sides = [(); 2].map(|()| {
        let addr = listener.addr();
        let connecting = std::thread::spawn(move || Stream::connect(addr).unwrap());
        let (probe, _) = listener.accept();
        (connecting.join().unwrap(), probe)
    });
    let stolen = sides[1].1.peer.first;
    assert!(!sides[0].1.writes(EVIL, stolen));
}

/// A peer cannot derive the addresses of other connections from its own.
#[test]
fn remote_addresses_are_sparse_and_not_process_addresses() {
    const APART: u64 = 1 << 32;
    let listener = Listener::bind(local()).unwrap();
    let connections: Vec<_> = (0..16).map(|_| accepted(&listener)).collect();
    let advertised =
        |(_, probe): &(Stream, Probe)| [probe.peer.first.addr, probe.peer.targets.addr];
    let mut addresses: Vec<u64> = connections.iter().flat_map(advertised).collect();
    addresses.sort_unstable();
    for pair in addresses.windows(2) {
        assert!(pair[1] - pair[0] >= APART, "{addresses:x?}");
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines() {
        let range = line.split_whitespace().next().unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        for addr in &addresses {
            assert!(!(start..end).contains(addr), "{addr:#x} is in {line}");
        }
    }
}
