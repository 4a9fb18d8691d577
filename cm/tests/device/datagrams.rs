//! Datagrams: address requests to peers, and multicast groups.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cm::{
    CmId, ConnectFailure, DatagramPeer, Event, EventChannel, IbAddr, Membership, MulticastGroup,
    PortSpace, ServiceRequest, phases::*,
};
use verbs::{
    Buf, Completed, CompletionQueue, Gid, ProtectionDomain, QueuePair, Rts, Ud,
    ah::{Addressed, GRH_LEN},
    qp::QpFlags,
};

use crate::support::{TEST_TIMEOUT, expect_event, local, local_v6, next};

pub(crate) type DatagramQp = QueuePair<Ud, Rts, Addressed<Buf>>;

pub(crate) fn listen(channel: &EventChannel, addr: SocketAddr) -> (CmId<Listening>, SocketAddr) {
    let mut id = channel.create_id_in(PortSpace::Udp).unwrap();
    assert_eq!(id.port_space(), Some(PortSpace::Udp));
    id.bind(addr).unwrap();
    let listener = id.listen(8).unwrap();
    let bound = listener.local_addr().unwrap();
    (listener, bound)
}

pub(crate) fn resolve_addr(channel: &EventChannel, addr: SocketAddr) -> CmId<AddrResolved> {
    let id = channel.create_id_in(PortSpace::Udp).unwrap();
    // The guest has no multicast route, so the source address selects the device.
    let source = (addr.is_ipv4() && addr.ip().is_multicast()).then(local);
    id.resolve_addr(source, addr, TEST_TIMEOUT).unwrap();
    expect_event!(channel, Event::AddrResolved(id) => id)
}

pub(crate) fn resolve(channel: &EventChannel, addr: SocketAddr) -> CmId<RouteResolved> {
    let id = resolve_addr(channel, addr);
    id.resolve_route(TEST_TIMEOUT).unwrap();
    expect_event!(channel, Event::RouteResolved(id) => id)
}

/// A datagram queue pair with all resources.
pub(crate) struct Side {
    pub(crate) pd: ProtectionDomain,
    cq: CompletionQueue,
    pub(crate) qp: DatagramQp,
}

impl Side {
    pub(crate) fn new<P: HasDevice>(id: &CmId<P>) -> Self {
        let ctx = id.context().unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(16).waitable().create().unwrap();
        let qp = pd.qp_builder::<Ud>(&cq, &cq).max_send_wr(4).max_recv_wr(4);
        let mut qp = id.ready_datagram_qp(qp.create_for().unwrap()).unwrap();
        qp.post_recv(pd.alloc_buf(GRH_LEN + 64).unwrap()).unwrap();
        Self { pd, cq, qp }
    }

    /// Waits for the completion of a send.
    pub(crate) fn sent(&mut self) {
        while self.qp.send_queue().in_flight() > 0 {
            for wc in self.cq.wait(Some(TEST_TIMEOUT)).unwrap() {
                wc.ok().unwrap();
                self.qp.complete(wc).unwrap().ok().unwrap();
            }
        }
    }

    /// Posts one more receive.
    pub(crate) fn make_room(&mut self) {
        let buf = self.pd.alloc_buf(GRH_LEN + 64).unwrap();
        self.qp.post_recv(buf).unwrap();
    }

    /// Waits for the next datagram.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        loop {
            let completions = self.cq.wait(Some(TEST_TIMEOUT)).unwrap();
            assert!(completions.len() > 0, "nothing arrived");
            for wc in completions {
                wc.ok().unwrap();
                if let Completed::Receive(done) = self.qp.complete(wc).unwrap() {
                    return done.received().unwrap()[GRH_LEN..].to_vec();
                }
            }
        }
    }
}

pub(crate) fn request(channel: &EventChannel) -> ServiceRequest {
    expect_event!(channel, Event::ServiceRequest(request) => request)
}

pub(crate) fn service(channel: &EventChannel) -> (CmId<ServiceResolved>, DatagramPeer) {
    expect_event!(channel, Event::ServiceResolved { id, peer } => (id, peer))
}

fn failure(channel: &EventChannel) -> ConnectFailure {
    expect_event!(channel, Event::ConnectFailed { failure, .. } => failure)
}

