//! One registration: memory, and the device's right to it.

use std::ptr::NonNull;

use ibverbs_sys as ffi;

use crate::{
    access::RemoteAccess,
    error::{Error, Result},
    pd::ProtectionDomain,
};

/// Memory owned by this crate and registered with a device.
///
/// The bytes are initialised, and nothing here reads or writes them: whoever holds a `Region`
/// decides who may touch which part of it.
pub(super) struct Region {
    // INVARIANT: registered until `self` is dropped; covers exactly `memory`.
    mr: NonNull<ffi::ibv_mr>,
    // INVARIANT: came from `Box::into_raw`; freed in `drop`, after the device has lost its access,
    // or never.
    memory: NonNull<[u8]>,
    _pd: ProtectionDomain,
}

// SAFETY: a registration may be used and ended from any thread, and `memory` is owned, plain bytes.
unsafe impl Send for Region {}
// SAFETY: through a shared `Region` only addresses and keys can be read, which never change.
unsafe impl Sync for Region {}

/// What a registration is for, beside requests of this process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// Peers may do this.
    Remote(RemoteAccess),
    /// Windows may be bound to it.
    Windows,
}

impl Access {
    fn bits(self) -> u32 {
        match self {
            Self::Remote(access) => access.bits(),
            Self::Windows => ffi::ibv_access_flags::IBV_ACCESS_MW_BIND.0,
        }
    }
}

impl Region {
    /// Registers `memory`: for requests of this process, and for what peers may do.
    pub(super) fn register(
        pd: &ProtectionDomain,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<Self> {
        let length = memory.len();
        let memory = NonNull::from(Box::leak(memory));
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | access.bits();
        // SAFETY: the domain is allocated for as long as `pd` lives; `memory` is `length` bytes
        // that stay at their address until `drop` has deregistered them. C does not touch the
        // bytes; from here on only requests that carry a key of it make the device do so.
        let mr = unsafe { ffi::ibv_reg_mr(pd.as_raw(), memory.as_ptr().cast(), length, access) };
        let mr = NonNull::new(mr);
        match mr {
            Some(mr) => Ok(Self {
                mr,
                memory,
                _pd: pd.clone(),
            }),
            None => {
                let error = Error::last_os("ibv_reg_mr").detail(format!("{length} bytes"));
                // SAFETY: `memory` came from a box a few lines up, and its registration failed, so
                // this is its only owner.
                drop(unsafe { Box::from_raw(memory.as_ptr()) });
                Err(error)
            }
        }
    }

    /// The registration as C has it. It exists for as long as `self` lives.
    pub(super) fn mr(&self) -> *mut ffi::ibv_mr {
        self.mr.as_ptr()
    }

    /// The first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.memory.cast()
    }

    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// The key that requests of this process carry.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: `self.mr` is registered (invariant), and its keys are set for good at
        // registration.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// The key that requests of peers carry.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: `self.mr` is registered (invariant), and its keys are set for good at
        // registration.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is registered (invariant) and deregistered once, here; its domain is
        // allocated, since it is dropped after this.
        let errno = unsafe { ffi::ibv_dereg_mr(self.mr.as_ptr()) };
        if errno == 0 {
            // SAFETY: `memory` came from a box and is freed once, here. No `Buf` of it is left,
            // since each holds an `Arc` of `self`, and the device lost its access when the call
            // above succeeded.
            drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
        }
        // Otherwise the device may still have its access: the memory is given up, never freed.
    }
}
