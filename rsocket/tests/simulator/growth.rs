//! Buffers that grow, and those that do not.

use rsocket::proto::{
    ByteOrder, ConnectData, Message,
    stream::{Burst, Failure, Outgoing, Payload, Place, Settings, Violation},
};

use crate::{
    probe::{facing, parts, peer, peer_of_eight, receive, told},
    side::{BUFFER, Side},
};

const BUFFER_SIZE: u32 = 128 << 10;
const LARGER: u32 = 512 << 10;
const ELSEWHERE: u64 = 0x5000_0000;

/// The peer fills the whole buffer, and all of it is read.
fn fill_and_read(side: &mut Side) {
    for _ in 0..2 {
        receive(side, Message::Data(BUFFER_SIZE / 2)).unwrap();
    }
    side.stream.consume(BUFFER_SIZE as usize);
}

/// A side whose receive buffer has been too small for so many times.
fn held_up(settings: Settings, peer: &ConnectData, times: usize) -> Side {
    let mut side = facing(settings, peer);
    told(&mut side);
    for time in 0..times {
        assert_eq!(side.stream.wants_to_receive(), None, "{time}");
        fill_and_read(&mut side);
        if time + 1 < times {
            told(&mut side);
        }
    }
    side
}

#[test]
fn a_receive_buffer_grows_where_the_peer_runs_out_of_room() {
    let mut side = held_up(Settings::default(), &peer_of_eight(), 8);
    assert_eq!(side.stream.wants_to_receive(), Some(LARGER));
    assert_eq!(parts(&mut side, BUFFER), [], "not of what is given up");
    side.stream.receive_into(ELSEWHERE, 0xb1);
    assert_eq!(side.stream.wants_to_receive(), None);
    let halves: Vec<_> = (0..8).map(|half| (half << 16, 1 << 16)).collect();
    assert_eq!(parts(&mut side, ELSEWHERE), halves);
    // A message goes on where the next target does, and not beyond the end.
    receive(&mut side, Message::Data(LARGER - 100)).unwrap();
    assert_eq!(side.stream.next_bytes(usize::MAX), (0..LARGER - 100, 0..0));
    side.stream.consume(usize::MAX);
    assert_eq!(parts(&mut side, ELSEWHERE).len(), 7);
    let failed = receive(&mut side, Message::Data(101)).unwrap_err();
    assert_eq!(failed, Failure::Violation(Violation::Overflow(101)));
}

/// It grows when nothing is in it, nor on its way there: what the peer knows of comes first.
#[test]
fn what_is_on_its_way_comes_first() {
    let mut side = held_up(Settings::default(), &peer_of_eight(), 7);
    told(&mut side);
    receive(&mut side, Message::Data(BUFFER_SIZE)).unwrap();
    side.stream.consume(70_000);
    assert_eq!(parts(&mut side, BUFFER), [(0, 65_536)]);
    side.stream.consume(usize::MAX);
    assert_eq!(side.stream.wants_to_receive(), None);
    assert_eq!(parts(&mut side, BUFFER), [], "it is to grow");
    receive(&mut side, Message::Data(65_000)).unwrap();
    side.stream.consume(usize::MAX);
    assert_eq!(side.stream.wants_to_receive(), None, "there may be more");
    receive(&mut side, Message::Data(536)).unwrap();
    assert_eq!(side.stream.wants_to_receive(), None, "it is not read");
    side.stream.consume(536);
    assert_eq!(side.stream.wants_to_receive(), Some(LARGER));
    side.stream.keep_receiving();
    assert_eq!(side.stream.wants_to_receive(), None);
    assert_eq!(
        parts(&mut side, BUFFER)
            .iter()
            .map(|part| part.1)
            .sum::<u32>(),
        BUFFER_SIZE
    );
    for _ in 0..20 {
        fill_and_read(&mut side);
        assert_eq!(side.stream.wants_to_receive(), None, "there is no memory");
        assert_eq!(parts(&mut side, BUFFER).len(), 2);
    }
}

