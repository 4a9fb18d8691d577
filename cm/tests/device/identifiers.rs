//! Identifiers: options, addresses, migration, and queue pair attributes.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use cm::{
    Addr, AddrHints, CmId, ConnParam, Connection, Event, EventChannel, IbAddr, Key, PathRecord,
    PortSpace, XrcEnd,
};
use verbs::{
    Buf, Gid, Rtr, Rts,
    attr::{DeviceCaps, Mtu, Pkey},
    event::EventType,
    fd::wait_readable,
    op,
    qp::{AckTimeout, Attributes, Ece, RnrTimer, XrcSend},
};

use crate::{
    connections::connect,
    support::{
        Halfway, Side, TEST_TIMEOUT, expect_event, listen, local, local_v6, next, request,
        request_data, resolve, response,
    },
};

fn resolve_addr(
    channel: &EventChannel,
    id: CmId<cm::phases::Idle>,
    addr: SocketAddr,
) -> CmId<cm::phases::AddrResolved> {
    id.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
    expect_event!(channel, Event::AddrResolved(id) => id)
}

#[test]
fn options_set_too_late_fail() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let mut id = channel.create_id().unwrap();
    id.set_tos(0x20).unwrap();
    id.set_ack_timeout(AckTimeout::new(15).unwrap()).unwrap();
    let mut id = resolve_addr(&channel, id, addr);
    id.set_tos(0x40).unwrap();
    id.resolve_route(TEST_TIMEOUT).unwrap();
    let id = expect_event!(&channel, Event::RouteResolved(id) => id);
    let side = Side::new(&id.context().unwrap());
    let qp = side.qp(&id);
    id.connect(&qp, &ConnParam::new()).unwrap();
    let passive_qp = request(&channel);
    let accepted = side.qp(passive_qp.id());
    let _accepted = passive_qp.accept(accepted, &ConnParam::new()).unwrap();
    let response = response(&channel);
    let to_rtr: Attributes<verbs::Rc, Rtr> = response.id().attributes().unwrap();
    assert_eq!(to_rtr.as_raw().0.ah_attr.grh.traffic_class, 0x40);
    let to_rts: Attributes<verbs::Rc, Rts> = response.id().attributes().unwrap();
    assert_eq!(to_rts.as_raw().0.timeout, 15);

    let mut datagram = channel.create_id_in(PortSpace::Udp).unwrap();
    let err = datagram.set_ack_timeout(AckTimeout::MAX).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert!(err.to_string().contains("ACK timeout"), "{err}");
}

#[test]
fn reuse_addr_requires_the_option_on_both_ids() {
    let channel = EventChannel::new().unwrap();
    let mut first = channel.create_id().unwrap();
    first.set_reuse_addr(true).unwrap();
    first.bind(local()).unwrap();
    let addr = first.local_addr().unwrap();
    let mut second = channel.create_id().unwrap();
    assert!(second.bind(addr).is_err());
    let mut third = channel.create_id().unwrap();
    third.set_reuse_addr(true).unwrap();
    third.bind(addr).unwrap();
    assert_eq!(third.local_addr(), Some(addr));
    // Each of them is refused to listen while another exists.
    let refused = third.listen(1).unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EADDRINUSE));
    drop(first);
    let _listener = refused.value.listen(1).unwrap();
}

#[test]
fn af_only_leaves_ipv4_to_other_listeners() {
    let channel = EventChannel::new().unwrap();
    let mut v6 = channel.create_id().unwrap();
    v6.set_af_only(true).unwrap();
    v6.bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))
        .unwrap();
    let port = v6.local_addr().unwrap().port();
    let _v6 = v6.listen(1).unwrap();
    let mut v4 = channel.create_id().unwrap();
    v4.bind(SocketAddr::new([0, 0, 0, 0].into(), port)).unwrap();
    let _v4 = v4.listen(1).unwrap();
    // Without the option, the IPv6 listener takes IPv4 as well.
    let mut both = channel.create_id().unwrap();
    both.bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))
        .unwrap();
    let port = both.local_addr().unwrap().port();
    let _both = both.listen(1).unwrap();
    let mut v4 = channel.create_id().unwrap();
    let second = v4.bind(SocketAddr::new([0, 0, 0, 0].into(), port));
    assert!(second.is_err());
}

