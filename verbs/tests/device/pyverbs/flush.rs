//! `test_qpex.py`: the cases about flushes. softnic flushes, and Soft-RoCE since Linux 6.2 and rdma-core 45.

use std::io::ErrorKind;

use rustix::param::page_size;
use verbs::{
    Buf, Completed, CompletionQueue, Init, QueuePair, RemoteAccess, RemoteRegion, Reset, Rtr, Rts,
    WcStatus,
    attr::OdpTransportCaps,
    cq::WcOpcode,
    mr::Mapping,
    op::{self, ExtendedRequest, Placement, SendOps},
    qp::{Attributes, Psn},
};

use crate::{capabilities::FLUSH_GLOBAL, loopback::Fixture, on_demand::paging};

const ACCESS: RemoteAccess = RemoteAccess::WRITE.union(RemoteAccess::FLUSH_GLOBAL);

/// A queue pair connected to a peer with flushable memory.
struct Link {
    fixture: Fixture,
    cq: CompletionQueue,
    qp: QueuePair<verbs::Rc, Rts>,
    _peer: QueuePair<verbs::Rc, Rts>,
    region: RemoteRegion,
}

impl Link {
    /// `None` without flushes, after a check of the refusal: the device's of the memory, or the provider's of the queue
    /// pair. No capability names the provider's part.
    fn new() -> Option<Self> {
        Self::with(Fixture::new(), false)
    }

    /// A link to memory with pages on demand, or pinned.
    fn with(fixture: Fixture, is_paged: bool) -> Option<Self> {
        let cq = fixture.cq(16);
        let caps = fixture.ctx.query_device().unwrap().caps();
        let memory = fixture.pd.register(Mapping::new(page_size()).unwrap());
        let memory = match is_paged {
            true => memory.on_demand(),
            false => memory,
        };
        let region = memory.remote(ACCESS).create();
        if !caps.contains(FLUSH_GLOBAL) {
            assert!(region.is_err());
            return None;
        }
        let region = region.unwrap();
        let create = || {
            let ops = SendOps::RDMA_WRITE | SendOps::FLUSH;
            let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
            builder.send_ops(ops).max_send_wr(4).create()
        };
        let (qp, peer): (QueuePair<_, Reset>, _) = match (create(), create()) {
            (Ok(qp), Ok(peer)) => (qp, peer),
            (Err(err), _) | (_, Err(err)) => {
                assert!(fixture.is_soft_roce(), "{err}");
                assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
                return None;
            }
        };
        let numbers = [peer.qp_num(), qp.qp_num()];
        let connect = |qp: QueuePair<verbs::Rc, Reset>, to| {
            let access = ACCESS | RemoteAccess::FLUSH_PERSISTENT;
            let init = Attributes::<verbs::Rc, Init>::new(1).access(access);
            let qp = qp.to_init(&init).map_err(|refused| refused.error).unwrap();
            let psn = Psn::default();
            let rtr = Attributes::<verbs::Rc, Rtr>::new(&fixture.address_vector(), to, psn);
            let rtr = rtr.max_dest_rd_atomic(4);
            let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error).unwrap();
            let rts = Attributes::<verbs::Rc, Rts>::new(psn).max_rd_atomic(4);
            qp.to_rts(&rts).map_err(|refused| refused.error).unwrap()
        };
        let (qp, peer) = (connect(qp, numbers[0]), connect(peer, numbers[1]));
        Some(Self {
            cq,
            qp,
            _peer: peer,
            region,
            fixture,
        })
    }

    /// Posts a request, and returns the status and the opcode of its completion.
    fn perform<R: ExtendedRequest<verbs::Rc, Work = Buf>>(
        &mut self,
        request: R,
    ) -> (WcStatus, Option<WcOpcode>) {
        let mut batch = self.qp.extended_batch().unwrap();
        assert!(batch.push(request).is_ok());
        batch.post().map_err(|refused| refused.error).unwrap();
        let mut completions = self.cq.wait(crate::windows::TEST_TIMEOUT).unwrap();
        let wc = completions.next().expect("nothing has completed");
        let Ok(Completed::Send(done)) = self.qp.complete(wc) else {
            unreachable!("nothing is received")
        };
        (done.status(), done.opcode())
    }

    fn buf(&self) -> Buf {
        self.fixture.pd.register_buf(*b"lasting!").unwrap()
    }
}

#[test]
fn qp_ex_rc_flush() {
    let Some(mut link) = Link::new() else { return };
    let to = link.region.token().slice(8..16).unwrap();
    let write = op::Write::new(link.buf(), to);
    assert_eq!(link.perform(write).0, WcStatus::SUCCESS);
    let success = (WcStatus::SUCCESS, Some(WcOpcode::FLUSH));
    let range = op::Flush::new(link.buf(), to, Placement::GLOBAL);
    assert_eq!(link.perform(range), success);
    let region = op::Flush::new(link.buf(), to, Placement::GLOBAL).whole_region();
    assert_eq!(link.perform(region), success);
    let mut bytes = [0; 8];
    link.region.read(8, &mut bytes);
    assert_eq!(&bytes, b"lasting!");
}

#[test]
fn odp_qp_ex_rc_flush() {
    let fixture = Fixture::new();
    let Some(caps) = paging(&fixture) else { return };
    if !caps.rc.contains(OdpTransportCaps::FLUSH) {
        return;
    }
    let Some(mut link) = Link::with(fixture, true) else {
        return;
    };
    let to = link.region.token().slice(8..16).unwrap();
    let write = op::Write::new(link.buf(), to);
    assert_eq!(link.perform(write).0, WcStatus::SUCCESS);
    let flush = op::Flush::new(link.buf(), to, Placement::GLOBAL);
    assert_eq!(
        link.perform(flush),
        (WcStatus::SUCCESS, Some(WcOpcode::FLUSH))
    );
}

/// The queue pair allows each flush, and the memory those to global visibility only.
#[test]
fn qp_ex_rc_flush_type_violate() {
    let Some(mut link) = Link::new() else { return };
    let to = link.region.token();
    let flush = op::Flush::new(link.buf(), to, Placement::PERSISTENT);
    assert_eq!(link.perform(flush).0, WcStatus::REM_ACCESS_ERR);
}
