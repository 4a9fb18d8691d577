//! Receive-side scaling: packets spread over work queues.
//!
//! | item | is |
//! |---|---|
//! | [`WorkQueue`], [`WorkQueueBuilder`], [`WqFlags`] | a receive queue without a queue pair |
//! | [`IndirectionTable`] | work queues, by the hash of a packet |
//! | [`RxHash`] | the hash: its function, key and fields |
//! | [`RssQueuePair`] | the queue pair in front of the table |
//!
//! # References
//! [ibv_create_wq(3)](https://man7.org/linux/man-pages/man3/ibv_create_wq.3.html),
//! [ibv_create_rwq_ind_table(3)](https://man7.org/linux/man-pages/man3/ibv_create_rwq_ind_table.3.html),
//! [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)

use std::{any::Any, fmt, io, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_qp_attr_mask, ibv_qp_init_attr_mask as has, ibv_qp_state};

use crate::{
    attr::{RxHashFields, RxHashFunctions},
    bounded::QpNum,
    context::Context,
    error::{Error, Result, cvt_errno, cvt_ptr},
    flow::{FlowTarget, Steerable},
    pd::ProtectionDomain,
    qp::work_queue::WqInner,
};

pub use crate::qp::work_queue::{WorkQueue, WorkQueueBuilder, WqFlags};

/// `ibv_rwq_ind_table`—A table of work queues, indexed by the hash of a packet.
///
/// The table keeps its work queues; they are destroyed later.
///
/// # References
/// [ibv_create_rwq_ind_table(3)](https://man7.org/linux/man-pages/man3/ibv_create_rwq_ind_table.3.html)
#[doc(alias = "ibv_destroy_rwq_ind_table")]
#[doc(alias = "ibv_rwq_ind_table")]
pub struct IndirectionTable {
    inner: Arc<TableInner>,
}

struct TableInner {
    // INVARIANT: created until `self` is dropped.
    raw: NonNull<ffi::ibv_rwq_ind_table>,
    queues: Vec<Arc<WqInner>>,
    ctx: Context,
}

// SAFETY: calls change no state of a table in user space; libibverbs documents its calls as
// thread-safe.
unsafe impl Send for TableInner {}
// SAFETY: see `Send`.
unsafe impl Sync for TableInner {}

impl Context {
    /// `ibv_create_rwq_ind_table(ctx, …)`—Creates a table of work queues, whose number is a power
    /// of two; one may be there more than once. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the number is not a power of two, or a queue is of another device.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no such tables.
    /// - `EINVAL`: the device does not support tables of this size.
    ///
    /// # Examples
    /// ```no_run
    /// # fn f(pd: &verbs::ProtectionDomain, cq: &verbs::cq::CqHandle) -> verbs::Result<()> {
    /// use verbs::{attr::RxHashFields, rss::RxHash};
    /// let (a, b) = (pd.wq_builder(cq).create()?, pd.wq_builder(cq).create()?);
    /// let table = pd.context().create_indirection_table(&[&a, &b, &a, &b])?;
    /// let fields = RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4;
    /// let qp = pd.create_rss_qp(&table, &RxHash::toeplitz(&[7; 40], fields))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # References
    /// [ibv_create_rwq_ind_table(3)](https://man7.org/linux/man-pages/man3/ibv_create_rwq_ind_table.3.html)
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn create_indirection_table<RW: Send + 'static>(
        &self,
        queues: &[&WorkQueue<RW>],
    ) -> Result<IndirectionTable> {
        const CALL: &str = "ibv_create_rwq_ind_table";
        let refuse = |reason: String| {
            let kind = io::ErrorKind::InvalidInput;
            Err(Error::refused(CALL, kind, reason))
        };
        if !queues.len().is_power_of_two() {
            return refuse(format!("{} queues is not a power of two", queues.len()));
        }
        let queues: Vec<_> = queues.iter().map(|queue| queue.share()).collect();
        if queues.iter().any(|queue| queue.pd.context() != self) {
            return refuse("a queue is of another device".to_owned());
        }
        let mut raw_queues: Vec<_> = queues.iter().map(|queue| queue.raw.as_ptr()).collect();
        let mut attr = ffi::ibv_rwq_ind_table_init_attr::zeroed();
        attr.log_ind_tbl_size = queues.len().ilog2();
        attr.ind_tbl = raw_queues.as_mut_ptr();
        // SAFETY: the context is open for as long as `self` lives; the number of queues in the
        // table matches its size, and the queues exist for as long as `TableInner` holds them. C
        // keeps no pointer to the attributes or to the array.
        let raw = unsafe { ffi::ibv_create_rwq_ind_table(self.as_raw(), &raw mut attr) };
        let raw =
            cvt_ptr(CALL, raw).map_err(|err| err.detail(format!("{} queues", queues.len())))?;
        let ctx = self.clone();
        Ok(IndirectionTable {
            inner: Arc::new(TableInner { raw, queues, ctx }),
        })
    }
}

impl IndirectionTable {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.inner.queues.len()
    }

    /// Whether the table is empty: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_rwq_ind_table {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for IndirectionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndirectionTable")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for TableInner {
    fn drop(&mut self) {
        // SAFETY: the table exists and is destroyed once, here; the context is open, and the work
        // queues exist, since their fields are dropped later. Queue pairs with this table hold an
        // `Arc` of `self`, so none is left, except leaked ones: then this fails, and so does
        // destroying the work queues, whose work is leaked.
        let _: i32 = unsafe { ffi::ibv_destroy_rwq_ind_table(self.raw.as_ptr()) };
    }
}

/// `ibv_rx_hash_conf`—How packets are hashed.
#[doc(alias = "ibv_rx_hash_conf")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHash<'a> {
    /// The function.
    pub function: RxHashFunctions,
    /// The function's key, of at most 255 bytes; most devices want 40.
    pub key: &'a [u8],
    /// The hashed fields of a packet. Empty: every packet has the same hash.
    pub fields: RxHashFields,
}

impl<'a> RxHash<'a> {
    /// The hash of Toeplitz.
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
    _pd: ProtectionDomain,
}

// SAFETY: libibverbs documents its calls as thread-safe on one queue pair; this one has no queues.
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
        if &table.inner.ctx != ctx {
            return refuse("the table is of another device");
        }
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
            _pd: self.clone(),
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
    /// start, and refuse this.
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
        let bits = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: the queue pair is created (invariant); C keeps no pointer to the attributes.
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
        // SAFETY: the queue pair exists and is destroyed once, here; flows hold an `Arc` of `self`,
        // so none is left. The table and the domain exist, since their fields are dropped later. If
        // this fails, so does destroying the table and its work queues, whose work is leaked.
        let _: i32 = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}
