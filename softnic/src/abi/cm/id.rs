//! Identifiers: `rdma_cm_id` structs, and their event channels.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use ibverbs_sys as verbs;
use rdmacm_sys::{
    self as ffi, rdma_addr__bindgen_ty_1 as Source, rdma_addr__bindgen_ty_2 as Destination,
    rdma_addr__bindgen_ty_3 as Gids,
};

use super::{
    address::{self, Address},
    channel::{self, Channel},
    devices, endpoint, failed,
    queue::{CmEvents, CmSubject},
};
use crate::{
    abi::{
        acks::{self, Acks},
        object::{Object, Plain, zeroed},
        query::{gid, mtu_code},
    },
    cm::{Ece, GroupId, IdNum, Manager, PortSpace},
    fabric::{self, Port},
    failure::Call,
};

/// A membership in a multicast group.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) group: Address,
    pub(super) id: GroupId,
    /// Context of `rdma_join_multicast`.
    pub(super) context: *mut c_void,
}

/// Mutable state of an identifier.
#[derive(Debug)]
pub(super) struct IdExtra {
    pub(super) queue: Arc<CmEvents>,
    pub(super) groups: Vec<Membership>,
    pub(super) remote_ece: Ece,
    /// The path behind the pointer in the C struct.
    path: Option<Box<UnsafeCell<verbs::ibv_sa_path_rec>>>,
    /// Whether the peer was named by a GID.
    pub(super) is_ib: bool,
    /// Whether the channel is the identifier's own: calls wait for their events.
    pub(super) has_channel: bool,
    /// Attributes of the queue pairs of a listener's requests.
    pub(super) qp_init: Option<verbs::ibv_qp_init_attr>,
    /// Whether the identifier has a use of the [device's domain](devices::pd).
    pub(super) has_pd: bool,
}

/// The host with an identifier, and the identifier's number there.
#[derive(Clone, Debug)]
struct Home {
    port: Port,
    num: IdNum,
}

/// An identifier.
#[repr(C)]
pub(super) struct Id {
    raw: UnsafeCell<ffi::rdma_cm_id>,
    home: RwLock<Home>,
    /// Whether the creating thread was on no host: then the host with the identifier's own address has the identifier.
    is_floating: bool,
    space: PortSpace,
    /// Unacknowledged events.
    acks: Arc<Acks>,
    extra: Mutex<IdExtra>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Id {
    type Raw = ffi::rdma_cm_id;
}

// SAFETY: integers, raw pointers, and structs and unions of them.
unsafe impl Plain for ffi::rdma_cm_id {}

/// Rate of paths, 25 Gb/s; invented.
const RATE: u8 = 15;

/// Code of the maximum packet lifetime, 4.096 µs · 2^15.
const PACKET_LIFE_TIME: u8 = 15;

/// Selector: exactly the value.
const EXACTLY: u8 = 2;

impl Id {
    /// Allocates the C struct of an identifier, and registers the queue of its events.
    pub(super) fn create(
        port: &Port,
        num: IdNum,
        queue: &Arc<CmEvents>,
        (channel, context): (*mut ffi::rdma_event_channel, *mut c_void),
        is_floating: bool,
    ) -> *mut ffi::rdma_cm_id {
        let space = port.look(|nic| nic.manager.port_space(num));
        let space = space.unwrap_or(PortSpace::Tcp);
        let mut raw: ffi::rdma_cm_id = zeroed();
        raw.channel = channel;
        raw.context = context;
        raw.ps = ffi::rdma_port_space(space.number());
        raw.qp_type = match space {
            PortSpace::IpoIb | PortSpace::Udp => verbs::ibv_qp_type::IBV_QPT_UD,
            PortSpace::Tcp | PortSpace::Ib => verbs::ibv_qp_type::IBV_QPT_RC,
        };
        let acks = Arc::new(Acks::default());
        let id = Self {
            raw: UnsafeCell::new(raw),
            home: RwLock::new(Home {
                port: port.clone(),
                num,
            }),
            is_floating,
            space,
            acks: Arc::clone(&acks),
            extra: Mutex::new(IdExtra {
                queue: Arc::clone(queue),
                groups: Vec::new(),
                remote_ece: Ece::default(),
                path: None,
                is_ib: false,
                has_channel: false,
                qp_init: None,
                has_pd: false,
            }),
        };
        let raw = id.into_raw();
        let subject = CmSubject {
            addr: raw.expose_provenance(),
            queue: Arc::clone(queue),
            acks,
        };
        port.notifier().subjects().ids.insert(num, subject);
        raw
    }

    pub(super) fn extra(&self) -> MutexGuard<'_, IdExtra> {
        self.extra.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn home(&self) -> Home {
        let home = self.home.read().unwrap_or_else(PoisonError::into_inner);
        home.clone()
    }

