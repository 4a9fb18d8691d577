//! The last sixteen bytes of a header: what a message has beside its bytes.

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

/// What a message has beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extension {
    /// The version of the protocol.
    Version(u32),
    /// The message follows an RDMA operation on memory with this key, which may be used but once.
    Rdma(u32),
    /// Memory that the receiver may read and write.
    Destination(Cookie),
    /// How many bytes an RDMA operation moved, and in which direction.
    RdmaBytes(u32, u8),
    /// How many paths the sender has.
    Paths(u16),
    /// The sender's incarnation.
    Generation(u32),
    /// What the sender can do. [`DELAYED_ACKS`](Self::DELAYED_ACKS) and [`RX_LOST`](Self::RX_LOST) go with
    /// congestion maps, where kernels look for nothing.
    Capabilities(u32),
    /// Which of its device's ports the sender uses.
    PortIndex(u8),
    /// A checksum of what an RDMA operation moved.
    RdmaChecksum([u8; 8]),
}

impl Extension {
    /// The [capability](Self::Capabilities) of a host that acknowledges unasked, after a moment.
    pub const DELAYED_ACKS: u32 = 0x4c41_5a59;

    /// Beside [`Capabilities`](Self::Capabilities), or alone: on an earlier connection, the sender's device
    /// has taken frames that the sender never saw. Acknowledgements may have been among them.
    pub const RX_LOST: u32 = 0x8000_0000;
}

/// The area for extensions, as it is in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions(pub [u8; Self::SIZE]);

impl Extensions {
    /// The number of bytes.
    pub const SIZE: usize = 16;

    /// No extension.
    pub const NONE: Self = Self([0; Self::SIZE]);

    /// Adds the one extension that a message may have.
    ///
    /// # Errors
    /// There is one already, or it is none that may be sent: only [`Extension::Rdma`],
    /// [`Extension::Destination`] and [`Extension::Capabilities`] may.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The extensions, up to the first that is unknown or has no room.
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

/// The extensions of a message.
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
            // The end, or one whose length nobody here knows. It stays there, and ends it again.
            _ => return None,
        };
        self.0 = reader;
        Some(extension)
    }
}

/// Why an extension was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdded {
    /// There is one already.
    Second,
    /// It is never sent.
    Unsent,
}

impl fmt::Display for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Second => write!(f, "a message has one extension, and this would be another"),
            Self::Unsent => write!(f, "this extension is never sent"),
        }
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

    /// U-W04
    #[test]
    fn every_extension_is_read_to_the_end_of_the_area() {
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
            // So that the last byte of it is beyond the area.
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

    /// U-W05
    #[test]
    fn one_is_written_and_a_second_is_refused() {
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
