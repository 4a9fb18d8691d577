//! Outstanding requests: those whose completion, or a later one of their queue, has not been polled.

use std::collections::VecDeque;

use super::{CallSite, memory};
use crate::engine::{HostRange, Path, Payload, QpKind, RecvRequest, SendOp, SendRequest, Sge};

/// Maximum number of bytes of an element that are compared: the first ones.
const MAX_COMPARED: usize = 1 << 16;

/// Access of the device to the memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Reads,
    Writes,
}

/// Memory of a request, with the bytes that the device and the program have agreed on.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) sge: Sge,
    /// The first bytes at the post, changed by the device alone. `None` without a comparison.
    snapshot: Option<Vec<u8>>,
}

impl Element {
    /// Creates an element; `compares` requests a snapshot.
    fn new(sge: Sge, compares: bool) -> Self {
        let len = (sge.len as usize).min(MAX_COMPARED);
        let mut snapshot = None;
        if compares && len > 0 {
            let mut bytes = vec![0; len];
            snapshot = memory::read(sge.addr, &mut bytes).then_some(bytes);
        }
        Self { sge, snapshot }
    }

    /// The part of a range in the compared bytes: its offset in the snapshot and its length.
    fn overlap(&self, range: HostRange) -> Option<(usize, usize)> {
        let snapshot = self.snapshot.as_ref()?;
        let end = self.sge.addr.saturating_add(snapshot.len() as u64);
        let start = range.addr.max(self.sge.addr);
        let len = end
            .min(range.addr.saturating_add(range.len as u64))
            .checked_sub(start)
            .filter(|len| *len > 0)?;
        let offset = usize::try_from(start - self.sge.addr).ok()?;
        Some((offset, usize::try_from(len).ok()?))
    }

    /// The first byte of a part of the snapshot that differs from memory: its offset, old and new value.
    fn changed(&self, offset: usize, len: usize) -> Option<(usize, u8, u8)> {
        let old = self.snapshot.as_ref()?.get(offset..offset + len)?;
        let (at, new) = memory::first_difference(self.sge.addr + offset as u64, old)?;
        Some((offset + at, *old.get(at)?, new))
    }

    /// The first byte that differs from the snapshot.
    fn changed_anywhere(&self) -> Option<(usize, u8, u8)> {
        self.changed(0, self.snapshot.as_ref()?.len())
    }

    /// The first byte of a range, about to be written by the device, that the program has changed.
    pub(super) fn changed_in(&self, range: HostRange) -> Option<(usize, u8, u8)> {
        let (offset, len) = self.overlap(range)?;
        self.changed(offset, len)
    }

    /// Takes over bytes that the device has written.
    pub(super) fn update(&mut self, range: HostRange) {
        let Some((offset, len)) = self.overlap(range) else {
            return;
        };
        let snapshot = self.snapshot.as_mut();
        if let Some(old) = snapshot.and_then(|old| old.get_mut(offset..offset + len)) {
            // Memory that is not mapped is reported by the access.
            let _is_mapped: bool = memory::read(self.sge.addr + offset as u64, old);
        }
    }

    /// Whether a range overlaps the element.
    pub(super) fn overlaps(&self, addr: u64, len: u64) -> bool {
        self.sge.addr < addr.saturating_add(len)
            && addr < self.sge.addr.saturating_add(self.sge.len.into())
    }
}

/// An outstanding request.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(super) wr_id: u64,
    pub(super) name: &'static str,
    pub(super) is_signaled: bool,
    pub(super) access: Direction,
    pub(super) is_fenced: bool,
    pub(super) elements: Vec<Element>,
    /// Memory of the peer: its address, key and length.
    pub(super) remote: Option<(u64, u32, u64)>,
    /// Path of a datagram.
    pub(super) path: Option<Path>,
    pub(super) site: CallSite,
}

/// Name of an operation, with its article.
fn name(op: &SendOp) -> &'static str {
    match op {
        SendOp::Send { .. } => "a send",
        SendOp::Write { .. } => "an RDMA write",
        SendOp::Read(_) => "an RDMA read",
        SendOp::CompareSwap { .. } => "a compare and swap",
        SendOp::FetchAdd { .. } => "a fetch and add",
        SendOp::Flush { .. } => "a flush",
        SendOp::AtomicWrite { .. } => "an atomic write",
        SendOp::LocalInvalidate(_) => "a local invalidation",
        SendOp::Bind { .. } => "a binding of a window",
    }
}

impl Outstanding {
    /// Describes a send request before the post; `compares` decides for each local key whether bytes are compared.
    pub(super) fn of_send(
        request: &SendRequest,
        signals_all: bool,
        compares: impl Fn(&Sge) -> bool,
        site: CallSite,
    ) -> Self {
        let sges: &[Sge] = match &request.payload {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        };
        let len = sges.iter().map(|sge| u64::from(sge.len)).sum();
        let (access, remote) = match request.op {
            SendOp::Read(remote)
            | SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. } => (Direction::Writes, Some((remote, len))),
            SendOp::Write { remote, .. } => (Direction::Reads, Some((remote, len))),
            _ => (Direction::Reads, None),
        };
        Self {
            wr_id: request.wr_id,
            name: name(&request.op),
            is_signaled: request.signaled || signals_all,
            access,
            is_fenced: request.fence,
            elements: sges
                .iter()
                .map(|sge| Element::new(*sge, compares(sge)))
                .collect(),
            remote: remote.map(|(remote, len)| (remote.addr, remote.rkey, len)),
            path: request.destination.map(|destination| destination.path),
            site,
        }
    }

    /// Describes a receive.
    pub(super) fn of_recv(
        request: &RecvRequest,
        compares: impl Fn(&Sge) -> bool,
        site: CallSite,
    ) -> Self {
        let sges = request.sges.iter();
        Self {
            wr_id: request.wr_id,
            name: "a receive",
            is_signaled: true,
            access: Direction::Writes,
            is_fenced: false,
            elements: sges.map(|sge| Element::new(*sge, compares(sge))).collect(),
            remote: None,
            path: None,
            site,
        }
    }

    /// The first changed byte of the memory of a send or a write: its address, old and new value.
    pub(super) fn changed_source(&self) -> Option<(u64, u8, u8)> {
        if self.access != Direction::Reads {
            return None;
        }
        self.elements.iter().find_map(|element| {
            let (at, old, new) = element.changed_anywhere()?;
            Some((element.sge.addr + at as u64, old, new))
        })
    }

    /// Stops comparing: the request may have ended without a completion.
    pub(super) fn forget_bytes(&mut self) {
        for element in &mut self.elements {
            element.snapshot = None;
        }
    }
}

/// Flags of a request that its opcode or transport does not have; the text names the flag and where it is valid.
pub(super) fn misplaced_flag(request: &SendRequest, kind: QpKind) -> Option<&'static str> {
    let is_message = matches!(
        request.op,
        SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. }
    );
    let is_sent = matches!(request.op, SendOp::Send { .. } | SendOp::Write { .. });
    if request.solicited && !is_message {
        return Some(
            "IBV_SEND_SOLICITED, which is valid for sends and RDMA writes with immediate data",
        );
    }
    if request.fence && matches!(kind, QpKind::Uc | QpKind::Ud | QpKind::Srd) {
        return Some("IBV_SEND_FENCE, which is valid for reliable connections");
    }
    if matches!(request.payload, Payload::Inline(_)) && !is_sent {
        return Some("IBV_SEND_INLINE, which is valid for sends and RDMA writes");
    }
    None
}

/// The requests of a queue, the oldest first.
pub(super) type Queue = VecDeque<Outstanding>;
