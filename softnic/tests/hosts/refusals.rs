//! Refused calls: the `errno` of the kernel's sockets, and a text with the call and the reason.

use std::io::{self, IoSlice};

use rds::{Atomic, ExportOptions, Rdma, SendOptions, Socket};
use rsocket::{Family, Socket as Datagrams};
use softnic::{Fabric, Host};

use crate::{at, hosts};

/// Asserts the `errno` and parts of the text of a refusal.
fn assert_refused<T>(result: io::Result<T>, errno: impl Fn(&io::Error) -> i32, want: (i32, &str)) {
    let Err(err) = result else {
        unreachable!("{} is not refused", want.1);
    };
    let text = err.to_string();
    assert_eq!(errno(&err), want.0, "{text}");
    assert!(text.contains(want.1), "{text}");
}

fn bound(host: &Host) -> Socket {
    host.run(|| Socket::bind(at(host, 4000)).unwrap())
}

#[test]
fn refused_rds_calls_report_the_reason() {
    let fabric = Fabric::new().keep_objects();
    let [a, b] = hosts(&fabric, 51).map(|host| bound(&host));
    let refused = |result, errno, text| assert_refused(result, rds::errno, (errno, text));
    let (local, remote) = (a.alloc(8192).unwrap(), b.alloc(4096).unwrap());
    let cookie = b.export(&remote, ExportOptions::new()).unwrap();
    let to = || SendOptions::new().to(b.local_addr().unwrap());
    let operate = |rdma| a.send_msg(&[], &to().rdma(rdma)).map(drop);
    let one = || local.slice(0..1);
    let write = |local| Rdma::write(local, cookie);
    refused(
        operate(write(vec![one(); 1025])),
        90,
        "1025 local pieces, of at most 1024",
    );
    refused(
        operate(write(vec![one()]).remote_len(1 << 21)),
        90,
        "2097152 bytes of remote memory",
    );
    let odd = Atomic::fetch_add(local.slice(0..8), cookie, 1).at(3);
    refused(
        a.send_msg(&[], &to().atomic(odd)).map(drop),
        14,
        "must be multiples of 8",
    );
    let long = vec![0; (1 << 20) + 1];
    refused(
        a.send_msg(&[IoSlice::new(&long)], &to()).map(drop),
        90,
        "1048577 bytes exceed",
    );
    let large = b.alloc(2 << 20).unwrap();
    refused(
        b.export(&large, ExportOptions::new()).map(drop),
        90,
        "2097152 bytes; an export has",
    );
    b.free(cookie).unwrap();
    refused(b.free(cookie), 22, "is no export of this socket");
    refused(a.set_transport(0), 95, "selected already");
    let unbound = a.engine().socket().unwrap();
    refused(unbound.set_transport(2), 92, "transport 2; the only one");
    refused(unbound.set_transport(-7), 22, "-7 is no transport");
    unbound.set_transport(0).unwrap();
    let lo = "127.0.0.1:0".parse().unwrap();
    refused(unbound.bind_to(lo).map(drop), 92, "has no RDMA device");
}

#[test]
fn refused_datagram_calls_report_the_reason() {
    let fabric = Fabric::new().keep_objects();
    let [host, _] = hosts(&fabric, 52);
    let refused = |result, errno, text| assert_refused(result, rsocket::errno, (errno, text));
    host.run(|| {
        let socket = Datagrams::datagram(Family::V4).unwrap();
        refused(socket.recv(&mut [0]).map(drop), 22, "bind or connect it");
        refused(socket.send(&[0]).map(drop), 89, "no destination");
        let v6 = "[::1]:7".parse().unwrap();
        refused(socket.send_to(&[0], v6).map(drop), 97, "no address of IPv4");
    });
}
