//! Streams between two hosts.

use std::{
    io::{self, ErrorKind, Read, Write},
    iter,
    sync::mpsc,
    thread,
    time::Instant,
};

use rsocket::{Family, Listener, Socket, Stream};
use softnic::{Books, Fabric, Host};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::{Builder, Runtime},
};

use crate::{TEST_TIMEOUT, at, hosts, pattern};

const LEN: usize = 1 << 20;

/// Two connected streams between the hosts, the active side first.
pub(crate) fn connected([client, server]: &[Host; 2]) -> (Stream, Stream) {
    let listener = server.run(|| Listener::bind(at(server, 0)).unwrap());
    let addr = listener.local_addr().unwrap();
    let accepting = server.spawn(move || listener.accept().unwrap().0);
    let active = client.run(|| Stream::connect(addr).unwrap());
    let passive = accepting.join().unwrap();
    assert_eq!(active.local_addr().unwrap().ip(), client.addr());
    assert_eq!(passive.peer_addr().unwrap(), active.local_addr().unwrap());
    for stream in [&active, &passive] {
        stream.set_read_timeout(TEST_TIMEOUT);
        stream.set_write_timeout(TEST_TIMEOUT);
    }
    (active, passive)
}

/// Sends bytes over one stream while reading them from the other.
fn carry(from: &Stream, to: &Stream, seed: u8) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let sending = thread::spawn(move || from.write_all(&pattern(LEN, seed)));
    let mut received = vec![0; LEN];
    to.read_exact(&mut received).unwrap();
    assert!(received == pattern(LEN, seed));
    sending.join().unwrap().unwrap();
}

#[test]
fn stream_between_two_hosts_carries_bytes_both_ways() {
    let fabric = Fabric::new().keep_objects();
    let (active, passive) = connected(&hosts(&fabric, 11));
    carry(&active, &passive, 1);
    carry(&passive, &active, 2);
    drop(active);
    let read = (&mut &passive).read(&mut [0]).unwrap();
    assert_eq!(read, 0);
}

/// librdmacm registers 256 KiB for each end.
#[test]
fn idle_stream_registers_less_than_64_kib_until_used() {
    let fabric = Fabric::new().keep_objects();
    let (active, passive) = connected(&hosts(&fabric, 15));
    let idle = fabric.books().registered_bytes();
    assert!(idle < 2 * (64 << 10), "{idle} bytes of both ends");
    // The whole receive buffer is granted; a nonblocking write grows the send buffer within the call.
    active.set_nonblocking(true);
    let bytes = pattern(32 << 10, 3);
    assert_eq!((&active).write(&bytes).unwrap(), bytes.len());
    let mut received = vec![0; bytes.len()];
    (&passive).read_exact(&mut received).unwrap();
    assert!(received == bytes);
    let used = fabric.books().registered_bytes();
    assert!(used > idle + 2 * (64 << 10), "{used} bytes of both ends");
}

#[test]
fn stream_over_a_lossy_link_carries_bytes_both_ways() {
    let fabric = Fabric::seeded(3).keep_objects().duplication(0.05);
    let (active, passive) = connected(&hosts(&fabric, 12));
    carry(&active, &passive, 3);
    carry(&passive, &active, 4);
}

#[test]
fn stream_to_a_killed_host_fails_and_the_next_host_at_the_address_is_reached() {
    let fabric = Fabric::new().keep_objects();
    let mut both = hosts(&fabric, 13);
    let (mut active, mut passive) = connected(&both);
    fabric.kill(&both[1]);
    let failed = passive.read(&mut [0]).unwrap_err();
    assert_ne!(failed.kind(), ErrorKind::TimedOut, "{failed}");
    let failed = until_failure(&mut active);
    assert_ne!(failed.kind(), ErrorKind::WouldBlock, "{failed}");
    both[1] = fabric.host(both[1].addr());
    let (active, passive) = connected(&both);
    carry(&active, &passive, 5);
}

/// When the device fails, one attempt is connected, and the others wait for their turn or for an answer.
#[test]
fn attempts_end_when_their_device_is_removed() {
    const ATTEMPTS: usize = 64;
    let fabric = Fabric::new().keep_objects();
    let [client, server] = hosts(&fabric, 16);
    let listener = server.run(|| Listener::bind(at(&server, 0)).unwrap());
    let addr = listener.local_addr().unwrap();
    let accepting = listener.try_clone().unwrap();
    let accepting = thread::spawn(move || {
        let accepted = iter::from_fn(|| accepting.accept().ok());
        accepted.collect::<Vec<_>>()
    });
    let (sender, ends) = mpsc::channel();
    for _ in 0..ATTEMPTS {
        let sender = sender.clone();
        client.spawn(move || sender.send(Stream::connect(addr).map(drop)));
    }
    ends.recv_timeout(TEST_TIMEOUT.unwrap()).unwrap().unwrap();
    fabric.kill(&client);
    for ended in 1..ATTEMPTS {
        let end = ends.recv_timeout(TEST_TIMEOUT.unwrap());
        assert!(end.is_ok(), "{ended} of {ATTEMPTS} attempts have ended");
    }
    fabric.kill(&server);
    listener.shutdown();
    drop((accepting.join(), listener));
    wait_for_books(&fabric, Books::is_empty);
}

