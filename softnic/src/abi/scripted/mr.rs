//! Memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use ibverbs_sys as ffi;

use super::state::{State, state_of};
use crate::{
    abi::{
        copying::{copy_in, copy_out},
        null, set_errno,
        xrcd::file_id,
    },
    engine::{Access, HostRange, Shared},
    failure::Call,
};

/// A registration.
pub(super) struct ScriptedMr {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) lkey: u32,
    rkey: u32,
    pub(super) access: u32,
    pub(super) backing: Place,
}

impl ScriptedMr {
    /// Whether the region contains all of a range.
    fn contains(&self, start: u64, len: u64) -> bool {
        start >= self.start && len <= self.len && start - self.start <= self.len - len
    }
}

/// Where the first byte of a registration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this address.
    Memory(u64),
    /// In this device memory, at this offset.
    Device(usize, u64),
    /// In this file, a dma-buf whose content is of no interest, at this offset.
    DmaBuf((u64, u64), u64),
    /// Nowhere: writes are discarded, and reads return zeros.
    Null,
}

/// Bytes of a region that are read when it is deregistered.
const TOUCHED: u64 = 1 << 12;

impl ScriptedMr {
    /// Reads the memory, as a device may until it is deregistered, unless that is mapped on demand.
    fn touch(&self) {
        let on_demand = ffi::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        if let Place::Memory(start) = self.backing
            && start != 0
            && self.access & on_demand == 0
        {
            let mut bytes = vec![0; self.len.min(TOUCHED) as usize];
            let from = self.host_range(start, bytes.len());
            // SAFETY: inside of the region, which is mapped: guaranteed by the program.
            unsafe { copy_out(from, &mut bytes) };
            std::hint::black_box(bytes);
        }
    }

    /// A range of the process' memory from `addr` on, in the region.
    fn host_range(&self, addr: u64, len: usize) -> HostRange {
        let shared = match self.backing {
            Place::Memory(start) => Shared::of(start, self.len, Access(self.access)),
            _ => Shared::default(),
        };
        HostRange { addr, len, shared }
    }
}

impl State {
    /// Writes a message to the elements of a receive, as a device does: to any region with the key
    /// at this time. Returns the status of the completion.
    pub(super) fn deliver(&mut self, sges: &[ffi::ibv_sge], message: &[u8]) -> ffi::ibv_wc_status {
        let mut unwritten = message;
        for sge in sges {
            let (part, rest) = unwritten.split_at(unwritten.len().min(sge.length as usize));
            unwritten = rest;
            if part.is_empty() {
                break;
            }
            let Some(mr) = self.region_of(sge) else {
                return ffi::ibv_wc_status::IBV_WC_LOC_PROT_ERR;
            };
            let offset = sge.addr - mr.start;
            match mr.backing {
                Place::Memory(start) => {
                    let to = mr.host_range(start + offset, part.len());
                    // SAFETY: memory in flight stays registered, and the device's alone or shared:
                    // guaranteed by `verbs`, and checked by these tests.
                    unsafe { copy_in(part, to) };
                }
                Place::Device(dm, start) => {
                    let mut memory = self.dms[&dm].lock();
                    let to = &mut memory[(start + offset) as usize..][..part.len()];
                    to.copy_from_slice(part);
                }
                Place::DmaBuf(..) | Place::Null => {}
            }
        }
        match unwritten {
            [] => ffi::ibv_wc_status::IBV_WC_SUCCESS,
            _ => ffi::ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        }
    }