#[test]
fn path_is_known_after_resolution() {
    let channel = EventChannel::new().unwrap();
    let (listener, addr) = listen(&channel, local());
    let devices = verbs::devices().unwrap();
    let first = || devices.first().unwrap().name().to_owned();
    let name = std::env::var("RDMA_DEVICE").unwrap_or_else(|_| first());
    let bound = listener.bound_context().unwrap().unwrap();
    assert_eq!(bound.name(), name);
    assert!(
        channel
            .create_id()
            .unwrap()
            .bound_context()
            .unwrap()
            .is_none()
    );
    let id = resolve(&channel, addr);
    let gid = Gid::from(local().ip());
    assert_eq!(
        (id.local_gid(), id.peer_gid(), id.port_num()),
        (gid, gid, 1)
    );
    assert_eq!(id.pkey(), Pkey(0), "RoCE has no partitions here");
    for path in id.paths() {
        assert_eq!((path.sgid, path.dgid), (gid, gid));
    }
    let devices = cm::devices().unwrap();
    assert!(devices.contains(&id.context().unwrap()));
}

#[test]
fn set_ib_path_replaces_resolution() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let id = resolve_addr(&channel, channel.create_id().unwrap(), addr);
    let none = id.set_ib_path(&[]).unwrap_err();
    assert_eq!(none.error.raw_os_error(), Some(libc::EINVAL));
    let id = none.value;
    let path = PathRecord {
        sgid: id.local_gid(),
        dgid: id.peer_gid(),
        reversible: true,
        pkey: 0xffff,
        mtu_code: 3,
        ..PathRecord::default()
    };
    id.set_ib_path(&[path]).unwrap();
    let id = expect_event!(&channel, Event::RouteResolved(id) => id);
    assert_eq!(id.peer_addr(), Some(addr));
}

#[test]
fn qp_prepared_by_the_program_is_accepted() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let (mut side, active_qp, request) = request_data(&channel, addr);
    let qp = side.qp(request.id());
    let changed = |attributes: Attributes<verbs::Rc, Rtr>| {
        let changed = attributes
            .mtu(Mtu::B256)
            .min_rnr_timer(RnrTimer::new(1).unwrap());
        assert_eq!(changed.as_raw().0.path_mtu, Mtu::B256.into());
        changed
    };
    let qp = qp
        .to_rtr(&changed(request.id().attributes().unwrap()))
        .unwrap();
    let qp = qp.to_rts(&request.id().attributes().unwrap()).unwrap();
    let passive_qp = request.accept_ready(qp, &ConnParam::new()).unwrap();
    let response = response(&channel);
    let qp = active_qp
        .to_rtr(&changed(response.id().attributes().unwrap()))
        .unwrap();
    let qp = qp.to_rts(&response.id().attributes().unwrap()).unwrap();
    let mut active = response.establish_ready(qp).unwrap();
    let mut passive =
        expect_event!(&channel, Event::Established(id) => Connection::new(id, passive_qp).unwrap());
    crate::connections::exchange(&mut side, &mut active, &mut passive, b"small packets");
}

