//! Fields of completions that are undefined by `ibv_poll_cq(3)`, with the values of an adversary.

use ibverbs_sys::{self as ffi, ibv_wc_flags, ibv_wc_opcode};

use super::cq::wc;
use crate::{
    adversary::{Adversary, Rule},
    engine::{Completion, CompletionOp, QpKind, Status},
};

/// Opcodes in the place of the opcode of a failed request: all are legal values.
const OPCODES: [ibv_wc_opcode; 6] = [
    ibv_wc_opcode::IBV_WC_SEND,
    ibv_wc_opcode::IBV_WC_RDMA_WRITE,
    ibv_wc_opcode::IBV_WC_RDMA_READ,
    ibv_wc_opcode::IBV_WC_FETCH_ADD,
    ibv_wc_opcode::IBV_WC_RECV,
    ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
];

/// Defined fields of a completion.
#[derive(Clone, Copy)]
struct Defined {
    /// Opcode and flags: successful completions.
    opcode: bool,
    byte_len: bool,
    /// Immediate data or an invalidated key.
    imm: bool,
    /// Sender, and fields of its path: datagrams.
    source: bool,
}

impl Defined {
    fn of(completion: &Completion, kind: Option<QpKind>) -> Self {
        let is_success = completion.status == Status::Success;
        let has_len = !matches!(completion.op, CompletionOp::Send | CompletionOp::Write);
        let is_datagram = matches!(kind, Some(QpKind::Ud | QpKind::Srd)) && completion.is_receive();
        Self {
            opcode: is_success,
            byte_len: is_success && has_len,
            imm: is_success && (completion.imm.is_some() || completion.invalidated.is_some()),
            source: is_success && is_datagram,
        }
    }
}

/// Overwrites the undefined fields with zeros.
fn clear(wc: &mut ffi::ibv_wc, defined: Defined) {
    if !defined.opcode {
        wc.opcode = ibv_wc_opcode::IBV_WC_SEND;
        wc.wc_flags = 0;
    }
    if !defined.byte_len {
        wc.byte_len = 0;
    }
    if !defined.source {
        wc.src_qp = 0;
    }
    if !defined.imm {
        wc.__bindgen_anon_1.invalidated_rkey = 0;
    }
}

/// Overwrites the undefined fields with values that another completion has.
fn mislead(wc: &mut ffi::ibv_wc, defined: Defined, random: u64) {
    let [a, b, c, d, e, f, g, h] = random.to_le_bytes();
    if !defined.opcode {
        wc.opcode = OPCODES[usize::from(a) % OPCODES.len()];
        let flags = [
            0,
            ibv_wc_flags::IBV_WC_WITH_IMM.0,
            ibv_wc_flags::IBV_WC_GRH.0,
        ];
        wc.wc_flags = flags[usize::from(b) % flags.len()];
    } else {
        // The vendor's code is defined for failures alone.
        wc.vendor_err = a.into();
    }
    if !defined.byte_len {
        wc.byte_len = u32::from_le_bytes([c, d, 0, 0]);
    }
    if !defined.source {
        wc.src_qp = u32::from_le_bytes([e, f, g, 0]);
        wc.slid = u16::from_le_bytes([g, h]);
        wc.sl = g & 15;
        wc.dlid_path_bits = h;
    }
    if !defined.imm {
        wc.__bindgen_anon_1.invalidated_rkey = u32::from_le_bytes([e, f, g, h]);
    }
    // Defined for queue pair 1 only.
    wc.pkey_index = u16::from_le_bytes([b, c]);
}

/// A completion with the adversary's values in the undefined fields; `None` where these fields keep the caller's memory.
pub(super) fn undefined(
    completion: &Completion,
    kind: Option<QpKind>,
    adversary: &Adversary,
) -> Option<ffi::ibv_wc> {
    let defined = Defined::of(completion, kind);
    let mut found = wc(completion);
    match adversary.choose(Rule::StaleFields, 4) {
        0 => {}
        1 => clear(&mut found, defined),
        2 => return None,
        _ => mislead(&mut found, defined, adversary.number(Rule::StaleFields)),
    }
    Some(found)
}

/// Writes the defined fields of a completion alone. The others keep the caller's values, which may be uninitialized.
///
/// # Safety
/// - `slot` is writable.
pub(super) unsafe fn write_defined(
    slot: *mut ffi::ibv_wc,
    completion: &Completion,
    kind: Option<QpKind>,
) {
    let (found, defined) = (wc(completion), Defined::of(completion, kind));
    macro_rules! write {
        ($($field:ident)*) => {$(
            // SAFETY: a field of the caller's memory.
            unsafe { (&raw mut (*slot).$field).write(found.$field) };
        )*};
    }
    write!(wr_id status qp_num);
    if defined.opcode {
        write!(opcode wc_flags);
    } else {
        write!(vendor_err);
    }
    if defined.byte_len {
        write!(byte_len);
    }
    if defined.imm {
        write!(__bindgen_anon_1);
    }
    if defined.source {
        write!(src_qp slid sl dlid_path_bits);
    }
}
