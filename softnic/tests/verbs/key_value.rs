//! A key-value store over endpoints of `cm`, on two hosts with a lossy link: an example for users of this crate.

use std::{collections::HashMap, thread::JoinHandle, time::Duration};

use cm::{Endpoint, EndpointBuilder, Listener};
use softnic::{Fabric, Host};

/// Number of requests of a client.
const REQUESTS: usize = 300;

/// Longest message in bytes.
const MAX_LEN: usize = 64;

const ADDR: &str = "10.9.0.2:7471";

/// Answer for a missing value.
fn none() -> String {
    "none".to_owned()
}

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().timeout(Duration::from_secs(60))
}

fn send(endpoint: &mut Endpoint, text: &str) {
    let message = endpoint.reg_msgs(text.as_bytes()).unwrap();
    endpoint.post_send(message).unwrap();
    endpoint.send_comp().unwrap().ok().unwrap();
}

fn receive(endpoint: &mut Endpoint) -> String {
    let done = endpoint.recv_comp().unwrap();
    let text = String::from_utf8(done.received().unwrap().to_vec()).unwrap();
    let buf = endpoint.reg_msgs([0; MAX_LEN]).unwrap();
    endpoint.post_recv(buf).unwrap();
    text
}

/// Serves one client until its goodbye, and returns the table.
fn serve(listener: &Listener) -> HashMap<String, String> {
    let mut incoming = listener.request().unwrap();
    let buf = incoming.reg_msgs([0; MAX_LEN]).unwrap();
    incoming.post_recv(buf).unwrap();
    let mut client = incoming.accept().unwrap();
    let mut table = HashMap::new();
    loop {
        let request = receive(&mut client);
        let words: Vec<_> = request.split(' ').collect();
        match words[..] {
            ["put", key, value] => {
                let old = table.insert(key.to_owned(), value.to_owned());
                send(&mut client, &old.unwrap_or_else(none));
            }
            ["get", key] => {
                let value = table.get(key).cloned();
                send(&mut client, &value.unwrap_or_else(none));
            }
            _ => {
                send(&mut client, "goodbye");
                return table;
            }
        }
    }
}

fn start_server(host: &Host) -> JoinHandle<HashMap<String, String>> {
    let listener = host.run(|| builder().listen(ADDR).unwrap());
    host.spawn(move || serve(&listener))
}

/// Puts and gets, and checks each answer.
fn use_store() {
    let mut outgoing = builder().prepare(ADDR).unwrap();
    let buf = outgoing.reg_msgs([0; MAX_LEN]).unwrap();
    outgoing.post_recv(buf).unwrap();
    let mut server = outgoing.connect().unwrap();
    let mut ask = |request: &str| {
        send(&mut server, request);
        receive(&mut server)
    };
    for number in 0..REQUESTS {
        let key = number % 7;
        let old = number.checked_sub(7).map(|old| old.to_string());
        assert_eq!(
            ask(&format!("put key{key} {number}")),
            old.unwrap_or_else(none)
        );
        assert_eq!(ask(&format!("get key{key}")), number.to_string());
    }
    assert_eq!(ask("quit"), "goodbye");
}

#[test]
fn key_value_store_survives_loss() {
    let fabric = Fabric::seeded(7).loss(0.01).duplication(0.01);
    let (client, server) = (
        fabric.host("10.9.0.1".parse().unwrap()),
        fabric.host("10.9.0.2".parse().unwrap()),
    );
    let table = start_server(&server);
    client.run(use_store);
    assert_eq!(table.join().unwrap().len(), 7);
}

#[test]
fn client_without_server_is_refused_and_without_network_times_out() {
    let fabric = Fabric::new();
    let (client, server) = (
        fabric.host("10.9.0.1".parse().unwrap()),
        fabric.host("10.9.0.2".parse().unwrap()),
    );
    let connect = || client.run(|| builder().connect(ADDR).unwrap_err());
    assert_eq!(connect().kind(), std::io::ErrorKind::ConnectionRefused);
    fabric.cut(&client, &server);
    let silent = connect();
    assert!(silent.to_string().contains("unreachable"), "{silent}");
}
