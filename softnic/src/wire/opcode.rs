//! Opcodes of the base transport header: the transport in the upper three bits, the operation in the lower five.

use std::fmt;

/// An opcode of the base transport header, whether known or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(
    /// The byte on the wire.
    pub u8,
);

/// A transport service, from the upper bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Reliable datagrams without order: softnic's own, by opcodes of manufacturers.
    Srd,
    /// Dynamically connected: softnic's own, by opcodes of manufacturers.
    Dc,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither the first nor the last packet.
    Middle,
    /// Last of several packets.
    Last,
    /// The only packet.
    Only,
}

impl Position {
    /// Whether a message begins with the packet.
    pub fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with the packet.
    pub fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// Position of a packet, by whether a message begins and ends with the packet.
    pub fn of(begins: bool, ends: bool) -> Self {
        match (begins, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// The optional 32 bits in the last packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Immediate {
    /// None.
    None,
    /// Immediate data (`ImmDt`).
    Data,
    /// An `RKey` to invalidate (IETH).
    Invalidate,
}

/// The operation of a packet, from the lower bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Part of a message to a receive queue.
    Send(Position, Immediate),
    /// Part of an RDMA write.
    Write(Position, Immediate),
    /// An RDMA read request.
    ReadRequest,
    /// Part of the answer to an RDMA read.
    ReadResponse(Position),
    /// An acknowledgement, positive or negative.
    Acknowledge,
    /// The answer to an atomic operation.
    AtomicAcknowledge,
    /// An atomic comparison and exchange.
    CompareSwap,
    /// An atomic addition.
    FetchAdd,
    /// A request to make earlier writes visible or persistent.
    Flush,
    /// An atomic write of 8 bytes.
    AtomicWrite,
}

/// Operations by the lower five bits of an opcode.
static OPERATIONS: [Option<Operation>; 32] = {
    use Immediate::{Data, Invalidate, None as Plain};
    use Operation::{
        Acknowledge, AtomicAcknowledge, AtomicWrite, CompareSwap, FetchAdd, Flush, ReadRequest,
        ReadResponse, Send, Write,
    };
    use Position::{First, Last, Middle, Only};
    let mut table = [None; 32];
    table[0x00] = Some(Send(First, Plain));
    table[0x01] = Some(Send(Middle, Plain));
    table[0x02] = Some(Send(Last, Plain));
    table[0x03] = Some(Send(Last, Data));
    table[0x04] = Some(Send(Only, Plain));
    table[0x05] = Some(Send(Only, Data));
    table[0x06] = Some(Write(First, Plain));
    table[0x07] = Some(Write(Middle, Plain));
    table[0x08] = Some(Write(Last, Plain));
    table[0x09] = Some(Write(Last, Data));
    table[0x0a] = Some(Write(Only, Plain));
    table[0x0b] = Some(Write(Only, Data));
    table[0x0c] = Some(ReadRequest);
    table[0x0d] = Some(ReadResponse(First));
    table[0x0e] = Some(ReadResponse(Middle));
    table[0x0f] = Some(ReadResponse(Last));
    table[0x10] = Some(ReadResponse(Only));
    table[0x11] = Some(Acknowledge);
    table[0x12] = Some(AtomicAcknowledge);
    table[0x13] = Some(CompareSwap);
    table[0x14] = Some(FetchAdd);
    table[0x16] = Some(Send(Last, Invalidate));
    table[0x17] = Some(Send(Only, Invalidate));
    table[0x1c] = Some(Flush);
    table[0x1d] = Some(AtomicWrite);
    table
};

impl Opcode {
    /// A message of one packet over a reliable connection.
    pub const RC_SEND_ONLY: Self = Self(0x04);
    /// An RDMA read request over a reliable connection.
    pub const RC_READ_REQUEST: Self = Self(0x0c);
    /// An acknowledgement over a reliable connection.
    pub const RC_ACKNOWLEDGE: Self = Self(0x11);
    /// The answer to an atomic operation over a reliable connection.
    pub const RC_ATOMIC_ACKNOWLEDGE: Self = Self(0x12);

    /// Opcode of an operation; `None` if the transport lacks the operation.
    pub fn new(transport: Transport, operation: Operation) -> Option<Self> {
        let low = (0..)
            .zip(&OPERATIONS)
            .find(|(_, listed)| **listed == Some(operation));
        let opcode = Self(transport.bits() | low?.0);
        opcode.parse().map(|_| opcode)
    }

