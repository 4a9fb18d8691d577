//! Protection, parent, thread and XRC domains, and address handles.

use std::{ffi::c_int, ptr};

use ibverbs_sys::{self as ffi, ibv_parent_domain_init_attr_mask as has};

use super::state::{device_of_context, state_of, state_of_context};
use crate::abi::{null, xrcd::file_id};

pub(in crate::abi) unsafe extern "C" fn alloc_pd(ctx: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    state.make("ibv_alloc_pd", &[], |pd: &mut ffi::ibv_pd, number| {
        pd.context = ctx;
        pd.handle = number;
    })
}

pub(in crate::abi) unsafe extern "C" fn dealloc_pd(pd: *mut ffi::ibv_pd) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let ret = state.unmake("ibv_dealloc_pd", pd);
    if ret != 0 {
        return ret;
    }
    let allocator = state.allocators.remove(&pd.addr());
    drop(state);
    if let Some(allocator) = allocator {
        // SAFETY: the callbacks of the parent domain, with memory from them.
        unsafe { allocator.give_back(pd) };
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn import_pd(
    ctx: *mut ffi::ibv_context,
    handle: u32,
) -> *mut ffi::ibv_pd {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    state.make("ibv_import_pd", &[], |pd: &mut ffi::ibv_pd, _| {
        pd.context = ctx;
        pd.handle = handle;
    })
}

pub(in crate::abi) unsafe extern "C" fn unimport_pd(pd: *mut ffi::ibv_pd) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let _: c_int = state.unmake("ibv_unimport_pd", pd);
}

/// Allocations of a parent domain by its callbacks, as a provider makes for each queue.
pub(super) struct Allocator {
    attr: ffi::ibv_parent_domain_init_attr,
    /// The block allocated with the domain.
    block: *mut std::ffi::c_void,
}

// SAFETY: the pointers' targets are used with the state locked, or by the only owner.
unsafe impl Send for Allocator {}

/// The size, alignment and type of a parent domain's block.
pub const PARENT_DOMAIN_BLOCK: (usize, usize, u64) = (4096, 64, 7);

impl Allocator {
    /// # Safety
    /// - `attr` is complete, and `pd` the new parent domain.
    unsafe fn take(attr: ffi::ibv_parent_domain_init_attr, pd: *mut ffi::ibv_pd) -> Self {
        let (size, alignment, kind) = PARENT_DOMAIN_BLOCK;
        let block = match attr.alloc {
            // SAFETY: the callback's contract: the domain, its context, and the requested layout.
            Some(alloc) => unsafe { alloc(pd, attr.pd_context, size, alignment, kind) },
            None => ptr::null_mut(),
        };
        if !block.is_null() && block != ffi::IBV_ALLOCATOR_USE_DEFAULT {
            // SAFETY: the callback returned `size` bytes.
            unsafe { block.cast::<u8>().write_bytes(0x5a, size) };
        }
        Self { attr, block }
    }

    /// # Safety
    /// - `pd` is the parent domain.
    unsafe fn give_back(self, pd: *mut ffi::ibv_pd) {
        let ours = !self.block.is_null() && self.block != ffi::IBV_ALLOCATOR_USE_DEFAULT;
        if let (true, Some(free)) = (ours, self.attr.free) {
            // SAFETY: the callback's contract: a block from `alloc`.
            unsafe { free(pd, self.attr.pd_context, self.block, PARENT_DOMAIN_BLOCK.2) };
        }
    }
}

/// A bit in the handle of a domain that allows memory readable by the host.
pub const UNPROTECTED: u32 = 1 << 31;

pub(in crate::abi) unsafe extern "C" fn alloc_parent_domain(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_parent_domain_init_attr,
) -> *mut ffi::ibv_pd {
    // SAFETY: the caller's attributes.
    let attr = unsafe { *attr };
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    let parents = [attr.pd.addr(), attr.td.addr()];
    let wants = |bit: has| attr.comp_mask & bit.0 != 0;
    let unprotected = wants(has::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC);
    let pd = state.make(
        "ibv_alloc_parent_domain",
        &parents,
        |pd: &mut ffi::ibv_pd, number| {
            pd.context = ctx;
            pd.handle = number | if unprotected { UNPROTECTED } else { 0 };
        },
    );
    if wants(has::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
        drop(state);
        // SAFETY: the new domain, and its attributes.
        let allocator = unsafe { Allocator::take(attr, pd) };
        state = shared.lock();
        if allocator.block.is_null() {
            let _: c_int = state.unmake("ibv_dealloc_pd", pd);
            return null(libc::ENOMEM);
        }
        state.allocators.insert(pd.addr(), allocator);
    }
    pd
}

