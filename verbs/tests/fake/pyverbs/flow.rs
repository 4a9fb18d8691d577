//! `test_flow.py`: packets steered to a raw queue pair by their headers

use verbs::{
    Init, Rtr, Rts,
    flow::{
        EthFilter, FlowRule, FlowSpec, FlowTarget, Ipv4ExtFilter, Ipv6Filter, Matching,
        TcpUdpFilter,
    },
    qp::{Attributes, RawPacket},
};

use super::traffic::{ROUNDS, Traffic};
use crate::fixture::Fixture;

const ETH: u32 = 0x20;
const IPV4_EXT: u32 = 0x32;
const IPV6: u32 = 0x31;
const TCP: u32 = 0x40;
const UDP: u32 = 0x41;

fn exactly<F: Copy>(value: F) -> Matching<F> {
    Matching { value, mask: value }
}

fn eth(ether_type: u16) -> FlowSpec {
    FlowSpec::Eth(exactly(EthFilter {
        dst_mac: [0x24, 0x8a, 7, 0xa5, 0x28, 0xc8],
        src_mac: [0x24, 0x8a, 7, 0xa5, 0x28, 0xc9],
        ether_type,
        vlan_tag: 0,
    }))
}

fn ipv4() -> FlowSpec {
    FlowSpec::Ipv4Ext(exactly(Ipv4ExtFilter {
        src_ip: [10, 9, 0, 1].into(),
        dst_ip: [10, 9, 0, 2].into(),
        proto: 17,
        ..Ipv4ExtFilter::default()
    }))
}

fn ipv6(next_hdr: u8) -> FlowSpec {
    FlowSpec::Ipv6(exactly(Ipv6Filter {
        src_ip: "fd09::1".parse().unwrap(),
        dst_ip: "fd09::2".parse().unwrap(),
        next_hdr,
        ..Ipv6Filter::default()
    }))
}

fn ports() -> Matching<TcpUdpFilter> {
    exactly(TcpUdpFilter {
        dst_port: 0x1234,
        src_port: 0x5678,
    })
}

/// Steers packets with these headers, passed to the device as `kinds`, and receives some.
fn traffic(headers: &[FlowSpec], kinds: &[u32]) {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let builder = fixture.pd.qp_builder::<RawPacket>(&cq, &cq);
    let qp = builder.max_recv_wr(2).create().unwrap();
    let qp = qp.to_init(&Attributes::<RawPacket, Init>::new(1)).unwrap();
    let qp = qp.to_rtr(&Attributes::<RawPacket, Rtr>::new()).unwrap();
    let mut qp = qp.to_rts(&Attributes::<RawPacket, Rts>::new()).unwrap();
    let rule = headers
        .iter()
        .fold(FlowRule::new(1), |rule, header| rule.header(*header));
    let flow = qp.create_flow(&rule).unwrap();
    let (attr, specs) = fixture.fake.flow();
    assert_eq!(
        (attr.port, usize::from(attr.num_of_specs)),
        (1, kinds.len())
    );
    let received: Vec<u32> = specs.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(received, kinds);
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    for round in 0..ROUNDS {
        let buf = fixture.pd.alloc_buf(64).unwrap();
        traffic.receive(&mut qp, buf, &[round; 60]);
    }
    flow.destroy().unwrap();
    assert!(!fixture.fake.live().contains(&"ibv_flow"));
}

#[test]
fn eth_spec_flow_traffic() {
    traffic(&[eth(0x0800)], &[ETH]);
}

#[test]
fn ipv4_spec_flow_traffic() {
    traffic(&[ipv4()], &[IPV4_EXT]);
}

#[test]
fn ipv6_spec_flow_traffic() {
    traffic(&[eth(0x86dd), ipv6(17)], &[ETH, IPV6]);
}

#[test]
fn udp_spec_flow_traffic() {
    let headers = [eth(0x0800), ipv4(), FlowSpec::Udp(ports())];
    traffic(&headers, &[ETH, IPV4_EXT, UDP]);
}

#[test]
fn tcp_spec_flow_traffic() {
    let headers = [eth(0x86dd), ipv6(6), FlowSpec::Tcp(ports())];
    traffic(&headers, &[ETH, IPV6, TCP]);
}
