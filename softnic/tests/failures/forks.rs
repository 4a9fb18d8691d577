//! Objects of `cm` inherited by a fork: a child that drops its copies leaves the parent's objects alone.

use std::net::SocketAddr;

use cm::EventChannel;
use softnic::Fabric;

use crate::children::dropped_in_a_child;

#[test]
fn channel_and_identifier_dropped_by_a_child_stay_the_parents() {
    let fabric = Fabric::manual(0);
    let host = fabric.host("10.9.0.1".parse().unwrap());
    host.run(|| {
        let addr = SocketAddr::from(([10, 9, 0, 1], 7471));
        let channel = EventChannel::new().unwrap();
        let mut id = channel.create_id().unwrap();
        id.bind(addr).unwrap();
        let other_channel = EventChannel::new().unwrap();
        let mut other = other_channel.create_id().unwrap();
        // SAFETY: the channel is open, and its descriptor constant.
        let fd = unsafe { (*channel.as_raw()).fd };
        let (original, status) = dropped_in_a_child((id, channel), || {
            // SAFETY: the call only asks for the flags of a number.
            let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
            is_open && other.bind(addr).is_err()
        });
        assert_eq!(status, 0);
        drop(original);
        other.bind(addr).unwrap();
    });
}
