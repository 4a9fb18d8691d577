//! Guests for a `#[test]`: commands or closures on one host or several.

use std::env;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::commands::cargo_runner::passed_on;
use crate::commands::report::Outcome;
use crate::commands::setup::{self, Group};
use crate::event::{EventKind, Host, Stream};
use crate::network::link::{LinkOption, Links};
use crate::run::{Run, quote};
use crate::workspace::Workspace;
use crate::{Device, uml};

/// Time limit of the commands without [`Guests::timeout`].
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Memory of each guest without [`Guests::memory_mib`], in MiB.
const DEFAULT_MEMORY_MIB: u32 = 512;

/// Variable of a closure's guest: the name of the test.
const INSIDE: &str = "SOFT_ROCE_INSIDE";

/// The guest's own script, absent from other machines.
const AGENT: &str = "/run/soft-roce/agent";

/// Guests for a test, joined by a switch: each has an RDMA device, and this machine's files.
///
/// A test runs a command on each host, and looks at the output:
///
/// ```no_run
/// use soft_roce::{Guests, Host};
///
/// #[test]
/// fn client_reaches_the_server() {
///     let commands = ["rping -s -a $A -C 3", "sleep 1; rping -c -v -a $A -C 3"];
///     let ran = Guests::pair().run(commands).unwrap();
///     let pings = ran.stdout(Host::B);
///     assert!(pings.contains("ping data: rdma-ping-2"), "{ran}");
/// }
/// ```
///
/// Programs of the package under test are named by `env!("CARGO_BIN_EXE_program")`.
///
/// [`Guests::run_in_test`] runs the test's own code on each host:
///
/// ```no_run
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// use soft_roce::{Guests, Host};
///
/// #[test]
/// fn hello_arrives() {
///     Guests::pair().run_in_test("hello_arrives", |host| {
///         if host == Host::A {
///             let (mut stream, _) = TcpListener::bind("10.9.0.1:7471").unwrap().accept().unwrap();
///             let mut hello = String::new();
///             stream.read_to_string(&mut hello).unwrap();
///             assert_eq!(hello, "hello");
///         } else {
///             std::thread::sleep(std::time::Duration::from_secs(1));
///             TcpStream::connect("10.9.0.1:7471").unwrap().write_all(b"hello").unwrap();
///         }
///     });
/// }
/// ```
///
/// Such tests run by `cargo test`, not by `cargo soft-roce test`, whose guests cannot start further guests. No package is
/// installed: `cargo soft-roce setup` does.
#[derive(Clone, Debug)]
pub struct Guests {
    hosts: usize,
    device: Device,
    timeout: Duration,
    memory_mib: u32,
    links: Vec<LinkOption>,
    environment: Vec<(String, String)>,
}

impl Guests {
    /// One guest, host a.
    pub fn one() -> Self {
        Self::many(1)
    }

    /// Two guests, hosts a and b.
    pub fn pair() -> Self {
        Self::many(2)
    }

