//! Failed calls of `cm` after which nothing is lost.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use cm::{DatagramEndpoint, EndpointBuilder, Listener, Membership};
use softnic::{Call, Fabric, Host, When};
use verbs::Gid;

const SERVER: &str = "10.9.0.1";

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().timeout(Duration::from_secs(60))
}

/// Two hosts, and a listener of the first one.
fn listening(fabric: &Fabric) -> ([Host; 2], SocketAddr, Listener) {
    let hosts = [SERVER, "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
    let addr = SocketAddr::new(SERVER.parse().unwrap(), 7471);
    let listener = hosts[0].run(|| builder().listen(addr)).unwrap();
    (hosts, addr, listener)
}

/// The peer has completed its handshake, and sees no error of this side.
#[test]
fn established_connection_waits_for_free_descriptors() {
    let fabric = Fabric::new();
    let (hosts, addr, listener) = listening(&fabric);
    for failed in [Call::CreateEventChannel, Call::MigrateId] {
        let client = hosts[1].spawn(move || builder().connect(addr));
        // A request migrates to the channel of the handshakes first.
        let number = if failed == Call::MigrateId { 2 } else { 1 };
        let failing = hosts[0].fail(failed, When::Nth(number), libc::EMFILE);
        let mut server = hosts[0].run(|| listener.accept()).unwrap();
        assert_eq!(failing.failed(), 1);
        let mut client = client.join().unwrap().unwrap();
        server.post_recv(server.reg_msgs([0; 8]).unwrap()).unwrap();
        client
            .post_send(client.reg_msgs(*b"hello").unwrap())
            .unwrap();
        assert_eq!(server.recv_comp().unwrap().received().unwrap(), b"hello");
    }
}

/// The end of a connection that waits is not lost either.
#[test]
fn connection_that_ends_before_descriptors_are_free_reports_its_end() {
    let fabric = Fabric::new();
    let (hosts, addr, listener) = listening(&fabric);
    let client = hosts[1].spawn(move || builder().connect(addr));
    let failing = hosts[0].fail(Call::CreateEventChannel, When::Every, libc::EMFILE);
    let accepting = hosts[0].spawn(move || listener.accept());
    while failing.failed() == 0 {
        std::thread::yield_now();
    }
    drop(client.join().unwrap().unwrap());
    drop(failing);
    let mut server = accepting.join().unwrap().unwrap();
    let ended = server.recv_comp().unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::NotConnected, "{ended}");
}

#[test]
fn failed_multicast_join_or_leave_leaves_no_half_of_it() {
    let fabric = Fabric::new();
    let host = fabric.host(SERVER.parse().unwrap());
    let group: SocketAddr = "239.1.2.3:7000".parse().unwrap();
    let gid = Gid::from(group.ip());
    let local_addr = SocketAddr::new(IpAddr::from([10, 9, 0, 1]), 0);
    let mut endpoint: DatagramEndpoint = host.run(|| builder().bind(local_addr)).unwrap();
    for failed in [Call::CreateAh, Call::MigrateId, Call::AttachMcast] {
        let failing = host.fail(failed, When::Nth(1), libc::ENOMEM);
        let error = host.run(|| endpoint.join(group, Membership::Full));
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(failing.failed(), 1);
        let attached = endpoint.qp_mut().detach_multicast(gid, 0);
        assert!(attached.is_err(), "after a failed {failed}");
    }
    host.run(|| endpoint.join(group, Membership::Full)).unwrap();
    let failing = host.fail(Call::DetachMcast, When::Nth(1), libc::ENOMEM);
    assert!(endpoint.leave(group).is_err());
    drop(failing);
    endpoint.leave(group).unwrap();
    assert!(endpoint.leave(group).is_err());
}
