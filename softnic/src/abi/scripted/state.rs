//! The state of a scripted device.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::{BTreeMap, VecDeque},
    fmt,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys as ffi;

use super::{
    comp_cntr::CompCntr, cq::ScriptedCq, device::Properties, dm::Dm, domain::Allocator, flow::Flow,
    mr::ScriptedMr, qp::ScriptedQp, srq::ScriptedSrq, turns::Turns, wq::Wq,
};
use crate::{
    abi::{
        event::{About, about},
        object::Plain,
    },
    failure::{Call, Failures},
};

/// A device, shared by its [`Device`](super::Device), its list entry and its contexts.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// A counter, whose value is the number of events not yet taken.
    pub(super) async_fd: OwnedFd,
    /// Turns of the test's closures.
    pub(super) turns: Turns,
    /// Whether the device is in the list of its host.
    is_plugged: AtomicBool,
}

pub(super) struct State {
    pub(super) properties: Properties,
    pub(super) calls: Vec<Call>,
    pub(super) failures: Failures,
    /// The device itself.
    pub(super) device: Weak<Shared>,
    objects: BTreeMap<usize, ScriptedObject>,
    pub(super) cqs: BTreeMap<usize, ScriptedCq>,
    pub(super) qps: BTreeMap<usize, ScriptedQp>,
    pub(super) srqs: BTreeMap<usize, ScriptedSrq>,
    pub(super) mrs: BTreeMap<usize, ScriptedMr>,
    /// The keys of deregistered regions and of windows: the last one is issued next.
    pub(super) released_keys: Vec<u32>,
    pub(super) released_windows: Vec<u32>,
    /// The advice calls: the advice, the flags, and the number of bytes.
    pub(super) advised: Vec<(u32, u32, u32)>,
    pub(super) wqs: BTreeMap<usize, Wq>,
    pub(super) flows: BTreeMap<usize, Flow>,
    pub(super) counters: BTreeMap<usize, Vec<(u32, u32)>>,
    pub(super) dms: BTreeMap<usize, Dm>,
    pub(super) comp_cntrs: BTreeMap<usize, CompCntr>,
    pub(super) allocators: BTreeMap<usize, Allocator>,
    /// The completion queues with pending events, by channel.
    pub(super) channels: BTreeMap<usize, VecDeque<Ptr<ffi::ibv_cq>>>,
    pub(super) events: VecDeque<(ffi::ibv_event_type, usize)>,
    /// Number of requests taken by send queues, the last one's number.
    posted: u64,
    /// The transport in the list of devices, constant from the first listing on.
    listed_transport: Option<ffi::ibv_transport_type>,
    async_fd: RawFd,
    /// Events taken and not acknowledged, by their object or port.
    pub(super) unacknowledged: BTreeMap<usize, u32>,
    pub(super) complaints: Vec<String>,
    /// How often requests were posted, however many at once.
    pub(super) doorbells: u32,
    /// How often extended polls were asked for the next completion.
    pub(super) next_polls: u32,
    /// The files for sharing XRC domains, by their devices and inodes.
    pub(super) xrcd_files: BTreeMap<usize, (u64, u64)>,
    /// Memory of destroyed objects, kept to detect their misuse.
    graveyard: Vec<(Ptr<u8>, Layout)>,
    serial: u32,
}

/// An existing object.
struct ScriptedObject {
    kind: &'static str,
    parents: Vec<usize>,
}

/// A pointer for the state: valid to dereference with the state locked.
pub(super) struct Ptr<T>(pub(super) *mut T);

// SAFETY: only a number until dereferenced, an `unsafe` operation.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: see `Send`.
unsafe impl<T> Sync for Ptr<T> {}

impl Shared {
    /// Creates a device with this name, and a seed for its failures.
    pub(crate) fn new(name: &str, seed: u64) -> Arc<Self> {
        Arc::new_cyclic(|device| Self::build(name, seed, device))
    }

    fn build(name: &str, seed: u64, device: &Weak<Self>) -> Self {
        let async_fd = counter();
        let state = State {
            device: Weak::clone(device),
            properties: Properties::new(name),
            calls: Vec::new(),
            failures: Failures::new(seed),
            objects: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            mrs: BTreeMap::new(),
            released_keys: Vec::new(),
            released_windows: Vec::new(),
            advised: Vec::new(),
            wqs: BTreeMap::new(),
            flows: BTreeMap::new(),
            counters: BTreeMap::new(),
            dms: BTreeMap::new(),
            comp_cntrs: BTreeMap::new(),
            allocators: BTreeMap::new(),
            channels: BTreeMap::new(),
            events: VecDeque::new(),
            posted: 0,
            listed_transport: None,
            async_fd: async_fd.as_raw_fd(),
            unacknowledged: BTreeMap::new(),
            complaints: Vec::new(),
            doorbells: 0,
            next_polls: 0,
            xrcd_files: BTreeMap::new(),
            graveyard: Vec::new(),
            serial: 0x10,
        };
        Self {
            state: Mutex::new(state),
            async_fd,
            turns: Turns::default(),
            is_plugged: AtomicBool::new(true),
        }
    }

