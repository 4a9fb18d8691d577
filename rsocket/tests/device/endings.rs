//! Ends of connections.

use std::{
    collections::HashSet,
    env, fs,
    io::{self, Read, Write},
    net::{Ipv6Addr, Shutdown, SocketAddr, SocketAddrV6},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rsocket::{Family, Listener, Options, Refusals, Socket, Stream, errno};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use verbs::fd::wait_readable;

use crate::{
    leaks::{resources, wait_for_release},
    local, local_v6, often,
    probe::{DISCONNECT, stalled},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of bytes of a writer: more than the first receive buffer.
const WRITTEN: usize = 100_000;

/// Address of the server for a child process.
const SERVER: &str = "RSOCKET_SERVER";

/// A process connected to this one and otherwise idle until killed.
struct Peer(Child);

impl Peer {
    fn start(listener: &Listener) -> (Self, Stream) {
        Self::start_as("endings::child_process_of_peer", listener)
    }

    /// Starts a child process with the body of a test.
    fn start_as(test: &str, listener: &Listener) -> (Self, Stream) {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--include-ignored"])
            .env(SERVER, listener.local_addr().unwrap().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT));
        (Self(child), stream)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Body of the child process, not a test of its own. Without an address, only checks the environment.
#[test]
fn child_process_of_peer() {
    let Ok(server) = env::var(SERVER) else {
        assert!(env::var_os("A").is_some(), "these tests run in the guest");
        return;
    };
    let mut stream = Stream::connect(&server).unwrap();
    stream.write_all(b"ready").unwrap();
    thread::sleep(2 * TEST_TIMEOUT);
}

/// Body of a child process that writes more than the peer has room for, and exits after the drop of the stream.
#[test]
fn child_process_of_writer() {
    let Ok(server) = env::var(SERVER) else {
        assert!(env::var_os("A").is_some(), "these tests run in the guest");
        return;
    };
    let mut stream = Stream::connect(&server).unwrap();
    stream.write_all(&[7; WRITTEN]).unwrap();
}

/// The exit waits for the data of a dropped stream.
#[test]
fn exit_after_drop_delivers_all_data() {
    let listener = Listener::bind(local()).unwrap();
    let (mut peer, mut stream) = Peer::start_as("endings::child_process_of_writer", &listener);
    // Until the child has written, so that the data waits for room.
    thread::sleep(Duration::from_millis(200));
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert!(bytes == [7; WRITTEN]);
    assert!(peer.0.wait().unwrap().success());
}

#[test]
fn read_with_killed_peer_is_reset() {
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

#[test]
fn drop_with_dead_peer_ends_within_linger() {
    let options = Options::new().linger(Duration::from_secs(2));
    let listener = options.listen(local()).unwrap();
    let (mut peer, mut stream) = Peer::start(&listener);
    stream.read_exact(&mut [0; 5]).unwrap();
    stream.set_nonblocking(true);
    // As much as fits without reads by the peer.
    while stream.write(&[0; 10_000]).is_ok() {}
    peer.kill();
    let start = Instant::now();
    stream.set_nonblocking(false);
    drop(stream);
    assert!(start.elapsed() < TEST_TIMEOUT);
}

/// Connects to a listener with many former connections. Over Soft-iWARP, the kernel chooses a port at random, and refuses it if
/// a former TCP connection with it is in the state `TIME_WAIT`.
fn connect_again(listener: &Listener) -> Stream {
    let addr = listener.local_addr().unwrap();
    let is_taken = |err: &io::Error| err.kind() == io::ErrorKind::AddrNotAvailable;
    let mut attempts = (0..3).map(|_| Stream::connect(addr));
    let connected = attempts.find(|connected| !connected.as_ref().is_err_and(is_taken));
    connected.expect("three ports are taken").unwrap()
}

#[test]
fn drop_of_both_sides_at_once_succeeds() {
    let listener = Listener::bind(local()).unwrap();
    for _ in 0..often(50, 1000) {
        let client = connect_again(&listener);
        let (server, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(client));
            scope.spawn(|| drop(server));
        });
    }
}

/// With one advertised and one unadvertised mapping.
#[test]
fn closed_connections_leak_nothing() {
    let options = Options::new().iomap_size(2);
    let listener = options.listen(local()).unwrap();
    let round = || {
        let mut client = options.connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let advertised = client.map(4096, Some(0)).unwrap();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        let unadvertised = client.map(4096, Some(4096)).unwrap();
        drop(client);
        drop((server, advertised, unadvertised));
    };
    let rounds = || (0..often(100, 1000)).for_each(|_| round());
    // The engine keeps some objects after their first use. Resources of other tests still being released are
    // fewer than these rounds would leave.
    rounds();
    let before = resources();
    rounds();
    wait_for_release(&before);
}

#[test]
fn dropped_listener_resets_unaccepted_connections() {
    let listener = Listener::bind(local()).unwrap();
    let clients: Vec<_> = (0..3)
        .map(|_| Stream::connect(listener.local_addr().unwrap()).unwrap())
        .collect();
    drop(listener);
    for mut client in clients {
        client.set_read_timeout(Some(TEST_TIMEOUT));
        let err = client.read(&mut [0]).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::ConnectionReset);
    }
}

/// A listener that accepts nothing does not fill up and rejects nothing: requests beyond the backlog
/// wait for a place, as with TCP. Each accepted connection frees one.
#[test]
fn connect_beyond_the_backlog_waits_for_accept() {
    const CLIENTS: usize = 16;
    for backlog in [1, 5] {
        let bufs = usize::try_from(backlog).unwrap();
        let listener = Options::new().backlog(backlog).listen(local()).unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, connected) = mpsc::channel();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let sender = sender.clone();
                thread::spawn(move || {
                    let client = Stream::connect(addr).unwrap();
                    sender.send(()).unwrap();
                    (&client).read_exact(&mut [0]).unwrap();
                })
            })
            .collect();
        for _ in 0..bufs {
            connected.recv_timeout(TEST_TIMEOUT).unwrap();
        }
        let more = connected.recv_timeout(Duration::from_millis(300));
        assert_eq!(
            more,
            Err(mpsc::RecvTimeoutError::Timeout),
            "backlog {backlog}"
        );
        for accepted in 0..CLIENTS {
            let (mut server, _) = listener.accept().unwrap();
            if accepted < CLIENTS - bufs {
                connected.recv_timeout(TEST_TIMEOUT).unwrap();
            }
            server.write_all(&[0]).unwrap();
        }
        for client in clients {
            client.join().unwrap();
        }
        assert_eq!(
            listener.refusals(),
            Refusals::default(),
            "backlog {backlog}"
        );
    }
}

