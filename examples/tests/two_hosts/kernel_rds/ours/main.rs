//! Test peer on this crate's sockets, the counterpart of `peer.py`, with the same roles.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod backpressure;
mod flow;
mod hashes;
mod link_down;
mod load;
mod probe;
#[path = "../../../../../rds/tests/prober/mod.rs"]
mod prober;
mod stall;

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use rds::{Cookie, Event, ExportOptions, Message, Rdma, SendOptions, Socket, Status};

/// Time-out of every step.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Time-out of acknowledgements. Over a faulty link, connections may break again and again.
const ACK_TIMEOUT: Duration = Duration::from_secs(150);

const SIZES: [usize; 11] = [
    0,
    1,
    63,
    4095,
    4096,
    4097,
    8192,
    10_000,
    65_536,
    106_496,
    1 << 20,
];
const OFFSETS: [usize; 3] = [0, 0x100, 0xFFF];
const ROOM: u32 = 2 << 20;

/// First bytes of requests, followed by the seed of the pattern and the size.
const ECHO: u8 = b'E';
const WRITE: u8 = b'W';
const READ: u8 = b'R';
const STOP: u8 = b'Q';
/// A numbered message without an answer.
const SINK: u8 = b'D';
/// A message to stop reading for a while.
const STALL: u8 = b'S';

/// Message sent until the peer is ready.
const HELLO: &[u8] = b"hello";

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Server: echoes, and reads and writes the client's memory, until the stop request
    Serve {
        local: SocketAddr,
        /// Abort on the stop request
        #[arg(long)]
        die: bool,
    },
    /// Echoed messages of many sizes
    Sizes {
        local: SocketAddr,
        peer: SocketAddr,
        /// Type of service
        #[arg(long, default_value_t = 0)]
        tos: u8,
    },
    /// Echoed messages of many sizes with each type of service below a number, at once
    Services {
        local: SocketAddr,
        peer: SocketAddr,
        count: u8,
    },
    /// RDMA of the server at many offsets in a page
    Rdma { local: SocketAddr, peer: SocketAddr },
    /// Sends the stop request
    Stop { local: SocketAddr, peer: SocketAddr },
    /// Messages to port 0
    Ping {
        local: IpAddr,
        peer: IpAddr,
        count: u32,
    },
    /// Numbered messages in both directions
    Flow {
        local: SocketAddr,
        peer: SocketAddr,
        seconds: f64,
        pace: f64,
    },
    /// Messages in both directions, hashed by both sides
    Hashes {
        local: SocketAddr,
        peer: SocketAddr,
        count: u32,
    },
    /// Messages in both directions, between sides that may be killed
    Load {
        local: SocketAddr,
        peer: SocketAddr,
        /// Life of this side
        life: u8,
        /// Life of the peer to wait for; 0: any, and then this side aborts
        peers: u8,
    },
    /// RDMA of the peer, and long messages, while connections are lost
    LinkDown { local: SocketAddr, peer: SocketAddr },
    /// Reads nothing for some time
    Slow { local: SocketAddr, seconds: f64 },
    /// Sends to a slow reader
    Press { local: SocketAddr, peer: SocketAddr },
    /// Fails to bind, because the kernel uses the address
    Conflict { local: SocketAddr },
    /// Sends protocol violations to a kernel
    Probe { local: IpAddr, peer: IpAddr },
    /// Requests a connection in the name of a connected host
    Rival { local: IpAddr, peer: IpAddr },
}

fn main() -> Result<()> {
    match Options::parse().role {
        Role::Serve { local, die } => serve(local, die),
        Role::Sizes { local, peer, tos } => sizes(local, peer, tos),
        Role::Services { local, peer, count } => services(local, peer, count),
        Role::Rdma { local, peer } => rdma(local, peer),
        Role::Stop { local, peer } => stop(local, peer),
        Role::Ping { local, peer, count } => ping(local, peer, count),
        Role::Flow {
            local,
            peer,
            seconds,
            pace,
        } => flow::run(local, peer, seconds, pace),
        Role::Hashes { local, peer, count } => hashes::run(local, peer, count),
        Role::Load {
            local,
            peer,
            life,
            peers,
        } => load::run(local, peer, life, peers),
        Role::LinkDown { local, peer } => link_down::run(local, peer),
        Role::Slow { local, seconds } => backpressure::slow(local, seconds),
        Role::Press { local, peer } => backpressure::press(local, peer),
        Role::Conflict { local } => conflict(local),
        Role::Probe { local, peer } => probe::run(local, peer),
        Role::Rival { local, peer } => probe::rival(local, peer),
    }
}

