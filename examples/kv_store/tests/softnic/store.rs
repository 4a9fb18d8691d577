//! The store with a dead client, a cut link and a slow server.

use std::{
    num::NonZeroU32,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use cm::{EndpointBuilder, Listener};
use softnic::{
    Fabric, Host,
    wire::{Opcode, Operation},
};

use kv_store::{client::Client, entry::Entry, message::MESSAGE_LEN, server::Store};

pub(crate) const ADDR: &str = "10.9.0.1:7480";

/// How the serving of each client ended.
pub(crate) type Served = Vec<anyhow::Result<()>>;

/// Starts a server on a host. `pause` is a delay in the middle of each put. The server ends after `clients` clients.
pub(crate) fn start_server(host: &Host, pause: Duration, clients: usize) -> JoinHandle<Served> {
    let listener = host.run(|| {
        let builder = EndpointBuilder::new().timeout(Duration::from_secs(60));
        builder.listen(ADDR).unwrap()
    });
    let same = host.clone();
    host.spawn(move || serve(&same, &listener, pause, clients))
}

fn serve(host: &Host, listener: &Listener, pause: Duration, clients: usize) -> Served {
    let mut store = None;
    let mut threads = Vec::new();
    for _ in 0..clients {
        let mut incoming = listener.request().unwrap();
        let store = Arc::clone(store.get_or_insert_with(|| {
            let buckets = NonZeroU32::new(64).unwrap();
            Arc::new(Store::new(incoming.pd(), buckets, pause).unwrap())
        }));
        let receive = incoming.reg_msgs([0; MESSAGE_LEN]).unwrap();
        incoming.post_recv(receive).unwrap();
        threads.push(host.spawn(move || store.serve(incoming.accept()?)));
    }
    let ended = threads.into_iter().map(|thread| thread.join().unwrap());
    ended.collect()
}

pub(crate) fn entry(value: &str) -> Entry {
    Entry::new(b"colour", value.as_bytes()).unwrap()
}

/// The value of the only key.
fn colour(client: &mut Client) -> anyhow::Result<String> {
    let slot = client.get(b"colour")?.expect("the key is there");
    Ok(String::from_utf8(slot.entry.value().to_vec())?)
}

/// Hosts of a server and of two clients.
pub(crate) fn hosts(fabric: &Fabric) -> [Host; 3] {
    ["10.9.0.1", "10.9.0.2", "10.9.0.3"].map(|addr| fabric.host(addr.parse().unwrap()))
}

#[test]
fn get_is_one_read_and_no_message() {
    let fabric = Fabric::new().record();
    let [server, client, _] = hosts(&fabric);
    let serving = start_server(&server, Duration::ZERO, 1);
    let mut store = client.run(|| Client::connect(ADDR).unwrap());
    store.put(entry("green")).unwrap();

    let before = fabric.recorded_frames().unwrap().len();
    assert_eq!(colour(&mut store).unwrap(), "green");
    let frames = fabric.recorded_frames().unwrap();
    let opcodes = frames[before..]
        .iter()
        .map(|frame| frame.decode().unwrap().bth.opcode);
    let operations: Vec<_> = opcodes
        .filter(|opcode| *opcode != Opcode::RC_ACKNOWLEDGE)
        .map(|opcode| opcode.parse().unwrap().1)
        .collect();
    assert!(matches!(
        operations[..],
        [Operation::ReadRequest, Operation::ReadResponse(_)]
    ));

    store.disconnect().unwrap();
    assert!(serving.join().unwrap().iter().all(Result::is_ok));
}

#[test]
fn client_killed_in_mid_put_leaves_a_whole_slot() {
    let fabric = Fabric::new().record();
    let [server, victim, reader] = hosts(&fabric);
    let serving = start_server(&server, Duration::from_secs(2), 2);
    let mut store = victim.run(|| Client::connect(ADDR).unwrap());
    store.put(entry("green")).unwrap();

    let before = fabric.recorded_frames().unwrap().len();
    let dying = victim.spawn(move || store.put(entry("blue")));
    // The request is acknowledged at once. The answer follows after the server's pause.
    while fabric.recorded_frames().unwrap().len() < before + 2 {
        thread::yield_now();
    }
    fabric.kill(&victim);
    assert!(dying.join().unwrap().is_err(), "the put has had no answer");

    let mut store = reader.run(|| Client::connect(ADDR).unwrap());
    while colour(&mut store).unwrap() != "blue" {}
    store.disconnect().unwrap();
    let served = serving.join().unwrap();
    assert!(served[0].is_err() && served[1].is_ok(), "{served:?}");
}

#[test]
fn get_over_a_cut_link_fails_and_a_new_client_gets_the_value() {
    let fabric = Fabric::new();
    let [server, client, _] = hosts(&fabric);
    let serving = start_server(&server, Duration::ZERO, 2);
    let mut store = client.run(|| Client::connect(ADDR).unwrap());
    store.put(entry("green")).unwrap();

    fabric.cut(&client, &server);
    let error = colour(&mut store).unwrap_err();
    assert!(error.to_string().contains("RETRY"), "{error:#}");

    fabric.heal(&client, &server);
    drop(store);
    let mut store = client.run(|| Client::connect(ADDR).unwrap());
    assert_eq!(colour(&mut store).unwrap(), "green");
    store.disconnect().unwrap();
    assert_eq!(serving.join().unwrap().len(), 2);
}

#[test]
fn reader_of_a_slow_server_repeats_torn_reads_and_gets_whole_values() {
    let fabric = Fabric::new();
    let [server, writer, reader] = hosts(&fabric);
    let serving = start_server(&server, Duration::from_secs(1), 2);
    let mut store = reader.run(|| Client::connect(ADDR).unwrap());
    store.put(entry("green")).unwrap();

    let writing = writer.spawn(|| {
        let mut store = Client::connect(ADDR)?;
        store.put(entry("blue"))?;
        store.disconnect()
    });
    let last = loop {
        let value = colour(&mut store).unwrap();
        if value != "green" {
            break value;
        }
    };
    assert_eq!(last, "blue");
    assert!(store.torn() > 0, "no read during the put");

    store.disconnect().unwrap();
    writing.join().unwrap().unwrap();
    assert!(serving.join().unwrap().iter().all(Result::is_ok));
}

#[test]
fn puts_and_gets_survive_loss() {
    let fabric = Fabric::seeded(7).loss(0.02).duplication(0.02);
    let [server, client, _] = hosts(&fabric);
    let serving = start_server(&server, Duration::ZERO, 1);
    let mut store = client.run(|| Client::connect(ADDR).unwrap());
    for round in 0..50 {
        let value = round.to_string();
        assert_eq!(store.put(entry(&value)).unwrap(), round + 1);
        assert_eq!(colour(&mut store).unwrap(), value);
    }
    store.disconnect().unwrap();
    assert!(serving.join().unwrap().iter().all(Result::is_ok));
}
