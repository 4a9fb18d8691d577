//! Recorded frames, and their file format for Wireshark.

use std::time::Duration;

use crate::wire::{Frame, WireError};

/// `LINKTYPE_RAW`: each packet starts with the IP header.
const LINKTYPE_RAW: u32 = 101;

/// Magic number of pcap files with nanosecond times.
const MAGIC: u32 = 0xa1b2_3c4d;

/// Maximum length of a packet in bytes.
const SNAP_LEN: u32 = 0x4_0000;

/// A frame recorded on departure, before any loss, duplication, corruption or delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFrame {
    /// Time of departure since the creation of the fabric.
    pub at: Duration,
    /// The IP packet.
    pub bytes: Vec<u8>,
}

impl RecordedFrame {
    /// Decodes the headers.
    ///
    /// # Errors
    /// - [`WireError`]: never for a frame of a softnic device.
    pub fn decode(&self) -> Result<Frame<'_>, WireError> {
        Frame::decode(&self.bytes)
    }
}

/// Encodes frames in the classic format of pcap. Frames longer than the format's maximum are omitted.
pub(super) fn pcap(frames: &[RecordedFrame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.to_le_bytes());
    // Version 2.4.
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend(4_u16.to_le_bytes());
    // Offset from UTC, and accuracy.
    bytes.extend([0; 8]);
    bytes.extend(SNAP_LEN.to_le_bytes());
    bytes.extend(LINKTYPE_RAW.to_le_bytes());
    for frame in frames {
        let len = u32::try_from(frame.bytes.len()).ok();
        let Some(len) = len.filter(|len| *len <= SNAP_LEN) else {
            continue;
        };
        // Seconds wrap around after a century.
        let seconds = u32::try_from(frame.at.as_secs()).unwrap_or(u32::MAX);
        for field in [seconds, frame.at.subsec_nanos(), len, len] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend_from_slice(&frame.bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_have_the_layout_of_pcap() {
        let frame = RecordedFrame {
            at: Duration::new(3, 7),
            bytes: vec![0x45, 0, 1],
        };
        let file = pcap(&[frame]);
        let words = |bytes: &[u8]| -> Vec<u32> {
            let (words, _) = bytes.as_chunks();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let header = [MAGIC, 4 << 16 | 2, 0, 0, SNAP_LEN, LINKTYPE_RAW];
        assert_eq!(words(&file[..24]), header);
        assert_eq!(words(&file[24..40]), [3, 7, 3, 3]);
        assert_eq!(file[40..], [0x45, 0, 1]);
    }
}
