//! Frames reported again by a device, and peers that stall a connection.

use super::*;

/// Soft-RoCE of Linux 6.4 and later reports a message again when its queue pair fails.
#[test]
fn low_sequence_after_the_first_message_is_a_duplicate() {
    let mut b = up(1);
    assert!(offer(&mut b, data(7, Flags::empty())));
    assert!(!offer(&mut b, data(7, Flags::empty())), "the first again");
    assert!(offer(&mut b, data(8, Flags::ACK_REQUIRED)));
    assert_eq!(ack(&mut b), Some(8));
    for _ in 0..3 {
        assert!(!offer(&mut b, data(8, Flags::ACK_REQUIRED)));
    }
    assert_eq!(b.next_sequences().1, 9);
    assert_eq!((b.stats().rewinds, b.stats().duplicates), (0, 4));
    assert!(offer(&mut b, data(9, Flags::empty())));
}

/// A message of several frames is not completed by frames reported again.
#[test]
fn frames_after_the_end_complete_no_message() {
    let (mut a, mut b) = (up(1), up(1));
    send(&mut a, 3 * FRAGMENT);
    send(&mut a, 1);
    let sent = frames(&mut a);
    let receive = |b: &mut End, frame: &Frame| {
        b.ended(&frame.wire);
        let received = b.received(NOW, &frame.wire, frame.body.clone());
        received.unwrap().is_some()
    };
    b.received(NOW, &sent[0].wire, sent[0].body.clone())
        .unwrap();
    for frame in [&sent[1], &sent[1], &sent[2], &sent[3]] {
        assert!(!receive(&mut b, frame));
    }
    // Single frames are delivered up to then.
    b.reset();
    establish(&mut b);
    assert!(offer(&mut b, data(1, Flags::empty())));
    let mut frame = sent[3].clone();
    frame.body = vec![0];
    assert!(receive(&mut b, &frame));
}

#[test]
fn incomplete_message_stalls_the_connection_after_a_minute() {
    let (mut a, mut b) = (up(1), up(1));
    send(&mut a, 2 * FRAGMENT);
    let sent = frames(&mut a);
    let minute = Duration::from_secs(60);
    let at = Duration::from_secs(5);
    b.received(at, &sent[0].wire, sent[0].body.clone()).unwrap();
    assert_eq!(b.deadline(), Some(at + minute));
    // Acknowledgements alone do not keep the message.
    let later = at + minute / 2;
    assert!(b.received(later, &ack_frame(0), vec![]).unwrap().is_none());
    assert_eq!(b.deadline(), Some(at + minute));
    assert!(b.is_idle(later) && !b.is_stalled(later));
    assert!(!b.is_idle(at + minute) && b.is_stalled(at + minute));
    b.received(later, &sent[1].wire, sent[1].body.clone())
        .unwrap();
    assert!(!b.is_stalled(at + minute), "the message is complete");
}

#[test]
fn probe_without_completion_stalls_the_connection_after_a_minute() {
    let settings = Settings {
        keepalive: Some(Duration::from_secs(10)),
        ..settings()
    };
    let mut a = End::new(&settings, NonZero::<u64>::MIN);
    establish(&mut a);
    let at = Duration::from_secs(10);
    let tag = a.probe(at).unwrap();
    let end = at + Duration::from_secs(60);
    // Frames of the peer do not excuse that it posts no receives.
    for seconds in 11..70 {
        let now = Duration::from_secs(seconds);
        a.received(now, &ack_frame(0), vec![]).unwrap();
        assert!(!a.is_stalled(now));
    }
    assert_eq!(a.deadline(), Some(end));
    assert!(a.is_stalled(end));
    a.completed(tag, Completion::Success);
    assert!(!a.is_stalled(end));
}
