//! Hints: the likely cause of an error, and its remedy.
//!
//! An [`Error`](crate::Error) shows the hint for its call and its error number at its end. Calls with
//! more information, such as the addresses or the exceeded limit, [add](crate::Error::hint) a hint of their own.
//! Hints are computed when an error is formatted, or after a failed call, so successful calls have no cost.
//!
//! An error from a posted request has its hint by [`WcStatus`](crate::WcStatus).

// All texts are in this module; a table in the tests has each of them.

mod address;
mod completion;
pub(crate) mod limits;
mod machine;

use std::fmt;

pub use address::Addresses;
pub(crate) use completion::of_status;
pub(crate) use machine::Machine;

/// A hint that depends on the call and its error number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Memory could not be locked.
    LockedMemory,
    /// There is no RDMA device, or the kernel's part for programs is missing.
    Device,
    /// The kernel has no connection manager, or no device for it.
    ConnectionManager,
    /// A device file may not be opened.
    DeviceFile,
    /// The connection manager's file may not be opened.
    ConnectionManagerFile,
    /// Another identifier has the port.
    PortInUse,
    /// A port below 1024.
    PrivilegedPort,
    /// The process has too many open files.
    OpenFiles,
    /// A library could not be loaded (feature `dlopen`).
    Library,
    /// The process has other credentials than when it opened the device.
    Credentials,
}

impl Hint {
    /// The hint for a call that has failed with an error number, if there is one.
    pub(crate) fn of(call: &str, errno: i32) -> Option<Self> {
        match (call, errno) {
            (_, libc::EMFILE) => Some(Self::OpenFiles),
            (_, libc::ELIBACC) => Some(Self::Library),
            ("rdma_create_event_channel" | "rdma_get_devices" | "rdma_create_id", errno)
                if is_missing(errno) =>
            {
                Some(Self::ConnectionManager)
            }
            ("rdma_create_event_channel", libc::EACCES | libc::EPERM) => {
                Some(Self::ConnectionManagerFile)
            }
            ("ibv_open_device", errno) if is_missing(errno) => Some(Self::Device),
            ("ibv_open_device", libc::EACCES | libc::EPERM) => Some(Self::DeviceFile),
            ("ibv_post_send" | "ibv_req_notify_cq", libc::EACCES) => Some(Self::Credentials),
            ("rdma_bind_addr" | "rdma_listen", libc::EADDRINUSE) => Some(Self::PortInUse),
            ("rdma_bind_addr", libc::EACCES) => Some(Self::PrivilegedPort),
            (call, libc::ENOMEM) if locks_memory(call) => Some(Self::LockedMemory),
            _ => None,
        }
    }

    fn write(self, machine: &Machine, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LockedMemory => write_locked_memory(machine, f),
            Self::Device => f.write_str(no_device(machine)),
            Self::ConnectionManager if machine.devices.is_empty() || machine.advice.is_some() => {
                f.write_str(no_device(machine))
            }
            Self::ConnectionManager => f.write_str(
                "the kernel's connection manager is missing; load it with `modprobe rdma_ucm`",
            ),
            Self::DeviceFile => f.write_str(
                "this user may not open /dev/infiniband/uverbs*; join the group that has these files, often \
                 `rdma`, or change their udev rule",
            ),
            Self::ConnectionManagerFile => f.write_str(
                "this user may not open /dev/infiniband/rdma_cm; join the group that has this file, often \
                 `rdma`, or change its udev rule",
            ),
            Self::PortInUse => f.write_str(
                "another socket of this host has the port; `rdma resource show cm_id` lists those of RDMA",
            ),
            Self::PrivilegedPort => {
                f.write_str("ports below 1024 need the capability CAP_NET_BIND_SERVICE")
            }
            Self::OpenFiles => f.write_str(
                "this process has as many open files as it may (RLIMIT_NOFILE); raise the limit with `ulimit -n`",
            ),
            Self::Credentials => f.write_str(
                "the kernel refuses calls on a device that the process opened with another user, group or capabilities; \
                 open the device after the change, or in a process of its own",
            ),
            Self::Library => f.write_str(
                "libibverbs or librdmacm is missing or older than rdma-core 39; install them, as `libibverbs1` and \
                 `librdmacm1` on Debian and Ubuntu",
            ),
        }
    }
}

/// Formats the hint for the present state of the machine.
impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(&Machine::now(), f)
    }
}

fn is_missing(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENODEV | libc::ENOENT | libc::ENOSYS | libc::ENXIO
    )
}

/// Whether a call makes the kernel lock memory of this process: that which is registered, or the queues that many
/// providers have in it.
fn locks_memory(call: &str) -> bool {
    matches!(
        call,
        "ibv_open_device"
            | "ibv_reg_mr"
            | "ibv_reg_mr_ex"
            | "ibv_reg_buf_mr"
            | "ibv_rereg_mr"
            | "ibv_create_cq"
            | "ibv_create_cq_ex"
            | "ibv_create_qp"
            | "ibv_create_qp_ex"
            | "ibv_create_srq"
            | "ibv_create_srq_ex"
            | "ibv_create_wq"
            | "ibv_resize_cq"
    )
}

fn write_locked_memory(machine: &Machine, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match machine.memlock {
        Some(bytes) => write!(
            f,
            "this process may lock {} KiB of memory (RLIMIT_MEMLOCK); raise the limit with `ulimit -l`, for all \
             logins by `* - memlock unlimited` in /etc/security/limits.conf, for a service by \
             `LimitMEMLOCK=infinity`",
            bytes / 1024
        ),
        None => f.write_str(
            "this process may lock any amount of memory (RLIMIT_MEMLOCK is unlimited), so the machine's memory, or \
             the device's, is used up",
        ),
    }
}

/// The hint for a machine without a device.
pub(crate) fn no_device(machine: &Machine) -> &'static str {
    if let Some(advice) = machine.advice {
        return advice;
    }
    match (machine.devices.is_empty(), machine.uverbs) {
        (true, _) => {
            "there is no RDMA device: load the driver of the card, or make a device in software with \
             `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev eth0`"
        }
        (false, false) => {
            "the kernel's interface for programs is missing; load it with `modprobe ib_uverbs`"
        }
        (false, true) => {
            "the device may just have been removed; `rdma link` lists those that are there"
        }
    }
}

/// Names the devices that there are, where a name is of none of them.
pub(crate) fn unknown_device(names: &[&str], machine: &Machine) -> String {
    match names {
        [] => no_device(machine).to_owned(),
        names => format!("the devices of this machine are: {}", names.join(", ")),
    }
}

/// Why a mapping of huge pages has failed.
pub(crate) fn huge_pages(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::ENOMEM) => {
            "too few huge pages of this size are free; raise nr_hugepages in /sys/kernel/mm/hugepages"
        }
        Some(libc::EINVAL) => {
            "the kernel has no huge pages of this size; /sys/kernel/mm/hugepages lists its sizes"
        }
        _ => "see /sys/kernel/mm/hugepages",
    }
}

/// The hint for a process without the capability for raw packets.
pub(crate) const RAW_PACKETS: &str = "raw packets need the capability CAP_NET_RAW";

#[cfg(test)]
mod tests;
