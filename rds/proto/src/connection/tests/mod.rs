//! Two connections, with frames passed between them by the test.

mod asking;
mod endings;
mod operations;
mod signals;

use std::sync::LazyLock;

use super::*;
use crate::wire::{Cookie, Extension, FRAGMENT};

type End = Connection<Vec<u8>, Vec<u8>>;

/// A frame with its posting flags.
#[derive(Clone, Debug)]
struct Frame {
    wire: [u8; Header::SIZE],
    body: Vec<u8>,
    solicited: bool,
    signaled: bool,
    tag: Tag,
}

impl Frame {
    fn header(&self) -> Header {
        Header::decode(&self.wire, false).unwrap()
    }
}

const OWNER: SocketId = SocketId(7);
const NOW: Duration = Duration::ZERO;

fn settings() -> Settings {
    Settings {
        ack_after: None,
        keepalive: None,
        ..Settings::default()
    }
}

fn fresh(first: u64) -> End {
    End::new(&settings(), NonZero::new(first).unwrap())
}

/// An established connection with its map sent.
fn up(first: u64) -> End {
    let mut end = fresh(first);
    establish(&mut end);
    end
}

fn establish(end: &mut End) {
    end.established(NOW, 0);
    let maps = [(); 2].map(|()| next(end).unwrap().unwrap());
    let flags = maps.each_ref().map(|frame| frame.header().flags);
    assert_eq!(flags, [Flags::CONG_BITMAP; 2], "the map comes first");
    complete(end, &maps);
}

fn bytes(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

fn message(draft: Draft<Vec<u8>>) -> Message<Vec<u8>> {
    Message {
        owner: OWNER,
        from: 4001,
        to: 4002,
        draft,
    }
}

fn send(end: &mut End, len: u32) -> u64 {
    end.send(message(Draft::new(len, bytes(len))), false)
        .unwrap()
}

fn send_urgent(end: &mut End, len: u32) -> u64 {
    let draft = Draft {
        urgent: true,
        ..Draft::new(len, bytes(len))
    };
    end.send(message(draft), false).unwrap()
}

/// An empty congestion map.
fn no_map() -> &'static CongestionMap {
    static NONE: LazyLock<CongestionMap> = LazyLock::new(CongestionMap::default);
    &NONE
}

/// The next posted frame, or the kind of a posted operation as `Err`.
fn next(end: &mut End) -> Option<Result<Frame, (&'static str, Tag)>> {
    let work = end.transmit(u32::MAX, no_map)?;
    let (tag, signaled) = (work.tag, work.signaled);
    Some(match work.request {
        Request::Frame {
            header,
            body,
            solicited,
            ..
        } => Ok(Frame {
            wire: header,
            body: match body {
                Body::Nothing => vec![],
                Body::Message { payload, range } => {
                    payload[range.start as usize..range.end as usize].to_vec()
                }
                Body::Map { map, range } => map.as_bytes()[range].to_vec(),
            },
            solicited,
            signaled,
            tag,
        }),
        Request::Rdma { .. } => Err(("rdma", tag)),
        Request::Atomic { .. } => Err(("atomic", tag)),
    })
}

fn frames(end: &mut End) -> Vec<Frame> {
    std::iter::from_fn(|| next(end))
        .map(Result::unwrap)
        .collect()
}

fn complete(end: &mut End, frames: &[Frame]) {
    for frame in frames {
        end.completed(frame.tag, Completion::Success);
    }
}

/// Delivers frames; returns the sequence numbers of accepted messages.
fn take(end: &mut End, frames: &[Frame]) -> Vec<u64> {
    let mut sequences = Vec::new();
    for frame in frames {
        match end.received(NOW, &frame.wire, frame.body.clone()).unwrap() {
            Some(Received::Message(incoming)) => {
                end.take(NOW, &incoming);
                assert_eq!(incoming.bodies.as_slice().concat(), bytes(incoming.len));
                sequences.push(incoming.sequence);
            }
            Some(Received::Ping(from)) => end.pong(from),
            Some(Received::Map(_)) | None => {}
        }
    }
    sequences
}

