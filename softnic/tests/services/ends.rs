//! Ends of connections, awaited by an endpoint without requests in flight, and the type of service.

use std::{io, net::SocketAddr, sync::mpsc, thread};

use cm::{ConnectFailure, Endpoint, EndpointBuilder, Listener};
use softnic::{Fabric, Host};
use tokio::runtime::Runtime;

use crate::{ADDR, SHORT, TEST_TIMEOUT, hosts};

/// A server's end and a client's end of a connection.
fn connect(service: &Host, client: &Host, choices: &EndpointBuilder) -> [Endpoint; 2] {
    let listener = service.run(|| Listener::bind(ADDR).unwrap());
    let accepting = service.spawn(move || listener.accept().unwrap());
    let connecting = client.run(|| choices.connect(ADDR).unwrap());
    [accepting.join().unwrap(), connecting]
}

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().timeout(TEST_TIMEOUT)
}

fn runtime(host: &Host) -> Runtime {
    let host = host.clone();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(move || host.stay())
        .build()
        .unwrap()
}

#[test]
fn endpoint_learns_of_the_peers_disconnect_without_requests() {
    let fabric = Fabric::new();
    let [service, client, _] = hosts(&fabric);
    let [server, mut endpoint] = connect(&service, &client, &builder());
    endpoint.set_timeout(Some(SHORT));
    let open = endpoint.wait_disconnected().unwrap_err();
    assert_eq!(open.kind(), io::ErrorKind::TimedOut, "{open}");
    assert!(!endpoint.is_disconnected());
    endpoint.set_timeout(Some(TEST_TIMEOUT));
    // Blocks until this side has answered.
    let (sender, ended) = mpsc::channel();
    let closing = thread::spawn(move || {
        let mut server = server;
        sender.send(server.disconnect()).unwrap();
    });
    endpoint.wait_disconnected().unwrap();
    assert!(endpoint.is_disconnected());
    assert_eq!(endpoint.end_cause(), None);
    ended.recv_timeout(TEST_TIMEOUT).unwrap().unwrap();
    closing.join().unwrap();
    endpoint.wait_disconnected().unwrap();
}

#[test]
fn lost_device_is_the_cause_of_the_end() {
    let fabric = Fabric::new();
    let [service, client, _] = hosts(&fabric);
    let [server, mut endpoint] = connect(&service, &client, &builder());
    fabric.kill(&client);
    endpoint.wait_disconnected().unwrap();
    assert_eq!(endpoint.end_cause(), Some(ConnectFailure::DeviceRemoved));
    drop((endpoint, server));
}

#[test]
fn unanswered_disconnect_is_the_cause_of_the_end() {
    let fabric = Fabric::new().speed(20);
    let [service, client, _] = hosts(&fabric);
    let [server, mut endpoint] = connect(&service, &client, &EndpointBuilder::new());
    fabric.kill(&service);
    endpoint.disconnect().unwrap_err();
    let status = -libc::ETIMEDOUT;
    let cause = Some(ConnectFailure::Unreachable { status });
    assert_eq!(endpoint.end_cause(), cause);
    drop((endpoint, server));
}

#[test]
fn task_and_both_halves_learn_of_the_peers_disconnect() {
    let fabric = Fabric::new();
    let [service, client, _] = hosts(&fabric);
    let runtime = runtime(&client);
    for splits in [false, true] {
        let [server, endpoint] = connect(&service, &client, &builder());
        let closing = thread::spawn(move || {
            let mut server = server;
            server.disconnect()
        });
        let waited = runtime.block_on(async {
            let mut endpoint = cm::tokio::Endpoint::new(endpoint).unwrap();
            let ends = async {
                if splits {
                    let (mut sender, mut receiver) = endpoint.into_split();
                    let (sent, received) =
                        tokio::join!(sender.wait_disconnected(), receiver.wait_disconnected());
                    sent.and(received).unwrap();
                    assert!(sender.is_disconnected() && receiver.is_disconnected());
                    assert_eq!((sender.end_cause(), receiver.end_cause()), (None, None));
                } else {
                    endpoint.wait_disconnected().await.unwrap();
                    assert_eq!(endpoint.end_cause(), None);
                }
            };
            tokio::time::timeout(TEST_TIMEOUT, ends).await
        });
        waited.unwrap();
        closing.join().unwrap().unwrap();
    }
    drop(runtime);
}

