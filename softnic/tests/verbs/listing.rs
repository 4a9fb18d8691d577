//! Devices listed for a thread, and their properties.

use ibverbs_sys as ffi;
use softnic::Fabric;
use verbs::{Gid, ah::AddressVector};

#[test]
fn thread_sees_the_device_of_its_host() {
    let fabric = Fabric::new();
    let (a, b) = (
        fabric.host("10.9.0.1".parse().unwrap()),
        fabric.host("10.9.0.2".parse().unwrap()),
    );
    let names = || -> Vec<String> {
        let devices = verbs::devices().unwrap();
        devices
            .iter()
            .map(|device| device.name().to_owned())
            .collect()
    };
    assert_eq!(names(), [""; 0], "on no host");
    let error = verbs::devices().unwrap().first().unwrap_err().to_string();
    assert!(
        error.contains("put the thread on a host with `Host::run`"),
        "{error}"
    );
    assert!(!error.contains("modprobe"), "{error}");
    assert_eq!(a.run(names), ["softnic0"]);
    assert_eq!(b.spawn(names).join().unwrap(), ["softnic1"]);
    let entered = a.enter();
    assert_eq!(b.run(names), ["softnic1"]);
    assert_eq!(names(), ["softnic0"]);
    drop(entered);
    assert_eq!(names(), [""; 0]);
}

#[test]
fn device_describes_itself() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let ctx = host.run(|| {
        verbs::devices()
            .unwrap()
            .find("softnic0")
            .unwrap()
            .open()
            .unwrap()
    });
    let attr = ctx.query_device().unwrap();
    assert!(attr.max_qp_wr() >= 1024);
    let port = ctx.query_port(1).unwrap();
    assert_eq!(port.state(), verbs::attr::PortState::ACTIVE);
    let gid = ctx.query_gid(1, 0).unwrap().unwrap();
    assert_eq!(gid.0[10..], [0xff, 0xff, 10, 9, 0, 1]);
    assert_eq!(ctx.query_gid(1, 1).unwrap(), None);
}

#[test]
fn device_has_all_addresses_of_its_host() {
    let fabric = Fabric::new();
    let addrs = ["10.9.0.1", "fd00::1"].map(|addr| addr.parse().unwrap());
    let host = fabric.host_with_addrs(&addrs);
    assert_eq!(host.addr(), addrs[0]);
    let ctx = host.run(|| {
        let devices = verbs::devices().unwrap();
        devices.iter().next().unwrap().open().unwrap()
    });
    let table = ctx.query_gid_table().unwrap();
    let found: Vec<_> = table.iter().map(|entry| entry.gid.to_ip()).collect();
    assert_eq!(found, addrs);
    assert_eq!(ctx.query_gid(1, 1).unwrap().unwrap().to_ip(), addrs[1]);
    assert_eq!(ctx.query_gid(1, 2).unwrap(), None);
}

#[test]
fn gid_has_an_interface_of_its_host_and_not_the_machines() {
    let fabric = Fabric::new();
    let interfaces = [1, 2].map(|number| {
        let host = fabric.host([10, 9, 0, number].into());
        let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
        let routes = ctx.routes_to(host.addr()).unwrap();
        let route = routes.best().unwrap();
        assert_eq!(route.interface, None, "{routes}");
        route.entry.ndev_ifindex.unwrap()
    });
    assert_ne!(interfaces[0], interfaces[1]);
}

#[test]
fn query_of_a_killed_hosts_device_fails() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    fabric.kill(&host);
    let error = ctx.query_device().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
}

/// The functions are defined by this crate, so the libraries are neither linked nor loaded.
#[test]
fn process_has_no_library_of_rdma_core() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for library in ["libibverbs", "librdmacm"] {
        assert!(!maps.contains(library), "{maps}");
    }
}

#[test]
fn empty_gid_index_is_no_data() {
    let fabric = Fabric::new();
    let host = fabric.host([10, 9, 0, 1].into());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    let pd = ctx.alloc_pd().unwrap();
    let create = |index| {
        let address_vector = AddressVector::global(1, index, Gid::from(host.addr()));
        pd.create_ah(&address_vector).map(drop)
    };
    assert!(create(0).is_ok());
    for (index, errno) in [(1, libc::ENODATA), (15, libc::ENODATA), (16, libc::EINVAL)] {
        let error = create(index).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno), "{index}");
    }
}

#[test]
fn domain_with_an_address_handle_is_busy() {
    let fabric = Fabric::new();
    let host = fabric.host([10, 9, 0, 1].into());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    let gid = Gid::from(host.addr());
    let mut attr = ffi::ibv_ah_attr {
        is_global: 1,
        port_num: 1,
        ..ffi::ibv_ah_attr::zeroed()
    };
    attr.grh.dgid = ffi::ibv_gid::from_raw(gid.0);
    // SAFETY: the context is open; the domain and the handle are used until destroyed.
    let pd = unsafe { ffi::ibv_alloc_pd(ctx.as_raw()) };
    // SAFETY: see above.
    let ah = unsafe { ffi::ibv_create_ah(pd, &raw mut attr) };
    assert!(!ah.is_null());
    // SAFETY: see above. A failed call leaves the domain.
    assert_eq!(unsafe { ffi::ibv_dealloc_pd(pd) }, libc::EBUSY);
    // SAFETY: see above.
    assert_eq!(unsafe { ffi::ibv_destroy_ah(ah) }, 0);
    // SAFETY: see above.
    assert_eq!(unsafe { ffi::ibv_dealloc_pd(pd) }, 0);
}
