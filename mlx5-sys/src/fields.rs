//! `zeroed()`: initial value of structs filled in for a call, as `= {}` in C.

use crate::{mlx5dv_context_attr, mlx5dv_qp_ex, mlx5dv_qp_init_attr};
use core::mem::MaybeUninit;

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl $name {
            /// All fields zero or `None`.
            #[inline]
            #[must_use]
            pub const fn zeroed() -> Self {
                // SAFETY: the fields are integers, a union of them and optional functions; zero is a value of each.
                unsafe { MaybeUninit::zeroed().assume_init() }
            }
        }
    )*};
}

zeroed! {
    mlx5dv_context_attr mlx5dv_qp_ex mlx5dv_qp_init_attr
}
