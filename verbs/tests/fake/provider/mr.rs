//! Memory regions, memory windows and device memory.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use super::state::{State, device_of, device_of_context, file_of, null};

/// A registration.
pub(super) struct Mr {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) lkey: u32,
    rkey: u32,
    pub(super) access: u32,
    pub(super) place: Place,
}

impl Mr {
    /// Whether the region contains all of a range.
    fn contains(&self, start: u64, len: u64) -> bool {
        start >= self.start && len <= self.len && start - self.start <= self.len - len
    }
}

/// Where the first byte of a registration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this address.
    Memory(u64),
    /// In this device memory, at this offset.
    Device(usize, u64),
    /// In this file, a dma-buf whose content is of no interest, at this offset.
    DmaBuf((u64, u64), u64),
    Null,
}

/// Device memory, shared with its importers.
#[derive(Clone)]
pub(super) struct Dm {
    handle: u32,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Dm {
    fn new(handle: u32, len: usize) -> Self {
        Self {
            handle,
            bytes: Arc::new(Mutex::new(vec![0; len])),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a region that are read when it is deregistered.
const TOUCHED: u64 = 1 << 12;

impl Mr {
    /// Reads the memory, as a device may until it is deregistered, unless that is mapped on demand.
    fn touch(&self) {
        let on_demand = ffi::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        if let Place::Memory(start) = self.place
            && start != 0
            && self.access & on_demand == 0
        {
            let from = ptr::with_exposed_provenance::<u8>(start as usize);
            for offset in 0..self.len.min(TOUCHED) as usize {
                // SAFETY: registered memory is mapped, and nothing else writes to it during the read: guaranteed by
                // `verbs`, and checked by these tests.
                std::hint::black_box(unsafe { from.add(offset).read_volatile() });
            }
        }
    }
}

impl State {
    /// Writes a message to the elements of a receive, as a device does: to any region with the key
    /// at this time. Returns the status of the completion.
    pub(super) fn deliver(&mut self, sges: &[ffi::ibv_sge], message: &[u8]) -> ffi::ibv_wc_status {
        let mut left = message;
        for sge in sges {
            let (part, rest) = left.split_at(left.len().min(sge.length as usize));
            left = rest;
            if part.is_empty() {
                break;
            }
            let Some(mr) = self.region_of(sge) else {
                return ffi::ibv_wc_status::IBV_WC_LOC_PROT_ERR;
            };
            let offset = sge.addr - mr.start;
            match mr.place {
                Place::Memory(start) => {
                    let to = ptr::with_exposed_provenance_mut::<u8>((start + offset) as usize);
                    // SAFETY: memory in flight stays registered, and the device's alone: guaranteed
                    // by `verbs`, and checked by these tests.
                    unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                }
                Place::Device(dm, start) => {
                    let mut memory = self.dms[&dm].lock();
                    let to = &mut memory[(start + offset) as usize..][..part.len()];
                    to.copy_from_slice(part);
                }
                Place::DmaBuf(..) | Place::Null => {}
            }
        }
        match left {
            [] => ffi::ibv_wc_status::IBV_WC_SUCCESS,
            _ => ffi::ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        }
    }

    /// The bytes that the device reads from the elements of a request.
    pub(super) fn collect(&self, sges: &[ffi::ibv_sge]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for sge in sges {
            let mr = self.region_of(sge).unwrap();
            let (offset, len) = (sge.addr - mr.start, sge.length as usize);
            match mr.place {
                Place::Memory(start) => {
                    let from = ptr::with_exposed_provenance::<u8>((start + offset) as usize);
                    // SAFETY: as for `deliver`.
                    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
                }
                Place::Device(dm, start) => {
                    let memory = self.dms[&dm].lock();
                    bytes.extend_from_slice(&memory[(start + offset) as usize..][..len]);
                }
                Place::DmaBuf(..) | Place::Null => bytes.resize(bytes.len() + len, 0),
            }
        }
        bytes
    }

    /// The region with an element's key and its bytes.
    fn region_of(&self, sge: &ffi::ibv_sge) -> Option<&Mr> {
        let mut mrs = self.mrs.values();
        mrs.find(|mr| mr.lkey == sge.lkey && mr.contains(sge.addr, sge.length.into()))
    }

    /// Whether the bytes of an element are registered under its key.
    pub(super) fn is_registered(&self, sge: &ffi::ibv_sge) -> bool {
        self.region_of(sge).is_some()
    }

    /// A key for a region. Released keys are reused first, the last one at once, as from the cache
    /// of mlx5's kernel driver, and from every device after a while.
    fn issue_key(&mut self) -> u32 {
        self.released_keys.pop().unwrap_or_else(|| self.next())
    }

    /// Makes the keys of a region available again, for the same purpose each.
    fn release_keys(&mut self, lkey: u32, rkey: u32) {
        self.released_keys.extend([rkey, lkey]);
    }

    fn region(
        &mut self,
        call: &'static str,
        pd: *mut ffi::ibv_pd,
        (start, len): (u64, usize),
        access: u32,
        place: Place,
    ) -> *mut ffi::ibv_mr {
        let (addr, parent) = match place {
            Place::Memory(addr) => (addr, 0),
            Place::Device(dm, _) => (0, dm),
            Place::DmaBuf(_, offset) => (offset, 0),
            Place::Null => (0, 0),
        };
        let mr: *mut ffi::ibv_mr = self.make(call, &[pd.addr(), parent]);
        let (lkey, rkey, handle) = (self.issue_key(), self.issue_key(), self.next());
        // SAFETY: fresh; the domain is one of the fake's.
        unsafe {
            (*mr).context = (*pd).context;
            (*mr).pd = pd;
            (*mr).addr = ptr::with_exposed_provenance_mut(addr as usize);
            (*mr).length = len;
            (*mr).lkey = lkey;
            (*mr).rkey = rkey;
            (*mr).handle = handle;
        }
        let registered = Mr {
            start,
            len: len as u64,
            lkey,
            rkey,
            access,
            place,
        };
        self.mrs.insert(mr.addr(), registered);
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
    let has = |flag: ffi::ibv_access_flags| access & flag.0 != 0;
    let all = length == usize::MAX && addr.is_null();
    if all != (length == usize::MAX) || all && !has(ffi::ibv_access_flags::IBV_ACCESS_ON_DEMAND) {
        return null(libc::EINVAL);
    }
    if iova % 4096 != addr.addr() as u64 % 4096 {
        return null(libc::EINVAL);
    }
    let zero_based = has(ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED);
    let start = if zero_based { 0 } else { iova };
    let place = Place::Memory(addr.addr() as u64);
    state.region("ibv_reg_mr", pd, (start, length), access, place)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_reg_dmabuf_mr") {
        return null(errno);
    }
    let Some(file) = file_of(fd) else {
        return null(libc::EBADF);
    };
    let place = Place::DmaBuf(file, offset);
    state.region(
        "ibv_reg_dmabuf_mr",
        pd,
        (iova, length),
        access as u32,
        place,
    )
}

/// Fails with the result for an error number. `ENOMEM` (the new memory cannot be kept from
/// children), `EINVAL` and others: the old region stays. `EIO` and `EFAULT` (the old memory cannot
/// be made inheritable), and `EOPNOTSUPP`: the region is unusable, as in C. `ENOSPC`: the region
/// has changed, and only the old memory cannot be made inheritable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ffi::ibv_mr,
    flags: c_int,
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    use ffi::ibv_rereg_mr_err_code as code;
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(mr) };
    let mut state = shared.lock();
    state.used("ibv_rereg_mr", mr.addr());
    let failure = state.called("ibv_rereg_mr").err();
    if let Some(errno) = failure {
        let _: *mut () = null(errno);
        let unusable = match errno {
            libc::ENOSPC => None,
            libc::ENOMEM => return code::IBV_REREG_MR_ERR_DONT_FORK_NEW.0,
            libc::EIO | libc::EOPNOTSUPP => Some(code::IBV_REREG_MR_ERR_CMD.0),
            libc::EFAULT => Some(code::IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW.0),
            _ => return code::IBV_REREG_MR_ERR_INPUT.0,
        };
        if let Some(ret) = unusable {
            if errno != libc::EOPNOTSUPP {
                state.mrs.remove(&mr.addr());
            }
            return ret;
        }
    }
    let has = |flag: ffi::ibv_rereg_mr_flags| flags as u32 & flag.0 != 0;
    let (lkey, rkey) = (state.issue_key(), state.issue_key());
    let registered = state.mrs.get_mut(&mr.addr()).unwrap();
    let old = std::mem::replace(&mut registered.lkey, lkey);
    let old = (old, std::mem::replace(&mut registered.rkey, rkey));
    // SAFETY: live, with no other user during the call.
    unsafe {
        (*mr).lkey = lkey;
        (*mr).rkey = rkey;
        if has(ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD) {
            (*mr).pd = pd;
        }
        if has(ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION) {
            (*mr).addr = addr;
            (*mr).length = length;
            registered.start = addr.addr() as u64;
            registered.len = length as u64;
            registered.place = Place::Memory(addr.addr() as u64);
        }
    }
    if has(ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS) {
        registered.access = access as u32;
    } else if access != 0 {
        state.complain("`ibv_rereg_mr` was given an access that is not to change".into());
    }
    if has(ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD) {
        state.used("ibv_rereg_mr", pd.addr());
        state.adopt(mr.addr(), pd.addr());
    }
    state.release_keys(old.0, old.1);
    match failure {
        Some(_) => code::IBV_REREG_MR_ERR_DO_FORK_OLD.0,
        None => 0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ffi::ibv_mr) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(mr) };
    let mut state = shared.lock();
    let ret = state.unmake("ibv_dereg_mr", mr);
    if ret == 0
        && let Some(gone) = state.mrs.remove(&mr.addr())
    {
        gone.touch();
        state.release_keys(gone.lkey, gone.rkey);
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
    let mr = state.region("ibv_import_mr", pd, (0, 0), 0, Place::Null);
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
    state.region("ibv_alloc_null_mr", pd, (0, usize::MAX), 0, Place::Null)
}

pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ffi::ibv_pd,
    advice: ffi::ibv_advise_mr_advice,
    flags: u32,
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
        let on_demand = ffi::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        let Some(mr) = state.region_of(&sge) else {
            return libc::EFAULT;
        };
        if mr.access & on_demand == 0 {
            return libc::EINVAL;
        }
        state.advised.push((advice.0, flags, sge.length));
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
        (*mw).rkey = state
            .released_windows
            .pop()
            .unwrap_or_else(|| state.next() << 8);
        (*mw).handle = state.next();
        (*mw).type_ = kind;
    }
    mw
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ffi::ibv_mw) -> c_int {
    // SAFETY: one of the fake's.
    let (shared, rkey) = unsafe { (device_of(mw), (*mw).rkey) };
    let mut state = shared.lock();
    let ret = state.unmake("ibv_dealloc_mw", mw);
    if ret == 0 {
        // The lower byte is the owner's, and begins again.
        state.released_windows.push(rkey & !0xff);
    }
    ret
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
        // SAFETY: live, with no other user during the call.
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
    // SAFETY: fresh.
    let handle = unsafe { (*dm).handle };
    state.dms.insert(dm.addr(), Dm::new(handle, length));
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
    let mut memory = state.dms[&dm.addr()].lock();
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
    let memory = state.dms[&dm.addr()].lock();
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
    access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(pd) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_reg_dm_mr") {
        return null(errno);
    }
    let zero_based = ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
    if offset as usize + length > state.dms[&dm.addr()].lock().len() || access & zero_based == 0 {
        return null(libc::EINVAL);
    }
    let place = Place::Device(dm.addr(), offset);
    state.region("ibv_reg_dm_mr", pd, (0, length), access, place)
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
    // The imported memory may be of a device unknown to the test.
    let known = state.dms.values().find(|dm| dm.handle == handle).cloned();
    let memory = known.unwrap_or_else(|| Dm::new(handle, 4096));
    state.dms.insert(dm.addr(), memory);
    dm
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut ffi::ibv_dm) {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(dm) };
    let _: c_int = shared.lock().unmake("ibv_unimport_dm", dm);
}
