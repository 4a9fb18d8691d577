//! Recordings for Wireshark: the classic format of pcap, with IP packets.

use std::time::Duration;

/// `LINKTYPE_RAW`: each packet starts with the IP header.
const LINKTYPE_RAW: u32 = 101;

/// Magic number of pcap files with nanosecond times.
const MAGIC: u32 = 0xa1b2_3c4d;

/// Maximum length of a packet in bytes.
const SNAP_LEN: u32 = 0x4_0000;

/// A recording.
#[derive(Debug)]
pub(super) struct Pcap {
    bytes: Vec<u8>,
}

impl Pcap {
    pub(super) fn new() -> Self {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        // Version 2.4.
        bytes.extend(2_u16.to_le_bytes());
        bytes.extend(4_u16.to_le_bytes());
        // Offset from UTC, and accuracy.
        bytes.extend([0; 8]);
        bytes.extend(SNAP_LEN.to_le_bytes());
        bytes.extend(LINKTYPE_RAW.to_le_bytes());
        Self { bytes }
    }

    /// Adds a packet, unless longer than the maximum.
    pub(super) fn push(&mut self, at: Duration, packet: &[u8]) {
        let len = u32::try_from(packet.len()).ok();
        let Some(len) = len.filter(|len| *len <= SNAP_LEN) else {
            return;
        };
        // Seconds wrap around after a century.
        let seconds = u32::try_from(at.as_secs()).unwrap_or(u32::MAX);
        for field in [seconds, at.subsec_nanos(), len, len] {
            self.bytes.extend(field.to_le_bytes());
        }
        self.bytes.extend_from_slice(packet);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_have_the_layout_of_pcap() {
        let mut pcap = Pcap::new();
        pcap.push(Duration::new(3, 7), &[0x45, 0, 1]);
        let words = |bytes: &[u8]| -> Vec<u32> {
            let (words, _) = bytes.as_chunks();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let header = [MAGIC, 4 << 16 | 2, 0, 0, SNAP_LEN, LINKTYPE_RAW];
        assert_eq!(words(&pcap.bytes()[..24]), header);
        assert_eq!(words(&pcap.bytes()[24..40]), [3, 7, 3, 3]);
        assert_eq!(pcap.bytes()[40..], [0x45, 0, 1]);
    }
}
