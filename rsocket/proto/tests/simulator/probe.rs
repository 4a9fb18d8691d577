//! A scripted peer, and the observed reactions of the other side.

use rsocket_proto::{
    ByteOrder, ConnectData, Control, Mapping, Message, Target,
    stream::{
        Burst, Direction, Failure, MapError, Outgoing, Payload, PayloadSource, Placement, Settings,
        Stream, StreamStats, Tag, Violation,
    },
};

use crate::side::{self, BUFFER, BUFFER_KEY, Exposed, Side, in_use};

const PEER_TABLE: u64 = 0x7fac_cc02_4000;
const PEER_BUFFER: u64 = 0x7fac_cc02_6000;

/// Connect data of a peer with large buffers.
pub(crate) fn peer() -> ConnectData {
    ConnectData {
        order: ByteOrder::Little,
        credits: 384,
        iomap_size: Some(3),
        targets: Target {
            addr: PEER_TABLE,
            rkey: 0x6d2,
            len: 2,
        },
        first: Target {
            addr: PEER_BUFFER,
            rkey: 0x7bd,
            len: 1 << 20,
        },
    }
}

/// Connect data of a peer with eight table entries.
pub(crate) fn peer_of_eight() -> ConnectData {
    let mut peer = peer();
    peer.targets.len = 8;
    peer
}

pub(crate) fn facing(settings: Settings, peer: &ConnectData) -> Side {
    let local = side::local(ByteOrder::Little);
    Side::new(settings, Stream::new(settings, &local, peer))
}

pub(crate) fn receive(side: &mut Side, message: Message) -> Result<(), Failure> {
    side.stream.received(message, &mut side.exposed)
}

/// Takes all control requests and completes them at once.
pub(crate) fn updates(side: &mut Side) -> Vec<Outgoing> {
    let mut updates = vec![];
    while let Some(outgoing) = side.stream.control() {
        side.stream.sent(outgoing.tag, true);
        updates.push(outgoing);
    }
    updates
}

fn target(outgoing: &Outgoing) -> Option<Target> {
    match &outgoing.payload {
        Payload::Target(entry, _) => Some(Target::decode(entry, ByteOrder::Little)),
        _ => None,
    }
}

/// Returns the targets granted to the peer, as offsets in the buffer.
pub(crate) fn parts(side: &mut Side, buffer: u64) -> Vec<(u64, u32)> {
    let targets = updates(side)
        .into_iter()
        .filter_map(|update| target(&update));
    let part = |target: Target| (target.addr - buffer, target.len);
    targets.map(part).collect()
}

#[test]
fn wait_is_counted_once_by_the_missing_resource() {
    let waits = |stats: StreamStats| {
        (
            stats.waits_for_credit,
            stats.waits_for_peer_buffer,
            stats.waits_for_send_buffer,
        )
    };
    let stuck = |settings, peer: &ConnectData| {
        let mut side = facing(settings, peer);
        while side.stream.send(&mut Burst::default(), 1000).is_some() {}
        assert!(side.stream.send(&mut Burst::default(), 1000).is_none());
        side.stream.stats()
    };
    let mut few_credits = peer();
    few_credits.credits = 3;
    let stats = stuck(in_use(), &few_credits);
    assert_eq!(waits(stats), (1, 0, 0));
    assert_eq!((stats.messages_sent, stats.bytes_sent), (3, 3000));
    let mut small_buffer = peer();
    small_buffer.first.len = 2500;
    let stats = stuck(in_use(), &small_buffer);
    assert_eq!(waits(stats), (0, 1, 0));
    assert_eq!((stats.messages_sent, stats.bytes_sent), (3, 2500));
    let stats = stuck(in_use(), &peer());
    assert_eq!(waits(stats), (0, 0, 1));
}

#[test]
fn first_message_grants_second_half() {
    let mut side = facing(in_use(), &peer());
    let updates = updates(&mut side);
    let [update] = &updates[..] else {
        panic!("{updates:?}")
    };
    assert_eq!(update.message.map(Message::encode), Some(0x8000_0180));
    assert_eq!((update.addr, update.rkey), (PEER_TABLE + 16, 0x6d2));
    assert_eq!(
        target(update),
        Some(Target {
            addr: BUFFER + 65536,
            rkey: BUFFER_KEY,
            len: 65536
        })
    );
}

