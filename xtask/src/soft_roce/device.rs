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

    /// How many processors a guest gets unless told otherwise.
    ///
    /// The kernel's siw has a race: it answers a connection before it listens to its socket for the new queue pair,
    /// so a peer whose first message comes in between is not heard, and both wait for ever. With one processor the
    /// answer's sender gets to the end first; with two, one connection in ten or so hung.
    pub(crate) fn cpus(self) -> u32 {
        match self {
            Self::Rxe => 2,
            Self::Siw => 1,
        }
    }
}
