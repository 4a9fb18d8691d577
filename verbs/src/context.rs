//! An open device.

use std::{
    any::Any,
    ffi::CStr,
    fmt, io,
    num::NonZero,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use ibverbs_sys as ffi;

use crate::{
    error::{Error, Result},
    fd::set_made_by_c,
    fork::fork_generation,
    removal::Presence,
};

/// `ibv_context`—An open RDMA device, the origin of every other object.
///
/// Cloning is cheap: the handle is reference-counted, like an `Arc`. The device is closed after the
/// drop of the last handle and of the last object made from the context. Two handles are equal if
/// both belong to one open device.
///
/// # Examples
/// ```
/// # let _fabric = doctest::host();
/// let ctx = verbs::devices()?.first()?.open()?;
/// let port = ctx.query_port(1)?;
/// println!("{}: {:?}, MTU {:?}", ctx.name(), port.state(), port.active_mtu());
/// let pd = ctx.alloc_pd()?; // for memory and queue pairs
/// let cq = ctx.create_cq(64)?; // for completions
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_close_device")]
#[doc(alias = "ibv_context")]
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    // INVARIANT: open until `self` is dropped.
    raw: NonNull<ffi::ibv_context>,
    owner: Owner,
    /// The vendor ID, once queried; see `vendor_id`.
    vendor_id: OnceLock<u32>,
    presence: Presence,
    /// The process that opened the device, by its fork generation.
    process: u64,
}

/// Records the descriptors of an open device, or forgets them before its end.
///
/// # Safety
/// - `raw` is open.
unsafe fn set_internal(raw: NonNull<ffi::ibv_context>, is_made: bool) {
    // SAFETY: open, as the caller promises, and its descriptors are constant after opening.
    let cmd_fd = unsafe { (*raw.as_ptr()).cmd_fd };
    // SAFETY: as above.
    let async_fd = unsafe { (*raw.as_ptr()).async_fd };
    set_made_by_c(cmd_fd, is_made);
    set_made_by_c(async_fd, is_made);
}

/// Identity of an object's open device, for comparison only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextId(NonZero<usize>);

