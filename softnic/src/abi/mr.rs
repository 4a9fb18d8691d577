//! Memory regions.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::Arc,
};

use ibverbs_sys as ffi;

use super::{
    context::OpenDevice,
    dmabuf::DmaBufMapping,
    errno, null,
    object::{Object, zeroed},
    outcome,
    pd::Pd,
};
use crate::{
    adversary::Rule,
    card::Card,
    check::Parent,
    engine::{Access, Region},
    fabric::{ObjectCharge, Port, Resource, locked},
};

/// A memory region.
#[repr(C)]
struct Mr {
    raw: UnsafeCell<ffi::ibv_mr>,
    device: Arc<OpenDevice>,
    key: u32,
    _charge: ObjectCharge,
    /// Of memory behind a descriptor: ends after the registration.
    _mapping: Option<DmaBufMapping>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Mr {
    type Raw = ffi::ibv_mr;
}

/// Rights known to the engine; other rights are refused unless in the optional range.
const KNOWN: u32 = Access::ALL.0 | Access::SHARED_WITH_PROGRAM.0 | Access::RELAXED_ORDERING.0;

/// Size of a page of the emulated host in bytes.
const PAGE_SIZE: u64 = 4096;

/// Converts the rights of a region, or returns an errno.
fn rights(pd: &Pd, access: u32) -> Result<Access, c_int> {
    let optional = ffi::ibv_access_flags::IBV_ACCESS_OPTIONAL_RANGE.0;
    if access & !(KNOWN | optional) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let access = Access(access & KNOWN);
    let flushes = access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
    let card = pd.device.port.card().map(Card::specification);
    // As the kernel (`ib_check_mr_access`).
    if flushes && card.is_some_and(|row| !row.has_placement) {
        return Err(libc::EOPNOTSUPP);
    }
    if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
        if let Some(checker) = pd.device.port.checker() {
            checker.rights_without_local_write(access.0);
            pd.device.port.deliver_reports();
        }
        return Err(libc::EINVAL);
    }
    Ok(access)
}

/// Whether the device registers as many bytes.
fn takes_length(port: &Port, len: usize) -> bool {
    let card = port.card().map(Card::specification);
    let is_too_long = card.is_some_and(|row| len as u64 > row.max_mr_size);
    let is_too_short = len == 0 && port.adversary().has(Rule::Zero);
    !(is_too_long || is_too_short)
}

/// Registers memory for access by the engine until the deregistration. The caller keeps the memory valid until then.
///
/// # Safety
/// - `raw_pd` is a live domain.
unsafe fn register(
    raw_pd: *mut ffi::ibv_pd,
    memory: HostMemory,
    iova: u64,
    access: u32,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::borrow(raw_pd) };
    let access = match rights(pd, access) {
        Ok(access) => access,
        Err(errno) => return null(errno),
    };
    let HostMemory { addr, len, .. } = memory;
    if !takes_length(&pd.device.port, len) {
        return null(libc::EINVAL);
    }
    let host = addr.expose_provenance() as u64;
    // The kernel maps whole pages, so a chosen address differs from the host's by a multiple of the page size.
    if !access.contains(Access::ZERO_BASED) && !(host ^ iova).is_multiple_of(PAGE_SIZE) {
        return null(libc::EINVAL);
    }
    let accounts = pd.device.port.accounts();
    let bytes = locked(host, len as u64);
    let charge = match accounts.charge_object(Resource::MemoryRegions, bytes) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let region = Region {
        pd: pd.id,
        host,
        start: iova,
        len: len as u64,
        access,
    };
    let registered = pd.device.port.look(|nic| {
        let key = nic.engine.register(region)?;
        let remote_key = nic.engine.remote_key(key);
        if let Some(checker) = pd.device.port.checker() {
            checker.registered(pd.device.port.index(), key, remote_key, region);
        }
        Ok((key, remote_key))
    });
    let (key, remote_key) = match registered {
        Ok(keys) => keys,
        Err(error) => return null(errno(error)),
    };
    let mut raw: ffi::ibv_mr = zeroed();
    raw.context = pd.context();
    raw.pd = raw_pd;
    raw.addr = memory.shown;
    raw.length = len;
    raw.handle = key;
    raw.lkey = key;
    raw.rkey = match pd.device.port.adversary().choose(Rule::Keys, 2) {
        1 if !access.intersects(Access::REMOTE) => 0,
        _ => remote_key,
    };
    let mr = Mr {
        raw: UnsafeCell::new(raw),
        device: Arc::clone(&pd.device),
        key,
        _charge: charge,
        _mapping: memory.mapping,
    };
    mr.into_raw()
}

/// Memory to register.
struct HostMemory {
    /// The first byte for the engine.
    addr: *mut c_void,
    len: usize,
    /// The address in `ibv_mr`.
    shown: *mut c_void,
    /// The mapping of memory behind a descriptor.
    mapping: Option<DmaBufMapping>,
}

impl HostMemory {
    /// Memory of the program.
    fn of_program(addr: *mut c_void, len: usize) -> Self {
        Self {
            addr,
            len,
            shown: addr,
            mapping: None,
        }
    }
}

pub(super) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller's arguments.
    unsafe { ibv_reg_mr_iova(pd, addr, len, addr.addr() as u64, access) }
}

pub(super) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller's arguments.
    unsafe { ibv_reg_mr_iova2(pd, addr, len, iova, access.cast_unsigned()) }
}

pub(super) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: a live domain.
    unsafe { register(pd, HostMemory::of_program(addr, len), iova, access) }
}

/// Rights that the kernel accepts for dma-bufs.
const OF_DMABUF: u32 = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ffi::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

pub(super) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr {
    let access = access.cast_unsigned();
    if access & !OF_DMABUF != 0 || !(offset ^ iova).is_multiple_of(PAGE_SIZE) {
        return null(libc::EINVAL);
    }
    let mapping = match DmaBufMapping::new(fd, offset, len) {
        Ok(mapping) => mapping,
        Err(errno) => return null(errno),
    };
    let memory = HostMemory {
        addr: mapping.first(),
        len,
        // The offset, as from libibverbs.
        shown: ptr::without_provenance_mut(usize::try_from(offset).unwrap_or(usize::MAX)),
        mapping: Some(mapping),
    };
    // Other users of the memory access it at any time.
    let access = access | Access::SHARED_WITH_PROGRAM.0;
    // SAFETY: a live domain.
    unsafe { register(pd, memory, iova, access) }
}

pub(super) unsafe extern "C" fn ibv_dereg_mr(raw: *mut ffi::ibv_mr) -> c_int {
    // SAFETY: a live region.
    let mr = unsafe { Mr::borrow(raw) };
    // The fabric is locked during the call, so no access to the memory is in progress afterwards.
    let port = &mr.device.port;
    let ret = outcome(port.look(|nic| {
        nic.engine.settle(nic.memory);
        nic.engine.deregister(mr.key)?;
        if let Some(checker) = port.checker() {
            if let Some((qp, is_receive, wr_id)) = nic.engine.request_with_key(mr.key) {
                let name = if is_receive {
                    "a receive"
                } else {
                    "a send request"
                };
                checker.region_in_use(port.host_qp(qp), mr.key, (name, wr_id));
            }
            checker.deregistered(port.index(), mr.key);
        }
        Ok(())
    }));
    let addr = raw.expose_provenance() as u64;
    let parent = Parent::Other("a memory window");
    port.note_destruction(addr, ret, "ibv_dereg_mr", parent);
    if ret == 0 {
        // SAFETY: live until here; the caller gives the region up.
        unsafe { Mr::free(raw) };
    }
    ret
}
