//! Extended reliable connections between two hosts, with two shared receive queues of one domain.

use std::{fs::File, os::fd::AsFd};

use ibverbs_sys as ffi;
use softnic::Fabric;
use verbs::{
    Completed, CompletionQueue, Init, QueuePair, RemoteAccess, Rtr, Rts, SharedReceiveQueue,
    WcStatus,
    ah::AddressVector,
    attr::DeviceCaps,
    event::{EventObject, EventType},
    op::{self, SendOps},
    qp::{AckTimeout, Attributes, Psn, QpNum, RetryCount, XrcReceiver, XrcRecv, XrcSend},
    srq::SrqNum,
    xrcd::{XrcDomain, XrcdOpen},
};

use crate::end::{End, TEST_TIMEOUT};

const PSN: Psn = Psn::from_low_bits(0xff_fff0);

/// A sender on the first host, and a receiver with two queues on the second one.
struct Ends {
    sender: QueuePair<XrcSend, Rts>,
    receiver: XrcReceiver<Rts>,
    queues: [(SharedReceiveQueue, CompletionQueue); 2],
    xrcd: XrcDomain,
    a: End,
    b: End,
    /// The fabric. The last field, so dropped last.
    _fabric: Fabric,
}

fn receiver(end: &End, xrcd: &XrcDomain, peer: (&End, QpNum)) -> XrcReceiver<Rts> {
    let address_vector = AddressVector::global(1, 0, peer.0.gid);
    let access = RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let init = Attributes::<XrcRecv, Init>::new(1).access(access);
    let rtr = Attributes::<XrcRecv, Rtr>::new(&address_vector, peer.1, PSN).max_dest_rd_atomic(4);
    assert_eq!(end.ctx, *xrcd.context());
    let qp = xrcd.create_qp().unwrap().to_init(&init).unwrap();
    let qp = qp.to_rtr(&rtr).unwrap();
    qp.to_rts(&Attributes::<XrcRecv, Rts>::new(PSN)).unwrap()
}

impl Ends {
    fn new(fabric: Fabric) -> Self {
        let hosts = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
        let [a, b] = [End::new(&hosts[0]), End::new(&hosts[1])];
        let xrcd = b.ctx.open_xrcd().unwrap();
        let queues = [(); 2].map(|()| {
            let cq = b.ctx.cq_builder(64).waitable().create().unwrap();
            (b.pd.create_xrc_srq(&xrcd, &cq, 8, 1).unwrap(), cq)
        });
        let builder = a.pd.qp_builder::<XrcSend>(&a.cq, &a.cq).max_send_wr(8);
        let sender = builder.send_ops(SendOps::SEND_WITH_IMM).create().unwrap();
        let receiver = receiver(&b, &xrcd, (&a, sender.qp_num()));
        let address_vector = AddressVector::global(1, 0, b.gid);
        let rtr = Attributes::<XrcSend, Rtr>::new(&address_vector, receiver.qp_num(), PSN);
        let rts = Attributes::<XrcSend, Rts>::new(PSN)
            .timeout(AckTimeout::new(8).unwrap())
            .retry_count(RetryCount::new(7).unwrap())
            .max_rd_atomic(4);
        let sender = sender.to_init(&Attributes::<XrcSend, Init>::new(1));
        let sender = sender.unwrap().to_rtr(&rtr).unwrap().to_rts(&rts).unwrap();
        Self {
            sender,
            receiver,
            queues,
            xrcd,
            a,
            b,
            _fabric: fabric,
        }
    }

    fn number(&self, queue: usize) -> SrqNum {
        self.queues[queue].0.srq_num().unwrap()
    }

    /// Waits for the completion of a request.
    fn sent(&mut self) -> (WcStatus, Vec<u8>) {
        let wc = self.a.cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
        let Ok(Completed::Send(done)) = self.sender.complete(wc) else {
            unreachable!()
        };
        let (status, work) = done.into_parts();
        (status, work.to_vec())
    }
}

