//! The attributes of a device.

use std::ffi::{c_char, c_int};

use ibverbs_sys as ffi;

use super::state::Shared;
use crate::failure::Call;

/// Attributes of a device; see [`Device::describe`](super::Device::describe).
#[derive(Clone)]
pub struct Properties {
    pub(in crate::abi) name: String,
    /// Type of the node: channel adapter by default.
    pub node_type: ffi::ibv_node_type,
    /// Transport: InfiniBand by default.
    pub transport_type: ffi::ibv_transport_type,
    /// GUID of the device.
    pub guid: u64,
    /// Index of the kernel's device; -1 for none.
    pub index: c_int,
    /// Attributes of `ibv_query_device_ex`, and of `ibv_query_device`.
    pub attr: ffi::ibv_device_attr_ex,
    /// Whether the device has `ibv_query_device_ex`.
    pub extended: bool,
    /// Attributes of the only port.
    pub port: ffi::ibv_port_attr,
    /// Entries of the GID table.
    pub gids: Vec<ffi::ibv_gid_entry>,
    /// The P_Key table.
    pub pkeys: Vec<u16>,
    /// The device's clock in ticks; `None` without a clock.
    pub clock: Option<u64>,
    /// Operations, of `ibv_qp_create_send_ops_flags`, that the device accepts but lacks.
    pub promised: u64,
    pub(in crate::abi) directory: String,
}

impl Properties {
    pub(super) fn new(name: &str) -> Self {
        let mut attr = ffi::ibv_device_attr_ex::zeroed();
        let plain = &mut attr.orig_attr;
        plain.fw_ver[0] = b'7' as c_char;
        plain.max_qp = 1024;
        plain.max_qp_wr = c_int::MAX;
        plain.max_sge = 32;
        plain.max_cq = 1024;
        plain.max_cqe = c_int::MAX;
        plain.max_mr = 1024;
        plain.max_pd = 1024;
        plain.phys_port_cnt = 1;
        attr.phys_port_cnt_ex = 1;
        let mut port = ffi::ibv_port_attr::zeroed();
        port.state = ffi::ibv_port_state::IBV_PORT_ACTIVE;
        port.max_mtu = ffi::ibv_mtu::IBV_MTU_4096;
        port.active_mtu = ffi::ibv_mtu::IBV_MTU_1024;
        port.gid_tbl_len = 4;
        port.pkey_tbl_len = 2;
        port.link_layer = ffi::IBV_LINK_LAYER_ETHERNET;
        port.flags = ffi::IBV_QPF_GRH_REQUIRED;
        let mut gid = ffi::ibv_gid_entry::zeroed();
        gid.gid = ffi::ibv_gid::from_raw([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
        gid.gid_index = 1;
        gid.port_num = 1;
        gid.gid_type = 2;
        gid.ndev_ifindex = 3;
        Self {
            name: name.to_owned(),
            node_type: ffi::ibv_node_type::IBV_NODE_CA,
            transport_type: ffi::ibv_transport_type::IBV_TRANSPORT_IB,
            guid: 0x5054_00ff_fe12_3456,
            index: 7,
            attr,
            extended: true,
            port,
            gids: vec![gid],
            pkeys: vec![0xffff, 0x8001],
            clock: None,
            promised: 0,
            directory: String::new(),
        }
    }

    /// Sets the directory in sysfs; empty by default, for none.
    ///
    /// # Safety
    /// - From the removal of the directory on, the device completes no request, nor reads the bytes of one: a program may free
    ///   the memory of a removed device's requests.
    pub unsafe fn set_directory(&mut self, directory: &str) {
        directory.clone_into(&mut self.directory);
    }
}

impl Shared {
    /// Calls `read` with the attributes of the device.
    pub(in crate::abi) fn properties<R>(&self, read: impl FnOnce(&Properties) -> R) -> R {
        read(&self.lock().properties)
    }

    /// Records an import, and returns its failure, if requested.
    pub(in crate::abi) fn imported(&self, cmd_fd: c_int) -> Result<(), c_int> {
        let mut state = self.lock();
        state.called(Call::ImportDevice)?;
        // As in providers, which close the descriptor. Then another thread opens a file with the same number.
        state.attempt(Call::ImportContext).inspect_err(|_| {
            // SAFETY: the text is a string.
            let other = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
            // SAFETY: takes and returns integers.
            let reused = unsafe { libc::dup2(other, cmd_fd) };
            assert_eq!(reused, cmd_fd);
            // SAFETY: opened above.
            let _: c_int = unsafe { libc::close(other) };
        })
    }
}

impl std::fmt::Debug for Properties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Properties")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
