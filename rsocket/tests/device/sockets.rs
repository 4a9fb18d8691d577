//! C-style sockets, and waiting for many of them.

use std::{
    fs,
    io::{self, IoSlice, IoSliceMut, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use rsocket::{
    EventSet, Family, PollEntry, PollEvents, RecvFlags, Registration, SendOptions, SleepEntry,
    Socket, errno, poll,
};
use rustix::{process::Pid, thread::gettid};

use crate::{connected, listening, local, often, probe::ListeningProbe};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const BOTH: PollEvents = PollEvents::IN.union(PollEvents::OUT);

fn wait_for(socket: &Socket, events: PollEvents) -> PollEvents {
    let mut entries = [PollEntry::socket(socket, events)];
    assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1);
    entries[0].ready()
}

fn look_at(socket: &Socket) -> PollEvents {
    let mut entries = [PollEntry::socket(socket, BOTH)];
    poll(&mut entries, Some(Duration::ZERO)).unwrap();
    entries[0].ready()
}

fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    errno(&result.unwrap_err())
}

const EINVAL: i32 = 22;
const EAGAIN: i32 = 11;
const EPIPE: i32 = 32;
const ENETUNREACH: i32 = 101;
const EISCONN: i32 = 106;
const ENOTCONN: i32 = 107;
const ECONNREFUSED: i32 = 111;
const EALREADY: i32 = 114;
const EINPROGRESS: i32 = 115;

fn receive(socket: &Socket) -> io::Result<usize> {
    socket.recv(&mut [0; 1])
}

/// The peer has not answered the request yet.
#[test]
fn nonblocking_send_before_the_connection_is_accepted_would_block() {
    let listener = ListeningProbe::new();
    let client = Socket::new(Family::V4).unwrap();
    client.set_nonblocking(true);
    assert_eq!(number(client.connect(listener.addr())), EINPROGRESS);
    let early = client.send(b"?");
    assert_eq!(number(early), EAGAIN);
    assert_eq!(look_at(&client), PollEvents::empty());
    let _accepted = listener.accept();
    assert_eq!(wait_for(&client, PollEvents::OUT), PollEvents::OUT);
    assert_eq!(client.send(b"?").unwrap(), 1);
}

#[test]
fn nonblocking_connect_completes_in_background() {
    let listener = listening();
    listener.set_nonblocking(true);
    assert_eq!(number(listener.accept()), EAGAIN);
    let client = Socket::new(Family::V4).unwrap();
    client.set_nonblocking(true);
    assert_eq!(
        number(client.connect(listener.local_addr().unwrap())),
        EINPROGRESS
    );
    assert_eq!(number(receive(&client)), EAGAIN);
    assert_eq!(wait_for(&client, PollEvents::OUT), PollEvents::OUT);
    assert!(client.take_error().is_none());
    // As with TCP, another call has the success of the attempt, once.
    client.connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(
        number(client.connect(listener.local_addr().unwrap())),
        EISCONN
    );
    assert_eq!(wait_for(&listener, BOTH), PollEvents::IN);
    let (server, _) = listener.accept().unwrap();
    assert!(!server.is_nonblocking());
    assert_eq!(number(receive(&client)), EAGAIN);
}

/// Polls only the kernel, with no call on the socket.
#[test]
fn nonblocking_connect_without_further_calls_completes() {
    let listener = listening();
    let client = Socket::new(Family::V4).unwrap();
    client.set_nonblocking(true);
    assert_eq!(
        number(client.connect(listener.local_addr().unwrap())),
        EINPROGRESS
    );
    let (server, _) = listener.accept().unwrap();
    assert!(verbs::fd::wait_readable("poll", client.as_fd(), Some(TEST_TIMEOUT)).unwrap());
    assert_eq!(client.send(b"x").unwrap(), 1);
    assert_eq!(receive(&server).unwrap(), 1);
}

