//! Messages between client and server: a header of 16 bytes, followed by a payload. Numbers are in host byte
//! order, so both hosts must have the same.

use std::io::{self, Read, Write};

use anyhow::{Context, Result, ensure};

/// Size of a header, in bytes.
pub const HEADER: usize = 16;

/// Maximum length of a name, in bytes.
const LONGEST_NAME: usize = 4096;

/// A command or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The command.
    pub command: u8,
    /// Size of the message with the header, in bytes.
    pub len: u16,
    /// Mode of a file for `OPEN`; in an answer, 0 or an error number.
    pub data: u32,
    /// Identifier, repeated in the answer.
    pub id: u64,
}

impl Header {
    /// Creates a file; the name follows.
    pub const OPEN: u8 = 1;
    /// Closes the file.
    pub const CLOSE: u8 = 2;
    /// Writes to the file; the number of bytes follows, then the bytes.
    pub const WRITE: u8 = 3;
    /// Bit set in answers.
    const ANSWER: u8 = 0x80;

    /// Creates a command with `more` bytes after the header.
    ///
    /// # Errors
    /// `more` does not fit the length field.
    pub fn command(command: u8, more: usize, data: u32) -> Result<Self> {
        let len = u16::try_from(HEADER + more);
        Ok(Self {
            command,
            len: len.with_context(|| format!("a message of {more} bytes is too long"))?,
            data,
            id: 0,
        })
    }

    /// Creates the answer to this command.
    #[must_use]
    pub fn answer(self, status: u32) -> Self {
        Self {
            command: self.command | Self::ANSWER,
            len: 16,
            data: status,
            id: self.id,
        }
    }

    /// Number of bytes after the header.
    pub fn more(self) -> usize {
        usize::from(self.len).saturating_sub(HEADER)
    }

    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER] {
        let mut wire = [0; HEADER];
        wire[1] = self.command;
        wire[2..4].copy_from_slice(&self.len.to_ne_bytes());
        wire[4..8].copy_from_slice(&self.data.to_ne_bytes());
        wire[8..].copy_from_slice(&self.id.to_ne_bytes());
        wire
    }

    /// Parses a header.
    ///
    /// # Errors
    /// The version is unknown, or the length is below the header's.
    pub fn decode(wire: &[u8; HEADER]) -> Result<Self> {
        let [version, command, l0, l1, d0, d1, d2, d3, id @ ..] = *wire;
        let len = u16::from_ne_bytes([l0, l1]);
        ensure!(
            version == 0 && usize::from(len) >= HEADER,
            "a message of version {version}, {len} bytes long"
        );
        Ok(Self {
            command,
            len,
            data: u32::from_ne_bytes([d0, d1, d2, d3]),
            id: u64::from_ne_bytes(id),
        })
    }

    /// Reads a header; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream fails, ends within a header, or the header is invalid.
    pub fn read(stream: &mut impl Read) -> Result<Option<Self>> {
        let mut wire = [0; HEADER];
        let (first, rest) = wire.split_at_mut(1);
        loop {
            match stream.read(first) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err.into()),
            }
        }
        stream.read_exact(rest)?;
        Self::decode(&wire).map(Some)
    }

    /// Reads the answer to `command`, and checks for status 0.
    ///
    /// # Errors
    /// The answer is to another command, or the status is an error.
    pub fn expect_answer(stream: &mut impl Read, command: u8) -> Result<()> {
        let answer = Self::read(stream)?.context("the server has gone")?;
        ensure!(
            answer.command == command | Self::ANSWER && answer.more() == 0,
            "answer {:#x} of {} bytes to command {command:#x}",
            answer.command,
            answer.len
        );
        if answer.data != 0 {
            let number = i32::try_from(answer.data).unwrap_or(i32::MAX);
            return Err(io::Error::from_raw_os_error(number)).context("the server");
        }
        Ok(())
    }
}

/// Sends a name with a terminating zero, padded to a multiple of 8.
///
/// # Errors
/// The name is too long, or the stream fails.
pub fn send_open(stream: &mut impl Write, name: &[u8], mode: u32) -> Result<()> {
    let padded = (name.len() + 8) & !7;
    let header = Header::command(Header::OPEN, padded, mode)?;
    let mut message = header.encode().to_vec();
    message.extend_from_slice(name);
    message.resize(HEADER + padded, 0);
    Ok(stream.write_all(&message)?)
}

/// Reads the name after a header.
///
/// # Errors
/// The name is empty, too long or unterminated, or the stream fails.
pub fn read_name(stream: &mut impl Read, header: Header) -> Result<Vec<u8>> {
    let len = header.more();
    ensure!(len <= LONGEST_NAME, "a name of {len} bytes");
    let mut name = vec![0; len];
    stream.read_exact(&mut name)?;
    let end = name.iter().position(|&byte| byte == 0);
    name.truncate(end.context("a name without an end")?);
    ensure!(!name.is_empty(), "an empty name");
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn name_encoding_matches_c() {
        let mut wire = vec![];
        send_open(&mut wire, b"/tmp/abcd", 0o644).unwrap();
        let mut expected = vec![0, 1, 32, 0, 0xa4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        expected.extend_from_slice(b"/tmp/abcd\0\0\0\0\0\0\0");
        assert_eq!(wire, expected);
        let mut stream = &wire[..];
        let header = Header::read(&mut stream).unwrap().unwrap();
        assert_eq!(read_name(&mut stream, header).unwrap(), b"/tmp/abcd");
        assert!(Header::read(&mut stream).unwrap().is_none(), "the end");
    }

    #[test]
    fn invalid_messages_are_refused() {
        let good = Header::command(Header::CLOSE, 0, 0).unwrap().encode();
        for (at, with) in [(0, 1), (2, 15)] {
            let mut wire = good;
            wire[at] = with;
            assert!(Header::decode(&wire).is_err());
        }
        let open = Header::command(Header::OPEN, 8, 0).unwrap();
        assert!(read_name(&mut &b"12345678"[..], open).is_err(), "no end");
        assert!(read_name(&mut &[0; 8][..], open).is_err(), "empty");
        assert!(read_name(&mut &b"123"[..], open).is_err(), "cut off");
        let long = Header::command(Header::OPEN, 5000, 0).unwrap();
        assert!(read_name(&mut &[1; 5000][..], long).is_err());
        assert!(Header::command(Header::OPEN, 1 << 16, 0).is_err());
    }

    #[test]
    fn answer_to_another_command_is_refused() {
        let command = Header::command(Header::WRITE, 8, 0).unwrap();
        let answer = |status| command.answer(status).encode();
        assert!(Header::expect_answer(&mut &answer(0)[..], Header::WRITE).is_ok());
        assert!(Header::expect_answer(&mut &answer(0)[..], Header::CLOSE).is_err());
        let err = Header::expect_answer(&mut &answer(28)[..], Header::WRITE).unwrap_err();
        assert!(format!("{err:#}").contains("No space left"), "{err:#}");
    }
}
