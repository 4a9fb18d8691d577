//! Programs on softnic, each in a process of its own.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{self, Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time-out of an exchange that a correct test never reaches.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before the next attempt of a client whose server does not listen yet.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// A loopback address of a test, other than those of a run of another process.
pub(crate) fn addr(test: u8, host: u8) -> IpAddr {
    let [.., run] = process::id().to_be_bytes();
    IpAddr::from([127, 64 | run & 0x3f, test, host])
}

/// A free TCP port, for programs that exchange their addresses by TCP.
pub(crate) fn free_port() -> String {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Puts a TCP port and the address of a server into words, in the place of `PORT` and `SERVER`.
pub(crate) fn with_server(words: &str, port: &str, server: IpAddr) -> String {
    let words = words.replace("PORT", port);
    words.replace("SERVER", &server.to_string())
}

/// A source in C of these tests.
pub(crate) fn source(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check");
    folder.join(name).with_extension("c")
}

/// Compiles a source in C with debug information and further options, to a program of the same name in a folder.
///
/// # Panics
/// If the compiler fails, or does not end in time.
pub(crate) fn compile(folder: &Path, source: &Path, options: &[&str]) -> PathBuf {
    let program = folder.join(source.file_stem().unwrap());
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-o"]).arg(&program).args(options);
    compiler.arg(source).args(["-lrdmacm", "-libverbs"]);
    let compiled = Program::spawn(compiler).finish("the compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

/// Runs a program with arguments by `softnic check`, with options of the command.
///
/// # Panics
/// If the program does not end in time.
pub(crate) fn check(addr: IpAddr, options: &[&str], program: &Path, args: &[&str]) -> Output {
    let words = [&[program.to_str().unwrap()], args].concat().join(" ");
    Program::start_by("check", addr, options, &words).finish(&words)
}

/// A running program, killed by the drop.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Starts a program on an address; further options of `softnic run` may be given.
    pub(crate) fn start(addr: IpAddr, options: &[&str], words: &str) -> Self {
        Self::start_by("run", addr, options, words)
    }

    /// Starts a program by `softnic run` or `softnic check`.
    pub(crate) fn start_by(action: &str, addr: IpAddr, options: &[&str], words: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
        command.args([action, "--addr", &addr.to_string()]);
        command.args(options).arg("--").args(words.split(' '));
        Self::spawn(command)
    }

    /// Starts a command without input, whose output is kept.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let command = command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for the end, and returns the output.
    ///
    /// # Panics
    /// If the program does not end in time.
    pub(crate) fn finish(mut self, what: &str) -> Output {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.is_running() {
            assert!(Instant::now() < deadline, "{what} does not end");
            thread::sleep(PAUSE);
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        std::io::Read::read_to_end(&mut self.0.stdout.take().unwrap(), &mut out).unwrap();
        std::io::Read::read_to_end(&mut self.0.stderr.take().unwrap(), &mut err).unwrap();
        Output {
            status: self.0.wait().unwrap(),
            stdout: out,
            stderr: err,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the program has ended.
        let _killed = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Runs a server and a client, by `softnic run` and by `softnic check`, until both end, each successfully and without a
/// report. The client is started again while the server does not listen. `PORT` and `SERVER` in the words stand for a TCP
/// port and the server's address.
pub(crate) fn exchange_between(addrs: [IpAddr; 2], options: &[&str], server: &str, client: &str) {
    for action in ["run", "check"] {
        exchange_by(action, addrs, options, server, client);
    }
}

/// Runs a server and a client by `softnic run` or `softnic check`.
pub(crate) fn exchange_by(
    action: &str,
    [server_addr, client_addr]: [IpAddr; 2],
    options: &[&str],
    server: &str,
    client: &str,
) {
    let port = free_port();
    let words = |words| with_server(words, &port, server_addr);
    let mut serving = Program::start_by(action, server_addr, options, &words(server));
    let deadline = Instant::now() + TEST_TIMEOUT;
    let done = loop {
        let done = Program::start_by(action, client_addr, options, &words(client));
        let done = done.finish(client);
        if done.status.success() || !serving.is_running() || Instant::now() > deadline {
            break done;
        }
        thread::sleep(PAUSE);
    };
    let served = serving.finish(server);
    assert!(done.status.success(), "{client}: {done:?}; {served:?}");
    assert!(served.status.success(), "{server}: {served:?}; {done:?}");
    for output in [&done, &served] {
        // The library is found, and has the versions that the program asks for.
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("version"), "{errors}");
        assert!(!errors.contains("softnic: "), "{errors}");
    }
}

/// Length of a file in bytes; 0 for an absent one.
pub(crate) fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}
