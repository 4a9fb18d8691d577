//! Errors of the connection manager.

use std::{error::Error, fmt, net::SocketAddr};

use super::id::IdNum;

/// Error of a call to the connection manager. A failed call has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmError {
    /// No identifier has this number.
    NotFound(IdNum),
    /// The identifier's state or kind does not allow the call, or an argument is out of range; the text names the
    /// reason.
    Invalid(&'static str),
    /// The address is bound to another identifier; bind to another port.
    AddressInUse(SocketAddr),
    /// No device of the host has the address, or all ports are taken.
    AddressNotAvailable(SocketAddr),
    /// No address of the fabric and no network of the host contains the address.
    Unreachable(SocketAddr),
    /// The connection is already established.
    IsConnected,
    /// The device does not support the operation.
    NotSupported(&'static str),
    /// The device has been removed.
    DeviceRemoved,
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(id) => write!(f, "there is no identifier {:#x}", id.0),
            Self::Invalid(what) | Self::NotSupported(what) => f.write_str(what),
            Self::AddressInUse(addr) => write!(f, "another identifier is bound to {addr}"),
            Self::AddressNotAvailable(addr) => write!(f, "no device of the host has {addr}"),
            Self::Unreachable(addr) => write!(f, "no network of the host contains {addr}"),
            Self::IsConnected => f.write_str("the connection is established already"),
            Self::DeviceRemoved => f.write_str("the device has been removed"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for CmError {}
