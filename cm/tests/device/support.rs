//! What the tests share: the device's addresses, and waiting for events.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use cm::{Event, EventChannel};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The address of the guest's RDMA device.
pub(crate) fn local() -> SocketAddr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// The IPv6 address of the guest's RDMA device.
pub(crate) fn local_v6() -> IpAddr {
    let address = std::env::var("A6").expect("the guest has an IPv6 address");
    address.parse().unwrap()
}

pub(crate) fn next(channel: &EventChannel) -> Event {
    channel
        .wait_timeout(PATIENCE)
        .unwrap()
        .expect("no event came")
}

/// Takes the next event, which must be of the kind named.
macro_rules! taken {
    ($channel:expr, $kind:pat => $value:expr) => {
        match $crate::support::next($channel) {
            $kind => $value,
            other => panic!("expected {}, and {other:?} came", stringify!($kind)),
        }
    };
}

pub(crate) use taken;