#[test]
fn nonblocking_connect_refused_reports_error_once() {
    let unreachable = {
        let listener = listening();
        listener.local_addr().unwrap()
    };
    let client = Socket::new(Family::V4).unwrap();
    client.set_nonblocking(true);
    assert_eq!(number(client.connect(unreachable)), EINPROGRESS);
    let events = wait_for(&client, PollEvents::OUT);
    assert_eq!(events, PollEvents::OUT | PollEvents::ERR | PollEvents::HUP);
    assert_eq!(number(client.connect(unreachable)), ENOTCONN);
    let error = client.take_error().unwrap();
    assert_eq!(error.raw_os_error(), Some(ECONNREFUSED));
    assert!(client.take_error().is_none());
    assert_eq!(number(client.send(b"x")), ENOTCONN);
    assert_eq!(number(receive(&client)), ENOTCONN);

    // As for TCP, the first call reports the error.
    let first_calls: [fn(&Socket) -> io::Result<usize>; 2] = [receive, |client| client.send(b"x")];
    for first in first_calls {
        let client = Socket::new(Family::V4).unwrap();
        client.set_nonblocking(true);
        assert_eq!(number(client.connect(unreachable)), EINPROGRESS);
        wait_for(&client, PollEvents::OUT);
        assert_eq!(number(first(&client)), ECONNREFUSED);
        assert_eq!(number(first(&client)), ENOTCONN);
        assert!(client.take_error().is_none());
    }

    let client = Socket::new(Family::V4).unwrap();
    assert_eq!(number(client.connect(unreachable)), ECONNREFUSED);
}

#[test]
fn second_listen_changes_the_backlog() {
    let listener = Socket::new(Family::V4).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let connect = move || {
        let client = Socket::new(Family::V4).unwrap();
        client.connect(addr).map(|()| client)
    };
    let _first = connect().unwrap();
    // Not accepted, so the backlog is full for the second.
    let second = thread::spawn(connect);
    listener.listen(2).unwrap();
    let _second = second.join().unwrap().unwrap();
    for _ in 0..2 {
        listener.accept().unwrap();
    }
}

/// The kept failure of an attempt without a listener, with its mirror.
fn failed_attempt() -> (Arc<Socket>, OwnedFd) {
    let unreachable = {
        let listener = listening();
        listener.local_addr().unwrap()
    };
    let client = Arc::new(Socket::new(Family::V4).unwrap());
    client.set_nonblocking(true);
    let mirror = client.mirror().unwrap();
    client.drive_mirror(mirror.as_fd()).unwrap();
    let (sender, failed) = mpsc::channel();
    client.keep_failure(move || sender.send(()).unwrap());
    assert_eq!(number(client.connect(unreachable)), EINPROGRESS);
    failed.recv_timeout(TEST_TIMEOUT).unwrap();
    // For all calls, the attempt goes on.
    assert_eq!(look_at(&client), PollEvents::empty());
    assert!(client.is_connecting());
    assert!(client.take_error().is_none());
    assert_eq!(number(client.send(b"x")), EAGAIN);
    assert_eq!(number(receive(&client)), EAGAIN);
    assert_eq!(number(client.connect(unreachable)), EALREADY);
    assert_eq!(mirror_events(&mirror), PollEvents::empty());
    (client, mirror)
}

/// Events of the mirror, at once.
fn mirror_events(mirror: &OwnedFd) -> PollEvents {
    let mut entries = [PollEntry::fd(mirror.as_fd(), BOTH)];
    poll(&mut entries, Some(Duration::ZERO)).unwrap();
    entries[0].ready()
}

#[test]
fn kept_failure_of_an_attempt_is_released_with_the_error_of_the_caller() {
    for (given, expected) in [(Some(ENETUNREACH), ENETUNREACH), (None, ECONNREFUSED)] {
        let (client, mirror) = failed_attempt();
        client.fail_attempt(given.map(io::Error::from_raw_os_error));
        assert!(mirror_events(&mirror).contains(BOTH | PollEvents::ERR | PollEvents::HUP));
        let error = client.take_error().unwrap();
        assert_eq!(error.raw_os_error(), Some(expected));
        assert_eq!(number(client.send(b"x")), ENOTCONN);
    }
}

