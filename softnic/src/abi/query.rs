//! Properties of devices and ports.

use std::{
    ffi::{c_char, c_int},
    net::IpAddr,
};

use ibverbs_sys as ffi;

use super::{context, set_errno};
use crate::fabric::Port;

/// The only partition key, with full membership.
const PKEY: u16 = 0xffff;

/// `ibv_gid_type` of `RoCEv2` GIDs.
const ROCE_V2: u32 = 2;

/// Maximum number of requests of a queue.
pub(super) const MAX_WR: u32 = 1 << 14;

/// Maximum number of elements of a request.
pub(super) const MAX_SGE: u32 = 32;

/// Maximum number of completions of a queue.
pub(super) const MAX_CQE: c_int = 1 << 22;

/// Maximum number of bytes of inline data.
pub(super) const MAX_INLINE: u32 = 512;

/// Maximum number of reads and atomics in flight of a queue pair.
const MAX_RD_ATOMIC: c_int = 128;

/// Reported maximum number of objects of each kind; the engine has no fixed limits.
const MANY: c_int = 1 << 20;

/// Extended capabilities: flushes for visibility and persistence, atomic writes (`ib_uverbs_device_cap_flags` of Linux).
const FLUSH_GLOBAL: u64 = 1 << 38;
const FLUSH_PERSISTENT: u64 = 1 << 39;
const ATOMIC_WRITE: u64 = 1 << 40;

/// Frequency of the clock in kHz: ticks are nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// Physical states of a port.
const LINK_UP: u8 = 5;
const DISABLED: u8 = 3;

/// The GID of an IP address.
pub(super) fn gid(addr: IpAddr) -> ffi::ibv_gid {
    let addr = match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    };
    ffi::ibv_gid::from_raw(addr.octets())
}

/// The IP address of a GID.
pub(super) fn addr(gid: ffi::ibv_gid) -> IpAddr {
    std::net::Ipv6Addr::from(gid.to_raw()).to_canonical()
}

/// Basic properties of a device.
fn properties(port: &Port) -> ffi::ibv_device_attr {
    let guid = ffi::__be64::from_ne(port.guid());
    let mut found = ffi::ibv_device_attr::zeroed();
    for (to, from) in found
        .fw_ver
        .iter_mut()
        .zip(env!("CARGO_PKG_VERSION").bytes())
    {
        *to = c_char::from_ne_bytes([from]);
    }
    found.node_guid = guid;
    found.sys_image_guid = guid;
    found.max_mr_size = u64::MAX;
    found.page_size_cap = 4096;
    found.max_qp = MANY;
    found.max_qp_wr = MAX_WR.cast_signed();
    found.device_cap_flags = ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_XRC.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0;
    found.max_sge = MAX_SGE.cast_signed();
    found.max_sge_rd = MAX_SGE.cast_signed();
    found.max_cq = MANY;
    found.max_cqe = MAX_CQE;
    found.max_mr = MANY;
    found.max_pd = MANY;
    found.max_qp_rd_atom = MAX_RD_ATOMIC;
    found.max_res_rd_atom = MANY;
    found.max_qp_init_rd_atom = MAX_RD_ATOMIC;
    found.atomic_cap = ffi::ibv_atomic_cap::IBV_ATOMIC_GLOB;
    found.max_mw = MANY;
    found.max_mcast_grp = MANY;
    found.max_mcast_qp_attach = MANY;
    found.max_total_mcast_qp_attach = MANY;
    found.max_ah = MANY;
    found.max_srq = MANY;
    found.max_srq_wr = MAX_WR.cast_signed();
    found.max_srq_sge = MAX_SGE.cast_signed();
    found.max_pkeys = 1;
    found.phys_port_cnt = 1;
    found
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_device_attr,
) -> c_int {
    // SAFETY: an open context.
    let opened = unsafe { context::device(ctx) };
    // SAFETY: the caller's place.
    unsafe { *attr = properties(&opened.port) };
    0
}

pub(super) unsafe extern "C" fn query_device_ex(
    ctx: *mut ffi::ibv_context,
    _input: *const ffi::ibv_query_device_ex_input,
    attr: *mut ffi::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    if size != size_of::<ffi::ibv_device_attr_ex>() {
        return libc::EINVAL;
    }
    // SAFETY: an open context.
    let opened = unsafe { context::device(ctx) };
    let mut found = ffi::ibv_device_attr_ex::zeroed();
    found.orig_attr = properties(&opened.port);
    found.device_cap_flags_ex = u64::from(found.orig_attr.device_cap_flags)
        | FLUSH_GLOBAL
        | FLUSH_PERSISTENT
        | ATOMIC_WRITE;
    found.completion_timestamp_mask = u64::MAX;
    found.hca_core_clock = CLOCK_KHZ;
    found.cq_mod_caps.max_cq_count = u16::MAX;
    found.cq_mod_caps.max_cq_period = u16::MAX;
    found.phys_port_cnt_ex = 1;
    // SAFETY: the caller's place, of that size.
    unsafe { *attr = found };
    0
}

