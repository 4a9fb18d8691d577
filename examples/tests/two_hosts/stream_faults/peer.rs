//! One side of a stream: dies at a given point, or prints the outcome.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod one_host;

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    os::fd::AsFd,
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use rsocket::{Family, Listener, Options, PollEntry, PollEvents, Socket, Stream, poll};
use rustix::process::{Signal, getpid, kill_process};

/// Timeout for each step, to turn a hang into a failure.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Action of a side at the time of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Doing {
    /// Connecting, or listening without accepting
    Connecting,
    /// Blocked in a receive
    Receiving,
    /// Sending to a peer that does not receive
    Sending,
    /// Polling for a readiness that never comes
    Polling,
    /// Sending, and receiving the same data back
    Transferring,
    /// Shut down for writing, and waiting for the peer's end
    Ending,
    /// Idle for a while
    Quiet,
    /// Waiting to receive, and printing the whole error
    Explaining,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Server,
    Client,
    /// Opens connections with too little lockable memory, or too few descriptors
    Exhausting,
    /// Both sides on one device, which is removed
    Removed,
}

#[derive(Parser)]
struct Arguments {
    role: Role,
    addr: SocketAddr,
    #[arg(value_enum)]
    doing: Option<Doing>,
    /// Kill this process during the action
    #[arg(long)]
    die: bool,
    /// Send a keepalive probe every second
    #[arg(long)]
    keep_alive: bool,
    /// User timeout for unacknowledged data, in seconds
    #[arg(long)]
    user_timeout: Option<u64>,
    /// File whose existence ends the idle time
    #[arg(long)]
    until: Option<std::path::PathBuf>,
    /// File created once the connection is established
    #[arg(long)]
    ready: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.role {
        Role::Server => arguments.server(),
        Role::Client => arguments.client(),
        Role::Exhausting => one_host::exhausting(arguments.addr),
        Role::Removed => one_host::removed(arguments.addr),
    };
    match outcome {
        Ok(outcome) => {
            println!("{outcome}");
            ExitCode::SUCCESS
        }
        Err(err) => {
            println!("{err:#}");
            ExitCode::FAILURE
        }
    }
}

/// A word for the result of a call.
fn word<T>(result: io::Result<T>, done: &str) -> String {
    match result {
        Ok(_) => done.to_owned(),
        Err(err) => format!("{:?}", err.kind()),
    }
}

/// Dies as by `kill -9`.
fn die() -> ! {
    // Never fails, and never returns.
    let _: rustix::io::Result<()> = kill_process(getpid(), Signal::KILL);
    loop {
        thread::park();
    }
}

/// Fills a buffer with the pattern at an offset of the data.
fn fill(bytes: &mut [u8], at: u64) {
    for (byte, offset) in bytes.iter_mut().zip(at..) {
        *byte = u8::try_from(offset * 7 % 251).unwrap_or_default();
    }
}

impl Arguments {
    fn doing(&self) -> Doing {
        self.doing.unwrap_or(Doing::Receiving)
    }

    fn options(&self) -> Options {
        let mut options = Options::new();
        if self.keep_alive {
            options = options.keep_alive(Duration::from_secs(1));
        }
        if let Some(seconds) = self.user_timeout {
            options = options.user_timeout(Duration::from_secs(seconds));
        }
        options
    }

    fn server(&self) -> Result<String> {
        let listener = self.options().listen(self.addr)?;
        if self.doing() == Doing::Connecting {
            return self.hesitant(&listener);
        }
        let (stream, _) = listener.accept()?;
        drop(listener);
        self.play(stream, true)
    }

    fn client(&self) -> Result<String> {
        if self.doing() == Doing::Connecting && self.die {
            let socket = Socket::new(Family::V4)?;
            socket.set_nonblocking(true);
            drop(socket.connect(self.addr));
            die();
        }
        let start = Instant::now();
        let stream = loop {
            match self.options().connect(self.addr) {
                Err(err)
                    if err.kind() == io::ErrorKind::ConnectionRefused
                        && start.elapsed() < TEST_TIMEOUT =>
                {
                    thread::sleep(Duration::from_millis(200));
                }
                connected => break connected?,
            }
        };
        self.play(stream, false)
    }

    /// Dies after accepting; or serves the first client with data, regardless of failed ones.
    fn hesitant(&self, listener: &Listener) -> Result<String> {
        loop {
            let (mut stream, _) = listener.accept()?;
            if self.die {
                die();
            }
            stream.set_read_timeout(Some(TEST_TIMEOUT));
            if let Ok(1) = stream.read(&mut [0]) {
                stream.write_all(&[1])?;
                return Ok("served another".to_owned());
            }
        }
    }

    /// Exchanges a byte, so that both sides are established.
    fn meet(&self, stream: &mut Stream) -> Result<()> {
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        if let Some(ready) = &self.ready {
            std::fs::write(ready, [])?;
        }
        Ok(())
    }

