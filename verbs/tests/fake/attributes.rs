//! Device attributes missing on Soft-RoCE.

use std::io::ErrorKind;

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Gid, Ud,
    attr::{
        AtomicCap, CqModerationCaps, DeviceCaps, GidType, LinkLayer, LinkSpeed, LinkWidth, Mtu,
        OdpGeneralCaps, OdpTransportCaps, PciAtomicSizes, Pkey, PortState, QpTypes, RawPacketCaps,
        RxHashFields, RxHashFunctions, TagMatchingFlags,
    },
    device::{NodeType, TransportType},
};

use crate::{fixture::error_text, provider::Fake};

#[test]
fn device_attributes_are_reported() {
    let fake = Fake::named("fake7");
    fake.describe(|device| {
        device.node_type = ffi::ibv_node_type::IBV_NODE_RNIC;
        device.transport_type = ffi::ibv_transport_type(9);
    });
    let devices = verbs::devices().unwrap();
    let device = devices.find("fake7").unwrap();
    assert_eq!(device.node_type(), NodeType::RNIC);
    assert_eq!(device.transport_type(), TransportType(9));
    assert_eq!(device.index(), Some(7));
    assert_eq!(device.guid().to_string(), "5054:00ff:fe12:3456");
    fake.describe(|device| device.index = -1);
    assert_eq!(device.index(), None);
    assert_eq!(device.open().unwrap().num_comp_vectors(), 2);
}

#[test]
fn failed_open_names_the_device() {
    let fake = Fake::new();
    fake.fail(Call::OpenDevice, libc::EACCES);
    let devices = verbs::devices().unwrap();
    let err = devices.find("fake0").unwrap().open().unwrap_err();
    let expected = "`ibv_open_device` failed (fake0): Permission denied (os error 13)";
    assert!(error_text(&err).starts_with(expected), "{err}");
    let hint = "; this user may not open /dev/infiniband/uverbs*";
    assert!(err.to_string().contains(hint), "{err}");
}

#[test]
fn extended_attributes_are_typed_and_unknown_bits_are_kept() {
    let fake = Fake::new();
    fake.describe(|device| {
        let attr = &mut device.attr;
        attr.orig_attr.device_cap_flags = ffi::ibv_device_cap_flags::IBV_DEVICE_XRC.0;
        attr.orig_attr.atomic_cap = ffi::ibv_atomic_cap::IBV_ATOMIC_GLOB;
        attr.device_cap_flags_ex = 1 << 60 | ffi::IBV_DEVICE_RAW_SCATTER_FCS;
        attr.odp_caps.general_caps = 3;
        attr.odp_caps.per_transport_caps.rc_odp_caps = 0b1101_1111;
        attr.xrc_odp_caps = 1 << 5;
        attr.completion_timestamp_mask = u64::MAX >> 1;
        attr.hca_core_clock = 156_250;
        attr.tso_caps.max_tso = 1 << 18;
        attr.tso_caps.supported_qpts = 1 << ffi::ibv_qp_type::IBV_QPT_RAW_PACKET.0;
        attr.rss_caps.rx_hash_function = 1;
        attr.rss_caps.rx_hash_fields_mask = 0xff;
        attr.rss_caps.max_rwq_indirection_table_size = 2048;
        attr.max_wq_type_rq = 99;
        attr.packet_pacing_caps.qp_rate_limit_max = 1_000_000;
        attr.packet_pacing_caps.supported_qpts = 1 << ffi::ibv_qp_type::IBV_QPT_RC.0;
        attr.raw_packet_caps = 0b101;
        attr.tm_caps.max_num_tags = 127;
        attr.tm_caps.flags = 1;
        attr.cq_mod_caps.max_cq_count = 65535;
        attr.cq_mod_caps.max_cq_period = 4095;
        attr.max_dm_size = 1 << 17;
        attr.pci_atomic_caps.swap = 0b110;
    });
    let attr = fake.open().query_device().unwrap();
    let caps = attr.caps();
    assert!(caps.contains(DeviceCaps::XRC | DeviceCaps::RAW_SCATTER_FCS));
    assert_eq!(caps.bits() >> 60, 1);
    assert_eq!(attr.fw_ver(), "7");
    assert_eq!(attr.atomic_cap(), AtomicCap::GLOB);
    let odp = attr.odp_caps();
    assert_eq!(odp.general, OdpGeneralCaps::all());
    assert_eq!(odp.rc, OdpTransportCaps::all() - OdpTransportCaps::SRQ_RECV);
    assert_eq!(odp.xrc, OdpTransportCaps::SRQ_RECV);
    assert_eq!(attr.completion_timestamp_mask(), u64::MAX >> 1);
    assert_eq!(attr.hca_core_clock(), 156_250);
    assert_eq!(attr.tso_caps().supported_qpts, QpTypes::RAW_PACKET);
    let rss = attr.rss_caps();
    assert_eq!(rss.rx_hash_function, RxHashFunctions::TOEPLITZ);
    assert!(rss.rx_hash_fields.contains(RxHashFields::DST_PORT_UDP));
    assert_eq!(rss.max_rwq_indirection_table_size, 2048);
    assert_eq!(attr.max_wq_type_rq(), 99);
    let pacing = attr.packet_pacing_caps();
    assert!(pacing.supported_qpts.has::<verbs::Rc>() && !pacing.supported_qpts.has::<Ud>());
    let raw = RawPacketCaps::CVLAN_STRIPPING | RawPacketCaps::IP_CSUM;
    assert_eq!(attr.raw_packet_caps(), raw);
    assert_eq!(attr.tm_caps().max_num_tags, 127);
    assert_eq!(attr.tm_caps().flags, TagMatchingFlags::RC);
    let moderation = CqModerationCaps {
        max_cq_count: 65535,
        max_cq_period: 4095,
    };
    assert_eq!(attr.cq_mod_caps(), moderation);
    assert_eq!(attr.max_dm_size(), 1 << 17);
    let sizes = PciAtomicSizes::BYTES_8 | PciAtomicSizes::BYTES_16;
    assert_eq!(attr.pci_atomic_caps().swap, sizes);
}