fn ack(end: &mut End) -> Option<u64> {
    let (tag, wire) = end.acknowledge(NOW)?;
    end.completed(tag, Completion::Success);
    let header = Header::decode(&wire, false).unwrap();
    assert_eq!(
        (header.sequence, header.len, header.from, header.to),
        (0, 0, 0, 0)
    );
    Some(header.ack)
}

fn ack_frame(ack: u64) -> [u8; Header::SIZE] {
    let header = Header {
        ack,
        ..Header::default()
    };
    header.encode()
}

fn data(sequence: u64, flags: Flags) -> Header {
    Header {
        sequence,
        from: 4001,
        to: 4002,
        flags,
        ..Header::default()
    }
}

/// Delivers an empty message; returns whether it was accepted.
fn offer(end: &mut End, header: Header) -> bool {
    match end.received(NOW, &header.encode(), vec![]).unwrap() {
        Some(Received::Message(incoming)) => {
            end.take(NOW, &incoming);
            true
        }
        _ => false,
    }
}

const AGAIN: Flags = Flags::RETRANSMITTED.union(Flags::ACK_REQUIRED);

#[test]
fn fragment_sizes_are_4096_bytes() {
    let counts = [
        (0, 1),
        (1, 1),
        (4095, 1),
        (4096, 1),
        (4097, 2),
        (8192, 2),
        (1_048_576, 256),
    ];
    let mut a = up(1);
    let mut b = up(1);
    for (len, count) in counts {
        let sequence = send(&mut a, len);
        let frames = frames(&mut a);
        assert_eq!(frames.len(), count, "{len} bytes");
        let (last, rest) = frames.split_last().unwrap();
        assert!(rest.iter().all(|frame| frame.body.len() == 4096));
        assert!(rest.iter().all(|frame| !frame.solicited) && last.solicited);
        assert!(rest.iter().all(|frame| frame.wire == last.wire));
        assert_eq!(take(&mut b, &frames), [sequence]);
        complete(&mut a, &frames);
    }
}

#[test]
fn fragment_violations_end_the_connection() {
    let valid = Header {
        len: 10_000,
        ..data(5, Flags::empty())
    };
    let fails = |headers: &[(Header, usize)]| {
        let mut b = up(1);
        let mut result = Ok(None);
        for (header, len) in headers {
            result = b.received(NOW, &header.encode(), vec![0; *len]);
        }
        let violation = result.unwrap_err();
        let ignored = b.received(NOW, &ack_frame(0), vec![]);
        assert!(matches!(ignored, Ok(None)), "nothing counts after that");
        assert!(b.transmit(1, no_map).is_none());
        violation
    };
    let wrong = |expected, len| Violation::FrameLen { expected, len };
    assert_eq!(fails(&[(valid, 4095)]), wrong(4096, 4095));
    assert_eq!(fails(&[(valid, 4096), (valid, 1)]), wrong(4096, 1));
    let to_last = [(valid, 4096), (valid, 4096)];
    for len in [1807, 1809] {
        assert_eq!(
            fails(&[&to_last[..], &[(valid, len)]].concat()),
            wrong(1808, len)
        );
    }
    assert_eq!(fails(&[(data(5, Flags::empty()), 1)]), wrong(0, 1));
    let invalid = [
        Header {
            sequence: 6,
            ..valid
        },
        Header { len: 9999, ..valid },
        Header { from: 1, ..valid },
        Header { to: 1, ..valid },
    ];
    for other in invalid {
        assert_eq!(
            fails(&[(valid, 4096), (other, 4096)]),
            Violation::Interleaved
        );
    }
    let long = Header {
        len: MAX_MESSAGE + 1,
        ..valid
    };
    let len = MAX_MESSAGE + 1;
    assert_eq!(fails(&[(long, 4096)]), Violation::MessageLen(len));
}

