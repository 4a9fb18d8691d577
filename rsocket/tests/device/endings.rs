//! How connections end.

use std::{
    env, fs,
    io::{self, Read, Write},
    net::Shutdown,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rsocket::{Listener, Options, Stream, proto::ConnectData};

use crate::{
    held::{held, wait_for_the_rest_to_go},
    local, often,
    probe::{Probe, RECEIVES},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// The address that a child process connects to.
const SERVER: &str = "RSOCKET_SERVER";

/// A process that connects to this one, and then does nothing until it is killed.
struct Peer(Child);

impl Peer {
    fn start(listener: &Listener) -> (Self, Stream) {
        let child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "endings::a_peer_of_other_tests",
                "--include-ignored",
            ])
            .env(SERVER, listener.local_addr().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE));
        (Self(child), stream)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test on its own: what the child process does. Without an address it only checks that it is
/// on its own.
#[test]
fn a_peer_of_other_tests() {
    let Ok(server) = env::var(SERVER) else {
        assert!(env::var_os("A").is_some(), "these tests run in the guest");
        return;
    };
    let mut stream = Stream::connect(&server).unwrap();
    stream.write_all(b"ready").unwrap();
    thread::sleep(2 * PATIENCE);
}

/// T-ER2, T-ER3: P2, P11.
#[test]
fn a_reader_notices_that_its_peer_was_killed() {
    let listener = Listener::bind(local()).unwrap();
    let (mut peer, mut stream) = Peer::start(&listener);
    stream.read_exact(&mut [0; 5]).unwrap();
    let reader = thread::spawn(move || {
        let err = stream.read(&mut [0; 1]).unwrap_err();
        (err.kind(), stream)
    });
    thread::sleep(Duration::from_millis(100));
    peer.kill();
    let (kind, mut stream) = reader.join().unwrap();
    assert_eq!(kind, io::ErrorKind::ConnectionReset);
    let err = stream.write(b"x").unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::ConnectionReset);
    assert!(stream.take_error().is_some());
}

/// T-SH7: P3.
#[test]
fn a_stream_with_a_dead_peer_is_closed_in_bounds() {
    let options = Options::new().linger(Duration::from_secs(2));
    let listener = options.bind(local()).unwrap();
    let (mut peer, mut stream) = Peer::start(&listener);
    stream.read_exact(&mut [0; 5]).unwrap();
    stream.set_nonblocking(true);
    // As much as goes without the peer reading it.
    while stream.write(&[0; 10_000]).is_ok() {}
    peer.kill();
    let start = Instant::now();
    stream.set_nonblocking(false);
    drop(stream);
    assert!(start.elapsed() < PATIENCE);
}

/// T-SH8
#[test]
fn both_sides_can_end_it_at_once() {
    let listener = Listener::bind(local()).unwrap();
    for _ in 0..often(50, 1000) {
        let client = Stream::connect(listener.local_addr()).unwrap();
        let (server, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(client));
            scope.spawn(|| drop(server));
        });
    }
}

/// T-CN5, T-IO7: with a mapping that the peer has been told of, and one that it has not.
#[test]
fn connections_leave_nothing_behind() {
    let options = Options::new().iomap_size(2);
    let listener = options.bind(local()).unwrap();
    let round = || {
        let mut client = options.connect(listener.local_addr()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let announced = client.map(4096, Some(0)).unwrap();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        let silent = client.map(4096, Some(4096)).unwrap();
        drop(client);
        drop((server, announced, silent));
    };
    let rounds = || (0..often(100, 1000)).for_each(|_| round());
    // The engine keeps some objects that it makes when they are first needed. The rest of other tests, which is going,
    // is less than these rounds would leave.
    rounds();
    let before = held();
    rounds();
    wait_for_the_rest_to_go(&before);
}

/// T-CN8
#[test]
fn a_listener_that_goes_ends_what_was_not_accepted() {
    let listener = Listener::bind(local()).unwrap();
    let clients: Vec<_> = (0..3)
        .map(|_| Stream::connect(listener.local_addr()).unwrap())
        .collect();
    drop(listener);
    for mut client in clients {
        client.set_read_timeout(Some(PATIENCE));
        let err = client.read(&mut [0]).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::ConnectionReset);
    }
}