#[test]
fn missing_extended_attributes_are_zero() {
    let fake = Fake::new();
    fake.describe(|device| {
        device.extended = false;
        device.attr.orig_attr.max_qp = -1;
    });
    let ctx = fake.open();
    let attr = ctx.query_device().unwrap();
    assert_eq!(attr.max_cqe(), i32::MAX as u32);
    assert_eq!((attr.max_qp(), attr.hca_core_clock()), (0, 0));
    assert_eq!(attr.phys_port_cnt(), 1);
    assert_eq!(attr.port_nums(), 1..=1);
    assert_eq!(fake.calls().last(), Some(&Call::QueryDevice));
}

#[test]
fn port_attributes_are_reported() {
    let fake = Fake::new();
    fake.describe(|device| {
        device.port.active_speed = 128;
        device.port.active_width = 2;
        device.port.state = ffi::ibv_port_state(42);
        device.port.lid = 0x17;
    });
    let ctx = fake.open();
    let port = ctx.query_port(1).unwrap();
    assert_eq!(port.state(), PortState(42));
    assert_eq!(format!("{:?}", port.state()), "PortState(42)");
    assert_eq!(
        (port.max_mtu(), port.active_mtu()),
        (Mtu::B4096, Mtu::B1024)
    );
    assert_eq!(port.active_speed(), LinkSpeed::NDR);
    assert_eq!(port.active_width(), LinkWidth::X4);
    assert_eq!(port.link_layer(), LinkLayer::ETHERNET);
    assert_eq!(port.lid(), 0x17);
    assert!(port.is_grh_required());
    assert_eq!(
        error_text(&ctx.query_port(2).unwrap_err()),
        "`ibv_query_port` failed (port 2 of fake0): Invalid argument (os error 22)"
    );
}

#[test]
fn gid_table_has_no_empty_entries() {
    let fake = Fake::new();
    let ctx = fake.open();
    assert_eq!(ctx.query_gid(1, 0).unwrap(), None);
    assert_eq!(ctx.query_gid_ex(1, 0).unwrap(), None);
    let gid = Gid::from("10.9.0.1".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(ctx.query_gid(1, 1).unwrap(), Some(gid));
    let entry = ctx.query_gid_ex(1, 1).unwrap().unwrap();
    assert_eq!(entry.gid, gid);
    assert_eq!(entry.gid_type, GidType::ROCE_V2);
    assert_eq!((entry.gid_index, entry.port_num), (1, 1));
    assert_eq!(entry.ndev_ifindex, Some(3));
    assert_eq!(ctx.query_gid_table().unwrap(), [entry]);
    assert_eq!(
        ctx.query_gid(1, 4).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!(
        error_text(&ctx.query_gid_ex(2, 0).unwrap_err()),
        "`ibv_query_gid_ex` failed (port 2, index 0): Invalid argument (os error 22)"
    );
    fake.fail(Call::QueryGidTable, libc::EIO);
    assert_eq!(
        ctx.query_gid_table().unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
}

#[test]
fn partitions_are_found_by_index_and_by_key() {
    let fake = Fake::new();
    let ctx = fake.open();
    assert_eq!(ctx.query_pkey(1, 0).unwrap(), Pkey::DEFAULT);
    assert_eq!(ctx.query_pkey(1, 1).unwrap(), Pkey(0x8001));
    assert_eq!(
        ctx.query_pkey(1, 2).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!(ctx.pkey_index(1, Pkey(0x8001)).unwrap(), 1);
    assert_eq!(
        error_text(&ctx.pkey_index(1, Pkey(5)).unwrap_err()),
        "`ibv_get_pkey_index` failed (port 1, Pkey(0x0005)): No such file or directory (os error 2)"
    );
}

#[test]
fn clock_query_returns_device_ticks() {
    let fake = Fake::new();
    let ctx = fake.open();
    let err = ctx.query_clock().unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
    fake.describe(|device| device.clock = Some(123_456_789_012));
    assert_eq!(ctx.query_clock().unwrap(), 123_456_789_012);
}

#[test]
fn function_missing_in_the_library_is_an_error() {
    if ffi::late::ibv_query_port_speed().is_none() {
        let err = Fake::new().open().query_port_speed(1).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unsupported);
    }
}
