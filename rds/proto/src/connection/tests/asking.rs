//! Acknowledgement requests.

use super::*;

#[test]
fn ack_is_requested_by_every_ninth_message() {
    let mut a = up(1);
    for _ in 0..30 {
        send(&mut a, 1);
    }
    let asking = |frames: &[Frame]| -> Vec<u64> {
        let headers = frames.iter().map(Frame::header);
        headers
            .filter(|header| header.flags.contains(Flags::ACK_REQUIRED))
            .map(|header| header.sequence)
            .collect()
    };
    assert_eq!(asking(&frames(&mut a)), [1, 10, 19, 28, 30], "and the last");
    let half = message(Draft::new(1, bytes(1)));
    a.send(half.clone(), true).unwrap();
    a.send(half, false).unwrap();
    send(&mut a, 1);
    assert_eq!(asking(&frames(&mut a)), [31, 33]);
    // 16 MiB are 16 messages of maximum length.
    let settings = Settings {
        max_unacked_messages: 1000,
        ..settings()
    };
    let mut a = End::new(&settings, NonZero::<u64>::MIN);
    establish(&mut a);
    for _ in 0..20 {
        send(&mut a, MAX_MESSAGE);
    }
    let last = |frame: &Frame| frame.solicited;
    let sent: Vec<Frame> = frames(&mut a).into_iter().filter(last).collect();
    assert_eq!(asking(&sent), [1, 18, 20]);
}

/// With delayed acknowledgements of the peer, the end of the last message is noticed without a
/// request.
#[test]
fn delayed_acks_of_peer_suppress_requests_of_plain_messages() {
    let lazy = Settings {
        ack_after: Some(Duration::from_millis(50)),
        ..settings()
    };
    let mut b = End::new(&lazy, NonZero::<u64>::MIN);
    b.established(NOW, 0);
    let map = frames(&mut b);
    let capabilities = Extension::Capabilities(Extension::DELAYED_ACKS);
    assert_eq!(map[0].header().extensions.iter().next(), Some(capabilities));
    let mut silent = up(1);
    silent.reset();
    silent.established(NOW, 0);
    let unasked = frames(&mut silent);
    assert_eq!(unasked[0].header().extensions.iter().next(), None);

    let mut a = up(1);
    let requests_ack = |a: &mut End, urgent: bool| {
        let draft = Draft {
            urgent,
            ..Draft::new(0, vec![])
        };
        a.send(message(draft), false).unwrap();
        let flags = frames(a)[0].header().flags;
        flags.contains(Flags::ACK_REQUIRED)
    };
    assert!(requests_ack(&mut a, false), "the first does");
    assert!(requests_ack(&mut a, false), "nothing is known of the peer");
    take(&mut a, &map);
    assert!(!requests_ack(&mut a, false));
    assert!(requests_ack(&mut a, true));
    assert!(!requests_ack(&mut a, false));
    // One request covers earlier messages.
    let draft = Draft {
        urgent: true,
        ..Draft::new(0, vec![])
    };
    a.send(message(draft), false).unwrap();
    send(&mut a, 0);
    let flags: Vec<Flags> = frames(&mut a)
        .iter()
        .map(|frame| frame.header().flags)
        .collect();
    assert_eq!(flags, [Flags::empty(), Flags::ACK_REQUIRED]);
    // Capabilities are per RDMA connection.
    a.reset();
    establish(&mut a);
    frames(&mut a);
    assert!(requests_ack(&mut a, false));
    take(&mut a, &unasked);
    assert!(requests_ack(&mut a, false));
}

/// Request-response traffic needs no acknowledgement requests.
#[test]
fn ack_requests_are_absent_in_request_response() {
    let lazy = Settings {
        ack_after: Some(Duration::from_millis(50)),
        max_unacked_bytes: 4 * 100,
        ..settings()
    };
    let mut ends = [1, 2].map(|_| End::new(&lazy, NonZero::<u64>::MIN));
    let maps = ends.each_mut().map(|end| {
        end.established(NOW, 0);
        frames(end)
    });
    let [a, b] = &mut ends;
    take(a, &maps[1]);
    take(b, &maps[0]);
    let requests_ack = |sent: &[Frame]| sent[0].header().flags.contains(Flags::ACK_REQUIRED);
    for round in 1..=40 {
        let exchange = |from: &mut End, to: &mut End| {
            send(from, 100);
            let sent = frames(from);
            assert_eq!(requests_ack(&sent), round == 1, "{round}: the first may");
            assert_eq!(take(to, &sent), [round]);
        };
        exchange(a, b);
        exchange(b, a);
        assert_eq!(
            ack(a),
            (round == 1).then_some(1),
            "{round}: nothing else is owed"
        );
    }
    // Unanswered messages request acknowledgements as usual.
    let unanswered: Vec<bool> = (0..7)
        .map(|_| {
            send(a, 100);
            requests_ack(&frames(a))
        })
        .collect();
    assert_eq!(unanswered, [false, false, false, false, true, false, false]);
}
