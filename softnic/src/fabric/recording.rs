//! Recorded frames, and their file format for Wireshark.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    time::Duration,
};

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

/// Frames recorded in memory or in a file.
#[derive(Debug)]
pub(super) enum Recording {
    Memory(Vec<RecordedFrame>),
    /// A pcap file, and the wall-clock time of the start, since 1970. `None` after a failed write.
    File(Option<File>, Duration),
}

impl Recording {
    /// Creates a pcap file, with the wall-clock time of the fabric's start.
    pub(super) fn create(path: &Path, start_since_1970: Duration) -> io::Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(&header())?;
        Ok(Self::File(Some(file), start_since_1970))
    }

    /// Adds a frame. A file is complete after each frame, also if the process is killed.
    pub(super) fn push(&mut self, at: Duration, bytes: &[u8]) {
        match self {
            Self::Memory(frames) => frames.push(RecordedFrame {
                at,
                bytes: bytes.to_vec(),
            }),
            Self::File(file, start) => {
                let record = record(at + *start, bytes).unwrap_or_default();
                let written = file.as_mut().map(|file| file.write_all(&record));
                if let Some(Err(error)) = written {
                    *file = None;
                    #[expect(
                        clippy::print_stderr,
                        reason = "the program has no call that could fail"
                    )]
                    {
                        eprintln!("softnic: the recording ends early, a write has failed: {error}");
                    }
                }
            }
        }
    }

    /// The frames of a recording in memory.
    pub(super) fn frames(&self) -> Option<&[RecordedFrame]> {
        match self {
            Self::Memory(frames) => Some(frames),
            Self::File(..) => None,
        }
    }
}

/// Header of a file in the classic format of pcap.
fn header() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.to_le_bytes());
    // Version 2.4.
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend(4_u16.to_le_bytes());
    // Offset from UTC, and accuracy.
    bytes.extend([0; 8]);
    bytes.extend(SNAP_LEN.to_le_bytes());
    bytes.extend(LINKTYPE_RAW.to_le_bytes());
    bytes
}

/// A frame in the file; `None` for a frame longer than the format's maximum.
fn record(at: Duration, frame: &[u8]) -> Option<Vec<u8>> {
    let len = u32::try_from(frame.len()).ok();
    let len = len.filter(|len| *len <= SNAP_LEN)?;
    // Seconds wrap around after a century.
    let seconds = u32::try_from(at.as_secs()).unwrap_or(u32::MAX);
    let fields = [seconds, at.subsec_nanos(), len, len];
    let fields = fields.into_iter().flat_map(u32::to_le_bytes);
    Some(fields.chain(frame.iter().copied()).collect())
}

/// Encodes frames in the classic format of pcap. Frames longer than the format's maximum are omitted.
pub(super) fn pcap(frames: &[RecordedFrame]) -> Vec<u8> {
    let mut bytes = header();
    for frame in frames {
        bytes.extend(record(frame.at, &frame.bytes).unwrap_or_default());
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

    #[test]
    fn recording_to_a_file_is_complete_after_each_frame() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let start = Duration::from_secs(100);
        let mut recording = Recording::create(&path, start).unwrap();
        let frames = [(3, vec![0x45, 0, 1]), (4, vec![0x60])];
        let mut recorded = Vec::new();
        for (at, bytes) in frames {
            let at = Duration::from_secs(at);
            recording.push(at, &bytes);
            recorded.push(RecordedFrame {
                at: start + at,
                bytes,
            });
            assert_eq!(std::fs::read(&path).unwrap(), pcap(&recorded));
        }
    }
}
