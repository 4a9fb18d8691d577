//! Listeners: too little memory to lock, and bursts of connects beyond the backlog.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use crate::{LEAST, Preload, Server, c_program, call, check, packets, python, run};

/// Starts a program without the capability that exempts root from the limit, and with a limit below the buffers of an idle connection.
fn limited(program: &Command) -> Command {
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
    limited.args(["sh", "-c", "ulimit -l 32 && exec \"$@\"", "sh"]);
    limited.arg(program.get_program()).args(program.get_args());
    limited
}

/// Serves a client by a server that cannot lock the memory of a connection. Returns the server's standard error.
fn echo_of_limited_server(environment: &[(&str, &str)]) -> String {
    let before = packets();
    let mut server = Preload::Ours.load(limited(&python("server.py")));
    server.envs(environment.iter().copied());
    server.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Server(server.spawn().unwrap());
    let mut port = String::new();
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    output.read_line(&mut port).unwrap();
    let mut client = Preload::Ours.load(python("client.py"));
    client.arg(port.trim());
    client.stdout(Stdio::piped()).stderr(Stdio::piped());
    check(client.spawn().unwrap());
    let mut errors = String::new();
    let mut stderr = server.0.stderr.take().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    assert!(server.0.wait().unwrap().success(), "{errors}");
    assert!(packets() - before < LEAST);
    errors
}

/// Without a log, the message is on standard error.
#[test]
fn listener_that_may_lock_no_memory_reports_it_and_serves_by_tcp() {
    let errors = echo_of_limited_server(&[]);
    let expected = "listens by TCP, not RDMA: the process may not lock the memory of a connection \
                    (RLIMIT_MEMLOCK, `ulimit -l`); raise the limit, as with `ulimit -l unlimited`";
    assert_eq!(errors.matches(expected).count(), 1, "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn listener_that_may_lock_no_memory_logs_the_reason_for_tcp() {
    let file = std::env::temp_dir().join("rspreload-limited.log");
    let path = file.to_str().unwrap();
    assert_eq!(echo_of_limited_server(&[("RSOCKET_PRELOAD_LOG", path)]), "");
    let log = fs::read_to_string(file).unwrap();
    for expected in [
        "TCP from now on: the process may not lock the memory of a connection (RLIMIT_MEMLOCK, `ulimit -l`)",
        "listens by TCP, not RDMA",
    ] {
        assert_eq!(log.matches(expected).count(), 1, "{log}");
    }
}

/// The TCP socket has the name, the options and all descriptors of the rsocket. Two listeners: one message.
#[test]
fn listener_that_turns_to_tcp_keeps_its_name_and_options() {
    let mut program = c_program("calls.c");
    program.arg("limited");
    let output = run("limited", limited(&program));
    assert_eq!(
        output.matches("listens by TCP, not RDMA").count(),
        1,
        "{output}"
    );
}

#[test]
fn port_of_the_systems_choice_is_free_for_tcp() {
    call("free-port", &[]);
}

/// The error is the TCP socket's, and the log has both reasons. Another attempt succeeds at the free port.
#[test]
fn listener_that_may_lock_no_memory_at_taken_port_fails_with_eaddrinuse() {
    let mut program = c_program("calls.c");
    program.arg("limited-taken");
    let mut program = limited(&program);
    program.env("RSOCKET_PRELOAD_LOG", "1");
    let log = run("limited-taken", program);
    let expected = "listens neither by RDMA: the process may not lock the memory of a connection (RLIMIT_MEMLOCK, \
                    `ulimit -l`); nor by TCP: Address already in use";
    assert_eq!(log.matches(expected).count(), 2, "{log}");
    assert_eq!(log.matches("listens by TCP, not RDMA").count(), 1, "{log}");
}

/// Sixteen connects at once on each of four backlogs.
#[test]
fn connects_beyond_the_backlog_wait_and_are_all_served() {
    let mut program = python("bursts.py");
    program.env("RSOCKET_PRELOAD_LOG", "1");
    let log = run("bursts", program);
    assert_eq!(log.matches(": accepted by RDMA").count(), 64, "{log}");
    assert_eq!(log.matches(": connected by RDMA").count(), 64, "{log}");
    assert!(!log.contains("TCP"), "{log}");
}
