//! The files of a device below `/sys/class`, from the attributes that the functions of `ibv_query_device(3)` read.
#![forbid(unsafe_code)]

use ibverbs_sys as ffi;

use super::{query, scripted::Properties};
use crate::fabric::Port;

/// A file's path below `/sys/class`, and its text.
pub(crate) type SysfsFile = (String, String);

/// Name of the device below `infiniband_verbs`, and of its node below `/dev/infiniband`.
pub(super) const NODE: &str = "uverbs0";

/// `ABI` versions of the kernel's interface and of a device without a provider's.
const ABI: &str = "6";
const DEVICE_ABI: &str = "1";

/// Folder of a device in sysfs.
pub(super) fn directory(name: &str) -> String {
    format!("/sys/class/infiniband/{name}")
}

/// Folder of a device's node in sysfs.
pub(super) fn node_directory() -> String {
    format!("/sys/class/infiniband_verbs/{NODE}")
}

/// The files of a host's device. `interface` is the network interface of its address, and `node` the number of its node.
pub(crate) fn files(port: &Port, interface: &str, node: &str) -> Vec<SysfsFile> {
    files_of(&query::of_engine(port), interface, node)
}

fn files_of(device: &Properties, interface: &str, node: &str) -> Vec<SysfsFile> {
    let name = &device.name;
    let attr = &device.attr.orig_attr;
    let firmware = attr.fw_ver.iter().map(|byte| byte.to_ne_bytes()[0]);
    let firmware: Vec<_> = firmware.take_while(|byte| *byte != 0).collect();
    let mut files = vec![
        (
            "node_type".to_owned(),
            format!("{}: CA", device.node_type.0),
        ),
        ("node_guid".to_owned(), groups(device.guid.to_be_bytes())),
        (
            "sys_image_guid".to_owned(),
            groups(attr.sys_image_guid.to_ne().to_be_bytes()),
        ),
        ("node_desc".to_owned(), name.clone()),
        (
            "fw_ver".to_owned(),
            String::from_utf8_lossy(&firmware).into_owned(),
        ),
        ("hw_rev".to_owned(), format!("{:#x}", attr.hw_ver)),
        ("hca_type".to_owned(), "softnic".to_owned()),
        ("board_id".to_owned(), "softnic".to_owned()),
        // No node of memory is nearer than another.
        ("device/numa_node".to_owned(), "-1".to_owned()),
        (
            "device/vendor".to_owned(),
            format!("{:#06x}", attr.vendor_id),
        ),
        (
            "device/device".to_owned(),
            format!("{:#06x}", attr.vendor_part_id),
        ),
    ];
    files.extend(port_files(device, interface));
    let files = files.into_iter();
    let mut files: Vec<_> = files
        .map(|(path, text)| (format!("infiniband/{name}/{path}"), text))
        .collect();
    for (path, text) in [
        ("abi_version".to_owned(), ABI),
        (format!("{NODE}/ibdev"), name),
        (format!("{NODE}/abi_version"), DEVICE_ABI),
        (format!("{NODE}/dev"), node),
    ] {
        files.push((format!("infiniband_verbs/{path}"), text.to_owned()));
    }
    files
}

/// The files of the only port.
fn port_files(device: &Properties, interface: &str) -> Vec<SysfsFile> {
    let port = &device.port;
    let is_ethernet = port.link_layer == ffi::IBV_LINK_LAYER_ETHERNET;
    let mut files = vec![
        ("state".to_owned(), state(port.state)),
        ("phys_state".to_owned(), phys_state(port.phys_state)),
        ("rate".to_owned(), rate(port)),
        ("lid".to_owned(), format!("{:#x}", port.lid)),
        ("sm_lid".to_owned(), format!("{:#x}", port.sm_lid)),
        ("sm_sl".to_owned(), port.sm_sl.to_string()),
        ("lid_mask_count".to_owned(), port.lmc.to_string()),
        (
            "cap_mask".to_owned(),
            format!("{:#010x}", port.port_cap_flags),
        ),
        (
            "link_layer".to_owned(),
            if is_ethernet {
                "Ethernet"
            } else {
                "InfiniBand"
            }
            .to_owned(),
        ),
    ];
    for index in 0..u32::try_from(port.gid_tbl_len).unwrap_or(0) {
        let entry = device.gids.iter().find(|entry| entry.gid_index == index);
        let gid = entry.map_or([0; 16], |entry| entry.gid.to_raw());
        files.push((format!("gids/{index}"), groups(gid)));
        // Of an empty entry the kernel's files cannot be read.
        if entry.is_some() {
            let types = format!("gid_attrs/types/{index}");
            files.push((types, "RoCE v2".to_owned()));
            let interfaces = format!("gid_attrs/ndevs/{index}");
            files.push((interfaces, interface.to_owned()));
        }
    }
    for (index, pkey) in device.pkeys.iter().enumerate() {
        files.push((format!("pkeys/{index}"), format!("{pkey:#06x}")));
    }
    let files = files.into_iter();
    files
        .map(|(path, text)| (format!("ports/1/{path}"), text))
        .collect()
}

