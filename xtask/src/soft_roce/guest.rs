//! One running guest: the emulator's process and the connections to what runs inside.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::event::Stream;
use super::input;
use super::machine::{Machine, Ports};
use crate::process::Supervised;

/// Something a guest did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Its first process runs, and waits for the configuration.
    Hello,
    /// Network and RDMA device are up; it waits for the command.
    Ready,
    /// The command takes standard input.
    TakesInput,
    /// The command printed something.
    Output(Stream, Vec<u8>),
    /// Its uptime, and when the report of it arrived.
    Clock(Instant, Duration),
    /// The command ended: the token without which no run counts as finished.
    Exit(i32),
    /// The guest cannot go on.
    Fail(String),
    /// Every connection is closed: the emulator is gone.
    Gone,
}

/// How long a guest on the host's own processors may take to its first sign; it needs less than a second.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);

/// A running guest; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Guest {
    emulator: Supervised,
    control: UnixStream,
    /// The command's standard input.
    stdin: UnixStream,
    console: Transcript,
    complaints: Transcript,
}

impl Guest {
    /// Starts the machine; what happens in it arrives at `signs`, marked with `index`.
    ///
    /// The thread that calls this must outlive the guest.
    pub(crate) fn start(
        machine: &Machine<'_>,
        index: usize,
        signs: &Sender<(usize, Sign)>,
    ) -> Result<Self> {
        let (console, console_there) = UnixStream::pair()?;
        let (control, control_there) = UnixStream::pair()?;
        let (stdin, stdin_there) = UnixStream::pair()?;
        let (stdout, stdout_there) = UnixStream::pair()?;
        let (stderr, stderr_there) = UnixStream::pair()?;
        let ports = Ports {
            console: console_there.into(),
            ports: [
                control_there.into(),
                stdin_there.into(),
                stdout_there.into(),
                stderr_there.into(),
            ],
        };
        let mut command = machine.command(&ports)?;
        command.stderr(Stdio::piped());
        if !machine.terminal() {
            // Its own group: Ctrl-C is for xtask, which then ends the guest.
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .process_group(0);
        }
        let mut inherited: Vec<&OwnedFd> = ports.ports.iter().collect();
        inherited.push(&ports.console);
        inherited.extend(machine.wire());
        let mut emulator =
            Supervised::spawn(&mut command, &inherited).context("cannot start the guest")?;
        // The emulator has the only copies of its ends now, so its end closes the connections.
        drop(ports);

        let complaints_pipe = emulator
            .child()
            .stderr
            .take()
            .context("the guest has no standard error")?;
        let (console_text, complaints) = (Transcript::default(), Transcript::default());
        let readers = vec![
            console_text.fill_from(console)?,
            complaints.fill_from(complaints_pipe)?,
            forward(stdout, Stream::Stdout, index, signs.clone())?,
            forward(stderr, Stream::Stderr, index, signs.clone())?,
            listen(control.try_clone()?, index, signs.clone())?,
        ];
        let signs = signs.clone();
        spawn("guest", move || {
            for reader in readers {
                drop(reader.join());
            }
            // Nobody listens any more once the run is over.
            drop(signs.send((index, Sign::Gone)));
        })?;
        Ok(Self {
            emulator,
            control,
            stdin,
            console: console_text,
            complaints,
        })
    }

    /// Starts the machine, and tells whether its first process comes to life.
    pub(crate) fn answers(machine: &Machine<'_>) -> Result<bool> {
        let (sender, signs) = mpsc::channel();
        let _guest = Self::start(machine, 0, &sender)?;
        Ok(matches!(
            signs.recv_timeout(ANSWER_LIMIT),
            Ok((_, Sign::Hello))
        ))
    }

    /// Sends a piece of shell script, as one line.
    pub(crate) fn send(&mut self, script: &str) {
        let line = format!("{}\n", BASE64_STANDARD.encode(script));
        // A guest that does not listen any more is about to be `Gone`.
        let _gone = self.control.write_all(line.as_bytes());
    }

