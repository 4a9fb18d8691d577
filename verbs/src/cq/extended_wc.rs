//! Completions of extended queues, read field by field.

use std::{fmt, io, ptr::NonNull};

use ibverbs_sys as ffi;

use super::{
    completion::WorkCompletion,
    extended::WcFields,
    status::{WcError, WcOpcode, WcStatus},
};
use crate::{
    addr::Gid,
    bounded::QpNum,
    error::{Error, Result},
    wr_id::{QpId, WrId},
};

/// A completion of an [`ExtendedCq`](crate::cq::ExtendedCq), before its queue pair has taken it.
///
/// Reading a field is an error if the queue was made [without](crate::cq::ExtendedCqBuilder::with)
/// the field; or if the request failed, and the device sets the field for successful requests only.
pub struct ExtendedCompletion<'p> {
    entry: &'p Entry,
    fields: WcFields,
}

/// A copied completion: with the queue's fields. Others are zero, and those undefined for a failed request are of an earlier
/// completion.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// The completion in the form accepted by queue pairs.
    plain: ffi::ibv_wc,
    slid: u32,
    completion_ts: u64,
    completion_wallclock_ns: u64,
    cvlan: u16,
    flow_tag: u32,
    tag: TagMatch,
    source: Option<Gid>,
}

/// `ibv_wc_tm_info`—The result of tag matching.
#[doc(alias = "ibv_wc_tm_info")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMatch {
    /// The tag of the message.
    pub tag: u64,
    /// The sender's private data.
    pub private: u32,
}

