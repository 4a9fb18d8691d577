//! Ports of an address with several connection managers.

use std::fmt;

/// Decides which of several connection managers at one address has a service id, the number of a port.
pub trait Claims: fmt::Debug + Send + Sync {
    /// Takes a service id, and returns false if another manager has it. Managers that all share a service id can have it
    /// together. A second claim by the same manager replaces the first one.
    fn claim(&self, service: u64, is_shared: bool) -> bool;

    /// Gives a service id up.
    fn release(&self, service: u64);
}