#[test]
fn credits_are_returned_by_halves_of_the_queue() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    let mut limits = vec![];
    for _ in 0..384 {
        receive(&mut side, Message::Data(1)).unwrap();
        side.stream.consume(1);
        for update in updates(&mut side) {
            assert_eq!(update.payload, Payload::Nothing);
            limits.push(update.message.unwrap().encode());
        }
    }
    assert_eq!(limits, [0x8000_0240, 0x8000_0300]);
}

#[test]
fn half_of_receive_buffer_is_granted_again_after_read() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    for len in [30_000, 30_000, 5536] {
        receive(&mut side, Message::Data(len)).unwrap();
        side.stream.consume(len as usize);
    }
    let updates = updates(&mut side);
    let [update] = &updates[..] else {
        panic!("{updates:?}")
    };
    assert_eq!(update.message.map(Message::encode), Some(0x8000_0183));
    assert_eq!(update.addr, PEER_TABLE, "the first entry");
    assert_eq!(target(update).map(|target| target.addr), Some(BUFFER));
}

/// With a larger table, a peer with less than half of the buffer granted gets smaller targets.
#[test]
fn stalled_peer_is_granted_parts() {
    let mut side = facing(in_use(), &peer_of_eight());
    assert_eq!(updates(&mut side).len(), 1);
    receive(&mut side, Message::Data(65536)).unwrap();
    side.stream.consume(30_000);
    assert_eq!(updates(&mut side), [], "it knows of half of the buffer");
    receive(&mut side, Message::Data(50_000)).unwrap();
    assert_eq!(parts(&mut side, BUFFER), [(0, 16384)]);
    side.stream.consume(20_000);
    assert_eq!(parts(&mut side, BUFFER), [(16384, 32768)]);
    receive(&mut side, Message::Data(15_536)).unwrap();
    receive(&mut side, Message::Data(49_152)).unwrap();
    side.stream.consume(131_072 - 50_000);
    assert_eq!(parts(&mut side, BUFFER), [(49_152, 65_536)]);
    side.stream.consume(49_152);
    assert_eq!(
        parts(&mut side, BUFFER),
        [(114_688, 16_384)],
        "up to the buffer's end"
    );
    receive(&mut side, Message::Data(65_536)).unwrap();
    let failed = receive(&mut side, Message::Data(16_385)).unwrap_err();
    assert_eq!(failed, Failure::Violation(Violation::Overflow(16_385)));
}

/// With two entries, a peer only gets halves.
#[test]
fn peer_with_two_entries_is_granted_halves() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    receive(&mut side, Message::Data(65536)).unwrap();
    receive(&mut side, Message::Data(65536)).unwrap();
    side.stream.consume(65535);
    assert_eq!(updates(&mut side), []);
    side.stream.consume(1);
    assert_eq!(updates(&mut side).len(), 1);
}

#[test]
fn entries_of_larger_table_are_used_in_turn() {
    for entries in [3, 7] {
        let mut peer = peer();
        peer.targets.len = entries;
        let mut side = facing(in_use(), &peer);
        let mut written: Vec<_> = updates(&mut side);
        for _ in 0..entries * 2 {
            receive(&mut side, Message::Data(65536)).unwrap();
            side.stream.consume(65536);
            written.extend(updates(&mut side));
        }
        let order: Vec<u64> = written.iter().map(|u| (u.addr - PEER_TABLE) / 16).collect();
        let expected = (1..).map(|i| i % u64::from(entries));
        assert!(
            expected.take(order.len()).eq(order.iter().copied()),
            "{order:?}"
        );
    }
}

#[test]
fn target_entry_has_the_byte_order_of_the_peer() {
    let mut peer = peer();
    peer.order = ByteOrder::Big;
    let mut side = facing(in_use(), &peer);
    let updates = updates(&mut side);
    let Payload::Target(entry, PayloadSource::Inline) = &updates[0].payload else {
        panic!("{updates:?}")
    };
    let addr = (BUFFER + 65536).to_be_bytes();
    assert_eq!(entry[..8], addr);
    assert_eq!(entry[12..], [0, 1, 0, 0]);
}

