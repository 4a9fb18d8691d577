//! The wire between two User-Mode Linux guests: a pair of datagram sockets, with one Ethernet frame per datagram.
//!
//! For a packet capture there are two pairs, and this process forwards the frames between them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use anyhow::{Context, Result};

/// Maximum frame size: an Ethernet header and the largest `--mtu`.
pub(crate) const MAX_FRAME: usize = 14 + 65535;

/// Forwards frames between two guests and records them, until dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    ends: [UnixDatagram; 2],
    carriers: Vec<JoinHandle<()>>,
    capture: Arc<Mutex<Capture<BufWriter<File>>>>,
}

/// Creates both ends of the wire. With `pcap`, frames are recorded to that file while the recorder lives.
pub(crate) fn pair(pcap: Option<&Path>) -> Result<([OwnedFd; 2], Option<Recorder>)> {
    let (a, to_a) = UnixDatagram::pair()?;
    let Some(pcap) = pcap else {
        return Ok(([a.into(), to_a.into()], None));
    };
    let (b, to_b) = UnixDatagram::pair()?;
    let file = File::create(pcap).with_context(|| format!("cannot write {}", pcap.display()))?;
    let capture = Arc::new(Mutex::new(Capture::new(BufWriter::new(file))?));
    let mut carriers = Vec::new();
    for (from, to) in [(&to_a, &to_b), (&to_b, &to_a)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let capture = Arc::clone(&capture);
        let carrier = thread::Builder::new().name("wire".into());
        carriers.push(carrier.spawn(move || carry(&from, &to, &capture))?);
    }
    let recorder = Recorder {
        ends: [to_a, to_b],
        carriers,
        capture,
    };
    Ok(([a.into(), b.into()], Some(recorder)))
}

/// Forwards frames in one direction until `from` is shut down.
fn carry(from: &UnixDatagram, to: &UnixDatagram, capture: &Mutex<Capture<BufWriter<File>>>) {
    let mut frame = vec![0; MAX_FRAME];
    while let Ok(length @ 1..) = from.recv(&mut frame) {
        let frame = &frame[..length];
        let mut capture = capture.lock().unwrap_or_else(PoisonError::into_inner);
        // An error, such as a full disk, stops the recording and not the wire.
        capture.record(SystemTime::now(), frame);
        drop(capture);
        // The other guest may have exited.
        drop(to.send(frame));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for end in &self.ends {
            // Unblocks the forwarding thread. Fails only if already shut down.
            drop(end.shutdown(Shutdown::Both));
        }
        for carrier in self.carriers.drain(..) {
            drop(carrier.join());
        }
        let mut capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = capture.flush() {
            eprintln!("the capture of the wire is incomplete: {error}");
        }
    }
}

/// A packet capture in tcpdump's format.
#[derive(Debug)]
pub(crate) struct Capture<W: Write> {
    file: W,
    failed: Option<io::Error>,
}

impl<W: Write> Capture<W> {
    /// Writes the file header: microsecond timestamps, Ethernet, whole frames.
    pub(crate) fn new(mut file: W) -> io::Result<Self> {
        const MAGIC: u32 = 0xa1b2_c3d4;
        const ETHERNET: u32 = 1;
        file.write_all(&MAGIC.to_le_bytes())?;
        file.write_all(&2_u16.to_le_bytes())?;
        file.write_all(&4_u16.to_le_bytes())?;
        for number in [0, 0, u32::try_from(MAX_FRAME).unwrap_or(u32::MAX), ETHERNET] {
            file.write_all(&number.to_le_bytes())?;
        }
        Ok(Self { file, failed: None })
    }

    /// Appends a frame. Does nothing after an earlier failure.
    pub(crate) fn record(&mut self, at: SystemTime, frame: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.write(at, frame).err();
        }
    }

    fn write(&mut self, at: SystemTime, frame: &[u8]) -> io::Result<()> {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        for number in [seconds, since.subsec_micros(), length, length] {
            self.file.write_all(&number.to_le_bytes())?;
        }
        self.file.write_all(frame)
    }

    /// Flushes the buffer; returns the first failure.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn capture_of_a_frame_has_tcpdumps_format() {
        let mut bytes = Vec::new();
        let mut capture = Capture::new(&mut bytes).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(7_000_009);
        capture.record(at, b"frame");
        capture.flush().unwrap();
        let numbers: Vec<u32> = bytes[..40]
            .chunks(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(
            numbers,
            [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65549, 1, 7, 9, 5, 5]
        );
        assert_eq!(&bytes[40..], b"frame");
    }

    #[test]
    fn capture_on_full_disk_returns_the_first_failure() {
        /// A writer with room for the file header only.
        #[derive(Debug)]
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(bytes.len())
                    .ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut capture = Capture::new(Full(24)).unwrap();
        capture.record(SystemTime::UNIX_EPOCH, b"frame");
        capture.record(SystemTime::UNIX_EPOCH, b"frame");
        assert_eq!(
            capture.flush().unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
    }

    #[test]
    fn recorder_forwards_both_ways_and_records_each_frame() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wire.pcap");
        let ([a, b], recorder) = pair(Some(&file)).unwrap();
        let (a, b) = (UnixDatagram::from(a), UnixDatagram::from(b));
        let mut buffer = [0; 8];
        a.send(b"one").unwrap();
        assert_eq!(b.recv(&mut buffer).unwrap(), 3);
        b.send(b"four").unwrap();
        assert_eq!(a.recv(&mut buffer).unwrap(), 4);
        drop(recorder);
        assert_eq!(fs::read(&file).unwrap().len(), 24 + 16 + 3 + 16 + 4);
    }
}
