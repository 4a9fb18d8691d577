//! Requests of an initiator.

use ibverbs_sys as ffi;
use verbs::{
    RemoteToken,
    ah::HasAddress,
    op::{DatagramWork, VendorDestination, VendorOperation, VendorRequest},
    qp::QpNum,
    work::{Scatter, SgeList},
};

use crate::Dci;

/// A target at the address of a request: its number, and its access key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Number of the target, known from its state RTR on.
    pub number: QpNum,
    /// Access key of the target.
    pub key: u64,
}

/// `ibv_wr_*` with `mlx5dv_wr_set_dc_addr`—A request of an initiator, which names its target. The work has the address handle:
/// [`Addressed`](verbs::ah::Addressed).
///
/// ```
/// # use verbs::{Buf, RemoteToken, ah::Addressed};
/// use mlx5::{Request, Target};
/// fn write(work: Addressed<Buf>, to: RemoteToken, target: Target) -> Request<Addressed<Buf>> {
///     Request::write(work, to, target).unsignaled()
/// }
/// ```
#[doc(alias = "mlx5dv_wr_set_dc_addr")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Request<W> {
    work: W,
    // INVARIANT: one that writes to the work only if `W` is `Scatter`.
    operation: VendorOperation,
    to: Target,
    is_signaled: bool,
}

impl<W> Request<W> {
    fn new(work: W, operation: VendorOperation, to: Target) -> Self {
        Self {
            work,
            operation,
            to,
            is_signaled: true,
        }
    }

    /// Makes no completion of its own on success; see [`VendorRequest::is_signaled`].
    pub fn unsignaled(mut self) -> Self {
        self.is_signaled = false;
        self
    }
}

impl<W: DatagramWork> Request<W> {
    /// Sends a message.
    pub fn send(work: W, to: Target) -> Self {
        Self::new(work, VendorOperation::Send, to)
    }

    /// Sends a message with a number.
    pub fn send_imm(work: W, to: Target, imm_data: u32) -> Self {
        Self::new(work, VendorOperation::SendImm(imm_data), to)
    }

    /// Writes the bytes of the work to the start of `remote`, memory of the target's domain.
    pub fn write(work: W, remote: RemoteToken, to: Target) -> Self {
        Self::new(work, VendorOperation::RdmaWrite(remote), to)
    }

    /// Writes as [`write`](Self::write) does, and then completes one of the target's receives with a number.
    pub fn write_imm(work: W, remote: RemoteToken, to: Target, imm_data: u32) -> Self {
        Self::new(work, VendorOperation::RdmaWriteImm(remote, imm_data), to)
    }
}

impl<W: Scatter + HasAddress> Request<W> {
    /// Reads the start of `remote`, memory of the target's domain, as many bytes as the work has.
    pub fn read(work: W, remote: RemoteToken, to: Target) -> Self {
        Self::new(work, VendorOperation::RdmaRead(remote), to)
    }

    /// Replaces the number at the start of `remote` by `swap`, if it equals `compare`; see
    /// [`CompareSwap`](verbs::op::CompareSwap). The work receives the former number.
    pub fn compare_swap(
        work: W,
        remote: RemoteToken,
        to: Target,
        [compare, swap]: [u64; 2],
    ) -> Self {
        let operation = VendorOperation::CompareSwap(remote, compare, swap);
        Self::new(work, operation, to)
    }

    /// Adds to the number at the start of `remote`; see [`FetchAdd`](verbs::op::FetchAdd). The work receives the former number.
    pub fn fetch_add(work: W, remote: RemoteToken, to: Target, add: u64) -> Self {
        Self::new(work, VendorOperation::FetchAdd(remote, add), to)
    }
}

/// Sets the target of the request built last.
///
/// # Safety
/// - `qp` is an initiator, within a batch whose last request has no target yet. The handle exists.
unsafe fn set_dc_addr(qp: *mut ffi::ibv_qp_ex, ah: *mut ffi::ibv_ah, [number, key]: [u64; 2]) {
    // SAFETY: a queue pair of libmlx5's.
    let mqp = unsafe { mlx5_sys::mlx5dv_qp_ex_from_ibv_qp_ex(qp) };
    let number = u32::try_from(number).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { mlx5_sys::mlx5dv_wr_set_dc_addr(mqp, ah, number, key) };
}

// SAFETY: the work owns the memory, which the device writes only if it may (invariant), and its address handle. Assumption: libmlx5
// executes every operation of an initiator with the address of `mlx5dv_wr_set_dc_addr`.
unsafe impl<W: DatagramWork> VendorRequest for Request<W> {
    type Transport = Dci;
    type Work = W;

    fn operation(&self) -> VendorOperation {
        self.operation
    }

    fn destination(&self) -> VendorDestination<'_> {
        let arguments = [self.to.number.get().into(), self.to.key];
        // SAFETY: `set_dc_addr` may be called for an initiator with a request without a target. It calls libmlx5 alone, which
        // copies the address of the handle.
        unsafe { VendorDestination::by_call(self.work.ah(), set_dc_addr, arguments) }
    }

    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }

    fn into_work(self) -> W {
        self.work
    }

    fn is_signaled(&self) -> bool {
        self.is_signaled
    }
}