/// Declares methods for an optional field of the queue.
macro_rules! fields {
    ($($(#[$alias:meta])* $doc:literal $name:ident -> $ty:ty = $field:ident, $call:ident, |$entry:ident| $value:expr;)*) => {$(
        $(#[$alias])*
        #[doc = concat!("`", stringify!($call), "`—", $doc)]
        ///
        /// # Errors
        #[doc = concat!("- `Unsupported`: the queue was made without [`", stringify!($field), "`](WcFields::", stringify!($field), ").")]
        /// - `InvalidInput`: the request failed.
        pub fn $name(&self) -> Result<$ty> {
            self.need_defined(stringify!($call), WcFields::$field)?;
            let $entry = self.entry;
            Ok($value)
        }
    )*};
}

impl Entry {
    pub(super) fn empty() -> Self {
        Self {
            plain: ffi::ibv_wc::zeroed(),
            slid: 0,
            completion_ts: 0,
            completion_wallclock_ns: 0,
            cvlan: 0,
            flow_tag: 0,
            tag: TagMatch { tag: 0, private: 0 },
            source: None,
        }
    }

    /// Reads the queue's current completion, and of it the queue's fields. For a failed request, most fields are
    /// undefined, and stay those of an earlier completion.
    ///
    /// # Safety
    /// - `cq` is an extended queue, made with these fields, and its poll is positioned on a completion.
    #[inline]
    pub(super) unsafe fn read(&mut self, cq: NonNull<ffi::ibv_cq_ex>, fields: WcFields) {
        let cq = cq.as_ptr();
        let wc = &mut self.plain;
        // SAFETY: the queue is on a completion, whose identifier is in this field.
        wc.wr_id = unsafe { (*cq).wr_id };
        // SAFETY: as above, for the status.
        wc.status = unsafe { (*cq).status };
        if fields.contains(WcFields::QP_NUM) {
            // SAFETY: the queue was made with the field.
            wc.qp_num = unsafe { ffi::ibv_wc_read_qp_num(cq) };
        }
        if wc.status == ffi::ibv_wc_status::IBV_WC_SUCCESS {
            wc.vendor_err = 0;
            // SAFETY: the caller's promise; the request has succeeded.
            unsafe { self.read_success(cq, fields) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.read_failure(cq) };
        }
        if !(fields - WcFields::STANDARD).is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.read_more(cq, fields) };
        }
    }

    /// Reads the sender of a received message, by a vendor's call.
    ///
    /// # Safety
    /// - As for [`read`](Self::read), which has been called. The queue was made with `source`.
    pub(super) unsafe fn read_source(
        &mut self,
        cq: NonNull<ffi::ibv_cq_ex>,
        source: unsafe fn(*mut ffi::ibv_cq_ex) -> Option<Gid>,
    ) {
        let is_message = WrId(self.plain.wr_id).is_receive()
            && self.plain.status == ffi::ibv_wc_status::IBV_WC_SUCCESS;
        self.source = match is_message {
            // SAFETY: the queue is on a receive that has succeeded.
            true => unsafe { source(cq.as_ptr()) },
            false => None,
        };
    }

    /// Reads the fields of a failed request.
    ///
    /// # Safety
    /// - As for [`read`](Self::read).
    #[cold]
    unsafe fn read_failure(&mut self, cq: *mut ffi::ibv_cq_ex) {
        let wc = &mut self.plain;
        // SAFETY: every queue has this field.
        wc.vendor_err = unsafe { ffi::ibv_wc_read_vendor_err(cq) };
        wc.wc_flags = 0;
        if wc.status == ffi::ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE {
            // Among the flags is the end of the device's use of the buffer.
            // SAFETY: every queue has this field.
            wc.wc_flags = unsafe { ffi::ibv_wc_read_wc_flags(cq) };
        }
    }

    /// Reads the fields of a plain completion.
    ///
    /// # Safety
    /// - As for [`read`](Self::read), for a successful request.
    #[inline]
    unsafe fn read_success(&mut self, cq: *mut ffi::ibv_cq_ex, fields: WcFields) {
        let wc = &mut self.plain;
        // SAFETY: every queue has this field, here and below.
        wc.opcode = unsafe { ffi::ibv_wc_read_opcode(cq) };
        // SAFETY: see above.
        wc.wc_flags = unsafe { ffi::ibv_wc_read_wc_flags(cq) };
        if fields.contains(WcFields::BYTE_LEN) {
            // SAFETY: the queue was made with the field, here and below.
            wc.byte_len = unsafe { ffi::ibv_wc_read_byte_len(cq) };
        }
        let with = ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 | ffi::ibv_wc_flags::IBV_WC_WITH_INV.0;
        if wc.wc_flags & with != 0 && fields.contains(WcFields::IMM) {
            // The key invalidated by a peer is in the same field.
            // SAFETY: see above.
            wc.__bindgen_anon_1.imm_data = unsafe { ffi::ibv_wc_read_imm_data(cq) };
        }
        if fields.intersects(WcFields::OF_DATAGRAM) {
            // SAFETY: the caller's promise.
            unsafe { self.read_sender(cq, fields) };
        }
    }

    /// Reads the fields of a datagram.
    ///
    /// # Safety
    /// - As for [`read_success`](Self::read_success).
    unsafe fn read_sender(&mut self, cq: *mut ffi::ibv_cq_ex, fields: WcFields) {
        let wc = &mut self.plain;
        if fields.contains(WcFields::SRC_QP) {
            // SAFETY: the queue was made with the field, here and below.
            wc.src_qp = unsafe { ffi::ibv_wc_read_src_qp(cq) };
        }
        if fields.contains(WcFields::SLID) {
            // SAFETY: see above.
            self.slid = unsafe { ffi::ibv_wc_read_slid(cq) };
            wc.slid = u16::try_from(self.slid).unwrap_or(u16::MAX);
        }
        if fields.contains(WcFields::SL) {
            // SAFETY: see above.
            wc.sl = unsafe { ffi::ibv_wc_read_sl(cq) };
        }
        if fields.contains(WcFields::DLID_PATH_BITS) {
            // SAFETY: see above.
            wc.dlid_path_bits = unsafe { ffi::ibv_wc_read_dlid_path_bits(cq) };
        }
    }

    /// Whether the device sets more fields than those of a failed request.
    fn is_defined(&self) -> bool {
        let defined = [WcStatus::SUCCESS, WcStatus::TM_RNDV_INCOMPLETE];
        defined.contains(&WcStatus(self.plain.status.0))
    }

    /// Reads the fields specific to extended completions.
    ///
    /// # Safety
    /// - As for [`read`](Self::read).
    unsafe fn read_more(&mut self, cq: *mut ffi::ibv_cq_ex, fields: WcFields) {
        if !self.is_defined() {
            return;
        }
        if fields.contains(WcFields::COMPLETION_TIMESTAMP) {
            // SAFETY: the queue was made with the field, here and below.
            self.completion_ts = unsafe { ffi::ibv_wc_read_completion_ts(cq) };
        }
        if fields.contains(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK) {
            // SAFETY: see above.
            self.completion_wallclock_ns = unsafe { ffi::ibv_wc_read_completion_wallclock_ns(cq) };
        }
        if fields.contains(WcFields::CVLAN) {
            // SAFETY: see above.
            self.cvlan = unsafe { ffi::ibv_wc_read_cvlan(cq) };
        }
        if fields.contains(WcFields::FLOW_TAG) {
            // SAFETY: see above.
            self.flow_tag = unsafe { ffi::ibv_wc_read_flow_tag(cq) };
        }
        if fields.contains(WcFields::TM_INFO) {
            let mut info = ffi::ibv_wc_tm_info::zeroed();
            // SAFETY: see above; `info` is a valid place.
            unsafe { ffi::ibv_wc_read_tm_info(cq, &raw mut info) };
            self.tag = TagMatch {
                tag: info.tag,
                private: info.priv_,
            };
        }
    }
}