#[test]
fn notify_comm_est_replaces_a_lost_rtu() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let (side, _active_qp, request) = request_data(&channel, addr);
    let key = request.id().key();
    assert!(!channel.notify(key, EventType::COMM_EST).unwrap());
    let passive_qp = side.qp(request.id());
    let _passive_qp = request.accept(passive_qp, &ConnParam::new()).unwrap();
    // The active side does not establish the connection; a message from there would have the effect.
    let err = channel.notify(key, EventType::PORT_ERR).unwrap_err();
    assert!(err.to_string().contains("PORT_ERR"), "{err}");
    assert!(channel.notify(key, EventType::COMM_EST).unwrap());
    let mut established = false;
    while !established {
        match next(&channel) {
            Event::Established(id) => {
                assert_eq!(id.key(), key);
                established = true;
            }
            Event::ConnectResponse(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn connection_with_srq_receives() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let (mut side, active_qp, request) = request_data(&channel, addr);
    assert!(!request.param().srq);
    let srq = side.pd.create_srq::<Buf>(4, 1).unwrap();
    let qp = side
        .pd
        .qp_builder::<verbs::Rc>(&side.cq, &side.cq)
        .max_send_wr(4)
        .srq(&srq);
    let qp = request.id().init_qp(qp.create().unwrap()).unwrap();
    let _qp = request.accept(qp, &ConnParam::new().srq(true)).unwrap();
    let response = response(&channel);
    assert!(response.param().srq);
    let mut active = response.establish(active_qp).unwrap();
    let mut srq = srq;
    srq.post(side.pd.alloc_buf(16).unwrap()).unwrap();
    let hello = side.pd.register_buf(*b"shared").unwrap();
    active.qp_mut().post(op::Send::new(hello)).unwrap();
    let mut received = None;
    while received.is_none() {
        for wc in side.cq.wait(Some(TEST_TIMEOUT)).unwrap() {
            if wc.is_receive() {
                let done = srq.complete(wc).unwrap();
                received = Some(done.received().unwrap().to_vec());
            }
        }
    }
    assert_eq!(received.unwrap(), b"shared");
}

#[test]
fn ece_options_are_carried_and_can_be_rejected() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let Halfway {
        active, active_qp, ..
    } = Halfway::new(&channel, addr);
    let mut active = active;
    let err = active.set_local_ece(Ece::default()).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    let ece = Ece {
        vendor_id: 0x15b3,
        options: 0x8,
        comp_mask: 0,
    };
    active.set_local_ece(ece).unwrap();
    active.connect(&active_qp, &ConnParam::new()).unwrap();
    let request = request(&channel);
    assert_eq!(request.id().remote_ece().unwrap(), ece);
    request.reject_ece(b"").unwrap();
    expect_event!(&channel, Event::ConnectFailed { failure, .. } => {
        // InfiniBand's reason code for unsupported vendor options.
        assert!(matches!(failure, cm::ConnectFailure::Rejected { reason: 35, .. }), "{failure:?}");
    });
}

#[test]
fn ids_migrate_between_channels_in_every_phase() {
    let (channel, other) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    let (mut listener, addr) = listen(&channel, local());
    let key = listener.key();
    listener.migrate(&other).unwrap();
    assert_eq!(listener.key(), key);
    let mut id = channel.create_id().unwrap();
    id.migrate(&other).unwrap();
    id.migrate(&channel).unwrap();
    id.migrate(&channel).unwrap();
    let mut id = resolve_addr(&channel, id, addr);
    id.migrate(&other).unwrap();
    id.resolve_route(TEST_TIMEOUT).unwrap();
    let id = expect_event!(&other, Event::RouteResolved(id) => id);
    let side = Side::new(&id.context().unwrap());
    let qp = side.qp(&id);
    id.connect(&qp, &ConnParam::new()).unwrap();
    let mut request = request(&other);
    assert_eq!(request.listener(), key);
    request.migrate(&channel).unwrap();
    let passive_qp = side.qp(request.id());
    let passive_qp = request.accept(passive_qp, &ConnParam::new()).unwrap();
    let mut active = response(&other).establish(qp).unwrap();
    let passive =
        expect_event!(&channel, Event::Established(id) => Connection::new(id, passive_qp));
    let mut passive = passive.unwrap();
    active.migrate(&channel).unwrap();
    passive.migrate(&other).unwrap();
    // A channel can be dropped before its former identifiers.
    drop(channel);
    active.disconnect().unwrap();
    assert!(matches!(next(&other), Event::Disconnected { key, .. } if key == passive.key()));
}

#[test]
fn channel_dropped_after_migration_keeps_ids() {
    let (first, second) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    let (mut listener, addr) = listen(&first, local());
    listener.migrate(&second).unwrap();
    drop(first);
    let (_side, active, passive) = connect(&second, addr);
    drop((active, passive, listener));
}

/// Starts a look-up of a numeric address, and returns the key of the identifier.
fn look_up(channel: &EventChannel, node: &str) -> Key {
    let id = channel.create_id().unwrap();
    let key = id.key();
    let hints = AddrHints::new().numeric_host();
    id.resolve_addrinfo(&hints, Some(node), Some("7471"))
        .unwrap();
    key
}

#[test]
fn addrinfo_lookups_return_the_id_with_addresses_or_error() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let key = look_up(&channel, &addr.ip().to_string());
    let (id, found) = expect_event!(&channel, Event::AddrInfoResolved { id, found } => (id, found));
    assert_eq!(id.key(), key);
    let expected = SocketAddr::new(addr.ip(), 7471);
    assert_eq!(found[0].destination, Some(expected.into()));

    // The identifier is as before: a failed look-up and a resolution follow.
    id.resolve_addrinfo(&AddrHints::new().numeric_host(), Some("nameless"), None)
        .unwrap();
    let (id, error) = expect_event!(&channel, Event::AddrInfoError { id, error } => (id, error));
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("nameless"), "{error}");
    let id = resolve_addr(&channel, id, addr);
    assert_eq!(id.key(), key);
}