    /// The host.
    pub(super) fn port(&self) -> Port {
        self.home().port
    }

    /// Number of the identifier on its host.
    pub(super) fn num(&self) -> IdNum {
        self.home().num
    }

    /// Moves an unbound identifier of a thread on no host to the host with this address. The caller has exclusive use
    /// of the identifier.
    pub(super) fn move_to(&self, addr: IpAddr) {
        let Home { port, num } = self.home();
        let to = port
            .host_of(addr)
            .filter(|to| self.is_floating && !to.is(&port));
        let Some(to) = to else {
            return;
        };
        let Some(unbound) = port.look(|nic| nic.manager.withdraw(num)) else {
            return;
        };
        let moved = Home {
            num: to.look(|nic| nic.manager.adopt(unbound)),
            port: to,
        };
        let subject = port.notifier().subjects().ids.remove(&num);
        if let Some(subject) = subject {
            moved
                .port
                .notifier()
                .subjects()
                .ids
                .insert(moved.num, subject);
        }
        *self.home.write().unwrap_or_else(PoisonError::into_inner) = moved;
    }

    /// Calls the connection manager.
    pub(super) fn call<T>(&self, act: impl FnOnce(&mut Manager) -> T) -> T {
        self.port().call(|nic, _| act(nic.manager))
    }

    /// Updates the C struct: addresses, and the device if there is one.
    pub(super) fn refresh(&self) {
        let raw = self.raw.get();
        let ((local, peer), has_device) = self.port().look(|nic| {
            let addrs = nic.manager.addrs(self.num());
            (addrs, nic.manager.has_device(self.num()))
        });
        let is_ib = self.extra().is_ib;
        let named = |addr| {
            if is_ib {
                Address::Ib(addr)
            } else {
                Address::Ip(addr)
            }
        };
        if let Some(addr) = local {
            let storage = address::storage(named(addr), self.space);
            // SAFETY: the struct is live, and changed only by calls with exclusive use of the identifier, or by the
            // thread that gets its events.
            unsafe {
                (*raw).route.addr.__bindgen_anon_1 = Source {
                    src_storage: storage,
                }
            };
        }
        if let Some(addr) = peer {
            let storage = address::storage(named(addr), self.space);
            // SAFETY: as above.
            unsafe {
                (*raw).route.addr.__bindgen_anon_2 = Destination {
                    dst_storage: storage,
                }
            };
        }
        if has_device {
            let none = verbs::ibv_gid::from_raw([0; 16]);
            let found = ffi::rdma_ib_addr {
                sgid: local.map_or(none, |addr| gid(addr.ip())),
                dgid: peer.map_or(none, |addr| gid(addr.ip())),
                pkey: 0.into(),
            };
            // SAFETY: as above.
            unsafe { (*raw).route.addr.addr = Gids { ibaddr: found } };
            // SAFETY: as above.
            unsafe { (*raw).verbs = devices::context(&self.port()) };
            // SAFETY: as above.
            unsafe { (*raw).port_num = 1 };
            // Programs of a process of their own use the domain of the identifier. `cm` has domains of its own.
            // SAFETY: as above.
            if unsafe { (*raw).pd }.is_null() && self.port().is_over_udp() {
                let pd = self.default_pd();
                // SAFETY: as above.
                unsafe { (*raw).pd = pd };
            }
        }
    }

    /// The device's domain for this identifier; null with `errno` set if it cannot be allocated.
    pub(super) fn default_pd(&self) -> *mut verbs::ibv_pd {
        let pd = devices::pd(&self.port());
        if std::mem::replace(&mut self.extra().has_pd, !pd.is_null()) {
            // The identifier has had a use.
            devices::release_pd(&self.port());
        }
        pd
    }

