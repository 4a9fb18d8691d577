//! One side of a stream, which dies where it is told to, or says what has become of it.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod alone;

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

/// How long anything may take, so that a hang is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a side does when the fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Doing {
    /// Connecting, or listening without accepting
    Connecting,
    /// Waiting to receive
    Receiving,
    /// Sending what nobody receives
    Sending,
    /// Waiting for a readiness that does not come
    Polling,
    /// Sending, and receiving what comes back
    Transferring,
    /// Having ended its own direction, and waiting for the other's end
    Ending,
    /// Nothing for a while
    Quiet,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Server,
    Client,
    /// Opens connections with too little memory to be locked, or too few descriptors
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
    /// Killed while at it
    #[arg(long)]
    die: bool,
    /// Gives signs of life every second
    #[arg(long)]
    keep_alive: bool,
    /// Gives up what is not acknowledged for so many seconds
    #[arg(long)]
    user_timeout: Option<u64>,
    /// What ends the while, by being there
    #[arg(long)]
    until: Option<std::path::PathBuf>,
    /// Touched when the connection is there
    #[arg(long)]
    ready: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.role {
        Role::Server => arguments.server(),
        Role::Client => arguments.client(),
        Role::Exhausting => alone::exhausting(arguments.addr),
        Role::Removed => alone::removed(arguments.addr),
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

/// What a call has come to, by a word.
fn word<T>(result: io::Result<T>, done: &str) -> String {
    match result {
        Ok(_) => done.to_owned(),
        Err(err) => format!("{:?}", err.kind()),
    }
}

/// Dies as by `kill -9`.
fn die() -> ! {
    // It cannot fail, and does not return.
    let _: rustix::io::Result<()> = kill_process(getpid(), Signal::KILL);
    loop {
        thread::park();
    }
}

/// The byte at a place of the data.
fn fill(bytes: &mut [u8], at: u64) {
    for (byte, place) in bytes.iter_mut().zip(at..) {
        *byte = u8::try_from(place * 7 % 251).unwrap_or_default();
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
        let listener = self.options().bind(self.addr)?;
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
                        && start.elapsed() < PATIENCE =>
                {
                    thread::sleep(Duration::from_millis(200));
                }
                connected => break connected?,
            }
        };
        self.play(stream, false)
    }

    /// Dies when it has accepted; or serves whoever says something, whatever has become of others.
    fn hesitant(&self, listener: &Listener) -> Result<String> {
        loop {
            let (mut stream, _) = listener.accept()?;
            if self.die {
                die();
            }
            stream.set_read_timeout(Some(PATIENCE));
            if let Ok(1) = stream.read(&mut [0]) {
                stream.write_all(&[1])?;
                return Ok("served another".to_owned());
            }
        }
    }

    /// Both sides know of each other.
    fn meet(&self, stream: &mut Stream) -> Result<()> {
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        if let Some(ready) = &self.ready {
            std::fs::write(ready, [])?;
        }
        Ok(())
    }

    fn play(&self, mut stream: Stream, is_server: bool) -> Result<String> {
        stream.set_read_timeout(Some(PATIENCE));
        stream.set_write_timeout(Some(PATIENCE));
        stream.set_linger(Duration::from_secs(2));
        if self.doing() == Doing::Connecting {
            // The server is told of the connection, and never says anything.
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
        // What has ended says so again, and at once.
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
            // Let the other side get to where it waits.
            _ => thread::sleep(Duration::from_secs(1)),
        }
        die()
    }

    /// A byte to and fro, which the client begins.
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

    /// The client sends, and the server sends back; what comes is compared. The client ends with a
    /// piece that it has begun when the while was over.
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
        // A stream has a descriptor for that.
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
            ensure!(poll(&mut entries, Some(PATIENCE))? > 0, "hangs");
        }
    }
}

/// The end of a stream is not what was waited for.
fn not_nothing(len: usize) -> io::Result<usize> {
    match len {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        len => Ok(len),
    }
}

/// Runs a command of the system's.
fn system(program: &str, arguments: &[&str]) -> Result<std::process::Child> {
    Ok(Command::new(program).args(arguments).spawn()?)
}
