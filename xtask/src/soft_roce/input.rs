//! A command's standard input, on its way to the guest.
//!
//! It travels in chunks: a line with the number of bytes, then the bytes. Zero ends it, because a serial line has no end of
//! file that leaves the bytes before it alone. The guest's side is in `ci/guest/agent`.

use std::io::{self, Read, Write};

/// The largest chunk, in bytes: the guest starts a program for each.
const CHUNK: usize = 64 << 10;

/// Copies `source` to a guest's port until either ends; only a failing `source` is an error.
pub(super) fn pass_on(mut source: impl Read, mut port: impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let (count, outcome) = match source.read(&mut chunk) {
            Ok(count) => (count, Ok(())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => (0, Err(error)),
        };
        let written = writeln!(port, "{count}").and_then(|()| port.write_all(&chunk[..count]));
        // A port that takes nothing more belongs to a guest that is gone.
        if count == 0 || written.is_err() {
            return outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives three bytes at a time, and then fails or ends.
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
    fn chunks_are_as_they_come_and_end_with_zero() {
        let mut port = Vec::new();
        pass_on(Source(b"one\ntwo", false), &mut port).unwrap();
        assert_eq!(port, b"3\none3\n\ntw1\no0\n");
    }

    #[test]
    fn failing_source_is_an_error_and_ends_the_input() {
        let mut port = Vec::new();
        pass_on(Source(b"one", true), &mut port).unwrap_err();
        assert_eq!(port, b"3\none0\n");
    }

    #[test]
    fn port_that_is_gone_ends_it() {
        pass_on(io::repeat(0), &mut [0; 9][..]).unwrap();
    }
}
