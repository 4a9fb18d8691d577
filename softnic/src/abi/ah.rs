//! Address handles.

use std::{cell::UnsafeCell, ffi::c_int, net::IpAddr, sync::atomic::Ordering};

use ibverbs_sys as ffi;

use super::{
    attributes, context, functions, null,
    object::{Object, zeroed},
    pd::Pd,
    query::gid,
    set_errno,
};
use crate::{
    engine::Path,
    fabric::{Charge, Resource},
    wire::checksum,
};

/// An address handle.
#[repr(C)]
pub(super) struct Ah {
    raw: UnsafeCell<ffi::ibv_ah>,
    pub(super) path: Path,
    _charge: Charge,
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
    let accounts = pd.device.port.accounts();
    let charge = match accounts.charge(Resource::AddressHandles, 1) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let mut raw: ffi::ibv_ah = zeroed();
    raw.context = pd.context();
    raw.pd = raw_pd;
    let ah = Ah {
        raw: UnsafeCell::new(raw),
        path,
        _charge: charge,
    };
    pd.handles.fetch_add(1, Ordering::Relaxed);
    let raw = ah.into_raw();
    if let Some(checker) = pd.device.port.checker() {
        checker.created_ah(raw.addr() as u64, path);
    }
    raw
}

pub(super) unsafe extern "C" fn ibv_destroy_ah(raw: *mut ffi::ibv_ah) -> c_int {
    // SAFETY: a live handle.
    let pd = unsafe { (*raw).pd };
    // SAFETY: the domain is not deallocated before its handles.
    let pd = unsafe { Pd::borrow(pd) };
    pd.handles.fetch_sub(1, Ordering::Release);
    if let Some(checker) = pd.device.port.checker() {
        checker.destroyed_ah(raw.addr() as u64);
        pd.device.port.deliver_reports();
    }
    // Requests in flight have copies of the path, so destroying the handle does not affect them.
    // SAFETY: live until here; the caller gives the handle up.
    unsafe { Ah::free(raw) };
    0
}

/// First byte of an IPv4 header without options.
const IPV4: u8 = 0x45;

/// The path of a received datagram, from the 40 bytes before the datagram: IPv4 headers are in the last 20, and the bytes before
/// are undefined.
fn received_path(header: &[u8; 40]) -> Path {
    let v6 = |from: usize| -> [u8; 16] { std::array::from_fn(|at| header[from + at]) };
    let v4 = |from: usize| -> [u8; 4] { std::array::from_fn(|at| header[from + at]) };
    let word = u32::from_be_bytes(v4(0));
    let [_, class, _, _] = (word >> 4).to_be_bytes();
    match header[20] == IPV4 && checksum(&header[20..]) == 0 {
        false => Path {
            src: IpAddr::from(v6(8)),
            dst: IpAddr::from(v6(24)),
            hop_limit: header[7],
            traffic_class: class,
            flow_label: word & 0xf_ffff,
        },
        true => Path {
            src: IpAddr::from(v4(32)),
            dst: IpAddr::from(v4(36)),
            hop_limit: header[28],
            traffic_class: header[21],
            flow_label: 0,
        },
    }
}

/// Result of a failed call that sets the error number, as libibverbs' look-up of a GID.
fn refused(errno: c_int) -> c_int {
    set_errno(errno);
    -1
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
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's header, 40 bytes.
    let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    // SAFETY: the caller's context is open.
    let host_port = &unsafe { context::device(ctx) }.port;
    let path = received_path(&header);
    // As in libibverbs, a datagram to a group has no address to answer from.
    let Some(sgid_index) = host_port.addr_index(path.dst) else {
        return refused(libc::EINVAL);
    };
    let mut found = ffi::ibv_ah_attr::zeroed();
    found.is_global = 1;
    found.port_num = port;
    found.grh.sgid_index = sgid_index;
    found.grh.dgid = gid(path.src);
    // The way back is that of the datagram.
    found.grh.hop_limit = path.hop_limit;
    found.grh.traffic_class = path.traffic_class;
    found.grh.flow_label = path.flow_label;
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
    match ret {
        0 => {}
        // The error number is set.
        ..0 => return std::ptr::null_mut(),
        errno => return null(errno),
    }
    // SAFETY: a live domain, and attributes.
    unsafe { functions::ibv_create_ah(pd, &raw mut attr) }
}
