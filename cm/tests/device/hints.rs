//! Hints in the errors of refused addresses and unresponsive peers.

use std::{net::SocketAddr, thread, time::Duration};

use cm::{ConnParam, EndpointBuilder, Listener};
use verbs::{Error, WcStatus, cq::WcError};

use crate::support::{TEST_TIMEOUT, local};

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().timeout(TEST_TIMEOUT)
}

#[track_caller]
fn names<T>(result: Result<T, Error>, expected: &[&str]) {
    let text = result.err().expect("it succeeded").to_string();
    for name in expected {
        assert!(text.contains(name), "{text} does not name {name}");
    }
}

#[test]
fn loopback_address_error_names_the_missing_device() {
    for addr in ["127.0.0.1:7471", "[::1]:7471"] {
        let ip = addr.parse::<SocketAddr>().unwrap().ip().to_string();
        let expected = [&ip, "the loopback interface", "rdma link"];
        names(builder().connect(addr).map(drop), &expected);
    }
}

#[test]
fn source_at_fault_is_named() {
    let mut peer = local();
    peer.set_port(7471);
    let from = |source: &str| {
        let source = source.parse().unwrap();
        builder().source(source).connect(peer).map(drop)
    };
    names(
        from("192.0.2.7:0"),
        &["source address 192.0.2.7", "no RDMA device"],
    );
    names(
        from("127.0.0.1:0"),
        &["127.0.0.1", "the loopback interface"],
    );
    names(
        builder().listen("192.0.2.7:0").map(drop),
        &["192.0.2.7", "no RDMA device"],
    );
}

/// Where there is no listener, and where the listener accepts no connection.
#[test]
fn connection_error_names_the_peer() {
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let in_time = builder().timeout(Duration::from_secs(1));
    let expected = [&*addr.to_string(), "not done within 1s"];
    names(in_time.connect(addr).map(drop), &expected);
    drop(listener);
    let expected = [&*addr.to_string(), "no listener there"];
    names(builder().connect(addr).map(drop), &expected);
}

#[test]
fn connection_with_more_reads_than_the_device_has_is_refused() {
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let too_many = [
        ConnParam::new().initiator_depth(200),
        ConnParam::new().responder_resources(200),
    ];
    for param in too_many {
        let choices = builder().param(param.clone());
        let refused = choices.connect(addr).map(drop).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{refused}");
        let connecting = thread::spawn(move || builder().connect(addr).map(drop));
        let mut incoming = listener.request().unwrap();
        *incoming.param_mut() = param;
        let refused = incoming.accept().map(drop).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{refused}");
        connecting.join().unwrap().unwrap_err();
    }
}

#[test]
fn port_in_use_error_names_the_command_for_its_user() {
    let listener = Listener::bind(local()).unwrap();
    let in_use = listener.local_addr().unwrap();
    names(
        Listener::bind(in_use).map(drop),
        &["has the port", "rdma resource show cm_id"],
    );
}

/// The error names the peer and the number of attempts, with and without retries.
#[test]
fn peer_that_does_not_answer_is_named_with_the_retries() {
    for (retries, tried) in [(0, "sent once, without a retry"), (1, "sent twice")] {
        let listener = builder().listen(local()).unwrap();
        let addr = listener.local_addr().unwrap();
        let server = thread::spawn(move || listener.accept().unwrap());
        let param = ConnParam::new().retry_count(retries);
        let mut client = builder().param(param).connect(addr).unwrap();
        let (mut silent, _, _, _channel) = server.join().unwrap().into_parts();
        // The device drops all packets without notice to the connection manager.
        silent.qp_mut().to_error().unwrap();
        client
            .post_send(client.reg_msgs(*b"hello").unwrap())
            .unwrap();
        let failed: WcError = client.send_comp().unwrap().into_work().unwrap_err().into();
        assert_eq!(failed.status, WcStatus::RETRY_EXC_ERR);
        let text = Error::from(failed).to_string();
        for name in [
            &addr.to_string(),
            tried,
            "for each attempt",
            "peer's program runs",
        ] {
            assert!(text.contains(name), "{text} does not name {name}");
        }
    }
}
