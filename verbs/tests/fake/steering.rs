//! Flows, counters, work queues and indirection tables.

use std::io::ErrorKind;

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    QueuePair, Reset, Ud, WcStatus,
    attr::RxHashFields,
    counters::{CounterKind, ReadCounters},
    event::{EventObject, EventType},
    flow::{
        EspFilter, EthFilter, FlowFlags, FlowKind, FlowRule, FlowSpec, FlowTarget, GreFilter,
        Ipv4ExtFilter, Ipv4Filter, Ipv6Filter, Matching, MplsFilter, TcpUdpFilter, TunnelFilter,
    },
    rss::{RxHash, WqFlags},
};

use crate::{
    fixture::{Fixture, error_text},
    provider::Fake,
};

fn matching<F>(value: F, mask: F) -> Matching<F> {
    Matching { value, mask }
}

fn datagrams(fixture: &Fixture) -> QueuePair<Ud, Reset> {
    let cq = fixture.ctx.create_cq(8).unwrap();
    fixture.pd.qp_builder(&cq, &cq).create().unwrap()
}

#[test]
fn flow_rule_layout_matches_c() {
    let fixture = Fixture::new();
    let qp = datagrams(&fixture);
    let eth = EthFilter {
        dst_mac: [1, 2, 3, 4, 5, 6],
        src_mac: [7; 6],
        ether_type: 0x0800,
        vlan_tag: 0x123,
    };
    let v4 = Ipv4Filter {
        src_ip: [10, 9, 0, 1].into(),
        dst_ip: [10, 9, 0, 2].into(),
    };
    let ports = TcpUdpFilter {
        dst_port: 80,
        src_port: 0x1234,
    };
    let rule = FlowRule::new(1)
        .priority(5)
        .flags(FlowFlags::DONT_TRAP)
        .eth(matching(eth, eth))
        .ipv4(matching(v4, Ipv4Filter::default()))
        .tcp(matching(ports, ports))
        .tag(0xabcdef)
        .drop_packets();
    let flow = qp.create_flow(&rule).unwrap();
    let (attr, specs) = fixture.fake.flow();
    assert_eq!((attr.type_.0, attr.priority, attr.num_of_specs), (0, 5, 5));
    assert_eq!((attr.port, attr.flags), (1, 2));
    assert_eq!(usize::from(attr.size), 20 + 40 + 24 + 16 + 12 + 8);
    let kinds: Vec<u32> = specs.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0x20, 0x30, 0x40, 0x1000, 0x1001]);
    let eth_bytes = [1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7, 8, 0, 1, 0x23];
    assert_eq!(&specs[0].1[6..22], &eth_bytes);
    assert_eq!(&specs[0].1[22..38], &eth_bytes);
    assert_eq!(
        &specs[1].1[8..24],
        &[10, 9, 0, 1, 10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(&specs[2].1[6..14], &[0, 80, 0x12, 0x34, 0, 80, 0x12, 0x34]);
    assert_eq!(specs[3].1[8..12], 0xabcdef_u32.to_ne_bytes());
    flow.destroy().unwrap();
}

#[test]
fn flow_specs_have_their_types_and_sizes() {
    let fixture = Fixture::new();
    let qp = datagrams(&fixture);
    let v6 = Ipv6Filter {
        dst_ip: "fd09::1".parse().unwrap(),
        flow_label: 0xf_1234,
        ..Ipv6Filter::default()
    };
    let v4 = Ipv4ExtFilter {
        ttl: 9,
        ..Ipv4ExtFilter::default()
    };
    let spi = EspFilter { spi: 1, seq: 2 };
    let tunnel = TunnelFilter { tunnel_id: 0x42 };
    let gre = GreFilter {
        key: 7,
        ..GreFilter::default()
    };
    let mpls = MplsFilter { label: 3 };
    let headers = [
        (FlowSpec::Ipv4Ext(matching(v4, v4)), 0x32, 32),
        (FlowSpec::Ipv6(matching(v6, v6)), 0x31, 88),
        (FlowSpec::Udp(Matching::default()), 0x41, 16),
        (FlowSpec::Esp(matching(spi, spi)), 0x34, 24),
        (FlowSpec::Vxlan(matching(tunnel, tunnel)), 0x50, 16),
        (FlowSpec::Gre(matching(gre, gre)), 0x51, 24),
        (FlowSpec::Mpls(matching(mpls, mpls)), 0x60, 16),
    ];
    for (header, kind, size) in headers {
        let rule = FlowRule::new(1).header(header).inner_header(header);
        let _flow = qp.create_flow(&rule).unwrap();
        let (attr, specs) = fixture.fake.flow();
        assert_eq!(specs.len(), 2, "{header:?}");
        assert_eq!((specs[0].0, specs[1].0), (kind, kind | 0x100), "{header:?}");
        assert_eq!(
            (specs[0].1.len(), specs[1].1.len()),
            (size, size),
            "{header:?}"
        );
        assert_eq!(usize::from(attr.size), 20 + 2 * size);
    }
    let sniffer = FlowRule::new(1).kind(FlowKind::SNIFFER);
    let _flow = qp.create_flow(&sniffer).unwrap();
    assert_eq!(fixture.fake.flow().0.type_.0, 3);
    let mut endless = FlowRule::new(1);
    for _ in 0..300 {
        endless = endless.header(FlowSpec::Udp(Matching::default()));
    }
    let err = qp.create_flow(&endless).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
}

#[test]
fn flow_keeps_its_queue_pair_and_its_counters() {
    let fixture = Fixture::new();
    let qp = datagrams(&fixture);
    let counters = fixture.ctx.create_counters().unwrap();
    counters.attach(CounterKind::PACKETS, 0).unwrap();
    counters.attach(CounterKind::BYTES, 1).unwrap();
    let rule = FlowRule::new(1).count(&counters);
    let flow = qp.create_flow(&rule).unwrap();
    let (_, specs) = fixture.fake.flow();
    let pointer = counters.as_raw().addr().to_ne_bytes();
    assert_eq!((specs[0].0, &specs[0].1[8..]), (0x1003, &pointer[..]));
    let mut values = [0; 3];
    counters
        .read(&mut values, ReadCounters::PREFER_CACHED)
        .unwrap();
    assert_eq!(values, [0, 101, 0]);

    drop(rule);
    drop(qp);
    drop(counters);
    for kind in ["ibv_flow", "ibv_qp_ex", "ibv_counters"] {
        assert!(fixture.fake.live().contains(&kind), "{kind}");
    }
    drop(flow);
    for kind in ["ibv_flow", "ibv_qp_ex", "ibv_counters"] {
        assert!(!fixture.fake.live().contains(&kind), "{kind}");
    }
}

#[test]
fn undestroyed_flow_keeps_its_queue_pair() {
    let fixture = Fixture::new();
    let qp = datagrams(&fixture);
    let flow = qp.create_flow(&FlowRule::new(1)).unwrap();
    fixture.fake.fail(Call::DestroyFlow, libc::EBUSY);
    assert_eq!(
        flow.destroy().unwrap_err().raw_os_error(),
        Some(libc::EBUSY)
    );
    drop(qp);
    // The call is not made, since success would free memory in flight.
    assert!(!fixture.fake.calls().contains(&Call::DestroyQp));
}

#[test]
fn queue_pair_with_a_flow_is_not_destroyed() {
    let fixture = Fixture::new();
    let qp = datagrams(&fixture);
    let flow = qp.create_flow(&FlowRule::new(1)).unwrap();
    let refused = qp.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ResourceBusy);
    drop(flow);
    assert!(refused.value.unwrap().destroy().is_ok());
}

