//! Ports and their GIDs.

use crate::{
    _ibv_query_gid_ex, _ibv_query_gid_table, bindings, ibv_context, ibv_gid_entry, ibv_port_attr,
};
use core::ffi::c_int;

/// `ibv_query_port(context, port_num, port_attr)`—Reads a port's properties.
///
/// In C, a macro hides the library function of the same name, which knows fewer properties.
///
/// # Safety
///
/// `context` is live and `port_attr` writable.
#[inline]
pub unsafe fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's context is live.
    if let Some(query_port) = unsafe { verbs_get_ctx_op!(context, query_port) } {
        // SAFETY: as the caller promised, and `port_attr` has this size.
        return unsafe { query_port(context, port_num, port_attr, size_of::<ibv_port_attr>()) };
    }
    // SAFETY: the caller's `port_attr` is writable; the old function fills its first fields.
    unsafe {
        port_attr.write_bytes(0, 1);
        bindings::ibv_query_port(context, port_num, port_attr.cast())
    }
}

/// `___ibv_query_port(context, port_num, port_attr)`—Target of the C macro [`ibv_query_port`].
///
/// # Safety
///
/// As for [`ibv_query_port`].
#[inline]
pub unsafe fn ___ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe { ibv_query_port(context, port_num, port_attr) }
}

/// `ibv_query_gid_ex(context, port_num, gid_index, entry, flags)`—Reads a GID and its type.
///
/// # Safety
///
/// `context` is live and `entry` writable.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: as the caller promised, and `entry` has this size.
    unsafe { _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size) }
}

/// `ibv_query_gid_table(context, entries, max_entries, flags)`—Reads all valid GIDs.
///
/// Returns the number of entries, or a negative errno value.
///
/// # Safety
///
/// `context` is live and `entries` writable for `max_entries`.
#[inline]
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: as the caller promised, and an entry has this size.
    unsafe { _ibv_query_gid_table(context, entries, max_entries, flags, size) }
}
