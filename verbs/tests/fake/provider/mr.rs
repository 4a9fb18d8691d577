//! Memory regions, memory windows and device memory.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use ibverbs_sys as ffi;

use super::state::{State, device_of, device_of_context, null};

/// A registration.
pub(super) struct Mr {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) lkey: u32,
}

impl State {
    /// Whether a range is inside a region with that key.
    pub(super) fn is_registered(&self, lkey: u32, start: u64, len: u64) -> bool {
        self.mrs
            .values()
            .any(|mr| mr.lkey == lkey && start >= mr.start && start - mr.start + len <= mr.len)
    }

    fn region(
        &mut self,
        call: &'static str,
        pd: *mut ffi::ibv_pd,
        parent: usize,
        addr: *mut c_void,
        range: (u64, usize),
    ) -> *mut ffi::ibv_mr {
        let mr: *mut ffi::ibv_mr = self.make(call, &[pd.addr(), parent]);
        let (lkey, rkey, handle) = (self.next(), self.next(), self.next());
        // SAFETY: fresh; the domain is one of the fake's.
        unsafe {
            (*mr).context = (*pd).context;
            (*mr).pd = pd;
            (*mr).addr = addr;
            (*mr).length = range.1;
            (*mr).lkey = lkey;
            (*mr).rkey = rkey;
            (*mr).handle = handle;
        }
        let (start, len) = (range.0, range.1 as u64);
        self.mrs.insert(mr.addr(), Mr { start, len, lkey });
        mr
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_reg_mr") {
        return null(errno);
    }
    let local = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    let writers = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    if access & writers != 0 && access & local == 0 {
        return null(libc::EINVAL);
    }
    let zero_based = access & ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0;
    let start = if zero_based { 0 } else { iova };
    state.region("ibv_reg_mr", pd, 0, addr, (start, length))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ffi::ibv_pd,
    _offset: u64,
    length: usize,
    iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_reg_dmabuf_mr") {
        return null(errno);
    }
    state.region("ibv_reg_dmabuf_mr", pd, 0, ptr::null_mut(), (iova, length))
}

/// Fails as a call of its own name, with the result that says that the region is gone for `EIO`,
/// and that it is unchanged for other errors.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ffi::ibv_mr,
    flags: c_int,
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    _access: c_int,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(mr) };
    let mut state = shared.lock();
    state.used("ibv_rereg_mr", mr.addr());
    if let Err(errno) = state.called("ibv_rereg_mr") {
        let _: *mut () = null(errno);
        return if errno == libc::EIO {
            ffi::ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW.0
        } else {
            ffi::ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0
        };
    }
    let flags = flags as u32;
    let (lkey, rkey) = (state.next(), state.next());
    // SAFETY: live, and used by nobody else during the call.
    unsafe {
        if flags & ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD.0 != 0 {
            (*mr).pd = pd;
        }
        if flags & ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0 != 0 {
            (*mr).addr = addr;
            (*mr).length = length;
        }
        (*mr).lkey = lkey;
        (*mr).rkey = rkey;
        let (start, len) = ((*mr).addr.addr() as u64, (*mr).length as u64);
        state.mrs.insert(mr.addr(), Mr { start, len, lkey });
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ffi::ibv_mr) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(mr) };
    let mut state = shared.lock();
    let ret = state.unmake("ibv_dereg_mr", mr);
    if ret == 0 {
        state.mrs.remove(&mr.addr());
    }
    ret
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut ffi::ibv_pd, handle: u32) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_import_mr") {
        return null(errno);
    }
    let mr = state.region("ibv_import_mr", pd, 0, ptr::null_mut(), (0, 0));
    // SAFETY: fresh.
    unsafe { (*mr).handle = handle };
    mr
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut ffi::ibv_mr) {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(mr) };
    let _: c_int = shared.lock().unmake("ibv_unimport_mr", mr);
}

pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ffi::ibv_pd) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_alloc_null_mr") {
        return null(errno);
    }
    state.region("ibv_alloc_null_mr", pd, 0, ptr::null_mut(), (0, usize::MAX))
}

pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ffi::ibv_pd,
    _advice: ffi::ibv_advise_mr_advice,
    _flags: u32,
    sges: *mut ffi::ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_advise_mr") {
        return errno;
    }
    for i in 0..count as usize {
        // SAFETY: the caller's list has `count` elements.
        let sge = unsafe { *sges.add(i) };
        if !state.is_registered(sge.lkey, sge.addr, sge.length.into()) {
            return libc::EFAULT;
        }
    }
    0
}

