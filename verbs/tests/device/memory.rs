//! Registration of memory of every kind with a device, and the device's refusals.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::fd::{AsFd, OwnedFd},
    process::Command,
    ptr::NonNull,
    thread,
};

use ibverbs_sys as ffi;
use verbs::{
    Buf, Completed, CompletionQueue, QueuePair, RemoteAccess, RemoteRegion, Rts, WcStatus,
    fork::ForkStatus,
    mr::{
        Advice, BufPool, DmaBufRange, DmaHints, HugePage, Mapping, NotReregistered, PoolBuf,
        RawMemory, RemoteRegistration, SharedMemory,
    },
    op,
    work::{Gather, Scatter},
};

use crate::loopback::{Fixture, expect_bytes};

/// Sends one work to another, and gives both back.
pub(crate) fn exchange<S: Gather + 'static, R: Scatter + 'static>(
    fixture: &Fixture,
    from: S,
    to: R,
) -> (S, R) {
    let mut cq = fixture.cq(16);
    let (mut a, mut b): (QueuePair<verbs::Rc, Rts, S, R>, _) = fixture.pair(&cq, 2);
    b.post_recv(to).map_err(|refused| refused.error).unwrap();
    a.post(op::Send::new(from))
        .map_err(|refused| refused.error)
        .unwrap();
    let (mut sent, mut received) = (None, None);
    while sent.is_none() || received.is_none() {
        let completions = cq.wait(crate::windows::TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        for wc in completions {
            wc.ok().unwrap();
            let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
            match qp.complete(wc) {
                Ok(Completed::Send(done)) => sent = Some(done.into_work().unwrap()),
                Ok(Completed::Receive(done)) => received = Some(done.into_work().unwrap()),
                Err(_) => unreachable!("there is no other queue pair"),
            }
        }
    }
    (sent.unwrap(), received.unwrap())
}

/// Writes to a peer's memory, and returns the status.
pub(crate) fn write(fixture: &Fixture, cq: &mut CompletionQueue, to: &RemoteRegion) -> WcStatus {
    let (mut a, _b): (QueuePair<verbs::Rc, Rts, Buf>, QueuePair<verbs::Rc, Rts>) =
        fixture.pair(cq, 2);
    let work = fixture.pd.register_buf(*b"from the peer").unwrap();
    a.post(op::Write::new(work, to.token())).unwrap();
    let wc = cq.wait(crate::windows::TEST_TIMEOUT).unwrap().next();
    wc.expect("nothing has completed").status()
}

#[test]
fn message_between_mappings_arrives() {
    let fixture = Fixture::new();
    let mut memory = Mapping::new(10_000).unwrap();
    memory[9_990..].copy_from_slice(b"the end it");
    let mut from = fixture
        .pd
        .register(memory)
        .relaxed_ordering()
        .create_buf()
        .unwrap();
    let from = from.split_off(9_990);
    let to = fixture
        .pd
        .register(Mapping::new(10).unwrap())
        .create_buf()
        .unwrap();
    let (_, received) = exchange(&fixture, from, to);
    assert_eq!(&received[..], b"the end it");
}

/// A kernel of User-Mode Linux has no pool. Only root may set the size of the pool.
#[test]
fn huge_page_shortage_names_the_pool() {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let fixture = Fixture::new();
    let Ok(pages) = fs::read_to_string(pool) else {
        let err = Mapping::huge(4 << 20, HugePage::MIB_2).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
        assert!(
            err.to_string().contains("no huge pages of this size"),
            "{err}"
        );
        return;
    };
    // More than any pool has, in address space alone.
    let err = Mapping::huge(1 << 44, HugePage::MIB_2).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENOMEM));
    assert!(err.to_string().contains("too few huge pages"), "{err}");
    // The pool of a machine in use stays as it is.
    if std::env::var_os("HOSTS").is_none() {
        return;
    }
    if let Err(err) = fs::write(pool, "2") {
        assert_eq!(err.kind(), ErrorKind::PermissionDenied);
        return;
    }
    let memory = Mapping::huge(4 << 20, HugePage::MIB_2).unwrap();
    let mut from = fixture.pd.register(memory).create_buf().unwrap();
    let to = from.split_off(2 << 20);
    from[..4].copy_from_slice(b"huge");
    from.set_len(1000);
    let (_, received) = exchange(&fixture, from, to);
    assert_eq!(received[..4], *b"huge");
    fs::write(pool, pages.trim()).unwrap();
}

