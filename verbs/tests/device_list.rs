//! The device list of the test machine, usually without an RDMA device.

use std::{fs, path::Path};

/// Error of a call whose library is not installed, `ELIBACC`.
const NO_LIBRARY: i32 = 79;

#[test]
fn device_list_without_rdma_is_empty_or_names_the_package() {
    let class = Path::new("/sys/class/infiniband");
    let expected = fs::read_dir(class).map_or(0, Iterator::count);
    let devices = match verbs::devices() {
        Err(error) if error.raw_os_error() == Some(NO_LIBRARY) => {
            assert!(error.to_string().contains("libibverbs"), "{error}");
            return;
        }
        devices => devices.unwrap(),
    };
    assert_eq!(devices.len(), expected);
    assert_eq!(devices.is_empty(), expected == 0);
    assert_eq!(devices.iter().count(), expected);
}