/// Returns the message lengths of one send call.
#[expect(clippy::panic, reason = "a test fails by panicking")]
fn chunks(side: &mut Side, len: usize) -> Vec<u32> {
    let mut burst = Burst::default();
    let mut remaining = len;
    let mut chunks = vec![];
    while let Some(outgoing) = side.stream.send(&mut burst, remaining) {
        let Tag::Data(len) = outgoing.tag else {
            panic!("{outgoing:?}")
        };
        side.stream.sent(outgoing.tag, true);
        remaining -= len as usize;
        chunks.push(len);
    }
    chunks
}

#[test]
fn message_sizes_double_within_their_target() {
    let with_half = |half| {
        let mut peer = peer();
        peer.first.len = half;
        facing(in_use(), &peer)
    };
    for (len, expected) in [
        (1, &[1][..]),
        (2049, &[2049]),
        (8192, &[8192]),
        (8193, &[8192, 1]),
        (24_576, &[8192, 16384]),
        (65_535, &[8192, 16384, 32768, 8191]),
        (200_000, &[8192, 16384, 32768, 65536, 65536, 11584]),
    ] {
        assert_eq!(chunks(&mut with_half(1 << 20), len), expected, "{len}");
    }
    assert_eq!(chunks(&mut with_half(4096), 9000), [4096]);
    assert_eq!(chunks(&mut with_half(10_000), 20_000), [8192, 1808]);
}

#[test]
fn credit_counters_wrap() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    let mut sent = 0_u32;
    for round in 1..=2000_u32 {
        side.exposed.table[12..16].fill(0);
        while let Some(outgoing) = side.stream.send(&mut Burst::default(), 1) {
            side.stream.sent(outgoing.tag, true);
            sent += 1;
        }
        assert_eq!(sent, round * 384);
        // Like librdmacm: not reduced to 16 bits.
        let limit = Message::decode(4 << 29 | (sent + 384) & 0x1_ffff);
        receive(&mut side, limit).unwrap();
    }
}

#[test]
fn protocol_violation_fails_and_unknown_control_is_ignored() {
    let fails = |messages: &[Message]| {
        let mut side = facing(in_use(), &peer());
        let failed = messages
            .iter()
            .find_map(|&message| receive(&mut side, message).err());
        assert_eq!(side.stream.failure(), failed);
        assert_eq!(side.stream.can_send(), failed.is_none());
        failed
    };
    let violation = |violation| Some(Failure::Violation(violation));
    for op in [2, 3, 5] {
        let failed = fails(&[Message::Reserved(op)]);
        assert_eq!(failed, violation(Violation::Reserved(op)));
    }
    assert_eq!(
        fails(&[Message::Data(65537)]),
        violation(Violation::Overflow(65537))
    );
    let failed = fails(&[Message::Data(65536), Message::Data(1)]);
    assert_eq!(
        failed,
        violation(Violation::Overflow(1)),
        "the next half was not offered"
    );
    assert_eq!(fails(&[Message::Data(0); 384]), None);
    assert_eq!(
        fails(&[Message::Data(0); 385]),
        violation(Violation::Credits)
    );
    assert_eq!(
        fails(&[Message::Iomap(0)]),
        violation(Violation::Mapping(0))
    );
    for argument in [1, 0x77, 0x1fff_ffff] {
        assert_eq!(fails(&[Message::decode(7 << 29 | argument)]), None);
    }
}

#[test]
fn map_with_old_peer_is_full() {
    let mut old = peer();
    old.iomap_size = None;
    let mapping = Mapping {
        offset: 0,
        addr: 1,
        rkey: 2,
        len: 3,
    };
    let mut side = facing(in_use(), &old);
    assert_eq!(side.stream.map(mapping), Err(MapError::Full(0)));
    assert_eq!(chunks(&mut side, 10), [10]);
    let mut side = facing(in_use(), &peer());
    assert_eq!(
        [0; 3].map(|_| side.stream.map(mapping)),
        [Ok(0), Ok(1), Ok(2)]
    );
    assert_eq!(side.stream.map(mapping), Err(MapError::Full(3)));
}

