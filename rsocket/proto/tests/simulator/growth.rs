//! Growth of buffers.

use std::ops::Range;

use fastrand::Rng;
use rsocket_proto::{
    ByteOrder, ConnectData, Control, Message,
    stream::{Burst, Failure, Outgoing, Payload, PayloadSource, Settings, Violation},
};

use crate::{
    probe::{facing, parts, peer, peer_of_eight, receive, updates},
    schedule::{connect, pattern},
    seeds,
    side::{BUFFER, Side, in_use},
    wire::Wire,
};

const BUFFER_SIZE: u32 = 128 << 10;
const LARGER: u32 = 512 << 10;
const LARGER_HALVES: [(u64, u32); 2] = [(0, LARGER / 2), (LARGER as u64 / 2, LARGER / 2)];
const ELSEWHERE: u64 = 0x5000_0000;
const ELSEWHERE_KEY: u32 = 0xb1;

/// Fills the whole receive buffer, then reads everything.
fn fill_and_read(side: &mut Side) {
    for _ in 0..2 {
        receive(side, Message::Data(BUFFER_SIZE / 2)).unwrap();
    }
    side.stream.consume(BUFFER_SIZE as usize);
}

/// Returns the pieces of the next bytes, with their buffer.
fn pieces(side: &Side, len: usize) -> Vec<(bool, Range<u32>)> {
    let pieces = side.stream.next_bytes(len);
    pieces.map(|piece| (piece.is_old, piece.range)).collect()
}

/// Creates a side whose receive buffer has caused `times` stalls.
fn count_stall(settings: Settings, peer: &ConnectData, times: usize) -> Side {
    let mut side = facing(settings, peer);
    updates(&mut side);
    for time in 0..times {
        assert_eq!(side.stream.larger_receive_buffer(), None, "{time}");
        fill_and_read(&mut side);
        if time + 1 < times {
            updates(&mut side);
        }
    }
    side
}

#[test]
fn receive_buffer_with_stalled_peer_grows() {
    let mut side = count_stall(in_use(), &peer_of_eight(), 8);
    assert_eq!(side.stream.larger_receive_buffer(), Some(LARGER));
    side.stream.receive_into(ELSEWHERE, ELSEWHERE_KEY);
    assert_eq!(side.stream.larger_receive_buffer(), None);
    assert!(!side.stream.uses_old_buffer());
    assert_eq!(parts(&mut side, ELSEWHERE), LARGER_HALVES);
    // A message continues across adjacent targets, but not beyond the end of the buffer.
    receive(&mut side, Message::Data(LARGER - 100)).unwrap();
    assert_eq!(pieces(&side, usize::MAX), [(false, 0..LARGER - 100)]);
    side.stream.consume(usize::MAX);
    assert_eq!(parts(&mut side, ELSEWHERE), LARGER_HALVES[..1]);
    let failed = receive(&mut side, Message::Data(101)).unwrap_err();
    assert_eq!(failed, Failure::Violation(Violation::Overflow(101)));
}

/// Creates a side about to grow its receive buffer, with the first half granted to the peer.
fn half_granted() -> Side {
    let mut side = count_stall(in_use(), &peer_of_eight(), 7);
    updates(&mut side);
    receive(&mut side, Message::Data(BUFFER_SIZE)).unwrap();
    side.stream.consume(70_000);
    assert_eq!(parts(&mut side, BUFFER), [(0, 65_536)]);
    side.stream.consume(usize::MAX);
    assert_eq!(side.stream.larger_receive_buffer(), Some(LARGER));
    side
}

/// Granted room is used first, without delaying the grants of the new buffer.
#[test]
fn granted_room_is_used_before_the_grown_buffer() {
    let mut side = half_granted();
    side.stream.receive_into(ELSEWHERE, ELSEWHERE_KEY);
    assert_eq!(side.stream.larger_receive_buffer(), None);
    // The granted room may cover four entries of the peer's table of eight, and half of the new buffer the
    // others.
    assert_eq!(parts(&mut side, ELSEWHERE), LARGER_HALVES[..1]);
    receive(&mut side, Message::Data(10_000)).unwrap();
    assert_eq!(parts(&mut side, ELSEWHERE), []);
    receive(&mut side, Message::Data(55_000)).unwrap();
    assert_eq!(parts(&mut side, ELSEWHERE), LARGER_HALVES[1..]);
    receive(&mut side, Message::Data(536)).unwrap();
    assert_eq!(parts(&mut side, ELSEWHERE), []);
    receive(&mut side, Message::Data(1000)).unwrap();
    // All data can be peeked at; the first buffer is released once read.
    assert_eq!(side.stream.unread(), 66_536);
    let both = [(true, 0..65_536), (false, 0..1000)];
    assert_eq!(pieces(&side, usize::MAX), both);
    assert_eq!(pieces(&side, 65_536), both[..1]);
    assert_eq!(
        pieces(&side, 65_537),
        [(true, 0..65_536), (false, 0..1)],
        "a byte beyond"
    );
    side.stream.consume(65_535);
    assert!(side.stream.uses_old_buffer());
    side.stream.consume(2);
    assert!(!side.stream.uses_old_buffer());
    assert_eq!(pieces(&side, usize::MAX), [(false, 1..1000)]);
    assert_eq!(side.stream.unread(), 999);
}

