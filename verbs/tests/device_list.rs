//! The device list of the test machine, usually without an RDMA device.

use std::{fs, path::Path};

#[test]
fn device_list_without_rdma_is_empty() {
    let class = Path::new("/sys/class/infiniband");
    let expected = fs::read_dir(class).map_or(0, Iterator::count);
    let devices = verbs::devices().unwrap();
    assert_eq!(devices.len(), expected);
    assert_eq!(devices.is_empty(), expected == 0);
    assert_eq!(devices.iter().count(), expected);
}
