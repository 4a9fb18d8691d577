//! The library's guests for tests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::catch_unwind;
use std::time::Duration;

use soft_roce::{Guests, Host, Stream};

#[test]
fn client_reaches_the_server() {
    let commands = ["rping -s -a $A -C 3", "sleep 1; rping -c -v -a $A -C 3"];
    let ran = Guests::pair().run(commands).unwrap();
    let pings = ran.stdout(Host::B);
    assert!(pings.contains("ping data: rdma-ping-2"), "{ran}");
}

#[test]
fn exit_codes_and_streams_of_each_host_are_kept() {
    let commands = ["echo out; echo err >&2; exit 3", "sleep 60", "echo c"];
    let ran = Guests::many(3).run(commands).unwrap();
    assert_eq!(
        (ran.stdout(Host::A), ran.stderr(Host::A)),
        ("out\n", "err\n")
    );
    assert_eq!(
        (ran.exit_code(Host::A), ran.exit_code(Host::B)),
        (Some(3), None)
    );
    assert_eq!(ran.outcome().exit_code(), 3);
    let text = ran.to_string();
    assert!(
        text.contains("host a: exit code 3\na| out\na| err"),
        "{text}"
    );
    assert!(catch_unwind(|| ran.expect_success()).is_err());
}

#[test]
fn link_cut_by_the_test_separates_the_hosts() {
    let ping = "/run/soft-roce/busybox ping -c 1 -W 1";
    let server =
        format!("until {ping} b; do :; done; echo ready; while {ping} b; do :; done; echo alone");
    let mut cuts = 0;
    let ran = Guests::pair().run_watching([server.as_str(), "sleep 10"], |line, links| {
        if line.stream == Stream::Stdout && line.text == "ready" {
            cuts += 1;
            links.cut(Host::A, Host::B)?;
        }
        Ok(())
    });
    let ran = ran.unwrap().expect_success();
    assert!(ran.stdout(Host::A).ends_with("alone\n"));
    assert_eq!(cuts, 1);
}

#[test]
fn hello_arrives() {
    Guests::pair().run_in_test("library::hello_arrives", |host| {
        if host == Host::A {
            let (mut stream, _) = TcpListener::bind("10.9.0.1:7471")
                .unwrap()
                .accept()
                .unwrap();
            let mut hello = String::new();
            stream.read_to_string(&mut hello).unwrap();
            assert_eq!(hello, "hello");
        } else {
            std::thread::sleep(Duration::from_secs(1));
            TcpStream::connect("10.9.0.1:7471")
                .unwrap()
                .write_all(b"hello")
                .unwrap();
        }
    });
}

#[test]
fn panic_on_a_host_fails_the_test() {
    let run = || {
        Guests::one().run_in_test("library::panic_on_a_host_fails_the_test", |host| {
            panic!("on purpose on {host}");
        });
    };
    // In the guest, the panic must reach the test harness.
    if std::env::var_os("SOFT_ROCE_INSIDE").is_some() {
        return run();
    }
    let message = catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("on purpose on a"), "{message}");
}

#[test]
fn wrong_name_of_the_test_is_reported() {
    let failed = catch_unwind(|| Guests::one().run_in_test("absent", |_| {}));
    let message = failed.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("no test is called `absent`"), "{message}");
}
