//! Queue pair addresses, as exchanged by the two sides.

use std::{fmt, str};

use verbs::{
    Gid,
    qp::{Psn, QpNum},
};

/// Length of an encoded address, in bytes: `LID:QPN:PSN:GID` in hexadecimal digits, and a zero byte.
pub const ADDRESS_LEN: usize = 52;

/// Address of a queue pair, and the first packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// LID of the port; 0 on RoCE.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: QpNum,
    /// Packet sequence number of the first packet.
    pub psn: Psn,
    /// GID of the port; zeros if the port has none.
    pub gid: Gid,
}

/// The bytes sent by a peer instead of an address.
#[derive(Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl Address {
    /// Encodes the address.
    pub fn to_wire(self) -> [u8; ADDRESS_LEN] {
        let Self { lid, qpn, psn, gid } = self;
        let (qpn, psn) = (qpn.get(), psn.get());
        let gid = u128::from_be_bytes(gid.0);
        let text = format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}");
        let mut wire = [0; ADDRESS_LEN];
        // The widths of the fields bound the text to one byte less than the buffer.
        for (byte, digit) in wire.iter_mut().zip(text.bytes()) {
            *byte = digit;
        }
        wire
    }

    /// Parses an address sent by a peer.
    ///
    /// # Errors
    /// The bytes are invalid.
    pub fn from_wire(wire: &[u8; ADDRESS_LEN]) -> Result<Self, Malformed> {
        Self::parse(wire).ok_or_else(|| Malformed::new(wire))
    }

    fn parse(wire: &[u8; ADDRESS_LEN]) -> Option<Self> {
        let mut fields = Fields::of(wire)?;
        let this = Self {
            lid: fields.hex(4)?,
            qpn: QpNum::new(fields.hex(6)?).ok()?,
            psn: Psn::new(fields.hex(6)?).ok()?,
            gid: Gid(fields.hex::<u128>(32)?.to_be_bytes()),
        };
        fields.end()?;
        Some(this)
    }

    /// Whether the address has a GID.
    pub fn has_gid(&self) -> bool {
        // The second half is the interface; the first is only the subnet prefix.
        self.gid.0[8..] != [0; 8]
    }
}

impl Malformed {
    pub(super) fn new(wire: &[u8]) -> Self {
        Self(wire.escape_ascii().to_string())
    }
}

/// Iterator over the fields of an encoded address: hexadecimal digits between colons, and a zero byte.
pub(super) struct Fields<'a>(str::Split<'a, char>);

impl<'a> Fields<'a> {
    pub(super) fn of(wire: &'a [u8]) -> Option<Self> {
        let text = str::from_utf8(wire.strip_suffix(&[0])?).ok()?;
        Some(Self(text.split(':')))
    }

    /// Parses the next field, of exactly `digits` digits.
    pub(super) fn hex<T: TryFrom<u128>>(&mut self, digits: usize) -> Option<T> {
        let field = self.0.next()?;
        let hex = field.len() == digits && field.bytes().all(|b| b.is_ascii_hexdigit());
        let number = hex.then(|| u128::from_str_radix(field, 16).ok())??;
        T::try_from(number).ok()
    }

    /// Checks for the end. `None` if fields are left.
    pub(super) fn end(mut self) -> Option<()> {
        self.0.next().is_none().then_some(())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        let psn = psn.get();
        write!(f, "LID {lid:#06x}, QPN {qpn}, PSN {psn:#08x}, GID {gid}")
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(f, "the peer has sent no address, but \"{text}\"")
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: &[u8; ADDRESS_LEN] = b"0001:00001a:abcdef:00000000000000000000ffff0a090001\0";

    #[test]
    fn address_round_trips() {
        let address = Address::from_wire(WIRE).unwrap();
        assert_eq!(
            address.to_string(),
            "LID 0x0001, QPN 0x00001a, PSN 0xabcdef, GID ::ffff:10.9.0.1"
        );
        assert_eq!(&address.to_wire(), WIRE);
        assert!(address.has_gid());
        let none = Address::default();
        assert_eq!(Address::from_wire(&none.to_wire()), Ok(none));
        assert!(!none.has_gid());
    }

    #[test]
    fn from_wire_refuses_invalid_bytes() {
        let wrong: [&[u8; ADDRESS_LEN]; 8] = [
            &[0; ADDRESS_LEN],
            &[0xff; ADDRESS_LEN],
            b"0001:00001a:abcdef:00000000000000000000ffff0a0900011",
            b"+001:00001a:abcdef:00000000000000000000ffff0a090001\0",
            b"0001:00001a:abcdef:00000000000000000000ffff0a09000g\0",
            b"0001:00001a:abcdef:00000000000000000000ffff0a09000:\0",
            b"001:000001a:abcdef:00000000000000000000ffff0a090001\0",
            b"0001:00001a:abcdef 00000000000000000000ffff0a090001\0",
        ];
        for wire in wrong {
            assert!(Address::from_wire(wire).is_err(), "{}", wire.escape_ascii());
        }
        assert_eq!(
            Address::from_wire(wrong[5]).unwrap_err().to_string(),
            "the peer has sent no address, but \
             \"0001:00001a:abcdef:00000000000000000000ffff0a09000:\\x00\""
        );
    }

    #[test]
    fn every_changed_byte_is_detected_or_harmless() {
        for index in 0..ADDRESS_LEN {
            for byte in 0..=255 {
                let mut wire = *WIRE;
                wire[index] = byte;
                if let Ok(address) = Address::from_wire(&wire) {
                    assert!(address.to_wire().eq_ignore_ascii_case(&wire));
                }
            }
        }
    }
}