fn open(local: SocketAddr) -> Result<Socket> {
    let socket = Socket::bind(local).with_context(|| format!("cannot bind to {local}"))?;
    socket.set_send_limit(ROOM)?;
    socket.set_recv_limit(ROOM)?;
    socket.set_read_timeout(Some(TIMEOUT));
    socket.set_write_timeout(Some(TIMEOUT));
    Ok(socket)
}

/// Waits until the peer has its socket.
fn synchronize(socket: &Socket, peer: SocketAddr) -> Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(500)));
    for _ in 0..240 {
        socket.send_to(HELLO, peer)?;
        if let Ok(Event::Message(message)) = socket.recv_event()
            && message.to_vec() == HELLO
        {
            // The peer may have sent its hello before this socket existed.
            socket.send_to(HELLO, peer)?;
            socket.set_read_timeout(Some(TIMEOUT));
            return Ok(());
        }
    }
    bail!("{peer} is silent")
}

/// Receives the next message other than a hello.
fn recv_message(socket: &Socket) -> Result<Message> {
    loop {
        match socket.recv_event()? {
            Event::Message(message) if message.to_vec() == HELLO => {}
            Event::Message(message) => return Ok(message),
            other => bail!("{other:?}, which is no message"),
        }
    }
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let block = (0..251_u32).map(|i| (u32::from(seed) + 31 * i).to_le_bytes()[0]);
    block.cycle().take(len).collect()
}

fn request(kind: u8, seed: u8, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![kind, seed];
    bytes.extend(u32::try_from(len)?.to_be_bytes());
    Ok(bytes)
}

fn serve(local: SocketAddr, die: bool) -> Result<()> {
    let socket = open(local)?;
    println!("serves");
    let mut served = [0; 3];
    let mut sunk = 0;
    loop {
        let Event::Message(question) = socket.recv_event()? else {
            bail!("something that is no message");
        };
        let (bytes, from) = (question.to_vec(), question.from());
        if bytes == HELLO {
            socket.send_to(HELLO, from)?;
            continue;
        }
        let (kind, seed) = match bytes[..] {
            [kind, seed, ..] => (kind, seed),
            _ => bail!("a request of {} bytes", bytes.len()),
        };
        let len = bytes.get(2..6).context("a request without a length")?;
        let len = u32::from_be_bytes(len.try_into()?) as usize;
        match kind {
            ECHO => {
                socket.send_to(&bytes, from)?;
                served[0] += 1;
            }
            WRITE | READ => {
                let cookie = question.cookie().context("no cookie")?;
                run_rdma(&socket, from, kind, seed, len, cookie)?;
                served[usize::from(kind == READ) + 1] += 1;
            }
            SINK => {
                sunk = if len == 0 { 0 } else { sunk };
                ensure!(len == sunk, "{len} instead of {sunk}");
                sunk += 1;
            }
            STALL => stall::stall(local)?,
            // As if killed: the kernel destroys the objects.
            STOP if die => std::process::abort(),
            STOP => {
                socket.send_to(&bytes, from)?;
                break;
            }
            _ => bail!("a request of kind {kind}"),
        }
    }
    wait_for_acks(&socket)?;
    println!(
        "served E{} W{} R{} D{sunk}",
        served[0], served[1], served[2]
    );
    Ok(())
}

/// The next message, on a nonblocking socket; `None` if there is none. Discards other events.
fn next_message(socket: &Socket) -> Result<Option<Vec<u8>>> {
    loop {
        match socket.recv_event() {
            Ok(Event::Message(message)) => return Ok(Some(message.to_vec())),
            Ok(_) => {}
            Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(err) => return Err(err.into()),
        }
    }
}

/// Waits for acknowledgements, because dropping the socket discards messages.
fn wait_for_acks(socket: &Socket) -> Result<()> {
    let start = Instant::now();
    while socket.queued()?.0 > 0 {
        ensure!(start.elapsed() < ACK_TIMEOUT, "{}", links(socket)?);
        thread::sleep(Duration::from_millis(10));
    }
    // The peer's last message requires an acknowledgement.
    thread::sleep(Duration::from_secs(2));
    Ok(())
}

/// The state of the connections, for a failure.
fn links(socket: &Socket) -> Result<String> {
    Ok(format!(
        "{} bytes not acknowledged; connections: {:?}",
        socket.queued()?.0,
        socket.engine().connection_stats()?
    ))
}

