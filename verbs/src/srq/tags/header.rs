//! The headers of messages to a tag-matching queue.

use std::io;

use crate::{
    error::{Error, Result},
    mr::RemoteToken,
    named::named,
};

named! {
    /// `ibv_tmh_op`—The kind of a message to a tag-matching queue.
    #[doc(alias = "ibv_tmh_op")]
    TagOperation(u8) {
        /// `IBV_TMH_NO_TAG`—No tag: the whole message goes to an untagged receive.
        #[doc(alias = "IBV_TMH_NO_TAG")]
        NO_TAG = 0;
        /// `IBV_TMH_RNDV`—A [`RendezvousHeader`] follows: the device of the receiver reads the data
        /// from there.
        #[doc(alias = "IBV_TMH_RNDV")]
        RENDEZVOUS = 1;
        /// `IBV_TMH_FIN`—The data of a rendezvous have been read.
        #[doc(alias = "IBV_TMH_FIN")]
        FINISHED = 2;
        /// `IBV_TMH_EAGER`—The data follow.
        #[doc(alias = "IBV_TMH_EAGER")]
        EAGER = 3;
    }
}

/// `ibv_tmh`—The header at the start of a message to a
/// [`TagMatchingQueue`](crate::srq::TagMatchingQueue).
///
/// A buffer with a matching tag receives the bytes behind the headers; an untagged receive receives
/// the headers, too.
///
/// ```
/// use verbs::srq::{TagHeader, TagOperation};
/// let header = TagHeader { operation: TagOperation::EAGER, private: 7, tag: 0x1234 };
/// let mut message = header.to_bytes().to_vec();
/// message.extend(b"hello");
/// assert_eq!(TagHeader::from_message(&message), Some(header));
/// ```
///
/// # References
/// [Hardware tag matching](https://github.com/linux-rdma/rdma-core/blob/master/Documentation/tag_matching.md)
#[doc(alias = "ibv_tmh")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagHeader {
    /// The kind of the message.
    pub operation: TagOperation,
    /// Private data, [reported](crate::cq::TagMatch::private) by the receiver's completion along
    /// with the tag.
    pub private: u32,
    /// The tag.
    pub tag: u64,
}

impl TagHeader {
    /// The length of a header, in bytes.
    pub const LEN: usize = 16;

    /// The header in wire format.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.operation.0;
        bytes[4..8].copy_from_slice(&self.private.to_be_bytes());
        bytes[8..].copy_from_slice(&self.tag.to_be_bytes());
        bytes
    }

    /// Reads the header of a message; `None` if the message is too short to have one.
    pub fn from_message(message: &[u8]) -> Option<Self> {
        let (bytes, _) = message.split_first_chunk::<{ Self::LEN }>()?;
        let [operation, _, _, _, a, b, c, d, tag @ ..] = *bytes;
        Some(Self {
            operation: TagOperation(operation),
            private: u32::from_be_bytes([a, b, c, d]),
            tag: u64::from_be_bytes(tag),
        })
    }
}

/// `ibv_rvh`—The location of a rendezvous' data, behind the [`TagHeader`] of the message.
///
/// The sender must not change the memory until a message confirms that the data have been read.
#[doc(alias = "ibv_rvh")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousHeader {
    /// The address of the first byte.
    pub addr: u64,
    /// The RKey for the receiver's device.
    pub rkey: u32,
    /// The number of bytes.
    pub len: u32,
}

impl RendezvousHeader {
    /// The length of a header, in bytes.
    pub const LEN: usize = 16;

    /// The header for memory open to the receiver's reads.
    ///
    /// # Errors
    /// - `InvalidInput`: the length does not fit in a header.
    pub fn new(memory: RemoteToken) -> Result<Self> {
        let len = u32::try_from(memory.len).map_err(|_| {
            let reason = format!("{} bytes, and at most {}", memory.len, u32::MAX);
            Error::refused("RendezvousHeader::new", io::ErrorKind::InvalidInput, reason)
        })?;
        let RemoteToken { addr, rkey, .. } = memory;
        Ok(Self { addr, rkey, len })
    }

    /// The header in wire format.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Reads the rendezvous header of a message, behind the [`TagHeader`]; `None` if the message is
    /// too short.
    pub fn from_message(message: &[u8]) -> Option<Self> {
        let (addr, rest) = message.get(TagHeader::LEN..)?.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (len, _) = rest.split_first_chunk()?;
        Some(Self {
            addr: u64::from_be_bytes(*addr),
            rkey: u32::from_be_bytes(*rkey),
            len: u32::from_be_bytes(*len),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_header_layout_matches_c() {
        let header = TagHeader {
            operation: TagOperation::RENDEZVOUS,
            private: 0x0102_0304,
            tag: 0x1112_1314_1516_1718,
        };
        let token = RemoteToken {
            addr: 0x2122_2324_2526_2728,
            len: 0x3132_3334,
            rkey: 0x4142_4344,
        };
        let rendezvous = RendezvousHeader::new(token).unwrap();
        let message = [header.to_bytes(), rendezvous.to_bytes()].concat();
        assert_eq!(
            message,
            [
                &[1, 0, 0, 0, 1, 2, 3, 4][..],
                &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
                &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28],
                &[0x41, 0x42, 0x43, 0x44, 0x31, 0x32, 0x33, 0x34],
            ]
            .concat()
        );
        assert_eq!(TagHeader::from_message(&message), Some(header));
        assert_eq!(RendezvousHeader::from_message(&message), Some(rendezvous));
    }

    #[test]
    fn tag_header_of_short_message_is_none() {
        let message = [0xff; TagHeader::LEN + RendezvousHeader::LEN];
        for len in 0..message.len() {
            let message = &message[..len];
            let header = TagHeader::from_message(message);
            assert_eq!(header.is_some(), len >= TagHeader::LEN, "{len}");
            assert_eq!(RendezvousHeader::from_message(message), None, "{len}");
        }
        let token = RemoteToken {
            addr: 0,
            len: 1 << 32,
            rkey: 0,
        };
        let err = RendezvousHeader::new(token).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
    }
}
