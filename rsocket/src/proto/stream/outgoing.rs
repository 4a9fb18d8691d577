//! What is to be posted.

use std::ops::Range;

use crate::proto::{Control, Mapping, Message, Target};

/// A request to be posted to the send queue.
///
/// With [`Framing::Immediate`](super::Framing::Immediate) it is one RDMA write, with the message, if
/// there is one, as its immediate data. With [`Framing::Separate`](super::Framing::Separate) it is an
/// RDMA write if there is a payload, and then a send if there is a message, which carries the tag
/// [`trailer`](Self::trailer) if it follows a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it counts as posted"]
pub struct Outgoing {
    /// Comes back with the completion.
    pub tag: Tag,
    /// The message that the peer is to get.
    pub message: Option<Message>,
    /// What is to be written.
    pub payload: Payload,
    /// Where it is to be written. Zero where there is no payload.
    pub addr: u64,
    /// The key that allows writing there. Zero where there is no payload.
    pub rkey: u32,
}

/// What a request writes into the peer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    Nothing,
    /// So many of the caller's bytes.
    Data(u32, Place),
    /// An entry of the table of targets.
    Target([u8; Target::SIZE], Place),
    /// An entry of the table of mappings.
    Mapping([u8; Mapping::SIZE], Place),
}

/// Where the device takes the bytes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// From the request itself, which holds a copy.
    Inline,
    /// From the send buffer, into which they are to be copied: first here, and then, if the first
    /// range has reached the end, there.
    Buffer(Range<u32>, Range<u32>),
    /// From this one of [`CONTROL_SLOTS`](super::CONTROL_SLOTS) places of
    /// [`Target::SIZE`] bytes, beside the send buffer.
    Slot(u16),
}

/// What a request was, for the time when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// So many bytes of data.
    Data(u32),
    /// So many bytes written into a mapping.
    Direct(u32),
    /// The announcement of a mapping.
    Mapping,
    /// A credit or target.
    Credit,
    /// A message that moves no data.
    Control(Control),
    /// A write of nothing.
    KeepAlive,
    /// The message that follows a write; of a control slot, or not.
    Trailer {
        /// Whether it took a control slot.
        control: bool,
    },
}

impl Tag {
    /// Whether it took a control slot, not one of the data.
    pub(super) fn is_control(self) -> bool {
        match self {
            Self::Data(_) | Self::Direct(_) | Self::Mapping => false,
            Self::Credit | Self::Control(_) | Self::KeepAlive => true,
            Self::Trailer { control } => control,
        }
    }
}

impl Outgoing {
    /// A message without a payload.
    pub(super) fn bare(tag: Tag, message: Option<Message>) -> Self {
        Self {
            tag,
            message,
            payload: Payload::Nothing,
            addr: 0,
            rkey: 0,
        }
    }

    /// The tag of the send that follows the write, where messages are separate.
    pub fn trailer(&self) -> Tag {
        Tag::Trailer {
            control: self.tag.is_control(),
        }
    }
}
