//! Listeners and their endpoints.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use cm::{ConnectFailure, EndpointBuilder, Listener};
use softnic::{Fabric, Host, Limits};

use crate::{ADDR, SHORT, Silent, TEST_TIMEOUT, addr, hosts};

/// Number of silent requests: more than the limits of any service here permit.
const FLOOD: usize = 200;

/// The tutorial's server: a thread for each request accepts it, and echoes one message. Ends after one connection was served, with
/// the first error of `request`.
fn serve(host: &Host, listener: &Arc<Listener>) -> JoinHandle<verbs::Result<()>> {
    let listener = Arc::clone(listener);
    host.spawn(move || {
        let (sender, served) = mpsc::channel();
        let mut threads = Vec::new();
        while served.try_recv().is_err() {
            let Some(mut incoming) = listener.request_timeout(Duration::from_millis(1))? else {
                continue;
            };
            let Ok(buf) = incoming.reg_msgs([0; 64]) else {
                continue;
            };
            incoming.post_recv(buf)?;
            let sender = sender.clone();
            threads.push(thread::spawn(move || {
                let echoed = incoming.accept().and_then(|mut client| {
                    let message = client.recv_comp()?.received()?.to_vec();
                    client.post_send(client.reg_msgs(message)?)?;
                    let _sent = client.send_comp()?.into_parts();
                    client.disconnect()
                });
                if echoed.is_ok() {
                    sender.send(()).unwrap();
                }
            }));
        }
        drop(listener);
        for thread in threads {
            thread.join().unwrap();
        }
        Ok(())
    })
}

/// Asks the server for an echo.
pub(crate) fn ask(host: &Host) -> verbs::Result<Vec<u8>> {
    host.run(|| {
        let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
        let mut outgoing = builder.prepare(ADDR)?;
        outgoing.post_recv(outgoing.reg_msgs([0; 64])?)?;
        let mut server = outgoing.connect()?;
        server.post_send(server.reg_msgs(*b"hello")?)?;
        let answer = server.recv_comp()?.received()?.to_vec();
        server.disconnect()?;
        Ok(answer)
    })
}

/// Floods a server with `limits` with requests, and asks it for an echo.
#[track_caller]
fn check_flood(limits: Limits) {
    let fabric = Fabric::new();
    let [service, hostile, honest] = hosts(&fabric);
    service.set_limits(limits);
    let builder = EndpointBuilder::new().handshake_timeout(TEST_TIMEOUT);
    let listener = Arc::new(service.run(|| builder.listen(ADDR).unwrap()));
    let serving = serve(&service, &listener);
    let mut silent = hostile.run(Silent::new);
    hostile.run(|| (0..FLOOD).for_each(|_| _ = silent.request()));
    assert_eq!(ask(&honest).unwrap(), b"hello");
    let refusals = listener.refusals();
    assert!(refusals.displaced > 0, "{refusals:?}");
    // The silent peer's end ends the threads of the server.
    drop(silent);
    serving.join().unwrap().unwrap();
    drop(listener);
}

#[test]
fn flood_of_silent_requests_ends_no_server_with_few_descriptors() {
    check_flood(Limits::new().descriptors(64));
}

#[test]
fn flood_of_silent_requests_ends_no_server_with_little_locked_memory() {
    check_flood(Limits::new().locked_memory(1 << 20));
}

/// Whichever allocation of a connection is the first without memory, the queue's or the program's.
#[test]
fn flood_of_silent_requests_ends_no_server_at_any_limit_of_locked_memory() {
    for pages in 64..80 {
        check_flood(Limits::new().locked_memory(pages * 4096));
    }
}

/// Memory is registered by the program alone, for its receives.
#[test]
fn flood_of_silent_requests_ends_no_server_with_few_memory_regions() {
    check_flood(Limits::new().memory_regions(16));
}

#[test]
fn flood_of_silent_requests_ends_no_server_with_few_queue_pairs() {
    check_flood(Limits::new().queue_pairs(16));
}

#[test]
fn flood_of_silent_requests_ends_no_server_with_few_completion_queues() {
    check_flood(Limits::new().completion_queues(32));
}

#[test]
fn flood_of_silent_requests_ends_no_server_without_limits() {
    check_flood(Limits::new());
}

/// The same for `Listener::accept`, and so for one thread.
#[test]
fn accept_of_a_server_with_few_descriptors_serves_beside_silent_requests() {
    let fabric = Fabric::new();
    let [service, hostile, honest] = hosts(&fabric);
    service.set_limits(Limits::new().descriptors(32));
    let builder = EndpointBuilder::new().handshake_timeout(TEST_TIMEOUT);
    let listener = service.run(|| builder.listen(ADDR).unwrap());
    let (sender, accepted) = mpsc::channel();
    let serving = service.spawn(move || {
        sender.send(listener.accept()).unwrap();
        listener.refusals()
    });
    let mut silent = hostile.run(Silent::new);
    hostile.run(|| (0..FLOOD).for_each(|_| _ = silent.request()));
    let client = honest.run(|| EndpointBuilder::new().timeout(TEST_TIMEOUT).connect(ADDR));
    let client = client.unwrap();
    let server = accepted.recv_timeout(TEST_TIMEOUT).unwrap().unwrap();
    assert_eq!(server.id().peer_addr(), client.id().local_addr());
    assert!(serving.join().unwrap().displaced > 0);
    drop((client, server));
}

