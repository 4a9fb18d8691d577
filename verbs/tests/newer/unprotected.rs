//! Provider memory readable by the host of a virtual machine (rdma-core 64), and the twins of pyverbs' cases (`test_buf.py`)
//! about such memory, by their names.

use std::{
    io::ErrorKind,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use ibverbs_sys::ibv_wr_opcode as opcode;
use softnic::Call;
use verbs::{Buf, QueuePair, RemoteAccess, RemoteToken, Rts, op, work::Gather};

use crate::{
    contents,
    fixture::Fixture,
    library,
    provider::PostedSend,
    traffic::{Traffic, exchange_datagrams},
};

/// A device with the domain of such memory.
fn unprotected() -> Fixture {
    let mut fixture = Fixture::new();
    let builder = fixture.pd.parent_domain_builder().allow_unprotected();
    fixture.pd = builder.create().unwrap();
    fixture
}

/// Memory registered by the call for provider memory.
fn registered(fixture: &Fixture, len: usize) -> Buf {
    let memory = fixture.pd.alloc_provider_memory(len).unwrap();
    let buf = fixture.pd.register(memory).create_buf().unwrap();
    let last = library::last().unwrap();
    assert_eq!((last.call, last.len), ("ibv_reg_buf_mr", len));
    buf
}

/// A message from one memory, and one into another.
fn exchange<W: Gather + 'static>(fixture: &Fixture, work: W, bytes: &[u8], buf: Buf) {
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, W, Buf> = fixture.rc(&cq, 2);
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    traffic.send(&mut qp, bytes, |qp| {
        qp.post(op::Send::new(work))
            .map_err(|refused| refused.error)
            .unwrap();
    });
    traffic.receive(&mut qp, buf, b"a message");
}

/// Posts one request between such memory of 8 bytes and such memory open to peers. Returns the request.
fn access(
    access: RemoteAccess,
    post: impl FnOnce(&mut QueuePair<verbs::Rc, Rts>, Buf, RemoteToken),
) -> PostedSend {
    let fixture = unprotected();
    let memory = fixture.pd.alloc_provider_memory(64).unwrap();
    let region = fixture.pd.register(memory).remote(access).create().unwrap();
    assert_eq!(library::last().unwrap().call, "ibv_reg_buf_mr");
    assert_eq!(fixture.fake.region().2 & access.bits(), access.bits());
    let (work, token) = (registered(&fixture, 8), region.token().slice(0..8).unwrap());
    fixture.perform(token, |qp| post(qp, work, token))
}

#[test]
fn buf_export_dmabuf_fd_on_bounce_device() {
    let fixture = unprotected();
    let memory = fixture.pd.alloc_provider_memory(64).unwrap();
    // SAFETY: the fake makes a file of its own.
    let fd = unsafe { memory.export_dmabuf() }.unwrap();
    assert_eq!(contents(fd), b"a dma-buf of 64 bytes");
}

#[test]
fn buf_reg_wrong_allocating_pd_fails_cc_pd() {
    let fixture = unprotected();
    let other = fixture.ctx.alloc_pd().unwrap();
    let other = other.parent_domain_builder().allow_unprotected().create();
    let memory = fixture.pd.alloc_provider_memory(64).unwrap();
    let refused = other.unwrap().register(memory).create_buf().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(library::count(&fixture.pd), 1, "it is given back");
}

/// A device that reaches only memory readable by the host refuses the program's own memory, which comes back.
#[test]
fn plain_mr_rejected_on_bounce_device() {
    let fixture = unprotected();
    fixture.fake.fail(Call::RegMr, libc::EOPNOTSUPP);
    let refused = fixture.pd.register(vec![7; 64]).create_buf().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(refused.value, [7; 64]);
    let _allowed = registered(&fixture, 64);
}

