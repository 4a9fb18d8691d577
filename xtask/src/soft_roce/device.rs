//! The two software RDMA devices.

use clap::ValueEnum;

/// A software RDMA device of the Linux kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// Soft-RoCE: RoCE v2 over UDP.
    #[default]
    Rxe,
    /// SoftiWARP: iWARP over TCP.
    Siw,
}

impl Device {
    /// The type's name in `rdma link add`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }

    /// The name of the device in the guest.
    pub(crate) fn instance(self) -> &'static str {
        match self {
            Self::Rxe => "rxe0",
            Self::Siw => "siw0",
        }
    }

    /// The kernel module.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::Rxe => "rdma_rxe",
            Self::Siw => "siw",
        }
    }
}
