//! Signaling of requests.

use super::*;

#[test]
fn signaled_requests_are_one_in_sixteen_and_urgent_ones() {
    let mut a = up(1);
    let plain: Vec<u64> = (0..20).map(|_| send(&mut a, 1)).collect();
    let urgent = send_urgent(&mut a, 1);
    let sent = frames(&mut a);
    let signaled: Vec<bool> = sent.iter().map(|frame| frame.signaled).collect();
    let at = |signaled: bool, at: usize| signaled == (at == 15 || at == 20);
    let right = signaled.iter().enumerate().all(|(i, &is)| at(is, i));
    assert!(right, "one of sixteen, and the urgent one: {signaled:?}");
    a.received(NOW, &ack_frame(urgent), vec![]).unwrap();
    let ended = |a: &mut End| -> Vec<u64> {
        std::iter::from_fn(|| a.finished())
            .map(|finished| finished.sequence)
            .collect()
    };
    assert_eq!(ended(&mut a), plain, "the peer has them");
    assert!(a.awaits_device());
    complete(&mut a, &sent);
    assert_eq!(ended(&mut a), [urgent]);
    assert!(a.all_finished());
}

/// Single-frame messages, and frames of the congestion map.
#[test]
fn last_request_that_fits_is_signaled_for_maps_and_messages() {
    for (free, signaled) in [(2, false), (1, true)] {
        let mut a = up(1);
        send(&mut a, 1);
        let message = a.transmit(free, no_map).unwrap();
        assert_eq!(message.signaled, signaled, "a message, room {free}");
        let mut a = fresh(1);
        a.established(NOW, 0);
        let map = a.transmit(free, no_map).unwrap();
        assert_eq!(map.signaled, signaled, "a map, room {free}");
    }
}

/// Otherwise the send queue would never drain.
#[test]
fn last_request_that_fits_is_signaled() {
    let mut a = up(1);
    send(&mut a, 10 * FRAGMENT);
    let mut signaled = Vec::new();
    for free in (0..5).rev() {
        if let Some(work) = a.transmit(free, no_map) {
            signaled.push(work.signaled);
        }
    }
    assert_eq!(signaled, [false, false, false, true]);
}

/// The rule also covers single-frame messages.
#[test]
fn last_short_message_that_fits_is_signaled() {
    let mut a = up(1);
    for _ in 0..2 {
        send(&mut a, 1);
    }
    let signaled = [2, 1].map(|free| a.transmit(free, no_map).unwrap().signaled);
    assert_eq!(signaled, [false, true]);
}
