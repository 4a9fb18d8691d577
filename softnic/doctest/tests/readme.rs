//! The client in the workspace's README, with a server.
#![expect(
    clippy::print_stdout,
    reason = "the program of the README prints its result"
)]

const README: &str = include_str!("../../../README.md");
const THIS: &str = include_str!("readme.rs");

mod client {
    use cm::EndpointBuilder;
    use verbs::op;

    fn main() -> verbs::Result<()> {
        let mut client = EndpointBuilder::new().prepare("10.9.0.1:7471")?;
        let room = client.reg_msgs([0; 1024])?;
        client.post_recv(room)?; // the device's until its completion

        let mut client = client.connect()?;
        let hello = client.reg_msgs(*b"hello")?;
        client.post(op::Send::new(hello).solicited())?; // moved away...
        let hello = client.send_comp()?.into_work()?; // ...and back
        println!("sent {:?}", &*hello);

        let answer = client.recv_comp()?;
        println!("received {:?}", answer.received()?);
        client.disconnect()
    }

    pub(super) fn run() -> verbs::Result<()> {
        main()
    }
}

/// The lines of a text, without indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn client_of_the_readme_gets_an_answer() {
    let block = README.split("```rust,no_run\n").nth(1);
    let block = block.and_then(|text| text.split("```").next());
    let quoted = lines(block.expect("the README has a program"));
    assert!(quoted.len() > 15, "{quoted:?}");
    assert!(
        lines(THIS)
            .windows(quoted.len())
            .any(|window| window == quoted),
        "not in this test:\n{}",
        quoted.join("\n")
    );

    let _server = doctest::server();
    client::run().unwrap();
}