#[test]
fn a_receive_buffer_stays_where_growing_does_not_help() {
    let original = peer();
    let settings = Settings::default();
    let fixed = Settings {
        recv_buffer_max: BUFFER_SIZE,
        ..settings
    };
    for (settings, peer) in [(settings, original), (fixed, peer_of_eight())] {
        held_up(settings, &peer, 20);
    }
    // Who reads slowly is no faster with more.
    let mut side = facing(settings, &peer_of_eight());
    told(&mut side);
    receive(&mut side, Message::Data(BUFFER_SIZE)).unwrap();
    for _ in 0..40 {
        side.stream.consume(BUFFER_SIZE as usize / 2);
        told(&mut side);
        receive(&mut side, Message::Data(BUFFER_SIZE / 2)).unwrap();
        assert_eq!(side.stream.wants_to_receive(), None);
    }
}

/// A buffer that may become larger, but not by a whole half.
#[test]
fn a_receive_buffer_grows_by_whole_halves() {
    let settings = |most| Settings {
        recv_buffer_max: most,
        ..Settings::default()
    };
    for (most, expected) in [
        (3 * 65_536 - 1, None),
        (3 * 65_536 + 1, Some(3 * 65_536)),
        (u32::MAX, Some(LARGER)),
    ] {
        let side = held_up(settings(most), &peer_of_eight(), 8);
        assert_eq!(side.stream.wants_to_receive(), expected, "{most}");
    }
}

/// Sends as much as can be sent.
fn send_all(side: &mut Side) -> Vec<Outgoing> {
    let mut burst = Burst::default();
    std::iter::from_fn(|| side.stream.send(&mut burst, 1 << 24)).collect()
}

/// Where in the send buffer a message begins.
fn begin(outgoing: &Outgoing) -> Option<u32> {
    match &outgoing.payload {
        Payload::Data(_, Place::Buffer(first, _)) => Some(first.start),
        _ => None,
    }
}

#[test]
fn a_send_buffer_grows_where_it_is_full_and_the_peer_has_room() {
    let mut peer = peer();
    peer.first.len = 1 << 30;
    let mut side = facing(Settings::default(), &peer);
    let mut in_flight = send_all(&mut side);
    for _ in 0..7 {
        // Asking again is not waiting again.
        assert!(send_all(&mut side).is_empty());
        assert_eq!(side.stream.wants_to_send(), None);
        side.stream.sent(in_flight.remove(0).tag, true);
        in_flight.extend(send_all(&mut side));
    }
    assert_eq!(side.stream.wants_to_send(), Some(LARGER));
    side.stream.send_from_new();
    assert_eq!(side.stream.wants_to_send(), None);
    let new = send_all(&mut side);
    assert_eq!(begin(&new[0]), Some(0));
    let sum = |sent: &[Outgoing]| -> u32 {
        let len = |outgoing: &Outgoing| match outgoing.payload {
            Payload::Data(len, _) => len,
            _ => 0,
        };
        sent.iter().map(len).sum()
    };
    assert_eq!(sum(&new), LARGER);
    // What was in flight makes no room in the new one, and what is sent from that does.
    for outgoing in in_flight {
        side.stream.sent(outgoing.tag, true);
        assert!(!side.stream.can_send());
    }
    side.stream.sent(new[0].tag, true);
    assert_eq!(sum(&send_all(&mut side)), sum(&new[..1]));
}

#[test]
fn a_send_buffer_stays_where_something_else_is_waited_for() {
    let waits = |side: &mut Side| {
        for _ in 0..40 {
            for outgoing in send_all(side) {
                side.stream.sent(outgoing.tag, true);
            }
            assert_eq!(side.stream.wants_to_send(), None);
        }
    };
    // The peer's room.
    waits(&mut facing(Settings::default(), &peer()));
    // Its credits.
    let mut few = peer();
    few.credits = 1;
    waits(&mut facing(Settings::default(), &few));
    let told = ConnectData::decode(&few.encode()).unwrap();
    assert_eq!((told.credits, told.order), (1, ByteOrder::Little));
}