#[test]
fn pure_ack_ignores_other_fields() {
    let mut a = up(1);
    let sequence = send(&mut a, 0);
    let sent = frames(&mut a);
    complete(&mut a, &sent);
    let odd = Header {
        sequence: 99,
        ack: sequence,
        len: 77,
        flags: Flags::all(),
        credit: 200,
        ..Header::default()
    };
    assert!(!offer(&mut a, odd));
    assert_eq!(a.finished().unwrap().outcome, MessageOutcome::Done);
    assert_eq!(a.next_sequences().1, 0, "nothing has arrived");
    assert_eq!(ack(&mut a), None);
}

#[test]
fn retransmitted_messages_are_delivered_once() {
    let (mut a, mut b) = (up(1), up(1));
    for _ in 0..7 {
        send(&mut a, 10);
    }
    let sent = frames(&mut a);
    assert_eq!(take(&mut b, &sent[..5]), [1, 2, 3, 4, 5]);
    a.received(NOW, &ack_frame(2), vec![]).unwrap();
    a.reset();
    b.reset();
    establish(&mut a);
    establish(&mut b);
    let again = frames(&mut a);
    let numbers: Vec<u64> = again.iter().map(|frame| frame.header().sequence).collect();
    assert_eq!(numbers, [3, 4, 5, 6, 7]);
    assert!(again.iter().all(|frame| frame.header().flags == AGAIN));
    assert_eq!(take(&mut b, &again[..1]), []);
    assert_eq!(ack(&mut b), Some(3), "a duplicate is acknowledged");
    assert_eq!(take(&mut b, &again[1..]), [6, 7]);
    assert_eq!(ack(&mut b), Some(7));
    assert_eq!(b.stats().duplicates, 3);
}

#[test]
fn low_sequence_without_retransmit_flag_rewinds() {
    let mut b = up(1);
    assert!(offer(&mut b, data(100, Flags::empty())));
    b.reset();
    establish(&mut b);
    assert!(offer(&mut b, data(3, Flags::empty())));
    assert_eq!(b.next_sequences().1, 4);
    assert_eq!(b.stats().rewinds, 1);
    assert!(offer(&mut b, data(50, AGAIN)), "not below 4");
}

#[test]
fn ack_is_carried_by_data_or_sent_once_alone() {
    let mut b = up(1);
    assert!(offer(&mut b, data(1, Flags::ACK_REQUIRED)));
    send(&mut b, 0);
    assert_eq!(frames(&mut b)[0].header().ack, 1);
    assert!(b.acknowledge(NOW).is_none(), "the message carried it");
    assert!(offer(&mut b, data(2, Flags::ACK_REQUIRED)));
    let (first, _) = b.acknowledge(NOW).unwrap();
    assert!(b.acknowledge(NOW).is_none());
    assert!(offer(&mut b, data(3, Flags::ACK_REQUIRED)));
    assert!(b.acknowledge(NOW).is_none(), "one at a time");
    b.completed(first, Completion::Success);
    assert_eq!(ack(&mut b), Some(3));
    assert_eq!(ack(&mut b), None);
}

#[test]
fn delayed_ack_is_sent_after_its_delay() {
    let mut b = up(1);
    for sequence in 1..=5 {
        assert!(offer(&mut b, data(sequence, Flags::empty())));
    }
    assert!(b.acknowledge(Duration::MAX).is_none());
    assert_eq!(b.deadline(), None);
    let defaults = Settings::default();
    let mut b = End::new(&defaults, NonZero::<u64>::MIN);
    establish(&mut b);
    assert!(offer(&mut b, data(1, Flags::empty())));
    let at = b.deadline().unwrap();
    assert_eq!(at, Duration::from_millis(200));
    assert!(b.acknowledge(at - Duration::from_nanos(1)).is_none());
    assert!(b.acknowledge(at).is_some());
}