    /// The bytes that the device reads from the elements of a request.
    pub(super) fn collect(&self, sges: &[ffi::ibv_sge]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let mr = self.region_of(sge).unwrap();
            let (offset, len) = (sge.addr - mr.start, sge.length as usize);
            match mr.backing {
                Place::Memory(start) => {
                    let from = mr.host_range(start + offset, len);
                    let filled = bytes.len();
                    bytes.resize(filled + len, 0);
                    // SAFETY: as for `deliver`.
                    unsafe { copy_out(from, &mut bytes[filled..]) };
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
    fn region_of(&self, sge: &ffi::ibv_sge) -> Option<&ScriptedMr> {
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

    /// Registers memory.
    pub(super) fn region(
        &mut self,
        call: &'static str,
        pd: *mut ffi::ibv_pd,
        (start, len): (u64, usize),
        access: u32,
        backing: Place,
    ) -> *mut ffi::ibv_mr {
        let (addr, parent) = match backing {
            Place::Memory(addr) => (addr, 0),
            Place::Device(dm, _) => (0, dm),
            Place::DmaBuf(_, offset) => (offset, 0),
            Place::Null => (0, 0),
        };
        let (lkey, rkey) = (self.issue_key(), self.issue_key());
        // SAFETY: the domain is an object of the device, whose memory is kept.
        let ctx = unsafe { (*pd).context };
        let mr = self.make(
            call,
            &[pd.addr(), parent],
            |mr: &mut ffi::ibv_mr, number| {
                mr.context = ctx;
                mr.pd = pd;
                mr.addr = ptr::with_exposed_provenance_mut(addr as usize);
                mr.length = len;
                mr.lkey = lkey;
                mr.rkey = rkey;
                mr.handle = number;
            },
        );
        let registered = ScriptedMr {
            start,
            len: len as u64,
            lkey,
            rkey,
            access,
            backing,
        };
        self.mrs.insert(mr.addr(), registered);
        mr
    }
}

pub(in crate::abi) unsafe extern "C" fn reg_mr(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller's arguments.
    unsafe { reg_mr_iova(pd, addr, length, addr.addr() as u64, access) }
}

pub(in crate::abi) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller's arguments.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

pub(in crate::abi) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
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
    let backing = Place::Memory(addr.addr() as u64);
    state.region("ibv_reg_mr", pd, (start, length), access, backing)
}

pub(in crate::abi) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let Some(file) = file_id(fd) else {
        return null(libc::EBADF);
    };
    let backing = Place::DmaBuf(file, offset);
    state.region(
        "ibv_reg_dmabuf_mr",
        pd,
        (iova, length),
        access as u32,
        backing,
    )
}

/// Fails with the result for an error number. `ENOMEM` (the new memory cannot be kept from
/// children), `EINVAL` and others: the old region stays. `EIO` and `EFAULT` (the old memory cannot
/// be made inheritable), and `EOPNOTSUPP`: the region is unusable, as in C. `ENOSPC`: the region
/// has changed, and only the old memory cannot be made inheritable.
pub(in crate::abi) unsafe extern "C" fn rereg_mr(
    mr: *mut ffi::ibv_mr,
    flags: c_int,
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    use ffi::ibv_rereg_mr_err_code as code;
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(mr) };
    state.used("ibv_rereg_mr", mr.addr());
    let failure = state.called(Call::ReregMr).err();
    if let Some(errno) = failure {
        set_errno(errno);
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
    let raw = unsafe { &mut *mr };
    raw.lkey = lkey;
    raw.rkey = rkey;
    if has(ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD) {
        raw.pd = pd;
    }
    if has(ffi::ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION) {
        raw.addr = addr;
        raw.length = length;
        registered.start = addr.addr() as u64;
        registered.len = length as u64;
        registered.backing = Place::Memory(addr.addr() as u64);
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

pub(in crate::abi) unsafe extern "C" fn dereg_mr(mr: *mut ffi::ibv_mr) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(mr) };
    let ret = state.unmake("ibv_dereg_mr", mr);
    if ret == 0
        && let Some(removed) = state.mrs.remove(&mr.addr())
    {
        removed.touch();
        state.release_keys(removed.lkey, removed.rkey);
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn import_mr(
    pd: *mut ffi::ibv_pd,
    handle: u32,
) -> *mut ffi::ibv_mr {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let mr = state.region("ibv_import_mr", pd, (0, 0), 0, Place::Null);
    // SAFETY: fresh.
    unsafe { (*mr).handle = handle };
    mr
}

pub(in crate::abi) unsafe extern "C" fn unimport_mr(mr: *mut ffi::ibv_mr) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(mr) };
    let _: c_int = state.unmake("ibv_unimport_mr", mr);
}

pub(in crate::abi) unsafe extern "C" fn alloc_null_mr(pd: *mut ffi::ibv_pd) -> *mut ffi::ibv_mr {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    state.region("ibv_alloc_null_mr", pd, (0, usize::MAX), 0, Place::Null)
}

pub(in crate::abi) unsafe extern "C" fn advise_mr(
    pd: *mut ffi::ibv_pd,
    advice: ffi::ibv_advise_mr_advice,
    flags: u32,
    sges: *mut ffi::ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    for i in 0..count as usize {
        // SAFETY: the caller's list has `count` elements.
        let sge = unsafe { sges.add(i) };
        // SAFETY: as above.
        let sge = unsafe { *sge };
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
