//! Attributes of devices and ports: those of an engine, computed for each call, or those of a scripted device.

use std::{
    ffi::{c_char, c_int},
    mem::offset_of,
    net::IpAddr,
    ptr,
};

use ibverbs_sys as ffi;

use super::{functions::Kind, scripted::Properties, set_errno, sysfs};
use crate::{
    adversary::Rule,
    card::{Atomics, Card, SharedReceives, Specification},
    engine::{MAX_RD_ATOMIC, QpKind},
    fabric::{Port, Resource},
};

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

/// Reported maximum number of the objects without a limit.
const MAX_OBJECTS: c_int = 1 << 20;

/// Minimum length of the GID table. The entries after those of the addresses are empty, as in tables of the kernel.
const MIN_GIDS: c_int = 16;

/// Vendor ID: locally administered, as by the second bit of the first byte, so that no vendor has the ID.
const VENDOR_ID: u32 = 0x02_534e;

/// Extended capabilities: flushes for visibility and persistence, atomic writes (`ib_uverbs_device_cap_flags` of Linux).
const FLUSH_GLOBAL: u64 = 1 << 38;
const FLUSH_PERSISTENT: u64 = 1 << 39;
const ATOMIC_WRITE: u64 = 1 << 40;

/// Frequency of the clock in kHz: ticks are nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// Index of the first host's network interface. A host has one interface, which no system call knows: Linux numbers its
/// interfaces from 1 upwards, and so does not reach this index. Index 0 would mark a GID as detached.
const FIRST_INTERFACE: u32 = 1 << 30;

/// Physical states of a port.
pub(super) const LINK_UP: u8 = 5;
pub(super) const DISABLED: u8 = 3;

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

/// Basic attributes of an engine's device.
fn basic(port: &Port) -> ffi::ibv_device_attr {
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
    found.vendor_id = VENDOR_ID;
    let limit = |of| c_int::try_from(port.accounts().limit(of)).unwrap_or(c_int::MAX);
    found.max_qp = limit(Resource::QueuePairs);
    found.max_qp_wr = MAX_WR.cast_signed();
    found.device_cap_flags = ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_XRC.0
        | ffi::ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0;
    found.max_sge = MAX_SGE.cast_signed();
    found.max_sge_rd = MAX_SGE.cast_signed();
    found.max_cq = limit(Resource::CompletionQueues);
    found.max_cqe = MAX_CQE;
    found.max_mr = limit(Resource::MemoryRegions);
    found.max_pd = limit(Resource::ProtectionDomains);
    found.max_qp_rd_atom = MAX_RD_ATOMIC.into();
    found.max_res_rd_atom = MAX_OBJECTS;
    found.max_qp_init_rd_atom = MAX_RD_ATOMIC.into();
    found.atomic_cap = match port.adversary().has(Rule::Torn) {
        true => ffi::ibv_atomic_cap::IBV_ATOMIC_HCA,
        false => ffi::ibv_atomic_cap::IBV_ATOMIC_GLOB,
    };
    found.max_mw = limit(Resource::MemoryWindows);
    found.max_mcast_grp = MAX_OBJECTS;
    found.max_mcast_qp_attach = MAX_OBJECTS;
    found.max_total_mcast_qp_attach = MAX_OBJECTS;
    found.max_ah = limit(Resource::AddressHandles);
    found.max_srq = limit(Resource::SharedReceiveQueues);
    found.max_srq_wr = MAX_WR.cast_signed();
    found.max_srq_sge = MAX_SGE.cast_signed();
    found.max_pkeys = 1;
    found.phys_port_cnt = 1;
    if let Some(card) = port.card() {
        set_limits(&mut found, card.specification());
    }
    found
}

/// Sets a field to the value of a card, if a source gives one.
fn set<T: TryFrom<u64>>(field: &mut T, value: Option<impl Into<u64>>) {
    if let Some(value) = value.and_then(|value| T::try_from(value.into()).ok()) {
        *field = value;
    }
}

