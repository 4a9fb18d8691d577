//! Extended batches. Tests called `qp_ex_…` are twins of pyverbs' tests.

use std::{
    io::{ErrorKind, IoSlice},
    time::Duration,
};

use ibverbs_sys as ffi;
use verbs::{
    Buf, Completed, CompletionQueue, Init, QueuePair, RemoteAccess, RemoteRegion, RemoteToken,
    Reset, Rtr, Rts, Uc, Ud, WcStatus,
    ah::{Addressed, GRH_LEN},
    cq::WcOpcode,
    mw::WindowType,
    op::{self, ExtendedRequest, SendOps},
    qp::{Attributes, Psn},
    work::Gather,
};

use crate::{
    capabilities::{ATOMIC_WRITE, FLUSH_GLOBAL, has_operation},
    loopback::{Fixture, expect_bytes, leave_out},
};

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const QKEY: u32 = 0x1111_1111;

/// Operations that some devices lack.
const OPTIONAL: [SendOps; 3] = [
    SendOps::ATOMIC_WRITE,
    SendOps::ATOMIC_CMP_AND_SWP,
    SendOps::ATOMIC_FETCH_AND_ADD,
];

/// The device's operations on reliable connections, of those of Soft-RoCE.
fn rc_ops(fixture: &Fixture) -> SendOps {
    let absent = OPTIONAL.iter().filter(|op| !has_operation(fixture, **op));
    let all = SendOps::all() - SendOps::TSO - SendOps::FLUSH;
    absent.fold(all, |ops, op| ops - *op)
}

/// Two connected queue pairs, and their completion queue.
pub(crate) struct Link<W = Buf> {
    pub(crate) fixture: Fixture,
    cq: CompletionQueue,
    ops: SendOps,
    pub(crate) a: QueuePair<verbs::Rc, Rts, W>,
    b: QueuePair<verbs::Rc, Rts, W>,
}

impl<W: Gather + 'static> Link<W> {
    pub(crate) fn new() -> Self {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let ops = rc_ops(&fixture);
        let make = || -> QueuePair<verbs::Rc, Reset, W> {
            let builder = fixture.pd.qp_builder(&cq, &cq).send_ops(ops);
            let builder = builder.max_send_wr(8).max_recv_wr(8);
            let builder = builder.max_send_sge(4).max_inline_data(64);
            builder.create_for().unwrap()
        };
        let (a, b) = (make(), make());
        let (a_num, b_num) = (a.qp_num(), b.qp_num());
        let (a, b) = (fixture.bring_up(a, b_num), fixture.bring_up(b, a_num));
        Self {
            fixture,
            cq,
            ops,
            a,
            b,
        }
    }

    /// Whether the queue pairs have operations. Reports a test that is left out without them.
    fn has(&self, ops: SendOps) -> bool {
        let has = self.ops.contains(ops);
        if !has {
            leave_out(&format!("{ops:?}"));
        }
        has
    }

    pub(crate) fn buf(&self, bytes: &[u8]) -> Buf {
        self.fixture.pd.register_buf(bytes).unwrap()
    }

    fn remote(&self, access: RemoteAccess) -> RemoteRegion {
        self.fixture.pd.alloc_remote(64, access).unwrap()
    }

    /// Lets the peer have room for one message.
    pub(crate) fn expect_message(&mut self) {
        let buf = self.fixture.pd.alloc_buf(64).unwrap();
        self.b.post_recv(buf).unwrap();
    }

    /// Posts one request in a batch of its own.
    pub(crate) fn post<R: ExtendedRequest<verbs::Rc, Work = W>>(&mut self, request: R) {
        let mut batch = self.a.extended_batch().unwrap();
        assert!(batch.push(request).is_ok());
        batch.post().map_err(|refused| refused.error).unwrap();
    }

    /// Waits for the next completion of a request of `a`.
    fn sent(&mut self) -> (WcStatus, Option<WcOpcode>, W) {
        loop {
            let completions = self.cq.wait(TEST_TIMEOUT).unwrap();
            assert!(completions.len() > 0, "nothing has completed");
            for wc in completions {
                if wc.qp_id() == self.a.id() && !wc.is_receive() {
                    let Ok(Completed::Send(done)) = self.a.complete(wc) else {
                        unreachable!()
                    };
                    let opcode = done.opcode();
                    let (status, work) = done.into_parts();
                    return (status, opcode, work);
                }
            }
        }
    }

    /// Waits for the next message of the peer: its opcode, its immediate data, and its bytes.
    pub(crate) fn received(&mut self) -> (WcOpcode, Option<u32>, Vec<u8>) {
        loop {
            let completions = self.cq.wait(TEST_TIMEOUT).unwrap();
            assert!(completions.len() > 0, "nothing has arrived");
            for wc in completions {
                wc.ok().unwrap();
                if wc.qp_id() == self.a.id() {
                    self.a.complete(wc).unwrap().ok().unwrap();
                    continue;
                }
                let Ok(Completed::Receive(done)) = self.b.complete(wc) else {
                    unreachable!()
                };
                let bytes = done.received().unwrap().to_vec();
                return (done.opcode().unwrap(), done.imm_data(), bytes);
            }
        }
    }
}

