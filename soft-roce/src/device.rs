//! The software RDMA devices of Linux.

use clap::ValueEnum;

/// A software RDMA device of the Linux kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// Soft-RoCE: RoCE v2 over UDP.
    #[default]
    Rxe,
    /// SoftiWARP: iWARP over TCP.
    Siw,
}

impl Device {
    /// Device type in `rdma link add`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }

    /// Name of the device in the guest.
    pub fn instance(self) -> &'static str {
        match self {
            Self::Rxe => "rxe0",
            Self::Siw => "siw0",
        }
    }

    /// Name of the kernel module.
    pub fn module(self) -> &'static str {
        match self {
            Self::Rxe => "rdma_rxe",
            Self::Siw => "siw",
        }
    }

    /// Default number of processors of a guest.
    ///
    /// The kernel's siw has a race: it sends the connection reply before installing the socket callbacks of the new
    /// queue pair. If the peer's first message arrives in between, the message is lost and both sides hang. With one
    /// processor the sender of the reply runs on and wins the race; with two, one connection in about ten hung.
    pub fn cpus(self) -> u32 {
        match self {
            Self::Rxe => 2,
            Self::Siw => 1,
        }
    }
}
