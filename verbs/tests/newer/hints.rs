//! DMA hints (rdma-core 59): the calls missing in rdma-core 44, with the refusals of the kernel and of its driver for cards with
//! hints, and the twins of pyverbs' cases (`test_dmah.py`), by their names.

use std::{
    cell::RefCell, collections::BTreeMap, ffi::c_int, io::ErrorKind, os::fd::AsFd, ptr, sync::Mutex,
};

use ibverbs_sys::{
    self as ffi, ibv_access_flags as flag, ibv_dmah_init_attr_mask as has, ibv_wr_opcode as opcode,
};
use verbs::{
    Buf, QueuePair, RemoteAccess, RemoteToken, Rts,
    mr::{DmaBufRange, DmaHandle, DmaHints, SharedMemory, TphMemory, UnmappedRegion},
    op,
};

use crate::{fixture::Fixture, library::fail, provider::PostedSend, traffic::Traffic};

/// Number of processors.
const PROCESSORS: u32 = 4;

/// The allocated handles: their context and their hints.
static HANDLES: Mutex<BTreeMap<usize, (usize, Hints)>> = Mutex::new(BTreeMap::new());

/// Processor, processing hint and kind of memory.
type Hints = (Option<u32>, Option<u8>, Option<u8>);

thread_local! {
    /// Hints of this thread's last registration.
    static REGISTERED: RefCell<Option<Hints>> = const { RefCell::new(None) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_dmah(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_dmah_init_attr,
) -> *mut ffi::ibv_dmah {
    // SAFETY: the caller's.
    let attr = unsafe { *attr };
    let is_set = |field: has| attr.comp_mask & field.0 != 0;
    let hints: Hints = (
        is_set(has::IBV_DMAH_INIT_ATTR_MASK_CPU_ID).then_some(attr.cpu_id),
        is_set(has::IBV_DMAH_INIT_ATTR_MASK_PH).then_some(attr.ph),
        is_set(has::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE).then_some(attr.tph_mem_type),
    );
    let is_valid = hints.0.is_none_or(|cpu| cpu < PROCESSORS)
        && hints.1.is_none_or(|hint| hint < 4)
        && hints.2.is_none_or(|kind| kind <= TphMemory::PERSISTENT.0);
    if !is_valid {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    let handle = Box::into_raw(Box::new(ffi::ibv_dmah { context }));
    HANDLES
        .lock()
        .unwrap()
        .insert(handle.addr(), (context.addr(), hints));
    handle
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_dmah(handle: *mut ffi::ibv_dmah) -> c_int {
    let removed = HANDLES.lock().unwrap().remove(&handle.addr());
    removed.expect("freed twice");
    // SAFETY: from a box, and freed once.
    drop(unsafe { Box::from_raw(handle) });
    0
}

/// Remembers the hints of a registration. Refuses another device's, access rights unknown to libibverbs, and paging on demand,
/// as the kernel does.
fn remember(pd: *mut ffi::ibv_pd, attr: &ffi::ibv_mr_init_attr) -> Result<(), i32> {
    // SAFETY: one of the fake's.
    let context = unsafe { (*pd).context };
    let (of, hints) = HANDLES.lock().unwrap()[&attr.dmah.addr()];
    let access = attr.access.cast_unsigned();
    if access & UNKNOWN != 0 {
        return Err(libc::EINVAL);
    }
    if of != context.addr() || access & flag::IBV_ACCESS_ON_DEMAND.0 != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    REGISTERED.set(Some(hints));
    Ok(())
}

/// An access right that does not exist.
const UNKNOWN: u32 = 1 << 18;

/// Registers memory with a handle.
pub(crate) fn register(pd: *mut ffi::ibv_pd, attr: &ffi::ibv_mr_init_attr) -> *mut ffi::ibv_mr {
    if let Err(errno) = remember(pd, attr) {
        fail(errno);
        return ptr::null_mut();
    }
    let access = attr.access.cast_unsigned();
    // SAFETY: of the fake.
    unsafe { ffi::ibv_reg_mr_iova2(pd, attr.addr, attr.length, attr.iova, access) }
}

/// Registers a dma-buf with a handle.
pub(crate) fn register_dmabuf(
    pd: *mut ffi::ibv_pd,
    attr: &ffi::ibv_mr_init_attr,
) -> *mut ffi::ibv_mr {
    if let Err(errno) = remember(pd, attr) {
        fail(errno);
        return ptr::null_mut();
    }
    let (length, iova, access) = (attr.length, attr.iova, attr.access);
    // SAFETY: of the fake.
    unsafe { ffi::ibv_reg_dmabuf_mr(pd, attr.fd_offset, length, iova, attr.fd, access) }
}

/// Number of handles of a device.
fn count(fixture: &Fixture) -> usize {
    let context = fixture.ctx.as_raw().addr();
    let handles = HANDLES.lock().unwrap();
    handles.values().filter(|(of, _)| *of == context).count()
}

fn handle(fixture: &Fixture) -> DmaHandle {
    fixture.ctx.alloc_dma_handle(hints(0, 3)).unwrap()
}

/// Hints of pyverbs' cases.
fn hints(cpu: u32, processing: u8) -> DmaHints {
    let mut hints = DmaHints::default();
    hints.cpu = Some(cpu);
    hints.processing = Some(processing);
    hints.memory = Some(TphMemory::VOLATILE);
    hints
}

/// The text of a refusal with `EINVAL`.
fn refusal(hints: DmaHints) -> String {
    let fixture = Fixture::new();
    let err = fixture.ctx.alloc_dma_handle(hints).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(count(&fixture), 0);
    err.to_string()
}

/// The region keeps its handle.
#[test]
fn dmah_with_mrex() {
    let fixture = Fixture::new();
    let handle = handle(&fixture);
    let registration = fixture.pd.register(vec![0; 64]).dma_handle(&handle);
    let buf = registration.create_buf().unwrap();
    assert_eq!(REGISTERED.take(), Some((Some(0), Some(3), Some(0))));
    drop(handle);
    assert_eq!(count(&fixture), 1);
    drop(buf);
    assert_eq!(count(&fixture), 0);
}

#[test]
fn dmah_invalid_ph() {
    let text = refusal(hints(0, 4));
    assert!(text.contains("processing: Some(4)"), "{text}");
}

/// Hints not set are not in the mask.
#[test]
fn dmah_persistent_memory() {
    let fixture = Fixture::new();
    let mut hints = DmaHints::default();
    hints.memory = Some(TphMemory::PERSISTENT);
    let handle = fixture.ctx.alloc_dma_handle(hints).unwrap();
    assert_eq!(handle.context(), &fixture.ctx);
    let registration = fixture.pd.register(vec![0; 64]).dma_handle(&handle);
    registration.create_buf().unwrap();
    assert_eq!(REGISTERED.take(), Some((None, None, Some(1))));
}

#[test]
fn dmah_invalid_mem_type() {
    let mut hints = hints(0, 0);
    hints.memory = Some(TphMemory(0xfe));
    refusal(hints);
}

#[test]
fn dmah_inval_cpu_id() {
    let text = refusal(hints(0xffff, 3));
    assert!(text.contains("cpu: Some(65535)"), "{text}");
}

#[test]
fn dmah_mrex_odp_bad_flow() {
    let fixture = Fixture::new();
    let handle = handle(&fixture);
    let registration = fixture.pd.register(vec![7; 64]).dma_handle(&handle);
    let refused = registration.on_demand().create_buf().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(refused.value, [7; 64]);
}

/// Access rights that do not exist are refused by the device, and the memory comes back.
#[test]
fn reg_mrex_bad_flags() {
    let fixture = Fixture::new();
    let handle = handle(&fixture);
    let unknown = RemoteAccess::from_bits_retain(UNKNOWN);
    let registration = fixture.pd.register(vec![7; 64]).dma_handle(&handle);
    let refused = registration.remote(unknown).create().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(refused.value, [7; 64]);
}

const RANGE: DmaBufRange = DmaBufRange {
    offset: 4096,
    len: 4096,
    iova: 0x7000,
};

/// Ranges that no dma-buf can have are refused before the call, and those outside of this one by the device.
#[test]
fn reg_mrex_inval_params() {
    let fixture = Fixture::new();
    let (handle, file) = (handle(&fixture), SharedMemory::create(8192).unwrap());
    let empty = DmaBufRange { len: 0, ..RANGE };
    let late = u64::MAX - 4095;
    let offset = late;
    let past_end = DmaBufRange { offset, ..RANGE };
    let iova = late;
    let above = DmaBufRange { iova, ..RANGE };
    let iova = 0x7001;
    let shifted = DmaBufRange { iova, ..RANGE };
    for range in [empty, past_end, above, shifted] {
        let write = RemoteAccess::WRITE;
        let result = fixture
            .pd
            .register_dmabuf(file.as_fd(), range)
            .remote(write)
            .dma_handle(&handle);
        let err = result.create().unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput, "{range:?}");
        assert_eq!(REGISTERED.take(), None);
    }
}

/// Writes from one dma-buf to another, both with hints, which the regions keep.
#[test]
fn mrex_dmah_cuda_dmabuf_rdma_write_traffic() {
    let fixture = Fixture::new();
    let region = |access| {
        let (handle, file) = (handle(&fixture), SharedMemory::create(8192).unwrap());
        let (pd, fd) = (&fixture.pd, file.as_fd());
        let region = pd
            .register_dmabuf(fd, RANGE)
            .remote(access)
            .dma_handle(&handle)
            .create();
        assert_eq!(REGISTERED.take(), Some((Some(0), Some(3), Some(0))));
        region.unwrap()
    };
    let (from, to) = (region(RemoteAccess::empty()), region(RemoteAccess::WRITE));
    assert_eq!(count(&fixture), 2);
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, UnmappedRegion> = fixture.rc(&cq, 2);
    let token = to.token();
    qp.post(op::Write::new(from, token)).unwrap();
    let posted = &fixture.fake.sends(qp.qp_num())[0];
    assert_eq!(posted.remote, Some((RANGE.iova, token.rkey)));
    assert_eq!(posted.sges[0].addr, RANGE.iova);
    drop(to);
    assert_eq!(count(&fixture), 1);
    drop((qp, cq));
    assert_eq!(count(&fixture), 0);
}

#[test]
fn dmabuf_with_hints_of_another_device_is_refused() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let (handle, file) = (handle(&other), SharedMemory::create(8192).unwrap());
    let registration = fixture
        .pd
        .register_dmabuf(file.as_fd(), RANGE)
        .dma_handle(&handle);
    let text = registration.create().unwrap_err().to_string();
    assert!(
        text.contains("the DMA handle is of another device"),
        "{text}"
    );
}

#[test]
fn dma_handle_of_another_device_is_refused() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let handle = handle(&other);
    let registration = fixture.pd.register(vec![0; 64]).dma_handle(&handle);
    let refused = registration.create_buf().unwrap_err();
    let text = refused.error.to_string();
    assert!(
        text.contains("the DMA handle is of another device"),
        "{text}"
    );
}

/// Memory with hints.
fn hinted(fixture: &Fixture, len: usize) -> Buf {
    let registration = fixture.pd.register(vec![0; len]);
    let registration = registration.dma_handle(&handle(fixture));
    registration.create_buf().unwrap()
}

#[test]
fn dmah_mrex_rc_send() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    let work = hinted(&fixture, 64);
    let work = traffic.send(&mut qp, &[0; 64], |qp| {
        qp.post(op::Send::new(work)).unwrap();
    });
    traffic.receive(&mut qp, work, b"a message");
}

