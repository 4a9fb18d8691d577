//! Copying a command's standard input to the guest.
//!
//! Data is framed in chunks: a line with the number of bytes, then the bytes. A chunk of zero bytes is the end of file,
//! because a serial line has no end of file in band. The guest's end is in `guest/agent`.

use std::io::{self, Read, Write};

/// Maximum chunk size in bytes. The guest starts one program for each chunk.
const CHUNK: usize = 64 << 10;

/// Copies `source` to a guest's port until either end closes. Errors of `source` are returned, errors of `port` are
/// not.
pub(crate) fn pass_on(mut source: impl Read, mut port: impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let (count, outcome) = match source.read(&mut chunk) {
            Ok(count) => (count, Ok(())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => (0, Err(error)),
        };
        let written = writeln!(port, "{count}").and_then(|()| port.write_all(&chunk[..count]));
        // A failed write means an exited guest.
        if count == 0 || written.is_err() {
            return outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads three bytes at a time, then fails or reports end of file.
    struct Source<'a>(&'a [u8], bool);

    impl Read for Source<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() && self.1 {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let count = self.0.len().min(3);
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn pass_on_frames_each_read_and_ends_with_a_zero_chunk() {
        let mut port = Vec::new();
        pass_on(Source(b"one\ntwo", false), &mut port).unwrap();
        assert_eq!(port, b"3\none3\n\ntw1\no0\n");
    }

    #[test]
    fn pass_on_with_failing_source_ends_the_input_and_returns_the_error() {
        let mut port = Vec::new();
        pass_on(Source(b"one", true), &mut port).unwrap_err();
        assert_eq!(port, b"3\none0\n");
    }

    #[test]
    fn pass_on_to_closed_port_returns_ok() {
        pass_on(io::repeat(0), &mut [0; 9][..]).unwrap();
    }
}