#[test]
fn listener_on_a_killed_host_releases_the_device() {
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 15);
    drop(connected(&both));
    let listeners = both
        .each_ref()
        .map(|host| host.run(|| Listener::bind(at(host, 0)).unwrap()));
    for host in &both {
        fabric.kill(host);
    }
    wait_for_books(&fabric, |books| {
        !books.to_string().contains("protection domain")
    });
    drop(listeners);
    assert!(fabric.books().is_empty(), "{}", fabric.books());
}

#[test]
fn blocked_accept_fails_when_the_device_of_the_address_is_removed() {
    let fabric = Fabric::new();
    let [host, _] = hosts(&fabric, 17);
    let listener = host.run(|| Listener::bind(at(&host, 0)).unwrap());
    let socket = host.run(|| {
        let socket = Socket::new(Family::V4).unwrap();
        socket.bind(at(&host, 0)).unwrap();
        socket.listen(1).unwrap();
        socket
    });
    let (sender, ends) = mpsc::channel();
    let of_socket = sender.clone();
    let accepting = [
        thread::spawn(move || of_socket.send(vec![socket.accept().map(drop)])),
        thread::spawn(move || {
            let ends = listener.incoming().map(|accepted| accepted.map(drop));
            sender.send(ends.collect())
        }),
    ];
    fabric.kill(&host);
    for _ in 0..2 {
        let ends = ends.recv_timeout(TEST_TIMEOUT.unwrap()).unwrap();
        assert_eq!(ends.len(), 1, "{ends:?}");
        let end = ends[0].as_ref().unwrap_err();
        assert_eq!(end.kind(), ErrorKind::NetworkDown);
        assert_eq!(rsocket::errno(end), libc::ENETDOWN);
    }
    // The threads drop the listeners, before the fabric.
    for thread in accepting {
        thread.join().unwrap().unwrap();
    }
}

/// Waits for the engine's threads to handle the removal of a device.
fn wait_for_books(fabric: &Fabric, is_met: impl Fn(&Books) -> bool) {
    let since = Instant::now();
    while !is_met(&fabric.books()) {
        assert!(Some(since.elapsed()) < TEST_TIMEOUT, "{}", fabric.books());
        thread::yield_now();
    }
}

/// Writes until the stream fails.
fn until_failure(stream: &mut Stream) -> io::Error {
    loop {
        if let Err(failed) = stream.write(&[0; 1000]) {
            return failed;
        }
    }
}

/// A runtime with its threads on a host.
fn runtime(host: &Host) -> Runtime {
    let host = host.clone();
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_start(move || host.stay())
        .build()
        .unwrap()
}

#[test]
fn stream_between_tasks_of_two_hosts_carries_bytes_both_ways() {
    let fabric = Fabric::new().keep_objects();
    let [client, server] = hosts(&fabric, 14);
    let (client_runtime, server_runtime) = (runtime(&client), runtime(&server));
    let addr = at(&server, 7471);
    let listener = {
        let _in_runtime = server_runtime.enter();
        server.run(|| rsocket::tokio::Listener::bind(addr).unwrap())
    };
    let echo = server_runtime.spawn(async move {
        let (mut stream, peer) = listener.accept().await.unwrap();
        let mut bytes = vec![0; LEN];
        stream.read_exact(&mut bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        peer
    });
    let task = client_runtime.spawn(async move {
        let stream = rsocket::tokio::Stream::connect(addr).await.unwrap();
        let local_addr = stream.get_ref().local_addr().unwrap();
        let (mut reading, mut writing) = tokio::io::split(stream);
        let sending = tokio::spawn(async move {
            writing.write_all(&pattern(LEN, 6)).await.unwrap();
            writing
        });
        let mut bytes = vec![0; LEN];
        reading.read_exact(&mut bytes).await.unwrap();
        drop(sending.await.unwrap());
        assert!(bytes == pattern(LEN, 6));
        local_addr
    });
    let local_addr = client_runtime.block_on(task).unwrap();
    assert_eq!(local_addr.ip(), client.addr());
    assert_eq!(server_runtime.block_on(echo).unwrap(), local_addr);
}