    /// Whether the device is in the list of its host.
    pub(crate) fn is_plugged(&self) -> bool {
        self.is_plugged.load(Ordering::Relaxed)
    }

    /// Removes the device from the list of its host.
    pub(super) fn unplug(&self) {
        self.is_plugged.store(false, Ordering::Relaxed);
    }

    /// Calls `read` with the attributes for a new entry in the list of devices.
    pub(in crate::abi) fn listed<R>(&self, read: impl FnOnce(&Properties) -> R) -> R {
        let mut state = self.lock();
        state.listed_transport = Some(state.properties.transport_type);
        read(&state.properties)
    }

    /// Records a call, and returns its failure, if requested.
    pub(in crate::abi) fn called(&self, call: Call) -> Result<(), i32> {
        self.lock().called(call)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A number with no other object.
    pub(super) fn next(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    /// A number for a request, of no other request of the device.
    pub(super) fn next_posted(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// Whether requests of a queue complete in their order, as everywhere but over iWARP.
    pub(super) fn is_ordered(&self) -> bool {
        let listed = self.listed_transport;
        let transport = listed.unwrap_or(self.properties.transport_type);
        transport != ffi::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    /// Records a call, and returns its failure, if requested.
    pub(super) fn called(&mut self, call: Call) -> Result<(), i32> {
        self.calls.push(call);
        self.attempt(call)
    }

    /// The error a call shall fail with, if any.
    pub(super) fn attempt(&mut self, call: Call) -> Result<(), i32> {
        self.failures.attempt(call)
    }

    /// Allocates a C object, filled by `init` with a number of its own, and records the object.
    pub(super) fn make<T: Plain>(
        &mut self,
        call: &'static str,
        parents: &[usize],
        init: impl FnOnce(&mut T, u32),
    ) -> *mut T {
        let layout = Layout::new::<T>();
        // SAFETY: no C object has size zero.
        let raw: *mut T = unsafe { alloc_zeroed(layout) }.cast();
        assert!(!raw.is_null());
        let number = self.next();
        // SAFETY: fresh, aligned, and zero is a value of the type (`Plain`).
        init(unsafe { &mut *raw }, number);
        for parent in parents {
            self.used(call, *parent);
        }
        let parents = parents.iter().copied().filter(|&p| p != 0).collect();
        self.objects.insert(
            raw.addr(),
            ScriptedObject {
                kind: T::name(),
                parents,
            },
        );
        raw
    }

    /// Makes a window depend on its new binding, and no longer on earlier ones.
    pub(super) fn bind(&mut self, mw: usize, to: &[usize]) {
        if let Some(object) = self.objects.get_mut(&mw) {
            // The first is the domain.
            object.parents.truncate(1);
            object.parents.extend(to);
        }
    }

    /// Complains unless the object exists. Zero stands for none.
    pub(super) fn used(&mut self, call: &'static str, object: usize) {
        if object != 0 && !self.objects.contains_key(&object) {
            self.complain(format!("`{call}` was given an object that does not exist"));
        }
    }

    /// Gives an object other parents.
    pub(super) fn adopt(&mut self, object: usize, parent: usize) {
        self.objects.get_mut(&object).unwrap().parents = vec![parent];
    }

    /// Panics unless an object exists that an event of this type can name.
    pub(super) fn check_subject(&self, event: ffi::ibv_event_type, element: usize) {
        let (exists, kind) = match about(event) {
            Some(About::Cq) => (self.cqs.contains_key(&element), "completion queue"),
            Some(About::Qp) => (self.qps.contains_key(&element), "queue pair"),
            Some(About::Srq) => (self.srqs.contains_key(&element), "shared receive queue"),
            Some(About::Wq) => (self.wqs.contains_key(&element), "work queue"),
            None => return,
        };
        assert!(exists, "there is no {kind} at {element:#x}");
    }

    /// Lets an asynchronous event happen.
    pub(super) fn raise(&mut self, event: ffi::ibv_event_type, element: usize) {
        self.events.push_back((event, element));
        count_up(self.async_fd);
    }

    /// Removes an object from the records, unless the object is in use.
    pub(super) fn unmake<T>(&mut self, call: &'static str, raw: *mut T) -> i32 {
        self.used(call, raw.addr());
        let in_use = |object: &ScriptedObject| object.parents.contains(&raw.addr());
        if self.objects.values().any(in_use) {
            return libc::EBUSY;
        }
        if self
            .unacknowledged
            .remove(&raw.addr())
            .is_some_and(|n| n > 0)
        {
            self.complain(format!(
                "`{call}` would wait for an event to be acknowledged"
            ));
        }
        if self.objects.remove(&raw.addr()).is_some() {
            let layout = Layout::new::<T>();
            self.graveyard.push((Ptr(raw.cast()), layout));
        }
        0
    }

    pub(super) fn live(&self) -> Vec<&'static str> {
        let mut kinds: Vec<_> = self.objects.values().map(|object| object.kind).collect();
        kinds.sort_unstable();
        kinds
    }

    pub(super) fn complain(&mut self, complaint: String) {
        self.complaints.push(complaint);
    }

    pub(super) fn complaints(&mut self) -> Vec<String> {
        let mut complaints = std::mem::take(&mut self.complaints);
        for call in self.failures.unused() {
            complaints.push(format!("`{call}` was to fail, and did not"));
        }
        complaints
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.lock().properties.name.clone();
        f.debug_struct("Shared")
            .field("name", &name)
            .finish_non_exhaustive()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (Ptr(raw), layout) in self.graveyard.drain(..) {
            // SAFETY: allocated with this layout by `make`, and freed once, here. The state is
            // dropped with the last context and the fake, so no user of the object is left.
            unsafe { dealloc(raw, layout) };
        }
    }
}

/// The device of an object that begins with a pointer to its context, as most do.
///
/// # Safety
/// - `object` is one of a scripted device, and begins with its context, which is open while the result is used.
pub(super) unsafe fn device_of<'a, T>(object: *mut T) -> &'a Shared {
    // SAFETY: the caller's promise; the memory of destroyed objects is kept.
    let ctx = unsafe { *object.cast::<*mut ffi::ibv_context>() };
    // SAFETY: the context given at the object's creation.
    unsafe { device_of_context(ctx) }
}

/// The device of a context.
///
/// # Safety
/// - `ctx` is a context of a scripted device, open while the result is used.
pub(super) unsafe fn device_of_context<'a>(ctx: *mut ffi::ibv_context) -> &'a Shared {
    // SAFETY: the contexts of scripted devices are extended ones.
    let verbs = unsafe { ffi::verbs_get_ctx(ctx) };
    // SAFETY: an open context; the field does not change.
    let shared: *const Shared = unsafe { (*verbs).priv_ }.cast_const().cast();
    // SAFETY: from `Arc::into_raw`; the context is an owner.
    let shared = unsafe { &*shared };
    // The memory of a closed context is kept, against reuse.
    shared.lock().used("a call", verbs.addr());
    shared
}

/// The locked state of an object's device.
///
/// # Safety
/// - As for [`device_of`].
pub(super) unsafe fn state_of<'a, T>(object: *mut T) -> MutexGuard<'a, State> {
    // SAFETY: the caller's promise.
    unsafe { device_of(object) }.lock()
}

/// The locked state of a context's device.
///
/// # Safety
/// - As for [`device_of_context`].
pub(super) unsafe fn state_of_context<'a>(ctx: *mut ffi::ibv_context) -> MutexGuard<'a, State> {
    // SAFETY: the caller's promise.
    unsafe { device_of_context(ctx) }.lock()
}

/// A descriptor that is readable while it counts more than zero.
#[cfg(not(miri))]
pub(in crate::abi) fn counter() -> OwnedFd {
    // SAFETY: takes and returns numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: fresh, with no other owner.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// The other ends of counters. Miri has no descriptor that counts down by one, so a counter is a socket with 8 bytes for
/// each.
#[cfg(miri)]
static OTHER_ENDS: Mutex<BTreeMap<RawFd, std::os::unix::net::UnixStream>> =
    Mutex::new(BTreeMap::new());

#[cfg(miri)]
pub(in crate::abi) fn counter() -> OwnedFd {
    let (counter, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let counter = OwnedFd::from(counter);
    // That of a counter which was closed, and had the number, goes here.
    OTHER_ENDS
        .lock()
        .unwrap()
        .insert(counter.as_raw_fd(), other);
    counter
}

pub(super) fn count_up(fd: i32) {
    #[cfg(miri)]
    let fd = OTHER_ENDS.lock().unwrap()[&fd].as_raw_fd();
    let value = 1_u64;
    // SAFETY: the descriptor is one of `counter`'s, and the place has 8 bytes.
    let written = unsafe { libc::write(fd, (&raw const value).cast(), size_of::<u64>()) };
    assert_eq!(written, 8);
}

/// Takes one from a counter; -1 with `errno` if the read would block, or fails.
pub(super) fn count_down(fd: i32) -> i32 {
    let mut value = 0_u64;
    // SAFETY: the descriptor is one of `counter`'s, and the place has 8 bytes.
    let read = unsafe { libc::read(fd, (&raw mut value).cast(), size_of::<u64>()) };
    if read < 0 { -1 } else { 0 }
}