#[test]
fn replaced_attempt_is_writable_in_its_mirror_and_ends_each_wait() {
    let (client, mirror) = failed_attempt();
    let waiting = {
        let client = Arc::clone(&client);
        thread::spawn(move || wait_for(&client, PollEvents::IN))
    };
    client.show_replaced(false);
    assert!(waiting.join().unwrap().contains(PollEvents::ERR));
    assert_eq!(mirror_events(&mirror), PollEvents::OUT);
    client.show_replaced(true);
    assert_eq!(mirror_events(&mirror), BOTH);
    assert_eq!(number(client.send(b"x")), EAGAIN);
    // Without a kept failure, neither has an effect.
    let unconnected = Socket::new(Family::V4).unwrap();
    unconnected.show_replaced(true);
    unconnected.fail_attempt(None);
    assert_eq!(number(unconnected.send(b"x")), ENOTCONN);
}

#[test]
fn socket_call_in_wrong_state_fails_without_damage() {
    let new = Socket::new(Family::V4).unwrap();
    assert_eq!(number(receive(&new)), ENOTCONN);
    assert_eq!(number(new.send(b"x")), ENOTCONN);
    assert_eq!(number(new.accept()), EINVAL);
    assert_eq!(number(new.peer_addr()), ENOTCONN);
    assert_eq!(number(new.map(16, None)), EINVAL);
    assert_eq!(number(new.shutdown(Shutdown::Both)), ENOTCONN);
    assert_eq!(look_at(&new), PollEvents::OUT | PollEvents::HUP);

    let listener = listening();
    listener.listen(1).unwrap();
    assert_eq!(number(listener.send(b"x")), ENOTCONN);
    assert_eq!(number(receive(&listener)), ENOTCONN);
    assert_eq!(number(listener.bind(local())), EINVAL);
    let (client, _server) = connected();
    client.set_reuse_addr(true).unwrap();
    assert!(client.reuse_addr());
    assert_eq!(number(client.listen(1)), EINVAL);
    assert_eq!(number(client.set_send_queue(64)), EINVAL);
    // Limited by the guest's link.
    assert_eq!(client.max_segment(), 4096);
    client.close();
    assert_eq!(look_at(&client), PollEvents::NVAL);
}

#[test]
fn accepted_socket_inherits_options_of_the_listener() {
    let listener = listening();
    listener.set_receive_queue(32).unwrap();
    listener.set_receive_buffer(8192).unwrap();
    listener.set_keep_alive(true);
    let client = Socket::new(Family::V4).unwrap();
    client.set_inline(0).unwrap();
    client.connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!(
        (server.receive_queue(), server.receive_buffer()),
        (32, 8192)
    );
    assert!(server.keep_alive());
    assert_eq!(client.receive_queue(), 384);
}

#[test]
fn shutdown_of_each_direction_changes_poll_events() {
    let (client, server) = connected();
    assert_eq!(look_at(&client), PollEvents::OUT);
    client
        .send_msg(
            &[IoSlice::new(b"some"), IoSlice::new(b"thing")],
            &SendOptions::new(),
        )
        .unwrap();
    assert_eq!(wait_for(&server, PollEvents::IN), PollEvents::IN);
    let mut peeked_bytes = [0; 16];
    let peeked = server.peek(&mut peeked_bytes).unwrap();
    assert_eq!(&peeked_bytes[..peeked], &b"something"[..peeked]);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(number(client.send(b"x")), EPIPE);
    let (mut first, mut second) = ([0; 4], [0; 12]);
    let bufs = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(server.recv_msg(bufs, RecvFlags::WAIT_ALL).unwrap().len, 9);
    assert_eq!((&first, &second[..5]), (b"some", &b"thing"[..]));
    assert_eq!(look_at(&server), BOTH);
    server.shutdown(Shutdown::Write).unwrap();
    let closed = wait_for(&client, PollEvents::IN);
    assert!(closed.contains(PollEvents::IN));
    while !look_at(&client).contains(PollEvents::HUP) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(look_at(&client), BOTH | PollEvents::HUP);
}

/// More messages than the queue holds.
#[test]
fn recv_with_wait_all_spans_many_messages() {
    let (client, server) = connected();
    let bytes: Vec<u8> = (0..1500_u32).map(|at| at.to_le_bytes()[0]).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for piece in bytes.chunks(3) {
                client.send(piece).unwrap();
            }
        });
        let mut got = vec![0; bytes.len()];
        let bufs = &mut [IoSliceMut::new(&mut got)];
        let len = server.recv_msg(bufs, RecvFlags::WAIT_ALL).unwrap().len;
        assert_eq!(len, bytes.len());
        assert!(got == bytes);
    });
}