/// T-CN4: a listener that accepts nobody does not fill up with connections.
#[test]
fn more_than_the_backlog_are_refused() {
    let listener = Options::new().backlog(4).bind(local()).unwrap();
    let outcomes: Vec<_> = (0..8)
        .map(|_| Stream::connect(listener.local_addr()))
        .collect();
    let refused = |outcome: &io::Result<Stream>| {
        let refused = |err: &io::Error| err.kind() == io::ErrorKind::ConnectionRefused;
        outcome.as_ref().is_err_and(refused)
    };
    assert!(outcomes[..4].iter().all(Result::is_ok), "{outcomes:?}");
    assert!(outcomes[4..].iter().all(refused), "{outcomes:?}");
    // Whoever is accepted makes room.
    listener.accept().unwrap();
    Stream::connect(listener.local_addr()).unwrap();
}

/// T-KA1: the peer notices nothing.
#[test]
fn a_connection_is_kept_alive_in_silence() {
    let options = Options::new().keep_alive(Duration::from_millis(50));
    let listener = options.bind(local()).unwrap();
    let mut client = options.connect(listener.local_addr()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_millis(500)));
    let err = server.read(&mut [0]).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert!(client.take_error().is_none() && server.take_error().is_none());
}

/// 200 connections that do nothing need no thread each.
#[test]
fn idle_connections_have_no_threads() {
    let small = Options::new()
        .send_queue(16)
        .receive_queue(16)
        .send_buffer(4096)
        .receive_buffer(4096);
    let listener = small.bind(local()).unwrap();
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let mut connections = vec![];
    connections.push(small.connect(listener.local_addr()).unwrap());
    connections.push(listener.accept().unwrap().0);
    let before = threads();
    for _ in 0..100 {
        connections.push(small.connect(listener.local_addr()).unwrap());
        connections.push(listener.accept().unwrap().0);
    }
    assert_eq!(threads(), before);
    for pair in connections.chunks_mut(2) {
        pair[0].write_all(b"still here").unwrap();
        pair[1].read_exact(&mut [0; 10]).unwrap();
    }
}

/// What tells the peer waits for room on this side, and then nobody calls any more.
#[test]
fn an_end_is_told_though_nobody_calls_any_more() {
    const CREDITS: u32 = 0x8000_0000;
    const SHUTDOWN: u32 = 0xe000_0002;
    let listener = Options::new().receive_queue(16).bind(local()).unwrap();
    let plain = |data: ConnectData| data.encode().to_vec();
    let (mut probe, _) = Probe::connect(listener.local_addr(), plain).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    // The peer has no more receives.
    probe.withhold_receives();
    probe.say(CREDITS + 2 * u32::from(RECEIVES));
    for _ in 0..RECEIVES {
        stream.write_all(b"x").unwrap();
    }
    // So of five messages about credits not even the first can arrive, and four may be in flight.
    for _ in 0..5 {
        for _ in 0..8 {
            probe.send(b"y");
        }
        stream.read_exact(&mut [0; 8]).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    probe.receive_again();
    while probe.hear() != SHUTDOWN {}
}

/// There is no time so late as the latest that may be said.
#[test]
fn an_end_may_take_as_long_as_it_likes() {
    const CREDITS: u32 = 0x8000_0000;
    const END: u32 = 0xe000_0000;
    for nonblocking in [true, false] {
        let options = Options::new().linger(Duration::MAX);
        let listener = options.bind(local()).unwrap();
        let plain = |data: ConnectData| data.encode().to_vec();
        let (mut probe, _) = Probe::connect(listener.local_addr(), plain).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        // The last of these cannot arrive.
        probe.withhold_receives();
        probe.say(CREDITS + 2 * u32::from(RECEIVES));
        for _ in 0..=RECEIVES {
            stream.write_all(b"x").unwrap();
        }
        stream.set_nonblocking(nonblocking);
        let dropping = thread::spawn(|| drop(stream));
        thread::sleep(Duration::from_millis(100));
        probe.receive_again();
        while probe.hear() != END {}
        drop(probe);
        dropping.join().unwrap();
    }
}