/// The party responsible for closing the device.
enum Owner {
    /// This handle does.
    Us,
    /// Another library, after the drop of this value.
    Other(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

// SAFETY: the pointer itself is never changed. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for ContextInner {}
// SAFETY: see `Send`.
unsafe impl Sync for ContextInner {}

impl Context {
    /// Takes over a context opened with `ibv_open_device`.
    ///
    /// # Safety
    /// - `raw` is open, and no other code closes the context.
    /// - [`check_environment`](crate::device::check_environment) returned success before the device was opened.
    pub unsafe fn from_open(raw: NonNull<ffi::ibv_context>) -> Self {
        // SAFETY: open, as the caller promises.
        unsafe { set_internal(raw, true) };
        Self {
            inner: Arc::new(ContextInner {
                raw,
                owner: Owner::Us,
                vendor_id: OnceLock::new(),
                // SAFETY: open, as the caller promises.
                presence: unsafe { Presence::of(raw) },
                process: fork_generation(),
            }),
        }
    }

    /// Uses a context opened by another library, such as one of librdmacm's.
    ///
    /// # Safety
    /// - `raw` is open, and stays open for as long as `keep_alive` has not been dropped.
    /// - [`check_environment`](crate::device::check_environment) returned success before the device was opened.
    pub unsafe fn from_borrowed(
        raw: NonNull<ffi::ibv_context>,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Self {
        // SAFETY: open, as the caller promises.
        unsafe { set_internal(raw, true) };
        Self {
            inner: Arc::new(ContextInner {
                raw,
                owner: Owner::Other(keep_alive),
                vendor_id: OnceLock::new(),
                // SAFETY: open, as the caller promises.
                presence: unsafe { Presence::of(raw) },
                process: fork_generation(),
            }),
        }
    }

    /// The name of the open device in this process.
    #[inline]
    pub(crate) fn id(&self) -> ContextId {
        ContextId(self.inner.raw.addr())
    }

    /// The C object, for calls that this crate does not wrap. Open as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_context {
        self.inner.raw.as_ptr()
    }

    /// Whether the context was opened before a fork, by a parent of this process. The kernel's
    /// objects are the parent's then.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inner.process != fork_generation()
    }

    /// Makes the call that destroys an object of this context, and returns the call's result.
    /// Each such call is made here. Assumption: a destroying call that succeeds has ended the device's access to the
    /// memory of the object.
    ///
    /// With an inherited object, does nothing, and returns `EPERM`, as if the device had refused:
    /// the parent's object stays, and this process leaks its copy, with the memory of the device's
    /// requests.
    pub(crate) fn destroy(&self, call: impl FnOnce() -> i32) -> i32 {
        if self.is_inherited() {
            return libc::EPERM;
        }
        call()
    }

    /// Refuses `call` on an inherited object.
    pub(crate) fn check_process(&self, call: &'static str) -> Result<()> {
        if !self.is_inherited() {
            return Ok(());
        }
        let reason = "the object was inherited by a fork and belongs to the parent process; a \
                      forked child must open its own context";
        Err(Error::refused(call, io::ErrorKind::Unsupported, reason))
    }

    /// Whether the kernel has removed the device, so that the failure of a destroying call with
    /// this error can be ignored: the kernel has destroyed the object itself. May block for up to 5
    /// s, once.
    pub(crate) fn is_removed(&self, errno: i32) -> bool {
        errno == libc::EIO && self.inner.presence.has_ended()
    }

    /// The vendor ID of the device. Queries the device once, and caches the answer.
    pub(crate) fn vendor_id(&self) -> Result<u32> {
        if let Some(&cached) = self.inner.vendor_id.get() {
            return Ok(cached);
        }
        let vendor_id = self.query_device()?.vendor_id();
        Ok(*self.inner.vendor_id.get_or_init(|| vendor_id))
    }

    /// The name of the device, for example `rxe0`.
    pub fn name(&self) -> &str {
        // SAFETY: the context is open (invariant of `ContextInner`), and `device` is constant after
        // opening.
        let device = unsafe { (*self.as_raw()).device };
        // SAFETY: libibverbs keeps the device while a context of the device is open.
        let name = unsafe { ffi::ibv_get_device_name(device) };
        // SAFETY: the name is an array inside the device, always terminated, and never changes.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or("")
    }

    /// The number of completion vectors: interrupts over which completion queues can be spread.
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open (invariant of `ContextInner`), and the number is constant after
        // opening.
        let vectors = unsafe { (*self.as_raw()).num_comp_vectors };
        vectors.try_into().unwrap_or(0)
    }

    /// Whether the device speaks iWARP, rather than InfiniBand or RoCE.
    pub fn is_iwarp(&self) -> bool {
        self.transport_type() == ffi::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    /// Refuses an object of another open device, with the context `other`, on behalf of `call`. `what` is the object.
    /// Refuses inherited objects as well: see [`check_process`](Self::check_process).
    pub(crate) fn check_same(&self, call: &'static str, what: &str, other: &Self) -> Result<()> {
        self.check_process(call)?;
        if self == other {
            return Ok(());
        }
        let name = other.name();
        let reason = if name == self.name() {
            format!(
                "{what} is of {name} opened a second time; open a device once, and clone its `Context`"
            )
        } else {
            format!("{what} is of another device, {name}")
        };
        Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }

    pub(crate) fn transport_type(&self) -> ffi::ibv_transport_type {
        // SAFETY: the context is open (invariant of `ContextInner`), and `device` is constant after
        // opening.
        let device = unsafe { (*self.as_raw()).device };
        // SAFETY: libibverbs keeps the device while a context of the device is open, and never
        // changes the transport.
        unsafe { (*device).transport_type }
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }
}

impl Eq for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name())
            .finish()
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if let Owner::Us = self.owner
            && self.process == fork_generation()
        {
            // SAFETY: the context is open.
            unsafe { set_internal(self.raw, false) };
            // SAFETY: the context is open, ours to close, and closed once. Every object made from
            // the context holds an `Arc` of `self`, so none is left, except objects leaked after a
            // failed destruction: nothing uses those again, and the kernel ends their device access
            // when the context's file is closed.
            //
            // The result is of no use: the context is closed either way.
            let _: i32 = unsafe { ffi::ibv_close_device(self.raw.as_ptr()) };
        }
    }
}