#[test]
fn raw_memory_is_registered_and_not_freed() {
    let fixture = Fixture::new();
    let mut memory = vec![0_u64; 4];
    let start = NonNull::from(memory.as_mut_slice()).cast();
    // SAFETY: the vector is there, and not looked at, until the buffer has been dropped.
    let raw = unsafe { RawMemory::new(NonNull::slice_from_raw_parts(start, 32)) };
    let buf = fixture.pd.register(raw).create_buf().unwrap();
    let from = fixture.pd.register_buf([1; 32]).unwrap();
    drop(exchange(&fixture, from, buf));
    assert_eq!(memory, [0x0101_0101_0101_0101; 4]);
}

/// A child writes through its inherited standard output.
#[test]
fn shared_memory_of_another_process_is_sent() {
    let fixture = Fixture::new();
    let memory = SharedMemory::create(4096).unwrap();
    let fd: OwnedFd = memory.as_fd().try_clone_to_owned().unwrap();
    let region = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
    let region = region.create().unwrap();
    let mut cq = fixture.cq(16);
    assert_eq!(write(&fixture, &mut cq, &region), WcStatus::SUCCESS);
    expect_bytes(|bytes| region.read(0, bytes), b"from the peer");
    let write = "printf child | dd of=/proc/self/fd/1 bs=1 seek=9 conv=notrunc status=none";
    let status = Command::new("sh").args(["-c", write]).stdout(fd).status();
    assert!(status.unwrap().success());
    let mut bytes = [0; 16];
    region.read(0, &mut bytes);
    assert_eq!(&bytes, b"from the child\0\0");
}

/// Memory for registration with write access for peers, at addresses other than its own.
fn writable(fixture: &Fixture) -> RemoteRegistration<'_, Mapping> {
    let memory = Mapping::new(8192).unwrap();
    fixture.pd.register(memory).remote(RemoteAccess::WRITE)
}

/// A peer writes into the region, and a message is sent out of the region.
fn traffic_by_address(fixture: &Fixture, region: &RemoteRegion) {
    let mut cq = fixture.cq(16);
    let part = region.slice(4000..4100);
    assert!(part.token().addr < 0x10_0000);
    assert_eq!(write(fixture, &mut cq, &part), WcStatus::SUCCESS);
    expect_bytes(|bytes| region.read(3999, bytes), b"\0from the peer\0");
    let mut bytes = [0; 15];
    let to = fixture.pd.alloc_remote(16, RemoteAccess::empty()).unwrap();
    let (_, received) = exchange(fixture, region.slice(4000..4004), to);
    received.read(0, &mut bytes[..5]);
    assert_eq!(&bytes[..5], b"from\0");
}

#[test]
fn iova_of_region_is_accepted_in_requests() {
    let fixture = Fixture::new();
    let chosen = writable(&fixture).iova(0x5_0000).create().unwrap();
    traffic_by_address(&fixture, &chosen);
    let refused = writable(&fixture).iova(0x5_0001).create().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(refused.value.len(), 8192);
}

/// Whether `ibv_reg_mr` registers zero-based memory. Soft-RoCE refuses such regions since Linux 6.5
/// (`rxe_reg_user_mr`), and no device attribute reports this limitation.
pub(crate) fn registers_zero_based(fixture: &Fixture) -> bool {
    let mut memory = vec![0_u64; 8];
    let flags = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
    let start = memory.as_mut_ptr().cast();
    // SAFETY: the domain exists, and the memory outlives the registration.
    let mr = unsafe { ffi::ibv_reg_mr(fixture.pd.as_raw(), start, 64, flags) };
    if mr.is_null() {
        return false;
    }
    // SAFETY: the region exists, and is not used.
    assert_eq!(unsafe { ffi::ibv_dereg_mr(mr) }, 0);
    true
}