    /// Passes `source` on to the command's standard input, from a thread of its own, until either ends.
    pub(crate) fn feed(&self, source: impl Read + Send + 'static) -> Result<()> {
        let stdin = self.stdin.try_clone()?;
        spawn("input", move || {
            if let Err(error) = input::pass_on(source, stdin) {
                eprintln!("error: cannot read standard input, so the command's ends here: {error}");
            }
        })?;
        Ok(())
    }

    /// The process that the guest is.
    pub(crate) fn process(&mut self) -> u32 {
        self.emulator.child().id()
    }

    /// Number of bytes that the kernel printed so far.
    pub(crate) fn console_len(&self) -> usize {
        self.console.len()
    }

    /// Ends the guest at once.
    pub(crate) fn kill(&mut self) {
        // It may be gone already.
        drop(self.emulator.child().kill());
    }

    /// Waits for the emulator, which has closed its connections.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self
            .emulator
            .wait_until(Instant::now() + Duration::from_secs(5))?
        {
            return Ok(status);
        }
        self.kill();
        Ok(self.emulator.wait()?)
    }

    /// What the kernel printed so far: warnings and worse.
    pub(crate) fn console(&self) -> String {
        self.console.text()
    }

    /// What QEMU or the User-Mode Linux process itself complained about.
    pub(crate) fn complaints(&self) -> String {
        self.complaints.text()
    }
}

/// Text that a thread collects.
#[derive(Clone, Debug, Default)]
struct Transcript(Arc<Mutex<Vec<u8>>>);

impl Transcript {
    fn fill_from(&self, mut source: impl Read + Send + 'static) -> Result<JoinHandle<()>> {
        let this = self.clone();
        spawn("transcript", move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut chunk) {
                this.0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend_from_slice(&chunk[..count]);
            }
        })
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }
}

fn forward(
    mut port: UnixStream,
    stream: Stream,
    index: usize,
    signs: Sender<(usize, Sign)>,
) -> Result<JoinHandle<()>> {
    spawn("output", move || {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = port.read(&mut chunk) {
            if signs
                .send((index, Sign::Output(stream, chunk[..count].to_vec())))
                .is_err()
            {
                break;
            }
        }
    })
}

fn listen(port: UnixStream, index: usize, signs: Sender<(usize, Sign)>) -> Result<JoinHandle<()>> {
    spawn("control", move || {
        for line in BufReader::new(port).lines().map_while(Result::ok) {
            let Some(sign) = parse(&line) else { continue };
            if signs.send((index, sign)).is_err() {
                break;
            }
        }
    })
}

fn parse(line: &str) -> Option<Sign> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "hello" => Some(Sign::Hello),
        "ready" => Some(Sign::Ready),
        "stdin" => Some(Sign::TakesInput),
        "clock" => {
            let uptime = Duration::try_from_secs_f64(rest.parse().ok()?).ok()?;
            Some(Sign::Clock(Instant::now(), uptime))
        }
        "exit" => rest.parse().ok().map(Sign::Exit),
        "fail" => Some(Sign::Fail(rest.to_owned())),
        _ => None,
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .context("cannot start a thread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_knows_every_message() {
        assert!(matches!(
            parse("clock 12.34"),
            Some(Sign::Clock(_, uptime)) if uptime == Duration::from_millis(12_340)
        ));
        assert_eq!(parse("clock -1"), None);
        assert_eq!(parse("hello"), Some(Sign::Hello));
        assert_eq!(parse("ready"), Some(Sign::Ready));
        assert_eq!(parse("stdin"), Some(Sign::TakesInput));
        assert_eq!(parse("exit 7"), Some(Sign::Exit(7)));
        assert_eq!(
            parse("fail no module"),
            Some(Sign::Fail("no module".into()))
        );
        assert_eq!(parse("exit"), None);
        assert_eq!(parse(""), None);
    }
}
