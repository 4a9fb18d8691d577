//! Event channels.

use std::{cell::UnsafeCell, sync::Arc};

use rdmacm_sys as ffi;

use super::queue::CmEvents;
use crate::{
    abi::{null, object::Object},
    fabric::{self, Port},
    failure::Call,
};

/// An event channel.
#[repr(C)]
pub(super) struct Channel {
    raw: UnsafeCell<ffi::rdma_event_channel>,
    pub(super) queue: Arc<CmEvents>,
    /// The host of the channel's creator, for identifiers created by threads on no host. `None` if the creator was on no
    /// host: such a channel is for identifiers that migrate.
    pub(super) port: Option<Port>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Channel {
    type Raw = ffi::rdma_event_channel;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut ffi::rdma_event_channel {
    let port = fabric::current();
    let attempt = |port: &Port| port.attempt(Call::CreateEventChannel);
    if let Some(Err(errno)) = port.as_ref().map(attempt) {
        return null(errno);
    }
    create(port.as_ref()).unwrap_or_else(null)
}

/// Creates a channel. Fails with an errno.
pub(super) fn create(port: Option<&Port>) -> Result<*mut ffi::rdma_event_channel, i32> {
    let queue = Arc::new(CmEvents::new(port)?);
    let channel = Channel {
        raw: UnsafeCell::new(ffi::rdma_event_channel { fd: queue.fd() }),
        queue,
        port: port.cloned(),
    };
    Ok(channel.into_raw())
}

/// Pending events of a channel.
///
/// # Safety
/// - `raw` is a live channel.
pub(super) unsafe fn queue(raw: *mut ffi::rdma_event_channel) -> Arc<CmEvents> {
    // SAFETY: the caller's promise.
    Arc::clone(&unsafe { Channel::borrow(raw) }.queue)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_event_channel(raw: *mut ffi::rdma_event_channel) {
    // SAFETY: live until here; the caller gives the channel up.
    unsafe { Channel::free(raw) };
}