#[test]
fn handshake_that_the_peer_does_not_complete_times_out() {
    let fabric = Fabric::new();
    let [service, hostile, _] = hosts(&fabric);
    let builder = EndpointBuilder::new().handshake_timeout(SHORT);
    let listener = service.run(|| builder.listen(ADDR).unwrap());
    let requesting = hostile.spawn(|| {
        let mut silent = Silent::new();
        assert!(silent.request());
        silent
    });
    let error = service.run(|| listener.request().unwrap().accept().unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop(requesting.join().unwrap());
}

#[test]
fn half_open_connection_of_a_listener_times_out() {
    let fabric = Fabric::new();
    let [service, hostile, _] = hosts(&fabric);
    let builder = EndpointBuilder::new().handshake_timeout(SHORT);
    let listener = service.run(|| builder.timeout(TEST_TIMEOUT).listen(ADDR).unwrap());
    let serving = service.spawn(move || {
        let accepted = listener.accept().map(drop);
        (accepted, listener.refusals().timed_out)
    });
    let mut silent = hostile.run(Silent::new);
    assert!(hostile.run(|| silent.request()));
    // The device reports the end of the connection.
    while !matches!(silent.next(), cm::Event::Disconnected { .. }) {}
    // On a slow machine, the handshake of a client times out as well.
    let mut clients = Vec::new();
    while !serving.is_finished() {
        let client = hostile.run(|| EndpointBuilder::new().timeout(TEST_TIMEOUT).connect(ADDR));
        clients.extend(client.ok());
    }
    let (accepted, timed_out) = serving.join().unwrap();
    accepted.unwrap();
    assert_ne!(timed_out, 0);
    assert!(!clients.is_empty(), "no client is connected");
    drop(silent);
}

#[test]
fn handshake_of_a_task_times_out() {
    let fabric = Fabric::new();
    let [service, hostile, _] = hosts(&fabric);
    let (requesting, is_listening) = mpsc::channel();
    let silent = hostile.spawn(move || {
        let mut silent = Silent::new();
        is_listening.recv().unwrap();
        assert!(silent.request());
        silent
    });
    let host = service.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_start(move || host.stay())
        .build()
        .unwrap();
    let error = service.run(|| {
        runtime.block_on(async {
            let builder = EndpointBuilder::new().handshake_timeout(SHORT);
            let listener: cm::tokio::Listener =
                cm::tokio::Listener::bind_with(&builder, addr()).unwrap();
            requesting.send(()).unwrap();
            let incoming = listener.request().await.unwrap();
            incoming.accept().await.map(drop).unwrap_err()
        })
    });
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop(silent.join().unwrap());
}

#[test]
fn connect_to_a_listener_that_does_not_answer_times_out() {
    let fabric = Fabric::new();
    let [service, honest, _] = hosts(&fabric);
    // Requests are not taken.
    let _listener = service.run(|| Listener::bind(ADDR).unwrap());
    let builder = EndpointBuilder::new().handshake_timeout(SHORT);
    let error = honest.run(|| builder.connect(ADDR)).map(drop).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
}

/// The oldest half-open connection of the address with the most of them gives way.
#[test]
fn address_with_most_half_open_connections_gives_way() {
    let fabric = Fabric::new();
    let [service, hostile, honest] = hosts(&fabric);
    let builder = EndpointBuilder::new().backlog(2).timeout(TEST_TIMEOUT);
    let listener = service.run(|| builder.listen(ADDR).unwrap());
    let accept = |host: &Host, silent: &mut Silent| {
        thread::scope(|scope| {
            let requested = scope.spawn(|| host.run(|| silent.request()));
            let incoming = service.run(|| listener.request().unwrap());
            let accepting = thread::spawn(move || incoming.accept());
            assert!(requested.join().unwrap());
            accepting
        })
    };
    let (mut slow, mut silent) = (honest.run(Silent::new), hostile.run(Silent::new));
    let of_honest = accept(&honest, &mut slow);
    let displaced = accept(&hostile, &mut silent);
    let newer = accept(&hostile, &mut silent);
    let error = displaced.join().unwrap().map(drop).unwrap_err();
    assert_eq!(ConnectFailure::of(&error), Some(&ConnectFailure::Displaced));
    let connection = slow.complete(0).unwrap();
    let endpoint = of_honest.join().unwrap().unwrap();
    drop((connection, endpoint, silent, slow));
    newer.join().unwrap().map(drop).unwrap_err();
    assert_eq!(listener.refusals().displaced, 1);
}