/// Capabilities of a card without recorded ones: of the device without a card, less the absent ones of the card's driver.
fn capabilities(of_softnic: u32, row: &Specification) -> u32 {
    use ffi::ibv_device_cap_flags as has;
    let windows = has::IBV_DEVICE_MEM_WINDOW.0 | has::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    let mut absent = 0;
    if !row.has_windows {
        absent |= windows;
    }
    if !row.kinds.contains(&QpKind::XrcSend) {
        absent |= has::IBV_DEVICE_XRC.0;
    }
    if row.srq.is_none_or(|srq| !srq.resizes) {
        absent |= has::IBV_DEVICE_SRQ_RESIZE.0;
    }
    of_softnic & !absent
}

/// Sets the attributes of a card. Numbers of objects are limits of the host.
fn set_limits(found: &mut ffi::ibv_device_attr, row: &Specification) {
    let of_softnic = capabilities(found.device_cap_flags, row);
    found.device_cap_flags = row.device_cap_flags.unwrap_or(of_softnic);
    found.max_mr_size = row.max_mr_size;
    set(&mut found.page_size_cap, row.page_size_cap);
    set(&mut found.vendor_id, row.vendor_id);
    set(&mut found.vendor_part_id, row.vendor_part_id);
    set(&mut found.hw_ver, row.hw_ver);
    set(&mut found.max_qp_wr, Some(row.max_qp_wr));
    // The kernel reports the smaller one of both queues.
    set(
        &mut found.max_sge,
        Some(row.max_send_sge.min(row.max_recv_sge)),
    );
    set(&mut found.max_sge_rd, row.max_sge_rd);
    set(&mut found.max_cqe, row.max_cqe);
    set(&mut found.max_qp_rd_atom, Some(row.max_qp_rd_atom));
    set(
        &mut found.max_qp_init_rd_atom,
        Some(row.max_qp_init_rd_atom),
    );
    set(&mut found.max_res_rd_atom, row.max_res_rd_atom);
    set(&mut found.max_mw, row.max_mw);
    set(&mut found.max_mcast_grp, row.max_mcast_grp);
    set(&mut found.max_mcast_qp_attach, row.max_mcast_qp_attach);
    let total = row.max_total_mcast_qp_attach;
    set(&mut found.max_total_mcast_qp_attach, total);
    let srq = |limit: fn(&SharedReceives) -> Option<u32>| match &row.srq {
        Some(limits) => limit(limits),
        None => Some(0),
    };
    set(&mut found.max_srq_wr, srq(|limits| limits.max_wr));
    set(&mut found.max_srq_sge, srq(|limits| limits.max_sge));
    set(&mut found.max_pkeys, row.max_pkeys);
    set(&mut found.local_ca_ack_delay, row.local_ca_ack_delay);
    let is_torn = found.atomic_cap == ffi::ibv_atomic_cap::IBV_ATOMIC_HCA;
    found.atomic_cap = match row.atomics {
        Some(Atomics::None) => ffi::ibv_atomic_cap::IBV_ATOMIC_NONE,
        Some(Atomics::Hca) => ffi::ibv_atomic_cap::IBV_ATOMIC_HCA,
        Some(Atomics::Global) if !is_torn => ffi::ibv_atomic_cap::IBV_ATOMIC_GLOB,
        Some(Atomics::Global) | None => found.atomic_cap,
    };
}

/// Extended attributes of an engine's device.
fn extended(port: &Port) -> ffi::ibv_device_attr_ex {
    let mut found = ffi::ibv_device_attr_ex::zeroed();
    found.orig_attr = basic(port);
    found.device_cap_flags_ex = u64::from(found.orig_attr.device_cap_flags);
    let card = port.card().map(Card::specification);
    if card.is_none_or(|row| row.has_placement) {
        found.device_cap_flags_ex |= FLUSH_GLOBAL | FLUSH_PERSISTENT | ATOMIC_WRITE;
    }
    found.completion_timestamp_mask = u64::MAX;
    found.hca_core_clock = CLOCK_KHZ;
    found.cq_mod_caps.max_cq_count = u16::MAX;
    found.cq_mod_caps.max_cq_period = u16::MAX;
    found.phys_port_cnt_ex = 1;
    found
}