#[test]
fn offset_into_zero_based_region_is_accepted_in_requests() {
    let fixture = Fixture::new();
    let created = writable(&fixture).zero_based().create();
    if registers_zero_based(&fixture) {
        traffic_by_address(&fixture, &created.unwrap());
    } else {
        let refused = created.unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(refused.value.len(), 8192);
    }
}

fn pool_traffic(fixture: &Fixture, pool: &BufPool) {
    for round in 0..20 {
        let take = || -> PoolBuf { pool.try_take().unwrap() };
        let (mut from, to) = (take(), take());
        from.fill(round);
        from.set_len(100);
        let (_, received) = exchange(fixture, from, to);
        assert_eq!(received[..100], [round; 100]);
    }
}

#[test]
fn pool_buffers_of_two_threads_arrive() {
    let fixture = Fixture::new();
    let pool = fixture.pd.alloc_pool(4, 1000).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool_traffic(&fixture, &pool));
        pool_traffic(&fixture, &pool);
    });
    let all: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!(all.len(), 4);
}

/// A registration without support in the device is an error, and the memory is returned. Paging on demand is in
/// `on_demand.rs`.
#[test]
fn registrations_without_device_support_return_the_memory() {
    let fixture = Fixture::new();
    let Fixture { pd, ctx } = &fixture;
    assert!(pd.register_everything().is_err());
    let buf = pd.alloc_buf(64).unwrap();
    assert!(pd.advise(&buf, Advice::PREFETCH, true).is_err());
    let null = pd.alloc_null_mr().unwrap_err();
    assert_eq!(null.raw_os_error(), Some(libc::EOPNOTSUPP));
    let range = DmaBufRange {
        offset: 0,
        len: 4096,
        iova: 0,
    };
    let file = File::open("/dev/null").unwrap();
    assert!(pd.register_dmabuf(file.as_fd(), range).create().is_err());
    assert!(ctx.alloc_dma_handle(DmaHints::default()).is_err());
}

/// Libraries with the call have such memory for every device.
#[test]
fn provider_memory_is_exchanged_or_unsupported() {
    let fixture = Fixture::new();
    let Fixture { pd, .. } = &fixture;
    let allocated = pd.alloc_provider_memory(4096);
    if ffi::late::ibv_alloc_buf().is_some() {
        let mut from = pd.register(allocated.unwrap()).create_buf().unwrap();
        from.fill(9);
        let memory = pd.alloc_provider_memory(4096).unwrap();
        let to = pd.register(memory).create_buf().unwrap();
        let (_, received) = exchange(&fixture, from, to);
        assert_eq!(received[..], [9; 4096]);
    } else {
        let err = allocated.unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}

#[test]
fn rereg_without_device_support_leaves_the_region_unchanged() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let region = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    let refused = region
        .rereg()
        .access(RemoteAccess::READ)
        .apply()
        .unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EOPNOTSUPP));
    let NotReregistered::Unchanged { region, .. } = refused.value else {
        panic!("{:?}", refused.value);
    };
    assert_eq!(write(&fixture, &mut cq, &region), WcStatus::SUCCESS);
}

/// Registered pages are copied at the fork: by the guests' kernels, as `rdma system` reports, and by softnic's processor.
/// Older releases of rdma-core check first whether the call is too late, newer ones whether it is needed.
#[test]
fn fork_init_after_registration_is_unneeded_or_too_late() {
    let fixture = Fixture::new();
    let _registered = fixture.pd.alloc_buf(64).unwrap();
    assert_eq!(verbs::fork::fork_status(), ForkStatus::UNNEEDED);
    let done = verbs::fork::fork_init();
    if fixture.is_soft_roce() {
        let listed = Command::new("rdma").arg("system").output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains("copy-on-fork on"), "{listed}");
        if let Err(err) = done {
            assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
        }
    } else {
        done.unwrap();
    }
    assert_eq!(verbs::fork::fork_status(), ForkStatus::UNNEEDED);
}
