//! The GID tables of a device's ports.

use std::io;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_gid_type;

use crate::{
    addr::Gid,
    context::Context,
    error::{Error, Result, cvt_count, cvt_errno, cvt_neg},
    named::named,
};

named! {
    /// `ibv_gid_type`—The packet format of a GID.
    #[doc(alias = "ibv_gid_type")]
    GidType(u32) {
        /// InfiniBand.
        #[doc(alias = "IBV_GID_TYPE_IB")]
        IB = ibv_gid_type::IBV_GID_TYPE_IB.0;
        /// RoCE version 1: Ethernet.
        #[doc(alias = "IBV_GID_TYPE_ROCE_V1")]
        ROCE_V1 = ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0;
        /// RoCE version 2: UDP over IP.
        #[doc(alias = "IBV_GID_TYPE_ROCE_V2")]
        ROCE_V2 = ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
    }
}

/// `ibv_gid_entry`—An entry of a port's GID table.
///
/// # References
/// [ibv_query_gid_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid_ex.3.html)
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// The index in the table.
    pub gid_index: u32,
    /// The port, counting from 1.
    pub port_num: u32,
    /// The packet format.
    pub gid_type: GidType,
    /// The index of the GID's network interface, if there is one.
    pub ndev_ifindex: Option<u32>,
}

impl GidEntry {
    fn new(raw: &ffi::ibv_gid_entry) -> Self {
        Self {
            gid: raw.gid.into(),
            gid_index: raw.gid_index,
            port_num: raw.port_num,
            gid_type: GidType(raw.gid_type),
            ndev_ifindex: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
        }
    }
}

impl Context {
    /// `ibv_query_gid(ctx, port_num, index, …)`—Reads an entry of a port's GID table; `None` if
    /// empty. Enters the kernel.
    ///
    /// # Errors
    /// - `EINVAL`: there is no such port, or its table is shorter.
    ///
    /// # References
    /// [ibv_query_gid(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid.3.html)
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port_num: u8, index: u32) -> Result<Option<Gid>> {
        let mut gid = ffi::ibv_gid::default();
        let as_int = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: the context is open for as long as `self` lives, and `gid` is a valid place.
        let ret = unsafe { ffi::ibv_query_gid(self.as_raw(), port_num, as_int, &raw mut gid) };
        cvt_neg("ibv_query_gid", ret)
            .map_err(|err| err.detail(format!("port {port_num}, index {index}")))?;
        Ok(Some(Gid::from(gid)).filter(|gid| !gid.is_unspecified()))
    }

    /// `ibv_query_gid_ex(ctx, port_num, index, …)`—Reads an entry of a port's GID table, with its
    /// type; `None` if empty. Enters the kernel.
    ///
    /// # Errors
    /// - `EINVAL`: there is no such port, or its table is shorter.
    ///
    /// # References
    /// [ibv_query_gid_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid_ex.3.html)
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid_ex(&self, port_num: u8, index: u32) -> Result<Option<GidEntry>> {
        let mut entry = ffi::ibv_gid_entry::zeroed();
        let port = u32::from(port_num);
        // SAFETY: the context is open for as long as `self` lives, and `entry` is a valid place.
        let ret = unsafe { ffi::ibv_query_gid_ex(self.as_raw(), port, index, &raw mut entry, 0) };
        if ret == libc::ENODATA {
            return Ok(None);
        }
        cvt_errno("ibv_query_gid_ex", ret)
            .map_err(|err| err.detail(format!("port {port_num}, index {index}")))?;
        Ok(Some(GidEntry::new(&entry)).filter(|entry| !entry.gid.is_unspecified()))
    }

    /// `ibv_query_gid_table(ctx, …)`—Reads all non-empty entries of the GID tables of all ports.
    /// Enters the kernel.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// # Examples
    /// The entry for sending from an IPv4 address:
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::attr::GidType;
    /// let table = ctx.query_gid_table()?;
    /// let entry = table
    ///     .iter()
    ///     .find(|entry| entry.gid_type == GidType::ROCE_V2 && entry.gid.to_ip().is_ipv4());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_query_gid_table(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid_table.3.html)
    #[doc(alias = "ibv_query_gid_table")]
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        let mut capacity = 0;
        for port in self.query_device()?.port_nums() {
            capacity += self.query_port(port)?.gid_tbl_len() as usize;
        }
        let mut entries = vec![ffi::ibv_gid_entry::zeroed(); capacity];
        // SAFETY: the context is open for as long as `self` lives, and `entries` has the stated
        // room; C writes there only before the return.
        let ret = unsafe {
            ffi::ibv_query_gid_table(self.as_raw(), entries.as_mut_ptr(), entries.len(), 0)
        };
        let ret = i32::try_from(ret).unwrap_or(i32::MAX);
        let count = cvt_count("ibv_query_gid_table", ret)?;
        let entries = entries.get(..count).ok_or_else(|| {
            let reason = "the library reports more entries than there was room for";
            Error::refused("ibv_query_gid_table", io::ErrorKind::InvalidData, reason)
        })?;
        Ok(entries.iter().map(GidEntry::new).collect())
    }
}