/// Groups of four hexadecimal digits.
fn groups<const N: usize>(bytes: [u8; N]) -> String {
    let (pairs, _) = bytes.as_chunks();
    let groups: Vec<_> = pairs
        .iter()
        .map(|pair| format!("{:04x}", u16::from_be_bytes(*pair)))
        .collect();
    groups.join(":")
}

fn state(state: ffi::ibv_port_state) -> String {
    use ffi::ibv_port_state as of;
    let name = match state {
        of::IBV_PORT_NOP => "NOP",
        of::IBV_PORT_DOWN => "DOWN",
        of::IBV_PORT_INIT => "INIT",
        of::IBV_PORT_ARMED => "ARMED",
        of::IBV_PORT_ACTIVE => "ACTIVE",
        of::IBV_PORT_ACTIVE_DEFER => "ACTIVE_DEFER",
        _ => "UNKNOWN",
    };
    format!("{}: {name}", state.0)
}

fn phys_state(state: u8) -> String {
    let name = match state {
        query::LINK_UP => "LinkUp",
        query::DISABLED => "Disabled",
        _ => "<unknown>",
    };
    format!("{state}: {name}")
}

/// The rate of lanes, of which the code of a width has a bit for 1, 4, 8 and 12.
fn rate(port: &ffi::ibv_port_attr) -> String {
    let lanes = match port.active_width {
        2 => 4,
        4 => 8,
        8 => 12,
        _ => 1,
    };
    // Tenths of Gb/s of a lane, as rounded by the kernel.
    let (lane, name) = match port.active_speed {
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        _ => (25, "SDR"),
    };
    let tenths = lane * lanes;
    let fraction = match tenths % 10 {
        0 => String::new(),
        tenth => format!(".{tenth}"),
    };
    format!("{}{fraction} Gb/sec ({lanes}X {name})", tenths / 10)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Fabric;

    #[test]
    fn files_have_the_values_of_the_queries() {
        let fabric = Fabric::new();
        let host = fabric.host([10, 9, 0, 1].into());
        let port = host.run(|| crate::fabric::current().unwrap());
        let device = query::of_engine(&port);
        let files: BTreeMap<_, _> = files(&port, "eth7", "1:7").into_iter().collect();
        let text = |path: &str| files[&format!("infiniband/softnic0/{path}")].as_str();
        let guid = u64::from_str_radix(&text("node_guid").replace(':', ""), 16);
        assert_eq!(guid.unwrap(), device.guid);
        assert_eq!(text("sys_image_guid"), text("node_guid"));
        assert_eq!(text("fw_ver"), env!("CARGO_PKG_VERSION"));
        assert_eq!(text("ports/1/state"), "4: ACTIVE");
        assert_eq!(text("ports/1/phys_state"), "5: LinkUp");
        assert_eq!(text("ports/1/rate"), "100 Gb/sec (4X EDR)");
        assert_eq!(text("ports/1/link_layer"), "Ethernet");
        let mapped = "0000:0000:0000:0000:0000:ffff:0a09:0001";
        assert_eq!(text("ports/1/gids/0"), mapped);
        assert_eq!(text("ports/1/gids/15"), ["0000"; 8].join(":"));
        assert_eq!(text("ports/1/gid_attrs/types/0"), "RoCE v2");
        assert_eq!(text("ports/1/gid_attrs/ndevs/0"), "eth7");
        assert_eq!(text("ports/1/pkeys/0"), "0xffff");
        assert!(!files.contains_key("infiniband/softnic0/ports/1/gid_attrs/types/1"));
        assert_eq!(files["infiniband_verbs/uverbs0/ibdev"], "softnic0");
        assert_eq!(files["infiniband_verbs/uverbs0/dev"], "1:7");
    }
}