#[test]
fn keepalive_probes_a_silent_peer() {
    let after = Duration::from_secs(10);
    let settings = Settings {
        keepalive: Some(after),
        ..settings()
    };
    let mut a = End::new(&settings, NonZero::<u64>::MIN);
    assert_eq!((a.probe(after), a.deadline()), (None, None), "not up");
    establish(&mut a);
    assert_eq!(a.deadline(), Some(after));
    let received_at = Duration::from_secs(1);
    a.received(received_at, &ack_frame(0), vec![]).unwrap();
    assert_eq!(a.probe(after), None);
    let probe = a.probe(received_at + after).unwrap();
    let late = received_at + 2 * after;
    let timeout = received_at + after + Duration::from_secs(60);
    let in_flight = (a.probe(late), a.deadline());
    assert_eq!(in_flight, (None, Some(timeout)), "one at a time");
    a.completed(probe, Completion::Success);
    assert!(a.probe(late).is_some());
}

#[test]
fn ack_releases_covered_messages() {
    let mut a = up(1);
    for _ in 0..10 {
        send_urgent(&mut a, 1);
    }
    let sent: Vec<Frame> = (0..9).map(|_| next(&mut a).unwrap().unwrap()).collect();
    a.received(NOW, &ack_frame(7), vec![]).unwrap();
    assert!(a.finished().is_none(), "the device has not let go");
    complete(&mut a, &sent);
    let finished: Vec<u64> = std::iter::from_fn(|| a.finished())
        .map(|finished| finished.sequence)
        .collect();
    assert_eq!(finished, [1, 2, 3, 4, 5, 6, 7]);
    a.received(NOW, &ack_frame(99), vec![]).unwrap();
    assert_eq!(a.stats().false_acks, 1);
    assert_eq!(
        std::iter::from_fn(|| a.finished()).count(),
        2,
        "not the tenth"
    );
    assert!(a.has_unacknowledged());
    let last = frames(&mut a);
    complete(&mut a, &last);
    a.received(NOW, &ack_frame(10), vec![]).unwrap();
    assert!(a.finished().is_some() && a.all_finished());
}

/// An acknowledgement of a partially posted message, or of one not yet posted on this connection,
/// releases nothing and is counted.
#[test]
fn ack_beyond_last_posted_message_releases_nothing() {
    let (mut a, mut b) = (up(1), up(1));
    send(&mut a, 10_000);
    send(&mut a, 1);
    let first = next(&mut a).unwrap().unwrap();
    for hostile in [1, 2, u64::MAX] {
        a.received(NOW, &ack_frame(hostile), vec![]).unwrap();
        assert!(a.finished().is_none() && a.has_unacknowledged());
    }
    assert_eq!(a.stats().false_acks, 3);
    let rest = frames(&mut a);
    assert_eq!(rest.len(), 3, "the message is sent to its end");
    assert_eq!(take(&mut b, &[&[first][..], &rest].concat()), [1, 2]);
    // On the next connection, nothing is posted yet.
    a.reset();
    a.established(NOW, 0);
    a.received(NOW, &ack_frame(2), vec![]).unwrap();
    assert_eq!(a.stats().false_acks, 4);
    assert!(a.finished().is_none() && a.has_unacknowledged());
}

#[test]
fn reconnect_discards_partial_message() {
    let (mut a, mut b) = (up(1), up(1));
    send(&mut a, 10_000);
    let sent: Vec<Frame> = (0..2).map(|_| next(&mut a).unwrap().unwrap()).collect();
    assert_eq!(take(&mut b, &sent), []);
    assert!(b.receiving.is_assembling());
    a.reset();
    b.reset();
    assert!(!b.receiving.is_assembling());
    establish(&mut a);
    establish(&mut b);
    let again = frames(&mut a);
    assert_eq!(again.len(), 3);
    assert_eq!(take(&mut b, &again), [1]);
}

/// A restarted host with low sequence numbers loses messages.
#[test]
fn restart_with_low_sequence_loses_messages() {
    for (first, expected) in [(1_000_000, 3), (1, 0)] {
        let (mut a, mut b) = (up(500), up(1));
        for _ in 0..3 {
            send(&mut a, 1);
        }
        take(&mut b, &frames(&mut a));
        b.reset();
        establish(&mut b);
        // Another process, losing its first connection before any frame arrives.
        let mut a = up(first);
        for _ in 0..3 {
            send(&mut a, 1);
        }
        assert_eq!(frames(&mut a).len(), 3);
        a.reset();
        establish(&mut a);
        assert_eq!(take(&mut b, &frames(&mut a)).len(), expected);
    }
}