    /// `hosts` guests: a, b, c and so on, at most [`Host::MAX`].
    pub fn many(hosts: usize) -> Self {
        Self {
            hosts,
            device: Device::default(),
            timeout: DEFAULT_TIMEOUT,
            memory_mib: DEFAULT_MEMORY_MIB,
            links: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets the kind of RDMA device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Limits the duration of the commands, excluding the boot; 60 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the memory of each guest, in MiB; 512 by default.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Changes a link from the start.
    #[must_use]
    pub fn link(mut self, link: LinkOption) -> Self {
        self.links.push(link);
        self
    }

    /// Adds an environment variable to the commands.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs a shell command on each host: the first on host a, and so on. The environment is that of
    /// `cargo soft-roce run`: `$A`, `$B`, `$HOST`, `$RDMA_DEVICE`. Blocks until all have ended, or one has failed.
    ///
    /// # Errors
    ///
    /// The number of commands is not the number of hosts, or no guest can be started. A failed command is part of the
    /// result.
    pub fn run<C: Into<String>>(self, commands: impl IntoIterator<Item = C>) -> Result<Ran> {
        self.run_watching(commands, |_, _| Ok(()))
    }

    /// Runs commands as [`Guests::run`] does, and calls `watch` for each line of output. `watch` can cut links.
    ///
    /// ```no_run
    /// use soft_roce::{Guests, Host};
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// let server = "echo ready; until ! ping -c 1 -W 1 b; do :; done";
    /// let ran = Guests::pair().run_watching([server, "sleep 20"], |line, links| {
    ///     if line.text == "ready" {
    ///         links.cut(Host::A, Host::B)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # drop(ran);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Guests::run`]; and the first error of `watch`, after the end of the commands.
    pub fn run_watching<C: Into<String>>(
        self,
        commands: impl IntoIterator<Item = C>,
        mut watch: impl FnMut(&Line<'_>, &Links) -> Result<()>,
    ) -> Result<Ran> {
        let commands: Vec<String> = commands.into_iter().map(Into::into).collect();
        ensure!(
            commands.len() == self.hosts,
            "{} commands for {} hosts: give one for each host",
            commands.len(),
            self.hosts
        );
        require_installed()?;
        let workspace = Workspace::load()?;
        let (plan, links) = self.plan(commands).with_links();
        let mut printed = vec![Printed::default(); self.hosts];
        let mut watched = Ok(());
        let outcome = plan.execute(&workspace, &mut |event| {
            let printed = &mut printed[event.host.index()];
            match &event.kind {
                EventKind::Output(stream, bytes) => {
                    let text = String::from_utf8_lossy(bytes);
                    let all = printed.stream(*stream);
                    all.push_str(&text);
                    all.push('\n');
                    let (host, stream) = (event.host, *stream);
                    if watched.is_ok() {
                        let text = &text;
                        watched = watch(&Line { host, stream, text }, &links);
                    }
                }
                EventKind::Ended(code) => printed.code = Some(*code),
                EventKind::Up => {}
            }
        })?;
        watched?;
        Ok(Ran { outcome, printed })
    }

    /// Runs `body` on each host, with the host's name: the test's program is started again in each guest, for this test
    /// only, where the call runs `body` instead of guests. `test` is the test's full name, with its modules, as the test
    /// harness prints it. Code of the test after the call runs in the guests too: let the call be the last.
    ///
    /// # Panics
    ///
    /// `body` panics on a host, no test is called `test`, or no guest can be started: the message has the output of each
    /// host.
    #[track_caller]
    #[expect(clippy::panic, reason = "a test fails by panicking")]
    pub fn run_in_test(self, test: &str, body: impl FnOnce(Host)) {
        if env::var(INSIDE).is_ok_and(|inside| inside == test) {
            let host = env::var("HOST").ok().and_then(|host| host.parse().ok());
            body(host.unwrap_or(Host::A));
            return;
        }
        match self.start_again(test) {
            Ok(ran) => {
                let ran = ran.expect_success();
                let passed =
                    |printed: &Printed| printed.stdout.contains("test result: ok. 1 passed;");
                assert!(
                    ran.printed.iter().all(passed),
                    "no test is called `{test}`: use the name that the test harness prints\n{ran}"
                );
            }
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Runs this program's test `test` on each host.
    fn start_again(mut self, test: &str) -> Result<Ran> {
        let program = env::current_exe().context("cannot determine the path of the test")?;
        let test = shlex::try_quote(test)?;
        let command = format!(
            "exec {} --exact {test} --nocapture --include-ignored",
            quote(&program)?
        );
        let mut environment = passed_on(env::vars_os());
        environment.append(&mut self.environment);
        environment.push((INSIDE.to_owned(), test.into_owned()));
        self.environment = environment;
        let commands = vec![command; self.hosts];
        self.run(commands)
    }

    fn plan(&self, commands: Vec<String>) -> Run {
        let plan = Run::each(commands)
            .device(self.device)
            .memory_mib(self.memory_mib)
            .timeout(self.timeout);
        let plan = match env::current_dir() {
            Ok(folder) => plan.folder(folder),
            Err(_) => plan,
        };
        let plan = self.links.iter().cloned().fold(plan, Run::link);
        self.environment
            .iter()
            .fold(plan, |plan, (name, value)| plan.env(name, value))
    }
}

/// Fails where guests cannot start: a test installs no package.
fn require_installed() -> Result<()> {
    if Path::new(AGENT).exists() {
        bail!("this test starts guests, which guests cannot do: run it by `cargo test`");
    }
    let mut absent = setup::absent(Group::Guest);
    if uml::build::built(None).is_none() {
        absent.extend(setup::absent(Group::Qemu));
    }
    ensure!(
        absent.is_empty(),
        "not installed: {}. `cargo soft-roce setup` installs the packages of guests",
        absent.join(" ")
    );
    Ok(())
}

/// A line of output.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The host.
    pub host: Host,
    /// The stream.
    pub stream: Stream,
    /// The line, without its newline.
    pub text: &'a str,
}

/// Output and exit code of a command.
#[derive(Clone, Debug, Default)]
struct Printed {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

impl Printed {
    fn stream(&mut self, stream: Stream) -> &mut String {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// The result of a run: the output and the exit code of each host's command. Its text form has all of them.
#[derive(Debug)]
pub struct Ran {
    outcome: Outcome,
    printed: Vec<Printed>,
}

impl Ran {
    /// Standard output of a host's command; empty for a host that is not part of the run.
    pub fn stdout(&self, host: Host) -> &str {
        self.printed
            .get(host.index())
            .map_or("", |printed| &printed.stdout)
    }

    /// Standard error of a host's command; empty for a host that is not part of the run.
    pub fn stderr(&self, host: Host) -> &str {
        self.printed
            .get(host.index())
            .map_or("", |printed| &printed.stderr)
    }

    /// Exit code of a host's command; none if it was stopped, or its guest failed.
    pub fn exit_code(&self, host: Host) -> Option<i32> {
        self.printed.get(host.index())?.code
    }

    /// The result of the guests: timeouts, and faults of kernels.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the result if every command has exited with 0 and no guest has failed.
    ///
    /// # Panics
    ///
    /// A command or a guest has failed: the message has the output of each host.
    #[track_caller]
    #[must_use]
    pub fn expect_success(self) -> Self {
        assert!(self.outcome.is_success(), "{self}");
        self
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        if let Some(complaint) = self.outcome.complaint() {
            writeln!(text, "{complaint}")?;
        }
        for (host, printed) in (0..).map_while(Host::at).zip(&self.printed) {
            match printed.code {
                Some(code) => writeln!(text, "host {host}: exit code {code}")?,
                None => writeln!(text, "host {host}: no exit code")?,
            }
            for line in printed.stdout.lines().chain(printed.stderr.lines()) {
                writeln!(text, "{host}| {line}")?;
            }
        }
        f.write_str(text.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_with_too_few_commands_is_refused_before_a_boot() {
        let error = Guests::many(3).run(["true"; 2]).unwrap_err().to_string();
        assert_eq!(error, "2 commands for 3 hosts: give one for each host");
    }

    #[test]
    fn output_of_a_stopped_host_is_shown() {
        let stdout = "one\n".to_owned();
        let printed = Printed {
            stdout,
            ..Printed::default()
        };
        let outcome = Outcome::new(Vec::new(), None, None);
        let ran = Ran {
            outcome,
            printed: vec![printed],
        };
        assert_eq!(ran.to_string(), "host a: no exit code\na| one");
        assert_eq!((ran.stdout(Host::B), ran.exit_code(Host::B)), ("", None));
    }
}
