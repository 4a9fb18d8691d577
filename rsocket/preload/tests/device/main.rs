//! Programs unaware of RDMA, over a real device.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod exits;
mod languages;
mod listeners;
mod moves;
mod programs;
mod tasks;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

/// rdma-core's preload library: beside the libraries of a build, or below those of an installation.
fn theirs() -> PathBuf {
    let libraries = env::var_os("LD_LIBRARY_PATH").unwrap_or("/usr/lib/x86_64-linux-gnu".into());
    let library = Path::new(&libraries).join("librspreload.so");
    match library.exists() {
        true => library,
        false => Path::new(&libraries).join("rsocket/librspreload.so"),
    }
}

/// This crate's library. It is built in the same folder as this test program.
static OURS: LazyLock<PathBuf> = LazyLock::new(|| {
    let library = "librspreload.so";
    linked(
        &env::current_exe().unwrap().with_file_name(library),
        library,
    )
});

/// A link to a file or folder. The entries of `LD_PRELOAD` end at spaces and colons, and so do words of a shell.
fn linked(to: &Path, name: &str) -> PathBuf {
    let link = env::temp_dir().join(format!("{}-{name}", std::process::id()));
    drop(fs::remove_file(&link));
    symlink(to, &link).unwrap();
    link
}

/// Preload library of a program.
#[derive(Clone, Copy, Debug)]
enum Preload {
    Ours,
    Theirs,
    Nothing,
}

impl Preload {
    fn library(self) -> Option<PathBuf> {
        match self {
            Self::Ours => Some(OURS.clone()),
            Self::Theirs => Some(theirs()),
            Self::Nothing => None,
        }
    }

    fn load(self, mut program: Command) -> Command {
        program.arg(address());
        program.envs(self.library().map(|library| ("LD_PRELOAD", library)));
        program
    }
}

fn source(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("tests/device").join(name)
}

fn python(script: &str) -> Command {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(source(script));
    python
}

/// A client that creates its socket without flags; rdma-core 44 does not replace sockets with flags.
fn c_client() -> Command {
    c_program("client.c")
}

fn c_program(name: &str) -> Command {
    let program = env::temp_dir().join(name.trim_end_matches(".c"));
    // The folder is private to this guest and empty at first.
    if program.exists() {
        return Command::new(program);
    }
    let built = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O2",
            "-pthread",
            "-o",
        ])
        .arg(&program)
        .arg(source(name))
        .status()
        .unwrap();
    assert!(built.success());
    Command::new(program)
}

fn address() -> String {
    env::var("A").expect("this test runs in the guest: `cargo xtask test`")
}

/// A server, killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Number of packets sent by the device.
fn packets() -> u64 {
    let counter = PathBuf::from("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts");
    fs::read_to_string(counter).unwrap().trim().parse().unwrap()
}

