//! One running guest: the emulator process and its connections to the guest's scripts.

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

use crate::event::Stream;
use crate::input;
use crate::machine::{Machine, Ports};
use crate::process::Supervised;
use crate::scratch::Scratch;

/// A message from a guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GuestMsg {
    /// The guest's init is running and waits for the configuration.
    Hello,
    /// Network and RDMA device are up; the guest waits for the command.
    Ready,
    /// The command is ready to receive standard input.
    TakesInput,
    /// The command wrote output.
    Output(Stream, Vec<u8>),
    /// Arrival time of a clock report, and the guest's uptime in the report.
    Clock(Instant, Duration),
    /// The command exited with this code. A run without this message counts as failed.
    Exit(i32),
    /// The guest cannot continue, for this reason.
    Fail(String),
    /// All connections are closed: the emulator has exited.
    Gone,
}

/// Timeout for the first message of a guest under hardware virtualization; a boot to there takes less than 1 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);

/// A running guest; dropping kills the guest.
#[derive(Debug)]
pub(crate) struct Guest {
    emulator: Supervised,
    /// The emulator's folder; the emulator is killed before.
    _private: Option<Scratch>,
    control: UnixStream,
    /// Port for the command's standard input.
    stdin: UnixStream,
    console: Transcript,
    complaints: Transcript,
}

impl Guest {
    /// Starts the machine. Messages from the guest are sent to `messages`, tagged with `index`.
    ///
    /// The calling thread must outlive the guest.
    pub(crate) fn start(
        machine: &Machine<'_>,
        index: usize,
        messages: &Sender<(usize, GuestMsg)>,
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
        let (mut command, private) = machine.launch(&ports)?.confined()?;
        command.stderr(Stdio::piped());
        if !machine.terminal() {
            // A process group for the guest: Ctrl-C reaches only this process, which kills the guest.
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
        // Only the emulator holds the far ends now, so the connections close when the emulator exits.
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
            forward(stdout, Stream::Stdout, index, messages.clone())?,
            forward(stderr, Stream::Stderr, index, messages.clone())?,
            listen(control.try_clone()?, index, messages.clone())?,
        ];
        let messages = messages.clone();
        spawn("guest", move || {
            for reader in readers {
                drop(reader.join());
            }
            // The receiver is dropped when the run is over.
            drop(messages.send((index, GuestMsg::Gone)));
        })?;
        Ok(Self {
            emulator,
            _private: private,
            control,
            stdin,
            console: console_text,
            complaints,
        })
    }

    /// Starts the machine and returns whether [`GuestMsg::Hello`] arrives within `ANSWER_LIMIT`.
    pub(crate) fn answers(machine: &Machine<'_>) -> Result<bool> {
        let (sender, messages) = mpsc::channel();
        let _guest = Self::start(machine, 0, &sender)?;
        Ok(matches!(
            messages.recv_timeout(ANSWER_LIMIT),
            Ok((_, GuestMsg::Hello))
        ))
    }

    /// Sends a shell script to the guest as one base64 line. Does not block on the guest's reply.
    pub(crate) fn send(&mut self, script: &str) {
        let line = format!("{}\n", BASE64_STANDARD.encode(script));
        // A failed write means an exiting guest; `Gone` follows.
        let _gone = self.control.write_all(line.as_bytes());
    }

    /// Copies `source` to the command's standard input from a new thread, until either end closes.
    pub(crate) fn feed(&self, source: impl Read + Send + 'static) -> Result<()> {
        let stdin = self.stdin.try_clone()?;
        spawn("input", move || {
            if let Err(error) = input::pass_on(source, stdin) {
                eprintln!(
                    "error: cannot read standard input; the command sees end of file here: {error}"
                );
            }
        })?;
        Ok(())
    }

    /// Process id of the emulator.
    pub(crate) fn process(&mut self) -> u32 {
        self.emulator.child().id()
    }

    /// Length of the kernel's console output so far, in bytes.
    pub(crate) fn console_len(&self) -> usize {
        self.console.len()
    }

    /// Kills the emulator.
    pub(crate) fn kill(&mut self) {
        // The process may have exited already.
        drop(self.emulator.child().kill());
    }

    /// Waits up to 5 s for the emulator to exit, then kills the process.
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

    /// The kernel's console output so far: warnings and errors.
    pub(crate) fn console(&self) -> String {
        self.console.text()
    }

    /// Standard error of QEMU or of the User-Mode Linux process.
    pub(crate) fn complaints(&self) -> String {
        self.complaints.text()
    }
}

/// Text collected by a reader thread.
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
    messages: Sender<(usize, GuestMsg)>,
) -> Result<JoinHandle<()>> {
    spawn("output", move || {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = port.read(&mut chunk) {
            if messages
                .send((index, GuestMsg::Output(stream, chunk[..count].to_vec())))
                .is_err()
            {
                break;
            }
        }
    })
}

fn listen(
    port: UnixStream,
    index: usize,
    messages: Sender<(usize, GuestMsg)>,
) -> Result<JoinHandle<()>> {
    spawn("control", move || {
        for line in BufReader::new(port).lines().map_while(Result::ok) {
            let Some(message) = parse(&line) else {
                continue;
            };
            if messages.send((index, message)).is_err() {
                break;
            }
        }
    })
}

fn parse(line: &str) -> Option<GuestMsg> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "hello" => Some(GuestMsg::Hello),
        "ready" => Some(GuestMsg::Ready),
        "stdin" => Some(GuestMsg::TakesInput),
        "clock" => {
            let uptime = Duration::try_from_secs_f64(rest.parse().ok()?).ok()?;
            Some(GuestMsg::Clock(Instant::now(), uptime))
        }
        "exit" => rest.parse().ok().map(GuestMsg::Exit),
        "fail" => Some(GuestMsg::Fail(rest.to_owned())),
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
    fn parse_of_each_message_returns_its_variant() {
        assert!(matches!(
            parse("clock 12.34"),
            Some(GuestMsg::Clock(_, uptime)) if uptime == Duration::from_millis(12_340)
        ));
        assert_eq!(parse("clock -1"), None);
        assert_eq!(parse("hello"), Some(GuestMsg::Hello));
        assert_eq!(parse("ready"), Some(GuestMsg::Ready));
        assert_eq!(parse("stdin"), Some(GuestMsg::TakesInput));
        assert_eq!(parse("exit 7"), Some(GuestMsg::Exit(7)));
        assert_eq!(
            parse("fail no module"),
            Some(GuestMsg::Fail("no module".into()))
        );
        assert_eq!(parse("exit"), None);
        assert_eq!(parse(""), None);
    }
}