/// Returned credits do not wake a waiting reader.
#[test]
fn poll_for_data_is_not_woken_by_credits() {
    let (client, server) = connected();
    let waited = |timeout| {
        let mut entries = [PollEntry::socket(&client, PollEvents::IN)];
        poll(&mut entries, Some(timeout)).unwrap()
    };
    let period = Duration::from_millis(700);
    thread::scope(|scope| {
        // Many times the credit limit.
        scope.spawn(|| {
            for _ in 0..2000 {
                client.send(b"x").unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..2000 {
                receive(&server).unwrap();
            }
        });
        let start = Instant::now();
        assert_eq!(waited(period), 0);
        assert!(start.elapsed() >= period);
    });
    server.send(b"y").unwrap();
    assert_eq!(waited(TEST_TIMEOUT), 1);
}

#[test]
fn poll_of_sockets_and_pipes_reports_both() {
    let (client, server) = connected();
    let (reader, mut writer) = UnixStream::pair().unwrap();
    let waited = |timeout| {
        let mut entries = [
            PollEntry::socket(&server, PollEvents::IN),
            PollEntry::fd(reader.as_fd(), PollEvents::IN),
        ];
        let count = poll(&mut entries, Some(timeout)).unwrap();
        (count, entries[0].ready(), entries[1].ready())
    };
    let start = Instant::now();
    let (some, none) = (PollEvents::IN, PollEvents::empty());
    assert_eq!(waited(Duration::from_millis(700)), (0, none, none));
    assert!(start.elapsed() >= Duration::from_millis(700));
    writer.write_all(b"x").unwrap();
    assert_eq!(waited(TEST_TIMEOUT), (1, none, some));
    client.send(b"y").unwrap();
    wait_for(&server, PollEvents::IN);
    assert_eq!(waited(TEST_TIMEOUT), (2, some, some));
}

/// Waits until the thread sleeps.
fn wait_for_sleep(thread: Pid) {
    let start = Instant::now();
    loop {
        let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
        let stat = fs::read_to_string(stat).unwrap();
        let (_, state) = stat.rsplit_once(") ").unwrap();
        if state.starts_with('S') {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{stat}");
    }
}

#[test]
fn receive_beside_a_blocked_one_waits_no_longer_than_its_own_limit() {
    let (client, server) = connected();
    let (named, name) = mpsc::channel();
    let (ended, end) = mpsc::channel();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            named.send(gettid()).unwrap();
            receive(&server).unwrap()
        });
        wait_for_sleep(name.recv().unwrap());
        scope.spawn(|| {
            let mut byte = [0];
            let bufs = &mut [IoSliceMut::new(&mut byte)];
            let at_once = server.recv_msg(bufs, RecvFlags::DONT_WAIT).unwrap_err();
            server.set_read_timeout(Some(Duration::from_millis(50)));
            let late = server.recv_msg(bufs, RecvFlags::empty()).unwrap_err();
            ended.send([at_once, late].map(|err| errno(&err))).unwrap();
        });
        let errors = end.recv_timeout(TEST_TIMEOUT);
        client.send(b"x").unwrap();
        assert_eq!(blocked.join().unwrap(), 1);
        // The second call is unblocked, too, if it has waited for the first.
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(errors.unwrap(), [EAGAIN; 2]);
    });
}

/// Either thread may take the event of the other.
#[test]
fn poll_of_one_socket_by_two_threads_loses_no_event() {
    let (client, server) = connected();
    let rounds = often(300, 10_000) as usize;
    thread::scope(|scope| {
        for half in [&client, &server] {
            half.set_nonblocking(true);
            scope.spawn(move || {
                let mut remaining = rounds * 1000;
                while remaining > 0 {
                    let bytes = [7; 1000];
                    let len = remaining.min(bytes.len());
                    match half.send(&bytes[..len]) {
                        Ok(sent) => remaining -= sent,
                        Err(err) if errno(&err) == EAGAIN => {
                            wait_for(half, PollEvents::OUT);
                        }
                        Err(err) => panic!("{err}"),
                    }
                }
            });
            scope.spawn(move || {
                let mut remaining = rounds * 1000;
                while remaining > 0 {
                    let mut bytes = [0; 700];
                    match half.recv(&mut bytes) {
                        Ok(0) => panic!("{remaining} bytes are missing"),
                        Ok(got) => remaining -= got,
                        Err(err) if errno(&err) == EAGAIN => {
                            wait_for(half, PollEvents::IN);
                        }
                        Err(err) => panic!("{err}"),
                    }
                }
            });
        }
    });
}