/// All data has been read, but the peer still has granted room.
#[test]
fn old_receive_buffer_with_granted_room_stays_registered() {
    let mut side = half_granted();
    side.stream.receive_into(ELSEWHERE, ELSEWHERE_KEY);
    updates(&mut side);
    receive(&mut side, Message::Data(65_535)).unwrap();
    side.stream.consume(usize::MAX);
    assert!(side.stream.uses_old_buffer());
    // A message does not continue in another buffer.
    let failed = receive(&mut side, Message::Data(2)).unwrap_err();
    assert_eq!(failed, Failure::Violation(Violation::Overflow(2)));
    let mut side = half_granted();
    side.stream.receive_into(ELSEWHERE, ELSEWHERE_KEY);
    updates(&mut side);
    receive(&mut side, Message::Data(65_536)).unwrap();
    side.stream.consume(usize::MAX);
    assert!(!side.stream.uses_old_buffer());
}

#[test]
fn receive_buffer_without_memory_asks_again_after_as_many_stalls() {
    let mut side = half_granted();
    side.stream.keep_receiving();
    assert_eq!(side.stream.larger_receive_buffer(), None);
    assert_eq!(parts(&mut side, BUFFER), [(65_536, 65_536)]);
    for _ in 0..8 {
        assert_eq!(side.stream.larger_receive_buffer(), None);
        fill_and_read(&mut side);
        assert_eq!(parts(&mut side, BUFFER).len(), 2);
    }
    assert_eq!(side.stream.larger_receive_buffer(), Some(LARGER));
}

#[test]
fn receive_buffer_after_shutdown_of_peer_does_not_grow() {
    let mut side = half_granted();
    receive(&mut side, Message::Control(Control::Shutdown)).unwrap();
    assert_eq!(side.stream.larger_receive_buffer(), None);
}

#[test]
fn receive_buffer_with_slow_reader_does_not_grow() {
    let fixed = Settings {
        recv_buffer_max: BUFFER_SIZE,
        ..in_use()
    };
    count_stall(fixed, &peer_of_eight(), 20);
    // A slow reader does not benefit from a larger buffer.
    let mut side = facing(in_use(), &peer_of_eight());
    updates(&mut side);
    receive(&mut side, Message::Data(BUFFER_SIZE)).unwrap();
    for _ in 0..40 {
        side.stream.consume(BUFFER_SIZE as usize / 2);
        updates(&mut side);
        receive(&mut side, Message::Data(BUFFER_SIZE / 2)).unwrap();
        assert_eq!(side.stream.larger_receive_buffer(), None);
    }
}

/// A maximum size that is not the first one doubled.
#[test]
fn receive_buffer_grows_by_doubling() {
    let settings = |max| Settings {
        recv_buffer_max: max,
        ..in_use()
    };
    for (max, expected) in [
        (2 * BUFFER_SIZE - 1, None),
        (4 * BUFFER_SIZE - 1, Some(2 * BUFFER_SIZE)),
        (1 << 30, Some(1 << 30)),
    ] {
        let side = count_stall(settings(max), &peer_of_eight(), 8);
        assert_eq!(side.stream.larger_receive_buffer(), expected, "{max}");
    }
}

/// A slow reader makes no difference, nor does a peer with the two table entries of librdmacm.
#[test]
fn idle_receive_buffer_grows_when_the_peer_runs_out_of_room() {
    let mut side = facing(Settings::default(), &peer());
    let half = 16 << 10;
    assert_eq!(parts(&mut side, BUFFER), [], "all has been advertised");
    receive(&mut side, Message::Data(2 * half - 1)).unwrap();
    assert_eq!(side.stream.larger_receive_buffer(), None);
    receive(&mut side, Message::Data(1)).unwrap();
    assert_eq!(side.stream.larger_receive_buffer(), Some(BUFFER_SIZE));
    side.stream.receive_into(ELSEWHERE, ELSEWHERE_KEY);
    let halves = [0, BUFFER_SIZE / 2].map(|at| (at.into(), BUFFER_SIZE / 2));
    assert_eq!(parts(&mut side, ELSEWHERE), halves);
    side.stream.consume(2 * half as usize - 1);
    assert!(side.stream.uses_old_buffer());
    side.stream.consume(1);
    for _ in 0..8 {
        assert_eq!(side.stream.larger_receive_buffer(), None);
        fill_and_read(&mut side);
        updates(&mut side);
    }
    assert_eq!(side.stream.larger_receive_buffer(), Some(LARGER));
}

