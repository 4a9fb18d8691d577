//! Two hosts in one guest: network namespaces with a device of Soft-RoCE in each. Newer drivers have sockets in each
//! namespace; older ones only in the first, and no peer in another namespace is reached.

use std::process::{Command, Output, Stdio};

const SERVER: &str = "rping1";
const CLIENT: &str = "rping2";

/// Two namespaces joined by a cable, with a device in each. Removed when dropped.
struct Hosts;

fn sh(script: &str) -> Output {
    Command::new("sh").args(["-c", script]).output().unwrap()
}

impl Hosts {
    fn new() -> Self {
        let created = sh(&format!(
            "set -e; ip netns add {SERVER}; ip netns add {CLIENT}
             ip link add cable1 type veth peer name cable2
             for n in 1 2; do
                 ip link set cable$n netns rping$n
                 ip -n rping$n addr add 10.77.0.$n/24 dev cable$n
                 ip -n rping$n link set cable$n up mtu 4200
                 ip netns exec rping$n rdma link add rping$n type rxe netdev cable$n
             done"
        ));
        let hosts = Self;
        assert!(created.status.success(), "{created:?}");
        hosts
    }

    /// Whether the driver receives in the namespaces: on the port of RoCE, 4791.
    fn have_sockets(&self) -> bool {
        [SERVER, CLIENT].iter().all(|host| {
            let sockets = Self::run(host, &["cat", "/proc/net/udp"]).output().unwrap();
            String::from_utf8(sockets.stdout)
                .unwrap()
                .contains(":12B7 ")
        })
    }

    /// A command on a host, ended after 10 s.
    fn run(host: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", host, "timeout", "10"])
            .args(words);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        sh(&format!(
            "rdma link delete rping1; rdma link delete rping2; ip netns delete {SERVER}; ip netns delete {CLIENT}"
        ));
    }
}

#[test]
fn rping_between_namespaces_needs_sockets_in_both() {
    let hosts = Hosts::new();
    let rping = env!("CARGO_BIN_EXE_rping");
    let server = [rping, "-s", "-a", "10.77.0.1", "-C", "3"];
    let server = Hosts::run(SERVER, &server).stdout(Stdio::null()).spawn();
    let mut server = server.unwrap();
    let client = [rping, "-c", "-v", "-a", "10.77.0.1", "-C", "3"];
    // The server may not listen yet at the first attempt.
    let have_sockets = hosts.have_sockets();
    let attempts = if have_sockets { 5 } else { 1 };
    let has_connected = (0..attempts).any(|_| {
        let client = Hosts::run(CLIENT, &client).output().unwrap();
        let printed = String::from_utf8(client.stdout).unwrap();
        client.status.success() && printed.contains("rdma-ping-2")
    });
    assert_eq!(has_connected, have_sockets);
    assert_eq!(server.wait().unwrap().success(), have_sockets);
}
