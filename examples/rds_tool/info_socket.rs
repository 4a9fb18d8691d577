//! Access to the RDS state of another process: the program listens on a local socket, and
//! `rds-info` connects to it.
//!
//! The program sends sections in the format of the kernel, each preceded by the number of the
//! socket option and the size in bytes, 4 bytes each in network order.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rds::{
    Engine,
    info::{Info, Section},
};

/// Socket options of the sections.
const OPTIONS: std::ops::RangeInclusive<u16> = 10_000..=10_017;

/// Time-out for reading and writing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size accepted from a program.
const MAX_LEN: u64 = 64 << 20;

/// A listening socket, removed when dropped.
#[derive(Debug)]
pub struct InfoSocket {
    path: PathBuf,
}

impl InfoSocket {
    /// Starts a thread to answer connections at `path`.
    ///
    /// # Errors
    /// - `AddrInUse`: a program listens at `path`, or the path is no socket.
    /// - As for creating the socket or the thread.
    pub fn serve(path: &Path, engine: &Engine) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(err) if err.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        let engine = engine.clone();
        let socket = Self { path: path.into() };
        let name = "rds-info".to_owned();
        thread::Builder::new().name(name).spawn(move || {
            for stream in listener.incoming() {
                // An error of one client concerns no other.
                drop(stream.and_then(|stream| answer(&stream, &engine)));
            }
        })?;
        Ok(socket)
    }
}

impl Drop for InfoSocket {
    fn drop(&mut self) {
        // The file may be gone already.
        drop(fs::remove_file(&self.path));
    }
}

/// Whether `path` is the socket of a program that has crashed.
fn is_stale(path: &Path) -> bool {
    let connected = UnixStream::connect(path);
    connected.is_err_and(|err| err.kind() == io::ErrorKind::ConnectionRefused)
}

fn answer(mut stream: &UnixStream, engine: &Engine) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&encode(&engine.info()?)?)
}

fn encode(info: &Info) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for option in OPTIONS {
        if let Some(section) = Section::from_option(option.into()) {
            let section = info.encode(section);
            let len = u32::try_from(section.len()).map_err(io::Error::other)?;
            bytes.extend(u32::from(option).to_be_bytes());
            bytes.extend(len.to_be_bytes());
            bytes.extend(section);
        }
    }
    Ok(bytes)
}

/// Bytes by section.
pub type Sections = Vec<(Section, Vec<u8>)>;

/// Reads the sections of the program at `path`.
///
/// # Errors
/// - As for connecting and reading.
/// - `InvalidData`: the answer is malformed.
pub fn ask(path: &Path) -> io::Result<Sections> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut bytes = Vec::new();
    stream.take(MAX_LEN).read_to_end(&mut bytes)?;
    decode(&bytes).ok_or_else(|| {
        let reason = format!("the answer of {} is malformed", path.display());
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

fn decode(mut bytes: &[u8]) -> Option<Sections> {
    let mut sections = Vec::new();
    while !bytes.is_empty() {
        let (option, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        let (section, rest) = rest.split_at_checked(len)?;
        let option = i32::from_be_bytes(*option);
        sections.push((Section::from_option(option)?, section.to_vec()));
        bytes = rest;
    }
    Some(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rds::info::{Counter, Table};

    #[test]
    fn sections_round_trip() {
        let counter = Counter {
            name: "send_pong".to_owned(),
            value: 7,
        };
        let info = Info {
            counters: vec![counter.clone()],
            ..Info::default()
        };
        let bytes = encode(&info).unwrap();
        let sections = decode(&bytes).unwrap();
        assert_eq!(sections.len(), 13);
        let (section, counters) = &sections[0];
        assert_eq!(*section, Section::Counters);
        assert_eq!(
            section.decode(counters),
            Some(Table::Counters(vec![counter]))
        );
        for len in 1..8 {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(decode(&[0; 8]), None, "unknown option");
    }

    #[test]
    fn serve_replaces_only_a_stale_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(is_stale(&path));
        let listener = UnixListener::bind(folder.path().join("other")).unwrap();
        assert!(!is_stale(&folder.path().join("other")));
        drop(listener);
        fs::write(folder.path().join("file"), "text").unwrap();
        let refused = UnixListener::bind(folder.path().join("file"));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
