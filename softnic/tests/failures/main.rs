//! Failures of calls requested on a host: each is reported with call, error number and advice, and leaves no object. The
//! books of the fabric are checked at its drop.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attributes;
#[path = "../../../verbs/tests/shared/children.rs"]
mod children;
mod connections;
mod forks;
mod half_open;
mod limits;
mod objects;
mod sweep;

use softnic::{Call, Fabric, Host, When};
use verbs::Context;

/// Opens a host's own device.
fn open(host: &Host) -> Context {
    let devices = host.run(|| verbs::devices().unwrap());
    devices.iter().next().unwrap().open().unwrap()
}

#[test]
#[should_panic(expected = "`ibv_create_flow` fails on scripted devices only")]
fn failure_of_a_scripted_call_on_a_host_is_refused() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let _failing = host.fail(Call::CreateFlow, When::Every, libc::ENOMEM);
}

#[test]
#[should_panic(expected = "`rdma_listen` fails on hosts only")]
fn failure_of_a_connection_call_on_a_scripted_device_is_refused() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    device.fail(Call::Listen, When::Every, libc::ENOMEM);
}

#[test]
fn failures_concern_one_host() {
    let fabric = Fabric::new();
    let hosts = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
    let failing = hosts[0].fail(Call::AllocPd, When::Every, libc::ENOMEM);
    let [first, second] = [0, 1].map(|host| open(&hosts[host]).alloc_pd());
    assert_eq!(first.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    second.unwrap();
    assert_eq!((failing.calls(), failing.failed()), (1, 1));
}

#[test]
fn one_in_n_fails_the_same_calls_for_the_same_seed() {
    let run = |seed| {
        let fabric = Fabric::seeded(seed);
        let host = fabric.host("10.9.0.1".parse().unwrap());
        let ctx = open(&host);
        let _failing = host.fail(Call::AllocPd, When::OneIn(4), libc::ENOMEM);
        let results: Vec<_> = (0..200).map(|_| ctx.alloc_pd().is_ok()).collect();
        results
    };
    // A seed in the environment is the seed of all fabrics.
    let is_replay = std::env::var_os("SOFTNIC_SEED").is_some();
    assert_eq!(run(7), run(7));
    assert_eq!(run(7) == run(8), is_replay);
}