fn exchange(any: SocketAddr, host: IpAddr) {
    let channel = EventChannel::new().unwrap();
    let (listener, bound) = listen(&channel, any);
    let id = resolve(&channel, SocketAddr::new(host, bound.port()));
    let mut from = Side::new(&id);
    id.resolve_service(b"who are you").unwrap();
    let request = request(&channel);
    assert_eq!(request.listener(), listener.key());
    assert_eq!(request.private_data().len(), 180);
    assert!(request.private_data().starts_with(b"who are you\0"));
    let mut to = Side::new(request.id());
    let _answered = request.accept(&to.qp, b"I am I").unwrap();
    let (_id, peer) = service(&channel);
    assert!(peer.private_data.starts_with(b"I am I\0"));
    assert_eq!((peer.qp_num, peer.qkey), (to.qp.qp_num(), 0x0123_4567));
    let destination = peer.destination(&from.pd).unwrap();
    let hello = from.pd.register_buf(*b"hello").unwrap();
    from.qp.post(destination.send(hello)).unwrap();
    assert_eq!(to.receive(), b"hello");
}

#[test]
fn datagram_address_is_resolved() {
    exchange(local(), local().ip());
}

#[test]
fn datagram_address_over_ipv6_is_resolved() {
    exchange("[::]:0".parse().unwrap(), local_v6());
}

#[test]
fn service_rejection_carries_reason_and_private_data() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    resolve(&channel, addr).resolve_service(b"").unwrap();
    request(&channel).reject(b"not today").unwrap();
    let failed = failure(&channel);
    assert_eq!(failed.to_string(), "rejected by the peer's application");
    let ConnectFailure::ServiceRejected {
        status: 2,
        private_data,
    } = failed
    else {
        panic!("{failed:?}")
    };
    assert!(private_data.starts_with(b"not today\0"), "{private_data:?}");
    // Dropping a request rejects the peer as well.
    resolve(&channel, addr).resolve_service(b"").unwrap();
    drop(request(&channel));
    let failed = failure(&channel);
    assert!(
        matches!(failed, ConnectFailure::ServiceRejected { status: 2, .. }),
        "{failed:?}"
    );
}

#[test]
fn resolve_service_without_listener_is_rejected() {
    let channel = EventChannel::new().unwrap();
    let mut addr = local();
    addr.set_port(9);
    resolve(&channel, addr).resolve_service(b"").unwrap();
    assert_eq!(failure(&channel).to_string(), "rejected: no listener there");
}

#[test]
fn calls_of_another_transport_are_refused() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let id = resolve(&channel, addr);
    let too_long = id.resolve_service(&[0; 181]).unwrap_err();
    assert!(too_long.error.to_string().contains("at most 180"));
    let id = too_long.value;
    let ctx = id.context().unwrap();
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
    let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(2);
    let refused = id.init_qp(qp.max_recv_wr(2).create().unwrap()).unwrap_err();
    assert_eq!(
        refused.error.to_string(),
        "`rdma_init_qp_attr` failed: \
         the identifier, of Some(Udp), is for Ud, not for Rc"
    );
    let connection = channel.create_id().unwrap();
    connection.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
    let connection = expect_event!(&channel, Event::AddrResolved(id) => id);
    connection.resolve_route(TEST_TIMEOUT).unwrap();
    let connection = expect_event!(&channel, Event::RouteResolved(id) => id);
    let refused = connection.resolve_service(b"").unwrap_err();
    assert!(refused.error.to_string().contains("is for Rc, not for Ud"));
}

