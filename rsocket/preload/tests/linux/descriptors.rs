//! Calls with too many open descriptors.

use crate::program::{Epoll, Fd, Limit, Rdma, Tcp, exclusive};

/// More descriptors than a connection needs.
const ENOUGH: usize = 12;

#[test]
fn accept_without_free_descriptor_leaves_the_connection_in_the_backlog() {
    let _exclusive = exclusive();
    for kind in [Tcp, Rdma] {
        let listener = Fd::listener(kind);
        listener.set_nonblocking();
        assert_eq!(listener.accept().unwrap_err(), libc::EAGAIN);
        let clients = [(); 2].map(|()| listener.dial(kind));
        for client in &clients {
            client.send(b"hello").unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            listener.wait_readable();
            let mut accepted = None;
            for free in 0..ENOUGH {
                let full = Limit::all_but(free);
                match listener.accept() {
                    Ok(server) => {
                        accepted.get_or_insert((free, server));
                        break;
                    }
                    Err(err) => assert_eq!(err, libc::EMFILE, "{kind:?} with {free} left"),
                }
                assert_eq!(listener.events(), libc::POLLIN, "{kind:?} with {free} left");
                drop(full);
            }
            let (free, server) = accepted.expect("no connection is left");
            assert!(
                free > 0 && (kind == Rdma || free == 1),
                "{kind:?} {index}: {free}"
            );
            assert_eq!(server.recv(9).unwrap(), b"hello");
            server.send(b"welcome").unwrap();
            assert_eq!(client.recv(9).unwrap(), b"welcome");
        }
        // An empty backlog, without and with a free descriptor.
        let full = Limit::all_but(0);
        assert_eq!(listener.accept().unwrap_err(), libc::EMFILE, "{kind:?}");
        drop(full);
        assert_eq!(listener.accept().unwrap_err(), libc::EAGAIN, "{kind:?}");
    }
}

/// Neither a socket of the other kind, nor the descriptor of another socket.
#[test]
fn socket_without_free_descriptor_fails_and_changes_nothing() {
    let _exclusive = exclusive();
    let listener = Fd::listener(Rdma);
    let client = listener.dial(Rdma);
    let server = listener.accept().unwrap();
    let mut free = 0;
    let socket = loop {
        let full = Limit::all_but(free);
        // SAFETY: numbers only.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        let error = std::io::Error::last_os_error().raw_os_error();
        if socket >= 0 {
            break Fd(socket);
        }
        drop(full);
        assert_eq!(error, Some(libc::EMFILE), "{free} left");
        free += 1;
        assert!(free < ENOUGH);
    };
    socket.connect(&listener.name()).unwrap();
    client.send(b"x").unwrap();
    assert_eq!(server.recv(9).unwrap(), b"x");
}

/// Numbers of open descriptors.
fn numbers() -> Vec<u32> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str()?.parse().ok()
    };
    open.filter_map(number).collect()
}

/// Receives a byte in the way of a program.
type Receive = fn(&Epoll, &Fd) -> Vec<u8>;

fn receive_blocking(_: &Epoll, fd: &Fd) -> Vec<u8> {
    fd.recv(9).unwrap()
}

fn receive_by_poll(_: &Epoll, fd: &Fd) -> Vec<u8> {
    fd.set_nonblocking();
    fd.wait_readable();
    let received = fd.recv(9).unwrap();
    assert_eq!(fd.recv(9), Err(libc::EAGAIN));
    received
}

fn receive_by_epoll(epoll: &Epoll, fd: &Fd) -> Vec<u8> {
    epoll.add(fd, libc::EPOLLIN);
    assert_ne!(epoll.events(10_000) & libc::EPOLLIN.cast_unsigned(), 0);
    fd.recv(9).unwrap()
}

