//! Return values of spies.

use crate::world::token;
use ibverbs_sys::{__be32, ibv_wc_opcode};
use std::ffi::c_int;

/// Return value of a spy, distinct from any value computed by an inline.
pub(crate) trait Sample {
    fn sample() -> Self;
}

macro_rules! sample {
    ($($type:ty = $value:expr;)*) => {$(
        impl Sample for $type {
            fn sample() -> Self {
                $value
            }
        }
    )*};
}

sample! {
    () = ();
    c_int = 77;
    u8 = 78;
    u16 = 79;
    u32 = 80;
    u64 = 81;
    isize = 82;
    __be32 = __be32(0x0102_0304);
    ibv_wc_opcode = ibv_wc_opcode::IBV_WC_RDMA_READ;
}

impl<T> Sample for *mut T {
    fn sample() -> Self {
        token(99)
    }
}
