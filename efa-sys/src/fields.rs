//! `zeroed()`: initial value of structs filled in for a call, as `= {}` in C.

use crate::{efadv_ah_attr, efadv_cq, efadv_cq_init_attr, efadv_device_attr, efadv_qp_init_attr};
use core::mem::MaybeUninit;

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl $name {
            /// All fields zero or `None`.
            #[inline]
            #[must_use]
            pub const fn zeroed() -> Self {
                // SAFETY: the fields are integers, arrays of them and optional functions; zero is a value of each.
                unsafe { MaybeUninit::zeroed().assume_init() }
            }
        }
    )*};
}

zeroed! {
    efadv_ah_attr efadv_cq efadv_cq_init_attr efadv_device_attr efadv_qp_init_attr
}
