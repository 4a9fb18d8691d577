//! The client of Richard Frank's example of RDS' zero copy extensions (rds-devel, 2007): exports a
//! buffer for a server to read and write.
//!
//! ```sh
//! cargo run -p examples --bin rds-zero-copy-client -- 10.9.0.1:4000 "hello, RDS"
//! ```
//!
//! The steps have the numbers of the mail. Its step 1, reading protocol numbers from `/proc`, is
//! obsolete, because the numbers are fixed. Step 5 is in `server.rs`.
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]

use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use examples::{
    rds_tool::source::source_for,
    rds_zero_copy::message::{Kind, MAX_MEMORY, MESSAGE_LEN, Message},
};
use rds::{Cookie, ExportOptions, RdmaBuffer, SendOptions, Socket};

/// Have a server read a text from memory of this program, and write it back reversed
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Source address [default: from the route to the server]
    #[arg(short = 'I', value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// Size in bytes, filled with repetitions of the text [default: the size of the text]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MEMORY)))]
    size: Option<u32>,
    /// The server
    server: SocketAddr,
    /// The text
    #[arg(default_value = "hello, RDS", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    text: String,
}

/// Time-out for a silent server.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let options = Options::parse();
    let source = options
        .source
        .map_or_else(|| source_for(options.server.ip()), Ok)
        .with_context(|| format!("no route to {}", options.server))?;

    // 2. A socket.
    let socket = Socket::bind((source, 0)).with_context(|| format!("a socket at {source}"))?;
    socket.connect(options.server)?;
    socket.set_write_timeout(Some(TIMEOUT));
    connect(&socket)?;

    let size = match options.size {
        Some(size) => size as usize,
        None => options.text.len(),
    };
    let text: Vec<u8> = options.text.bytes().cycle().take(size).collect();
    let memory = socket.alloc(size).context("memory for the text")?;
    memory.write(0, &text);
    ask(&socket, &memory, Kind::Read)?;
    println!("the server has read {size} bytes");
    ask(&socket, &memory, Kind::Write)?;

    let mut written = vec![0; size];
    memory.read(0, &mut written);
    ensure!(
        written.iter().eq(text.iter().rev()),
        "the server has written something else"
    );
    let start = String::from_utf8_lossy(&written[..size.min(60)]);
    println!("the server has written {size} bytes: {start}");
    Ok(())
}

/// Connects to the server by repeated hellos: messages to an unbound port are dropped silently.
fn connect(socket: &Socket) -> Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(500)));
    let hello = Message {
        kind: Kind::Hello,
        len: 0,
    };
    for _ in 0..240 {
        socket.send(&hello.to_wire())?;
        match receive(socket) {
            Ok(_) => {
                socket.set_read_timeout(Some(TIMEOUT));
                return Ok(());
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            Err(err) => return Err(err.into()),
        }
    }
    bail!("the server does not answer")
}

/// Receives the next message of the server.
fn receive(socket: &Socket) -> io::Result<Message> {
    let mut bytes = [0; MESSAGE_LEN + 1];
    loop {
        let (len, from) = socket.recv_from(&mut bytes)?;
        if from == socket.peer_addr()?
            && let Some(message) = Message::from_wire(&bytes[..len.min(bytes.len())])
        {
            return Ok(message);
        }
    }
}

/// Requests one operation on the memory.
fn ask(socket: &Socket, memory: &RdmaBuffer, kind: Kind) -> Result<()> {
    // 3. The cookie of the memory, for use by peers.
    let options = ExportOptions::new();
    let cookie = socket
        .export(memory, options)
        .context("exporting the memory")?;
    let answer = request(socket, cookie, memory, kind);
    // 6. After any answer, the cookie is no longer needed.
    socket.free(cookie)?;
    answer
}

fn request(socket: &Socket, cookie: Cookie, memory: &RdmaBuffer, kind: Kind) -> Result<()> {
    // 4. The request, with the cookie.
    let len = u32::try_from(memory.len())?;
    let request = Message { kind, len }.to_wire();
    let options = SendOptions::new().cookie(cookie);
    socket.send_msg(&[IoSlice::new(&request)], &options)?;
    loop {
        match receive(socket)?.kind {
            // A repeated hello of the connection phase.
            Kind::Hello => {}
            Kind::Done => return Ok(()),
            other => bail!("the server answers {other:?}"),
        }
    }
}