#[test]
fn mapping_is_advertised_before_data_and_its_entry_reused() {
    let mut side = facing(in_use(), &peer());
    let mapping = Mapping {
        offset: 0,
        addr: 0xabc,
        rkey: 2,
        len: 3,
    };
    side.stream.map(mapping).unwrap();
    let second = side.stream.map(mapping).unwrap();
    let first = side.stream.advertise_mapping().unwrap();
    assert_eq!(first.tag, Tag::Mapping);
    let advertised = side.stream.advertise_mapping().unwrap();
    assert_eq!(advertised.message.map(Message::encode), Some(0xc000_0001));
    assert_eq!(advertised.addr, PEER_TABLE + 2 * 16 + 24);
    let Payload::Mapping(entry, PayloadSource::Inline) = advertised.payload else {
        panic!("{advertised:?}")
    };
    assert_eq!(Mapping::decode(&entry, ByteOrder::Little), mapping);
    assert_eq!(side.stream.advertise_mapping(), None);
    side.stream.unmap(second);
    assert_eq!(side.stream.map(mapping), Ok(second));
    side.stream.unmap(second);
    assert!(
        !side.stream.has_unadvertised_mapping(),
        "removed mappings are not advertised"
    );
}

/// Advertisements use credits, which are returned.
#[test]
fn mappings_advertised_repeatedly_return_credits() {
    let settings = Settings {
        recv_depth: 16,
        iomap_size: 1,
        ..in_use()
    };
    let mut side = facing(settings, &peer());
    updates(&mut side);
    let mut limits = 0;
    for _ in 0..1000 {
        receive(&mut side, Message::Iomap(0)).unwrap();
        limits += updates(&mut side).len();
    }
    assert_eq!(limits, 1000 / 8);
}

#[test]
fn send_after_shutdown_is_refused() {
    let mut side = facing(in_use(), &peer());
    side.stream.shut_down(Direction::Write);
    assert!(!side.stream.can_send() && side.stream.readiness().writable);
    let mut side = facing(in_use(), &peer());
    receive(&mut side, Message::Control(Control::Disconnect)).unwrap();
    assert!(!side.stream.can_send() && side.stream.readiness().hung_up);
}

/// A peer that continues to send does not stall.
#[test]
fn data_after_shutdown_of_reading_is_discarded() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    side.stream.shut_down(Direction::Read);
    assert_eq!(updates(&mut side), [], "the peer gets no message");
    for _ in 0..4 {
        receive(&mut side, Message::Data(65536)).unwrap();
        assert_eq!(side.stream.unread(), 0);
        assert_eq!(updates(&mut side).len(), 1);
    }
}

/// Simultaneous shutdown: the peer has disconnected before the last message.
#[test]
fn disconnect_message_failed_ends_without_failure() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    side.stream.shut_down(Direction::Both);
    let last = side.stream.control().unwrap();
    assert_eq!(last.message.map(Message::encode), Some(0xe000_0000));
    side.stream.sent(last.tag, false);
    assert_eq!(side.stream.failure(), None);
    assert!(!side.stream.is_connected());
}

#[test]
fn targets_are_read_from_the_table_after_use() {
    let mut side = facing(in_use(), &peer());
    let write = |exposed: &mut Exposed, index: usize, addr| {
        let target = Target {
            addr,
            rkey: 5,
            len: 1 << 20,
        };
        exposed.table[index * 16..][..16].copy_from_slice(&target.encode(ByteOrder::Little));
    };
    // The first target is in use, so its entry does not count.
    write(&mut side.exposed, 0, 0xbad);
    write(&mut side.exposed, 1, 0x1000);
    receive(&mut side, Message::Credit(1000)).unwrap();
    let mut to = vec![];
    let mut remaining = (2 << 20) + 1;
    let mut burst = Burst::default();
    while let Some(outgoing) = side.stream.send(&mut burst, remaining) {
        let Payload::Data(len, _) = outgoing.payload else {
            panic!("{outgoing:?}")
        };
        side.stream.sent(outgoing.tag, true);
        remaining -= len as usize;
        to.push(outgoing.addr);
    }
    assert_eq!(remaining, 1, "both are used up");
    assert_eq!(to.first(), Some(&PEER_BUFFER));
    assert!(to.contains(&0x1000));
}