/// A registration is of all of its memory, and refuses the rest to requests and to peers.
fn exceeds(fixture: &Fixture, range: Range<usize>) {
    let memory = fixture.pd.alloc_provider_memory(64).unwrap();
    let registration = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
    let region = registration.create().unwrap();
    assert_eq!(library::last().unwrap().len, 64);
    let (start, end) = (range.start as u64, range.end as u64);
    let err = region.token().slice(start..end).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    let part = catch_unwind(AssertUnwindSafe(|| region.slice(range)));
    assert!(part.is_err());
}

#[test]
fn buf_reg_length_exceeds_buffer_fails_plain_pd() {
    exceeds(&Fixture::new(), 0..65);
}

#[test]
fn buf_reg_length_exceeds_buffer_fails_cc_pd() {
    exceeds(&unprotected(), 0..65);
}

#[test]
fn buf_reg_offset_length_exceeds_buffer_fails_plain_pd() {
    exceeds(&Fixture::new(), 32..65);
}

#[test]
fn buf_reg_offset_length_exceeds_buffer_fails_cc_pd() {
    exceeds(&unprotected(), 32..65);
}

/// A message from a part of the memory, and one into another part.
#[test]
fn buf_rc_send_mr_subrange_cc_pd_reg_buf_mr() {
    let fixture = unprotected();
    let mut work = registered(&fixture, 64);
    work.fill(3);
    work[16..48].fill(4);
    let [_, middle, _] = parts(work);
    let [_, buf, _] = parts(registered(&fixture, 64));
    exchange(&fixture, middle, &[4; 32], buf);
}

/// The bytes 0 to 16, 16 to 48, and 48 to 64.
fn parts(mut first: Buf) -> [Buf; 3] {
    let mut middle = first.split_off(16);
    let last = middle.split_off(32);
    [first, middle, last]
}

#[test]
fn buf_rc_send_cc_pd_reg_buf_mr() {
    let fixture = unprotected();
    let mut work = registered(&fixture, 64);
    work.fill(3);
    exchange(&fixture, work, &[3; 64], registered(&fixture, 64));
}

#[test]
fn buf_rc_send_large_msg_cc_pd_reg_buf_mr() {
    let fixture = unprotected();
    let mut work = registered(&fixture, 16384);
    work[..4096].fill(1);
    work[16000..].fill(2);
    let bytes = work.to_vec();
    exchange(&fixture, work, &bytes, registered(&fixture, 16384));
}

/// Registered by the call for all kinds of memory, with an address for peers.
#[test]
fn buf_rc_send_cc_pd_reg_mr_ex() {
    let fixture = unprotected();
    let memory = fixture.pd.alloc_provider_memory(4096).unwrap();
    let iova = 0x7000_0000 + memory.as_ptr().addr() as u64 % 4096;
    let registration = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
    let region = registration.iova(iova).create().unwrap();
    let last = library::last().unwrap();
    assert_eq!((last.call, last.iova), ("ibv_reg_mr_ex", Some(iova)));
    region.write(4000, b"to the peer");
    let buf = registered(&fixture, 64);
    exchange(&fixture, region.slice(4000..4011), b"to the peer", buf);
}

#[test]
fn buf_rc_rdma_write_imm_cc_pd_reg_buf_mr() {
    let posted = access(RemoteAccess::WRITE, |qp, work, to| {
        qp.post(op::Write::new(work, to).imm_data(9)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
    assert_eq!(posted.imm_data, Some(9));
}

#[test]
fn buf_rc_rdma_read_cc_pd_reg_buf_mr() {
    let posted = access(RemoteAccess::READ, |qp, work, from| {
        qp.post(op::Read::new(work, from)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_RDMA_READ);
}

#[test]
fn buf_rc_atomic_fetch_add_cc_pd_reg_buf_mr() {
    let posted = access(RemoteAccess::ATOMIC, |qp, work, number| {
        qp.post(op::FetchAdd::new(work, number, 3)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
    assert_eq!(posted.compare_add, Some(3));
}

#[test]
fn buf_ud_send_cc_pd_reg_buf_mr() {
    let fixture = unprotected();
    exchange_datagrams(&fixture, registered(&fixture, 64));
}
