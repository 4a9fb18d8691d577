//! Disconnects that the peer does not answer.

use std::{io, sync::mpsc, thread::JoinHandle};

use cm::{ConnectFailure, Connection, EndpointBuilder, Event, Listener};
use softnic::{Fabric, Host};
use verbs::Buf;

use crate::{ADDR, Silent, TEST_TIMEOUT, hosts};

/// A server with one connection until the result is dropped.
fn serve(host: &Host) -> (mpsc::Sender<()>, JoinHandle<()>) {
    let listener = host.run(|| Listener::bind(ADDR).unwrap());
    let (sender, ended) = mpsc::channel::<()>();
    let serving = host.spawn(move || {
        let client = listener.request().unwrap().accept().unwrap();
        assert!(ended.recv().is_err());
        drop(client);
    });
    (sender, serving)
}

/// Status of the end of a connection that this side disconnects, from a peer that is killed first on request.
fn end(kills: bool) -> Option<ConnectFailure> {
    let fabric = Fabric::new().speed(20);
    let [service, client, _] = hosts(&fabric);
    let (running, serving) = serve(&service);
    let mut asking = client.run(Silent::new);
    assert!(client.run(|| asking.request()));
    let mut connection: Connection = asking.complete(0).unwrap();
    let mut running = Some(running);
    if kills {
        fabric.kill(&service);
    } else {
        running = None;
    }
    connection.disconnect().unwrap();
    let cause = loop {
        if let Event::Disconnected { cause, .. } = asking.next() {
            break cause;
        }
    };
    drop((connection, running, asking));
    serving.join().unwrap();
    cause
}

#[test]
fn event_of_an_unanswered_disconnect_has_its_status() {
    let status = -libc::ETIMEDOUT;
    assert_eq!(end(true), Some(ConnectFailure::Unreachable { status }));
    assert_eq!(end(false), None);
}

#[test]
fn disconnect_from_a_dead_peer_times_out() {
    let fabric = Fabric::new().speed(20);
    let [service, client, _] = hosts(&fabric);
    let (running, serving) = serve(&service);
    let mut endpoint = client.run(|| cm::connect(ADDR).unwrap());
    fabric.kill(&service);
    let error = endpoint.disconnect().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop((endpoint, running));
    serving.join().unwrap();
}

#[test]
fn disconnect_of_a_task_from_a_dead_peer_times_out() {
    let fabric = Fabric::new().speed(20);
    let [service, client, _] = hosts(&fabric);
    let (running, serving) = serve(&service);
    let endpoint = client.run(|| {
        let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
        builder.connect(ADDR).unwrap()
    });
    let host = client.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_start(move || host.stay())
        .build()
        .unwrap();
    let error = client.run(|| {
        runtime.block_on(async {
            let mut endpoint = cm::tokio::Endpoint::new(endpoint).unwrap();
            fabric.kill(&service);
            endpoint.disconnect().await.unwrap_err()
        })
    });
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop(running);
    serving.join().unwrap();
}

/// The end of the handshake and that of the connection are read by one call.
#[test]
fn disconnect_before_the_accept_returns_is_answered() {
    let fabric = Fabric::new();
    let [service, client, _] = hosts(&fabric);
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let result = service.run(|| {
        runtime.block_on(async {
            let listener =
                cm::tokio::Listener::<Buf, Buf>::bind_with(&builder, crate::addr()).unwrap();
            let connecting = client.spawn(|| drop(cm::connect(ADDR).unwrap()));
            let incoming = listener.request().await.unwrap();
            // Blocks the task after the first poll of `accept`, which sends the reply.
            let ended = async { connecting.join().unwrap() };
            let (endpoint, ()) = tokio::join!(incoming.accept(), ended);
            endpoint.unwrap().disconnect().await
        })
    });
    result.unwrap();
}