#[test]
fn qp_ex_rc_send() {
    let mut link = Link::new();
    link.expect_message();
    link.post(op::Send::new(link.buf(b"message")));
    let expected = (WcOpcode::RECV, None, b"message".to_vec());
    assert_eq!(link.received(), expected);
}

#[test]
fn qp_ex_rc_send_imm() {
    let mut link = Link::new();
    link.expect_message();
    link.post(op::Send::new(link.buf(b"message")).imm_data(0x0102_0304));
    let expected = (WcOpcode::RECV, Some(0x0102_0304), b"message".to_vec());
    assert_eq!(link.received(), expected);
}

#[test]
fn qp_ex_rc_rdma_write() {
    let mut link = Link::new();
    let region = link.remote(RemoteAccess::WRITE);
    link.post(op::Write::new(link.buf(b"written!"), region.token()));
    let (status, opcode, work) = link.sent();
    assert_eq!(
        (status, opcode),
        (WcStatus::SUCCESS, Some(WcOpcode::RDMA_WRITE))
    );
    assert_eq!(&*work, b"written!");
    expect_bytes(|bytes| region.read(0, bytes), b"written!");
}

#[test]
fn qp_ex_rc_rdma_write_imm() {
    let mut link = Link::new();
    let region = link.remote(RemoteAccess::WRITE);
    link.expect_message();
    link.post(op::Write::new(link.buf(b"written!"), region.token()).imm_data(9));
    let (opcode, imm_data, _) = link.received();
    assert_eq!((opcode, imm_data), (WcOpcode::RECV_RDMA_WITH_IMM, Some(9)));
    assert_eq!(region.load(0).to_ne_bytes(), *b"written!");
}

#[test]
fn qp_ex_rc_rdma_write_zero_length() {
    let mut link = Link::<Vec<Buf>>::new();
    let region = link.remote(RemoteAccess::WRITE);
    region.store(0, 7);
    link.post(op::Write::new(vec![], region.token()));
    assert_eq!(link.sent().0, WcStatus::SUCCESS);
    assert_eq!(region.load(0), 7);
}

#[test]
fn qp_ex_rc_rdma_read() {
    let mut link = Link::new();
    let region = link.remote(RemoteAccess::READ);
    region.write(3, b"fetched");
    let from = region.token().slice(3..10).unwrap();
    link.post(op::Read::new(link.buf(&[0; 7]), from));
    let (status, opcode, work) = link.sent();
    assert_eq!(
        (status, opcode),
        (WcStatus::SUCCESS, Some(WcOpcode::RDMA_READ))
    );
    assert_eq!(&*work, b"fetched");
}

#[test]
fn qp_ex_rc_rdma_read_zero_size() {
    let mut link = Link::<Vec<Buf>>::new();
    let region = link.remote(RemoteAccess::READ);
    link.post(op::Read::new(Vec::<Buf>::new(), region.token()));
    assert_eq!(link.sent().0, WcStatus::SUCCESS);
}

#[test]
fn qp_ex_rc_atomic_cmp_swp() {
    let mut link = Link::new();
    if !link.has(SendOps::ATOMIC_CMP_AND_SWP) {
        return;
    }
    let region = link.remote(RemoteAccess::ATOMIC);
    region.store(0, 42);
    let number = region.token().slice(0..8).unwrap();
    for (old, new) in [(42, 7), (7, 7)] {
        link.post(op::CompareSwap::new(link.buf(&[0; 8]), number, 42, 7));
        let (status, opcode, work) = link.sent();
        assert_eq!(
            (status, opcode),
            (WcStatus::SUCCESS, Some(WcOpcode::COMP_SWAP))
        );
        assert_eq!(*work, u64::to_ne_bytes(old));
        assert_eq!(region.load(0), new);
    }
}

