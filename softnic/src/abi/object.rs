//! Objects of C: a struct of libibverbs, followed by fields of this crate.

use std::any::type_name;

use ibverbs_sys as ffi;

/// An object with its C struct as the first field.
///
/// # Safety
/// - The type is `repr(C)`, and its first field is an `UnsafeCell` of `Self::Raw`, or of a C struct that starts with all
///   fields of `Self::Raw`.
pub(super) unsafe trait Object: Sized {
    /// The C struct.
    type Raw;

    /// Allocates the object, and returns the program's pointer.
    fn into_raw(self) -> *mut Self::Raw {
        Box::into_raw(Box::new(self)).cast()
    }

    /// The object behind a program's pointer.
    ///
    /// # Safety
    /// - `raw` came from [`into_raw`](Self::into_raw), and the object is not freed while the result is used.
    unsafe fn borrow<'a>(raw: *mut Self::Raw) -> &'a Self {
        // SAFETY: a pointer to a live box, whose type starts with the C struct (the trait's contract); C changes only
        // bytes inside of the `UnsafeCell`.
        unsafe { &*raw.cast::<Self>() }
    }

    /// Frees the object.
    ///
    /// # Safety
    /// - `raw` came from [`into_raw`](Self::into_raw), and is not used afterwards.
    unsafe fn free(raw: *mut Self::Raw) {
        // SAFETY: from a box, and freed once: the caller's promise.
        drop(unsafe { Box::from_raw(raw.cast::<Self>()) });
    }
}

/// An all-zero value of a C struct.
pub(super) fn zeroed<T: Plain>() -> T {
    // SAFETY: zero is a value of each implementing type (the trait's contract).
    unsafe { std::mem::zeroed() }
}

/// C structs with a valid all-zero value.
///
/// # Safety
/// - All fields are integers, raw pointers, optional functions, or structs, arrays and unions of such types.
pub(super) unsafe trait Plain {
    /// Name of the C struct.
    fn name() -> &'static str {
        type_name::<Self>().rsplit("::").next().unwrap_or_default()
    }
}

macro_rules! plain {
    ($($name:ident)*) => {$(
        // SAFETY: a C struct of integers, pointers and functions, with `pthread` types made of integers.
        unsafe impl Plain for ffi::$name {}
    )*};
}

plain! {
    ibv_ah ibv_comp_channel ibv_comp_cntr ibv_counters ibv_cq ibv_cq_ex ibv_device ibv_dm ibv_flow ibv_mr ibv_mw ibv_pd
    ibv_rwq_ind_table ibv_srq ibv_td ibv_wq ibv_xrcd verbs_context
}
