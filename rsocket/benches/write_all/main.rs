//! Throughput of one large `write_all`.
//!
//! ```text
//! write_all server ADDR default|BUFFER
//! write_all client ADDR BYTES default|BUFFER
//! ```
//!
//! The server receives until the end of the stream and replies with the number of bytes. The client connects,
//! writes `BYTES` bytes with one `write_all`, waits for the reply, and prints
//! `write_all BYTES default|BUFFER SECONDS`. The server's receive buffer and the client's send buffer have
//! `BUFFER` bytes, or the default size. `cargo xtask bench rsocket` runs the program beside perftest's
//! `ib_write_bw`.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

use std::{
    error::Error,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use rsocket::Options;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum size of a read in bytes.
const PIECE: usize = 1 << 20;
/// Time to wait for the server's start.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server", addr, buffer] => server(addr.parse()?, &options(buffer)?),
        ["client", addr, bytes, buffer] => {
            let seconds = client(addr.parse()?, bytes.parse()?, &options(buffer)?)?;
            println!("write_all {bytes} {buffer} {seconds}");
            Ok(())
        }
        _ => Err(
            "usage: write_all server ADDR default|BUFFER | client ADDR BYTES default|BUFFER".into(),
        ),
    }
}

fn options(buffer: &str) -> Result<Options> {
    let options = Options::new();
    if buffer == "default" {
        return Ok(options);
    }
    let buffer = buffer.parse()?;
    Ok(options.receive_buffer(buffer).send_buffer(buffer))
}

fn server(addr: SocketAddr, options: &Options) -> Result<()> {
    let (mut stream, _) = options.listen(addr)?.accept()?;
    let mut piece = vec![0; PIECE];
    let mut sum = 0_u64;
    loop {
        let len = stream.read(&mut piece)?;
        if len == 0 {
            break;
        }
        sum += len as u64;
    }
    Ok(stream.write_all(&sum.to_le_bytes())?)
}

/// Returns the duration in seconds.
fn client(addr: SocketAddr, len: usize, options: &Options) -> Result<f64> {
    let bytes = vec![7; len];
    let begun = Instant::now();
    let mut stream = loop {
        match options.connect(addr) {
            Err(err)
                if err.kind() == io::ErrorKind::ConnectionRefused
                    && begun.elapsed() < TEST_TIMEOUT =>
            {
                thread::sleep(Duration::from_millis(50));
            }
            connected => break connected?,
        }
    };
    let start = Instant::now();
    stream.write_all(&bytes)?;
    stream.shutdown(Shutdown::Write)?;
    let mut sum = [0; 8];
    stream.read_exact(&mut sum)?;
    let seconds = start.elapsed().as_secs_f64();
    if u64::from_le_bytes(sum) != len as u64 {
        return Err("not all has come".into());
    }
    Ok(seconds)
}