/// The descriptors of a stream are the program's and those of the library, by each way of the program to wait. Two have numbers of
/// `select(2)`: the program's, and the completion channel of libibverbs.
#[test]
fn stream_has_two_descriptors_of_the_library_and_one_more_in_epoll() {
    const PAIRS: usize = 8;
    let ways: [(Receive, usize); 3] = [
        (receive_blocking, 3),
        (receive_by_poll, 3),
        (receive_by_epoll, 4),
    ];
    let _exclusive = exclusive();
    let listener = Fd::listener(Rdma);
    let dial = || [listener.dial(Rdma), listener.accept().unwrap()];
    let mut open = Vec::new();
    for (receive, each) in ways {
        let epoll = Epoll::new();
        let exchange = |[client, server]: &[Fd; 2]| {
            for (from, to) in [(client, server), (server, client)] {
                from.send(b"x").unwrap();
                assert_eq!(receive(&epoll, to), b"x");
            }
        };
        let low = |numbers: &[u32]| numbers.iter().filter(|number| **number < 1024).count();
        let mut counts = [(); 3].map(|()| {
            let before = numbers();
            let pairs = [(); PAIRS].map(|()| dial());
            pairs.iter().for_each(&exchange);
            open.extend(pairs);
            let after = numbers();
            (
                after.len().saturating_sub(before.len()),
                low(&after).saturating_sub(low(&before)),
            )
        });
        counts.sort_unstable();
        // The first count may have descriptors of threads that begin, and of earlier streams that end.
        let streams = 2 * PAIRS;
        assert_eq!(counts[1], (each * streams, 2 * streams), "{counts:?}");
    }
}

#[test]
fn close_range_closes_an_eventfd_of_the_program_beside_streams() {
    let _exclusive = exclusive();
    let [client, server] = crate::program::connected(Rdma);
    // SAFETY: numbers only.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(event >= 0);
    let number = event.unsigned_abs();
    // SAFETY: the descriptor is the test's.
    let closed = unsafe { libc::close_range(number, number, 0) };
    assert_eq!(closed, 0);
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(event, libc::F_GETFD) };
    assert_eq!(flags, -1, "closed");
    client.send(b"x").unwrap();
    assert_eq!(server.recv(9).unwrap(), b"x");
}

/// As daemons do, up to the limit of open files. The program's own descriptors are left out.
#[test]
fn close_of_each_number_ends_no_stream() {
    let _exclusive = exclusive();
    let [client, server] = crate::program::connected(Rdma);
    let epoll = Epoll::new();
    epoll.add(&client, libc::EPOLLIN);
    let internal: Vec<i32> = (0..2048).filter(|fd| interpose::is_internal(*fd)).collect();
    assert!(internal.len() > 6, "{internal:?}");
    for &fd in &internal {
        // SAFETY: a number that the program does not own.
        let outcomes = [unsafe { libc::close(fd) }, unsafe { libc::dup2(0, fd) }];
        assert_eq!(outcomes, [-1, -1], "{fd}");
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::close(internal[0]) }, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::EBADF)
    );
    // A number of the library is the program's after the end of the descriptor.
    let ended = crate::program::connected(Rdma);
    let of_ended: Vec<i32> = (0..2048)
        .filter(|fd| interpose::is_internal(*fd) && !internal.contains(fd))
        .collect();
    assert!(of_ended.len() >= 2, "{of_ended:?}");
    drop(ended);
    let number = of_ended
        .into_iter()
        .find(|fd| !interpose::is_internal(*fd))
        .expect("no descriptor has ended");
    // SAFETY: numbers only.
    let own = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, number) };
    assert!(own >= 0);
    drop(Fd(own));
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::fcntl(own, libc::F_GETFD) }, -1, "closed");
    client.send(b"x").unwrap();
    assert_eq!(server.recv(9).unwrap(), b"x");
    server.send(b"y").unwrap();
    assert_ne!(epoll.events(10_000) & libc::EPOLLIN.cast_unsigned(), 0);
}
