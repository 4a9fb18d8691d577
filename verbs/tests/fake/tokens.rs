//! Lengths of tokens: every request compares the bytes that it accesses with those granted.

use std::io::{ErrorKind, IoSlice};

use verbs::{
    Buf, Error, QueuePair, RemoteAccess, RemoteToken, Rts,
    op::{self, ExtendedRequest, SendOps, SendRequest},
    qp::{ExtendedBatch, QpNum},
    scope::ScopedBuf,
    srq::SrqNum,
};

use crate::{fixture::Fixture, xrc::sender};

/// 8 bytes of a pool's memory, whose key opens the rest, too.
const GRANTED: RemoteToken = RemoteToken {
    addr: 0x1000,
    len: 8,
    rkey: 7,
};

fn check(refused: &Error, bytes: u64, granted: u64) {
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let text = refused.to_string();
    for number in [
        format!("accesses {bytes} bytes"),
        format!("grants {granted}"),
    ] {
        assert!(text.contains(&number), "{text}");
    }
}

/// Posts a request within its token, and one beyond it, in every way.
fn refuse<R>(bytes: usize, granted: u64, request: impl Fn(Vec<Buf>, RemoteToken) -> R)
where
    R: SendRequest<verbs::Rc, Work = Vec<Buf>> + 'static,
{
    let fixture = Fixture::new();
    let cq = fixture.cq(32);
    let builder = fixture.pd.qp_builder(&cq, &cq).max_send_wr(8);
    let builder = builder.max_send_sge(4).send_ops(SendOps::all());
    let mut qp: QueuePair<verbs::Rc, Rts, Vec<Buf>> =
        fixture.connect(builder.create_for().unwrap());
    let request = |granted| {
        let (first, second) = (bytes.div_ceil(2).max(8.min(bytes)), bytes);
        let lens = [first, second - first];
        let bufs = lens.into_iter().filter(|&len| len > 0);
        let bufs = bufs.map(|len| fixture.pd.alloc_buf(len).unwrap());
        let len = granted;
        request(bufs.collect(), RemoteToken { len, ..GRANTED })
    };
    let exactly = bytes as u64;
    let failed = qp.post(request(granted)).unwrap_err();
    check(&failed.error, exactly, granted);
    assert_eq!(
        failed.value.unwrap().into_work().len(),
        request(0).into_work().len()
    );
    let mut batch = qp.batch();
    check(
        &batch.push(request(granted)).unwrap_err().error,
        exactly,
        granted,
    );
    batch.push(request(exactly)).unwrap();
    batch.post().unwrap();
    let mut batch = qp.extended_batch().unwrap();
    check(
        &batch.push(request(granted)).unwrap_err().error,
        exactly,
        granted,
    );
    batch.push(request(exactly)).unwrap();
    batch.post().unwrap();
    qp.post(request(exactly)).unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 3);
}

#[test]
fn request_beyond_its_token_is_refused() {
    refuse(9, 8, op::Write::new);
    refuse(9, 8, |work, token| op::Write::new(work, token).imm_data(5));
    refuse(9, 8, op::Read::new);
    refuse(8, 7, |work, token| op::FetchAdd::new(work, token, 1));
    refuse(8, 7, |work, token| op::CompareSwap::new(work, token, 1, 2));
}

fn extended<R>(fixture: &Fixture, request: impl Fn(Buf) -> R) -> Error
where
    R: ExtendedRequest<verbs::Rc, Work = Buf>,
{
    let cq = fixture.cq(32);
    let builder = fixture.pd.qp_builder(&cq, &cq).send_ops(SendOps::all());
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(builder.create_for().unwrap());
    let mut batch: ExtendedBatch<'_, _, Buf, Buf> = qp.extended_batch().unwrap();
    let refused = batch.push(request(fixture.pd.alloc_buf(1).unwrap()));
    refused.map_err(|refused| refused.error).unwrap_err()
}

#[test]
fn atomic_write_beyond_its_token_is_refused() {
    let fixture = Fixture::new();
    let token = GRANTED.slice(1..8).unwrap();
    let refused = extended(&fixture, |work| op::AtomicWrite::new(work, token, [0; 8]));
    check(&refused, 8, 7);
}

/// The length of inline data, not of the work.
#[test]
fn inline_write_beyond_its_token_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let builder = fixture.pd.qp_builder(&cq, &cq).max_inline_data(32);
    let builder = builder.max_send_sge(2).max_send_wr(2);
    let mut qp: QueuePair<verbs::Rc, Rts, ()> = fixture.connect(builder.create_for().unwrap());
    let write = || op::Write::new((), GRANTED);
    check(&qp.post(write().inline(&[0; 9])).unwrap_err().error, 9, 8);
    let parts = [IoSlice::new(&[0; 4]), IoSlice::new(&[0; 5])];
    let refused = qp.post(write().inline_list(&parts)).unwrap_err();
    check(&refused.error, 9, 8);
    qp.post(write().inline(&[0; 8])).unwrap();
    qp.post(write().inline_list(&parts[..1])).unwrap();
}

/// The connections of other transports, and members of a scope.
#[test]
fn write_beyond_its_token_is_refused_on_every_connection() {
    let fixture = Fixture::new();
    let (pd, cq) = (&fixture.pd, &fixture.cq(32));
    let work = || pd.alloc_buf(9).unwrap();
    let mut xrc = sender(&fixture, cq, QpNum::from_low_bits(9));
    let srq = SrqNum::from_low_bits(3);
    let to_srq = op::ToSrq::new(op::Write::new(work(), GRANTED), srq);
    check(&xrc.post(to_srq).unwrap_err().error, 9, 8);
    let mut bytes = [0; 9];
    verbs::scope(pd, |scope| {
        let qp = scope.create_qp(pd.qp_builder::<verbs::Rc>(cq, cq)).unwrap();
        let mut qp: QueuePair<verbs::Rc, Rts, ScopedBuf<'_>, ScopedBuf<'_>> = fixture.connect(qp);
        let buf = scope.register(&mut bytes).unwrap();
        let failed = qp.post(op::Read::new(buf, GRANTED)).unwrap_err();
        check(&failed.error, 9, 8);
    });
}

#[test]
fn full_queue_names_the_token_first() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 1);
    let write = |len| op::Write::new(fixture.pd.alloc_buf(len).unwrap(), GRANTED);
    qp.post(write(8)).unwrap();
    check(&qp.post(write(9)).unwrap_err().error, 9, 8);
    let full = qp.post(write(8)).unwrap_err();
    assert_eq!(full.error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn requests_without_a_token_have_no_such_limit() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    qp.post(op::Send::new(fixture.pd.alloc_buf(4096).unwrap()))
        .unwrap();
    let region = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    let write = op::Write::new(fixture.pd.alloc_buf(64).unwrap(), region.token());
    qp.post(write).unwrap();
}
