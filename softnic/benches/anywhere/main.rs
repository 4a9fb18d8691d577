//! The references of `cargo xtask bench anywhere`: the kernel's TCP and UDP between two threads, on the loopback interface.
//!
//! ```text
//! anywhere tcp SIZE      processor nanoseconds for each KiB, of the sender and of the receiver, in writes of SIZE bytes
//! anywhere udp SIZE      the same in datagrams of SIZE bytes, of which the kernel may drop some
//! anywhere round-trip    nanoseconds of half a round trip of 64 bytes over UDP, both ends polling: the median
//! ```

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Maximum number of bytes and of messages sent by a measurement.
const MAX_TOTAL: usize = 256 << 20;
const MAX_COUNT: usize = 1 << 19;

/// Wait of the receiver of datagrams after which the sender has ended.
const QUIET: Duration = Duration::from_millis(300);

/// Length of the messages of a round trip in bytes, and their number.
const MESSAGE: usize = 64;
const ROUND_TRIPS: usize = 20_000;

fn main() -> Result<()> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match *words {
        ["tcp", size] => print(&tcp(size.parse()?)?),
        ["udp", size] => print(&udp(size.parse()?)?),
        ["round-trip"] => println!("{}", round_trip()?),
        _ => return Err("usage: anywhere tcp SIZE|udp SIZE|round-trip".into()),
    }
    Ok(())
}

fn print([sender, receiver]: &[f64; 2]) {
    println!("{sender} {receiver}");
}

/// Processor time of the calling thread in nanoseconds.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Number of messages of a length to be sent.
fn count(size: usize) -> usize {
    (MAX_TOTAL / size).min(MAX_COUNT)
}

/// Processor nanoseconds of a thread for each KiB.
fn for_each_kib(nanoseconds: f64, bytes: usize) -> f64 {
    nanoseconds * 1024.0 / bytes as f64
}

fn tcp(size: usize) -> Result<[f64; 2]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    let sender = thread::spawn(move || -> Result<f64> {
        let mut stream = TcpStream::connect(to)?;
        let buffer = vec![7; size];
        let start = processor_time();
        for _ in 0..count(size) {
            stream.write_all(&buffer)?;
        }
        Ok(for_each_kib(processor_time() - start, count(size) * size))
    });
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; 256 << 10];
    let mut received = 0;
    let start = processor_time();
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            len => received += len,
        }
    }
    let receiver = for_each_kib(processor_time() - start, received);
    let sender = sender.join().map_err(|_| "the sender has panicked")??;
    Ok([sender, receiver])
}

fn udp(size: usize) -> Result<[f64; 2]> {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    receiver.set_read_timeout(Some(QUIET))?;
    let to = receiver.local_addr()?;
    let sender = thread::spawn(move || -> Result<f64> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let buffer = vec![7; size];
        let start = processor_time();
        for _ in 0..count(size) {
            socket.send_to(&buffer, to)?;
        }
        Ok(for_each_kib(processor_time() - start, count(size) * size))
    });
    let mut buffer = vec![0; size];
    let mut received = 0;
    let start = processor_time();
    loop {
        match receiver.recv(&mut buffer) {
            Ok(len) => received += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    let receiver = for_each_kib(processor_time() - start, received);
    let sender = sender.join().map_err(|_| "the sender has panicked")??;
    Ok([sender, receiver])
}

fn round_trip() -> Result<f64> {
    let [near, far] = [
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
    ];
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let echo = thread::spawn(move || -> Result<()> {
        for _ in 0..ROUND_TRIPS {
            poll(&far)?;
            far.send(&[7; MESSAGE])?;
        }
        Ok(())
    });
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        near.send(&[7; MESSAGE])?;
        poll(&near)?;
        times.push(start.elapsed());
    }
    echo.join().map_err(|_| "the echo has panicked")??;
    times.sort_unstable();
    Ok(times[ROUND_TRIPS / 2].as_nanos() as f64 / 2.0)
}

/// Receives a message without a sleep.
fn poll(socket: &UdpSocket) -> Result<()> {
    loop {
        match socket.recv(&mut [0; MESSAGE]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}