/// A waiting client withdraws its request, and the next client gets the place.
#[test]
fn connect_timed_out_beyond_the_backlog_leaves_its_turn() {
    let listener = Options::new().backlog(1).listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let _first = Stream::connect(addr).unwrap();
    let hasty = Options::new().connect_timeout(Duration::from_millis(200));
    let err = hasty.connect(addr).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::TimedOut, "{err}");
    let next = thread::spawn(move || Stream::connect(addr).unwrap().local_addr().unwrap());
    listener.accept().unwrap();
    let (_, peer) = listener.accept().unwrap();
    assert_eq!(peer, next.join().unwrap());
}

#[test]
fn accept_during_shutdown_of_the_listener_returns() {
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let waiting = Stream::connect(addr).unwrap();
    let other = listener.try_clone().unwrap();
    let (sender, ended) = mpsc::channel();
    let accepting = thread::spawn(move || {
        let (first, _) = other.accept().unwrap();
        sender.send(None).unwrap();
        let err = other.accept().unwrap_err();
        sender.send(Some(err.kind())).unwrap();
        first
    });
    assert_eq!(ended.recv_timeout(TEST_TIMEOUT), Ok(None));
    listener.shutdown();
    let kind = ended
        .recv_timeout(TEST_TIMEOUT)
        .expect("accept still blocks");
    assert_eq!(kind, Some(io::ErrorKind::InvalidInput));
    assert!(listener.incoming().next().is_none());
    let refused = Stream::connect(addr).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // The accepted connection keeps working.
    let mut server = accepting.join().unwrap();
    (&waiting).write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
}