/// Length of the GID table of an engine's port: a card's, but at least the number of addresses.
pub(super) fn gid_tbl_len(port: &Port) -> c_int {
    let len = port
        .card()
        .and_then(|card| card.specification().gid_tbl_len);
    let len = len.map_or(MIN_GIDS, |len| c_int::try_from(len).unwrap_or(MIN_GIDS));
    let addrs = c_int::try_from(port.addrs().len()).unwrap_or(c_int::MAX);
    addrs.max(len)
}

/// Code of the port's MTU, as in `ibv_mtu`.
pub(super) fn mtu_code(port: &Port) -> u32 {
    (port.look(|nic| nic.engine.mtu()) / 128).max(2).ilog2()
}

/// Attributes of an engine's port.
fn of_port(port: &Port) -> ffi::ibv_port_attr {
    let mut found = ffi::ibv_port_attr::zeroed();
    let (state, phys_state) = match port.look(|nic| nic.engine.is_active()) {
        true => (ffi::ibv_port_state::IBV_PORT_ACTIVE, LINK_UP),
        false => (ffi::ibv_port_state::IBV_PORT_DOWN, DISABLED),
    };
    found.state = state;
    found.phys_state = phys_state;
    found.max_mtu = ffi::ibv_mtu::IBV_MTU_4096;
    found.active_mtu = ffi::ibv_mtu(mtu_code(port));
    found.gid_tbl_len = gid_tbl_len(port);
    found.max_msg_sz = port
        .card()
        .map_or(1 << 31, |card| card.specification().max_msg_sz);
    found.pkey_tbl_len = 1;
    // Width 4X at 25 Gb/s a lane; both are invented.
    found.active_width = 2;
    found.active_speed = 32;
    found.link_layer = ffi::IBV_LINK_LAYER_ETHERNET;
    found.flags = ffi::IBV_QPF_GRH_REQUIRED;
    found
}

fn entry(port: &Port, index: u32, addr: IpAddr) -> ffi::ibv_gid_entry {
    let mut entry = ffi::ibv_gid_entry::zeroed();
    entry.gid = gid(addr);
    entry.gid_index = index;
    entry.port_num = 1;
    entry.gid_type = ROCE_V2;
    let host = u32::try_from(port.index()).unwrap_or(0);
    entry.ndev_ifindex = FIRST_INTERFACE.saturating_add(host);
    entry
}

/// Attributes of an engine's device. The clock is the time of the fabric in nanoseconds.
pub(super) fn of_engine(port: &Port) -> Properties {
    let now = port.now();
    let addrs = match port.look(|nic| nic.engine.has_gids()) {
        true => port.addrs(),
        false => &[],
    };
    let addrs = (0..).zip(addrs);
    let name = format!("softnic{}", port.index());
    let directory = match port.is_over_udp() {
        true => sysfs::directory(&name),
        false => String::new(),
    };
    Properties {
        name,
        node_type: ffi::ibv_node_type::IBV_NODE_CA,
        transport_type: ffi::ibv_transport_type::IBV_TRANSPORT_IB,
        guid: port.guid(),
        index: c_int::try_from(port.index()).unwrap_or(-1),
        attr: extended(port),
        extended: true,
        port: of_port(port),
        gids: addrs
            .map(|(index, addr)| entry(port, index, *addr))
            .collect(),
        pkeys: vec![PKEY],
        clock: Some(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)),
        promised: 0,
        directory,
    }
}

