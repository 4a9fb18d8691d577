//! The test in the workspace's README.

use cm::{EndpointBuilder, Listener};
use softnic::Fabric;

#[test]
fn answer_arrives_over_a_lossy_network() -> verbs::Result<()> {
    let fabric = Fabric::seeded(7).loss(0.1);
    let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
    let listener = a.run(|| Listener::bind("10.9.0.1:7471"))?;
    let serving = a.spawn(move || {
        let mut incoming = listener.request()?;
        incoming.post_recv(incoming.reg_msgs([0; 64])?)?; // the device's until its completion
        let mut client = incoming.accept()?;
        let question = client.recv_comp()?.received()?.to_vec();
        client.post_send(client.reg_msgs(question.to_ascii_uppercase())?)?; // moved away...
        let _sent = client.send_comp()?.into_parts(); // ...and back; flushed if the client has left
        client.disconnect()
    });
    let mut outgoing = b.run(|| EndpointBuilder::new().prepare("10.9.0.1:7471"))?;
    outgoing.post_recv(outgoing.reg_msgs([0; 64])?)?;
    let mut server = outgoing.connect()?;
    server.post_send(server.reg_msgs(*b"hello")?)?;
    assert_eq!(server.recv_comp()?.received()?, b"HELLO");
    server.disconnect()?; // both sides' calls return
    serving.join().unwrap()
}

#[test]
fn readme_quotes_this_test() {
    let readme = include_str!("../../../README.md");
    let block = readme.split("```rust\n").nth(1);
    let block = block.and_then(|text| text.split("```").next());
    let (_, quoted) = block.unwrap().split_once('\n').unwrap();
    assert!(include_str!("readme.rs").contains(quoted), "{quoted}");
}