/// Reads the device's clock: the time of the fabric in nanoseconds.
pub(super) unsafe extern "C" fn query_rt_values(
    ctx: *mut ffi::ibv_context,
    values: *mut ffi::ibv_values_ex,
) -> c_int {
    // SAFETY: an open context.
    let opened = unsafe { context::device(ctx) };
    let now = opened.port.look(|nic| nic.now);
    let raw_clock = ffi::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    // SAFETY: the caller's place.
    let values = unsafe { &mut *values };
    values.comp_mask &= raw_clock;
    values.raw_clock.tv_sec = 0;
    // The field holds ticks of the device.
    values.raw_clock.tv_nsec = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    0
}

pub(super) unsafe extern "C" fn query_port(
    ctx: *mut ffi::ibv_context,
    port: u8,
    attr: *mut ffi::ibv_port_attr,
    size: usize,
) -> c_int {
    if port != 1 || size != size_of::<ffi::ibv_port_attr>() {
        return libc::EINVAL;
    }
    let mut found = ffi::ibv_port_attr::zeroed();
    found.state = ffi::ibv_port_state::IBV_PORT_ACTIVE;
    found.phys_state = LINK_UP;
    found.max_mtu = ffi::ibv_mtu::IBV_MTU_4096;
    found.active_mtu = ffi::ibv_mtu::IBV_MTU_4096;
    // SAFETY: an open context.
    let opened = unsafe { context::device(ctx) };
    let addrs = opened.port.addrs();
    if !opened.port.look(|nic| nic.engine.is_active()) {
        found.state = ffi::ibv_port_state::IBV_PORT_DOWN;
        found.phys_state = DISABLED;
    }
    found.gid_tbl_len = c_int::try_from(addrs.len()).unwrap_or(c_int::MAX);
    found.max_msg_sz = 1 << 31;
    found.pkey_tbl_len = 1;
    // Width 4X at 25 Gb/s a lane; both are invented.
    found.active_width = 2;
    found.active_speed = 32;
    found.link_layer = ffi::IBV_LINK_LAYER_ETHERNET;
    found.flags = ffi::IBV_QPF_GRH_REQUIRED;
    // SAFETY: the caller's place, of that size.
    unsafe { *attr = found };
    0
}

/// The address at an index of a port's GID table.
unsafe fn address(ctx: *mut ffi::ibv_context, port: u32, index: u32) -> Option<IpAddr> {
    // SAFETY: the caller's context is open.
    let opened = unsafe { context::device(ctx) };
    let index = usize::try_from(index).ok().filter(|_| port == 1)?;
    opened.port.addrs().get(index).copied()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    ctx: *mut ffi::ibv_context,
    port: u8,
    index: c_int,
    place: *mut ffi::ibv_gid,
) -> c_int {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    // SAFETY: an open context.
    let Some(addr) = (unsafe { address(ctx, port.into(), index) }) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the caller's place.
    unsafe { *place = gid(addr) };
    0
}

fn entry(index: u32, addr: IpAddr) -> ffi::ibv_gid_entry {
    let mut entry = ffi::ibv_gid_entry::zeroed();
    entry.gid = gid(addr);
    entry.gid_index = index;
    entry.port_num = 1;
    entry.gid_type = ROCE_V2;
    // No network interface exists, but index 0 would mark the entry as detached.
    entry.ndev_ifindex = 1;
    entry
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    ctx: *mut ffi::ibv_context,
    port: u32,
    index: u32,
    place: *mut ffi::ibv_gid_entry,
    _flags: u32,
    _size: usize,
) -> c_int {
    // SAFETY: an open context.
    let Some(addr) = (unsafe { address(ctx, port, index) }) else {
        return libc::EINVAL;
    };
    // SAFETY: the caller's place.
    unsafe { *place = entry(index, addr) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    ctx: *mut ffi::ibv_context,
    entries: *mut ffi::ibv_gid_entry,
    max_entries: usize,
    _flags: u32,
    _size: usize,
) -> isize {
    // SAFETY: an open context.
    let addrs = unsafe { context::device(ctx) }.port.addrs();
    if max_entries < addrs.len() {
        return -(libc::EINVAL as isize);
    }
    for (at, (index, addr)) in (0..).zip(addrs).enumerate() {
        // SAFETY: the caller's array has `max_entries` entries, at least as many as there are addresses: checked above.
        let place = unsafe { entries.add(at) };
        // SAFETY: as above.
        unsafe { place.write(entry(index, *addr)) };
    }
    isize::try_from(addrs.len()).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _ctx: *mut ffi::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut ffi::__be16,
) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's place.
    unsafe { *pkey = ffi::__be16::from_ne(PKEY) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(
    _ctx: *mut ffi::ibv_context,
    port: u8,
    pkey: ffi::__be16,
) -> c_int {
    if port == 1 && pkey.to_ne() == PKEY {
        return 0;
    }
    set_errno(libc::EINVAL);
    -1
}