/// Calls `read` with the attributes of a context's device; fails with `EIO` on a removed device, as Linux does.
///
/// # Safety
/// - `ctx` is an open context.
unsafe fn properties<R>(
    ctx: *mut ffi::ibv_context,
    read: impl FnOnce(&Properties) -> R,
) -> Result<R, c_int> {
    // SAFETY: the caller's promise.
    match unsafe { Kind::of(ctx) } {
        Kind::Engine(device) if device.port.is_removed() => Err(libc::EIO),
        Kind::Engine(device) => Ok(read(&of_engine(&device.port))),
        Kind::Scripted(device) => Ok(device.properties(read)),
    }
}

pub(super) unsafe extern "C" fn query_device(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_device_attr,
) -> c_int {
    // SAFETY: an open context.
    match unsafe { properties(ctx, |device| device.attr.orig_attr) } {
        Ok(found) => {
            // SAFETY: the caller's place.
            unsafe { *attr = found };
            0
        }
        Err(errno) => errno,
    }
}

/// Writes a value into a struct of `size` bytes, which a program was compiled with: a shorter one of an earlier rdma-core, or
/// a longer one of a later rdma-core, whose further fields become zero.
///
/// # Safety
/// - `to` is valid for writes of `size` bytes.
unsafe fn write_prefix<T: Copy>(to: *mut T, value: &T, size: usize) {
    let to = to.cast::<u8>();
    // SAFETY: guaranteed by the caller.
    unsafe { to.write_bytes(0, size) };
    let len = size.min(size_of::<T>());
    // SAFETY: a value and memory of at least this length; a value of this call does not overlap the caller's memory.
    unsafe { to.copy_from_nonoverlapping(ptr::from_ref(value).cast(), len) };
}

pub(super) unsafe extern "C" fn query_device_ex(
    ctx: *mut ffi::ibv_context,
    _input: *const ffi::ibv_query_device_ex_input,
    attr: *mut ffi::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    if size < size_of::<ffi::ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: an open context.
    let found = unsafe { properties(ctx, |device| device.extended.then_some(device.attr)) };
    match found.and_then(|found| found.ok_or(libc::EOPNOTSUPP)) {
        Ok(found) => {
            // SAFETY: the caller's struct, of that size.
            unsafe { write_prefix(attr, &found, size) };
            0
        }
        Err(errno) => errno,
    }
}

/// Reads the device's clock.
pub(super) unsafe extern "C" fn query_rt_values(
    ctx: *mut ffi::ibv_context,
    values: *mut ffi::ibv_values_ex,
) -> c_int {
    // SAFETY: an open context.
    let clock = unsafe { properties(ctx, |device| device.clock) };
    let clock = match clock.and_then(|clock| clock.ok_or(libc::EOPNOTSUPP)) {
        Ok(clock) => clock,
        Err(errno) => return errno,
    };
    // SAFETY: the caller's place.
    let values = unsafe { &mut *values };
    values.comp_mask &= ffi::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    values.raw_clock.tv_sec = 0;
    // The field holds ticks of the device.
    values.raw_clock.tv_nsec = clock.cast_signed();
    0
}

pub(super) unsafe extern "C" fn query_port(
    ctx: *mut ffi::ibv_context,
    port: u8,
    attr: *mut ffi::ibv_port_attr,
    size: usize,
) -> c_int {
    if port != 1 || size < offset_of!(ffi::ibv_port_attr, port_cap_flags2) {
        return libc::EINVAL;
    }
    // SAFETY: an open context.
    match unsafe { properties(ctx, |device| device.port) } {
        Ok(found) => {
            // SAFETY: the caller's struct, of that size.
            unsafe { write_prefix(attr, &found, size) };
            0
        }
        Err(errno) => errno,
    }
}

/// The entry at an index of a port's GID table: `EINVAL` outside of the table, `ENODATA` for an empty entry.
///
/// # Safety
/// - `ctx` is an open context.
unsafe fn gid_entry(
    ctx: *mut ffi::ibv_context,
    port: u32,
    index: u32,
) -> Result<ffi::ibv_gid_entry, c_int> {
    let read = |device: &Properties| {
        let len = u32::try_from(device.port.gid_tbl_len).unwrap_or(0);
        if port != 1 || index >= len {
            return Err(libc::EINVAL);
        }
        let found = device.gids.iter().find(|entry| entry.gid_index == index);
        found.copied().ok_or(libc::ENODATA)
    };
    // SAFETY: the caller's promise.
    unsafe { properties(ctx, read) }?
}

