//! One end of a connection: a host's device, and its queue pair.

use softnic::Host;
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    Reset, Rtr, Rts, WcStatus,
    ah::AddressVector,
    op,
    qp::{AckTimeout, Attributes, Psn, QpNum, RetryCount},
};

use crate::TEST_TIMEOUT;

/// Acknowledgement timeout, 268 ms: a thread of a busy machine runs in time.
const ACK_TIMEOUT: u8 = 16;

pub(crate) struct End {
    _ctx: Context,
    pub(crate) pd: ProtectionDomain,
    cq: CompletionQueue,
    gid: Gid,
}

/// A queue pair that sends and receives.
pub(crate) type Connection = QueuePair<verbs::Rc, Rts, Buf, Buf>;

impl End {
    pub(crate) fn new(host: &Host) -> Self {
        let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(256).waitable().create().unwrap();
        let gid = ctx.query_gid(1, 0).unwrap().unwrap();
        Self {
            _ctx: ctx,
            pd,
            cq,
            gid,
        }
    }

    fn qp(&self) -> QueuePair<verbs::Rc, Reset, Buf, Buf> {
        let builder = self.pd.qp_builder::<verbs::Rc>(&self.cq, &self.cq);
        builder.max_send_wr(64).max_recv_wr(64).create().unwrap()
    }

    fn bring_up(
        &self,
        qp: QueuePair<verbs::Rc, Reset, Buf, Buf>,
        (peer, num): (&Self, QpNum),
    ) -> Connection {
        let all = RemoteAccess::WRITE | RemoteAccess::READ;
        let vector = AddressVector::global(1, 0, peer.gid);
        let psn = Psn::from_low_bits(0xff_fff0);
        let init = Attributes::<verbs::Rc, Init>::new(1).access(all);
        let rtr = Attributes::<verbs::Rc, Rtr>::new(&vector, num, psn).max_dest_rd_atomic(4);
        let rts = Attributes::<verbs::Rc, Rts>::new(psn)
            .timeout(AckTimeout::new(ACK_TIMEOUT).unwrap())
            .retry_count(RetryCount::new(7).unwrap())
            .max_rd_atomic(4);
        let qp = qp.to_init(&init).map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error).unwrap();
        qp.to_rts(&rts).map_err(|refused| refused.error).unwrap()
    }

    /// A connection between two ends.
    pub(crate) fn connect(&self, other: &Self) -> [Connection; 2] {
        let (local_qp, peer_qp) = (self.qp(), other.qp());
        let (num_here, num_there) = (local_qp.qp_num(), peer_qp.qp_num());
        [
            self.bring_up(local_qp, (other, num_there)),
            other.bring_up(peer_qp, (self, num_here)),
        ]
    }

    /// Waits for a completion, and returns its status and its memory.
    pub(crate) fn reap(&mut self, qp: &mut Connection) -> (WcStatus, Buf) {
        let mut completions = self.cq.wait(TEST_TIMEOUT).unwrap();
        match qp.complete(completions.next().unwrap()).unwrap() {
            Completed::Send(done) => done.into_parts(),
            Completed::Receive(done) => done.into_parts(),
        }
    }
}

/// Sends a message from `a` to `b`, and checks its bytes.
pub(crate) fn send(a: (&mut End, &mut Connection), b: (&mut End, &mut Connection), bytes: &[u8]) {
    let target = b.0.pd.register_buf(vec![0; bytes.len()]).unwrap();
    b.1.post_recv(target).unwrap();
    let message = a.0.pd.register_buf(bytes).unwrap();
    a.1.post(op::Send::new(message)).unwrap();
    let (status, received) = b.0.reap(b.1);
    assert_eq!(status, WcStatus::SUCCESS);
    assert!(received[..] == *bytes);
    let (status, _) = a.0.reap(a.1);
    assert_eq!(status, WcStatus::SUCCESS);
}
