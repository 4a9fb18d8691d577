//! A send after a read: on iWARP the send can complete first.

use cm::{Connection, Event, EventChannel};
use verbs::{RemoteAccess, op};

use crate::support::{Side, TEST_TIMEOUT, accepted, expect_event, listen, local, next, response};

const ROUNDS: u8 = 250;
const LEN: usize = 128 << 10;
const MESSAGE: usize = 8;

/// A connection: the active end and the passive end. The order of the events depends on the device.
pub(crate) fn connect(channel: &EventChannel) -> (Side, Connection, Connection) {
    let (_listener, addr) = listen(channel, local());
    let (side, active_qp, passive_qp) = accepted(channel, addr);
    let (active, passive) = match next(channel) {
        Event::ConnectResponse(response) => {
            let active = response.establish(active_qp).unwrap();
            (active, expect_event!(channel, Event::Established(id) => id))
        }
        Event::Established(passive) => {
            let active = response(channel).establish(active_qp).unwrap();
            (active, passive)
        }
        other => panic!("{other:?}"),
    };
    (side, active, Connection::new(passive, passive_qp).unwrap())
}

#[test]
fn read_followed_by_sends_returns_complete_data() {
    let channel = EventChannel::new().unwrap();
    let (mut side, mut active, mut passive) = connect(&channel);
    let region = side.pd.alloc_remote(LEN, RemoteAccess::READ).unwrap();
    for round in 1..=ROUNDS {
        region.write(0, &vec![round; LEN]);
        let receive = side.pd.alloc_buf(MESSAGE).unwrap();
        passive.qp_mut().post_recv(receive).unwrap();
        let read = op::Read::new(side.pd.alloc_buf(LEN).unwrap(), region.token());
        let read = if round % 2 == 0 {
            read
        } else {
            read.unsignaled()
        };
        let send = op::Send::new(side.pd.register_buf([round; MESSAGE]).unwrap());
        // In one batch, so that the kernel sends both before the peer answers.
        let mut batch = active.qp_mut().batch();
        batch.push(read).unwrap();
        batch.push(send).unwrap();
        batch.post().unwrap();
        let (mut reads, mut sends, mut receives) = (0, 0, 0);
        while (reads, sends, receives) != (1, 1, 1) {
            let completions = side.cq.wait(Some(TEST_TIMEOUT)).unwrap();
            assert!(completions.len() > 0, "nothing completed");
            for wc in completions {
                wc.ok().unwrap();
                if wc.is_receive() {
                    passive.qp_mut().complete(wc).unwrap().ok().unwrap();
                    receives += 1;
                    continue;
                }
                let mut works = Vec::new();
                let qp = active.qp_mut();
                let done = qp.complete_each(wc, |work| works.push(work)).unwrap();
                works.push(done.into_work().unwrap());
                for work in works {
                    assert!(work.iter().all(|byte| *byte == round), "round {round}");
                    match work.len() {
                        LEN => reads += 1,
                        _ => sends += 1,
                    }
                }
            }
        }
        assert_eq!(active.qp().send_queue().in_flight(), 0);
    }
}