/// Connections established before the shutdown can still be accepted.
#[test]
fn listener_after_shutdown_returns_queued_connections() {
    let listener = Listener::bind(local()).unwrap();
    let clients = [(); 2].map(|()| Stream::connect(listener.local_addr().unwrap()).unwrap());
    // Both have been queued, the second after the first.
    let (_first, _) = listener.accept().unwrap();
    while !wait_readable("accept", listener.as_fd(), Some(TEST_TIMEOUT)).unwrap() {}
    listener.shutdown();
    assert_eq!(
        listener.accept().unwrap().1,
        clients[1].local_addr().unwrap()
    );
    assert!(listener.accept().is_err());
}

#[test]
fn listener_clone_accepts_after_drop_of_the_first() {
    let listener = Listener::bind(local()).unwrap();
    let clone = listener.try_clone().unwrap();
    assert_eq!(clone.local_addr().unwrap(), listener.local_addr().unwrap());
    listener.set_nonblocking(true);
    let err = clone.accept().unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::WouldBlock, "clones share it");
    clone.set_nonblocking(false);
    drop(listener);
    let client = Stream::connect(clone.local_addr().unwrap()).unwrap();
    assert_eq!(clone.accept().unwrap().1, client.local_addr().unwrap());
}

/// Set in the child process of a test.
const ALONE: &str = "RSOCKET_ALONE";

/// A capability exempts root from the limit. The test drops the capability in a separate process: the kernel
/// accepts calls on the connection manager's descriptor only with the credentials of its opener.
#[test]
fn listen_without_lockable_memory_reports_memlock_limit() {
    if env::var_os(ALONE).is_none() {
        let name = "endings::listen_without_lockable_memory_reports_memlock_limit";
        let mut program = Command::new(env::current_exe().unwrap());
        let status = program.args(["--exact", name]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    // Less than the buffers of an idle connection.
    let limit = Rlimit {
        current: Some(32 << 10),
        maximum: getrlimit(Resource::Memlock).maximum,
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let mut any = local();
    any.set_ip([0; 4].into());
    let socket = Socket::new(Family::V4).unwrap();
    socket.bind(local()).unwrap();
    let bound = socket.local_addr().unwrap();
    for result in [
        Listener::bind(local()).map(drop),
        Listener::bind(any).map(drop),
        socket.listen(1),
    ] {
        let err = result.unwrap_err();
        assert_eq!(errno(&err), 12, "{err}");
        let text = err.to_string();
        for name in ["32 KiB", "RLIMIT_MEMLOCK", "ulimit -l"] {
            assert!(text.contains(name), "{text} does not name {name}");
        }
    }
    assert_eq!(
        socket.local_addr().unwrap(),
        bound,
        "the socket stays bound"
    );
}

/// An IPv6 listener reports mapped addresses for IPv4 clients, like the standard library.
#[test]
fn accepted_addresses_have_the_family_of_the_listener() {
    let mut any = local_v6();
    any.set_ip("::".parse().unwrap());
    let listener = Listener::bind(any).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = |mut addr: SocketAddr| {
        addr.set_port(port);
        addr
    };
    for addr in [to(local()), to(local_v6())] {
        let client = Stream::connect(addr).unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer, server.peer_addr().unwrap());
        for (name, expected) in [
            (server.local_addr().unwrap(), addr),
            (server.peer_addr().unwrap(), client.local_addr().unwrap()),
        ] {
            assert!(name.is_ipv6(), "{name}");
            assert_eq!(name.ip().to_canonical(), expected.ip());
            assert_eq!(name.port(), expected.port());
        }
    }
}

/// A link-local address is only meaningful with its interface.
#[test]
fn link_local_addresses_have_their_scope() {
    let (ip, scope) = link_local();
    let any = SocketAddrV6::new(ip, 0, 0, scope);
    let listener = Listener::bind(any).unwrap();
    let client = Stream::connect(SocketAddrV6::new(
        ip,
        listener.local_addr().unwrap().port(),
        0,
        scope,
    ));
    let client = client.unwrap();
    let (server, peer) = listener.accept().unwrap();
    for name in [
        listener.local_addr().unwrap(),
        peer,
        server.local_addr().unwrap(),
        client.local_addr().unwrap(),
        client.peer_addr().unwrap(),
    ] {
        let SocketAddr::V6(name) = name else {
            unreachable!("{name}");
        };
        assert_eq!((*name.ip(), name.scope_id()), (ip, scope), "{name}");
    }
}

/// Link-local address and index of the interface with the device's address.
fn link_local() -> (Ipv6Addr, u32) {
    let SocketAddr::V6(device) = local_v6() else {
        unreachable!("A6 is an IPv6 address");
    };
    let table = fs::read_to_string("/proc/net/if_inet6").unwrap();
    let rows: Vec<(Ipv6Addr, u32)> = table
        .lines()
        .map(|row| {
            let mut fields = row.split_whitespace();
            let bits = u128::from_str_radix(fields.next().unwrap(), 16).unwrap();
            let index = u32::from_str_radix(fields.next().unwrap(), 16).unwrap();
            (Ipv6Addr::from_bits(bits), index)
        })
        .collect();
    let index = rows.iter().find(|row| row.0 == *device.ip()).unwrap().1;
    let is_own = |row: &&(Ipv6Addr, u32)| row.1 == index && row.0.is_unicast_link_local();
    *rows.iter().find(is_own).expect("no link-local address")
}

/// Keepalive probes are invisible to the peer.
#[test]
fn keepalive_of_idle_connection_is_invisible_to_reads() {
    let options = Options::new().keep_alive(Duration::from_millis(50));
    let listener = options.listen(local()).unwrap();
    let mut client = options.connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_millis(500)));
    let err = server.read(&mut [0]).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
    server.set_read_timeout(Some(TEST_TIMEOUT));
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert!(client.take_error().is_none() && server.take_error().is_none());
}