impl<'p> ExtendedCompletion<'p> {
    #[inline]
    pub(super) fn new(entry: &'p Entry, fields: WcFields) -> Self {
        Self { entry, fields }
    }

    fn need(&self, call: &'static str, field: WcFields) -> Result<()> {
        if self.fields.contains(field) {
            return Ok(());
        }
        let reason = format!("the queue was made without {field:?}");
        Err(Error::refused(call, io::ErrorKind::Unsupported, reason))
    }

    /// As [`need`](Self::need), of a field undefined if the request failed.
    fn need_defined(&self, call: &'static str, field: WcFields) -> Result<()> {
        self.need(call, field)?;
        if self.entry.is_defined() {
            return Ok(());
        }
        let reason = format!(
            "the request failed ({:?}), and has no {field:?}",
            self.status()
        );
        Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }

    #[inline]
    fn wr_id(&self) -> WrId {
        WrId(self.entry.plain.wr_id)
    }

    /// The queue pair of the completed work, as named by [`QueuePair::id`](crate::QueuePair::id).
    #[inline]
    pub fn qp_id(&self) -> QpId {
        self.wr_id().qp()
    }

    /// Whether the completed request is a receive, rather than a request of a send queue.
    #[inline]
    pub fn is_receive(&self) -> bool {
        self.wr_id().is_receive()
    }