#[test]
fn shutdown_wakes_blocked_poll() {
    let (client, server) = connected();
    thread::scope(|scope| {
        let poller = scope.spawn(|| wait_for(&server, PollEvents::IN));
        thread::sleep(Duration::from_millis(100));
        server.shutdown(Shutdown::Both).unwrap();
        assert!(poller.join().unwrap().contains(PollEvents::IN));
    });
    drop(client);
}

/// A member's registration for read events, with this name.
fn reading(data: u64) -> Registration {
    Registration {
        events: PollEvents::IN,
        data,
        ..Registration::default()
    }
}

/// A connection, whose server is a member of a set with this name.
fn member_of(set: &EventSet, name: u64) -> (Socket, Arc<Socket>) {
    let (client, server) = connected();
    let server = Arc::new(server);
    set.add_socket(name, &server, reading(name)).unwrap();
    (client, server)
}

#[test]
fn event_set_reports_readiness_of_its_members() {
    let (client, server) = connected();
    let server = Arc::new(server);
    let set = Arc::new(EventSet::new().unwrap());
    let interest = reading(7);
    assert!(
        set.wait(4, Some(Duration::from_millis(50)))
            .unwrap()
            .is_empty()
    );
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let set = Arc::clone(&set);
            thread::spawn(move || set.wait(4, Some(TEST_TIMEOUT)).unwrap())
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    set.add_socket(1, &server, interest).unwrap();
    assert_eq!(
        set.add_socket(1, &server, interest).unwrap_err().kind(),
        io::ErrorKind::AlreadyExists
    );
    assert_eq!(
        set.remove_socket(2).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    client.send(b"z").unwrap();
    for waiting in waiting {
        let occurred = waiting.join().unwrap();
        assert_eq!((occurred[0].data, occurred[0].events), (7, PollEvents::IN));
    }
    set.modify_socket(
        1,
        Registration {
            once: true,
            ..interest
        },
    )
    .unwrap();
    assert_eq!(set.wait(4, None).unwrap().len(), 1);
    assert!(set.wait(4, Some(Duration::ZERO)).unwrap().is_empty());
    set.modify_socket(1, interest).unwrap();
    assert_eq!(set.wait(4, None).unwrap().len(), 1);
    drop(server);
    assert!(set.wait(4, Some(Duration::ZERO)).unwrap().is_empty());
    assert_eq!(
        set.remove_socket(1).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
}

#[test]
fn event_set_changed_during_wait_reports_new_members() {
    let (quiet, removed) = connected();
    let (client, added) = connected();
    let (removed, added) = (Arc::new(removed), Arc::new(added));
    let set = EventSet::new().unwrap();
    set.add_socket(1, &removed, reading(1)).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| set.wait(4, Some(TEST_TIMEOUT)).unwrap());
        thread::sleep(Duration::from_millis(100));
        set.remove_socket(1).unwrap();
        quiet.send(b"x").unwrap();
        wait_for(&removed, PollEvents::IN);
        client.send(b"x").unwrap();
        wait_for(&added, PollEvents::IN);
        set.add_socket(2, &added, reading(2)).unwrap();
        let occurred = waits.join().unwrap();
        assert_eq!(occurred.len(), 1);
        assert_eq!((occurred[0].data, occurred[0].events), (2, PollEvents::IN));
    });
}

