//! One end: a device of a host with an initiator and a target.

use std::time::Duration;

use mlx5::{Dci, Dct, Request, Target};
use softnic::{Fabric, Host};
use verbs::{
    Buf, Completed, CompletionQueue, Context, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteRegion, Reset, Rtr, Rts, SharedReceiveQueue, WcStatus,
    ah::{AddressHandle, AddressVector, Addressed},
    attr::Mtu,
    op::SendOps,
    qp::{Attributes, Psn, RnrRetry},
};

/// Limit of a wait that a correct test never reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const KEY: u64 = 0xfedc_ba98_7654_3210;

pub(crate) const ALL: RemoteAccess = RemoteAccess::all();

/// A message that has been received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
}

/// The work of an initiator, with the number of the request.
pub(crate) type Work = verbs::work::With<Addressed<Buf>, u32>;

/// A completed request: its number, its result, and its bytes.
pub(crate) type Done = (u32, Result<Vec<u8>, WcStatus>);

pub(crate) type Initiator<S> = QueuePair<Dci, S, Work, ()>;

/// Completions of both queue pairs.
#[derive(Default)]
pub(crate) struct Reaped {
    pub(crate) messages: Vec<Message>,
    pub(crate) done: Vec<Done>,
}

pub(crate) struct End {
    pub(crate) dci: Initiator<Rts>,
    pub(crate) dct: QueuePair<Dct, Rtr, (), ()>,
    pub(crate) srq: SharedReceiveQueue<Buf>,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: RemoteRegion,
    pub(crate) pd: ProtectionDomain,
    pub(crate) ctx: Context,
    host: Host,
}

/// Timers of a path, with this number of retries without a receive; 7 for no limit.
pub(crate) fn timers(rnr_retry: u8) -> Attributes<verbs::Rc, Rts> {
    let timers = Attributes::<verbs::Rc, Rts>::new(Psn::default()).max_rd_atomic(4);
    timers.rnr_retry(RnrRetry::new(rnr_retry).unwrap())
}

/// An initiator that has not been brought up.
pub(crate) fn initiator(pd: &ProtectionDomain, cq: &CompletionQueue) -> Initiator<Reset> {
    let ops = SendOps::SEND | SendOps::SEND_WITH_IMM | SendOps::RDMA_READ;
    let ops = ops | SendOps::RDMA_WRITE | SendOps::RDMA_WRITE_WITH_IMM;
    let ops = ops | SendOps::ATOMIC_CMP_AND_SWP | SendOps::ATOMIC_FETCH_AND_ADD;
    let builder = pd.qp_builder::<Dci>(cq, cq).send_ops(ops);
    builder.max_send_wr(64).create_for().unwrap()
}

impl End {
    pub(crate) fn new(fabric: &Fabric, number: u8) -> Self {
        Self::of(fabric, number, (Mtu::B1024, ALL), 7)
    }

    /// An end with these attributes of the target, and retries of the initiator.
    pub(crate) fn of(
        fabric: &Fabric,
        number: u8,
        (mtu, access): (Mtu, RemoteAccess),
        rnr_retry: u8,
    ) -> Self {
        let host = fabric.host([10, 0, 0, number].into());
        let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(256).waitable().create().unwrap();
        let srq = pd.create_srq(64, 1).unwrap();
        let vector = AddressVector::global(1, 0, ctx.query_gid(1, 0).unwrap().unwrap());
        let dct = mlx5::create_target(pd.qp_builder(&cq, &cq).srq(&srq), KEY).unwrap();
        let dci = initiator(&pd, &cq);
        Self {
            dci: mlx5::bring_up_initiator(dci, 1, mtu, &timers(rnr_retry)).unwrap(),
            dct: mlx5::bring_up_target(dct, &vector, mtu, access).unwrap(),
            srq,
            cq,
            memory: pd.alloc_remote(200_000, ALL).unwrap(),
            pd,
            ctx,
            host,
        }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            number: self.dct.qp_num(),
            key: KEY,
        }
    }

    /// A handle for the address of another end, and the target there.
    pub(crate) fn to(&self, peer: &Self) -> (AddressHandle, Target) {
        let gid = peer.ctx.query_gid(1, 0).unwrap().unwrap();
        let vector = AddressVector::global(1, 0, gid);
        (self.pd.create_ah(&vector).unwrap(), peer.target())
    }

    pub(crate) fn work(&self, number: u32, bytes: &[u8], ah: &AddressHandle) -> Work {
        let buf = self.pd.register_buf(bytes).unwrap();
        Work::new(Addressed::new(buf, ah), number)
    }

    pub(crate) fn receive(&mut self, count: usize, len: usize) {
        for _ in 0..count {
            self.srq.post(self.pd.alloc_buf(len).unwrap()).unwrap();
        }
    }

    /// Posts requests with one doorbell.
    pub(crate) fn post(&mut self, requests: impl IntoIterator<Item = Request<Work>>) {
        let mut batch = self.dci.extended_batch().unwrap();
        for request in requests {
            batch.push_vendor(request).unwrap();
        }
        batch.post().unwrap();
    }

    /// Sends bytes with the number of the request.
    pub(crate) fn send(&mut self, number: u32, bytes: &[u8], (ah, to): &(AddressHandle, Target)) {
        let work = self.work(number, bytes, ah);
        self.post([Request::send_imm(work, *to, number)]);
    }

    /// Resets the initiator and brings it up; returns the numbers of the requests it had.
    pub(crate) fn restart(mut self) -> (Self, Vec<u32>) {
        let (dci, leftover) = self.dci.to_reset().unwrap();
        let numbers = leftover.send.into_iter().map(|work| work.context);
        let numbers = numbers.collect();
        self.dci = mlx5::bring_up_initiator(dci, 1, Mtu::B1024, &timers(7)).unwrap();
        (self, numbers)
    }

    /// Waits for completions: at least this number of messages and of requests.
    pub(crate) fn reap(&mut self, messages: usize, requests: usize) -> Reaped {
        let mut reaped = Reaped::default();
        while reaped.messages.len() < messages || reaped.done.len() < requests {
            let mut found = false;
            for wc in self.cq.wait(Some(TEST_TIMEOUT)).unwrap() {
                found = true;
                let (len, imm) = (wc.byte_len(), wc.imm_data());
                match self.dci.complete(wc) {
                    Ok(Completed::Send(done)) => {
                        let (status, work) = done.into_parts();
                        let result = match status {
                            WcStatus::SUCCESS => Ok(work.work.work.to_vec()),
                            failed => Err(failed),
                        };
                        reaped.done.push((work.context, result));
                    }
                    Ok(Completed::Receive(_)) => unreachable!("an initiator receives nothing"),
                    Err(wc) => {
                        assert_eq!(self.srq.receiver(&wc), Some(self.dct.id()));
                        let done = self.srq.complete(wc).unwrap();
                        let bytes = done.received().unwrap_or_default().to_vec();
                        reaped.messages.push(Message { bytes, len, imm });
                    }
                }
            }
            assert!(found, "nothing has completed in {TEST_TIMEOUT:?}");
        }
        reaped
    }
}
