//! Limits of receives.

use std::{io, num::NonZero};

use crate::{
    context::ContextId,
    error::Error,
    pd::ProtectionDomain,
    quirk,
    work::{SgeList, Special},
};

/// The limits for a queue's receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvLimits {
    /// Not zero, so that a receive of one element needs no check.
    max_sge: NonZero<u32>,
    device: ContextId,
    /// Whether elements may have addresses with a meaning for the device only.
    foreign_addresses: bool,
    /// Whether elements may be no memory at all.
    no_memory: bool,
    /// Whether a receive has at least one element.
    needs_element: bool,
}

impl RecvLimits {
    /// The limits of a queue with one owner: a queue pair's or a work queue. All take at least one
    /// element.
    ///
    /// The device's library may copy short messages itself, to the elements' addresses in this
    /// process: mlx5's does so when it polls the completion, and hns', too. On shared receive
    /// queues mlx5's library also copies to addresses without memory.
    pub(crate) fn new(pd: &ProtectionDomain, max_sge: u32) -> Self {
        Self {
            max_sge: NonZero::new(max_sge).unwrap_or(NonZero::<u32>::MIN),
            device: pd.context().id(),
            foreign_addresses: !quirk::copies_messages(pd.context()),
            no_memory: true,
            needs_element: quirk::loses_receives_without_elements(pd.context()),
        }
    }

    /// The limits of a shared receive queue.
    pub(crate) fn shared(pd: &ProtectionDomain, max_sge: u32) -> Self {
        let limits = Self::new(pd, max_sge);
        Self {
            no_memory: limits.foreign_addresses,
            ..limits
        }
    }

    /// The limits for a queue on which only the device writes received data.
    pub(crate) fn foreign_addresses(self) -> Self {
        Self {
            foreign_addresses: true,
            ..self
        }
    }

    /// Maximum number of elements of a receive.
    #[inline]
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge.get()
    }

    /// Why a receive with these elements can never be posted, if so.
    #[inline]
    pub(crate) fn refusal(&self, call: &'static str, sges: &SgeList) -> Option<Error> {
        let max_sge = self.max_sge.get();
        if sges.len() > max_sge as usize {
            return Some(too_many(call, sges.len(), max_sge));
        }
        if sges.len() == 0 && self.needs_element {
            return Some(no_element(call));
        }
        let too_long = sges.too_long(call);
        if too_long.is_some() {
            return too_long;
        }
        self.misplaced(call, sges.special()?)
    }

    #[cold]
    fn misplaced(&self, call: &'static str, special: Special) -> Option<Error> {
        let reason = if special.device != Some(self.device) {
            "the memory is of another device"
        } else if special.foreign_addresses && !self.foreign_addresses {
            "the region was registered under other addresses than its own: the device's library may \
             copy messages to those addresses"
        } else if special.no_memory && !self.no_memory {
            "there is no memory at the address, and the device's library may copy messages of a shared \
             receive queue there"
        } else {
            return None;
        };
        Some(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }
}

#[cold]
#[inline(never)]
fn no_element(call: &'static str) -> Error {
    let reason = "the device's library accepts a receive without bytes, and never completes it; post at least one byte";
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
fn too_many(call: &'static str, found: usize, limit: u32) -> Error {
    let reason =
        format!("{found} elements, and the queue was made for {limit}; make the queue for more");
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}