/// Sleeps once the sender of `gate` has been dropped.
fn sleep_behind(gate: &mpsc::Receiver<()>, fds: &mut [SleepEntry<'_>]) -> io::Result<()> {
    let _: Result<(), _> = gate.recv();
    let entries = fds
        .iter()
        .map(|entry| PollEntry::fd(entry.fd, entry.interest));
    let mut entries: Vec<_> = entries.collect();
    let woken = poll(&mut entries, Some(TEST_TIMEOUT))?;
    assert_ne!(woken, 0, "the thread is not woken");
    for (fd, entry) in fds.iter_mut().zip(&entries) {
        fd.ready = entry.ready();
    }
    Ok(())
}

#[test]
fn event_beyond_the_maximum_wakes_another_thread_of_event_set() {
    let set = EventSet::new().unwrap();
    let pairs = [1, 2].map(|name| member_of(&set, name));
    assert!(set.wait(4, Some(Duration::ZERO)).unwrap().is_empty());
    let (sleeps, asleep) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    thread::scope(|scope| {
        let set = &set;
        let other = scope.spawn(move || {
            let mut sleep = |fds: &mut [SleepEntry<'_>], _| {
                let _: Result<(), _> = sleeps.send(());
                sleep_behind(&gate, fds)
            };
            set.wait_by(1, Some(TEST_TIMEOUT), &mut sleep).unwrap()
        });
        asleep.recv().unwrap();
        for (client, server) in &pairs {
            client.send(b"x").unwrap();
            wait_for(server, PollEvents::IN);
        }
        let first = set.wait(1, Some(TEST_TIMEOUT)).unwrap();
        // The first call has taken both events from the list.
        drop(open);
        let mut names = [first, other.join().unwrap()].map(|events| events[0].data);
        names.sort_unstable();
        assert_eq!(names, [1, 2]);
    });
}

#[test]
fn event_set_reports_sockets_with_any_name() {
    let set = EventSet::new().unwrap();
    let pairs = [0, 1, u64::MAX].map(|name| {
        let (client, server) = member_of(&set, name);
        assert!(set.wait(4, Some(Duration::ZERO)).unwrap().is_empty());
        (name, client, server)
    });
    for (name, client, server) in &pairs {
        client.send(b"x").unwrap();
        let events = set.wait(4, Some(TEST_TIMEOUT)).unwrap();
        let names: Vec<u64> = events.iter().map(|event| event.data).collect();
        assert_eq!(names, [*name]);
        assert_eq!(server.recv(&mut [0]).unwrap(), 1);
    }
}

#[test]
fn route_of_one_connection_is_valid_for_another() {
    let (client, server) = connected();
    let route = client.route().unwrap();
    assert!(!route.is_empty());
    assert_eq!(number(client.set_route(&route)), EINVAL);
    let other = Socket::new(Family::V4).unwrap();
    assert!(other.route().unwrap().is_empty());
    assert_eq!(number(other.set_route(&[])), EINVAL);
    other.set_route(&route).unwrap();
    assert_eq!(other.route().unwrap(), route);
    let listener = listening();
    other.connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(other.route().unwrap(), route);
    let (accepted, _) = listener.accept().unwrap();
    other.send(b"?").unwrap();
    let mut byte = [0];
    let mut buf = [IoSliceMut::new(&mut byte)];
    assert_eq!(
        accepted
            .recv_msg(&mut buf, RecvFlags::WAIT_ALL)
            .unwrap()
            .len,
        1
    );
    drop(server);
}

/// The set keeps no socket alive.
#[test]
fn socket_dropped_during_wait_of_event_set_is_closed() {
    let listener = listening();
    let (client, server) = connected();
    let (mut wake, woken) = UnixStream::pair().unwrap();
    let set = EventSet::new().unwrap();
    set.add_fd(woken.as_fd(), reading(1)).unwrap();
    let members = [listener, server].map(Arc::new);
    let listens_at = members[0].local_addr().unwrap();
    for (name, member) in (2..).zip(&members) {
        set.add_socket(name, member, reading(name)).unwrap();
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| set.wait(1, Some(TEST_TIMEOUT)).unwrap());
        thread::sleep(Duration::from_millis(50));
        drop(members);
        assert_eq!(
            wait_for(&client, PollEvents::IN),
            PollEvents::IN | PollEvents::HUP
        );
        // The listener may close slightly later than the connection.
        let start = Instant::now();
        while Socket::new(Family::V4).unwrap().connect(listens_at).is_ok() {
            assert!(start.elapsed() < TEST_TIMEOUT, "the listener stays open");
        }
        let another = Socket::new(Family::V4).unwrap();
        assert_eq!(number(another.connect(listens_at)), ECONNREFUSED);
        assert!(!waiting.is_finished(), "nothing has come");
        wake.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap()[0].data, 1);
    });
}
