//! Functions missing in rdma-core 44: `verbs` looks them up.

use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
    ffi::{c_int, c_void},
    fs::File,
    io::{Seek, Write},
    os::fd::{FromRawFd, IntoRawFd},
    ptr,
    sync::{Mutex, MutexGuard},
};

use ibverbs_sys::{self as ffi, ibv_mr_init_attr_mask as has};
use verbs::ProtectionDomain;

use softnic::scripted::UNPROTECTED;

use crate::hints;

/// There is not so much memory: 1 TiB.
pub(crate) const TOO_MUCH: usize = 1 << 40;

/// A registration of such memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) call: &'static str,
    pub(crate) buf: usize,
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) iova: Option<u64>,
}

struct Buf {
    pd: usize,
    addr: usize,
    layout: Layout,
    is_dmabuf: bool,
}

/// The allocated memory, by its handle.
static BUFS: Mutex<BTreeMap<usize, Buf>> = Mutex::new(BTreeMap::new());

thread_local! {
    static LAST: std::cell::RefCell<Option<Registered>> = const { std::cell::RefCell::new(None) };
}

fn bufs() -> MutexGuard<'static, BTreeMap<usize, Buf>> {
    BUFS.lock().unwrap()
}

/// How much of a domain's there is.
pub(crate) fn count(pd: &ProtectionDomain) -> usize {
    let of_pd = |buf: &&Buf| buf.pd == pd.as_raw().addr();
    bufs().values().filter(of_pd).count()
}

/// The last registration of this thread.
pub(crate) fn last() -> Option<Registered> {
    LAST.take()
}

pub(crate) fn fail(errno: i32) {
    // SAFETY: no preconditions.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own.
    unsafe { *location = errno };
}

/// Whether a domain allows memory readable by the host.
fn may_be_unprotected(pd: *mut ffi::ibv_pd) -> bool {
    // SAFETY: one of the fake's.
    unsafe { (*pd).handle & UNPROTECTED != 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ffi::ibv_pd,
    size: usize,
    handle: *mut *mut ffi::ibv_buf,
) -> *mut c_void {
    if size >= TOO_MUCH {
        fail(libc::ENOMEM);
        return ptr::null_mut();
    }
    let layout = Layout::from_size_align(size, 4096).unwrap();
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc(layout) };
    // SAFETY: just allocated. Not zeroed, like C's.
    unsafe { memory.write_bytes(0xa5, size) };
    let buf = Buf {
        pd: pd.addr(),
        addr: memory.expose_provenance(),
        layout,
        is_dmabuf: may_be_unprotected(pd),
    };
    // A handle means nothing to programs.
    let name = memory.addr() | 1;
    bufs().insert(name, buf);
    // SAFETY: the caller's place.
    unsafe { *handle = ptr::without_provenance_mut(name) };
    memory.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buf: *mut ffi::ibv_buf) {
    let Buf { addr, layout, .. } = bufs().remove(&buf.addr()).expect("freed twice");
    // SAFETY: allocated with this layout, and freed once.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(addr), layout) };
}

/// Registers a range inside a domain's own memory.
fn register(
    pd: *mut ffi::ibv_pd,
    access: c_int,
    iova: u64,
    registered: Registered,
) -> *mut ffi::ibv_mr {
    {
        let bufs = bufs();
        let buf = &bufs[&registered.buf];
        let start = registered.addr.checked_sub(buf.addr);
        let is_inside = start.is_some_and(|start| start + registered.len <= buf.layout.size());
        if buf.pd != pd.addr() || !is_inside {
            fail(libc::EINVAL);
            return ptr::null_mut();
        }
    }
    let (addr, len) = (registered.addr, registered.len);
    LAST.set(Some(registered));
    let start = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: of the fake.
    unsafe { ffi::ibv_reg_mr_iova2(pd, start, len, iova, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ffi::ibv_pd,
    buf: *mut ffi::ibv_buf,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    let registered = Registered {
        call: "ibv_reg_buf_mr",
        buf: buf.addr(),
        addr: addr.addr(),
        len,
        iova: None,
    };
    register(pd, access, addr.addr() as u64, registered)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_mr_init_attr,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller's.
    let attr = unsafe { &*attr };
    let addresses = has::IBV_REG_MR_MASK_ADDR.0 | has::IBV_REG_MR_MASK_IOVA.0;
    if attr.comp_mask == u64::from(addresses | has::IBV_REG_MR_MASK_DMAH.0) {
        return hints::register(pd, attr);
    }
    let dmabuf = has::IBV_REG_MR_MASK_FD.0 | has::IBV_REG_MR_MASK_FD_OFFSET.0;
    let dmabuf = dmabuf | has::IBV_REG_MR_MASK_IOVA.0 | has::IBV_REG_MR_MASK_DMAH.0;
    if attr.comp_mask == u64::from(dmabuf) {
        return hints::register_dmabuf(pd, attr);
    }
    let all = addresses | has::IBV_REG_MR_MASK_BUF.0;
    if attr.comp_mask != u64::from(all) {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    let registered = Registered {
        call: "ibv_reg_mr_ex",
        buf: attr.buf.addr(),
        addr: attr.addr.addr(),
        len: attr.length,
        iova: Some(attr.iova),
    };
    register(pd, attr.access, attr.iova, registered)
}

/// A file with this content.
fn file(text: &str) -> c_int {
    // SAFETY: a name with a terminating zero.
    let fd = unsafe { libc::memfd_create(c"exported".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: just made.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file.into_raw_fd()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ffi::ibv_buf) -> c_int {
    let bufs = bufs();
    let Buf {
        is_dmabuf, layout, ..
    } = &bufs[&buf.addr()];
    if !is_dmabuf {
        fail(libc::ENODATA);
        return -1;
    }
    file(&format!("a dma-buf of {} bytes", layout.size()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ffi::ibv_dm) -> c_int {
    file("device memory")
}