/// The peer's device is writing the entry.
#[test]
fn target_partly_written_is_not_used() {
    let mut side = facing(in_use(), &peer());
    let mut burst = Burst::default();
    let mut remaining = (2 << 20) + 1;
    let mut use_up = |side: &mut Side| {
        while let Some(outgoing) = side.stream.send(&mut burst, remaining) {
            if let Payload::Data(len, _) = outgoing.payload {
                remaining -= len as usize;
            }
            side.stream.sent(outgoing.tag, true);
        }
        remaining
    };
    assert_eq!(use_up(&mut side), (1 << 20) + 1);
    let target = Target {
        addr: 0x1000,
        rkey: 5,
        len: 1 << 20,
    };
    let encoded = target.encode(ByteOrder::Little);
    for written in 0..Target::SIZE {
        side.exposed.table[16..32].fill(0);
        side.exposed.table[16..16 + written].copy_from_slice(&encoded[..written]);
        let before = side.exposed.table.clone();
        receive(&mut side, Message::Credit(1000)).unwrap();
        if encoded[written..].iter().any(|&byte| byte != 0) {
            assert_eq!(
                use_up(&mut side),
                (1 << 20) + 1,
                "{written} bytes are written"
            );
            assert_eq!(side.exposed.table, before, "nothing is undone");
        }
    }
    assert_eq!(use_up(&mut side), 1);
}

/// A flush before the shutdown message would close a connection with a waiting peer.
#[test]
fn shutdown_is_flushed_after_its_control_message() {
    for direction in [Direction::Write, Direction::Both] {
        let mut side = facing(in_use(), &peer());
        updates(&mut side);
        assert!(side.stream.is_flushed());
        side.stream.shut_down(direction);
        assert!(!side.stream.has_sent_shutdown() && !side.stream.is_flushed());
        let end = side.stream.control().unwrap();
        assert!(matches!(end.tag, Tag::Control(_)));
        assert!(side.stream.has_sent_shutdown());
        assert!(!side.stream.is_flushed(), "it is in flight");
        side.stream.sent(end.tag, true);
        assert!(side.stream.is_flushed());
        assert_eq!(side.stream.control(), None);
    }
    // A shutdown of reading needs no message.
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    side.stream.shut_down(Direction::Read);
    assert!(side.stream.has_sent_shutdown() && side.stream.is_flushed());
}

/// Empty messages return their credits without a read.
#[test]
fn credits_of_empty_messages_are_returned_unread() {
    let mut side = facing(in_use(), &peer());
    updates(&mut side);
    let mut limits = vec![];
    for _ in 0..384 {
        receive(&mut side, Message::Data(0)).unwrap();
        limits.extend(updates(&mut side).iter().map(|update| update.message));
    }
    let limits: Vec<_> = limits.into_iter().flatten().map(Message::encode).collect();
    assert_eq!(limits, [0x8000_0240, 0x8000_0300]);
    // An empty message after data completes together with the data.
    receive(&mut side, Message::Data(1)).unwrap();
    for _ in 0..191 {
        receive(&mut side, Message::Data(0)).unwrap();
    }
    assert_eq!(updates(&mut side), []);
    side.stream.consume(1);
    assert_eq!(updates(&mut side).len(), 1);
}

#[test]
fn disconnect_ends_control_messages_and_the_wait_for_completions() {
    let mut side = facing(in_use(), &peer());
    let sent = side.stream.send(&mut Burst::default(), 10).unwrap();
    assert!(!side.stream.is_flushed());
    receive(&mut side, Message::Data(65_536)).unwrap();
    receive(&mut side, Message::Control(Control::Disconnect)).unwrap();
    side.stream.consume(65_536);
    side.stream.keep_alive();
    assert_eq!(
        side.stream.control(),
        None,
        "no message follows a disconnect"
    );
    assert!(side.stream.is_flushed(), "the peer takes nothing more");
    side.stream.sent(sent.tag, false);
    assert_eq!(side.stream.failure(), None, "it had ended before");
}

#[test]
fn empty_write_to_a_mapping_posts_nothing() {
    let settings = Settings {
        iomap_size: 1,
        ..in_use()
    };
    let mut side = facing(settings, &peer());
    let mapping = Mapping {
        offset: 1000,
        addr: 0xabc,
        rkey: 2,
        len: 100,
    };
    let at = side.exposed.table.len() - Mapping::SIZE;
    side.exposed.table[at..].copy_from_slice(&mapping.encode(ByteOrder::Little));
    receive(&mut side, Message::Iomap(0)).unwrap();
    let mut write = |remaining| side.stream.send_to(&mut Burst::default(), remaining, 1010);
    assert_eq!(write(0), Placement::Wait);
    let Placement::Post(posted) = write(200) else {
        unreachable!("it is mapped")
    };
    assert_eq!((posted.addr, posted.tag), (0xabc + 10, Tag::Direct(90)));
}
