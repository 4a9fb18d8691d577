//! Completions of extended queues, read field by field.

use std::{fmt, io, ptr::NonNull};

use ibverbs_sys as ffi;

use super::{
    completion::WorkCompletion,
    extended::WcFields,
    status::{WcError, WcOpcode, WcStatus},
};
use crate::{
    bounded::QpNum,
    error::{Error, Result},
    wr_id::{QpId, WrId},
};

/// A completion of an [`ExtendedCq`](crate::ExtendedCq), before its queue pair has taken it.
///
/// Each field is read from the device's own entry when it is asked for. One that the queue was not
/// made [with](crate::ExtendedCqBuilder::with) is an error.
pub struct ExtendedCompletion<'p> {
    // INVARIANT: an extended queue, on a completion, for as long as `'p` lasts.
    cq: NonNull<ffi::ibv_cq_ex>,
    fields: WcFields,
    /// Where the completion is put together as C has it, when it is asked for.
    plain: &'p mut ffi::ibv_wc,
}

/// `ibv_wc_tm_info`—What tag matching has found.
#[doc(alias = "ibv_wc_tm_info")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMatch {
    /// The tag of the message.
    pub tag: u64,
    /// What the sender has given along with it.
    pub private: u32,
}

/// Declares methods that read a field which the queue was made with.
macro_rules! fields {
    ($($doc:literal $name:ident -> $ty:ty = $field:ident, $call:ident, |$raw:ident| $value:expr;)*) => {$(
        #[doc = concat!("`", stringify!($call), "`—", $doc)]
        ///
        /// # Errors
        #[doc = concat!("- `Unsupported`: the queue was made without [`", stringify!($field), "`](WcFields::", stringify!($field), ").")]
        pub fn $name(&self) -> Result<$ty> {
            self.need(stringify!($call), WcFields::$field)?;
            // SAFETY: the queue is on a completion (invariant), and was made with the field.
            let $raw = unsafe { ffi::$call(self.cq.as_ptr()) };
            Ok($value)
        }
    )*};
}

impl<'p> ExtendedCompletion<'p> {
    /// # Safety
    /// - `cq` is an extended queue with these fields, and on a completion for as long as `'p`
    ///   lasts.
    pub(super) unsafe fn new(
        cq: NonNull<ffi::ibv_cq_ex>,
        fields: WcFields,
        plain: &'p mut ffi::ibv_wc,
    ) -> Self {
        Self { cq, fields, plain }
    }

    fn need(&self, call: &'static str, field: WcFields) -> Result<()> {
        if self.fields.contains(field) {
            return Ok(());
        }
        let reason = format!("the queue was made without {field:?}");
        Err(Error::refused(call, io::ErrorKind::Unsupported, reason))
    }

    fn wr_id(&self) -> WrId {
        // SAFETY: the queue is on a completion (invariant), and has its identifier in this field.
        WrId(unsafe { (*self.cq.as_ptr()).wr_id })
    }

    /// The queue pair whose work this completes, as [`QueuePair::id`](crate::QueuePair::id) names
    /// it.
    pub fn qp_id(&self) -> QpId {
        self.wr_id().qp()
    }

    /// Whether a posted receive has completed, rather than something of a send queue.
    pub fn is_receive(&self) -> bool {
        self.wr_id().is_receive()
    }

    /// How the request ended.
    pub fn status(&self) -> WcStatus {
        // SAFETY: the queue is on a completion (invariant), and has its status in this field.
        WcStatus(unsafe { (*self.cq.as_ptr()).status }.0)
    }

    /// Whether the request succeeded.
    ///
    /// # Errors
    /// The status, with what it usually means.
    pub fn ok(&self) -> Result<(), WcError> {
        match self.status() {
            WcStatus::SUCCESS => Ok(()),
            status => Err(WcError::new(status, self.vendor_err())),
        }
    }

    /// What was done. Meaningless if the request failed.
    #[doc(alias = "ibv_wc_read_opcode")]
    pub fn opcode(&self) -> WcOpcode {
        // SAFETY: the queue is on a completion (invariant), and every queue has this field.
        WcOpcode(unsafe { ffi::ibv_wc_read_opcode(self.cq.as_ptr()) }.0)
    }

    /// The device maker's own code for a failure.
    #[doc(alias = "ibv_wc_read_vendor_err")]
    pub fn vendor_err(&self) -> u32 {
        // SAFETY: the queue is on a completion (invariant), and every queue has this field.
        unsafe { ffi::ibv_wc_read_vendor_err(self.cq.as_ptr()) }
    }

    #[doc(alias = "ibv_wc_read_wc_flags")]
    fn flags(&self) -> u32 {
        // SAFETY: the queue is on a completion (invariant), and every queue has this field.
        unsafe { ffi::ibv_wc_read_wc_flags(self.cq.as_ptr()) }
    }

