//! Requests to post.

use std::ops::Range;

use crate::{Control, Mapping, Message, Target};

/// A request for the send queue.
///
/// With [`Framing::Immediate`](super::Framing::Immediate): one RDMA write with the message, if any, as its
/// immediate data. With [`Framing::Separate`](super::Framing::Separate): an RDMA write of the payload, if
/// any, then a send of the message, if any. A send after a write has the tag [`trailer`](Self::trailer).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it counts as posted"]
pub struct Outgoing {
    /// Passed back with the completion.
    pub tag: Tag,
    /// Message for the peer.
    pub message: Option<Message>,
    /// Payload of the write.
    pub payload: Payload,
    /// Remote address of the payload; 0 without a payload.
    pub addr: u64,
    /// Remote key of the payload; 0 without a payload.
    pub rkey: u32,
}

/// Payload of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No payload.
    Nothing,
    /// Bytes of the caller; holds their number.
    Data(u32, PayloadSource),
    /// An entry of the table of targets.
    Target([u8; Target::SIZE], PayloadSource),
    /// An entry of the table of mappings.
    Mapping([u8; Mapping::SIZE], PayloadSource),
}

/// Source of the payload for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadSource {
    /// Inline in the request.
    Inline,
    /// Ranges of the send buffer to copy the bytes to; the second is used after the first reaches the end.
    Buffer(Range<u32>, Range<u32>),
    /// Index of one of [`CONTROL_SLOTS`](super::CONTROL_SLOTS) slots of [`Target::SIZE`] bytes, beside the
    /// send buffer.
    Slot(u16),
}

/// Identifies a request at its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Data; holds the number of bytes.
    Data(u32),
    /// A write into a mapping; holds the number of bytes.
    Direct(u32),
    /// Advertisement of a mapping.
    Mapping,
    /// Credits, with or without a target.
    Credit,
    /// A control message.
    Control(Control),
    /// A keepalive probe: an empty write.
    KeepAlive,
    /// The message after a write, with separate framing.
    Trailer {
        /// Whether the write used a control slot.
        control: bool,
    },
}

impl Tag {
    /// Whether the request used a control slot.
    pub(super) fn is_control(self) -> bool {
        match self {
            Self::Data(_) | Self::Direct(_) | Self::Mapping => false,
            Self::Credit | Self::Control(_) | Self::KeepAlive => true,
            Self::Trailer { control } => control,
        }
    }
}

impl Outgoing {
    /// Creates a request without a payload.
    pub(super) fn bare(tag: Tag, message: Option<Message>) -> Self {
        Self {
            tag,
            message,
            payload: Payload::Nothing,
            addr: 0,
            rkey: 0,
        }
    }

    /// Returns the tag of the send after the write, with separate framing.
    pub fn trailer(&self) -> Tag {
        Tag::Trailer {
            control: self.tag.is_control(),
        }
    }
}
