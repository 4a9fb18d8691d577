//! Messages and writes there and back, the traffic of most cases.

use std::time::Duration;

use verbs::{
    AddressHandle, Buf, Completed, CompletionQueue, Init, QueuePair, RemoteToken, Reset, Rtr, Rts,
    Ud, WcStatus, WorkCompletion,
    ah::{Addressed, GRH_LEN},
    cq::{CompletionChannel, CqHandle, ExtendedCq, Notify},
    op,
    qp::{Attributes, Psn, Transport},
};

use crate::loopback::Fixture;

pub(super) const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
pub(super) const QKEY: u32 = 0x1111_1111;
/// How often each case goes there and back.
pub(super) const ROUNDS: u32 = 20;
/// How long a message is.
pub(super) const SIZE: usize = 1024;

pub(super) type RcQp = QueuePair<verbs::Rc, Rts>;
pub(super) type UdQp = QueuePair<Ud, Rts, Addressed<Buf>, Buf>;

/// A means of waiting for completions.
pub(super) trait Poller {
    /// Waits for completions, and hands them to `take`.
    fn wait_each(&mut self, take: &mut dyn FnMut(WorkCompletion<'_>));
}

impl Poller for CompletionQueue {
    fn wait_each(&mut self, take: &mut dyn FnMut(WorkCompletion<'_>)) {
        let completions = self.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        completions.for_each(take);
    }
}

impl Poller for ExtendedCq {
    fn wait_each(&mut self, take: &mut dyn FnMut(WorkCompletion<'_>)) {
        let mut polled = self
            .wait(TEST_TIMEOUT)
            .unwrap()
            .expect("nothing has completed");
        while let Some(wc) = polled.next().unwrap() {
            take(wc.into_work_completion());
        }
    }
}

/// A queue, and its notification channel.
pub(super) struct NotifiedCq(pub(super) CompletionQueue, pub(super) CompletionChannel);

impl Poller for NotifiedCq {
    fn wait_each(&mut self, take: &mut dyn FnMut(WorkCompletion<'_>)) {
        let Self(cq, channel) = self;
        cq.req_notify(Notify::Next).unwrap();
        let completions = cq.poll().unwrap();
        if completions.len() > 0 {
            return completions.for_each(take);
        }
        let key = channel.wait_timeout(Duration::from_secs(60)).unwrap();
        assert!(key.is_some(), "no completion was notified");
    }
}

/// A queue pair for datagrams, brought up.
pub(super) fn datagram_qp(qp: QueuePair<Ud, Reset, Addressed<Buf>, Buf>) -> UdQp {
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap()
}

/// Two queue pairs for datagrams on one completion queue.
pub(super) fn datagram_pair(fixture: &Fixture, cq: &CqHandle) -> (UdQp, UdQp) {
    let make = || {
        let qp = fixture.pd.qp_builder::<Ud>(cq, cq);
        datagram_qp(qp.max_send_wr(8).max_recv_wr(8).create_for().unwrap())
    };
    (make(), make())
}

/// Two connected queue pairs on one completion queue.
pub(super) fn rc_pair(fixture: &Fixture, cq: &CqHandle) -> (RcQp, RcQp) {
    let make = || {
        let qp = fixture.pd.qp_builder::<verbs::Rc>(cq, cq);
        qp.max_send_wr(4).max_recv_wr(4).create().unwrap()
    };
    let (a, b) = (make(), make());
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    (fixture.bring_up(a, b_num), fixture.bring_up(b, a_num))
}

/// The content of a message: the letter of its sender, always different from the message before.
pub(super) fn content(round: u32) -> Vec<u8> {
    let letter = if round.is_multiple_of(2) { b'c' } else { b's' };
    vec![letter; SIZE]
}

/// Waits for one completion of the send queue of `from` and one of the receive queue of `to`, both
/// successful; returns the send's work, and the received bytes, with the immediate data.
pub(super) fn exchanged<T: Transport, W>(
    cq: &mut impl Poller,
    from: &mut QueuePair<T, Rts, W, Buf>,
    to: &mut QueuePair<T, Rts, W, Buf>,
) -> (W, Buf, Option<u32>) {
    let (mut sent, mut received) = (None, None);
    while sent.is_none() || received.is_none() {
        cq.wait_each(&mut |wc| {
            wc.ok().unwrap();
            if wc.is_receive() {
                let imm_data = wc.imm_data();
                let Ok(Completed::Receive(done)) = to.complete(wc) else {
                    unreachable!("the wrong side has received");
                };
                let len = done.byte_len();
                let mut work = done.into_work().unwrap();
                work.set_len(len);
                received = Some((work, imm_data));
            } else {
                let Ok(Completed::Send(done)) = from.complete(wc) else {
                    unreachable!("the wrong side has sent");
                };
                sent = Some(done.into_work().unwrap());
            }
        });
    }
    let (buf, imm_data) = received.unwrap();
    (sent.unwrap(), buf, imm_data)
}

/// Sends messages there and back over a connection, in memory registered by `alloc`.
pub(super) fn rc_messages(cq: &mut impl Poller, ends: (RcQp, RcQp), alloc: impl Fn(usize) -> Buf) {
    let (mut from, mut to) = ends;
    for round in 0..2 * ROUNDS {
        let mut work = alloc(SIZE);
        work.copy_from_slice(&content(round));
        to.post_recv(alloc(SIZE)).unwrap();
        from.post(op::Send::new(work).imm_data(round)).unwrap();
        let (_, received, imm_data) = exchanged(cq, &mut from, &mut to);
        assert_eq!(
            (&received[..], imm_data),
            (&content(round)[..], Some(round))
        );
        std::mem::swap(&mut from, &mut to);
    }
}

/// Sends datagrams there and back, in memory registered by `alloc`.
pub(super) fn datagrams(
    cq: &mut impl Poller,
    ah: &AddressHandle,
    ends: (UdQp, UdQp),
    alloc: impl Fn(usize) -> Buf,
) {
    let (mut from, mut to) = ends;
    for round in 0..2 * ROUNDS {
        let mut work = alloc(SIZE);
        work.copy_from_slice(&content(round));
        to.post_recv(alloc(GRH_LEN + SIZE)).unwrap();
        let request = op::SendTo::new(Addressed::new(work, ah), to.qp_num(), QKEY);
        from.post(request).unwrap();
        let (_, received, imm_data) = exchanged(cq, &mut from, &mut to);
        assert_eq!(&received[GRH_LEN..], content(round));
        assert_eq!(imm_data, None);
        std::mem::swap(&mut from, &mut to);
    }
}

/// Waits for the completion of the one request of `qp`.
pub(super) fn sent<W>(
    cq: &mut CompletionQueue,
    qp: &mut QueuePair<verbs::Rc, Rts, W, Buf>,
) -> (WcStatus, W) {
    loop {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        for wc in completions {
            if wc.qp_id() == qp.id() && !wc.is_receive() {
                let Ok(Completed::Send(done)) = qp.complete(wc) else {
                    unreachable!()
                };
                return done.into_parts();
            }
        }
    }
}

/// Writes once to the peer.
pub(super) fn write(
    fixture: &Fixture,
    cq: &mut CompletionQueue,
    qp: &mut RcQp,
    to: RemoteToken,
) -> WcStatus {
    let work = fixture.pd.register_buf(content(0)).unwrap();
    qp.post(op::Write::new(work, to)).unwrap();
    sent(cq, qp).0
}