    fields! {
        "The number of bytes that arrived, or that were transferred."
        byte_len -> usize = BYTE_LEN, ibv_wc_read_byte_len, |len| len as usize;
        "The number of the local queue pair."
        qp_num -> QpNum = QP_NUM, ibv_wc_read_qp_num, |num| QpNum::from_low_bits(num);
        "The number of the queue pair that has sent a datagram."
        src_qp -> QpNum = SRC_QP, ibv_wc_read_src_qp, |num| QpNum::from_low_bits(num);
        "The local identifier that a datagram came from."
        slid -> u32 = SLID, ibv_wc_read_slid, |slid| slid;
        "The service level that a datagram came on."
        sl -> u8 = SL, ibv_wc_read_sl, |sl| sl;
        "The path bits of the local identifier that a datagram came to."
        dlid_path_bits -> u8 = DLID_PATH_BITS, ibv_wc_read_dlid_path_bits, |bits| bits;
        "When the request completed, in ticks of the [device's clock](crate::Context::query_clock)."
        completion_ts -> u64 = COMPLETION_TIMESTAMP, ibv_wc_read_completion_ts, |ticks| ticks;
        "When the request completed, in nanoseconds since 1970."
        completion_wallclock_ns -> u64 = COMPLETION_TIMESTAMP_WALLCLOCK, ibv_wc_read_completion_wallclock_ns, |nanos| nanos;
        "The VLAN tag that a packet came with."
        cvlan -> u16 = CVLAN, ibv_wc_read_cvlan, |tag| tag;
        "The tag of the flow that a packet matched."
        flow_tag -> u32 = FLOW_TAG, ibv_wc_read_flow_tag, |tag| tag;
    }

    /// The immediate data that came with the message, as the number that the sender gave.
    ///
    /// # Errors
    /// - `Unsupported`: the queue was made without [`IMM`](WcFields::IMM).
    #[doc(alias = "ibv_wc_read_imm_data")]
    pub fn imm_data(&self) -> Result<Option<u32>> {
        self.need("ibv_wc_read_imm_data", WcFields::IMM)?;
        if !self.is_receive() || self.flags() & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 == 0 {
            return Ok(None);
        }
        // SAFETY: the queue is on a completion (invariant), and was made with the field.
        let imm_data = unsafe { ffi::ibv_wc_read_imm_data(self.cq.as_ptr()) };
        Ok(Some(imm_data.to_ne()))
    }

    /// What tag matching has found.
    ///
    /// # Errors
    /// - `Unsupported`: the queue was made without [`TM_INFO`](WcFields::TM_INFO).
    #[doc(alias = "ibv_wc_read_tm_info")]
    pub fn tm_info(&self) -> Result<TagMatch> {
        self.need("ibv_wc_read_tm_info", WcFields::TM_INFO)?;
        let mut info = ffi::ibv_wc_tm_info::zeroed();
        // SAFETY: the queue is on a completion (invariant), and was made with the field; `info` is
        // a valid place.
        unsafe { ffi::ibv_wc_read_tm_info(self.cq.as_ptr(), &raw mut info) };
        Ok(TagMatch {
            tag: info.tag,
            private: info.priv_,
        })
    }

    /// The completion in the form that queue pairs and shared receive queues take.
    pub fn into_work_completion(self) -> WorkCompletion<'p> {
        *self.plain = self.read();
        WorkCompletion::new(self.plain)
    }

    /// Reads everything that a plain completion has. Of a request that failed, most is undefined,
    /// and left out.
    fn read(&self) -> ffi::ibv_wc {
        let mut wc = ffi::ibv_wc::zeroed();
        let status = self.status();
        wc.wr_id = self.wr_id().0;
        wc.status = ffi::ibv_wc_status(status.0);
        if let Ok(num) = self.qp_num() {
            wc.qp_num = num.get();
        }
        if status != WcStatus::SUCCESS {
            wc.vendor_err = self.vendor_err();
            if status == WcStatus::TM_RNDV_INCOMPLETE {
                // They say whether the device is done with the buffer.
                wc.wc_flags = self.flags();
            }
            return wc;
        }
        wc.opcode = ffi::ibv_wc_opcode(self.opcode().0);
        wc.wc_flags = self.flags();
        // Each of these the queue was made with: they are standard.
        wc.byte_len = self
            .byte_len()
            .map_or(0, |len| u32::try_from(len).unwrap_or(0));
        wc.src_qp = self.src_qp().map_or(0, QpNum::get);
        wc.slid = self
            .slid()
            .map_or(0, |slid| u16::try_from(slid).unwrap_or(u16::MAX));
        wc.sl = self.sl().unwrap_or(0);
        wc.dlid_path_bits = self.dlid_path_bits().unwrap_or(0);
        let with = ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 | ffi::ibv_wc_flags::IBV_WC_WITH_INV.0;
        if wc.wc_flags & with != 0 && self.fields.contains(WcFields::IMM) {
            // SAFETY: the queue is on a completion (invariant), and was made with the field. The
            // key that a peer has invalidated stands in the same place.
            wc.__bindgen_anon_1.imm_data = unsafe { ffi::ibv_wc_read_imm_data(self.cq.as_ptr()) };
        }
        wc
    }
}

impl fmt::Debug for ExtendedCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedCompletion")
            .field("qp_id", &self.qp_id())
            .field("receive", &self.is_receive())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
