//! Registrations of memory not mapped in this process. Some are twins of pyverbs' cases
//! (`test_mr.py`), by their names.

use std::{
    fs::File,
    io::ErrorKind,
    os::{fd::AsFd, unix::fs::MetadataExt},
    sync::Arc,
};

use ibverbs_sys::{ibv_access_flags as flag, ibv_wr_opcode as opcode};
use softnic::Call;
use verbs::{
    Buf, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, Rts, SharedReceiveQueue,
    mr::{DmaBufRange, Mapping, UnmappedRegion},
    op,
    qp::QpNum,
};

use crate::{
    fixture::Fixture,
    memory::{LOCAL, traffic},
    provider::{Fake, Place, PostedSend},
    refused_posts::{SOFT_IWARP, of_vendor},
};

// DeviceMemoryAPITest and DeviceMemoryTest.

fn with_dm() -> Fixture {
    let fixture = Fixture::new();
    fixture
        .fake
        .describe(|device| device.attr.max_dm_size = 4096);
    fixture
}

#[test]
fn create_dm_mr() {
    let fixture = with_dm();
    for size in [4, 1024, 2048] {
        let dm = fixture.ctx.alloc_dm(size, 0).unwrap();
        let region = fixture
            .pd
            .register_dm(&dm, 0..size / 2, RemoteAccess::WRITE)
            .unwrap();
        let (start, len, access, _) = fixture.fake.region();
        assert_eq!((start, len), (0, size as u64 / 2));
        let flags = flag::IBV_ACCESS_ZERO_BASED.0 | flag::IBV_ACCESS_REMOTE_WRITE.0;
        assert_eq!(access, LOCAL | flags);
        // The memory is freed after its registration.
        drop(dm);
        assert!(fixture.fake.live().contains(&"ibv_dm"));
        drop(region);
        assert!(!fixture.fake.live().contains(&"ibv_dm"));
    }
}

#[test]
fn dm_bad_registration() {
    let fixture = with_dm();
    let dm = fixture.ctx.alloc_dm(100, 0).unwrap();
    for range in [0..104, 50..50, 100..101] {
        let err = fixture
            .pd
            .register_dm(&dm, range, RemoteAccess::empty())
            .unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput, "{err}");
    }
    let err = fixture
        .pd
        .register_dm(&dm, 0..104, RemoteAccess::empty())
        .unwrap_err();
    assert_eq!(
        err.to_string(),
        "`ibv_reg_dm_mr` failed (0..104, RemoteAccess(0x0)): \
         the range is empty, or not inside of 100 bytes"
    );
    let other = Fake::named("fake1").open().alloc_pd().unwrap();
    let err = other
        .register_dm(&dm, 0..4, RemoteAccess::empty())
        .unwrap_err();
    assert!(err.to_string().contains("another device"), "{err}");
    fixture.fake.fail(Call::RegDmMr, libc::EOPNOTSUPP);
    assert!(
        fixture
            .pd
            .register_dm(&dm, 0..4, RemoteAccess::empty())
            .is_err()
    );
}

#[test]
fn dm_traffic() {
    let fixture = with_dm();
    let mut dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    dm.write(16, b"on the device").unwrap();
    let region = fixture
        .pd
        .register_dm(&dm, 16..64, RemoteAccess::empty())
        .unwrap();
    let (sent, _) = traffic(&fixture, region.slice(3..13), region.slice(20..30), b"came");
    assert_eq!(sent, b"the device");
    let mut bytes = [0; 4];
    dm.read(36, &mut bytes).unwrap();
    assert_eq!(&bytes, b"came");
}

/// Posts a request from device memory to its bytes 8 to 16, as a peer would, and lets the request complete. Returns the request.
fn access_dm(
    access: RemoteAccess,
    post: impl FnOnce(&mut QueuePair<verbs::Rc, Rts, UnmappedRegion>, UnmappedRegion, RemoteToken),
) -> PostedSend {
    let fixture = with_dm();
    let dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    let region = fixture.pd.register_dm(&dm, 0..64, access).unwrap();
    assert_eq!(fixture.fake.region().2 & access.bits(), access.bits());
    let token = region.slice(8..16).token();
    assert_eq!((token.addr, token.len), (8, 8));
    let posted = fixture.perform(token, |qp| post(qp, region.slice(32..40), token));
    let local = posted.sges[0];
    assert_eq!((local.addr, local.length), (32, 8));
    posted
}

