//! Identifiers of threads on no host, such as those of an engine for all hosts.

use cm::{Event, EventChannel};
use softnic::Fabric;

use crate::{TEST_TIMEOUT, at, hosts};

#[test]
fn identifier_of_a_thread_on_no_host_belongs_to_the_host_with_its_address() {
    let timeout = TEST_TIMEOUT.unwrap();
    let fabric = Fabric::new();
    let [a, b] = hosts(&fabric, 41);
    let channel = a.run(|| EventChannel::new().unwrap());
    // This thread is on no host. By default its identifiers are on the channel's host.
    let mut server = channel.create_id().unwrap();
    server.bind(at(&b, 7471)).unwrap();
    let server = server.listen(1).unwrap();
    assert_eq!(server.bound_context().unwrap().unwrap().name(), "softnic1");

    let client = channel.create_id().unwrap();
    client.resolve_addr(None, at(&b, 7471), timeout).unwrap();
    let Some(Event::AddrResolved(client)) = channel.wait_timeout(timeout).unwrap() else {
        panic!("the address is not resolved");
    };
    assert_eq!(client.context().unwrap().name(), "softnic0");

    let mut other = channel.create_id().unwrap();
    other.set_tos(32).unwrap();
    other
        .resolve_addr(Some(at(&b, 0)), at(&a, 7471), timeout)
        .unwrap();
    let Some(Event::AddrResolved(other)) = channel.wait_timeout(timeout).unwrap() else {
        panic!("the address is not resolved");
    };
    assert_eq!(other.context().unwrap().name(), "softnic1");

    // A thread on a host has only the addresses of that host.
    let mut own = a.run(|| channel.create_id().unwrap());
    let refused = own.bind(at(&b, 0)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}
