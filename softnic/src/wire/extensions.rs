//! Extension headers after the base transport header, by opcode.

use super::{
    aeth::Aeth,
    atomic::AtomicEth,
    datagram::Deth,
    dc::Dceth,
    error::WireError,
    flush::Feth,
    opcode::{Immediate, Opcode, Operation, Position, Transport},
    reader::{Reader, be24},
    reth::Reth,
};

/// Extension headers of a frame. The opcode determines the set of headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The sender's queue pair and the receiver's Q_Key.
    pub deth: Option<Deth>,
    /// Number of the shared receive queue of an extended reliable connection, 24 bits (XRCETH).
    pub xrc_srq: Option<u32>,
    /// Connection of a dynamically connected request, and the target's key.
    pub dc: Option<Dceth>,
    /// Kind and extent of a flush.
    pub feth: Option<Feth>,
    /// The responder's memory.
    pub reth: Option<Reth>,
    /// The responder's memory and the operands of an atomic operation.
    pub atomic: Option<AtomicEth>,
    /// An acknowledgement.
    pub aeth: Option<Aeth>,
    /// Original number returned by an atomic operation (`AtomicAckETH`).
    pub atomic_ack: Option<u64>,
    /// Immediate data (`ImmDt`), as a number in network order.
    pub imm: Option<u32>,
    /// `RKey` to invalidate (IETH).
    pub invalidate: Option<u32>,
}

/// Set of extension headers of an opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Presence {
    deth: bool,
    xrc_srq: bool,
    dc: bool,
    feth: bool,
    reth: bool,
    atomic: bool,
    aeth: bool,
    atomic_ack: bool,
    imm: bool,
    invalidate: bool,
}

impl Presence {
    fn of(transport: Transport, operation: Operation) -> Self {
        let mut has = Self {
            deth: matches!(transport, Transport::Ud | Transport::Srd),
            xrc_srq: transport == Transport::Xrc,
            dc: transport == Transport::Dc,
            ..Self::default()
        };
        match operation {
            Operation::Send(_, immediate) => has.immediate(immediate),
            Operation::Write(position, immediate) => {
                has.reth = position.begins();
                has.immediate(immediate);
            }
            Operation::ReadRequest | Operation::AtomicWrite => has.reth = true,
            Operation::CompareSwap | Operation::FetchAdd => has.atomic = true,
            Operation::Flush => {
                has.feth = true;
                has.reth = true;
            }
            Operation::ReadResponse(position) => {
                has.aeth = position != Position::Middle;
                has.no_request();
            }
            Operation::Acknowledge => {
                has.aeth = true;
                has.no_request();
            }
            Operation::AtomicAcknowledge => {
                has.aeth = true;
                has.atomic_ack = true;
                has.no_request();
            }
        }
        has
    }

    /// Removes the headers of requests only.
    fn no_request(&mut self) {
        self.xrc_srq = false;
        self.dc = false;
    }

    fn immediate(&mut self, immediate: Immediate) {
        self.imm = immediate == Immediate::Data;
        self.invalidate = immediate == Immediate::Invalidate;
    }
}

impl Extensions {
    /// Decodes the headers of an opcode.
    pub(super) fn decode(opcode: Opcode, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (transport, operation) = opcode.parse().ok_or(WireError::Opcode(opcode.0))?;
        let has = Presence::of(transport, operation);
        let mut headers = Self::default();
        if has.deth {
            headers.deth = Some(Deth::decode(reader)?);
        }
        if has.xrc_srq {
            reader.header("XRC extended transport header");
            let _reserved = reader.u8()?;
            headers.xrc_srq = Some(reader.u24()?);
        }
        if has.dc {
            headers.dc = Some(Dceth::decode(reader)?);
        }
        if has.feth {
            headers.feth = Some(Feth::decode(reader)?);
        }
        if has.reth {
            headers.reth = Some(Reth::decode(reader)?);
        }
        if has.atomic {
            headers.atomic = Some(AtomicEth::decode(reader)?);
        }
        if has.aeth {
            headers.aeth = Some(Aeth::decode(reader)?);
        }
        if has.atomic_ack {
            reader.header("atomic acknowledgement");
            headers.atomic_ack = Some(reader.u64()?);
        }
        if has.imm {
            reader.header("immediate data");
            headers.imm = Some(reader.u32()?);
        }
        if has.invalidate {
            reader.header("invalidate extended transport header");
            headers.invalidate = Some(reader.u32()?);
        }
        Ok(headers)
    }

    /// Appends the headers. Their set must match the opcode.
    pub(super) fn encode(&self, opcode: Opcode, to: &mut Vec<u8>) -> Result<(), WireError> {
        let (transport, operation) = opcode.parse().ok_or(WireError::Opcode(opcode.0))?;
        if self.presence() != Presence::of(transport, operation) {
            return Err(WireError::Headers(opcode.0));
        }
        if let Some(deth) = self.deth {
            deth.encode(to);
        }
        if let Some(srq) = self.xrc_srq {
            to.push(0);
            to.extend(be24(srq));
        }
        if let Some(dc) = self.dc {
            dc.encode(to);
        }
        if let Some(feth) = self.feth {
            feth.encode(to);
        }
        if let Some(reth) = self.reth {
            reth.encode(to);
        }
        if let Some(atomic) = self.atomic {
            atomic.encode(to);
        }
        if let Some(aeth) = self.aeth {
            aeth.encode(to);
        }
        if let Some(original) = self.atomic_ack {
            to.extend(original.to_be_bytes());
        }
        to.extend(self.imm.into_iter().flat_map(u32::to_be_bytes));
        to.extend(self.invalidate.into_iter().flat_map(u32::to_be_bytes));
        Ok(())
    }

    /// Length of the headers in bytes.
    pub(super) fn encoded_len(&self) -> usize {
        let lengths = [
            (self.deth.is_some(), 8),
            (self.xrc_srq.is_some(), 4),
            (self.dc.is_some(), 20),
            (self.feth.is_some(), 4),
            (self.reth.is_some(), 16),
            (self.atomic.is_some(), 28),
            (self.aeth.is_some(), 4),
            (self.atomic_ack.is_some(), 8),
            (self.imm.is_some(), 4),
            (self.invalidate.is_some(), 4),
        ];
        let present = lengths.iter().filter(|(is_present, _)| *is_present);
        present.map(|(_, len)| len).sum()
    }

    fn presence(&self) -> Presence {
        Presence {
            deth: self.deth.is_some(),
            xrc_srq: self.xrc_srq.is_some(),
            dc: self.dc.is_some(),
            feth: self.feth.is_some(),
            reth: self.reth.is_some(),
            atomic: self.atomic.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack: self.atomic_ack.is_some(),
            imm: self.imm.is_some(),
            invalidate: self.invalidate.is_some(),
        }
    }
}