#[test]
fn dm_remote_traffic() {
    let posted = access_dm(RemoteAccess::WRITE, |qp, work, to| {
        qp.post(op::Write::new(work, to)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_RDMA_WRITE);
}

#[test]
fn dm_remote_write_traffic_imm() {
    let posted = access_dm(RemoteAccess::WRITE, |qp, work, to| {
        qp.post(op::Write::new(work, to).imm_data(0x0dd0)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
    assert_eq!(posted.imm_data, Some(0x0dd0));
}

#[test]
fn dm_remote_read_traffic() {
    let posted = access_dm(RemoteAccess::READ, |qp, work, from| {
        qp.post(op::Read::new(work, from)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_RDMA_READ);
}

#[test]
fn dm_atomic_fetch_add() {
    let posted = access_dm(RemoteAccess::ATOMIC, |qp, work, number| {
        qp.post(op::FetchAdd::new(work, number, 3)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
    assert_eq!(posted.compare_add, Some(3));
}

#[test]
fn dm_atomic_cmp_swp() {
    let posted = access_dm(RemoteAccess::ATOMIC, |qp, work, number| {
        qp.post(op::CompareSwap::new(work, number, 3, 4)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_ATOMIC_CMP_AND_SWP);
    assert_eq!((posted.compare_add, posted.swap), (Some(3), Some(4)));
}

// DmaBufMRTest and DmaBufTestCase.

const DMABUF: DmaBufRange = DmaBufRange {
    offset: 2048,
    len: 4096,
    iova: 0x10_0800,
};

/// Stands for a dma-buf: the fake device takes any descriptor.
fn dmabuf(fixture: &Fixture, access: RemoteAccess) -> UnmappedRegion {
    let fd = File::open("/dev/null").unwrap();
    fixture
        .pd
        .register_dmabuf(fd.as_fd(), DMABUF)
        .remote(access)
        .create()
        .unwrap()
}

#[test]
fn dmabuf_reg_mr() {
    let fixture = Fixture::new();
    // Among many descriptors, this one.
    let file = File::open("/dev/null").unwrap().metadata().unwrap();
    for access in [
        RemoteAccess::empty(),
        RemoteAccess::READ,
        RemoteAccess::all(),
    ] {
        let region = dmabuf(&fixture, access);
        let memory = Place::DmaBuf((file.dev(), file.ino()), DMABUF.offset);
        assert_eq!(
            fixture.fake.region(),
            (DMABUF.iova, 4096, LOCAL | access.bits(), memory)
        );
        assert_eq!((region.len(), region.token().addr), (4096, DMABUF.iova));
    }
}

#[test]
fn dmabuf_dereg_mr() {
    let fixture = Fixture::new();
    let region = dmabuf(&fixture, RemoteAccess::empty());
    let part = region.slice(1..2);
    drop(region);
    assert!(fixture.fake.live().contains(&"ibv_mr"));
    drop(part);
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
}

/// Access for peers implies local writes: the illegal combination cannot be requested.
#[test]
fn dmabuf_reg_mr_bad_flags() {
    let fixture = Fixture::new();
    let file = File::open("/dev/null").unwrap();
    let register = |range| {
        let registered = fixture
            .pd
            .register_dmabuf(file.as_fd(), range)
            .remote(RemoteAccess::WRITE);
        registered.create().unwrap_err()
    };
    let wrong = [
        (DmaBufRange { len: 0, ..DMABUF }, "at least one byte"),
        (
            DmaBufRange { iova: 0, ..DMABUF },
            "different places in a page",
        ),
        (
            DmaBufRange {
                offset: u64::MAX - 2047,
                ..DMABUF
            },
            "after the last address",
        ),
        (
            DmaBufRange {
                iova: u64::MAX - 2047,
                ..DMABUF
            },
            "after the last address",
        ),
    ];
    for (range, reason) in wrong {
        let err = register(range);
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
        assert!(err.to_string().contains(reason), "{err}");
    }
    fixture.fake.fail(Call::RegDmabufMr, libc::EOPNOTSUPP);
    assert_eq!(register(DMABUF).raw_os_error(), Some(libc::EOPNOTSUPP));
}

#[test]
fn dmabuf_has_the_options_of_all_memory() {
    let fixture = Fixture::new();
    let file = File::open("/dev/null").unwrap();
    let registration = fixture.pd.register_dmabuf(file.as_fd(), DMABUF);
    let region = registration
        .relaxed_ordering()
        .remote(RemoteAccess::READ)
        .create()
        .unwrap();
    let flags = flag::IBV_ACCESS_RELAXED_ORDERING.0 | flag::IBV_ACCESS_REMOTE_READ.0;
    assert_eq!(fixture.fake.region().2, LOCAL | flags);
    drop(region);
    let unknown = RemoteAccess::from_bits_retain(1 << 30);
    let refused = fixture
        .pd
        .register_dmabuf(file.as_fd(), DMABUF)
        .remote(unknown)
        .create();
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

/// Memory of others, whose owner learns of the end of the registration.
#[test]
fn foreign_memory_keeps_its_owner_until_the_device_has_lost_its_access() {
    for failing in [false, true] {
        let fixture = Fixture::new();
        let memory_owner = Arc::new(());
        let mut memory = vec![7; 64];
        let start = memory.as_mut_ptr();
        // SAFETY: the memory outlives the fixture, and is not accessed here.
        let registration = unsafe {
            fixture
                .pd
                .register_foreign(start, 64, Arc::clone(&memory_owner))
        };
        let region = registration
            .remote(RemoteAccess::READ)
            .relaxed_ordering()
            .create()
            .unwrap();
        let (addr, len, access, place) = fixture.fake.region();
        assert_eq!((addr, len), (start.addr() as u64, 64));
        let flags = flag::IBV_ACCESS_RELAXED_ORDERING.0 | flag::IBV_ACCESS_REMOTE_READ.0;
        assert_eq!(access, LOCAL | flags);
        assert_eq!(place, Place::Memory(start.addr() as u64));
        let part = region.slice(8..16);
        assert_eq!(part.token().addr, start.addr() as u64 + 8);
        drop(region);
        assert_eq!(Arc::strong_count(&memory_owner), 2);
        if failing {
            fixture.fake.fail(Call::DeregMr, libc::EBUSY);
        }
        drop(part);
        assert_eq!(Arc::strong_count(&memory_owner), 1 + usize::from(failing));
        drop(fixture);
    }
}

#[test]
fn foreign_memory_for_peers_of_soft_iwarp_is_refused() {
    let fixture = of_vendor(Fixture::iwarp(), SOFT_IWARP);
    let mut memory = vec![7; 64];
    let start = memory.as_mut_ptr();
    let register = |len, access| {
        // SAFETY: the memory outlives the fixture, and is not accessed here.
        let registration = unsafe { fixture.pd.register_foreign(start, len, ()) };
        registration.remote(access).create()
    };
    let refused = register(64, RemoteAccess::WRITE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(register(64, RemoteAccess::empty()).is_ok());
    let refused = register(0, RemoteAccess::empty()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn dmabuf_lkey() {
    let fixture = Fixture::new();
    let cq = fixture.cq(4);
    let mut qp: QueuePair<verbs::Rc, Rts, UnmappedRegion> = fixture.rc(&cq, 1);
    let region = dmabuf(&fixture, RemoteAccess::empty());
    qp.post(op::Send::new(region.slice(16..20))).unwrap();
    let sge = fixture.fake.sends(qp.qp_num())[0].sges[0];
    assert_eq!((sge.addr, sge.length), (DMABUF.iova + 16, 4));
    assert_ne!(sge.lkey, 0);
}

#[test]
fn dmabuf_rkey() {
    let fixture = Fixture::new();
    let region = dmabuf(&fixture, RemoteAccess::READ);
    assert_ne!(region.token().rkey, 0);
    assert_eq!(region.slice(8..9).token().rkey, region.token().rkey);
}

#[test]
fn dmabuf_rc_traffic() {
    let fixture = Fixture::new();
    let region = dmabuf(&fixture, RemoteAccess::empty());
    let (sent, work) = traffic(
        &fixture,
        region.slice(0..9),
        region.slice(9..20),
        b"arrived",
    );
    assert_eq!((sent.len(), work.len()), (9, 11));
}

#[test]
fn null_region_discards_writes_and_reads_zeros() {
    let fixture = Fixture::new();
    let null = fixture.pd.alloc_null_mr().unwrap();
    let buf = fixture.pd.alloc_buf(4).unwrap();
    let (sent, received) = traffic(&fixture, null.buf(3), (null.buf(4), buf), b"skipkept");
    assert_eq!(sent, [0; 3]);
    assert_eq!(received.1[..], *b"kept");
    drop((null, received));
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
    fixture.fake.fail(Call::AllocNullMr, libc::EOPNOTSUPP);
    assert!(fixture.pd.alloc_null_mr().is_err());
}

/// The refusal of a request or a receive.
pub(crate) fn refusal<E: Into<verbs::Error>>(posted: Result<(), E>) -> String {
    posted.map_err(Into::into).unwrap_err().to_string()
}

/// A region whose bytes the device knows by other addresses than this process.
pub(crate) fn zero_based(fixture: &Fixture) -> RemoteRegion {
    let registration = fixture.pd.register(Mapping::new(4096).unwrap());
    let registration = registration.remote(RemoteAccess::WRITE).zero_based();
    registration.create().map_err(|it| it.error).unwrap()
}

#[test]
fn receive_into_iova_memory_is_refused_where_the_library_copies() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let region = zero_based(&fixture);
    let builder = fixture.pd.qp_builder(&cq, &cq).max_recv_wr(2);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, RemoteRegion> =
        fixture.connect(builder.create_for().unwrap());
    let wrong = "copy messages";
    let refused = refusal(qp.post_recv(region.clone()));
    assert!(refused.contains(wrong), "{refused}");
    let mut batch = qp.recv_batch();
    let refused = refusal(batch.push(region.clone()));
    assert!(refused.contains(wrong), "{refused}");
    drop(batch);
    let mut srq: SharedReceiveQueue<RemoteRegion> = fixture.pd.create_srq(2, 1).unwrap();
    let refused = refusal(srq.post(region.clone()));
    assert!(refused.contains(wrong), "{refused}");
    // Under its own addresses the region is accepted.
    let remote = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    qp.post_recv(remote.clone()).map_err(|it| it.error).unwrap();
    srq.post(remote).map_err(|it| it.error).unwrap();
    // The device reads sent memory.
    let mut qp: QueuePair<verbs::Rc, Rts, RemoteRegion> = fixture.rc(&cq, 1);
    qp.post(op::Send::new(region))
        .map_err(|it| it.error)
        .unwrap();
}

#[test]
fn shared_receive_into_null_region_is_refused() {
    let fixture = Fixture::new();
    let null = fixture.pd.alloc_null_mr().unwrap();
    let mut srq = fixture.pd.create_srq(2, 2).unwrap();
    let buf = fixture.pd.alloc_buf(4).unwrap();
    let refused = refusal(srq.post((null.buf(4), buf)));
    assert!(refused.contains("there is no memory"), "{refused}");
}

#[test]
fn receive_omits_elements_without_bytes() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let elements = |qp: QpNum| -> Vec<usize> {
        let receives = fixture.fake.receives(qp);
        receives.iter().map(|posted| posted.sges.len()).collect()
    };
    let mut single: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 3);
    let empty = || {
        let mut buf = fixture.pd.alloc_buf(8).unwrap();
        buf.set_len(0);
        buf
    };
    single.post_recv(empty()).map_err(|it| it.error).unwrap();
    single
        .post_recv(fixture.pd.alloc_buf(8).unwrap())
        .map_err(|it| it.error)
        .unwrap();
    let mut batch = single.recv_batch();
    batch.push(empty()).map_err(|it| it.error).unwrap();
    batch.post().map_err(|it| it.error).unwrap();
    assert_eq!(elements(single.qp_num()), [0, 1, 0]);
    let mut pair: QueuePair<verbs::Rc, Rts, Buf, [Buf; 3]> = fixture.rc(&cq, 1);
    let work = [empty(), fixture.pd.alloc_buf(8).unwrap(), empty()];
    pair.post_recv(work).map_err(|it| it.error).unwrap();
    assert_eq!(elements(pair.qp_num()), [1]);
}