#[test]
fn qp_ex_rc_atomic_fetch_add() {
    let mut link = Link::new();
    if !link.has(SendOps::ATOMIC_FETCH_AND_ADD) {
        return;
    }
    let region = link.remote(RemoteAccess::ATOMIC);
    region.store(0, 40);
    let number = region.token().slice(0..8).unwrap();
    link.post(op::FetchAdd::new(link.buf(&[0; 8]), number, 2));
    let (status, opcode, work) = link.sent();
    assert_eq!(
        (status, opcode),
        (WcStatus::SUCCESS, Some(WcOpcode::FETCH_ADD))
    );
    assert_eq!(*work, 40_u64.to_ne_bytes());
    assert_eq!(region.load(0), 42);
}

/// Soft-RoCE has atomic writes since Linux 6.2.
#[test]
fn qp_ex_rc_atomic_write() {
    let mut link = Link::new();
    if !link.has(SendOps::ATOMIC_WRITE) {
        let caps = link.fixture.ctx.query_device().unwrap().caps();
        assert!(!caps.contains(ATOMIC_WRITE));
        return;
    }
    let region = link.remote(RemoteAccess::WRITE);
    let number = region.token().slice(0..8).unwrap();
    link.post(op::AtomicWrite::new(
        link.buf(b"kept"),
        number,
        *b"at once!",
    ));
    let (status, _, work) = link.sent();
    assert_eq!(&*work, b"kept");
    let attr = link.fixture.ctx.query_device().unwrap();
    if attr.caps().contains(ATOMIC_WRITE) {
        assert_eq!(status, WcStatus::SUCCESS);
        assert_eq!(region.load(0).to_ne_bytes(), *b"at once!");
    } else {
        assert_eq!((status, region.load(0)), (WcStatus::LOC_QP_OP_ERR, 0));
    }
}

/// Writes to a token, and returns the status.
fn write(link: &mut Link, to: RemoteToken) -> WcStatus {
    let work = link.buf(b"data");
    link.b.post(op::Write::new(work, to)).unwrap();
    loop {
        let completions = link.cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        for wc in completions {
            if wc.qp_id() == link.b.id() {
                let status = wc.status();
                drop(link.b.complete(wc).unwrap());
                return status;
            }
            link.a.complete(wc).unwrap().ok().unwrap();
        }
    }
}

#[test]
fn qp_ex_rc_bind_mw() {
    let mut link = Link::new();
    let region = link.fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = link.fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let bind = |link: &mut Link, window: &mut _, post| {
        let mut batch = link.a.extended_batch().unwrap();
        let work = link.fixture.pd.alloc_buf(4).unwrap();
        let access = RemoteAccess::WRITE;
        let token = batch.bind_window(window, &region, access, work).unwrap();
        if post {
            batch.post().unwrap();
            assert_eq!(link.sent().0, WcStatus::SUCCESS);
        }
        token
    };
    // A batch that is not posted leaves the window unchanged.
    bind(&mut link, &mut window, false);
    let first = bind(&mut link, &mut window, true);
    assert_eq!(write(&mut link, first), WcStatus::SUCCESS);
    link.post(op::LocalInvalidate::new(link.buf(b"kept"), first.rkey));
    assert_eq!(link.sent().0, WcStatus::SUCCESS);
    bind(&mut link, &mut window, false);
    let second = bind(&mut link, &mut window, true);
    assert_eq!(write(&mut link, second), WcStatus::SUCCESS);
    assert_eq!(write(&mut link, first), WcStatus::REM_ACCESS_ERR);
}

#[test]
fn send_with_invalidate_invalidates_the_peers_window() {
    let mut link = Link::new();
    let region = link.fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = link.fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let (access, work) = (RemoteAccess::WRITE, link.buf(b"kept"));
    let token = link
        .b
        .bind_window(&mut window, &region, access, work)
        .unwrap();
    link.expect_message();
    while link.b.send_queue().in_flight() > 0 {
        for wc in link.cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            link.b.complete(wc).unwrap().ok().unwrap();
        }
    }
    let send = op::Send::new(link.buf(b"done")).invalidate(token.rkey);
    link.post(send.unsignaled());
    assert_eq!(link.received().2, b"done");
    link.post(op::Write::new(link.buf(b"late"), token));
    assert_eq!(link.sent().0, WcStatus::REM_ACCESS_ERR);
}

