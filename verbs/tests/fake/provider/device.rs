//! The device list, and the attributes of a device.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{c_char, c_int},
    ptr,
    sync::{Arc, Mutex},
};

use ibverbs_sys as ffi;

use super::{
    context,
    state::{Ptr, Shared, device_of_context, null, set_errno},
};

/// The attributes of a device, changeable by a test.
pub(crate) struct Properties {
    pub(super) name: String,
    pub(crate) node_type: ffi::ibv_node_type,
    pub(crate) transport_type: ffi::ibv_transport_type,
    pub(crate) guid: u64,
    pub(crate) index: c_int,
    pub(crate) attr: ffi::ibv_device_attr_ex,
    /// Whether the device has `ibv_query_device_ex`.
    pub(crate) extended: bool,
    pub(crate) port: ffi::ibv_port_attr,
    pub(crate) gids: Vec<ffi::ibv_gid_entry>,
    pub(crate) pkeys: Vec<u16>,
    pub(crate) clock: Option<u64>,
    /// Operations, of `ibv_qp_create_send_ops_flags`, that the device accepts but lacks.
    pub(crate) promised: u64,
    /// The directory in sysfs.
    pub(crate) directory: String,
}

impl Properties {
    pub(super) fn new(name: &str) -> Self {
        let mut attr = ffi::ibv_device_attr_ex::zeroed();
        let plain = &mut attr.orig_attr;
        plain.fw_ver[0] = b'7' as c_char;
        plain.max_qp = 1024;
        plain.max_qp_wr = c_int::MAX;
        plain.max_sge = 32;
        plain.max_cq = 1024;
        plain.max_cqe = c_int::MAX;
        plain.max_mr = 1024;
        plain.max_pd = 1024;
        plain.phys_port_cnt = 1;
        attr.phys_port_cnt_ex = 1;
        let mut port = ffi::ibv_port_attr::zeroed();
        port.state = ffi::ibv_port_state::IBV_PORT_ACTIVE;
        port.max_mtu = ffi::ibv_mtu::IBV_MTU_4096;
        port.active_mtu = ffi::ibv_mtu::IBV_MTU_1024;
        port.gid_tbl_len = 4;
        port.pkey_tbl_len = 2;
        port.link_layer = ffi::IBV_LINK_LAYER_ETHERNET;
        port.flags = ffi::IBV_QPF_GRH_REQUIRED;
        let mut gid = ffi::ibv_gid_entry::zeroed();
        gid.gid = ffi::ibv_gid::from_raw([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
        gid.gid_index = 1;
        gid.port_num = 1;
        gid.gid_type = 2;
        gid.ndev_ifindex = 3;
        Self {
            name: name.to_owned(),
            node_type: ffi::ibv_node_type::IBV_NODE_CA,
            transport_type: ffi::ibv_transport_type::IBV_TRANSPORT_IB,
            guid: 0x5054_00ff_fe12_3456,
            index: 7,
            attr,
            extended: true,
            port,
            gids: vec![gid],
            pkeys: vec![0xffff, 0x8001],
            clock: None,
            promised: 0,
            directory: String::new(),
        }
    }
}

/// A C device, with a reference to the fake's own state.
#[repr(C)]
pub(super) struct Device {
    raw: ffi::ibv_device,
    shared: *const Shared,
}

thread_local! {
    /// The devices of this thread's tests.
    static ANNOUNCED: RefCell<Vec<Arc<Shared>>> = const { RefCell::new(Vec::new()) };
}

/// The devices of lists not freed yet.
static LISTED: Mutex<BTreeMap<usize, Vec<Arc<Shared>>>> = Mutex::new(BTreeMap::new());

pub(super) fn announce(shared: &Arc<Shared>) {
    ANNOUNCED.with_borrow_mut(|list| list.push(Arc::clone(shared)));
}

pub(super) fn withdraw(shared: &Arc<Shared>) {
    ANNOUNCED.with_borrow_mut(|list| list.retain(|other| !Arc::ptr_eq(other, shared)));
}

/// The C struct of a device. Lives as long as the device, kept by its contexts.
fn describe(shared: &Arc<Shared>) -> *mut ffi::ibv_device {
    let device = shared.device.get_or_init(|| {
        let state = shared.lock();
        let properties = &state.properties;
        // SAFETY: the fields are optional functions, integers and arrays of them; zero is a value
        // of each.
        let mut raw: ffi::ibv_device = unsafe { std::mem::zeroed() };
        raw.node_type = properties.node_type;
        raw.transport_type = properties.transport_type;
        for (to, from) in raw.name.iter_mut().zip(properties.name.bytes()) {
            *to = from as c_char;
        }
        for (to, from) in raw.ibdev_path.iter_mut().zip(properties.directory.bytes()) {
            *to = from as c_char;
        }
        Ptr(Box::into_raw(Box::new(Device {
            raw,
            shared: Arc::as_ptr(shared),
        })))
    });
    device.0.cast()
}

/// # Safety
/// - `device` came from [`describe`], and its device lives.
unsafe fn shared_of(device: *mut ffi::ibv_device) -> Arc<Shared> {
    // SAFETY: the C struct is the first field of a `Device`, whose pointer is that of an `Arc`, which its fake or its list
    // owns.
    unsafe {
        let shared = (*device.cast::<Device>()).shared;
        Arc::increment_strong_count(shared);
        Arc::from_raw(shared)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device {
    let listed = ANNOUNCED.with_borrow(Clone::clone);
    if !count.is_null() {
        // SAFETY: the caller's place for the number.
        unsafe { *count = c_int::try_from(listed.len()).unwrap() };
    }
    // Terminated by a null pointer.
    let list = listed.iter().map(describe).chain([ptr::null_mut()]);
    let list: Box<[_]> = list.collect();
    let list: *mut *mut ffi::ibv_device = Box::into_raw(list).cast();
    LISTED.lock().unwrap().insert(list.addr(), listed);
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ffi::ibv_device) {
    let listed = LISTED.lock().unwrap().remove(&list.addr()).unwrap();
    let list = ptr::slice_from_raw_parts_mut(list, listed.len() + 1);
    // SAFETY: a boxed slice of this length, from `ibv_get_device_list`, freed once.
    drop(unsafe { Box::from_raw(list) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ffi::ibv_device) -> c_int {
    // SAFETY: a device of the list.
    unsafe { shared_of(device) }.lock().properties.index
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ffi::ibv_device) -> ffi::__be64 {
    // SAFETY: a device of the list.
    ffi::__be64::from_ne(unsafe { shared_of(device) }.lock().properties.guid)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    // SAFETY: a device of the list.
    let shared = unsafe { shared_of(device) };
    if let Err(errno) = shared.lock().called("ibv_open_device") {
        return null(errno);
    }
    context::open(&shared, device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ffi::ibv_context {
    let shared = ANNOUNCED.with_borrow(|list| list.first().cloned());
    match shared {
        // SAFETY: takes and returns numbers.
        Some(shared) if unsafe { libc::fcntl(cmd_fd, libc::F_GETFD) } >= 0 => {
            if let Err(errno) = shared.lock().called("ibv_import_device") {
                return null(errno);
            }
            // As in providers. Then another thread opens a file with the same number.
            if let Err(errno) = shared.lock().attempt("import_context") {
                // SAFETY: the text is a string.
                let other = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
                // SAFETY: takes and returns numbers.
                let reused = unsafe { libc::dup2(other, cmd_fd) };
                assert_eq!(reused, cmd_fd);
                // SAFETY: opened above.
                unsafe { libc::close(other) };
                return null(errno);
            }
            context::open(&shared, describe(&shared))
        }
        _ => null(libc::EBADF),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_device_attr,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_device") {
        return errno;
    }
    // SAFETY: the caller's place.
    unsafe { *attr = state.properties.attr.orig_attr };
    0
}

pub(super) unsafe extern "C" fn query_device_ex(
    ctx: *mut ffi::ibv_context,
    _input: *const ffi::ibv_query_device_ex_input,
    attr: *mut ffi::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_device_ex") {
        return errno;
    }
    if !state.properties.extended {
        return libc::EOPNOTSUPP;
    }
    assert_eq!(size, size_of::<ffi::ibv_device_attr_ex>());
    // SAFETY: the caller's place.
    unsafe { *attr = state.properties.attr };
    0
}

pub(super) unsafe extern "C" fn query_port(
    ctx: *mut ffi::ibv_context,
    port: u8,
    attr: *mut ffi::ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_port") {
        return errno;
    }
    if port != 1 {
        return libc::EINVAL;
    }
    assert_eq!(size, size_of::<ffi::ibv_port_attr>());
    // SAFETY: the caller's place.
    unsafe { *attr = state.properties.port };
    0
}

pub(super) unsafe extern "C" fn query_rt_values(
    ctx: *mut ffi::ibv_context,
    values: *mut ffi::ibv_values_ex,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_rt_values_ex") {
        return errno;
    }
    let Some(clock) = state.properties.clock else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the caller's place. The clock is passed in the nanoseconds, in ticks.
    unsafe {
        (*values).comp_mask = ffi::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        (*values).raw_clock.tv_sec = 0;
        (*values).raw_clock.tv_nsec = clock as i64;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    ctx: *mut ffi::ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ffi::ibv_gid,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let state = shared.lock();
    if port != 1 || index < 0 || index >= state.properties.port.gid_tbl_len {
        set_errno(libc::EINVAL);
        return -1;
    }
    let found = state.properties.gids.iter();
    let mut found = found.filter(|entry| entry.gid_index == index as u32);
    // SAFETY: the caller's place. An empty entry is all zeros.
    unsafe {
        *gid = found
            .next()
            .map_or(ffi::ibv_gid::from_raw([0; 16]), |e| e.gid)
    };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    ctx: *mut ffi::ibv_context,
    port: u32,
    index: u32,
    entry: *mut ffi::ibv_gid_entry,
    _flags: u32,
    _size: usize,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_gid_ex") {
        return errno;
    }
    if port != 1 || index as i32 >= state.properties.port.gid_tbl_len {
        return libc::EINVAL;
    }
    let mut gids = state.properties.gids.iter();
    match gids.find(|entry| entry.gid_index == index) {
        Some(found) => {
            // SAFETY: the caller's place.
            unsafe { *entry = *found };
            0
        }
        None => libc::ENODATA,
    }
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
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_gid_table") {
        return -(errno as isize);
    }
    let gids = &state.properties.gids;
    if gids.len() > max_entries {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: the caller's array has room for the entries.
    unsafe { ptr::copy_nonoverlapping(gids.as_ptr(), entries, gids.len()) };
    gids.len() as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    ctx: *mut ffi::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut ffi::__be16,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let state = shared.lock();
    match state.properties.pkeys.get(index as usize) {
        Some(value) if port == 1 => {
            // SAFETY: the caller's place.
            unsafe { *pkey = ffi::__be16::from_ne(*value) };
            0
        }
        _ => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(
    ctx: *mut ffi::ibv_context,
    _port: u8,
    pkey: ffi::__be16,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let state = shared.lock();
    let found = state
        .properties
        .pkeys
        .iter()
        .position(|&p| p == pkey.to_ne());
    found.map_or(-1, |index| index as c_int)
}
