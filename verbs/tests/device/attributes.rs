//! Attributes of Soft-RoCE, or of any other device present.

use rustix::param::page_size;
use verbs::{
    attr::{DeviceCaps, GidEntry, GidType, LinkLayer, OdpGeneralCaps, Pkey, PortCaps, PortState},
    device::NodeType,
    mr::Mapping,
};

use crate::loopback::{open, tested};

#[test]
fn device_attributes_are_reported() {
    let device = tested();
    let ctx = device.open().unwrap();
    let types = [NodeType::CA, NodeType::RNIC];
    assert!(
        types.contains(&device.node_type()),
        "{:?}",
        device.node_type()
    );
    assert_eq!(ctx.is_iwarp(), device.node_type() == NodeType::RNIC);
    assert!(device.index().is_some());
    assert!(ctx.num_comp_vectors() >= 1);
    let attr = ctx.query_device().unwrap();
    assert_eq!(attr.node_guid(), device.guid());
    assert_eq!(attr.phys_port_cnt(), 1);
}

#[test]
fn device_limits_are_reported() {
    let ctx = open();
    let attr = ctx.query_device().unwrap();
    assert!(attr.max_qp() > 0 && attr.max_cqe() > 0 && attr.max_sge() > 0);
    assert!(attr.caps().contains(DeviceCaps::MEM_MGT_EXTENSIONS));
    // More entries than the device's maximum are refused, and the maximum is accepted.
    assert!(ctx.create_cq(attr.max_cqe()).is_ok());
    assert!(ctx.create_cq(attr.max_cqe() + 1).is_err());
    let pd = ctx.alloc_pd().unwrap();
    let registered = pd.register(Mapping::new(page_size()).unwrap()).on_demand();
    assert_eq!(
        attr.odp_caps().general.contains(OdpGeneralCaps::SUPPORT),
        registered.create_buf().is_ok(),
        "{:?}",
        attr.odp_caps()
    );
    assert!(format!("{attr:?}").contains("max_qp:"));
}

#[test]
fn port_attributes_are_reported() {
    let ctx = open();
    let port = ctx.query_port(1).unwrap();
    assert_eq!(port.state(), PortState::ACTIVE);
    assert_eq!(port.link_layer(), LinkLayer::ETHERNET);
    assert!(port.active_mtu() <= port.max_mtu());
    assert!(port.active_mtu().bytes().is_some());
    assert!(port.max_msg_sz() > 0 && port.gid_tbl_len() > 0);
    assert_eq!(port.is_grh_required(), !ctx.is_iwarp());
    assert_eq!(port.caps() & PortCaps::SM, PortCaps::empty());
    let err = ctx.query_port(2).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn gid_table_agrees_with_its_entries() {
    let ctx = open();
    let table = ctx.query_gid_table().unwrap();
    assert!(!table.is_empty());
    let len = ctx.query_port(1).unwrap().gid_tbl_len();
    for index in 0..len.min(32) {
        let entry = table.iter().find(|entry| entry.gid_index == index);
        assert_eq!(ctx.query_gid_ex(1, index).unwrap().as_ref(), entry);
        assert_eq!(
            ctx.query_gid(1, index).unwrap(),
            entry.map(|entry| entry.gid)
        );
    }
    let v4 = |gid: verbs::Gid| gid.to_ip().is_ipv4();
    let entry = table.iter().find(|entry| v4(entry.gid)).unwrap();
    if !ctx.is_iwarp() {
        assert_eq!(entry.gid_type, GidType::ROCE_V2);
    }
    assert!(entry.ndev_ifindex.is_some());
    for (port, index) in [(1, len), (9, 0)] {
        let err = ctx.query_gid(port, index).unwrap_err();
        assert!(err.raw_os_error().is_some(), "{err}");
        assert!(ctx.query_gid_ex(port, index).is_err());
    }
}

#[test]
fn default_partition_key_is_found() {
    let ctx = open();
    assert_eq!(ctx.query_pkey(1, 0).unwrap(), Pkey::DEFAULT);
    assert_eq!(ctx.pkey_index(1, Pkey::DEFAULT).unwrap(), 0);
    let err = ctx.pkey_index(1, Pkey(0x8123)).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENOENT));
    assert!(ctx.query_pkey(1, u16::MAX).is_err());
}

#[test]
fn clock_is_readable_on_devices_with_a_clock_only() {
    let ctx = open();
    let has_clock = ctx.query_device().unwrap().hca_core_clock() != 0;
    let refusal = ctx.query_clock().err().map(|err| err.raw_os_error());
    let expected = (!has_clock).then_some(Some(libc::EOPNOTSUPP));
    assert_eq!(refusal, expected, "has a clock: {has_clock}");
}

/// The route to the device's own address: on Soft-RoCE and on softnic, there is one.
#[test]
fn routes_to_its_own_address_have_the_gid_of_the_address() {
    let ctx = open();
    if ctx.is_iwarp() {
        return;
    }
    let table = ctx.query_gid_table().unwrap();
    let mapped =
        |entry: &&GidEntry| entry.gid_type == GidType::ROCE_V2 && entry.gid.to_ip().is_ipv4();
    let mapped_entry = table.iter().find(mapped).unwrap();
    let routes = ctx.routes_to(mapped_entry.gid.to_ip()).unwrap();
    assert_eq!(routes.iter().len(), table.len(), "{routes}");
    let best = routes.best().unwrap();
    assert_eq!(best.entry, *mapped_entry, "{routes}");
    let path = best.path_to(mapped_entry.gid).unwrap();
    assert_eq!(
        u32::from(path.grh.unwrap().sgid_index),
        mapped_entry.gid_index
    );
    for route in &routes {
        let suitable = route.entry.gid.to_ip().is_ipv4();
        assert!(suitable || route.not_taken.is_some(), "{routes}");
    }
}