#[test]
fn flow_without_device_support_is_an_error() {
    let fixture = Fixture::new();
    let qp = datagrams(&fixture);
    fixture.fake.fail(Call::CreateFlow, libc::EOPNOTSUPP);
    let err = qp.create_flow(&FlowRule::new(1)).unwrap_err();
    assert_eq!(
        error_text(&err),
        "`ibv_create_flow` failed (NORMAL, port 1, 0 headers): \
         Operation not supported (os error 95)"
    );
    fixture.fake.fail(Call::CreateCounters, libc::EOPNOTSUPP);
    let err = fixture.ctx.create_counters().unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
    fixture
        .fake
        .fail(Call::AttachCountersPointFlow, libc::EINVAL);
    let counters = fixture.ctx.create_counters().unwrap();
    let err = counters.attach(CounterKind(9), 3).unwrap_err();
    assert!(err.to_string().contains("(CounterKind(9) at 3)"), "{err}");
    fixture.fake.fail(Call::ReadCounters, libc::EINVAL);
    assert!(counters.read(&mut [0], ReadCounters::empty()).is_err());
    fixture.fake.fail(Call::CreateWq, libc::ENOSYS);
    let cq = fixture.ctx.create_cq(4).unwrap();
    let err = fixture.pd.wq_builder(&cq).create().unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENOSYS));
    assert_eq!(cq.available(), 4);
}

#[test]
fn packets_arrive_in_a_work_queue() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let builder = fixture.pd.wq_builder(&cq).max_wr(3).max_sge(2);
    let mut wq = builder.flags(WqFlags::SCATTER_FCS).create().unwrap();
    wq.to_ready().unwrap();
    assert_eq!((cq.available(), wq.capacity()), (5, 3));
    for len in 1..=3 {
        wq.post(fixture.pd.alloc_buf(len * 10).unwrap()).unwrap();
    }
    let refused = wq.post(fixture.pd.alloc_buf(4).unwrap()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    fixture.fake.complete_wq(wq.as_raw(), b"packet");
    let wc = cq.poll().unwrap().next().unwrap();
    assert_eq!(wc.qp_id(), wq.id());
    assert_eq!(wq.complete(wc).unwrap().received().unwrap(), b"packet");

    wq.to_error().unwrap();
    let mut flushed = Vec::new();
    for wc in cq.poll().unwrap() {
        assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
        flushed.push(wq.complete(wc).unwrap().into_parts().1.len());
    }
    assert_eq!(flushed, [20, 30]);
    assert_eq!(
        wq.to_ready().unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );

    wq.to_reset().unwrap();
    wq.to_ready().unwrap();
    wq.post(fixture.pd.alloc_buf(5).unwrap()).unwrap();
    let back = wq.to_reset().unwrap();
    assert_eq!((back.len(), back[0].len(), wq.in_flight()), (1, 5, 0));
}

