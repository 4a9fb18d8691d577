//! One end: a device of a host with a queue pair.

use std::time::Duration;

use efa::{ReadFrom, Srd, WriteTo};
use softnic::{Fabric, Host};
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteRegion, RemoteToken, Rtr, Rts, Ud, WcStatus,
    ah::{AddressHandle, AddressVector, Addressed},
    op::{self, SendOps},
    qp::{Attributes, QpNum},
};

/// Limit of a wait that a correct test never reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const QKEY: u32 = 0x1122;

/// A message that has been received.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Length of the send or write.
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) from: Option<QpNum>,
}

/// The work of a send queue, with the number of the request.
pub(crate) type Work = verbs::work::With<Addressed<Buf>, u32>;

/// A completed request: its number, its result, and its bytes.
pub(crate) type Done = (u32, Result<Vec<u8>, WcStatus>);

/// Completions of both queues.
#[derive(Default)]
pub(crate) struct Reaped {
    pub(crate) messages: Vec<Message>,
    pub(crate) done: Vec<Done>,
}

pub(crate) struct End {
    pub(crate) qp: QueuePair<Srd, Rts, Work, Buf>,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: RemoteRegion,
    pub(crate) pd: ProtectionDomain,
    pub(crate) ctx: Context,
    host: Host,
}

impl End {
    pub(crate) fn new(fabric: &Fabric, number: u8) -> Self {
        Self::with_retries(fabric, number, 7)
    }

    /// An end whose requests are tried `rnr_retry` times more while there is no receive; 7 for no limit.
    pub(crate) fn with_retries(fabric: &Fabric, number: u8, rnr_retry: u8) -> Self {
        let host = fabric.host([10, 0, 0, number].into());
        let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(128).waitable().create().unwrap();
        let ops = SendOps::SEND | SendOps::RDMA_READ;
        let ops = ops | SendOps::RDMA_WRITE | SendOps::RDMA_WRITE_WITH_IMM;
        let builder = pd.qp_builder::<Srd>(&cq, &cq).send_ops(ops);
        let builder = builder.max_send_wr(64).max_recv_wr(64).max_inline_data(32);
        let qp = builder.create_for().unwrap();
        let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY).of_vendor());
        let qp = qp
            .unwrap()
            .to_rtr(&Attributes::<Ud, Rtr>::new().of_vendor());
        let (mut attr, mask) = {
            let rts = Attributes::<Ud, Rts>::new(verbs::qp::Psn::default());
            let (attr, mask) = rts.as_raw();
            (*attr, mask)
        };
        attr.rnr_retry = rnr_retry;
        let mask = mask | ibverbs_sys::ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
        let qp = qp.unwrap().to_rts(&Attributes::from_raw(attr, mask));
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        Self {
            qp: qp.unwrap(),
            memory: pd.alloc_remote(200_000, access).unwrap(),
            cq,
            pd,
            ctx,
            host,
        }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn gid(&self) -> Gid {
        self.ctx.query_gid(1, 0).unwrap().unwrap()
    }

    /// A handle for the address of another end.
    pub(crate) fn to(&self, peer: &Self) -> AddressHandle {
        let vector = AddressVector::global(1, 0, peer.gid());
        self.pd.create_ah(&vector).unwrap()
    }

    fn work(&self, number: u32, bytes: &[u8], ah: &AddressHandle) -> Work {
        let buf = self.pd.register_buf(bytes).unwrap();
        Work::new(Addressed::new(buf, ah), number)
    }

    pub(crate) fn receive(&mut self, count: usize, len: usize) {
        for _ in 0..count {
            self.qp.post_recv(self.pd.alloc_buf(len).unwrap()).unwrap();
        }
    }

    /// Sends bytes with the number of the request.
    pub(crate) fn send(&mut self, number: u32, bytes: &[u8], (ah, peer): (&AddressHandle, QpNum)) {
        let work = self.work(number, bytes, ah);
        let send = op::SendTo::new(work, peer, QKEY).imm_data(number);
        self.qp.post(send).unwrap();
    }

    /// Sends the same bytes with one doorbell, as the requests 0 to `count` - 1.
    pub(crate) fn send_all(
        &mut self,
        count: u32,
        bytes: &[u8],
        (ah, peer): (&AddressHandle, QpNum),
    ) {
        let works: Vec<_> = (0..count)
            .map(|number| self.work(number, bytes, ah))
            .collect();
        let mut batch = self.qp.extended_batch().unwrap();
        for work in works {
            batch.push(op::SendTo::new(work, peer, QKEY)).unwrap();
        }
        batch.post().unwrap();
    }

    /// Writes bytes; `imm` completes a receive of the peer's.
    pub(crate) fn write(
        &mut self,
        (number, imm): (u32, Option<u32>),
        bytes: &[u8],
        to: RemoteToken,
        (ah, peer): (&AddressHandle, QpNum),
    ) {
        let work = self.work(number, bytes, ah);
        let write = WriteTo::new(work, to, peer, QKEY);
        let write = match imm {
            Some(imm) => write.imm_data(imm),
            None => write,
        };
        let mut batch = self.qp.extended_batch().unwrap();
        batch.push_vendor(write).unwrap();
        batch.post().unwrap();
    }

    /// Reads as many bytes as `len`.
    pub(crate) fn read(
        &mut self,
        number: u32,
        len: usize,
        from: RemoteToken,
        (ah, peer): (&AddressHandle, QpNum),
    ) {
        let work = self.work(number, &vec![0; len], ah);
        let mut batch = self.qp.extended_batch().unwrap();
        let read = ReadFrom::new(work, from, peer, QKEY);
        batch.push_vendor(read).unwrap();
        batch.post().unwrap();
    }

    /// Waits for completions: at least this number of messages and of requests.
    pub(crate) fn reap(&mut self, messages: usize, requests: usize) -> Reaped {
        let mut reaped = Reaped::default();
        while reaped.messages.len() < messages || reaped.done.len() < requests {
            let mut found = false;
            for wc in self.cq.wait(Some(TEST_TIMEOUT)).unwrap() {
                found = true;
                let (len, imm, from) = (wc.byte_len(), wc.imm_data(), wc.src_qp());
                match self.qp.complete(wc).unwrap() {
                    Completed::Receive(done) => {
                        let bytes = done.received().unwrap_or_default().to_vec();
                        reaped.messages.push(Message {
                            bytes,
                            len,
                            imm,
                            from,
                        });
                    }
                    Completed::Send(done) => {
                        let (status, work) = done.into_parts();
                        let result = match status {
                            WcStatus::SUCCESS => Ok(work.work.work.to_vec()),
                            failed => Err(failed),
                        };
                        reaped.done.push((work.context, result));
                    }
                }
            }
            assert!(found, "nothing has completed in {TEST_TIMEOUT:?}");
        }
        reaped
    }
}