/// The cause of the end after the loss of the device, of each kind of endpoint.
#[test]
fn every_endpoint_has_the_cause_of_its_end() {
    let fabric = Fabric::new();
    let [service, client, _] = hosts(&fabric);
    let runtime = runtime(&client);
    let removed = Some(ConnectFailure::DeviceRemoved);
    let datagrams = client.run(|| builder().bind(SocketAddr::new(client.addr(), 0)));
    let mut datagrams = datagrams.unwrap();
    assert_eq!(datagrams.end_cause(), None);
    let device = client.run(|| cm::devices().unwrap().remove(0));
    let cq = device.create_cq(64).unwrap();
    let on_shared = builder().cqs(&cq, &cq);
    let listener = service.run(|| Listener::bind(ADDR).unwrap());
    let accepting = service.spawn(move || [(); 4].map(|()| listener.accept().unwrap()));
    let connecting = [(); 3].map(|()| client.run(|| builder().connect(ADDR).unwrap()));
    let mut shared = client.run(|| on_shared.connect(ADDR).unwrap());
    let servers = accepting.join().unwrap();
    let [mut blocking, task, halves] = connecting;
    let (mut task, mut sender, mut receiver) = runtime.block_on(async {
        let task = cm::tokio::Endpoint::new(task).unwrap();
        let (sender, receiver) = cm::tokio::Endpoint::new(halves).unwrap().into_split();
        (task, sender, receiver)
    });
    fabric.kill(&client);
    blocking.wait_disconnected().unwrap();
    shared.wait_disconnected().unwrap();
    assert!(shared.check_disconnected().unwrap());
    let ends = async {
        task.wait_disconnected().await.unwrap();
        sender.wait_disconnected().await.unwrap();
        receiver.wait_disconnected().await.unwrap();
        let error = receiver.recv_comp().await.unwrap_err();
        assert_eq!(ConnectFailure::of(&error), removed.as_ref());
        let error = task.send_comp().await.unwrap_err();
        assert_eq!(ConnectFailure::of(&error), removed.as_ref());
    };
    runtime
        .block_on(async { tokio::time::timeout(TEST_TIMEOUT, ends).await })
        .unwrap();
    for error in [
        blocking.recv_comp().map(drop).unwrap_err(),
        datagrams.recv_comp().map(drop).unwrap_err(),
        datagrams.send_comp().map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
        assert_eq!(ConnectFailure::of(&error), removed.as_ref());
    }
    let causes = [
        blocking.end_cause(),
        shared.end_cause(),
        task.end_cause(),
        sender.end_cause(),
        receiver.end_cause(),
        datagrams.end_cause(),
    ];
    assert_eq!(causes, [(); 6].map(|()| removed.clone()));
    drop((blocking, shared, task, sender, receiver, datagrams, servers));
    drop(runtime);
}

#[test]
fn type_of_service_of_an_endpoint_marks_the_frames_of_both_sides() {
    const TOS: u8 = 0x68;
    let fabric = Fabric::new().record();
    let [service, client, _] = hosts(&fabric);
    let [mut server, mut endpoint] = connect(&service, &client, &builder().tos(TOS));
    for end in [&mut server, &mut endpoint] {
        end.set_timeout(Some(TEST_TIMEOUT));
        end.post_recv(end.reg_msgs([0; 8]).unwrap()).unwrap();
    }
    for end in [&mut server, &mut endpoint] {
        end.post_send(end.reg_msgs(*b"hello").unwrap()).unwrap();
    }
    for end in [&mut server, &mut endpoint] {
        end.recv_comp().unwrap().ok().unwrap();
        end.send_comp().unwrap().ok().unwrap();
    }
    let mut senders = Vec::new();
    for recorded in fabric.recorded_frames().unwrap() {
        let frame = recorded.decode().unwrap();
        // Management datagrams go to queue pair 1.
        if frame.bth.dest_qp == 1 {
            continue;
        }
        let softnic::wire::IpHeader::V4 { tos, src, .. } = frame.ip else {
            unreachable!()
        };
        assert_eq!(tos, TOS, "{frame:?}");
        senders.push(src);
    }
    senders.sort_unstable();
    senders.dedup();
    assert_eq!(senders.len(), 2);
}