#[test]
fn addrinfo_lookup_cancelled_has_no_event() {
    let channel = EventChannel::new().unwrap();
    let host = local().ip().to_string();
    let mut cancelled = 0;
    // Either the thread of the look-up or the cancellation comes first; the event decides in no case.
    for _ in 0..64 {
        cancelled += u32::from(channel.cancel(look_up(&channel, &host)));
    }
    assert_eq!(
        cancelled, 64,
        "an unread event does not return the identifier"
    );
    let last = look_up(&channel, &host);
    let id = expect_event!(&channel, Event::AddrInfoResolved { id, .. } => id);
    assert_eq!(id.key(), last);
    drop(channel);
    let refused = id.resolve_addrinfo(&AddrHints::new(), Some(&host), None);
    let refused = refused.unwrap_err();
    assert!(refused.error.to_string().contains("dropped"), "{refused:?}");
}

#[test]
fn addrinfo_of_a_service_record_needs_a_newer_library() {
    let found = AddrHints::new()
        .service_record()
        .lookup(None, Some("storage"));
    let err = found.unwrap_err();
    // Without InfiniBand, a library with support finds no record.
    let is_known = rdmacm_sys::late::rdma_resolve_addrinfo().is_some();
    let expected = if is_known {
        libc::ENOENT
    } else {
        libc::EOPNOTSUPP
    };
    assert_eq!(err.raw_os_error(), Some(expected), "{err}");
    assert_eq!(err.to_string().contains("rdma-core 60"), !is_known, "{err}");
}

#[test]
fn user_events_wake_a_blocked_reader_in_order() {
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id().unwrap();
    let is_readable = || wait_readable("poll", channel.as_fd(), Some(Duration::ZERO)).unwrap();
    for round in 0..100 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for arg in [u64::MAX, round] {
                    channel.write_event(id.key(), -7, arg).unwrap();
                }
            });
            for expected in [u64::MAX, round] {
                let (key, status, arg) =
                    expect_event!(&channel, Event::User { key, status, arg } => (key, status, arg));
                assert_eq!((key, status, arg), (id.key(), -7, expected));
            }
        });
        assert!(!is_readable(), "all events are read");
    }
    channel.write_event(id.key(), 0, 0).unwrap();
    assert!(is_readable());
    // The kernel's events still arrive.
    id.resolve_addr(None, local(), TEST_TIMEOUT).unwrap();
    expect_event!(&channel, Event::User { .. } => ());
    expect_event!(&channel, Event::AddrResolved(_) => ());
}

#[test]
fn addr_hints_lookup_resolves_names() {
    let addr = local();
    let (host, host_v6) = (addr.ip().to_string(), local_v6().to_string());
    let found = AddrHints::new()
        .numeric_host()
        .no_route()
        .lookup(Some(&host), Some("7471"))
        .unwrap();
    let [info] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        info.destination,
        Some(SocketAddr::new(addr.ip(), 7471).into())
    );
    assert_eq!((info.passive, info.datagram), (false, false));
    assert_eq!((info.port_space, info.source), (Some(PortSpace::Tcp), None));
    assert_eq!((info.route.len(), info.connect.len()), (0, 0));

    let hints = AddrHints::new()
        .port_space(PortSpace::Udp)
        .ipv6()
        .source(addr);
    let found = hints.lookup(Some(&host_v6), Some("7174")).unwrap();
    let ip: IpAddr = local_v6();
    assert_eq!(found[0].destination, Some(SocketAddr::new(ip, 7174).into()));
    assert_eq!(found[0].source, Some(addr.into()));
    assert_eq!(
        (found[0].port_space, found[0].datagram),
        (Some(PortSpace::Udp), true)
    );

    let passive = AddrHints::new().passive().ipv4().lookup(None, Some("7471"));
    let passive = passive.unwrap();
    assert!(passive[0].passive);
    let any = SocketAddr::from(([0, 0, 0, 0], 7471));
    assert_eq!(passive[0].source, Some(any.into()));
    assert_eq!(passive[0].destination, None);
}