/// Sends until no room is left.
fn send_all(side: &mut Side) -> Vec<Outgoing> {
    let mut burst = Burst::default();
    std::iter::from_fn(|| side.stream.send(&mut burst, 1 << 24)).collect()
}

/// Returns the start of a message in the send buffer.
fn begin(outgoing: &Outgoing) -> Option<u32> {
    match &outgoing.payload {
        Payload::Data(_, PayloadSource::Buffer(first, _)) => Some(first.start),
        _ => None,
    }
}

#[test]
fn send_buffer_full_while_the_peer_has_room_grows() {
    let mut peer = peer();
    peer.first.len = 1 << 30;
    let mut side = facing(in_use(), &peer);
    let mut in_flight = send_all(&mut side);
    for _ in 0..7 {
        // A repeated attempt is not a new stall.
        assert!(send_all(&mut side).is_empty());
        assert_eq!(side.stream.larger_send_buffer(), None);
        side.stream.sent(in_flight.remove(0).tag, true);
        in_flight.extend(send_all(&mut side));
    }
    assert_eq!(side.stream.larger_send_buffer(), Some(LARGER));
    side.stream.send_from_new();
    assert_eq!(side.stream.larger_send_buffer(), None);
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
    // Completions free room in their own buffer only.
    for outgoing in in_flight {
        side.stream.sent(outgoing.tag, true);
        assert!(!side.stream.can_send());
    }
    side.stream.sent(new[0].tag, true);
    assert_eq!(sum(&send_all(&mut side)), sum(&new[..1]));
}

#[test]
fn idle_send_buffer_grows_when_full() {
    let mut peer = peer();
    peer.first.len = 1 << 30;
    let mut side = facing(Settings::default(), &peer);
    send_all(&mut side);
    assert_eq!(side.stream.larger_send_buffer(), Some(BUFFER_SIZE));
    side.stream.keep_sending();
    assert!(send_all(&mut side).is_empty());
    assert_eq!(
        side.stream.larger_send_buffer(),
        None,
        "no completion since"
    );
}

#[test]
fn send_buffer_full_while_waiting_for_the_peer_does_not_grow() {
    let waits = |side: &mut Side| {
        for _ in 0..40 {
            for outgoing in send_all(side) {
                side.stream.sent(outgoing.tag, true);
            }
            assert_eq!(side.stream.larger_send_buffer(), None);
        }
    };
    // Waits for the peer's room.
    waits(&mut facing(in_use(), &peer()));
    // Waits for the peer's credits.
    let mut one_credit = peer();
    one_credit.credits = 1;
    waits(&mut facing(in_use(), &one_credit));
    let decoded = ConnectData::decode(&one_credit.encode()).unwrap();
    assert_eq!((decoded.credits, decoded.order), (1, ByteOrder::Little));
}

/// Two hosts with default buffers, and the numbers of bytes sent and received by each.
struct Exchange {
    wire: Wire,
    sent: [usize; 2],
    received: [usize; 2],
}

impl Exchange {
    fn new(settings: Settings) -> Self {
        let mut wire = connect([settings; 2], [ByteOrder::Little; 2]);
        wire.run_until_idle();
        Self {
            wire,
            sent: [0; 2],
            received: [0; 2],
        }
    }

    /// Writes up to `len` bytes. Returns the number of bytes written.
    fn write(&mut self, from: usize, len: usize) -> usize {
        let bytes: Vec<u8> = pattern(from, self.sent[from]).take(len).collect();
        let (mut burst, mut done) = (Burst::default(), 0);
        loop {
            let side = &mut self.wire.sides[from];
            let Some(outgoing) = side.send(&mut burst, len - done) else {
                break;
            };
            done += side.post(outgoing, &bytes[done..]);
            self.wire.run_until_idle();
        }
        self.sent[from] += done;
        done
    }

    fn unread(&self, at: usize) -> usize {
        self.wire.sides[at].stream.unread() as usize
    }

    fn read(&mut self, at: usize, len: usize) {
        let bytes = self.wire.sides[at].read(len);
        let right = pattern(1 - at, self.received[at]).take(bytes.len());
        assert!(right.eq(bytes.iter().copied()), "wrong bytes");
        self.received[at] += bytes.len();
        self.wire.run_until_idle();
    }