pub(super) unsafe extern "C" fn query_gid(
    ctx: *mut ffi::ibv_context,
    port: u8,
    index: c_int,
    out: *mut ffi::ibv_gid,
) -> c_int {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    // SAFETY: an open context.
    let gid = match unsafe { gid_entry(ctx, port.into(), index) } {
        Ok(entry) => entry.gid,
        Err(libc::ENODATA) => ffi::ibv_gid::from_raw([0; 16]),
        Err(errno) => {
            set_errno(errno);
            return -1;
        }
    };
    // SAFETY: the caller's place.
    unsafe { *out = gid };
    0
}

/// Whether an entry is requested without flags, none of which is defined, and with all fields known here. As for the kernel, a
/// longer entry of a later rdma-core is permitted.
fn is_plain_entry(flags: u32, size: usize) -> bool {
    flags == 0 && size >= size_of::<ffi::ibv_gid_entry>()
}

pub(super) unsafe extern "C" fn query_gid_ex(
    ctx: *mut ffi::ibv_context,
    port: u32,
    index: u32,
    out: *mut ffi::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if !is_plain_entry(flags, size) {
        return libc::EINVAL;
    }
    // SAFETY: an open context.
    match unsafe { gid_entry(ctx, port, index) } {
        Ok(entry) => {
            // SAFETY: the caller's struct, of that size.
            unsafe { write_prefix(out, &entry, size) };
            0
        }
        Err(errno) => errno,
    }
}

pub(super) unsafe extern "C" fn query_gid_table(
    ctx: *mut ffi::ibv_context,
    entries: *mut ffi::ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    if !is_plain_entry(flags, size) {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: an open context.
    let gids = match unsafe { properties(ctx, |device| device.gids.clone()) } {
        Ok(gids) if gids.len() <= max_entries => gids,
        Ok(_) => return -(libc::EINVAL as isize),
        Err(errno) => return -(errno as isize),
    };
    for (index, gid) in gids.iter().enumerate() {
        // SAFETY: the caller's array has `max_entries` entries of that size, at least as many: checked above.
        let entry = unsafe { entries.byte_add(index * size) };
        // SAFETY: an entry of the caller's array, of that size.
        unsafe { write_prefix(entry, gid, size) };
    }
    isize::try_from(gids.len()).unwrap_or(0)
}

pub(super) unsafe extern "C" fn query_pkey(
    ctx: *mut ffi::ibv_context,
    port: u8,
    index: c_int,
    out: *mut ffi::__be16,
) -> c_int {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    // SAFETY: an open context.
    let found = unsafe { properties(ctx, |device| device.pkeys.get(index).copied()) };
    let found = found.and_then(|found| found.filter(|_| port == 1).ok_or(libc::EINVAL));
    let pkey = match found {
        Ok(pkey) => pkey,
        Err(errno) => {
            set_errno(errno);
            return -1;
        }
    };
    // SAFETY: the caller's place.
    unsafe { *out = ffi::__be16::from_ne(pkey) };
    0
}

pub(super) unsafe extern "C" fn get_pkey_index(
    ctx: *mut ffi::ibv_context,
    port: u8,
    pkey: ffi::__be16,
) -> c_int {
    let position =
        |device: &Properties| device.pkeys.iter().position(|entry| *entry == pkey.to_ne());
    // SAFETY: an open context.
    let found = unsafe { properties(ctx, position) };
    match found.and_then(|found| found.filter(|_| port == 1).ok_or(libc::EINVAL)) {
        Ok(index) => c_int::try_from(index).unwrap_or(-1),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
