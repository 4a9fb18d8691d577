//! Structs that grow at their end with versions of rdma-core: a program passes the size that it was compiled with.

use std::{ffi::c_int, mem::offset_of, ptr, slice};

use ibverbs_sys as ffi;
use softnic::Fabric;

use crate::end::Connected;

/// Bytes of a struct of a later rdma-core beyond the known ones.
const MORE: usize = 24;

/// Calls a query with a struct of `size` bytes in memory full of ones: the error number, and the memory.
fn queried<T>(size: usize, query: impl FnOnce(*mut T, usize) -> c_int) -> (c_int, Vec<u8>) {
    let mut memory = vec![u64::MAX; (size_of::<T>() + MORE).div_ceil(8)];
    let errno = query(memory.as_mut_ptr().cast(), size);
    // SAFETY: the elements' bytes, borrowed by nothing else.
    let bytes = unsafe { slice::from_raw_parts(memory.as_ptr().cast::<u8>(), memory.len() * 8) };
    (errno, bytes.to_vec())
}

/// A query writes as many bytes as the program's struct has: the known fields, and zeros beyond.
fn check<T>(least: usize, query: &dyn Fn(*mut T, usize) -> c_int) {
    let known = size_of::<T>();
    let (errno, complete) = queried(known, query);
    assert_eq!(errno, 0);
    let sizes = [least, known - 1, known, known + MORE];
    for size in sizes.into_iter().filter(|size| *size >= least) {
        let (errno, bytes) = queried(size, query);
        assert_eq!(errno, 0, "{size} bytes");
        let written = size.min(known);
        assert_eq!(bytes[..written], complete[..written], "{size} bytes");
        assert!(
            bytes[written..size].iter().all(|byte| *byte == 0),
            "{size} bytes"
        );
        assert!(
            bytes[size..].iter().all(|byte| *byte == 0xff),
            "{size} bytes"
        );
    }
    let (errno, bytes) = queried(least - 1, query);
    assert_eq!(errno, libc::EINVAL);
    assert!(bytes.iter().all(|byte| *byte == 0xff));
}

#[test]
fn structs_of_other_versions_of_rdma_core_are_filled_up_to_their_size() {
    let this = Connected::new(Fabric::new());
    let ctx = this.a.ctx.as_raw();
    let context = offset_of!(ffi::verbs_context, context);
    // SAFETY: an open context is a part of the struct for extensions.
    let table = unsafe { ctx.byte_sub(context) }.cast::<ffi::verbs_context>();
    // SAFETY: as above; the table does not change.
    let table = unsafe { &*table };
    let query_port = table.query_port.unwrap();
    check::<ffi::ibv_port_attr>(
        offset_of!(ffi::ibv_port_attr, port_cap_flags2),
        &|attr, size| {
            // SAFETY: an open context, and memory of at least this size.
            unsafe { query_port(ctx, 1, attr, size) }
        },
    );
    let query_device = table.query_device_ex.unwrap();
    check::<ffi::ibv_device_attr_ex>(size_of::<ffi::ibv_device_attr>(), &|attr, size| {
        // SAFETY: an open context, and memory of at least this size.
        unsafe { query_device(ctx, ptr::null(), attr, size) }
    });
    check::<ffi::ibv_gid_entry>(size_of::<ffi::ibv_gid_entry>(), &|entry, size| {
        // SAFETY: an open context, and memory of at least this size.
        unsafe { ffi::_ibv_query_gid_ex(ctx, 1, 0, entry, 0, size) }
    });
    check::<ffi::ibv_gid_entry>(size_of::<ffi::ibv_gid_entry>(), &|entry, size| {
        // SAFETY: an open context, and memory of at least this size, for the one entry of the host.
        let ret = unsafe { ffi::_ibv_query_gid_table(ctx, entry, 1, 0, size) };
        c_int::try_from(ret).unwrap().min(0).abs()
    });
}