type DatagramQp = QueuePair<Ud, Rts, Addressed<Vec<Buf>>>;

fn datagram_qp(fixture: &Fixture, cq: &CompletionQueue) -> DatagramQp {
    let builder = fixture.pd.qp_builder::<Ud>(cq, cq).max_inline_data(16);
    let builder = builder.send_ops(SendOps::SEND | SendOps::SEND_WITH_IMM);
    let qp = builder.create_for().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap()
}

/// Sends one datagram, and returns the received immediate data and bytes.
fn datagram(
    parts: &[&[u8]],
    post: impl FnOnce(
        &mut verbs::qp::ExtendedBatch<'_, Ud, Addressed<Vec<Buf>>, Buf>,
        op::SendTo<Addressed<Vec<Buf>>>,
    ),
) -> (Option<u32>, Vec<u8>) {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b) = (datagram_qp(&fixture, &cq), datagram_qp(&fixture, &cq));
    let buf = fixture.pd.alloc_buf(GRH_LEN + 32).unwrap();
    b.post_recv(buf).unwrap();
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    let parts = parts.iter().map(|part| fixture.pd.register_buf(*part));
    let work = Addressed::new(parts.collect::<Result<_, _>>().unwrap(), &ah);
    let mut batch = a.extended_batch().unwrap();
    post(&mut batch, op::SendTo::new(work, b.qp_num(), QKEY));
    batch.post().map_err(|refused| refused.error).unwrap();
    loop {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "the datagram was lost");
        for wc in completions {
            wc.ok().unwrap();
            if wc.qp_id() == a.id() {
                a.complete(wc).unwrap().ok().unwrap();
                continue;
            }
            let Ok(Completed::Receive(done)) = b.complete(wc) else {
                unreachable!()
            };
            return (
                done.imm_data(),
                done.received().unwrap()[GRH_LEN..].to_vec(),
            );
        }
    }
}

#[test]
fn qp_ex_ud_send() {
    let received = datagram(&[b"datagram"], |batch, send| batch.push(send).unwrap());
    assert_eq!(received, (None, b"datagram".to_vec()));
}

#[test]
fn qp_ex_ud_send_imm() {
    let received = datagram(&[b"datagram"], |batch, send| {
        batch.push(send.imm_data(3)).unwrap();
    });
    assert_eq!(received, (Some(3), b"datagram".to_vec()));
}

#[test]
fn qp_ex_ud_zero_size() {
    let received = datagram(&[], |batch, send| batch.push(send).unwrap());
    assert_eq!(received, (None, vec![]));
}

#[test]
fn inline_datagram_arrives() {
    let received = datagram(&[b"kept"], |batch, send| {
        batch.push(send.inline(b"inline")).unwrap();
    });
    assert_eq!(received, (None, b"inline".to_vec()));
}

