//! Exits of processes that have not closed their sockets.

use std::{
    io::{self, ErrorKind, Read},
    net::{IpAddr, SocketAddr},
    process::ExitStatus,
    time::Duration,
};

use rsocket::Listener;

use crate::{FORKS, Preload, address, c_program};

const SIZE: usize = 3_000_000;
const STATUS: i32 = 7;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Result of a server: the bytes before the end of the stream or the failure, and the client's status.
struct Ended {
    received: Vec<u8>,
    end: io::Result<usize>,
    status: ExitStatus,
}

/// Runs a client that ends without closing its socket.
fn end(way: &str, env: &[(&str, &str)]) -> Ended {
    let ip: IpAddr = address().parse().unwrap();
    let listener = Listener::bind(SocketAddr::new(ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = c_program("exits.c");
    client.arg(way);
    let mut client = Preload::Ours.load(client);
    client.arg(port.to_string()).envs(env.iter().copied());
    let mut client = client.spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT));
    let mut received = Vec::new();
    let end = stream.read_to_end(&mut received);
    let status = client.wait().unwrap();
    Ended {
        received,
        end,
        status,
    }
}

fn is_pattern(bytes: &[u8]) -> bool {
    let mut expected = (0..SIZE)
        .map(|at| u8::try_from(at % 251).unwrap_or(0))
        .cycle();
    bytes.iter().all(|byte| Some(*byte) == expected.next())
}

/// TCP delivers the data and the end of the stream in each case.
#[test]
fn exit_without_close_delivers_all_data_and_the_end() {
    for way in [
        "return",
        "exit",
        "_exit",
        "_Exit",
        "quick_exit",
        "exit_group",
        "thread",
        "blocked",
        "idle",
        "stdio",
        "handler",
        "destructor",
        "half-handler",
        "half-destructor",
        "nonblocking",
        "closed",
        "shut",
        "child",
    ] {
        let ended = end(way, &[]);
        assert_eq!(ended.end.unwrap(), SIZE, "{way}");
        assert!(is_pattern(&ended.received), "{way}");
        assert_eq!(ended.status.code(), Some(STATUS), "{way}");
    }
}

/// The signal may interrupt any part of a call, also one with locks.
#[test]
fn exit_in_signal_handler_of_busy_sender_ends_the_process() {
    for _ in 0..8 {
        let ended = end("signal", &[]);
        assert_eq!(ended.status.code(), Some(STATUS));
        assert!(is_pattern(&ended.received));
        // A handler inside a call that has locked the stream cannot disconnect.
        if let Err(err) = ended.end {
            assert_eq!(err.kind(), ErrorKind::ConnectionReset);
        }
    }
}

#[test]
fn exit_of_forked_process_delivers_a_moved_stream() {
    let mut program = c_program("exits.c");
    program.arg("moved");
    let mut program = Preload::Ours.load(program);
    let status = program.envs(FORKS.iter().copied()).status().unwrap();
    assert_eq!(status.code(), Some(STATUS));
}

/// The documented limits and the settings that waive the wait.
#[test]
fn death_by_signal_and_linger_zero_reset_the_stream() {
    for (way, env, code) in [
        ("kill", &[][..], None),
        ("zero", &[], Some(STATUS)),
        ("exit", &[("RS_EXIT_LINGER", "0")], Some(STATUS)),
    ] {
        let ended = end(way, env);
        let err = ended.end.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::ConnectionReset, "{way}");
        assert_eq!(ended.status.code(), code, "{way}");
    }
}
