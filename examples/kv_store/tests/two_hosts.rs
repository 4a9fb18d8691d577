//! The programs on two guests, with RDMA devices of their kernels.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::path::Path;

use soft_roce::{Guests, Host, Ran, quote};

/// The server, as a word of a shell.
fn server_program() -> String {
    quote(Path::new(env!("CARGO_BIN_EXE_kv-server"))).unwrap()
}

/// Runs a server, and a client's script that begins when the server listens. `kv` is the client, with all output as
/// standard output.
fn run(server: &str, script: &str) -> Ran {
    let program = quote(Path::new(env!("CARGO_BIN_EXE_kv-client"))).unwrap();
    let kv = format!("kv() {{ {program} $A \"$@\" 2>&1; }}");
    let client = format!("{kv}; until kv put a one; do sleep 0.2; done | tail -n 1; {script}");
    let ran = Guests::pair().run([format!("{} {server}", server_program()), client]);
    ran.unwrap().expect_success()
}

#[test]
fn full_bucket_refuses_keys_and_keeps_the_others() {
    // A single bucket, so that the fifth key finds no room. The client connects once for each command.
    let ran = run(
        "--buckets 1 --clients 9",
        "for key in b c d e; do kv put $key two; done; kv put a three; for key in a d e; do kv get $key; done; true",
    );
    assert!(ran.stdout(Host::A).starts_with("listening on port 7480\n"));
    let lines: Vec<&str> = ran.stdout(Host::B).lines().collect();
    let expected = [
        "a is stored as version 1",
        "b is stored as version 2",
        "c is stored as version 3",
        "d is stored as version 4",
        "the server has no room for this key",
        "a is stored as version 5",
        "a = three, version 5",
        "d = two, version 4",
        "there is no e",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn get_during_a_put_returns_the_value_before_or_after() {
    // The number of gets varies, so the first server counts no clients. A second one, for one client, ends both.
    let ran = run(
        &format!(
            "--slow-puts 2000 & {} --port 7481 --clients 1; kill $!",
            server_program()
        ),
        "kv put a two & while kill -0 $! 2>/dev/null; do kv get a; done; kv get a; kv --port 7481 get a; true",
    );
    let lines: Vec<&str> = ran.stdout(Host::B).lines().collect();
    let torn = "read again during a put";
    let allowed = [
        torn,
        "a is stored as version 1",
        "a is stored as version 2",
        "a = one, version 1",
        "a = two, version 2",
        "there is no a",
    ];
    assert!(
        lines.iter().all(|line| allowed.contains(line)),
        "{lines:#?}"
    );
    assert!(lines.contains(&torn), "no get has met the put: {lines:#?}");
    let end = ["a = two, version 2", "there is no a"];
    assert!(lines.ends_with(&end), "{lines:#?}");
}