/// Posts one request from memory with hints to memory with hints. Returns the request.
fn access(
    access: RemoteAccess,
    post: impl FnOnce(&mut QueuePair<verbs::Rc, Rts>, Buf, RemoteToken),
) -> PostedSend {
    let fixture = Fixture::new();
    let registration = fixture.pd.register(vec![0; 64]);
    let registration = registration.dma_handle(&handle(&fixture)).remote(access);
    let region = registration.create().unwrap();
    assert!(REGISTERED.take().is_some(), "registered without hints");
    assert_eq!(fixture.fake.region().2 & access.bits(), access.bits());
    let token = region.token().slice(0..8).unwrap();
    fixture.perform(token, |qp| post(qp, hinted(&fixture, 8), token))
}

#[test]
fn dmah_mrex_rc_rdma_write() {
    let posted = access(RemoteAccess::WRITE, |qp, work, to| {
        qp.post(op::Write::new(work, to)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_RDMA_WRITE);
}

#[test]
fn dmah_mrex_rc_atomic() {
    let posted = access(RemoteAccess::ATOMIC, |qp, work, number| {
        qp.post(op::FetchAdd::new(work, number, 3)).unwrap();
    });
    assert_eq!(posted.opcode, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
    assert_eq!(posted.compare_add, Some(3));
}