    /// Lets the peer of `at` run out of room eight times, with everything read. Before the last time, the
    /// peer gets some room and leaves 536 bytes of it unused.
    fn leave_little(&mut self, at: usize) {
        let size = BUFFER_SIZE as usize;
        for _ in 0..7 {
            assert_eq!(self.write(1 - at, size), size);
            self.read(at, size);
        }
        assert_eq!(self.write(1 - at, size), size);
        self.read(at, 70_000);
        self.read(at, size);
        assert_eq!(self.write(1 - at, 65_000), 65_000);
        self.read(at, size);
    }
}

/// A reader that peeks until all bytes have arrived.
#[test]
fn message_during_growth_of_receive_buffer_arrives_whole() {
    let mut exchange = Exchange::new(in_use());
    exchange.leave_little(1);
    assert_eq!(exchange.write(0, 1000), 1000);
    assert_eq!(
        exchange.unread(1),
        1000,
        "nothing is read before all is there"
    );
    exchange.read(1, 1000);
    assert_eq!(exchange.unread(1), 0);
}

/// Both hosts write before they read.
#[test]
fn writes_of_both_sides_during_growth_do_not_stall() {
    let mut exchange = Exchange::new(in_use());
    exchange.leave_little(0);
    exchange.leave_little(1);
    for side in [0, 1] {
        assert_eq!(exchange.write(side, 1000), 1000, "side {side}");
    }
    for side in [0, 1] {
        exchange.read(side, 1000);
        assert_eq!(exchange.received[side], exchange.sent[1 - side]);
    }
}

/// Both hosts write as much as librdmacm's buffers take before they read.
#[test]
fn writes_of_both_sides_before_any_read_fit_as_with_librdmacm() {
    let mut exchange = Exchange::new(Settings::default());
    let size = BUFFER_SIZE as usize;
    for side in [0, 1] {
        assert_eq!(exchange.write(side, size), size);
    }
    for side in [0, 1] {
        exchange.read(side, size);
        assert_eq!(exchange.received[side], size);
    }
}

/// The grants for both buffers accumulate unread; the simulation fails if an entry is overwritten.
#[test]
fn grants_for_old_and_grown_buffer_fit_the_table() {
    const PART: usize = 16 << 10;
    let size = BUFFER_SIZE as usize;
    let mut exchange = Exchange::new(in_use());
    for _ in 0..7 {
        exchange.write(0, size);
        exchange.read(1, size);
    }
    assert_eq!(exchange.write(0, size), size);
    for _ in 0..size / PART {
        let read = exchange.wire.sides[1].read(PART);
        exchange.received[1] += read.len();
        while exchange.wire.deliver(1) || exchange.wire.acknowledge(1) {
            exchange.wire.sides[1].poll(usize::MAX);
        }
    }
    assert_eq!(exchange.wire.sides[1].grown()[0], 1);
    exchange.wire.run_until_idle();
    // Half of the first buffer is granted in four entries, and all of the other once that is used up.
    let both = size / 2 + LARGER as usize;
    assert_eq!(exchange.write(0, 2 * both), both);
    assert_eq!(exchange.unread(1), both);
    exchange.read(1, both);
}

/// After all data has been read, half of the first buffer always fits, with or without memory for growth.
#[test]
fn write_of_half_the_buffer_always_fits() {
    const HALF: usize = BUFFER_SIZE as usize / 2;
    let mut grown = 0;
    // Slower than the other schedules.
    for seed in seeds().step_by(4) {
        let rng = &mut Rng::with_seed(seed);
        let mut exchange = Exchange::new(in_use());
        for side in &mut exchange.wire.sides {
            side.has_memory = rng.u8(0..4) > 0;
        }
        for _ in 0..40 {
            let from = rng.usize(0..2);
            let sizes = [rng.usize(1..=HALF), HALF, 4 * HALF];
            exchange.write(from, *rng.choice(&sizes).unwrap());
            while exchange.unread(1 - from) > 0 {
                exchange.read(1 - from, 1 << rng.u32(8..20));
            }
            let least = rng.usize(1..=HALF);
            for side in [0, 1] {
                assert_eq!(exchange.write(side, least), least, "SEED={seed}");
            }
            for side in [0, 1] {
                assert_eq!(exchange.unread(side), least, "SEED={seed}");
                exchange.read(side, least);
            }
        }
        let sides = &exchange.wire.sides;
        grown += sides.iter().map(|side| side.grown()[0]).sum::<usize>();
    }
    if seeds().count() > 1 {
        assert!(grown > 10, "{grown}");
    }
}
