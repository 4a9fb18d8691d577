//! Queue pairs that spread packets over the work queues of a table.

use std::{any::Any, fmt, io, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_qp_attr_mask, ibv_qp_init_attr_mask as has, ibv_qp_state};

use super::indirection_table::{IndirectionTable, TableInner};
use crate::{
    attr::{RxHashFields, RxHashFunctions},
    bounded::QpNum,
    context::Context,
    error::{Error, Result, cvt_errno, cvt_ptr},
    flow::{FlowTarget, Steerable},
    pd::ProtectionDomain,
};

/// `ibv_rx_hash_conf`—The hash function of packets, with its key and fields.
#[doc(alias = "ibv_rx_hash_conf")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHash<'a> {
    /// The function.
    pub function: RxHashFunctions,
    /// The function's key, of at most 255 bytes; most devices need 40.
    pub key: &'a [u8],
    /// The hashed fields of a packet. Empty: every packet has the same hash.
    pub fields: RxHashFields,
}

impl<'a> RxHash<'a> {
    /// The Toeplitz hash.
    pub fn toeplitz(key: &'a [u8], fields: RxHashFields) -> Self {
        let function = RxHashFunctions::TOEPLITZ;
        Self {
            function,
            key,
            fields,
        }
    }
}

/// A queue pair that only spreads received packets over work queues.
///
/// Steer packets to the queue pair with [`FlowTarget::create_flow`].
///
/// # References
/// [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)
pub struct RssQueuePair {
    inner: Arc<RssInner>,
}

struct RssInner {
    // INVARIANT: created until `self` is dropped.
    raw: NonNull<ffi::ibv_qp>,
    _table: Arc<TableInner>,
    pd: ProtectionDomain,
}

// SAFETY: the queue pair has no queues. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for RssInner {}
// SAFETY: see `Send`.
unsafe impl Sync for RssInner {}

impl ProtectionDomain {
    /// `ibv_create_qp_ex(ctx, …)`—Creates a queue pair for raw packets, spread over the work queues
    /// of a table. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the key is too long, or the table of another device.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device does not support spreading, or not by these fields.
    /// - `EPERM`: raw packets need `CAP_NET_RAW`.
    ///
    /// # References
    /// [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)
    #[doc(alias = "IBV_QP_INIT_ATTR_RX_HASH")]
    #[doc(alias = "IBV_QP_INIT_ATTR_IND_TABLE")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_rss_qp(
        &self,
        table: &IndirectionTable,
        hash: &RxHash<'_>,
    ) -> Result<RssQueuePair> {
        const CALL: &str = "ibv_create_qp_ex";
        let refuse = |reason| Err(Error::refused(CALL, io::ErrorKind::InvalidInput, reason));
        let ctx = self.context();
        let Ok(key_len) = u8::try_from(hash.key.len()) else {
            return refuse("a key has at most 255 bytes");
        };
        ctx.check_same(CALL, "the table", &table.inner.ctx)?;
        // No known device has a function beyond these bits.
        let function = u8::try_from(hash.function.bits()).unwrap_or(0);
        let mut key = hash.key.to_vec();
        let mut attr = ffi::ibv_qp_init_attr_ex::zeroed();
        attr.qp_type = ffi::ibv_qp_type::IBV_QPT_RAW_PACKET;
        attr.comp_mask = (has::IBV_QP_INIT_ATTR_PD
            | has::IBV_QP_INIT_ATTR_IND_TABLE
            | has::IBV_QP_INIT_ATTR_RX_HASH)
            .0;
        attr.pd = self.as_raw();
        attr.rwq_ind_tbl = table.as_raw();
        attr.rx_hash_conf.rx_hash_function = function;
        attr.rx_hash_conf.rx_hash_key_len = key_len;
        attr.rx_hash_conf.rx_hash_key = key.as_mut_ptr();
        attr.rx_hash_conf.rx_hash_fields_mask = hash.fields.bits();
        // SAFETY: the context is open, and the domain and the table exist, for as long as they are
        // borrowed, and then for as long as `RssInner` holds them; the key has the given length. C
        // keeps no pointer to the key, or to the attributes.
        let raw = unsafe { ffi::ibv_create_qp_ex(ctx.as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw)
            .map_err(|err| err.detail(format!("{:?} by {:?}", hash.fields, hash.function)))?;
        let inner = RssInner {
            raw,
            _table: Arc::clone(&table.inner),
            pd: self.clone(),
        };
        Ok(RssQueuePair {
            inner: Arc::new(inner),
        })
    }
}

impl RssQueuePair {
    /// The device's number for the queue pair.
    pub fn qp_num(&self) -> QpNum {
        // SAFETY: the queue pair is created (invariant), and its number never changes.
        QpNum::from_low_bits(unsafe { (*self.as_raw()).qp_num })
    }

    /// `ibv_modify_qp`—Starts receiving from a port, counting from 1. Some devices receive from the
    /// start, and refuse the call.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`: the queue pair receives already.
    /// - `EINVAL`: there is no such port.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(&mut self, port_num: u8) -> Result<()> {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = port_num;
        let (state, port) = (
            ibv_qp_attr_mask::IBV_QP_STATE,
            ibv_qp_attr_mask::IBV_QP_PORT,
        );
        self.modify(&mut attr, state | port)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        self.modify(&mut attr, state)
    }

    fn modify(&self, attr: &mut ffi::ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<()> {
        self.inner.pd.context().check_process("ibv_modify_qp")?;
        let bits = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: the queue pair is created (invariant). Assumption: C keeps no pointer to the
        // attributes.
        let errno = unsafe { ffi::ibv_modify_qp(self.as_raw(), attr, bits) };
        cvt_errno("ibv_modify_qp", errno)
            .map_err(|err| err.detail(format!("to {:?}, port {}", attr.qp_state, attr.port_num)))
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_qp {
        self.inner.raw.as_ptr()
    }
}

impl Steerable for RssQueuePair {
    fn ctx(&self) -> &Context {
        self.inner.pd.context()
    }

    fn raw_qp(&self) -> *mut ffi::ibv_qp {
        self.as_raw()
    }

    fn share(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.inner) as _
    }
}

impl FlowTarget for RssQueuePair {}

impl fmt::Debug for RssQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RssQueuePair")
            .field("qp_num", &self.qp_num())
            .finish_non_exhaustive()
    }
}

impl Drop for RssInner {
    fn drop(&mut self) {
        let _: i32 = self.pd.context().destroy(|| {
            // SAFETY: the queue pair exists and is destroyed once, here; flows hold an `Arc` of `self`,
            // so none is left. The table and the domain exist, since their fields are dropped later. If
            // this fails, so does destroying the table and its work queues, whose work is leaked.
            unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) }
        });
    }
}