#[test]
fn xrc_messages_reach_the_queues_that_they_name_over_a_lossy_link() {
    let mut ends = Ends::new(Fabric::seeded(7).loss(0.1));
    let caps = ends.b.ctx.query_device().unwrap().caps();
    assert!(caps.contains(DeviceCaps::XRC));
    assert_ne!(ends.number(0), ends.number(1));
    for round in 0..20_u32 {
        let queue = usize::try_from(round % 3 % 2).unwrap();
        let buf = ends.b.pd.alloc_buf(8000).unwrap();
        ends.queues[queue].0.post(buf).unwrap();
        let work = ends.a.filled(&[round.to_le_bytes()[0]; 5000]);
        let number = ends.number(queue);
        let message = op::ToSrq::new(op::Send::new(work).imm_data(round), number);
        // Both ways of posting in turn.
        if round % 2 == 0 {
            let mut batch = ends.sender.extended_batch().unwrap();
            batch.push(message).unwrap();
            batch.post().map_err(|refused| refused.error).unwrap();
        } else {
            ends.sender.post(message).unwrap();
        }
        assert_eq!(ends.sent().0, WcStatus::SUCCESS);
        let receiver = ends.receiver.qp_num();
        let (srq, cq) = &mut ends.queues[queue];
        let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
        assert_eq!((wc.qp_num(), wc.imm_data()), (receiver, Some(round)));
        let done = srq.complete(wc).unwrap();
        let bytes = done.received().unwrap();
        assert_eq!(bytes, [round.to_le_bytes()[0]; 5000]);
        let other = &mut ends.queues[1 - queue].1;
        assert_eq!(other.poll().unwrap().count(), 0);
    }
}

#[test]
fn xrc_atomic_changes_memory_of_the_named_queues_domain() {
    let mut ends = Ends::new(Fabric::new());
    let access = RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let region = ends.b.pd.alloc_remote(64, access).unwrap();
    region.store(0, 40);
    let token = region.token().slice(0..8).unwrap();
    let work = ends.a.pd.alloc_buf(8).unwrap();
    let number = ends.number(1);
    let request = op::ToSrq::new(op::FetchAdd::new(work, token, 2), number);
    ends.sender.post(request).unwrap();
    let expected = (WcStatus::SUCCESS, 40_u64.to_ne_bytes().to_vec());
    assert_eq!(ends.sent(), expected);
    assert_eq!(region.load(0), 42);
}