/// Reads or writes the client's memory.
fn run_rdma(
    socket: &Socket,
    client: SocketAddr,
    kind: u8,
    seed: u8,
    len: usize,
    cookie: Cookie,
) -> Result<()> {
    let local = socket.alloc(len)?;
    // In more pieces than fit into one work request.
    let step = len.div_ceil(20);
    let pieces = (0..len).step_by(step);
    let pieces = pieces.map(|at| local.slice(at..len.min(at + step)));
    let rdma = if kind == WRITE {
        local.write(0, &pattern(seed, len));
        Rdma::write(pieces.collect(), cookie)
    } else {
        Rdma::read(pieces.collect(), cookie).fence()
    };
    let rdma = rdma.notify().token(u64::from(seed) + 1000);
    let bytes = request(kind, seed, len)?;
    let options = SendOptions::new().to(client).rdma(rdma);
    let sent = socket.send_msg(&[std::io::IoSlice::new(&bytes)], &options)?;
    // The next request may overtake the completion.
    let operation = sent.operation.context("an operation without a number")?;
    socket.barrier(client.ip(), operation)?;
    match socket.recv_event()? {
        Event::Operation(end) => ensure!(
            (end.token, end.status) == (u64::from(seed) + 1000, Status::Success),
            "{end:?}"
        ),
        other => bail!("{other:?}, and not the end of an operation"),
    }
    let mut bytes = vec![0; len];
    local.read(0, &mut bytes);
    ensure!(bytes == pattern(seed, len), "{len} bytes were read wrong");
    Ok(())
}

fn sizes(local: SocketAddr, peer: SocketAddr, tos: u8) -> Result<()> {
    let socket = open(local)?;
    if tos != 0 {
        socket.set_tos(tos)?;
    }
    synchronize(&socket, peer)?;
    for (seed, len) in (0..).zip(SIZES) {
        let mut bytes = request(ECHO, seed, len)?;
        bytes.extend(pattern(seed, len));
        bytes.truncate(len.max(6));
        socket.send_to(&bytes, peer)?;
        let got = recv_message(&socket)?;
        ensure!(
            got.from() == peer && got.to_vec() == bytes,
            "{len} bytes came back otherwise"
        );
    }
    println!("echoed {}", SIZES.len());
    Ok(())
}

/// Like [`sizes`], with a socket and a thread for each type of service.
fn services(local: SocketAddr, peer: SocketAddr, count: u8) -> Result<()> {
    thread::scope(|scope| {
        let threads = (0..count).map(|tos| {
            let local = SocketAddr::new(local.ip(), local.port() + u16::from(tos));
            scope.spawn(move || sizes(local, peer, tos))
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread panicked"))
    })
}

fn rdma(local: SocketAddr, peer: SocketAddr) -> Result<()> {
    let socket = open(local)?;
    synchronize(&socket, peer)?;
    let mut seed = 0;
    for len in [1, 4096, 20_000, 1 << 20] {
        for at in OFFSETS {
            for kind in [WRITE, READ] {
                seed += 1;
                let memory = socket.alloc(at + len + 1)?;
                if kind == READ {
                    memory.write(at, &pattern(seed, len));
                }
                let cookie = socket.export(&memory, ExportOptions::new().use_once())?;
                let slot = Cookie {
                    offset: cookie.offset + u32::try_from(at)?,
                    ..cookie
                };
                let bytes = request(kind, seed, len)?;
                let options = SendOptions::new().to(peer).cookie(slot);
                socket.send_msg(&[std::io::IoSlice::new(&bytes)], &options)?;
                let got = recv_message(&socket)?;
                ensure!(got.to_vec() == bytes, "another answer");
                let mut content = vec![0; at + len + 1];
                memory.read(0, &mut content);
                ensure!(
                    content[at..at + len] == pattern(seed, len),
                    "{len} bytes at {at:#x} differ"
                );
                let outside = content[..at].iter().chain(&content[at + len..]);
                ensure!(outside.clone().all(|&byte| byte == 0), "bytes beside it");
                ensure!(socket.free(cookie).is_err(), "it was for one use");
            }
        }
    }
    wait_for_acks(&socket)?;
    println!("operations {seed}");
    Ok(())
}

fn stop(local: SocketAddr, peer: SocketAddr) -> Result<()> {
    let socket = open(local)?;
    synchronize(&socket, peer)?;
    socket.send_to(&request(STOP, 0, 0)?, peer)?;
    recv_message(&socket)?;
    println!("stopped");
    wait_for_acks(&socket)
}

fn ping(local: IpAddr, peer: IpAddr, count: u32) -> Result<()> {
    let socket = open((local, 0).into())?;
    let peer = SocketAddr::new(peer, 0);
    for _ in 0..count {
        socket.send_to(b"", peer)?;
        let got = socket.recv_from(&mut [0; 8])?;
        ensure!(got == (0, peer), "{got:?}");
    }
    println!("pongs {count}");
    Ok(())
}

fn conflict(local: SocketAddr) -> Result<()> {
    match Socket::bind(local) {
        Ok(_) => bail!("{local} can be had"),
        Err(err) => println!("conflict {}: {err}", rds::errno(&err)),
    }
    Ok(())
}