    fn play(&self, mut stream: Stream, is_server: bool) -> Result<String> {
        stream.set_read_timeout(Some(TEST_TIMEOUT));
        stream.set_write_timeout(Some(TEST_TIMEOUT));
        stream.set_linger(Duration::from_secs(2));
        if self.doing() == Doing::Connecting {
            // The server learns of the connection, and stays silent.
            return Ok(word(
                stream.read(&mut [0]).and_then(not_nothing),
                "something",
            ));
        }
        self.meet(&mut stream)?;
        if self.die {
            return self.play_to_die(stream);
        }
        let outcome = match self.doing() {
            Doing::Connecting | Doing::Receiving => {
                word(stream.read(&mut [0]).and_then(not_nothing), "something")
            }
            Doing::Quiet => return self.after_a_while(stream, is_server),
            Doing::Explaining => {
                let read = stream.read(&mut [0]).and_then(not_nothing);
                return Ok(read.map_or_else(|err| err.to_string(), |_| "something".to_owned()));
            }
            Doing::Sending => loop {
                if let Err(err) = stream.write(&[0; 9000]) {
                    break format!("{:?}", err.kind());
                }
            },
            Doing::Polling => self.polling(&mut stream)?,
            Doing::Transferring => return self.transferring(stream, is_server),
            Doing::Ending => {
                stream.shutdown(Shutdown::Write)?;
                word(stream.read(&mut [0]), "end")
            }
        };
        // A failed connection repeats the error, immediately.
        let again = word(stream.write(&[0]), "written");
        Ok(format!("{outcome}, {again}"))
    }

    fn play_to_die(&self, mut stream: Stream) -> Result<String> {
        match self.doing() {
            Doing::Transferring => {
                let mut bytes = [0; 5000];
                for round in 0..20 {
                    fill(&mut bytes, round * 5000);
                    stream.write_all(&bytes)?;
                }
            }
            Doing::Ending => stream.shutdown(Shutdown::Write)?,
            // Time for the other side to block.
            _ => thread::sleep(Duration::from_secs(1)),
        }
        die()
    }

    /// Exchanges one byte in each direction; the client starts.
    fn after_a_while(&self, mut stream: Stream, is_server: bool) -> Result<String> {
        while self.until.as_ref().is_some_and(|file| !file.exists()) {
            thread::sleep(Duration::from_millis(100));
        }
        let mut exchange = || {
            if !is_server {
                stream.write_all(&[1])?;
            }
            let got = stream.read(&mut [0]).and_then(not_nothing)?;
            if is_server {
                stream.write_all(&[1])?;
            }
            Ok(got)
        };
        Ok(word(exchange(), "everything"))
    }

    /// The client sends, the server returns the data, and the client compares. The client ends with the chunk
    /// in progress at the end of the time.
    fn transferring(&self, mut stream: Stream, is_server: bool) -> Result<String> {
        let (mut sent, mut received) = (0, 0);
        let (mut bytes, mut expected) = (vec![0; 20_000], vec![0; 20_000]);
        let mut last = false;
        let outcome = loop {
            if !is_server && sent == received {
                if last {
                    stream.shutdown(Shutdown::Write)?;
                    break word(stream.read(&mut [0]), "everything");
                }
                last = self.until.as_ref().is_some_and(|file| file.exists());
                fill(&mut bytes, sent);
                if let Err(err) = stream.write_all(&bytes) {
                    break format!("{:?}", err.kind());
                }
                sent += bytes.len() as u64;
            }
            let got = match stream.read(&mut bytes) {
                Ok(0) => break "end".to_owned(),
                Ok(got) => got,
                Err(err) => break format!("{:?}", err.kind()),
            };
            fill(&mut expected[..got], received);
            ensure!(bytes[..got] == expected[..got], "other bytes came");
            received += got as u64;
            if is_server && let Err(err) = stream.write_all(&bytes[..got]) {
                break format!("{:?}", err.kind());
            }
        };
        Ok(outcome)
    }

    fn polling(&self, stream: &mut Stream) -> Result<String> {
        // The descriptor for polling.
        stream.set_nonblocking(true);
        loop {
            match stream.read(&mut [0]) {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    stream.set_nonblocking(false);
                    return Ok(word(result.and_then(not_nothing), "something"));
                }
            }
            let mut entries = [PollEntry::fd(stream.as_fd(), PollEvents::IN)];
            ensure!(poll(&mut entries, Some(TEST_TIMEOUT))? > 0, "hangs");
        }
    }
}

/// Converts the end of a stream into an error.
fn not_nothing(len: usize) -> io::Result<usize> {
    match len {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        len => Ok(len),
    }
}

/// Runs a system command.
fn system(program: &str, arguments: &[&str]) -> Result<std::process::Child> {
    Ok(Command::new(program).args(arguments).spawn()?)
}
