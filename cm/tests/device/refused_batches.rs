//! A batch with a request that the provider refuses. iWARP has no immediate data: the provider of Soft-iWARP refuses the
//! request, and returns success if it has posted an earlier one.

use cm::EventChannel;
use verbs::{Buf, Completed, QueuePair, Rts, op};

use crate::{
    overtaking::connect,
    support::{Side, TEST_TIMEOUT},
};

const LEN: usize = 8;
const REQUESTS: u8 = 4;
/// The request with immediate data.
const WITH_IMM_DATA: u8 = 2;

fn buf(side: &Side, number: u8) -> Buf {
    side.pd.register_buf([number; LEN]).unwrap()
}

/// Waits until `sends` have been sent and `receives` received. Returns the first byte of each message.
fn complete(
    side: &mut Side,
    (sender, receiver): (
        &mut QueuePair<verbs::Rc, Rts>,
        &mut QueuePair<verbs::Rc, Rts>,
    ),
    mut sends: usize,
    mut receives: usize,
) -> Vec<u8> {
    let mut messages = Vec::new();
    while sends + receives > 0 {
        let completions = side.cq.wait(Some(TEST_TIMEOUT)).unwrap();
        assert!(completions.len() > 0, "nothing completed");
        for wc in completions {
            wc.ok().unwrap();
            let qp = if wc.is_receive() {
                &mut *receiver
            } else {
                &mut *sender
            };
            match qp.complete(wc).unwrap() {
                Completed::Receive(done) => {
                    messages.push(done.into_work().unwrap()[0]);
                    receives -= 1;
                }
                Completed::Send(done) => {
                    done.ok().unwrap();
                    sends -= 1;
                }
            }
        }
    }
    messages
}

#[test]
fn batch_with_a_request_unknown_to_iwarp_returns_it_and_later_ones() {
    let channel = EventChannel::new().unwrap();
    let (mut side, mut active, mut passive) = connect(&channel);
    let (sender, receiver) = (active.qp_mut(), passive.qp_mut());
    for number in 0..REQUESTS {
        receiver.post_recv(buf(&side, number)).unwrap();
    }
    let mut batch = sender.batch();
    for number in 0..REQUESTS {
        let send = op::Send::new(buf(&side, number));
        let send = if number == WITH_IMM_DATA {
            send.imm_data(7)
        } else {
            send
        };
        batch.push(send).unwrap();
    }
    let posted = batch.post();
    if !side.pd.context().is_iwarp() {
        posted.unwrap();
        let all = usize::from(REQUESTS);
        let messages = complete(&mut side, (sender, receiver), all, all);
        assert_eq!(messages, [0, 1, 2, 3]);
        return;
    }
    let refused = posted.unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
    let text = refused.error.to_string();
    assert!(text.contains("request 2 of 4"), "{text}");
    let returned: Vec<u8> = refused.value.iter().map(|work| work[0]).collect();
    assert_eq!(returned, [2, 3]);
    assert_eq!(sender.send_queue().in_flight(), 2);
    assert_eq!(complete(&mut side, (sender, receiver), 2, 2), [0, 1]);
    // The queue works on, and the returned memory is this test's.
    for work in refused.value {
        sender.post(op::Send::new(work)).unwrap();
    }
    assert_eq!(complete(&mut side, (sender, receiver), 2, 2), [2, 3]);
    assert_eq!(sender.send_queue().in_flight(), 0);
}
