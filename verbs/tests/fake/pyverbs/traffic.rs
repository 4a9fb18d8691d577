//! Messages there and back, as far as a fake device goes.

use verbs::{
    Buf, Completed, Gid, QueuePair, Rts, WcStatus, WorkCompletion,
    ah::{AddressVector, Addressed},
    op,
    qp::{QpNum, Transport},
    work::{Gather, Scatter},
};

use crate::{fixture::Fixture, provider::Fake};

pub(super) const ROUNDS: u8 = 10;

/// Hands each completion in the queue to its argument.
pub(super) type Poll<'a> = dyn FnMut(&mut dyn FnMut(WorkCompletion<'_>)) + 'a;

/// The posted requests, the device's actions, and the results, on one queue pair.
pub(super) struct Traffic<'a> {
    pub(super) fake: &'a Fake,
    pub(super) poll: &'a mut Poll<'a>,
}

impl Traffic<'_> {
    /// Lets the device take the request posted by `post`, and checks its bytes.
    pub(super) fn send<T: Transport, SW: Gather, RW: Scatter>(
        &mut self,
        qp: &mut QueuePair<T, Rts, SW, RW>,
        bytes: &[u8],
        post: impl FnOnce(&mut QueuePair<T, Rts, SW, RW>),
    ) -> SW {
        post(qp);
        assert_eq!(self.fake.sends(qp.qp_num())[0].bytes(), bytes);
        self.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let mut back = None;
        (self.poll)(&mut |wc| {
            wc.ok().unwrap();
            if let Ok(Completed::Send(done)) = qp.complete(wc) {
                back = Some(done.into_work().unwrap());
            }
        });
        back.expect("the request has completed")
    }

    /// Lets a message arrive in the buffer of a receive.
    pub(super) fn receive<T: Transport, SW>(
        &mut self,
        qp: &mut QueuePair<T, Rts, SW, Buf>,
        buf: Buf,
        message: &[u8],
    ) {
        qp.post_recv(buf).unwrap();
        self.fake.complete_receive(qp.qp_num(), message);
        let mut received = None;
        (self.poll)(&mut |wc| {
            wc.ok().unwrap();
            if let Ok(Completed::Receive(done)) = qp.complete(wc) {
                received = Some(done.received().unwrap().to_vec());
            }
        });
        assert_eq!(received.as_deref(), Some(message));
    }
}

/// A datagram of 64 zeros from `memory`, and one into the same memory.
pub(super) fn exchange_datagrams(fixture: &Fixture, memory: Buf) {
    let mut cq = fixture.cq(8);
    let mut qp = fixture.ud(&cq);
    let address_vector = AddressVector::global(1, 1, Gid([0xfe; 16]));
    let ah = fixture.pd.create_ah(&address_vector).unwrap();
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    let work = Addressed::new(memory, &ah);
    let request = op::SendTo::new(work, QpNum::from_low_bits(9), 7);
    let back = traffic.send(&mut qp, &[0; 64], |qp| qp.post(request).unwrap());
    traffic.receive(&mut qp, back.work, b"a datagram");
}
