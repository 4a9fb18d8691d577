//! RDMA and atomic operations, and cancelling.

use super::*;

fn rdma(notify: bool, remote: bool, token: u64) -> Rdma {
    Rdma {
        direction: Direction::Write,
        rkey: 0x300,
        addr: 0xc40,
        len: 100,
        requests: 3,
        fence: true,
        report: Report {
            token,
            notify,
            remote,
        },
    }
}

fn atomic(token: u64) -> Atomic {
    Atomic {
        op: AtomicOp::FetchAdd(1),
        rkey: 0x300,
        addr: 0xc40,
        fence: false,
        report: Report {
            token,
            notify: true,
            remote: false,
        },
    }
}

fn with_rdma(len: u32, rdma: Rdma, silent: bool) -> Message<Vec<u8>> {
    message(Draft {
        rdma: Some(Box::new(rdma)),
        silent,
        ..Draft::new(len, bytes(len))
    })
}

fn take_ended(end: &mut End) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| end.notification())
        .map(|notification| (notification.token, notification.status))
        .collect()
}

/// Kernels with a second extension name the key first, and then the length of the operation.
#[test]
fn key_beside_a_length_ends_the_export() {
    let mut end = up(1);
    let mut header = data(1, Flags::SECOND_EXTENSION);
    header.extensions.0[..14].copy_from_slice(&[2, 0, 0, 3, 0, 4, 0, 0, 0, 100, 1, 0, 0, 0]);
    match end.received(NOW, &header.encode(), vec![]).unwrap() {
        Some(Received::Message(incoming)) => {
            assert_eq!((incoming.cookie, incoming.used), (None, Some(0x300)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_are_dropped_on_reconnect() {
    let mut a = up(1);
    a.send(with_rdma(5, rdma(true, false, 11), false), false)
        .unwrap();
    a.send(with_rdma(0, rdma(true, false, 12), true), false)
        .unwrap();
    let third = send(&mut a, 1);
    assert_eq!(third, 3, "the silent one has a number");
    assert!(a.transmit(2, no_map).is_none(), "it takes 3");
    let (_, _) = next(&mut a).unwrap().unwrap_err();
    let chasing = next(&mut a).unwrap().unwrap();
    let extensions = chasing.header().extensions;
    assert_eq!(extensions.iter().next(), Some(Extension::Rdma(0x300)));
    let (_, _) = next(&mut a).unwrap().unwrap_err();
    assert_eq!(next(&mut a).unwrap().unwrap().header().sequence, 3);
    a.reset();
    let mut lost = take_ended(&mut a);
    lost.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(lost, [(11, Status::Dropped), (12, Status::Dropped)]);
    let fates: Vec<MessageOutcome> = std::iter::from_fn(|| a.finished())
        .map(|f| f.outcome)
        .collect();
    assert_eq!(fates.len(), 2);
    assert!(fates.contains(&MessageOutcome::Dropped));
    establish(&mut a);
    let again = frames(&mut a);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].header().sequence, 3);
    assert_eq!(take_ended(&mut a), []);
}

/// A flushed operation may have been performed.
#[test]
fn flushed_silent_operation_is_dropped() {
    // A silent operation.
    let mut a = up(1);
    a.send(with_rdma(0, rdma(true, false, 1), true), false)
        .unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    a.completed(op, Completion::Flushed);
    assert_eq!(take_ended(&mut a), [(1, Status::Dropped)]);
    assert_eq!(a.finished().unwrap().failed, Some(Status::Dropped));
    // A silent operation, followed by another.
    let (mut both, atomic) = (rdma(true, false, 2), atomic(3));
    both.fence = false;
    let mut with_both = with_rdma(0, both, true);
    with_both.draft.atomic = Some(Box::new(atomic));
    a.send(with_both, false).unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    let (_, change) = next(&mut a).unwrap().unwrap_err();
    a.completed(op, Completion::Success);
    a.completed(change, Completion::Flushed);
    let mut ends = take_ended(&mut a);
    ends.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(ends, [(2, Status::Success), (3, Status::Dropped)]);
    assert_eq!(a.finished().unwrap().failed, Some(Status::Dropped));
}

/// An acknowledged message proves earlier writes performed, but not the arrival of earlier reads.
#[test]
fn flushed_read_of_acked_message_is_dropped() {
    let done_first = [
        (Direction::Read, Status::Dropped),
        (Direction::Write, Status::Success),
    ];
    for (direction, expected) in done_first {
        for (remote, flushed_first, resets) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (true, true, false),
            (false, false, true),
            (true, false, true),
        ] {
            let mut a = up(1);
            let operation = Rdma {
                direction,
                fence: false,
                ..rdma(true, remote, 1)
            };
            let mut message = with_rdma(5, operation, false);
            message.draft.atomic = Some(Box::new(atomic(2)));
            let sequence = a.send(message, false).unwrap();
            let (_, op) = next(&mut a).unwrap().unwrap_err();
            let (_, change) = next(&mut a).unwrap().unwrap_err();
            let chasing = frames(&mut a);
            if !flushed_first {
                a.received(NOW, &ack_frame(sequence), vec![]).unwrap();
                assert_eq!(take_ended(&mut a), [], "the device has it still");
            }
            if resets {
                a.reset();
            } else {
                for tag in [op, change, chasing[0].tag] {
                    a.completed(tag, Completion::Flushed);
                }
            }
            if flushed_first {
                a.received(NOW, &ack_frame(sequence), vec![]).unwrap();
            }
            let mut ends = take_ended(&mut a);
            ends.sort_unstable_by_key(|(token, _)| *token);
            assert_eq!(ends, [(1, expected), (2, Status::Dropped)], "{direction:?}");
            let finished = a.finished().unwrap();
            assert_eq!(finished.outcome, MessageOutcome::Done);
            assert_eq!(finished.failed, Some(Status::Dropped));
        }
    }
    // A completed read stays successful.
    let mut a = up(1);
    let read = Rdma {
        direction: Direction::Read,
        ..rdma(true, false, 1)
    };
    let sequence = a.send(with_rdma(5, read, false), false).unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    let chasing = frames(&mut a);
    a.completed(op, Completion::Success);
    a.received(NOW, &ack_frame(sequence), vec![]).unwrap();
    a.completed(chasing[0].tag, Completion::Flushed);
    assert_eq!(take_ended(&mut a), [(1, Status::Success)]);
}

#[test]
fn operation_is_notified_once_at_the_requested_time() {
    // Reported with the send completion of the message.
    let mut a = up(1);
    a.send(with_rdma(5, rdma(true, false, 1), false), false)
        .unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    a.completed(op, Completion::Success);
    assert_eq!(take_ended(&mut a), []);
    let chasing = frames(&mut a);
    complete(&mut a, &chasing);
    assert_eq!(take_ended(&mut a), [(1, Status::Success)]);
    a.received(NOW, &ack_frame(1), vec![]).unwrap();
    assert_eq!(take_ended(&mut a), []);
    // Reported with the acknowledgement.
    a.send(with_rdma(5, rdma(true, true, 2), false), false)
        .unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    a.completed(op, Completion::Success);
    let chasing = frames(&mut a);
    complete(&mut a, &chasing);
    assert_eq!(take_ended(&mut a), []);
    a.received(NOW, &ack_frame(2), vec![]).unwrap();
    assert_eq!(take_ended(&mut a), [(2, Status::Success)]);
    // A silent operation is reported with its own completion.
    a.send(with_rdma(0, rdma(true, false, 3), true), false)
        .unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    assert!(next(&mut a).is_none());
    a.completed(op, Completion::Success);
    assert_eq!(take_ended(&mut a), [(3, Status::Success)]);
    // Rejected by the peer's device, with the rest flushed.
    for (notify, token) in [(true, 4), (false, 5)] {
        a.send(with_rdma(5, rdma(notify, false, token), false), false)
            .unwrap();
        let (_, op) = next(&mut a).unwrap().unwrap_err();
        let chasing = frames(&mut a);
        a.completed(op, Completion::RemoteError);
        a.completed(chasing[0].tag, Completion::Flushed);
        a.reset();
        let notification = a.notification().unwrap();
        assert_eq!(notification.status, Status::RemoteError);
        assert_eq!(
            (notification.token, notification.requested),
            (token, notify)
        );
        assert_eq!(take_ended(&mut a), []);
        establish(&mut a);
    }
}

#[test]
fn cancel_releases_each_message_once() {
    let (mut a, mut b) = (up(1), up(1));
    for len in [1, 1, 10_000, 1, 1] {
        send(&mut a, len);
    }
    // The second message is in flight, the third partially posted, the others unsent.
    let mut sent: Vec<Frame> = (0..3).map(|_| next(&mut a).unwrap().unwrap()).collect();
    complete(&mut a, &sent[..1]);
    a.received(NOW, &ack_frame(1), vec![]).unwrap();
    a.cancel(OWNER, Some(4003));
    assert_eq!(a.finished().unwrap().outcome, MessageOutcome::Done);
    a.cancel(OWNER, Some(4002));
    let cancelled: Vec<u64> = std::iter::from_fn(|| a.finished())
        .map(|f| f.sequence)
        .collect();
    assert_eq!(cancelled, [2, 4, 5]);
    sent.extend(frames(&mut a));
    assert_eq!(
        sent.len(),
        5,
        "the message that has begun is sent to its end"
    );
    let sixth = send(&mut a, 3);
    sent.extend(frames(&mut a));
    assert_eq!(take(&mut b, &sent), [1, 2, 3, sixth]);
    complete(&mut a, &sent[1..]);
    a.received(NOW, &ack_frame(sixth), vec![]).unwrap();
    let rest: Vec<(u64, MessageOutcome)> = std::iter::from_fn(|| a.finished())
        .map(|finished| (finished.sequence, finished.outcome))
        .collect();
    assert_eq!(
        rest,
        [
            (3, MessageOutcome::Cancelled),
            (sixth, MessageOutcome::Done)
        ]
    );
    assert!(a.all_finished());
}

#[test]
fn cancel_notifies_operation() {
    let mut a = up(1);
    a.send(with_rdma(5, rdma(true, false, 1), false), false)
        .unwrap();
    a.cancel(OWNER, None);
    assert_eq!(take_ended(&mut a), [(1, Status::Cancelled)]);
    assert_eq!(a.finished().unwrap().outcome, MessageOutcome::Cancelled);
}

/// Operations do not carry acknowledgements.
#[test]
fn operation_completion_confirms_no_ack() {
    let mut b = up(1);
    assert!(offer(&mut b, data(1, Flags::ACK_REQUIRED)));
    b.send(with_rdma(5, rdma(true, false, 1), false), false)
        .unwrap();
    let (_, op) = next(&mut b).unwrap().unwrap_err();
    let chasing = frames(&mut b);
    assert_eq!(chasing[0].header().ack, 1);
    b.completed(op, Completion::Success);
    b.completed(chasing[0].tag, Completion::Flushed);
    b.reset();
    establish(&mut b);
    assert!(!offer(&mut b, data(1, AGAIN)), "it is a duplicate");
}

#[test]
fn operation_waiting_for_room_triggers_probe() {
    let mut a = up(1);
    send(&mut a, 1);
    a.send(with_rdma(5, rdma(true, false, 1), false), false)
        .unwrap();
    let plain = next(&mut a).unwrap().unwrap();
    assert!(!plain.signaled);
    assert_eq!(a.probe(NOW), None, "nothing waits for room yet");
    assert!(a.transmit(2, no_map).is_none(), "it takes 3");
    let probe = a.probe(NOW).unwrap();
    assert_eq!(a.probe(NOW), None, "one at a time");
    assert!(a.transmit(2, no_map).is_none());
    a.completed(plain.tag, Completion::Success);
    a.completed(probe, Completion::Success);
    assert_eq!(a.probe(NOW), None, "all that has been posted is over");
    assert!(next(&mut a).unwrap().is_err(), "there is room");
    assert_eq!(a.probe(NOW), None);
}

/// Unusable memory, before and after sending.
#[test]
fn give_up_drops_messages_with_lost_memory() {
    let mut a = up(1);
    a.send(with_rdma(5, rdma(true, false, 11), false), false)
        .unwrap();
    let sent = send(&mut a, 3);
    let posted: Vec<_> = std::iter::from_fn(|| next(&mut a)).collect();
    assert_eq!(posted.len(), 3, "the operation, and two frames");
    a.reset();
    assert_eq!(take_ended(&mut a), [(11, Status::Dropped)]);
    a.send(with_rdma(7, rdma(true, false, 12), false), false)
        .unwrap();
    send(&mut a, 4);
    let mut lens = vec![];
    a.payloads(|payload| lens.push(payload.len()));
    assert_eq!(lens, [3, 7, 4]);
    a.give_up(|payload| [3, 7].contains(&payload.len()));
    assert_eq!(take_ended(&mut a), [(12, Status::Dropped)]);
    let finished: Vec<_> = std::iter::from_fn(|| a.finished())
        .map(|finished| (finished.sequence, finished.outcome))
        .collect();
    let dropped = |sequence| (sequence, MessageOutcome::Dropped);
    assert_eq!(finished, [sent - 1, sent, sent + 1].map(dropped));
    let mut remaining = vec![];
    a.payloads(|payload| remaining.push(payload.len()));
    assert_eq!(remaining, [4]);
}

/// A notification means the device no longer accesses the memory of the operation.
#[test]
fn operation_is_notified_after_device_release() {
    // Cancelled.
    let mut a = up(1);
    a.send(with_rdma(5, rdma(true, false, 1), false), false)
        .unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    let chasing = frames(&mut a);
    a.cancel(OWNER, None);
    assert_eq!(take_ended(&mut a), [], "the device has it still");
    a.completed(op, Completion::Success);
    complete(&mut a, &chasing);
    assert_eq!(
        take_ended(&mut a),
        [(1, Status::Success)],
        "it has been done"
    );
    assert_eq!(a.finished().unwrap().outcome, MessageOutcome::Cancelled);
    // Cancelled, with the loss of the connection.
    let remote = rdma(true, true, 2);
    a.send(with_rdma(5, remote, false), false).unwrap();
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    let chasing = frames(&mut a);
    a.cancel(OWNER, None);
    a.completed(op, Completion::Flushed);
    assert_eq!(take_ended(&mut a), [], "the device has the message still");
    a.completed(chasing[0].tag, Completion::Flushed);
    assert_eq!(take_ended(&mut a), [(2, Status::Cancelled)]);
    // Acknowledged.
    let sequence = a.send(with_rdma(5, rdma(true, true, 3), false), false);
    let (_, op) = next(&mut a).unwrap().unwrap_err();
    let chasing = frames(&mut a);
    a.received(NOW, &ack_frame(sequence.unwrap()), vec![])
        .unwrap();
    assert_eq!(take_ended(&mut a), [], "the device has it still");
    a.completed(op, Completion::Success);
    complete(&mut a, &chasing);
    assert_eq!(take_ended(&mut a), [(3, Status::Success)]);
}