#[test]
fn xrc_receiver_events_reach_all_of_its_handles() {
    let mut ends = Ends::new(Fabric::new());
    let events = ends.b.ctx.async_events().unwrap();
    let number = ends.receiver.qp_num();
    let again = ends.xrcd.open_qp::<Rts>(number).unwrap();
    let unknown = SrqNum::from_low_bits(ends.number(1).get() + 1);
    let work = ends.a.filled(b"to nowhere");
    ends.sender
        .post(op::ToSrq::new(op::Send::new(work), unknown))
        .unwrap();
    assert_eq!(ends.sent().0, WcStatus::REM_INV_REQ_ERR);
    for _ in 0..2 {
        let event = events.wait().unwrap();
        assert_eq!(event.event_type, EventType::QP_REQ_ERR);
        assert_eq!(event.object, EventObject::Qp(number));
    }
    assert_eq!(events.try_next().unwrap(), None);
    // The queue pair exists until its last handle is dropped.
    drop(ends.receiver);
    again.query().unwrap();
    drop(again);
    let refused = ends.xrcd.open_qp::<Rts>(number).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn xrc_domain_of_a_file_is_shared_by_all_contexts_of_the_host() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let [first, second] = [End::new(&host), End::new(&host)];
    let file = tempfile::NamedTempFile::new().unwrap();
    let same = File::open(file.path()).unwrap();
    let missing = first
        .ctx
        .open_shared_xrcd(file.as_file().as_fd(), XrcdOpen::empty());
    assert_eq!(missing.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    let open = |end: &End, how| end.ctx.open_shared_xrcd(same.as_fd(), how);
    let xrcd = first
        .ctx
        .open_shared_xrcd(file.as_file().as_fd(), XrcdOpen::CREATE);
    let xrcd = xrcd.unwrap();
    let shared = open(&second, XrcdOpen::empty()).unwrap();
    let exclusive = open(&second, XrcdOpen::CREATE | XrcdOpen::EXCLUSIVE);
    assert_eq!(exclusive.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let private = second.ctx.open_xrcd().unwrap();
    let qp = receiver(&first, &xrcd, (&second, QpNum::from_low_bits(7)));
    assert!(shared.open_qp::<Rts>(qp.qp_num()).is_ok());
    assert!(private.open_qp::<Rts>(qp.qp_num()).is_err());
    assert_eq!(
        fabric.books().to_string(),
        "10.9.0.1: 2 protection domains, 2 completion queues, 2 XRC domains, 1 queue pair"
    );
    drop((qp, xrcd));
    // The domain exists until its last handle is closed.
    assert!(open(&first, XrcdOpen::empty()).is_ok());
    drop((shared, private));
    assert!(open(&first, XrcdOpen::empty()).is_err());
}

#[test]
fn xrc_queues_and_receivers_serve_no_other_transport() {
    let ends = Ends::new(Fabric::new());
    let basic: SharedReceiveQueue = ends.b.pd.create_srq(4, 1).unwrap();
    let refused = basic.srq_num().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    let rc = ends.b.qp();
    let opened = ends.xrcd.open_qp::<Rts>(rc.qp_num());
    assert!(opened.is_err(), "an RC queue pair");
    let builder = ends.b.pd.qp_builder::<verbs::Rc>(&ends.b.cq, &ends.b.cq);
    assert!(builder.srq(&ends.queues[0].0).create().is_err());
}

/// As perftest does, whose masks for extended connections are those of reliable ones.
#[test]
fn attributes_of_the_other_direction_have_no_effect() {
    use ffi::ibv_qp_attr_mask as has;
    let fabric = Fabric::new();
    let end = End::new(&fabric.host("10.9.0.1".parse().unwrap()));
    let xrcd = end.ctx.open_xrcd().unwrap();
    let builder = end.pd.qp_builder::<XrcSend>(&end.cq, &end.cq);
    let sender = builder.max_send_wr(1).create().unwrap();
    let receiver = xrcd.create_qp().unwrap();
    let mut attr = ffi::ibv_qp_attr::zeroed();
    (attr.port_num, attr.ah_attr.port_num) = (1, 1);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = end.gid.into();
    attr.path_mtu = ffi::ibv_mtu::IBV_MTU_1024;
    (attr.max_dest_rd_atomic, attr.max_rd_atomic) = (4, 4);
    (attr.timeout, attr.retry_cnt) = (8, 7);
    let rtr = has::IBV_QP_AV | has::IBV_QP_PATH_MTU | has::IBV_QP_DEST_QPN | has::IBV_QP_RQ_PSN;
    let rts = has::IBV_QP_SQ_PSN | has::IBV_QP_TIMEOUT | has::IBV_QP_RETRY_CNT;
    let steps = [
        (
            ffi::ibv_qp_state::IBV_QPS_INIT,
            has::IBV_QP_PKEY_INDEX | has::IBV_QP_PORT | has::IBV_QP_ACCESS_FLAGS,
        ),
        (
            ffi::ibv_qp_state::IBV_QPS_RTR,
            rtr | has::IBV_QP_MAX_DEST_RD_ATOMIC | has::IBV_QP_MIN_RNR_TIMER,
        ),
        (
            ffi::ibv_qp_state::IBV_QPS_RTS,
            rts | has::IBV_QP_RNR_RETRY | has::IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    ];
    for (raw, depths) in [(sender.as_raw(), [0, 4]), (receiver.as_raw(), [4, 0])] {
        for (state, mask) in steps {
            attr.qp_state = state;
            let mask = (mask | has::IBV_QP_STATE).0.cast_signed();
            // SAFETY: a live queue pair, and attributes of this function.
            assert_eq!(unsafe { ffi::ibv_modify_qp(raw, &raw mut attr, mask) }, 0);
        }
        let (mut found, mut init) = (ffi::ibv_qp_attr::zeroed(), ffi::ibv_qp_init_attr::zeroed());
        // SAFETY: a live queue pair, and attributes of this function.
        let queried = unsafe { ffi::ibv_query_qp(raw, &raw mut found, 0, &raw mut init) };
        assert_eq!(queried, 0);
        assert_eq!([found.max_dest_rd_atomic, found.max_rd_atomic], depths);
    }
}
