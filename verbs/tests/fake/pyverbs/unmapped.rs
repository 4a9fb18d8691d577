//! `test_mr.py` and `test_cuda_dmabuf.py`: the cases about memory elsewhere, not in `unmapped.rs`

use std::{
    fs::File,
    io::ErrorKind,
    os::{fd::AsFd, unix::fs::FileExt},
};

use softnic::Call;
use verbs::{
    QueuePair, RemoteAccess, Rts, WcStatus,
    mr::{DmaBufRange, SharedMemory, UnmappedRegion},
    op,
};

use crate::fixture::Fixture;

/// The registered memory is read and written, within its bounds.
#[test]
fn dm_bad_access() {
    let fixture = Fixture::new();
    let limit = |device: &mut crate::provider::Properties| device.attr.max_dm_size = 4096;
    fixture.fake.describe(limit);
    let mut dm = fixture.ctx.alloc_dm(100, 0).unwrap();
    let no_access = RemoteAccess::empty();
    let _region = fixture.pd.register_dm(&dm, 0..100, no_access).unwrap();
    for (offset, len) in [(104, 4), (0, 104)] {
        let err = dm.read(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
        let err = dm.write(offset, &vec![0; len]).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
    }
    // Devices may require multiples of four, with an error otherwise.
    for (offset, len) in [(3, 4), (4, 3)] {
        fixture.fake.fail(Call::MemcpyFromDm, libc::EINVAL);
        let err = dm.read(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
        fixture.fake.fail(Call::MemcpyToDm, libc::EINVAL);
        let err = dm.write(offset, &vec![0; len]).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    }
}

const RANGE: DmaBufRange = DmaBufRange {
    offset: 4096,
    len: 4096,
    iova: 0x7000,
};

/// Memory behind a descriptor, a dma-buf for the fake device, and the program's own access to the
/// memory.
fn dmabuf(fixture: &Fixture, access: RemoteAccess) -> (UnmappedRegion, File) {
    let memory = SharedMemory::create(8192).unwrap();
    let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
    let region = fixture
        .pd
        .register_dmabuf(file.as_fd(), RANGE)
        .remote(access);
    (region.create().unwrap(), file)
}

/// A region is deregistered once, after the region and all of its slices have been dropped.
#[test]
fn dmabuf_dereg_mr_twice() {
    let fixture = Fixture::new();
    let (region, _file) = dmabuf(&fixture, RemoteAccess::empty());
    let (one, other) = (region.slice(0..8), region.slice(8..16));
    drop((region, one, other));
    let calls = fixture.fake.calls();
    let deregistered = calls.iter().filter(|call| **call == Call::DeregMr);
    assert_eq!(deregistered.count(), 1);
}

#[test]
fn dmabuf_write() {
    let fixture = Fixture::new();
    let (region, file) = dmabuf(&fixture, RemoteAccess::WRITE);
    file.write_all_at(&[b'a'; 4096], RANGE.offset).unwrap();
    assert_eq!(region.len(), 4096);
}

#[test]
fn dmabuf_read() {
    let fixture = Fixture::new();
    let (region, file) = dmabuf(&fixture, RemoteAccess::READ);
    file.write_all_at(b"behind the descriptor", RANGE.offset)
        .unwrap();
    drop(region);
    // The registration has taken nothing from the program.
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, RANGE.offset + 11).unwrap();
    assert_eq!(&bytes, b"descriptor");
}

/// Writes from one dma-buf to another, by the addresses sent to the peer.
fn rdma_traffic() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, UnmappedRegion> = fixture.rc(&cq, 2);
    let (from, _from) = dmabuf(&fixture, RemoteAccess::empty());
    let (to, _to) = dmabuf(&fixture, RemoteAccess::WRITE);
    for at in (0..4096).step_by(1024) {
        let part = at..at + 1024;
        let token = to.slice(part.clone()).token();
        assert_eq!((token.addr, token.len), (RANGE.iova + at, 1024));
        qp.post(op::Write::new(from.slice(part), token)).unwrap();
        let posted = &fixture.fake.sends(qp.qp_num())[0];
        assert_eq!(posted.remote, Some((token.addr, token.rkey)));
        let sge = posted.sges[0];
        assert_eq!((sge.addr, sge.length), (RANGE.iova + at, 1024));
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let wc = cq.poll().unwrap().next().unwrap();
        wc.ok().unwrap();
        assert!(qp.complete(wc).is_ok());
    }
}

#[test]
fn dmabuf_rdma_traffic() {
    rdma_traffic();
}

/// A dma-buf of a graphics card is registered as any other.
#[test]
fn cuda_dmabuf_rdma_write_traffic() {
    rdma_traffic();
}