#[test]
fn restart_of_peer_is_detected() {
    for (confirmed, accepted) in [(true, true), (false, false)] {
        let mut b = up(1);
        for sequence in 1..=5 {
            assert!(offer(&mut b, data(sequence, Flags::ACK_REQUIRED)));
        }
        let (tag, _) = b.acknowledge(NOW).unwrap();
        let completion = if confirmed {
            Completion::Success
        } else {
            Completion::Flushed
        };
        b.completed(tag, completion);
        b.reset();
        establish(&mut b);
        assert_eq!(offer(&mut b, data(1, AGAIN)), accepted);
        assert_eq!(b.stats().restarts, u64::from(accepted));
        assert_eq!(b.stats().duplicates, u64::from(!accepted));
        assert!(
            !offer(&mut b, data(1, AGAIN)),
            "the next one is a duplicate"
        );
    }
}

/// A peer with lost receives is not taken for a restarted one.
#[test]
fn restart_is_not_detected_for_lost_receives() {
    for rx_lost in [true, false] {
        let (mut a, mut b) = (up(1), up(1));
        for _ in 0..3 {
            send(&mut a, 1);
        }
        assert_eq!(take(&mut b, &frames(&mut a)).len(), 3);
        let (tag, _) = b.acknowledge(NOW).unwrap();
        b.completed(tag, Completion::Success);
        if rx_lost {
            a.mark_rx_lost();
        }
        // The capability is sent on each connection, since the next may be lost before any frame
        // arrives.
        for _ in 0..2 {
            a.reset();
            b.reset();
            a.established(NOW, 0);
            establish(&mut b);
        }
        let count = take(&mut b, &frames(&mut a)).len();
        assert_eq!(count, if rx_lost { 0 } else { 3 });
        assert_eq!(b.stats().restarts, u64::from(!rx_lost));
    }
}

#[test]
fn ping_is_answered_and_port_1_is_reserved() {
    let mut b = up(1);
    let ping = |from, sequence| Header {
        sequence,
        from,
        to: 0,
        flags: Flags::ACK_REQUIRED,
        ..Header::default()
    };
    let got = b.received(NOW, &ping(4321, 1).encode(), vec![]).unwrap();
    assert!(matches!(got, Some(Received::Ping(4321))));
    b.pong(4321);
    let pong = frames(&mut b).remove(0).header();
    assert_eq!((pong.from, pong.to, pong.len, pong.ack), (0, 4321, 0, 1));
    // From port 0, with a body to distinguish the frame from a pure acknowledgement; and from port
    // 1.
    let zero = Header {
        len: 1,
        ..ping(0, 2)
    };
    let got = b.received(NOW, &zero.encode(), vec![1]).unwrap();
    assert!(got.is_none());
    assert!(
        b.received(NOW, &ping(1, 3).encode(), vec![])
            .unwrap()
            .is_none()
    );
    let to_one = Header {
        to: 1,
        ..ping(0, 4)
    };
    assert!(b.received(NOW, &to_one.encode(), vec![]).unwrap().is_none());
    assert_eq!(b.stats().reserved, 1);
    assert_eq!(ack(&mut b), Some(4), "all the same");
    b.pong(1);
    b.pong(0);
    assert!(next(&mut b).is_none());
    for (from, to, port) in [(1, 5, 1), (5, 1, 1), (0, 5, 0)] {
        let draft = Draft::new(1, vec![8]);
        let refused = b.send(
            Message {
                from,
                to,
                ..message(draft)
            },
            false,
        );
        let refused = refused.unwrap_err();
        assert_eq!(refused.error, BadMessage::Port(port));
        assert_eq!(refused.draft.payload, [8]);
    }
    for _ in 0..2000 {
        b.pong(9);
    }
    assert_eq!(
        b.stats().unanswered,
        2000 - 1024 + 1,
        "one was not acknowledged"
    );
}

