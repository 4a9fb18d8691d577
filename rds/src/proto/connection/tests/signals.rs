//! Which requests are signalled, and who waits for that.

use super::*;

#[test]
fn only_who_waits_for_the_device_hears_of_it() {
    let mut a = up(1);
    let plain: Vec<u64> = (0..20).map(|_| send(&mut a, 1)).collect();
    let urgent = send_urgent(&mut a, 1);
    let sent = frames(&mut a);
    let signalled: Vec<bool> = sent.iter().map(|frame| frame.signalled).collect();
    let at = |signalled: bool, at: usize| signalled == (at == 15 || at == 20);
    let right = signalled.iter().enumerate().all(|(i, &is)| at(is, i));
    assert!(right, "one of sixteen, and the urgent one: {signalled:?}");
    a.received(NOW, &ack_frame(urgent), vec![]).unwrap();
    let over = |a: &mut End| -> Vec<u64> {
        std::iter::from_fn(|| a.finished())
            .map(|finished| finished.sequence)
            .collect()
    };
    assert_eq!(over(&mut a), plain, "the peer has them");
    assert!(a.awaits_device());
    complete(&mut a, &sent);
    assert_eq!(over(&mut a), [urgent]);
    assert!(a.all_finished());
}

/// Requests of one frame, which begin and end at once, and frames of the congestion map.
#[test]
fn last_request_that_fits_is_signalled_whatever_it_carries() {
    for (room, signalled) in [(2, false), (1, true)] {
        let mut a = up(1);
        send(&mut a, 1);
        let message = a.transmit(room, no_map).unwrap();
        assert_eq!(message.signalled, signalled, "a message, room {room}");
        let mut a = fresh(1);
        a.established(NOW, 0);
        let map = a.transmit(room, no_map).unwrap();
        assert_eq!(map.signalled, signalled, "a map, room {room}");
    }
}

/// Or its completion would never make room.
#[test]
fn the_last_request_that_fits_is_signalled() {
    let mut a = up(1);
    send(&mut a, 10 * FRAGMENT);
    let mut signalled = Vec::new();
    for room in (0..5).rev() {
        if let Some(work) = a.transmit(room, no_map) {
            signalled.push(work.signalled);
        }
    }
    assert_eq!(signalled, [false, false, false, true]);
}

/// So is a message of one frame.
#[test]
fn short_message_with_room_for_no_other_is_signalled() {
    let mut a = up(1);
    for _ in 0..2 {
        send(&mut a, 1);
    }
    let signalled = [2, 1].map(|room| a.transmit(room, no_map).unwrap().signalled);
    assert_eq!(signalled, [false, true]);
}
