//! Debian's unmodified programs of libibverbs and librdmacm, two processes on the loopback interface.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{self, Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time-out of an exchange that a correct test never reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before the next attempt of a client whose server does not listen yet.
const PAUSE: Duration = Duration::from_millis(50);

/// A loopback address of a test, other than those of a run of another process.
fn addr(test: u8, host: u8) -> Ipv4Addr {
    let [.., run] = process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | run & 0x3f, test, host)
}

/// A free TCP port, for programs that exchange their addresses by TCP.
fn free_port() -> String {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// A running program, killed by the drop.
struct Program(Child);

impl Program {
    /// Starts a program on an address; further options of `softnic run` may be given.
    fn start(addr: Ipv4Addr, options: &[&str], words: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
        command.args(["run", "--addr", &addr.to_string()]);
        command.args(options).arg("--").args(words.split(' '));
        let command = command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for the end, and returns the output.
    ///
    /// # Panics
    /// If the program does not end in time.
    fn finish(mut self, what: &str) -> Output {
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

/// Runs a server and a client until both end, each successfully. The client is started again while the server does not
/// listen. `PORT` and `SERVER` in the words stand for a TCP port and the server's address.
fn exchange(test: u8, options: &[&str], server: &str, client: &str) {
    let (server_addr, client_addr) = (addr(test, 2), addr(test, 3));
    let port = free_port();
    let words = |words: &str| {
        words
            .replace("PORT", &port)
            .replace("SERVER", &server_addr.to_string())
    };
    let mut serving = Program::start(server_addr, options, &words(server));
    let deadline = Instant::now() + TEST_TIMEOUT;
    let done = loop {
        let done = Program::start(client_addr, options, &words(client)).finish(client);
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
    }
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rc_pingpong_runs() {
    exchange(
        1,
        &[],
        "ibv_rc_pingpong -g 0 -n 200 -p PORT",
        "ibv_rc_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rc_pingpong_with_events_runs() {
    exchange(
        2,
        &[],
        "ibv_rc_pingpong -e -g 0 -n 200 -p PORT",
        "ibv_rc_pingpong -e -g 0 -n 200 -p PORT SERVER",
    );
}

/// Both sides end after a handshake over TCP: a process that ended earlier would not repeat a lost acknowledgement.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn send_latency_runs_despite_losses() {
    let options = ["--loss", "0.02", "--seed", "7"];
    exchange(
        3,
        &options,
        "ib_send_lat -F -x 0 -n 100 -p PORT",
        "ib_send_lat -F -x 0 -n 100 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn uc_pingpong_runs() {
    exchange(
        4,
        &[],
        "ibv_uc_pingpong -g 0 -n 200 -p PORT",
        "ibv_uc_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn ud_pingpong_runs() {
    exchange(
        5,
        &[],
        "ibv_ud_pingpong -g 0 -n 200 -p PORT",
        "ibv_ud_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn srq_pingpong_runs() {
    exchange(
        6,
        &[],
        "ibv_srq_pingpong -g 0 -n 200 -p PORT",
        "ibv_srq_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn xsrq_pingpong_runs() {
    exchange(
        7,
        &[],
        "ibv_xsrq_pingpong -g 0 -n 200 -p PORT",
        "ibv_xsrq_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rping_runs_and_verifies_its_data() {
    exchange(
        8,
        &[],
        "rping -s -a SERVER -C 20 -V",
        "rping -c -a SERVER -C 20 -V",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn ucmatose_runs() {
    exchange(9, &[], "ucmatose -b SERVER", "ucmatose -s SERVER");
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn udaddy_runs() {
    exchange(10, &[], "udaddy -b SERVER", "udaddy -s SERVER");
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn write_bandwidth_runs() {
    exchange(
        11,
        &[],
        "ib_write_bw -F -x 0 -n 100 -p PORT",
        "ib_write_bw -F -x 0 -n 100 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn send_latency_runs() {
    exchange(
        13,
        &[],
        "ib_send_lat -F -x 0 -n 100 -p PORT",
        "ib_send_lat -F -x 0 -n 100 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn endpoints_without_event_channels_connect() {
    exchange(
        16,
        &[],
        "rdma_server -p PORT",
        "rdma_client -s SERVER -p PORT",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn read_bandwidth_runs() {
    exchange(
        18,
        &[],
        "ib_read_bw -F -x 0 -n 50 -p PORT",
        "ib_read_bw -F -x 0 -n 50 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn atomic_bandwidth_runs() {
    exchange(
        19,
        &[],
        "ib_atomic_bw -F -x 0 -n 50 -p PORT",
        "ib_atomic_bw -F -x 0 -n 50 -p PORT SERVER",
    );
}

/// Length of a file in bytes; 0 for an absent one.
fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn writes_to_a_killed_server_fail() {
    let (server_addr, client_addr) = (addr(14, 2), addr(14, 3));
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().join("frames.pcap");
    let words = format!("ib_write_bw -F -x 0 -s 64 -D 60 -p {port}");
    let mut server = Program::start(server_addr, &[], &words);
    let options = ["--pcap", pcap.to_str().unwrap()];
    let client_words = format!("{words} {server_addr}");
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut client = Program::start(client_addr, &options, &client_words);
    // Frames flow once the recording is longer than those of the set-up.
    while len(&pcap) < 100_000 {
        assert!(
            server.is_running() && Instant::now() < deadline,
            "no frames"
        );
        if !client.is_running() {
            client = Program::start(client_addr, &options, &client_words);
        }
        thread::sleep(PAUSE);
    }
    server.0.kill().unwrap();
    let ended = client.finish("the client");
    assert!(!ended.status.success(), "{ended:?}");
    assert_ne!(ended.status.code(), None, "the client ends by itself");
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn second_process_at_an_address_has_no_device_and_reports_the_cause() {
    let server_addr = addr(15, 2);
    let port = free_port();
    let start = || Program::start(server_addr, &[], &format!("ibv_rc_pingpong -g 0 -p {port}"));
    let mut first = start();
    let deadline = Instant::now() + TEST_TIMEOUT;
    // Either process may have the port before the other: then the first one ends.
    loop {
        let second = Program::start(server_addr, &[], "ibv_devinfo").finish("ibv_devinfo");
        let errors = String::from_utf8_lossy(&second.stderr).into_owned();
        if errors.contains("another process") {
            assert!(
                errors.contains(&format!("UDP port 4791 of {server_addr}")),
                "{errors}"
            );
            break;
        }
        assert!(Instant::now() < deadline, "{second:?}");
        if !first.is_running() {
            first = start();
        }
    }
}
