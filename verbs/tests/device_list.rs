//! The device list of the machine that runs the tests, which mostly has no RDMA device.

use std::{fs, path::Path};

#[test]
fn a_machine_without_rdma_has_an_empty_list_and_no_error() {
    let class = Path::new("/sys/class/infiniband");
    let expected = fs::read_dir(class).map_or(0, Iterator::count);
    let devices = verbs::devices().unwrap();
    assert_eq!(devices.len(), expected);
    assert_eq!(devices.is_empty(), expected == 0);
    assert_eq!(devices.iter().count(), expected);
}
