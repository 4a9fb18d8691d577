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
    /// The host of the channel's creator, for identifiers created by threads on no host.
    pub(super) port: Port,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Channel {
    type Raw = ffi::rdma_event_channel;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut ffi::rdma_event_channel {
    let Some(port) = fabric::current() else {
        return null(libc::ENODEV);
    };
    if let Err(errno) = port.attempt(Call::CreateEventChannel) {
        return null(errno);
    }
    let queue = match CmEvents::new() {
        Ok(queue) => Arc::new(queue),
        Err(error) => return null(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    };
    let channel = Channel {
        raw: UnsafeCell::new(ffi::rdma_event_channel { fd: queue.fd() }),
        queue,
        port,
    };
    channel.into_raw()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(raw: *mut ffi::rdma_event_channel) {
    // SAFETY: live until here; the caller gives the channel up.
    unsafe { Channel::free(raw) };
}