pub(super) unsafe extern "C" fn alloc_mw(
    pd: *mut ffi::ibv_pd,
    kind: ffi::ibv_mw_type,
) -> *mut ffi::ibv_mw {
    // SAFETY: one of the fake's.
    let (shared, ctx) = unsafe { (device_of(pd), (*pd).context) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_alloc_mw") {
        return null(errno);
    }
    let mw: *mut ffi::ibv_mw = state.make("ibv_alloc_mw", &[pd.addr()]);
    // SAFETY: fresh.
    unsafe {
        (*mw).context = ctx;
        (*mw).pd = pd;
        (*mw).rkey = state.next() << 8;
        (*mw).handle = state.next();
        (*mw).type_ = kind;
    }
    mw
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ffi::ibv_mw) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(mw) };
    shared.lock().unmake("ibv_dealloc_mw", mw)
}

pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ffi::ibv_qp,
    mw: *mut ffi::ibv_mw,
    bind: *mut ffi::ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller's queue pair, window and request.
    let (shared, bind, rkey) = unsafe { (device_of(qp), &*bind, (*mw).rkey) };
    let mut state = shared.lock();
    state.used("ibv_bind_mw", mw.addr());
    if let Err(errno) = state.attempt("ibv_bind_mw") {
        return errno;
    }
    let rkey = ffi::ibv_inc_rkey(rkey);
    let ret = state.post_bind(qp.addr(), bind, rkey);
    if ret == 0 {
        state.bind(mw.addr(), &[bind.bind_info.mr.addr()]);
        // SAFETY: live, and used by nobody else during the call.
        unsafe { (*mw).rkey = rkey };
    }
    ret
}

pub(super) unsafe extern "C" fn alloc_dm(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_alloc_dm_attr,
) -> *mut ffi::ibv_dm {
    // SAFETY: an open context, and the caller's attributes.
    let (shared, length) = unsafe { (device_of_context(ctx), (*attr).length) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_alloc_dm") {
        return null(errno);
    }
    if length as u64 > state.properties.attr.max_dm_size {
        return null(libc::ENOMEM);
    }
    let dm: *mut ffi::ibv_dm = state.make("ibv_alloc_dm", &[]);
    // SAFETY: fresh.
    unsafe {
        (*dm).context = ctx;
        (*dm).memcpy_to_dm = Some(memcpy_to_dm);
        (*dm).memcpy_from_dm = Some(memcpy_from_dm);
        (*dm).handle = state.next();
    }
    state.dms.insert(dm.addr(), vec![0; length]);
    dm
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ffi::ibv_dm) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(dm) };
    shared.lock().unmake("ibv_free_dm", dm)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ffi::ibv_dm,
    offset: u64,
    host: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(dm) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_memcpy_to_dm") {
        return errno;
    }
    let memory = state.dms.get_mut(&dm.addr()).unwrap();
    match memory
        .get_mut(offset as usize..)
        .and_then(|rest| rest.get_mut(..length))
    {
        Some(to) => {
            // SAFETY: the caller's `length` bytes, and as many of the device's.
            unsafe { ptr::copy_nonoverlapping(host.cast(), to.as_mut_ptr(), length) };
            0
        }
        None => libc::EFAULT,
    }
}

unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut ffi::ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(dm) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_memcpy_from_dm") {
        return errno;
    }
    let memory = &state.dms[&dm.addr()];
    match memory
        .get(offset as usize..)
        .and_then(|rest| rest.get(..length))
    {
        Some(from) => {
            // SAFETY: the caller's place for `length` bytes, and as many of the device's.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), host.cast(), length) };
            0
        }
        None => libc::EFAULT,
    }
}

pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ffi::ibv_pd,
    dm: *mut ffi::ibv_dm,
    offset: u64,
    length: usize,
    _access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_reg_dm_mr") {
        return null(errno);
    }
    if offset as usize + length > state.dms[&dm.addr()].len() {
        return null(libc::EINVAL);
    }
    state.region("ibv_reg_dm_mr", pd, dm.addr(), ptr::null_mut(), (0, length))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(ctx: *mut ffi::ibv_context, handle: u32) -> *mut ffi::ibv_dm {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_import_dm") {
        return null(errno);
    }
    let dm: *mut ffi::ibv_dm = state.make("ibv_import_dm", &[]);
    // SAFETY: fresh.
    unsafe {
        (*dm).context = ctx;
        (*dm).memcpy_to_dm = Some(memcpy_to_dm);
        (*dm).memcpy_from_dm = Some(memcpy_from_dm);
        (*dm).handle = handle;
    }
    // Of an unknown size.
    state.dms.insert(dm.addr(), vec![0; 4096]);
    dm
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut ffi::ibv_dm) {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(dm) };
    let _: c_int = shared.lock().unmake("ibv_unimport_dm", dm);
}
