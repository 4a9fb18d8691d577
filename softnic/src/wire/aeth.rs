//! The acknowledgement extended transport header (AETH), 4 bytes: a syndrome and the message sequence number.

use super::{
    error::WireError,
    reader::{Reader, be24},
};

/// A positive or negative acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Kind of acknowledgement, or reason of a NAK.
    pub syndrome: Syndrome,
    /// Number of messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// First byte of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All packets up to this one have been received. The value is a credit code; 31 means no flow control.
    Ack(u8),
    /// RNR NAK: no receive was posted. The value is the code of the delay, 0 to 31.
    RnrNak(u8),
    /// NAK: the packet was refused.
    Nak(Nak),
    /// Reserved byte.
    Reserved(u8),
}

/// Reason for which a responder refuses a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing; its number is in the acknowledgement.
    SequenceError,
    /// The request is malformed, too long, or unsupported by the queue pair.
    InvalidRequest,
    /// The key does not allow the access.
    RemoteAccess,
    /// The responder failed for a local reason.
    RemoteOperation,
}

/// Credit code of a responder without end-to-end flow control.
const NO_CREDITS: u8 = 31;

impl Aeth {
    /// A positive acknowledgement without flow control.
    pub fn ack(msn: u32) -> Self {
        Self {
            syndrome: Syndrome::Ack(NO_CREDITS),
            msn,
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("acknowledgement extended transport header");
        Ok(Self {
            syndrome: Syndrome::from_bits(reader.u8()?),
            msn: reader.u24()?,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.push(self.syndrome.to_bits());
        to.extend(be24(self.msn));
    }
}

impl Syndrome {
    fn from_bits(bits: u8) -> Self {
        let value = bits & 0x1f;
        let nak = match value {
            0 => Some(Nak::SequenceError),
            1 => Some(Nak::InvalidRequest),
            2 => Some(Nak::RemoteAccess),
            3 => Some(Nak::RemoteOperation),
            _ => None,
        };
        match (bits >> 5, nak) {
            (0b000, _) => Self::Ack(value),
            (0b001, _) => Self::RnrNak(value),
            (0b011, Some(nak)) => Self::Nak(nak),
            _ => Self::Reserved(bits),
        }
    }

    fn to_bits(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(Nak::SequenceError) => 0x60,
            Self::Nak(Nak::InvalidRequest) => 0x61,
            Self::Nak(Nak::RemoteAccess) => 0x62,
            Self::Nak(Nak::RemoteOperation) => 0x63,
            Self::Reserved(bits) => bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_survive_parsing() {
        for bits in 0..=u8::MAX {
            assert_eq!(Syndrome::from_bits(bits).to_bits(), bits);
        }
    }
}