    /// Transport and operation; `None` for an unknown opcode, or an operation not in the transport.
    pub fn parse(self) -> Option<(Transport, Operation)> {
        let operation = OPERATIONS[usize::from(self.0 & 0x1f)]?;
        let transport = match self.0 >> 5 {
            0b000 => Transport::Rc,
            0b001 => Transport::Uc,
            0b011 => Transport::Ud,
            0b101 => Transport::Xrc,
            0b110 => Transport::Srd,
            0b111 => Transport::Dc,
            _ => return None,
        };
        transport.has(operation).then_some((transport, operation))
    }
}

impl Transport {
    fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
            Self::Srd => 0xc0,
            Self::Dc => 0xe0,
        }
    }

    fn has(self, operation: Operation) -> bool {
        match (self, operation) {
            (Self::Rc | Self::Xrc, _) => true,
            (Self::Dc, operation) => {
                !matches!(operation, Operation::Flush | Operation::AtomicWrite)
            }
            (Self::Uc, Operation::Send(_, immediate) | Operation::Write(_, immediate)) => {
                immediate != Immediate::Invalidate
            }
            (Self::Ud, Operation::Send(Position::Only, immediate)) => {
                immediate != Immediate::Invalidate
            }
            (
                Self::Srd,
                Operation::Send(Position::Only, immediate)
                | Operation::Write(Position::Only, immediate),
            ) => immediate != Immediate::Invalidate,
            (Self::Srd, operation) => matches!(
                operation,
                Operation::ReadRequest
                    | Operation::ReadResponse(Position::Only)
                    | Operation::Acknowledge
            ),
            (Self::Uc | Self::Ud, _) => false,
        }
    }
}

/// The specification's name, such as `RC SEND Only`.
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((transport, operation)) = self.parse() else {
            return write!(f, "opcode {:#04x}", self.0);
        };
        let transport = match transport {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Xrc => "XRC",
            Transport::Srd => "SRD",
            Transport::Dc => "DC",
        };
        write!(f, "{transport} ")?;
        match operation {
            Operation::Send(position, immediate) => write!(f, "SEND {position:?}{immediate}"),
            Operation::Write(position, immediate) => {
                write!(f, "RDMA WRITE {position:?}{immediate}")
            }
            Operation::ReadRequest => f.write_str("RDMA READ Request"),
            Operation::ReadResponse(position) => write!(f, "RDMA READ Response {position:?}"),
            Operation::Acknowledge => f.write_str("Acknowledge"),
            Operation::AtomicAcknowledge => f.write_str("ATOMIC Acknowledge"),
            Operation::CompareSwap => f.write_str("CmpSwap"),
            Operation::FetchAdd => f.write_str("FetchAdd"),
            Operation::Flush => f.write_str("FLUSH"),
            Operation::AtomicWrite => f.write_str("ATOMIC WRITE"),
        }
    }
}

/// The end of an opcode's name.
impl fmt::Display for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Data => " with Immediate",
            Self::Invalidate => " with Invalidate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_display_the_names_of_the_specification() {
        let names = [
            (0x04, "RC SEND Only"),
            (0x11, "RC Acknowledge"),
            (0x17, "RC SEND Only with Invalidate"),
            (0x29, "UC RDMA WRITE Last with Immediate"),
            (0x64, "UD SEND Only"),
            (0xac, "XRC RDMA READ Request"),
            (0xf3, "DC CmpSwap"),
            (0x0e, "RC RDMA READ Response Middle"),
            (0x81, "opcode 0x81"),
        ];
        for (byte, name) in names {
            assert_eq!(Opcode(byte).to_string(), name);
        }
    }

    #[test]
    fn opcodes_survive_parsing() {
        let bytes = (0..=u8::MAX).filter_map(|byte| {
            let (transport, operation) = Opcode(byte).parse()?;
            assert_eq!(Opcode::new(transport, operation), Some(Opcode(byte)));
            Some(byte)
        });
        // 25 of reliable and extended connections each, 23 of dynamic ones, 12 of unreliable ones, 2 of datagrams, 7 of
        // reliable ones.
        assert_eq!(bytes.count(), 25 + 25 + 23 + 12 + 2 + 7);
    }

    #[test]
    fn operations_that_a_transport_lacks_have_no_opcode() {
        assert_eq!(Opcode::new(Transport::Uc, Operation::ReadRequest), None);
        assert_eq!(Opcode::new(Transport::Ud, Operation::Acknowledge), None);
        assert_eq!(Opcode(0x81).parse(), None, "congestion notification");
        assert_eq!(Opcode(0x15).parse(), None, "resynchronisation of RD");
    }
}