    /// Updates the path of the C struct.
    pub(super) fn refresh_path(&self) {
        let Some(path) = self.port().look(|nic| nic.manager.path(self.num())) else {
            return;
        };
        let mut record = verbs::ibv_sa_path_rec::zeroed();
        record.dgid = gid(path.dst);
        record.sgid = gid(path.src);
        record.flow_label = path.flow_label.into();
        record.hop_limit = 64;
        record.traffic_class = path.traffic_class;
        record.reversible = 1;
        record.numb_path = 1;
        let mtu = u8::try_from(mtu_code(&self.port())).unwrap_or(0);
        record.pkey = 0xffff.into();
        (record.mtu_selector, record.mtu) = (EXACTLY, mtu);
        (record.rate_selector, record.rate) = (EXACTLY, RATE);
        record.packet_life_time_selector = EXACTLY;
        record.packet_life_time = PACKET_LIFE_TIME;
        let boxed = Box::new(UnsafeCell::new(record));
        let (record, raw) = (boxed.get(), self.raw.get());
        // SAFETY: as in `refresh`; the record belongs to the identifier until replaced.
        unsafe { (*raw).route.path_rec = record };
        // SAFETY: as in `refresh`.
        unsafe { (*raw).route.num_paths = 1 };
        self.extra().path = Some(boxed);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut ffi::rdma_event_channel,
    id: *mut *mut ffi::rdma_cm_id,
    context: *mut c_void,
    space: ffi::rdma_port_space,
) -> c_int {
    let Some(space) = PortSpace::from_number(space.0) else {
        return failed(libc::EINVAL);
    };
    if channel.is_null() {
        // SAFETY: the caller's place.
        return unsafe { create_waiting(id, context, space) };
    }
    // SAFETY: a live channel.
    let of = unsafe { Channel::borrow(channel) };
    let entered = fabric::entered();
    let is_floating = entered.is_none();
    // The call of `current` leaves the advice for a thread on no host.
    let port = entered.or_else(|| of.port.clone()).or_else(fabric::current);
    let Some(port) = port else {
        return failed(libc::ENODEV);
    };
    if let Err(errno) = port.attempt(Call::CreateId) {
        return failed(errno);
    }
    let num = port.look(|nic| nic.manager.create_id(space));
    let created = Id::create(&port, num, &of.queue, (channel, context), is_floating);
    // SAFETY: the caller's place.
    unsafe { *id = created };
    0
}

/// Creates an identifier without a channel of the program: calls wait for their events.
///
/// # Safety
/// - `out` is a place for the identifier.
unsafe fn create_waiting(
    out: *mut *mut ffi::rdma_cm_id,
    context: *mut c_void,
    space: PortSpace,
) -> c_int {
    if let Some(Err(errno)) = fabric::current().map(|port| port.attempt(Call::CreateId)) {
        return failed(errno);
    }
    match endpoint::create(space, context) {
        Ok(created) => {
            // SAFETY: the caller's promise.
            unsafe { *out = created };
            0
        }
        Err(errno) => failed(errno),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_id(raw: *mut ffi::rdma_cm_id) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::DestroyId) {
        return failed(errno);
    }
    // SAFETY: the caller has exclusive use of the identifier.
    let private_channel = unsafe { endpoint::leave_channel(raw) };
    let num = id.num();
    id.port().call(|nic, now| nic.manager.destroy_id(num, now));
    let subject = id.port().notifier().subjects().ids.remove(&num);
    if let Some(subject) = subject {
        let _gone = subject.queue.remove(|event| event.addr == subject.addr);
        if !acks::wait(&id.port(), &subject.acks, "rdma_destroy_id") {
            return 0;
        }
    }
    // A program destroys the queue pair first.
    if std::mem::take(&mut id.extra().has_pd) {
        devices::release_pd(&id.port());
    }
    // SAFETY: live until here; the caller gives the identifier up.
    unsafe { Id::free(raw) };
    if let Some(channel) = private_channel {
        // SAFETY: of the freed identifier alone.
        unsafe { channel::rdma_destroy_event_channel(channel) };
    }
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_migrate_id(
    raw: *mut ffi::rdma_cm_id,
    mut channel: *mut ffi::rdma_event_channel,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::MigrateId) {
        return failed(errno);
    }
    let waits = channel.is_null();
    if waits {
        channel = match channel::create(Some(&id.port())) {
            Ok(channel) => channel,
            Err(errno) => return failed(errno),
        };
    }
    // SAFETY: the caller has exclusive use of the identifier.
    let private_channel = unsafe { endpoint::leave_channel(raw) };
    // SAFETY: a live channel.
    let to = &unsafe { Channel::borrow(channel) }.queue;
    {
        // The lock keeps events out while the queue is replaced.
        let Home { port, num } = id.home();
        let mut subjects = port.notifier().subjects();
        let Some(subject) = subjects.ids.get_mut(&num) else {
            return failed(libc::EINVAL);
        };
        let from = std::mem::replace(&mut subject.queue, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.remove(|event| event.addr == subject.addr) {
                to.push(event);
            }
        }
    }
    id.extra().queue = Arc::clone(to);
    // SAFETY: live; the caller has exclusive use of the identifier.
    unsafe { (*raw).channel = channel };
    id.extra().has_channel = waits;
    // Blocks until the events taken from the former channel are acknowledged.
    id.acks.wait();
    if let Some(channel) = private_channel {
        // SAFETY: the former channel, of this identifier alone.
        unsafe { channel::rdma_destroy_event_channel(channel) };
    }
    0
}
