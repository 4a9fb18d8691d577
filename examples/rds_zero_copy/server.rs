//! The server of Richard Frank's example of RDS' zero copy extensions (rds-devel, 2007): reads and
//! writes the memory of clients on request.
//!
//! ```sh
//! cargo run -p examples --bin rds-zero-copy-server -- 10.9.0.1:4000
//! ```
//!
//! This is step 5 of the mail; `client.rs` has the others.
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]

use std::{
    io::IoSlice,
    net::SocketAddr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use examples::{
    rds_tool::info_socket::InfoSocket,
    rds_zero_copy::message::{Kind, Message},
};
use rds::{Cookie, Event, Rdma, RdmaBuffer, SendOptions, Socket};

/// Read and write the memory of clients on request
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Number of requests before the program ends
    #[arg(short, long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Socket for `rds-info`
    #[arg(long, value_name = "SOCKET")]
    info_socket: Option<PathBuf>,
    /// Address to bind
    address: SocketAddr,
}

/// Time-out for a silent client.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the last read, with the client.
struct Read {
    client: SocketAddr,
    memory: RdmaBuffer,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let socket = Socket::bind(options.address)
        .with_context(|| format!("a socket at {}", options.address))?;
    socket.set_write_timeout(Some(TIMEOUT));
    let path = options.info_socket.as_deref();
    let _asked = path
        .map(|path| InfoSocket::serve(path, socket.engine()))
        .transpose()
        .context("the socket for rds-info")?;
    let mut last = None;
    let mut served = 0;
    while options.requests.is_none_or(|requests| served < requests) {
        let Event::Message(message) = socket.recv_event()? else {
            continue;
        };
        let client = message.from();
        let Some(request) = Message::from_wire(&message.to_vec()) else {
            println!("{client}: no request, but {} bytes", message.len());
            continue;
        };
        let outcome = match (request.kind, message.cookie()) {
            (Kind::Hello, _) => answer(&socket, client, request),
            (Kind::Read | Kind::Write, Some(cookie)) => {
                served += 1;
                serve(&socket, client, request, cookie, &mut last)
            }
            _ => refuse(&socket, client, request),
        };
        // An error of a client does not end the server.
        if let Err(err) = outcome {
            println!("{client}: {err:#}");
        }
    }
    // Closing the socket would discard unacknowledged messages.
    let end = Instant::now() + TIMEOUT;
    while socket.queued()?.0 > 0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn answer(socket: &Socket, client: SocketAddr, message: Message) -> Result<()> {
    socket.send_to(&message.to_wire(), client)?;
    Ok(())
}

fn refuse(socket: &Socket, client: SocketAddr, request: Message) -> Result<()> {
    println!("{client}: {request:?} is refused");
    let kind = Kind::Refused;
    answer(socket, client, Message { kind, ..request })
}

/// 5. Reads or writes the memory, answers, and waits for completion.
fn serve(
    socket: &Socket,
    client: SocketAddr,
    request: Message,
    cookie: Cookie,
    last: &mut Option<Read>,
) -> Result<()> {
    let len = request.len as usize;
    let (rdma, memory) = match (request.kind, last.take()) {
        (_, _) if len == 0 => return refuse(socket, client, request),
        (Kind::Read, _) => {
            let memory = socket.alloc(len)?;
            // The fence delays the answer until the memory is read.
            let rdma = Rdma::read(vec![memory.slice(0..len)], cookie).fence();
            (rdma, memory)
        }
        (_, Some(Read { client: of, memory })) if of == client && memory.len() == len => {
            let mut bytes = vec![0; len];
            memory.read(0, &mut bytes);
            bytes.reverse();
            memory.write(0, &bytes);
            (Rdma::write(vec![memory.slice(0..len)], cookie), memory)
        }
        _ => return refuse(socket, client, request),
    };
    // Memory and answer arrive in this order, or not at all.
    let done = Message {
        kind: Kind::Done,
        ..request
    };
    let options = SendOptions::new().to(client).rdma(rdma);
    let sent = socket.send_msg(&[IoSlice::new(&done.to_wire())], &options)?;
    // The mail polls instead, as `true` would do here.
    let operation = sent.operation.context("an operation without a number")?;
    let ended = socket
        .barrier(client.ip(), operation)
        .with_context(|| format!("{:?} of {len} bytes", request.kind))?;
    ensure!(ended >= operation, "operation {operation} has not ended");
    println!("{client}: {:?} of {len} bytes is done", request.kind);
    if request.kind == Kind::Read {
        *last = Some(Read { client, memory });
    }
    Ok(())
}
