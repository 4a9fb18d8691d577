//! Packets between engines: headers, and a payload as bytes or as memory of the sending host.
//!
//! Engines of one process hand packets over without encoding them, and a payload is copied once, from the sender's
//! memory to the receiver's. Bytes with an ICRC exist only on a wire.

use super::{
    memory::{HostRange, Memory},
    transfer,
};
use crate::wire::{Frame, WireError};

/// A payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    Bytes(&'a [u8]),
    /// Memory of the sending host, checked against a key, and the total length.
    Host(&'a [HostRange], usize),
}

/// A packet for an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    /// Headers; the payload of the frame is not used.
    pub(crate) frame: &'a Frame<'a>,
    pub(super) payload: Content<'a>,
    /// Number of frames. A run of several is handed over as one packet: middle packets of a message with consecutive
    /// numbers, the first of which is in the headers, and of equal length.
    pub(crate) count: u32,
}

/// The latest packet of a sender. The buffers are reused, so that packets cause no allocation.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Headers, without the payload.
    frame: Option<Frame<'static>>,
    /// Payload, if not in the memory of the host.
    pub(super) bytes: Vec<u8>,
    /// Payload in the memory of the host.
    pub(super) ranges: Vec<HostRange>,
    /// Number of frames of the packet.
    count: u32,
    /// Maximum number of frames of the next packet.
    pub(crate) max_count: u32,
}

impl Content<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Host(_, len) => len,
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes of a payload of this length; `None` for another length.
    pub(super) fn array<const N: usize>(self, memory: &mut dyn Memory) -> Option<[u8; N]> {
        let mut array = [0; N];
        (self.len() == N).then(|| self.read(memory, &mut array))?;
        Some(array)
    }

    /// Copies the payload to a buffer of the same length.
    pub(super) fn read(self, memory: &mut dyn Memory, to: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => to.copy_from_slice(bytes),
            Self::Host(ranges, _) => transfer::gather(memory, ranges, to),
        }
    }
}

impl<'a> Packet<'a> {
    /// The same payload behind other headers.
    pub(crate) fn with_headers(self, frame: &'a Frame<'a>) -> Self {
        Self { frame, ..self }
    }

    /// The packet of a frame from a wire.
    pub(super) fn of(frame: &'a Frame<'a>) -> Self {
        Self {
            frame,
            payload: Content::Bytes(frame.payload),
            count: 1,
        }
    }

    /// Length of the IP packet on a wire, for a single frame.
    pub(crate) fn frame_len(&self) -> usize {
        debug_assert_eq!(self.count, 1);
        self.frame.len_with(self.payload.len())
    }

    /// Appends the bytes of the packet, a single frame, on a wire.
    ///
    /// # Errors
    /// - [`WireError`]: never for a packet of an engine.
    pub(crate) fn encode(
        &self,
        memory: &mut dyn Memory,
        to: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        debug_assert_eq!(self.count, 1);
        let start = to.len();
        self.frame.encode_with(self.payload.len(), to, |out| {
            self.payload.read(memory, out);
        })?;
        // Receivers of the process get the headers from here, others from the bytes.
        let decoded = Frame::decode(&to[start..]);
        let payload = self.frame.payload;
        debug_assert_eq!(
            decoded.map(|frame| Frame { payload, ..frame }),
            Ok(*self.frame)
        );
        Ok(())
    }
}

impl Outgoing {
    /// Removes the packet.
    pub(super) fn clear(&mut self) {
        self.frame = None;
        self.count = 1;
        self.bytes.clear();
        self.ranges.clear();
    }

    /// Sets the headers of the packet.
    pub(super) fn set_headers(&mut self, frame: Frame<'static>) {
        self.frame = Some(frame);
    }

    /// Sets the number of frames of the packet.
    pub(super) fn set_count(&mut self, count: u32) {
        self.count = count;
    }

    /// The packet, once the headers are set.
    pub(super) fn packet(&self) -> Option<Packet<'_>> {
        let payload = match self.ranges.as_slice() {
            [] => Content::Bytes(&self.bytes),
            ranges => Content::Host(ranges, ranges.iter().map(|range| range.len).sum()),
        };
        Some(Packet {
            frame: self.frame.as_ref()?,
            payload,
            count: self.count,
        })
    }
}
