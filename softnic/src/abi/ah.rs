//! Address handles.

use std::{cell::UnsafeCell, ffi::c_int, net::IpAddr, sync::atomic::Ordering};

use ibverbs_sys as ffi;

use super::{
    attributes, context, functions, null,
    object::{Object, zeroed},
    pd::Pd,
    query::gid,
};
use crate::engine::Path;

/// An address handle.
#[repr(C)]
pub(super) struct Ah {
    raw: UnsafeCell<ffi::ibv_ah>,
    pub(super) path: Path,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Ah {
    type Raw = ffi::ibv_ah;
}

pub(super) unsafe extern "C" fn ibv_create_ah(
    raw_pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_ah_attr,
) -> *mut ffi::ibv_ah {
    // SAFETY: a live domain.
    let pd = unsafe { Pd::borrow(raw_pd) };
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let path = match attributes::path(&pd.device.port, attr) {
        Ok(path) if path.src.is_ipv4() == path.dst.is_ipv4() => path,
        Ok(_) => return null(libc::EINVAL),
        Err(errno) => return null(errno),
    };
    let mut raw: ffi::ibv_ah = zeroed();
    raw.context = pd.context();
    raw.pd = raw_pd;
    let ah = Ah {
        raw: UnsafeCell::new(raw),
        path,
    };
    pd.handles.fetch_add(1, Ordering::Relaxed);
    ah.into_raw()
}

pub(super) unsafe extern "C" fn ibv_destroy_ah(raw: *mut ffi::ibv_ah) -> c_int {
    // SAFETY: a live handle.
    let pd = unsafe { (*raw).pd };
    // SAFETY: the domain is not deallocated before its handles.
    let pd = unsafe { Pd::borrow(pd) };
    pd.handles.fetch_sub(1, Ordering::Release);
    // Requests in flight have copies of the path, so destroying the handle does not affect them.
    // SAFETY: live until here; the caller gives the handle up.
    unsafe { Ah::free(raw) };
    0
}

/// The addresses of a datagram's sender and receiver, from the 40 bytes before the datagram.
fn addrs(header: &[u8; 40]) -> (IpAddr, IpAddr) {
    let v6 = |from: usize| -> [u8; 16] { std::array::from_fn(|at| header[from + at]) };
    let v4 = |from: usize| -> [u8; 4] { std::array::from_fn(|at| header[from + at]) };
    match header[0] >> 4 {
        6 => (IpAddr::from(v6(8)), IpAddr::from(v6(24))),
        _ => (IpAddr::from(v4(32)), IpAddr::from(v4(36))),
    }
}

pub(super) unsafe extern "C" fn ibv_init_ah_from_wc(
    ctx: *mut ffi::ibv_context,
    port: u8,
    wc: *mut ffi::ibv_wc,
    grh: *mut ffi::ibv_grh,
    attr: *mut ffi::ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's completion.
    let has_grh = unsafe { (*wc).wc_flags } & ffi::ibv_wc_flags::IBV_WC_GRH.0 != 0;
    if !has_grh {
        return libc::EINVAL;
    }
    // SAFETY: the caller's header, 40 bytes.
    let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    // SAFETY: the caller's context is open.
    let own = &unsafe { context::device(ctx) }.port;
    let (from, to) = addrs(&header);
    let mut found = ffi::ibv_ah_attr::zeroed();
    found.is_global = 1;
    found.port_num = port;
    found.grh.sgid_index = own.addr_index_for(to);
    found.grh.dgid = gid(from);
    found.grh.hop_limit = u8::MAX;
    // SAFETY: the caller's place.
    unsafe { *attr = found };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ffi::ibv_pd,
    wc: *mut ffi::ibv_wc,
    grh: *mut ffi::ibv_grh,
    port: u8,
) -> *mut ffi::ibv_ah {
    let mut attr = ffi::ibv_ah_attr::zeroed();
    // SAFETY: a live domain.
    let ctx = unsafe { (*pd).context };
    // SAFETY: as the caller promised.
    let ret = unsafe { functions::ibv_init_ah_from_wc(ctx, port, wc, grh, &raw mut attr) };
    if ret != 0 {
        return null(ret);
    }
    // SAFETY: a live domain, and attributes.
    unsafe { functions::ibv_create_ah(pd, &raw mut attr) }
}
