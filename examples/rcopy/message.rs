//! What client and server say to each other: 16 bytes, and what belongs to them. The numbers are in
//! the order of the hosts, which must be the same.

use std::io::{self, Read, Write};

use anyhow::{Context, Result, ensure};

/// The size of a header, in bytes.
pub const HEADER: usize = 16;

/// The longest name that is taken.
const LONGEST_NAME: usize = 4096;

/// A command, or the answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What to do, or what has been done.
    pub command: u8,
    /// The size of the message, with this header.
    pub len: u16,
    /// The mode of a file that is opened; in an answer, 0 or an error number.
    pub data: u32,
    /// What the answer repeats.
    pub id: u64,
}

impl Header {
    /// Creates a file, whose name follows.
    pub const OPEN: u8 = 1;
    /// Closes it.
    pub const CLOSE: u8 = 2;
    /// Fills it; the number of bytes follows, and then they.
    pub const WRITE: u8 = 3;
    /// The bit of an answer.
    const ANSWER: u8 = 0x80;

    /// A command with so many bytes after the header.
    ///
    /// # Errors
    /// They are too many.
    pub fn command(command: u8, more: usize, data: u32) -> Result<Self> {
        let len = u16::try_from(HEADER + more);
        Ok(Self {
            command,
            len: len.with_context(|| format!("a message of {more} bytes is too long"))?,
            data,
            id: 0,
        })
    }

    /// The answer to this command.
    #[must_use]
    pub fn answer(self, status: u32) -> Self {
        Self {
            command: self.command | Self::ANSWER,
            len: 16,
            data: status,
            id: self.id,
        }
    }

    /// The number of bytes after the header.
    pub fn more(self) -> usize {
        usize::from(self.len).saturating_sub(HEADER)
    }

    /// The header as it goes over the wire.
    pub fn encode(self) -> [u8; HEADER] {
        let mut wire = [0; HEADER];
        wire[1] = self.command;
        wire[2..4].copy_from_slice(&self.len.to_ne_bytes());
        wire[4..8].copy_from_slice(&self.data.to_ne_bytes());
        wire[8..].copy_from_slice(&self.id.to_ne_bytes());
        wire
    }

    /// Understands a header.
    ///
    /// # Errors
    /// It is of another version, or shorter than itself.
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
    /// The stream fails, ends in the middle, or has something else.
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

    /// Reads the answer to `command`, which has to be 0.
    ///
    /// # Errors
    /// Something else comes, or the server could not do it.
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

/// Sends a name: with a zero at its end, and more up to a multiple of 8.
///
/// # Errors
/// It is too long, or the stream fails.
pub fn send_open(stream: &mut impl Write, name: &[u8], mode: u32) -> Result<()> {
    let padded = (name.len() + 8) & !7;
    let header = Header::command(Header::OPEN, padded, mode)?;
    let mut message = header.encode().to_vec();
    message.extend_from_slice(name);
    message.resize(HEADER + padded, 0);
    Ok(stream.write_all(&message)?)
}

/// Reads the name that belongs to a header.
///
/// # Errors
/// It is empty, too long, or has no end; or the stream fails.
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
    fn a_name_is_sent_as_c_does() {
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
    fn nonsense_is_refused() {
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
    fn an_answer_belongs_to_its_command() {
        let command = Header::command(Header::WRITE, 8, 0).unwrap();
        let answer = |status| command.answer(status).encode();
        assert!(Header::expect_answer(&mut &answer(0)[..], Header::WRITE).is_ok());
        assert!(Header::expect_answer(&mut &answer(0)[..], Header::CLOSE).is_err());
        let err = Header::expect_answer(&mut &answer(28)[..], Header::WRITE).unwrap_err();
        assert!(format!("{err:#}").contains("No space left"), "{err:#}");
    }
}
