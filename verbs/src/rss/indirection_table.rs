//! Tables of work queues, indexed by the hash of a packet.

use std::{fmt, io, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use super::work_queue::{WorkQueue, WqInner};
use crate::{
    context::Context,
    error::{Error, Result, cvt_ptr},
};

/// `ibv_rwq_ind_table`—A table of work queues, indexed by the hash of a packet.
///
/// The table keeps its work queues; they are destroyed later.
///
/// # References
/// [ibv_create_rwq_ind_table(3)](https://man7.org/linux/man-pages/man3/ibv_create_rwq_ind_table.3.html)
#[doc(alias = "ibv_destroy_rwq_ind_table")]
#[doc(alias = "ibv_rwq_ind_table")]
pub struct IndirectionTable {
    pub(super) inner: Arc<TableInner>,
}

pub(super) struct TableInner {
    // INVARIANT: created until `self` is dropped.
    raw: NonNull<ffi::ibv_rwq_ind_table>,
    queues: Vec<Arc<WqInner>>,
    pub(super) ctx: Context,
}

// SAFETY: calls change no state of a table in user space. Assumption: calls of libibverbs may be
// made from any thread, and several at once.
unsafe impl Send for TableInner {}
// SAFETY: see `Send`.
unsafe impl Sync for TableInner {}

impl Context {
    /// `ibv_create_rwq_ind_table(ctx, …)`—Creates a table of work queues. The number of entries is
    /// a power of two; a queue can have several entries. Enters the kernel.
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
        for queue in &queues {
            self.check_same(CALL, "a queue", queue.pd.context())?;
        }
        let mut raw_queues: Vec<_> = queues.iter().map(|queue| queue.raw.as_ptr()).collect();
        let mut attr = ffi::ibv_rwq_ind_table_init_attr::zeroed();
        attr.log_ind_tbl_size = queues.len().ilog2();
        attr.ind_tbl = raw_queues.as_mut_ptr();
        // SAFETY: the context is open for as long as `self` lives; the number of queues in the
        // table matches its size, and the queues exist for as long as `TableInner` holds them.
        // Assumption: C keeps no pointer to the attributes. Nor to the array.
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
        let _: i32 = self.ctx.destroy(|| {
            // SAFETY: the table exists and is destroyed once, here; the context is open, and the work
            // queues exist, since their fields are dropped later. Queue pairs with this table hold an
            // `Arc` of `self`, so none is left, except leaked ones: then this fails, and so does
            // destroying the work queues, whose work is leaked.
            unsafe { ffi::ibv_destroy_rwq_ind_table(self.raw.as_ptr()) }
        });
    }
}
