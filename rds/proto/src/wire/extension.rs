//! Header extensions, in the last 16 bytes of a header.

use std::{error, fmt};

use super::{cookie::Cookie, reader::Reader};

const VERSION: u8 = 1;
const RDMA: u8 = 2;
const DESTINATION: u8 = 3;
const RDMA_BYTES: u8 = 4;
const PATHS: u8 = 5;
const GENERATION: u8 = 6;
const CAPABILITIES: u8 = 7;
const PORT_INDEX: u8 = 8;
const RDMA_CHECKSUM: u8 = 9;

/// A header extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extension {
    /// Protocol version.
    Version(u32),
    /// The message follows an RDMA operation on memory with this key. Ends a use-once export.
    Rdma(u32),
    /// Memory exported to the receiver.
    Destination(Cookie),
    /// Length and direction of an RDMA operation.
    RdmaBytes(u32, u8),
    /// Number of paths of the sender.
    Paths(u16),
    /// Incarnation of the sender.
    Generation(u32),
    /// Capabilities of the sender. [`DELAYED_ACKS`](Self::DELAYED_ACKS) and
    /// [`RX_LOST`](Self::RX_LOST) are sent with congestion maps, because kernels ignore extensions
    /// there.
    Capabilities(u32),
    /// Index of the sender's device port.
    PortIndex(u8),
    /// Checksum of the data of an RDMA operation.
    RdmaChecksum([u8; 8]),
}

impl Extension {
    /// [Capability](Self::Capabilities): the host sends delayed acknowledgements.
    pub const DELAYED_ACKS: u32 = 0x4c41_5a59;

    /// [Capability](Self::Capabilities) bit, combined with [`DELAYED_ACKS`](Self::DELAYED_ACKS) or
    /// alone: on an earlier connection, the sender has lost frames acknowledged by its device,
    /// possibly with acknowledgements.
    pub const RX_LOST: u32 = 0x8000_0000;
}

/// Extension area of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions(pub [u8; Self::SIZE]);

impl Extensions {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// An empty area.
    pub const NONE: Self = Self([0; Self::SIZE]);

    /// Adds an extension; a message can have one.
    ///
    /// # Errors
    /// The area is not empty, or the extension is other than [`Extension::Rdma`],
    /// [`Extension::Destination`] and [`Extension::Capabilities`].
    pub fn add(&mut self, extension: Extension) -> Result<(), NotAdded> {
        if self.0[0] != 0 {
            return Err(NotAdded::Second);
        }
        match extension {
            Extension::Rdma(rkey) => {
                self.0[0] = RDMA;
                self.0[1..5].copy_from_slice(&rkey.to_be_bytes());
            }
            Extension::Destination(cookie) => {
                self.0[0] = DESTINATION;
                self.0[1..9].copy_from_slice(&cookie.encode());
            }
            Extension::Capabilities(bits) => {
                self.0[0] = CAPABILITIES;
                self.0[1..5].copy_from_slice(&bits.to_be_bytes());
            }
            _ => return Err(NotAdded::Unsent),
        }
        Ok(())
    }

    /// Whether there is no extension.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The extensions, up to the first unknown or truncated one.
    pub fn iter(&self) -> Iter<'_> {
        Iter(Reader::new(&self.0))
    }
}

impl<'a> IntoIterator for &'a Extensions {
    type Item = Extension;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterator over the extensions of a header.
#[derive(Clone, Debug)]
pub struct Iter<'a>(Reader<'a>);

impl Iterator for Iter<'_> {
    type Item = Extension;

    fn next(&mut self) -> Option<Extension> {
        let mut reader = self.0;
        let extension = match reader.u8()? {
            VERSION => Extension::Version(reader.u32()?),
            RDMA => Extension::Rdma(reader.u32()?),
            DESTINATION => Extension::Destination(Cookie::decode(reader.bytes()?)),
            RDMA_BYTES => {
                let [a, b, c, d, direction, ..] = reader.bytes::<8>()?;
                Extension::RdmaBytes(u32::from_be_bytes([a, b, c, d]), direction)
            }
            PATHS => Extension::Paths(reader.u16()?),
            GENERATION => Extension::Generation(reader.u32()?),
            CAPABILITIES => Extension::Capabilities(reader.u32()?),
            PORT_INDEX => Extension::PortIndex(reader.u8()?),
            RDMA_CHECKSUM => Extension::RdmaChecksum(reader.bytes()?),
            // The end, or an extension of unknown length. The reader does not advance, so iteration
            // stays ended.
            _ => return None,
        };
        self.0 = reader;
        Some(extension)
    }
}

