//! Destructions of identifiers that take long, beside a thread that serves others.

use std::{
    io::ErrorKind,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use cm::{EndpointBuilder, Reaper};
use softnic::{Call, Fabric};

use crate::{
    ADDR, TEST_TIMEOUT,
    event_loop::{Service, connect, echo},
    hosts,
};

/// One destruction blocks in the connection manager, and each further one would.
#[test]
fn event_loop_serves_others_while_a_destruction_blocks() {
    let fabric = Fabric::new();
    let [host, leaving, staying] = hosts(&fabric);
    let service = Service::start(&host, |service| service);
    let mut clients = [&leaving, &staying].map(|host| connect(host).unwrap());
    for client in &mut clients {
        assert_eq!(echo(client).unwrap(), b"hello");
    }
    let [client, mut other] = clients;
    let holding = host.hold(Call::DestroyId);
    drop(client);
    assert!(holding.wait_for_call(TEST_TIMEOUT));
    assert_eq!(echo(&mut other).unwrap(), b"hello");
    let mut newcomer = connect(&leaving).unwrap();
    assert_eq!(echo(&mut newcomer).unwrap(), b"hello");
    drop(holding);
    drop((other, newcomer));
    assert_eq!(service.stop().closed(), 3);
}

/// The endpoint is dropped while the destruction is blocked, and the thread continues.
#[test]
fn drop_of_an_endpoint_with_a_reaper_does_not_wait() {
    let fabric = Fabric::new();
    let [host, client, _] = hosts(&fabric);
    let service = Service::start(&host, |service| service);
    let reaper = Reaper::default();
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT).reaper(&reaper);
    let mut endpoint = client.run(|| builder.connect(ADDR)).unwrap();
    assert_eq!(echo(&mut endpoint).unwrap(), b"hello");
    let holding = client.hold(Call::DestroyId);
    let (dropped, is_dropped) = mpsc::channel();
    let dropping = thread::spawn(move || {
        drop(endpoint);
        dropped.send(()).unwrap();
    });
    assert!(holding.wait_for_call(TEST_TIMEOUT));
    is_dropped.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(
        !reaper.wait(std::time::Duration::ZERO),
        "it is not destroyed yet"
    );
    drop(holding);
    assert!(reaper.wait(TEST_TIMEOUT));
    dropping.join().unwrap();
    service.stop();
}

/// As a peer can cause it: the queue of a listener's reaper does not grow beyond its limit.
#[test]
fn listener_with_an_overloaded_reaper_rejects_and_recovers() {
    const QUEUED: usize = 1024;
    const THREADS: usize = 16;
    let fabric = Fabric::new();
    let [host, client, _] = hosts(&fabric);
    let reaper = Reaper::default();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    for _ in 0..QUEUED + THREADS {
        let gate = Arc::clone(&gate);
        reaper.run(move || drop(gate.lock()));
    }
    assert!(reaper.is_overloaded());
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT).reaper(&reaper);
    let listener = host.run(|| builder.listen(ADDR)).unwrap();
    let connecting = client.spawn(move || {
        let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
        let refused = builder.connect(ADDR).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
    let accepting = thread::spawn(move || {
        let accepted = listener.accept().unwrap();
        (accepted, listener.refusals().exhausted)
    });
    connecting.join().unwrap();
    drop(closed);
    assert!(reaper.wait(TEST_TIMEOUT));
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let connected = client.run(|| builder.connect(ADDR)).unwrap();
    let (accepted, exhausted) = accepting.join().unwrap();
    assert_eq!(exhausted, 1);
    drop((connected, accepted));
    assert!(reaper.wait(TEST_TIMEOUT));
}