#[test]
fn addr_hints_lookup_of_invalid_names_fails() {
    let hints = AddrHints::new().numeric_host();
    let err = hints.lookup(Some("no.such.name"), Some("1")).unwrap_err();
    assert_eq!(err.kind(), std::io::ErrorKind::NotFound);
    assert!(err.to_string().contains("no.such.name:1"), "{err}");
    let node = Some("10.9.0.1");
    assert!(hints.lookup(node, Some("65535")).is_ok());
    for (node, service) in [
        (None, None),
        (Some("a\0b"), None),
        (node, Some("65536")),
        (node, Some("99999999999999999999")),
    ] {
        let err = hints.lookup(node, service).unwrap_err();
        assert_eq!(err.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn ib_addr_is_looked_up_and_refused_on_roce() {
    let gid = Gid::from(local_v6());
    let addr = IbAddr::new(gid, PortSpace::Tcp, 7471);
    let hints = AddrHints::new().infiniband().no_route();
    let found = hints.lookup(Some(&gid.to_string()), Some("7471")).unwrap();
    assert_eq!(found[0].destination, Some(addr.into()));
    let any = hints.clone().passive().lookup(None, Some("7471")).unwrap();
    let any_gid = IbAddr::new(Gid::default(), PortSpace::Tcp, 7471);
    assert_eq!(any[0].source, Some(any_gid.into()));
    for node in [None, Some("10.9.0.1"), Some("localhost")] {
        let err = hints.lookup(node, Some("7471")).unwrap_err();
        assert_eq!(err.kind(), std::io::ErrorKind::InvalidInput);
    }

    // The kernel finds the device by the GID, but no route on RoCE.
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    let err = id.bind(addr).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENODEV), "{err}");
    assert!(err.to_string().contains("service 0x1061d2f"), "{err}");
    id.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
    let id = expect_event!(&channel, Event::AddrResolved(id) => id);
    assert_eq!((id.local_addr(), id.peer_addr()), (None, None));
    assert_eq!(id.any_peer_addr(), Some(addr.into()));
    let addr = id.any_local_addr().and_then(Addr::ib).unwrap();
    assert_eq!((addr.gid, addr.pkey), (gid, Pkey::DEFAULT));
    assert_ne!(addr.port(), 0);
    let refused = id.resolve_route(TEST_TIMEOUT).unwrap_err();
    assert_eq!(refused.error.call(), "rdma_resolve_route");
    assert_eq!(refused.value.any_local_addr(), Some(addr.into()));
}

#[test]
fn xrc_ids_are_created_and_refuse_other_qps() {
    let channel = EventChannel::new().unwrap();
    let listener = channel.create_xrc_id(XrcEnd::Receive, local()).unwrap();
    let listener = listener.listen(1).unwrap();
    assert_eq!(listener.port_space(), Some(PortSpace::Ib));
    let addr = listener.local_addr().unwrap();
    assert_eq!(addr.ip(), local().ip());
    assert_ne!(addr.port(), 0);

    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let id = channel.create_xrc_id(XrcEnd::Send, any).unwrap();
    let key = id.key();
    let id = resolve_addr(&channel, id, addr);
    assert_eq!(id.key(), key);
    let side = Side::new(&id.context().unwrap());
    let rc = side.pd.qp_builder::<verbs::Rc>(&side.cq, &side.cq);
    let rc = rc.max_send_wr(1).max_recv_wr(1).create().unwrap();
    let err = id.init_qp(rc).map(drop).unwrap_err();
    assert!(
        err.to_string().contains("is for XrcSend, not for Rc"),
        "{err}"
    );
    // Soft-RoCE has no queue pair for connecting.
    let ctx = id.context().unwrap();
    let caps = ctx.query_device().unwrap().caps();
    let expected = match caps.contains(DeviceCaps::XRC) {
        true => Ok(()),
        false => Err(Some(libc::EOPNOTSUPP)),
    };
    let xrc = side.pd.qp_builder::<XrcSend>(&side.cq, &side.cq);
    let xrc = xrc.max_send_wr(1).create().map(drop);
    for created in [xrc, ctx.open_xrcd().map(drop)] {
        assert_eq!(created.map_err(|err| err.raw_os_error()), expected);
    }
    // The address of another host is refused for listening.
    let refused = channel.create_xrc_id(XrcEnd::Receive, addr).map(drop);
    assert!(refused.unwrap_err().to_string().contains(&addr.to_string()));
}

#[test]
fn ib_port_space_has_connections() {
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id_in(PortSpace::Ib).unwrap();
    assert_eq!(id.port_space(), Some(PortSpace::Ib));
    // An IP address will do.
    id.bind(local()).unwrap();
    assert_ne!(id.local_addr().unwrap().port(), 0);
    let ipoib = channel.create_id_in(PortSpace::IpoIb).unwrap();
    assert_eq!(ipoib.port_space(), Some(PortSpace::IpoIb));
}