#[test]
fn failed_work_queue_post_returns_the_work() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut wq = fixture.pd.wq_builder(&cq).max_wr(4).create().unwrap();
    wq.to_ready().unwrap();
    fixture.fake.fail_after(1, Call::PostWqRecv, libc::EINVAL);
    wq.post(fixture.pd.alloc_buf(1).unwrap()).unwrap();
    let refused = wq.post(fixture.pd.alloc_buf(2).unwrap()).unwrap_err();
    assert_eq!(refused.value.unwrap().len(), 2);
    assert_eq!(wq.in_flight(), 1);
}

#[test]
fn work_queue_drops_work_after_destruction_or_never() {
    for destroyed in [true, false] {
        let fixture = Fixture::new();
        let cq = fixture.cq(8);
        let mut wq = fixture.pd.wq_builder(&cq).max_wr(4).create().unwrap();
        wq.to_ready().unwrap();
        wq.post(fixture.pd.alloc_buf(1).unwrap()).unwrap();
        if !destroyed {
            fixture.fake.fail(Call::DestroyWq, libc::EBUSY);
        }
        drop(wq);
        assert_eq!(fixture.fake.live().contains(&"ibv_mr"), !destroyed);
        assert_eq!(cq.available(), if destroyed { 7 } else { 4 });
    }
}

#[test]
fn packets_are_spread_over_work_queues() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut a = fixture.pd.wq_builder(&cq).max_wr(2).create().unwrap();
    let b = fixture.pd.wq_builder(&cq).max_wr(2).create().unwrap();
    let table = fixture.ctx.create_indirection_table(&[&a, &b, &a, &b]);
    let table = table.unwrap();
    assert_eq!(table.len(), 4);
    let fields = RxHashFields::SRC_IPV4 | RxHashFields::DST_PORT_TCP;
    let hash = RxHash::toeplitz(&[7; 40], fields);
    let mut qp = fixture.pd.create_rss_qp(&table, &hash).unwrap();
    assert_eq!(fixture.fake.rx_hash(qp.qp_num()), (1, vec![7; 40], 0x21));
    qp.activate(1).unwrap();
    let rtr = ffi::ibv_qp_state::IBV_QPS_RTR;
    assert_eq!(fixture.fake.qp_state(qp.qp_num()), rtr);
    let flow = qp.create_flow(&FlowRule::new(1)).unwrap();

    a.to_ready().unwrap();
    a.post(fixture.pd.alloc_buf(16).unwrap()).unwrap();
    fixture.fake.complete_wq(a.as_raw(), b"spread");
    let wc = cq.poll().unwrap().next().unwrap();
    assert_eq!(a.complete(wc).unwrap().received().unwrap(), b"spread");

    // Every object is kept by its users, and destroyed in the right order.
    let Fixture { pd, ctx, fake } = fixture;
    drop((ctx, pd, cq, a, b, table, qp));
    let kinds = ["ibv_flow", "ibv_qp_ex", "ibv_rwq_ind_table", "ibv_wq"];
    for kind in kinds {
        assert!(fake.live().contains(&kind), "{kind}");
    }
    drop(flow);
    assert_eq!(fake.live(), [""; 0]);
}

#[test]
fn rss_with_an_impossible_table_or_hash_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let wq = fixture.pd.wq_builder(&cq).create().unwrap();
    let ctx = &fixture.ctx;
    for queues in [&[][..], &[&wq, &wq, &wq]] {
        let err = ctx.create_indirection_table(queues).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
    }
    let other = Fake::named("fake1").open();
    let err = other.create_indirection_table(&[&wq]).unwrap_err();
    assert!(err.to_string().contains("of another device"), "{err}");
    let table = ctx.create_indirection_table(&[&wq]).unwrap();
    let hash = RxHash::toeplitz(&[0; 256], RxHashFields::empty());
    let err = fixture.pd.create_rss_qp(&table, &hash).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    let foreign = other.alloc_pd().unwrap();
    let hash = RxHash::toeplitz(&[0; 40], RxHashFields::empty());
    assert!(foreign.create_rss_qp(&table, &hash).is_err());
    assert!(foreign.wq_builder(&cq).create().is_err());
}

#[test]
fn event_names_a_work_queue() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let wq = fixture.pd.wq_builder(&cq).create().unwrap();
    let events = fixture.ctx.async_events().unwrap();
    let fatal = ffi::ibv_event_type::IBV_EVENT_WQ_FATAL;
    fixture.fake.raise(fatal, wq.as_raw().expose_provenance());
    let event = events.wait().unwrap();
    assert_eq!(event.event_type, EventType::WQ_FATAL);
    assert_eq!(event.object, EventObject::Wq(wq.wq_num()));
}