#[test]
fn uc_batch_sends_and_writes() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let psn = Psn::from_low_bits(77);
    let make = || {
        let ops = SendOps::SEND | SendOps::SEND_WITH_IMM;
        let ops = ops | SendOps::RDMA_WRITE | SendOps::RDMA_WRITE_WITH_IMM;
        let builder = fixture.pd.qp_builder::<Uc>(&cq, &cq).send_ops(ops);
        let builder = builder.max_send_wr(4).max_recv_wr(4);
        builder.create().unwrap()
    };
    let (a, b) = (make(), make());
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let up = |qp: QueuePair<Uc, Reset>, peer| {
        let init = Attributes::<Uc, Init>::new(1).access(RemoteAccess::WRITE);
        let qp = qp.to_init(&init).unwrap();
        let rtr = Attributes::<Uc, Rtr>::new(&fixture.address_vector(), peer, psn);
        let qp = qp.to_rtr(&rtr).unwrap();
        qp.to_rts(&Attributes::<Uc, Rts>::new(psn)).unwrap()
    };
    let (mut a, mut b) = (up(a, b_num), up(b, a_num));
    let buf = |bytes: &[u8]| fixture.pd.register_buf(bytes).unwrap();
    for _ in 0..3 {
        b.post_recv(buf(&[0; 16])).unwrap();
    }
    let region = fixture.pd.alloc_remote(16, RemoteAccess::WRITE).unwrap();
    let halves = [0..8, 8..16].map(|half| region.token().slice(half).unwrap());
    let mut batch = a.extended_batch().unwrap();
    batch
        .push(op::Send::new(buf(b"plain")).unsignaled())
        .unwrap();
    batch.push(op::Send::new(buf(b"imm")).imm_data(1)).unwrap();
    batch
        .push(op::Write::new(buf(b"1st half"), halves[0]))
        .unwrap();
    let write = op::Write::new(buf(b"2nd half"), halves[1]).imm_data(2);
    batch.push(write).unwrap();
    batch.post().unwrap();
    let mut reaped = Vec::new();
    while reaped.len() < 3 || a.send_queue().in_flight() > 0 {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "a message was lost");
        for wc in completions {
            wc.ok().unwrap();
            if wc.is_receive() {
                reaped.push((wc.opcode().unwrap(), wc.imm_data(), wc.byte_len()));
                b.complete(wc).unwrap().ok().unwrap();
            } else {
                a.complete(wc).unwrap().ok().unwrap();
            }
        }
    }
    let expected = [
        (WcOpcode::RECV, None, 5),
        (WcOpcode::RECV, Some(1), 3),
        (WcOpcode::RECV_RDMA_WITH_IMM, Some(2), 8),
    ];
    assert_eq!(reaped, expected);
    let mut bytes = [0; 16];
    region.read(0, &mut bytes);
    assert_eq!(&bytes, b"1st half2nd half");
}

#[test]
fn element_lists_arrive_up_to_the_limit() {
    let mut link = Link::<Vec<Buf>>::new();
    link.expect_message();
    let parts = |link: &Link<_>, parts: &[&[u8]]| -> Vec<Buf> {
        parts.iter().map(|part| link.buf(part)).collect()
    };
    let equal = parts(&link, &[b"one ", b"two ", b"3!  "]);
    link.post(op::Send::new(equal));
    assert_eq!(link.received().2, b"one two 3!  ");
    // Soft-RoCE before rdma-core 64 would send the length of the first element once for each.
    let has_right_lists = !link.fixture.is_soft_roce() || ffi::late::ibv_alloc_buf().is_some();
    for unequal in [&[&b"longer"[..], b"short"], &[b"short", &b"longer"[..]]] {
        link.expect_message();
        let work = parts(&link, unequal);
        let mut batch = link.a.extended_batch().unwrap();
        let pushed = batch.push(op::Send::new(work));
        if has_right_lists {
            assert!(pushed.is_ok());
            batch.post().unwrap();
        } else {
            let refused = pushed.unwrap_err();
            assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
            let work = refused.value.into_work();
            drop(batch);
            // The other way of posting accepts the work.
            link.a.post(op::Send::new(work)).unwrap();
        }
        assert_eq!(link.received().2, unequal.concat());
    }
}

#[test]
fn inline_data_arrive_up_to_the_limit() {
    let mut link = Link::<Vec<Buf>>::new();
    link.expect_message();
    link.post(op::Send::new(vec![]).inline(b"in one piece"));
    assert_eq!(link.received().2, b"in one piece");
    link.expect_message();
    let parts = ["in ", "", "three pieces"].map(|part| IoSlice::new(part.as_bytes()));
    link.post(op::Send::new(vec![]).inline_list(&parts));
    assert_eq!(link.received().2, b"in three pieces");
    // The device may have given more room than was asked for, but none has so much.
    let long = vec![1; 2000];
    let halves = [IoSlice::new(&long[..1000]), IoSlice::new(&long[1000..])];
    let mut batch = link.a.extended_batch().unwrap();
    let refused = batch.push(op::Send::new(vec![]).inline(&long)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    let refused = batch.push(op::Send::new(vec![]).inline_list(&halves));
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::InvalidInput);
    drop(batch);
    link.expect_message();
    link.post(op::Send::new(vec![]).inline(b"and on"));
    assert_eq!(link.received().2, b"and on");
}