    /// The status of the request.
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.entry.plain.status.0)
    }

    /// Whether the request succeeded.
    ///
    /// # Errors
    /// The status as a result; the error explains the status.
    pub fn ok(&self) -> Result<(), WcError> {
        match self.status() {
            WcStatus::SUCCESS => Ok(()),
            status => Err(WcError::new(status, self.vendor_err())),
        }
    }

    /// The completed operation; `None` if the request failed.
    #[doc(alias = "ibv_wc_read_opcode")]
    pub fn opcode(&self) -> Option<WcOpcode> {
        (self.status() == WcStatus::SUCCESS).then_some(WcOpcode(self.entry.plain.opcode.0))
    }

    /// The device maker's own code for a failure; 0 for a request that succeeded.
    #[doc(alias = "ibv_wc_read_vendor_err")]
    pub fn vendor_err(&self) -> u32 {
        self.entry.plain.vendor_err
    }

    #[doc(alias = "ibv_wc_read_wc_flags")]
    fn flags(&self) -> u32 {
        self.entry.plain.wc_flags
    }

    fields! {
        #[doc(alias = "ibv_wc_read_byte_len")]
        "The number of received or transferred bytes."
        byte_len -> usize = BYTE_LEN, ibv_wc_read_byte_len, |entry| entry.plain.byte_len as usize;
        #[doc(alias = "ibv_wc_read_src_qp")]
        "The number of a datagram's sending queue pair."
        src_qp -> QpNum = SRC_QP, ibv_wc_read_src_qp, |entry| QpNum::from_low_bits(entry.plain.src_qp);
        #[doc(alias = "ibv_wc_read_slid")]
        "The local identifier of a datagram's sender."
        slid -> u32 = SLID, ibv_wc_read_slid, |entry| entry.slid;
        #[doc(alias = "ibv_wc_read_sl")]
        "The service level of a datagram."
        sl -> u8 = SL, ibv_wc_read_sl, |entry| entry.plain.sl;
        #[doc(alias = "ibv_wc_read_dlid_path_bits")]
        "The path bits of a datagram's destination LID."
        dlid_path_bits -> u8 = DLID_PATH_BITS, ibv_wc_read_dlid_path_bits, |entry| entry.plain.dlid_path_bits;
        #[doc(alias = "ibv_wc_read_completion_ts")]
        "When the request completed, in ticks of the [device's clock](crate::Context::query_clock)."
        completion_ts -> u64 = COMPLETION_TIMESTAMP, ibv_wc_read_completion_ts, |entry| entry.completion_ts;
        #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
        "When the request completed, in nanoseconds since 1970."
        completion_wallclock_ns -> u64 = COMPLETION_TIMESTAMP_WALLCLOCK, ibv_wc_read_completion_wallclock_ns, |entry| entry.completion_wallclock_ns;
        #[doc(alias = "ibv_wc_read_cvlan")]
        "The VLAN tag of a packet."
        cvlan -> u16 = CVLAN, ibv_wc_read_cvlan, |entry| entry.cvlan;
        #[doc(alias = "ibv_wc_read_flow_tag")]
        "The tag of the flow matched by a packet."
        flow_tag -> u32 = FLOW_TAG, ibv_wc_read_flow_tag, |entry| entry.flow_tag;
    }

    /// `ibv_wc_read_qp_num`—The number of the local queue pair.
    ///
    /// # Errors
    /// - `Unsupported`: the queue was made without [`QP_NUM`](WcFields::QP_NUM).
    #[doc(alias = "ibv_wc_read_qp_num")]
    pub fn qp_num(&self) -> Result<QpNum> {
        self.need("ibv_wc_read_qp_num", WcFields::QP_NUM)?;
        Ok(QpNum::from_low_bits(self.entry.plain.qp_num))
    }

    /// The immediate data of the message, as the number given by the sender.
    ///
    /// # Errors
    /// - `Unsupported`: the queue was made without [`IMM`](WcFields::IMM).
    #[doc(alias = "ibv_wc_read_imm_data")]
    pub fn imm_data(&self) -> Result<Option<u32>> {
        self.need("ibv_wc_read_imm_data", WcFields::IMM)?;
        if !self.is_receive() || self.flags() & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 == 0 {
            return Ok(None);
        }
        Ok(Some(self.entry.plain.imm_data().to_ne()))
    }

    /// The result of tag matching.
    ///
    /// # Errors
    /// - `Unsupported`: the queue was made without [`TM_INFO`](WcFields::TM_INFO).
    /// - `InvalidInput`: the request failed.
    #[doc(alias = "ibv_wc_read_tm_info")]
    pub fn tm_info(&self) -> Result<TagMatch> {
        self.need_defined("ibv_wc_read_tm_info", WcFields::TM_INFO)?;
        Ok(self.entry.tag)
    }

    /// The sender of a received message, on a queue with a [vendor's field](crate::cq::ExtendedCqBuilder::create_with) for it;
    /// `None` on others, and where the device does not report the sender.
    pub fn source(&self) -> Option<Gid> {
        self.entry.source
    }

    /// The completion in the form accepted by queue pairs and shared receive queues.
    #[inline]
    pub fn into_work_completion(self) -> WorkCompletion<'p> {
        WorkCompletion::new(&self.entry.plain)
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
