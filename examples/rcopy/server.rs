//! The receiving side: writes the file.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result};
use examples::rcopy::message::{Header, read_name};
use rsocket::{Listener, Stream};

const CHUNK: usize = 1 << 20;

/// Error numbers in answers.
const EINVAL: u32 = 22;
const EBUSY: u32 = 16;
const EACCES: u32 = 13;
const EIO: u32 = 5;

#[expect(clippy::print_stdout, reason = "the output of the program")]
pub(crate) fn run(directory: Option<&Path>, port: u16) -> Result<()> {
    let listener =
        Listener::bind((any()?, port)).with_context(|| format!("cannot listen at port {port}"))?;
    loop {
        println!("waiting for a client");
        let (mut stream, peer) = match listener.accept() {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            accepted => accepted?,
        };
        println!("client: {}", peer.ip());
        if let Err(err) = serve(&mut stream, directory) {
            println!("the client is gone: {err:#}");
        }
    }
}

/// The wildcard address of this host. An IPv6 one also accepts clients over IPv4, except over iWARP, where
/// the kernel rejects such connections.
fn any() -> Result<IpAddr> {
    let devices = cm::devices().context("cannot list the devices")?;
    Ok(match devices.iter().any(verbs::Context::is_iwarp) {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    })
}

/// Serves one client until the end of the stream.
fn serve(stream: &mut Stream, directory: Option<&Path>) -> Result<()> {
    let mut open = None;
    while let Some(command) = Header::read(stream)? {
        let status = match command.command {
            Header::OPEN => {
                let name = read_name(stream, command)?;
                if open.is_some() {
                    EBUSY
                } else {
                    match create(&name, command.data, directory) {
                        Ok(file) => {
                            open = Some(file);
                            0
                        }
                        Err(status) => status,
                    }
                }
            }
            Header::WRITE if command.more() == size_of::<u64>() => {
                let mut size = [0; 8];
                stream.read_exact(&mut size)?;
                match &mut open {
                    Some(file) => receive(stream, file, u64::from_ne_bytes(size))?,
                    None => EINVAL,
                }
            }
            Header::CLOSE => {
                open = None;
                0
            }
            _ => {
                skip(stream, command.more())?;
                EINVAL
            }
        };
        stream.write_all(&command.answer(status).encode())?;
        if status == EINVAL {
            // The length of the rest is unknown.
            break;
        }
    }
    Ok(())
}

fn status(err: &io::Error) -> u32 {
    let number = err
        .raw_os_error()
        .and_then(|errno| u32::try_from(errno).ok());
    number.unwrap_or(EIO)
}

fn create(name: &[u8], mode: u32, directory: Option<&Path>) -> Result<File, u32> {
    let path = match directory {
        None => PathBuf::from(OsStr::from_bytes(name)),
        Some(directory) => inside(directory, name).ok_or(EACCES)?,
    };
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode & 0o7777);
    options.open(path).map_err(|err| status(&err))
}

/// Path of a name below a folder; `None` for a name leading outside.
fn inside(directory: &Path, name: &[u8]) -> Option<PathBuf> {
    let name = Path::new(OsStr::from_bytes(name));
    let plain = |part| matches!(part, Component::Normal(_));
    name.components().all(plain).then(|| directory.join(name))
}

/// Receives the bytes of a file, all of them even if writing fails, and returns the status.
fn receive(stream: &mut Stream, file: &mut File, size: u64) -> Result<u32> {
    let mut chunk = vec![0; CHUNK];
    let mut remaining = size;
    let mut outcome = 0;
    while remaining > 0 {
        let len_of_read =
            usize::try_from(remaining).map_or(CHUNK, |remaining| remaining.min(CHUNK));
        let len = stream.read(&mut chunk[..len_of_read])?;
        if len == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        remaining -= len as u64;
        if outcome == 0
            && let Err(err) = file.write_all(&chunk[..len])
        {
            outcome = status(&err);
        }
    }
    Ok(outcome)
}

fn skip(stream: &mut Stream, len: usize) -> io::Result<()> {
    io::copy(&mut stream.take(len as u64), &mut io::sink()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_refuses_names_outside_the_folder() {
        let folder = Path::new("/srv");
        let at = |name: &[u8]| inside(folder, name);
        assert_eq!(at(b"a/b"), Some(PathBuf::from("/srv/a/b")));
        for name in [&b"../x"[..], b"/etc/passwd", b"a/../../x", b".."] {
            assert_eq!(at(name), None, "{}", String::from_utf8_lossy(name));
        }
    }
}