pub(crate) fn join(
    channel: &EventChannel,
    id: &mut CmId<AddrResolved>,
    addr: SocketAddr,
) -> MulticastGroup {
    id.join_multicast(addr, Membership::Full).unwrap();
    match next(channel) {
        Event::MulticastJoined { key, group } => {
            assert_eq!((key, group.addr), (id.key(), addr.into()));
            group
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn multicast_members_receive_from_each_other() {
    let addr = "239.1.2.3:7174".parse().unwrap();
    let channel = EventChannel::new().unwrap();
    let mut id = resolve_addr(&channel, addr);
    let (mut from, mut to) = (Side::new(&id), Side::new(&id));
    let group = join(&channel, &mut id, addr);
    assert_eq!((group.qp_num.get(), group.qkey), (0x00ff_ffff, 0x0123_4567));
    group.attach(&mut to.qp).unwrap();
    let all = group.destination(&from.pd).unwrap();
    let hello = from.pd.register_buf(*b"hello, all").unwrap();
    from.qp.post(all.send(hello)).unwrap();
    assert_eq!(to.receive(), b"hello, all");
    group.detach(&mut to.qp).unwrap();
    id.leave_multicast(addr).unwrap();
    let absent = id.leave_multicast(addr).unwrap_err();
    assert_eq!(absent.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    assert!(absent.to_string().contains(&addr.to_string()), "{absent}");
}

#[test]
fn join_ipv6_group_fails_only_on_roce_v2() {
    const ENOTSUPP: i32 = 524;
    let channel = EventChannel::new().unwrap();
    let addr: SocketAddr = "[ff0e::4:5]:7174".parse().unwrap();
    let mut id = resolve_addr(&channel, addr);
    // Linux maps IPv6 groups to RoCE v1 only, and Soft-RoCE is v2.
    let err = id.join_multicast(addr, Membership::Full).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(ENOTSUPP));
    assert!(err.to_string().contains(&addr.to_string()), "{err}");
    // The same group, as an InfiniBand address.
    let gid = IbAddr::with_service_id(Gid::from(addr.ip()), 0);
    let err = id.join_multicast(gid, Membership::Full).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(ENOTSUPP));
    assert!(err.to_string().contains("[ff0e::4:5]"), "{err}");
    assert!(id.leave_multicast(gid).is_err());
    // The failed join leaves no membership.
    assert!(id.leave_multicast(addr).is_err());
    let v4: SocketAddr = "239.1.2.8:1".parse().unwrap();
    let refused = id.join_multicast(v4, Membership::Full);
    assert!(refused.is_ok(), "{refused:?}");
}

#[test]
fn join_several_groups_and_send_only_succeeds() {
    let channel = EventChannel::new().unwrap();
    let groups: [SocketAddr; 2] = ["239.1.2.4:1", "239.1.2.5:1"].map(|addr| addr.parse().unwrap());
    let mut id = resolve_addr(&channel, groups[0]);
    for addr in groups {
        id.join_multicast(addr, Membership::SendOnly).unwrap();
    }
    let mut joined = Vec::new();
    while joined.len() < 2 {
        match next(&channel) {
            Event::MulticastJoined { group, .. } => joined.extend(group.addr.ip()),
            // Not supported by every kernel and device.
            Event::MulticastFailed { addr, error, .. } => {
                assert_eq!(error.call(), "rdma_join_multicast_ex");
                joined.extend(addr.ip());
            }
            other => panic!("{other:?}"),
        }
    }
    joined.sort();
    assert_eq!(joined, groups);
    // Dropped as a member.
}

#[test]
fn join_without_group_address_or_datagrams_fails() {
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    let (_listener, addr) = listen(&channel, local());
    id.bind(local()).unwrap();
    id.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
    let mut id = expect_event!(&channel, Event::AddrResolved(id) => id);
    let group = SocketAddr::new(Ipv4Addr::new(239, 1, 2, 3).into(), 1);
    let refused = id.join_multicast(group, Membership::Full).unwrap_err();
    assert!(refused.to_string().contains("239.1.2.3:1"), "{refused}");
    let err = id.leave_multicast(addr).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn leave_multicast_suppresses_further_events() {
    let channel = EventChannel::new().unwrap();
    let addr: SocketAddr = "239.1.2.6:1".parse().unwrap();
    let mut id = resolve_addr(&channel, addr);
    id.join_multicast(addr, Membership::Full).unwrap();
    id.leave_multicast(addr).unwrap();
    let group = join(&channel, &mut id, addr);
    assert_eq!(group.to_string(), "239.1.2.6");
    assert!(channel.try_next().unwrap().is_none());
}

#[test]
fn join_multicast_uses_the_bound_device() {
    let channel = EventChannel::new().unwrap();
    let group: SocketAddr = "239.1.2.10:1".parse().unwrap();
    let mut id = channel.create_id_in(PortSpace::Udp).unwrap();
    let err = id.join_multicast(group, Membership::Full).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(id.bound_port_num(), None);
    id.bind(local()).unwrap();
    assert_eq!(id.bound_port_num(), Some(1));
    let ctx = id.bound_context().unwrap().unwrap();
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(4).unwrap());
    let qp = pd.qp_builder::<Ud>(&cq, &cq).create().unwrap();
    let mut qp = id.ready_datagram_qp(qp).unwrap();
    id.join_multicast(group, Membership::Full).unwrap();
    let joined = expect_event!(&channel, Event::MulticastJoined { group, .. } => group);
    assert_eq!(joined.addr, group.into());
    joined.attach(&mut qp).unwrap();
    joined.detach(&mut qp).unwrap();
    id.leave_multicast(group).unwrap();
    // Soft-RoCE loops every datagram back.
    let without_receives = pd.qp_builder::<Ud>(&cq, &cq);
    let err = without_receives
        .flags(QpFlags::BLOCK_SELF_MULTICAST)
        .create();
    let err = err.map(drop).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP), "{err}");
}

#[test]
fn migrate_keeps_the_group() {
    let (channel, other) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    let addr: SocketAddr = "239.1.2.7:1".parse().unwrap();
    let mut id = resolve_addr(&channel, addr);
    id.join_multicast(addr, Membership::Full).unwrap();
    id.migrate(&other).unwrap();
    let key = id.key();
    expect_event!(&other, Event::MulticastJoined { key: of, group } => {
        assert_eq!((of, group.addr), (key, addr.into()));
    });
    assert!(channel.try_next().unwrap().is_none());
    id.leave_multicast(addr).unwrap();
}