/// Runs a client against an echo server. Returns the number of packets sent by the device.
fn echo(server: Preload, client: Preload, program: Command) -> u64 {
    let before = packets();
    let mut server = server.load(python("server.py"));
    let mut server = Server(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut port = String::new();
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    output.read_line(&mut port).unwrap();
    let ran = client.load(program).arg(port.trim()).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
    assert!(server.0.wait().unwrap().success());
    packets() - before
}

/// Environment of a forking program. On a busy host, a peer may need long for its part of a move.
const FORKS: &[(&str, &str)] = &[("RDMAV_FORK_SAFE", "1"), ("RS_FORK_WAIT", "100")];

/// The same, with a peer that uses librdmacm's preload library.
const FORKS_WITH_LIBRDMACM: &[(&str, &str)] =
    &[("RDMAV_FORK_SAFE", "1"), ("RS_FORK_PEER", "librdmacm")];

/// A server that forks for each connection.
struct ForkServer {
    _server: Server,
    port: String,
}

impl ForkServer {
    fn start(preload: Preload, program: Command, env: &[(&str, &str)]) -> Self {
        let mut server = preload.load(program);
        server.envs(env.iter().copied()).stdout(Stdio::piped());
        let mut server = Server(server.spawn().unwrap());
        let mut port = String::new();
        let mut output = BufReader::new(server.0.stdout.take().unwrap());
        output.read_line(&mut port).unwrap();
        Self {
            _server: server,
            port: port.trim().to_owned(),
        }
    }

    fn client(&self, preload: Preload, program: Command, env: &[(&str, &str)]) -> Child {
        let mut client = preload.load(program);
        client.arg(&self.port).envs(env.iter().copied());
        client.stdout(Stdio::piped()).stderr(Stdio::piped());
        client.spawn().unwrap()
    }
}

fn check(client: Child) {
    let ran = client.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
}

/// Minimum number of packets: at most 4096 bytes each, for the data sent and echoed by one client.
const LEAST: u64 = 2 * 1_000_000 / 4096;

#[test]
fn unmodified_programs_run_over_rdma() {
    let client = python("client.py");
    assert!(echo(Preload::Ours, Preload::Ours, client) >= LEAST);
}

#[test]
fn peer_with_librspreload_runs_over_rdma() {
    assert!(echo(Preload::Ours, Preload::Theirs, c_client()) >= LEAST);
}

#[test]
fn connect_without_rdma_listener_falls_back_to_tcp() {
    for client in [python("client.py"), c_client()] {
        assert!(echo(Preload::Nothing, Preload::Ours, client) < LEAST);
    }
}

/// Datagram sockets fall back to UDP and keep their type.
#[test]
fn datagram_program_runs_over_rdma() {
    let before = packets();
    let program = python("datagrams.py");
    let ran = Preload::Ours.load(program).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
    // 500 datagrams in each direction, except the first few.
    assert!(packets() - before >= 900);
}

/// Runs a part of `calls.c`.
fn call(part: &str, env: &[(&str, &str)]) -> String {
    call_of("calls.c", part, env)
}

/// Runs a part of a program.
fn call_of(name: &str, part: &str, env: &[(&str, &str)]) -> String {
    let mut program = c_program(name);
    program.arg(part).envs(env.iter().copied());
    run(part, program)
}

/// Runs a program, checks its output, and returns its standard error.
fn run(part: &str, program: Command) -> String {
    let ran = Preload::Ours.load(program).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{part}: {}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
    errors.into_owned()
}

#[test]
fn first_call_of_any_kind_succeeds() {
    for part in ["first-recv", "first-select", "first-connect", "first-epoll"] {
        call(part, &[]);
    }
}

#[test]
fn duplicated_descriptors_close_in_any_order() {
    call("duplicates", &[]);
    call("ranges", &[]);
}

#[test]
fn sendfile_behaves_as_over_tcp() {
    call("files", &[]);
}

/// Calls made by no program in the table of programs.
#[test]
fn socket_calls_behave_as_documented() {
    call("messages", &[]);
    call("requests", &[]);
    call("waiting", &[]);
    call("accepting", &[]);
    call("misused", &[]);
}

#[test]
fn calls_have_the_results_of_tcp() {
    for part in [
        "discarding",
        "selecting",
        "accepting",
        "mapping",
        "sending",
        "unsharing",
        "numbered",
        "waiting",
    ] {
        assert_eq!(call_of("semantics.c", part, &[]), "");
    }
}

#[test]
fn program_that_opens_standard_streams_and_closes_each_number_keeps_its_streams() {
    assert_eq!(call_of("semantics.c", "standard", &[]), "");
}

#[test]
fn handler_that_jumps_out_of_a_call_leaves_no_lock() {
    assert_eq!(call_of("border.c", "jumping", &[]), "");
}

#[test]
fn streams_of_a_process_that_changes_its_identity_go_on() {
    call_of("border.c", "identities", &[]);
}

#[test]
fn server_that_changes_its_user_for_each_connection_keeps_no_engine_without_streams() {
    call_of("border.c", "toggles", &[]);
}

#[test]
fn listener_of_a_process_that_changes_its_identity_reports_the_reason() {
    let output = call_of("border.c", "listener", &[]);
    assert_eq!(output.matches("set RDMAV_FORK_SAFE").count(), 1, "{output}");
}

#[test]
fn socket_bound_before_a_change_of_identity_listens_by_tcp() {
    let output = call_of("border.c", "bound", &[]);
    let expected = "listens by TCP, not RDMA: the process has changed its credentials";
    assert_eq!(output.matches(expected).count(), 1, "{output}");
}

#[test]
fn rsocket_passed_by_a_message_reports_the_reason() {
    let output = call_of("semantics.c", "passing", &[]);
    let expected = "cannot be passed to another process";
    assert_eq!(output.matches(expected).count(), 1, "{output}");
}

#[test]
fn ppoll_and_pselect_with_unblocked_signal_return_eintr() {
    call("masks", &[]);
}

#[test]
fn library_threads_block_signals_of_the_program() {
    call("threads", &[]);
}

#[test]
fn epoll_without_rsockets_uses_the_kernel() {
    call("epoll", &[]);
}

/// The same for an `epoll` instance with rsockets.
#[test]
fn epoll_with_rsockets_behaves_as_documented() {
    for part in [
        "duplicates",
        "nested",
        "edges",
        "ends",
        "beginnings",
        "listeners",
        "variants",
        "levels",
        "files",
        "datagrams",
    ] {
        call_of("epoll.c", part, &[]);
    }
}

#[test]
fn direct_write_to_descriptor_fails_in_each_state() {
    assert_eq!(call_of("unseen.c", "writes", &[]), "");
}

#[test]
fn syscall_by_number_is_intercepted() {
    assert_eq!(call_of("unseen.c", "numbered", &[]), "");
    assert_eq!(call_of("unseen.c", "numbered-places", &[]), "");
}

#[test]
fn forked_stream_is_moved_by_stdio_and_by_syscall() {
    assert_eq!(call_of("unseen.c", "moved-by-use", FORKS), "");
}

#[test]
fn forked_stream_is_moved_by_each_message_call() {
    for part in ["moved-by-sendto", "moved-by-sendmsg", "moved-by-sendmmsg"] {
        assert_eq!(call_of("unseen.c", part, FORKS), "");
    }
}

#[test]
fn direct_read_of_descriptor_is_reported_at_close() {
    let output = call_of("unseen.c", "reads", &[]);
    let expected = "a socket was read by a call that this library does not see";
    assert_eq!(output.matches(expected).count(), 1, "{output}");
}

#[test]
fn stdio_stream_of_socket_carries_data_both_ways() {
    assert_eq!(call_of("unseen.c", "stdio", &[]), "");
}

#[test]
fn stdio_file_writes_the_rest_after_a_signal() {
    assert_eq!(call_of("unseen.c", "stdio-interrupted", &[]), "");
}

#[test]
fn stdio_file_at_the_address_of_a_closed_one_has_its_own_descriptor() {
    assert_eq!(call_of("unseen.c", "stdio-reused", &[]), "");
}

#[test]
fn sendmmsg_and_recvmmsg_transfer_several_datagrams() {
    call_of("unseen.c", "many", &[]);
}

#[test]
fn environment_variables_set_queue_sizes() {
    let sizes = [
        ("RS_SQ_SIZE", "100"),
        ("RS_RQ_SIZE", "200"),
        ("RS_INLINE", "32"),
    ];
    call("sizes", &sizes);
}

#[test]
fn inherited_stream_used_by_child_reports_the_reason() {
    let output = call("inherited", &[]);
    let expected = "an RDMA stream that process";
    assert_eq!(output.matches(expected).count(), 1, "{output}");
}

/// Like rsync's two processes on one connection.
#[test]
fn moved_stream_used_by_child_reports_the_reason() {
    let output = call("moved", FORKS);
    let expected = "an RDMA stream that process";
    assert_eq!(output.matches(expected).count(), 1, "{output}");
}

#[test]
fn log_lists_sockets_over_tcp_and_rdma() {
    let quiet = call("fallback", &[]);
    assert_eq!(quiet, "");
    let output = call("fallback", &[("RSOCKET_PRELOAD_LOG", "1")]);
    assert!(
        output.contains(": TCP from now on: Connection refused"),
        "{output}"
    );
    let output = call("accepting", &[("RSOCKET_PRELOAD_LOG", "1")]);
    assert!(output.contains(": accepted by RDMA"), "{output}");
    let file = env::temp_dir().join("rspreload.log");
    let path = file.to_str().unwrap();
    assert_eq!(call("fallback", &[("RSOCKET_PRELOAD_LOG", path)]), "");
    assert!(
        fs::read_to_string(file)
            .unwrap()
            .contains(": TCP from now on")
    );
}

#[test]
fn fallback_to_tcp_keeps_address_and_options() {
    call("fallback", &[]);
}

/// Beside the same calls on TCP sockets.
#[test]
fn nonblocking_connect_without_rdma_listener_goes_on_by_tcp() {
    for part in ["poll", "select", "epoll", "repeated", "threads"] {
        assert_eq!(call_of("attempts.c", part, &[]), "");
    }
}

#[test]
fn nonblocking_connect_without_any_listener_fails_as_tcp() {
    assert_eq!(call_of("attempts.c", "refused", &[]), "");
}

#[test]
fn socket_closed_during_its_attempt_leaves_its_number_to_others() {
    assert_eq!(call_of("attempts.c", "closed", &[]), "");
}

/// Servers and clients in one program, and servers in children.
#[test]
fn sockets_at_loopback_are_tcp_and_udp() {
    let before = packets();
    call("loopback", &[]);
    call("loopback", FORKS);
    assert_eq!(packets(), before);
}

#[test]
fn fallback_to_tcp_keeps_epoll_registration() {
    call("watched-fallback", &[]);
}

/// The device files are invisible to the program.
#[test]
fn program_without_device_runs_over_tcp() {
    let built = c_program("calls.c");
    let mut program = Command::new("unshare");
    program.args(["--mount", "sh", "-c"]);
    program.arg("mount -t tmpfs none /dev/infiniband && exec \"$@\"");
    program.arg("sh").arg(built.get_program()).arg("no-device");
    let before = packets();
    run("no-device", program);
    assert_eq!(packets(), before);
}

/// Connects and sleeps.
const IDLE: &str = "
import socket, sys, time
connection = socket.create_connection(sys.argv[1:3])
print(flush=True)
time.sleep(99)
";

#[test]
fn forking_server_serves_from_its_children() {
    let server = ForkServer::start(Preload::Ours, python("fork_server.py"), FORKS);
    let before = packets();
    let clients = [python("client.py"), c_client()];
    let clients = clients.map(|program| server.client(Preload::Ours, program, FORKS));
    clients.into_iter().for_each(check);
    assert!(packets() - before >= 2 * LEAST);
    // A client dying during the move of its connection blocks no other client.
    let mut idle = Command::new("/usr/bin/python3");
    idle.args(["-c", IDLE]);
    let mut idle = Server(server.client(Preload::Ours, idle, FORKS));
    let mut output = BufReader::new(idle.0.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    drop(idle);
    check(server.client(Preload::Ours, c_client(), FORKS));
}

#[test]
fn forking_server_interoperates_with_librspreload() {
    let before = packets();
    let forks = FORKS_WITH_LIBRDMACM;
    let server = ForkServer::start(Preload::Theirs, c_program("fork_server.c"), forks);
    check(server.client(Preload::Ours, c_client(), forks));
    drop(server);
    let server = ForkServer::start(Preload::Ours, c_program("fork_server.c"), forks);
    check(server.client(Preload::Theirs, c_client(), forks));
    assert!(packets() - before >= 2 * LEAST);
}