/// Why an extension is not added.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdded {
    /// The area has an extension already.
    Second,
    /// The extension is receive-only.
    Unsent,
}

impl fmt::Display for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Second => write!(
                f,
                "the header already has an extension, and there is room for one"
            ),
            Self::Unsent => write!(f, "this extension is receive-only"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for NotAdded {}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(bytes: &[u8]) -> Extensions {
        let mut area = Extensions::NONE;
        area.0[..bytes.len()].copy_from_slice(bytes);
        area
    }

    #[test]
    fn extensions_are_decoded_to_the_end_of_the_area() {
        let all: [(&[u8], Extension); 9] = [
            (&[1, 0, 0, 3, 1], Extension::Version(0x301)),
            (&[2, 1, 2, 3, 4], Extension::Rdma(0x0102_0304)),
            (
                &[3, 0, 0, 3, 0, 0, 0, 12, 64],
                Extension::Destination(Cookie {
                    rkey: 0x300,
                    offset: 0xc40,
                }),
            ),
            (
                &[4, 0, 1, 0, 0, 1, 0, 0, 0],
                Extension::RdmaBytes(0x1_0000, 1),
            ),
            (&[5, 0, 8], Extension::Paths(8)),
            (&[6, 0, 0, 0, 7], Extension::Generation(7)),
            (&[7, 0, 0, 0, 9], Extension::Capabilities(9)),
            (&[8, 2], Extension::PortIndex(2)),
            (
                &[9, 1, 2, 3, 4, 5, 6, 7, 8],
                Extension::RdmaChecksum([1, 2, 3, 4, 5, 6, 7, 8]),
            ),
        ];
        for (bytes, extension) in all {
            assert_eq!(area(bytes).iter().collect::<Vec<_>>(), [extension]);
            let twice = [bytes, all[1].0].concat();
            assert_eq!(
                area(&twice).iter().collect::<Vec<_>>(),
                [extension, all[1].1]
            );
            // Place the last byte just beyond the area.
            let mut late = vec![8, 0];
            while late.len() + bytes.len() != Extensions::SIZE + 1 && late.len() < 15 {
                late.extend([8, 0]);
            }
            late.extend(bytes);
            if late.len() > Extensions::SIZE {
                late.truncate(Extensions::SIZE);
                assert!(
                    area(&late)
                        .iter()
                        .all(|read| read == Extension::PortIndex(0))
                );
            }
        }
        let mut unknown = area(&[2, 0, 0, 0, 5, 12, 2, 0, 0, 0, 6]);
        let mut read = unknown.iter();
        assert_eq!(read.next(), Some(Extension::Rdma(5)));
        assert_eq!((read.next(), read.next()), (None, None), "12 is unknown");
        unknown.0[0] = 0;
        assert_eq!(unknown.iter().count(), 0);
    }

    #[test]
    fn extensions_reject_a_second_one() {
        let mut area = Extensions::NONE;
        area.add(Extension::Rdma(0x1122_3344)).unwrap();
        assert_eq!(area.0[..6], [2, 0x11, 0x22, 0x33, 0x44, 0]);
        assert_eq!(area.add(Extension::Rdma(1)), Err(NotAdded::Second));
        let mut area = Extensions::NONE;
        assert_eq!(area.add(Extension::Paths(8)), Err(NotAdded::Unsent));
        assert_eq!(area.add(Extension::Generation(8)), Err(NotAdded::Unsent));
        let cookie = Cookie {
            rkey: 0x1122_3344,
            offset: 0x123,
        };
        area.add(Extension::Destination(cookie)).unwrap();
        assert_eq!(area.0[..10], [3, 0x11, 0x22, 0x33, 0x44, 0, 0, 1, 0x23, 0]);
        let mut area = Extensions::NONE;
        let capabilities = Extension::Capabilities(Extension::DELAYED_ACKS);
        area.add(capabilities).unwrap();
        assert_eq!(area.0[..6], [7, 0x4c, 0x41, 0x5a, 0x59, 0]);
        assert_eq!(area.iter().collect::<Vec<_>>(), [capabilities]);
    }
}
