//! Partition keys.

use std::fmt;

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Error, Result, cvt_neg},
};

/// A partition key: the number of a partition, and a bit for full membership.
///
/// ```
/// use verbs::attr::Pkey;
/// assert!(Pkey::DEFAULT.is_full_member());
/// assert_eq!(Pkey(0x7fff).partition(), Pkey::DEFAULT.partition());
/// assert_eq!(format!("{:?}", Pkey(0x8001)), "Pkey(0x8001)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pkey(
    /// The key, in this machine's order.
    pub u16,
);

impl Pkey {
    /// The default partition, with full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether communication is allowed with all members of the partition, and not only with full
    /// ones.
    pub fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// The partition.
    pub fn partition(self) -> u16 {
        self.0 & 0x7fff
    }
}

impl fmt::Debug for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pkey({:#06x})", self.0)
    }
}

impl Context {
    /// `ibv_query_pkey(ctx, port_num, index, …)`—Reads an entry of a port's P_Key table. Enters the
    /// kernel.
    ///
    /// # Errors
    /// - `EINVAL`: there is no such port, or its table is shorter.
    ///
    /// # References
    /// [ibv_query_pkey(3)](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html)
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<Pkey> {
        let mut pkey = ffi::__be16::default();
        let raw_index = i32::from(index);
        // SAFETY: the context is open for as long as `self` lives, and `pkey` is a valid place.
        let ret = unsafe { ffi::ibv_query_pkey(self.as_raw(), port_num, raw_index, &raw mut pkey) };
        cvt_neg("ibv_query_pkey", ret)
            .map_err(|err| err.detail(format!("port {port_num}, index {index}")))?;
        Ok(Pkey(pkey.to_ne()))
    }

    /// `ibv_get_pkey_index(ctx, port_num, pkey)`—Finds a key in a port's P_Key table. Enters the
    /// kernel.
    ///
    /// # Errors
    /// - `ENOENT`: the table does not contain the key.
    ///
    /// # References
    /// [ibv_get_pkey_index(3)](https://man7.org/linux/man-pages/man3/ibv_get_pkey_index.3.html)
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey_index(&self, port_num: u8, pkey: Pkey) -> Result<u16> {
        let raw = ffi::__be16::from_ne(pkey.0);
        // SAFETY: the context is open for as long as `self` lives.
        let ret = unsafe { ffi::ibv_get_pkey_index(self.as_raw(), port_num, raw) };
        // The call reads one entry after the other, so `errno` holds the error of reading beyond
        // the last entry, if any.
        u16::try_from(ret).map_err(|_| {
            Error::from_errno("ibv_get_pkey_index", libc::ENOENT)
                .detail(format!("port {port_num}, {pkey:?}"))
        })
    }
}