pub(in crate::abi) unsafe extern "C" fn alloc_td(
    ctx: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_td_init_attr,
) -> *mut ffi::ibv_td {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    state.make("ibv_alloc_td", &[], |td: &mut ffi::ibv_td, _| {
        td.context = ctx;
    })
}

pub(in crate::abi) unsafe extern "C" fn dealloc_td(td: *mut ffi::ibv_td) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(td) };
    state.unmake("ibv_dealloc_td", td)
}

pub(in crate::abi) unsafe extern "C" fn open_xrcd(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_xrcd_init_attr,
) -> *mut ffi::ibv_xrcd {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let (fd, flags) = (attr.fd, attr.oflags);
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    let file = match (fd, file_id(fd)) {
        (-1, _) if flags & libc::O_CREAT == 0 => return null(libc::EINVAL),
        (-1, _) => None,
        (_, None) => return null(libc::EBADF),
        (_, file) => file,
    };
    let open: Vec<_> = state.xrcd_files.values().copied().collect();
    let exists = file.is_some_and(|file| open.contains(&file));
    if exists && flags & libc::O_EXCL != 0 {
        return null(libc::EEXIST);
    }
    if !exists && flags & libc::O_CREAT == 0 {
        return null(libc::ENOENT);
    }
    let xrcd = state.make("ibv_open_xrcd", &[], |xrcd: &mut ffi::ibv_xrcd, _| {
        xrcd.context = ctx;
    });
    state
        .xrcd_files
        .extend(file.map(|file| (xrcd.addr(), file)));
    xrcd
}

pub(in crate::abi) unsafe extern "C" fn close_xrcd(xrcd: *mut ffi::ibv_xrcd) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(xrcd) };
    let ret = state.unmake("ibv_close_xrcd", xrcd);
    if ret == 0 {
        state.xrcd_files.remove(&xrcd.addr());
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn create_ah(
    pd: *mut ffi::ibv_pd,
    _attr: *mut ffi::ibv_ah_attr,
) -> *mut ffi::ibv_ah {
    // SAFETY: live.
    let ctx = unsafe { (*pd).context };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    state.make(
        "ibv_create_ah",
        &[pd.addr()],
        |ah: &mut ffi::ibv_ah, number| {
            ah.context = ctx;
            ah.pd = pd;
            ah.handle = number;
        },
    )
}

/// Converts the sender of a message into the address of an answer: its LID, and the GRH's GID.
pub(in crate::abi) unsafe extern "C" fn init_ah_from_wc(
    _ctx: *mut ffi::ibv_context,
    port: u8,
    wc: *mut ffi::ibv_wc,
    grh: *mut ffi::ibv_grh,
    attr: *mut ffi::ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's completion.
    let wc = unsafe { &*wc };
    let mut found = ffi::ibv_ah_attr::zeroed();
    found.port_num = port;
    found.dlid = wc.slid;
    found.sl = wc.sl;
    if wc.wc_flags & ffi::ibv_wc_flags::IBV_WC_GRH.0 != 0 {
        found.is_global = 1;
        // SAFETY: the caller's header.
        found.grh.dgid = unsafe { (*grh).sgid };
    }
    // SAFETY: the caller's place.
    unsafe { *attr = found };
    0
}

pub(in crate::abi) unsafe extern "C" fn destroy_ah(ah: *mut ffi::ibv_ah) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(ah) };
    let mut in_flight = state.qps.values().flat_map(|qp| &qp.sends);
    if in_flight.any(|send| send.datagram.is_some_and(|(to, ..)| to == ah.addr())) {
        state.complain("an address was destroyed that a datagram goes to".to_owned());
    }
    state.unmake("ibv_destroy_ah", ah)
}

pub(in crate::abi) unsafe extern "C" fn resolve_eth_l2_from_gid(
    _ctx: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    // SAFETY: the caller's place for six bytes.
    unsafe { eth_mac.cast::<[u8; 6]>().write([2, 0, 0, 0, 0, 1]) };
    // SAFETY: the caller's place.
    unsafe { *vid = 0xffff };
    0
}