/// 200 idle connections need no additional threads.
#[test]
fn idle_connections_add_no_threads() {
    let small = Options::new()
        .send_queue(16)
        .receive_queue(16)
        .send_buffer(4096)
        .receive_buffer(4096);
    let listener = small.listen(local()).unwrap();
    let threads = || -> HashSet<_> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        tasks.map(|task| task.unwrap().file_name()).collect()
    };
    let mut connections = vec![];
    connections.push(small.connect(listener.local_addr().unwrap()).unwrap());
    connections.push(listener.accept().unwrap().0);
    let before = threads();
    for _ in 0..100 {
        connections.push(small.connect(listener.local_addr().unwrap()).unwrap());
        connections.push(listener.accept().unwrap().0);
    }
    // A thread of an earlier test may have ended meanwhile.
    let after = threads();
    assert!(after.is_subset(&before), "{after:?} and before {before:?}");
    for pair in connections.chunks_mut(2) {
        pair[0].write_all(b"still here").unwrap();
        pair[1].read_exact(&mut [0; 10]).unwrap();
    }
}

/// A shutdown message waits for room after the last call of the program.
#[test]
fn shutdown_without_further_calls_is_sent() {
    const SHUTDOWN: u32 = 0xe000_0002;
    // The peer has no more receives.
    let (mut stream, mut probe) = stalled(&Options::new().receive_queue(16), 0);
    // Of five credit messages, none can arrive, and four can be in flight.
    for _ in 0..5 {
        for _ in 0..8 {
            probe.send(b"y");
        }
        stream.read_exact(&mut [0; 8]).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    probe.receive_again();
    while probe.recv_message() != SHUTDOWN {}
}

/// The maximum linger time exceeds the range of the clock.
#[test]
fn linger_of_maximum_duration_waits_for_the_peer() {
    for nonblocking in [true, false] {
        // The last message cannot arrive.
        let (stream, mut probe) = stalled(&Options::new().linger(Duration::MAX), 1);
        stream.set_nonblocking(nonblocking);
        let dropping = thread::spawn(|| drop(stream));
        thread::sleep(Duration::from_millis(100));
        probe.receive_again();
        while probe.recv_message() != DISCONNECT {}
        drop(probe);
        dropping.join().unwrap();
    }
}
