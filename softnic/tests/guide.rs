//! The first test of the chapter "Test your protocol", which quotes this file.

use cm::{EndpointBuilder, Listener};
use softnic::Fabric;

const ADDR: &str = "10.9.0.1:7471";

/// Answers one question, in capitals.
fn serve(listener: &Listener) -> verbs::Result<()> {
    let mut incoming = listener.request()?;
    incoming.post_recv(incoming.reg_msgs([0; 64])?)?;
    let mut client = incoming.accept()?;
    let question = client.recv_comp()?.received()?.to_vec();
    client.post_send(client.reg_msgs(question.to_ascii_uppercase())?)?;
    let _sent = client.send_comp()?.into_parts(); // flushed if the client has left
    client.disconnect()
}

/// Asks the server one question.
fn ask(question: &[u8]) -> verbs::Result<Vec<u8>> {
    let mut outgoing = EndpointBuilder::new().prepare(ADDR)?;
    outgoing.post_recv(outgoing.reg_msgs([0; 64])?)?;
    let mut server = outgoing.connect()?;
    server.post_send(server.reg_msgs(question)?)?;
    let answer = server.recv_comp()?.received()?.to_vec();
    server.disconnect()?;
    Ok(answer)
}

#[test]
fn answer_arrives_over_a_lossy_network() {
    let fabric = Fabric::seeded(7).loss(0.1);
    let server = fabric.host("10.9.0.1".parse().unwrap());
    let client = fabric.host("10.9.0.2".parse().unwrap());

    let listener = server.run(|| Listener::bind(ADDR).unwrap());
    let serving = server.spawn(move || serve(&listener));
    let answer = client.run(|| ask(b"hello")).unwrap();

    assert_eq!(answer, b"HELLO");
    serving.join().unwrap().unwrap();
}

/// A test with another seed than the document's meets other faults.
#[test]
fn answer_arrives_with_every_seed() {
    for seed in 0..40 {
        let fabric = Fabric::seeded(seed).loss(0.1).speed(40);
        let server = fabric.host("10.9.0.1".parse().unwrap());
        let client = fabric.host("10.9.0.2".parse().unwrap());
        let listener = server.run(|| Listener::bind(ADDR).unwrap());
        let serving = server.spawn(move || serve(&listener));
        let answer = client.run(|| ask(b"hello"));
        assert_eq!(answer.expect("an answer"), b"HELLO", "seed {seed}");
        let served = serving.join().unwrap();
        assert!(served.is_ok(), "seed {seed}: {served:?}");
    }
}
