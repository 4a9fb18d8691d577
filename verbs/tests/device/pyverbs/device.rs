//! `test_device.py`: the cases about a device's attributes

use verbs::{
    Context,
    attr::{DeviceAttr, LinkLayer, PhysState, Pkey},
};

use crate::loopback::{open, tested};

/// Every device, open; of a machine with the variable `RDMA_DEVICE`, that device.
fn each_device() -> impl Iterator<Item = Context> {
    let devices = match std::env::var_os("RDMA_DEVICE") {
        Some(_) => vec![tested()],
        None => verbs::devices().unwrap().into_iter().collect(),
    };
    assert!(!devices.is_empty());
    devices.into_iter().map(|device| device.open().unwrap())
}

#[test]
fn dev_list() {
    let devices = verbs::devices().unwrap();
    assert!(!devices.is_empty());
    for device in &devices {
        assert!(devices.find(device.name()).is_some());
    }
}

#[test]
fn open_dev() {
    let device = tested();
    assert_eq!(device.open().unwrap().name(), device.name());
}

fn verify_device(attr: &DeviceAttr) {
    let page = 4096;
    assert_ne!(attr.node_guid().0, [0; 8]);
    assert_ne!(attr.sys_image_guid().0, [0; 8]);
    assert!(attr.max_mr_size() > page && attr.page_size_cap() >= page);
    assert_ne!(attr.vendor_id(), 0);
    assert!(attr.max_pkeys() > 0);
    let limits: [fn(&DeviceAttr) -> u32; 7] = [
        DeviceAttr::max_qp,
        DeviceAttr::max_qp_wr,
        DeviceAttr::max_sge,
        DeviceAttr::max_cq,
        DeviceAttr::max_cqe,
        DeviceAttr::max_mr,
        DeviceAttr::max_pd,
    ];
    assert!(limits.iter().all(|limit| limit(attr) > 0), "{attr:?}");
}

/// Through `ibv_query_device`, not used by this crate's `query_device`.
#[test]
fn query_device() {
    for ctx in each_device() {
        let mut plain = ibverbs_sys::ibv_device_attr::zeroed();
        // SAFETY: the context is open, and `plain` a valid place.
        let errno = unsafe { ibverbs_sys::ibv_query_device(ctx.as_raw(), &raw mut plain) };
        assert_eq!(errno, 0);
        let attr = ctx.query_device().unwrap();
        verify_device(&attr);
        assert_eq!(attr.max_qp(), u32::try_from(plain.max_qp).unwrap());
        assert_eq!(attr.as_raw().orig_attr.node_guid, plain.node_guid);
    }
}

#[test]
fn query_pkey() {
    for ctx in each_device() {
        assert_eq!(ctx.query_pkey(1, 0).unwrap(), Pkey::DEFAULT);
    }
}

#[test]
fn get_pkey_index() {
    for ctx in each_device() {
        assert_eq!(ctx.pkey_index(1, Pkey::DEFAULT).unwrap(), 0);
    }
}

/// Since rdma-core 62, from the device or from its port's attributes.
#[test]
fn query_port_speed() {
    for ctx in each_device() {
        match ctx.query_port_speed(1) {
            Ok(speed) => assert!(speed > 0),
            Err(err) => assert_eq!(err.kind(), std::io::ErrorKind::Unsupported, "{err}"),
        }
    }
}

#[test]
fn query_gid() {
    for ctx in each_device() {
        assert!(ctx.query_port(1).unwrap().gid_tbl_len() > 0);
        let gid = ctx.query_gid(1, 0).unwrap().unwrap();
        assert!(!gid.is_unspecified());
    }
}

#[test]
fn query_gid_table() {
    for ctx in each_device() {
        let table = ctx.query_gid_table().unwrap();
        assert!(!table.is_empty());
        assert!(table.iter().all(|entry| !entry.gid.is_unspecified()));
        let ports = ctx.query_device().unwrap().phys_port_cnt();
        assert!(
            table
                .iter()
                .all(|entry| (1..=ports).contains(&entry.port_num))
        );
    }
}

/// This crate's call allocates the needed room, so C is called directly with none.
#[test]
fn query_gid_table_bad_flow() {
    let ctx = open();
    let mut entry = ibverbs_sys::ibv_gid_entry::zeroed();
    // SAFETY: the context is open, and there is room for the zero requested entries.
    let ret = unsafe { ibverbs_sys::ibv_query_gid_table(ctx.as_raw(), &raw mut entry, 0, 0) };
    assert_eq!(ret, -(libc::EINVAL as isize));
    assert!(ctx.query_gid_table().is_ok());
}

#[test]
fn query_gid_ex() {
    for ctx in each_device() {
        let entry = ctx.query_gid_ex(1, 0).unwrap().unwrap();
        assert_eq!((entry.port_num, entry.gid_index), (1, 0));
        assert_eq!(ctx.query_gid(1, 0).unwrap(), Some(entry.gid));
    }
}

#[test]
fn query_gid_ex_bad_flow() {
    let ctx = open();
    let table = ctx.query_gid_table().unwrap();
    let len = ctx.query_port(1).unwrap().gid_tbl_len();
    let empty = (0..len).find(|index| table.iter().all(|entry| entry.gid_index != *index));
    let empty = empty.expect("an entry of the table is empty");
    assert_eq!(ctx.query_gid_ex(1, empty).unwrap(), None);
    assert!(ctx.query_gid_ex(1, len).is_err());
}

#[test]
fn query_device_ex() {
    for ctx in each_device() {
        verify_device(&ctx.query_device().unwrap());
    }
}

#[test]
fn phys_port_cnt_ex() {
    for ctx in each_device() {
        let attr = ctx.query_device().unwrap();
        let plain = u32::from(attr.as_raw().orig_attr.phys_port_cnt);
        assert_eq!(plain, attr.phys_port_cnt().min(255));
    }
}

#[test]
fn query_port() {
    for ctx in each_device() {
        let port = ctx.query_port(1).unwrap();
        assert_eq!(port.phys_state(), PhysState::LINK_UP);
        for mtu in [port.max_mtu(), port.active_mtu()] {
            assert!(mtu.bytes().is_some(), "{mtu:?}");
        }
        assert!(port.active_width().lanes().is_some());
        assert!(port.active_speed().mbps().is_some());
        assert_eq!(port.link_layer(), LinkLayer::ETHERNET);
        assert!(port.max_msg_sz() > 0x1000);
    }
}

#[test]
fn query_port_bad_flow() {
    let ctx = open();
    let ports = ctx.query_device().unwrap().phys_port_cnt();
    for beyond in 1..=10 {
        let port = u8::try_from(ports + beyond).unwrap();
        let err = ctx.query_port(port).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
        assert!(err.to_string().contains(&format!("port {port}")), "{err}");
    }
}