#[test]
fn congestion_maps_are_sent_one_at_a_time() {
    let (mut a, mut b) = (up(1), up(1));
    let mut map = CongestionMap::default();
    map.set(4001, true);
    a.map_changed();
    let first = a.transmit(9, || &map).unwrap();
    assert!(matches!(
        first.request,
        Request::Frame {
            solicited: false,
            ..
        }
    ));
    let first = first.tag;
    // A change during sending causes another map.
    map.set(4002, true);
    a.map_changed();
    let second = a.transmit(9, || &map).unwrap();
    let Request::Frame {
        body: Body::Map { map: sent, range },
        solicited: true,
        ..
    } = second.request
    else {
        panic!("the rest of the map");
    };
    assert_eq!(range, 4096..8192);
    assert!(sent.contains(4001) && !sent.contains(4002));
    let second = second.tag;
    assert!(a.transmit(9, || &map).is_none(), "one at a time");
    a.completed(first, Completion::Success);
    a.completed(second, Completion::Success);
    let header = Header {
        len: 8192,
        flags: Flags::CONG_BITMAP,
        ..Header::default()
    };
    let bytes = map.as_bytes();
    for (half, ends) in [(0, false), (4096, true)] {
        let body = bytes[half..half + FRAGMENT as usize].to_vec();
        match b.received(NOW, &header.encode(), body).unwrap() {
            Some(Received::Map(read)) => assert!(ends && read == map),
            other => assert!(!ends && other.is_none()),
        }
    }
    assert_eq!(b.next_sequences().1, 0, "it is not counted");
    for (len, flags) in [
        (8192, AGAIN | Flags::CONG_BITMAP),
        (4096, Flags::CONG_BITMAP),
    ] {
        let bad = Header {
            len,
            flags,
            ..Header::default()
        };
        for _ in 0..len / FRAGMENT {
            let got = b.received(NOW, &bad.encode(), vec![0; 4096]).unwrap();
            assert!(got.is_none());
        }
    }
    assert_eq!(b.stats().bad_maps, 2);
    assert_eq!(ack(&mut b), None);
}

#[test]
fn cookie_arrives_with_its_message() {
    let (mut a, mut b) = (up(1), up(1));
    let cookie = Cookie {
        rkey: 5,
        offset: 0xfff,
    };
    let draft = Draft {
        cookie: Some(cookie),
        ..Draft::new(0, vec![])
    };
    a.send(message(draft), false).unwrap();
    let frame = frames(&mut a).remove(0);
    match b.received(NOW, &frame.wire, frame.body).unwrap() {
        Some(Received::Message(incoming)) => {
            assert_eq!((incoming.cookie, incoming.used), (Some(cookie), None));
        }
        other => panic!("{other:?}"),
    }
}

/// A rejected message is retransmitted.
#[test]
fn rejected_message_is_retransmitted() {
    let (mut a, mut b) = (up(1), up(1));
    send(&mut a, 1);
    let frame = frames(&mut a).remove(0);
    let got = b.received(NOW, &frame.wire, frame.body).unwrap();
    assert!(matches!(got, Some(Received::Message(_))));
    send(&mut b, 1);
    let other = frames(&mut b);
    complete(&mut b, &other);
    b.refuse(Violation::Overflow(4002));
    b.received(NOW, &ack_frame(1), vec![]).unwrap();
    assert!(b.finished().is_some(), "acknowledgements count");
    assert!(b.acknowledge(NOW).is_none());
    a.reset();
    b.reset();
    establish(&mut a);
    establish(&mut b);
    assert_eq!(take(&mut b, &frames(&mut a)), [1]);
}

/// The acknowledgement in the private data covers messages of earlier connections.
#[test]
fn ack_in_private_data_covers_earlier_messages() {
    let mut a = up(1);
    for _ in 0..3 {
        send(&mut a, 1);
    }
    assert_eq!(frames(&mut a).len(), 3);
    a.reset();
    send(&mut a, 1);
    a.established(NOW, u64::MAX);
    let finished = std::iter::from_fn(|| a.finished()).count();
    assert_eq!(finished, 3, "the fourth was never sent");
}