#[test]
fn invalid_atomic_in_batch_fails_alone() {
    let mut link = Link::new();
    if !link.has(SendOps::ATOMIC_FETCH_AND_ADD) {
        return;
    }
    let region = link.remote(RemoteAccess::ATOMIC);
    region.store(0, 1);
    // Some devices would write 8 bytes into 4.
    let token = region.token().slice(0..8).unwrap();
    let short = op::FetchAdd::new(link.buf(&[7; 4]), token, 1);
    let mut batch = link.a.extended_batch().unwrap();
    let refused = batch.push(short);
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::InvalidInput);
    drop(batch);
    let unaligned = region.token().slice(4..12).unwrap();
    link.post(op::FetchAdd::new(link.buf(&[7; 8]), unaligned, 1));
    let (status, _, back) = link.sent();
    assert_ne!(status, WcStatus::SUCCESS);
    assert_eq!(*back, [7; 8], "nothing has been written");
    assert_eq!(region.load(0), 1);
}

#[test]
fn extended_batch_posts_all_or_nothing() {
    let mut link = Link::new();
    let send = |link: &Link<Buf>, byte| op::Send::new(link.buf(&[byte]));
    for _ in 0..6 {
        link.expect_message();
    }
    // Aborted, dropped, posted, and not in a batch at all: the first two leave no trace.
    for (byte, abort) in [(1, true), (2, false)] {
        let requests = [send(&link, byte), send(&link, byte)];
        let mut batch = link.a.extended_batch().unwrap();
        for request in requests {
            batch.push(request).unwrap();
        }
        if abort {
            assert_eq!(batch.abort().len(), 2);
        } else {
            drop(batch);
        }
        assert_eq!(link.a.send_queue().in_flight(), 0);
    }
    let requests = [3, 4, 5].map(|byte| send(&link, byte).unsignaled());
    let mut batch = link.a.extended_batch().unwrap();
    for request in requests {
        batch.push(request).unwrap();
    }
    batch.post().unwrap();
    link.a.post(send(&link, 6)).unwrap();
    for byte in 3..=6 {
        assert_eq!(link.received().2, [byte]);
    }
}

#[test]
fn full_queue_refuses_an_extended_batch_request() {
    let mut link = Link::new();
    for _ in 0..8 {
        link.expect_message();
    }
    let mut requests: Vec<_> = (0..9).map(|i| op::Send::new(link.buf(&[i]))).collect();
    let last = requests.pop().unwrap();
    let mut batch = link.a.extended_batch().unwrap();
    for request in requests {
        batch.push(request).unwrap();
    }
    let refused = batch.push(last).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(*refused.value.into_work(), [8]);
    batch.post().unwrap();
    for byte in 0..8 {
        assert_eq!(link.received().2, [byte]);
    }
}

#[test]
#[expect(clippy::mem_forget, reason = "the point of the test")]
fn forgotten_batch_posts_nothing_and_blocks_nothing() {
    let mut link = Link::new();
    let work = link.buf(b"forgotten");
    let mut batch = link.a.extended_batch().unwrap();
    batch.push(op::Send::new(work)).unwrap();
    std::mem::forget(batch);
    // The provider has no lock, either way of posting.
    let next = op::Send::new(link.buf(b"next"));
    link.expect_message();
    link.a.post(next).unwrap();
    assert_eq!(link.received().2, b"next");
    link.expect_message();
    link.post(op::Send::new(link.buf(b"last")));
    assert_eq!(link.received().2, b"last");
    drop(link.a);
    drop(link.b);
    while link.cq.poll().unwrap().count() > 0 {}
    assert_eq!(link.cq.available(), link.cq.capacity());
}

#[test]
fn operations_without_device_support_are_refused_at_creation() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let err = builder.send_ops(SendOps::TSO).create().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
    // Soft-RoCE's provider flushes since rdma-core 45, and no capability names the provider's part.
    let caps = fixture.ctx.query_device().unwrap().caps();
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    if let Err(err) = builder.send_ops(SendOps::FLUSH).create() {
        let may_lack = fixture.is_soft_roce() || !caps.contains(FLUSH_GLOBAL);
        assert!(may_lack, "{err}");
        assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
    }
    let builder = fixture.pd.qp_builder::<Ud>(&cq, &cq);
    let err = builder.send_ops(SendOps::RDMA_READ).create().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
    let builder = fixture.pd.qp_builder::<Ud>(&cq, &cq);
    let err = builder.max_tso_header(54).create().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
    assert!(err.to_string().contains("does not cut"), "{err}");
}
