//! Identifiers: `rdma_cm_id` structs, and their event channels.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    net::IpAddr,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use ibverbs_sys as verbs;
use rdmacm_sys::{
    self as ffi, rdma_addr__bindgen_ty_1 as Source, rdma_addr__bindgen_ty_2 as Destination,
    rdma_addr__bindgen_ty_3 as Gids,
};

use super::{
    address::{self, Address},
    channel::Channel,
    devices, failed,
    queue::{CmEvents, CmSubject},
};
use crate::{
    abi::{
        acks::Acks,
        object::{Object, Plain, zeroed},
        query::gid,
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
pub(super) struct Extra {
    pub(super) queue: Arc<CmEvents>,
    pub(super) groups: Vec<Membership>,
    pub(super) remote_ece: Ece,
    /// The path behind the pointer in the C struct.
    path: Option<Box<UnsafeCell<verbs::ibv_sa_path_rec>>>,
    /// Whether the peer was named by a GID.
    pub(super) is_ib: bool,
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
    extra: Mutex<Extra>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Id {
    type Raw = ffi::rdma_cm_id;
}

// SAFETY: integers, raw pointers, and structs and unions of them.
unsafe impl Plain for ffi::rdma_cm_id {}

/// MTU of paths, 4096 bytes, and rate of paths, 25 Gb/s; the rate is invented.
const MTU: u8 = 5;
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
            extra: Mutex::new(Extra {
                queue: Arc::clone(queue),
                groups: Vec::new(),
                remote_ece: Ece::default(),
                path: None,
                is_ib: false,
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

    pub(super) fn extra(&self) -> MutexGuard<'_, Extra> {
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
        }
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
        record.pkey = 0xffff.into();
        (record.mtu_selector, record.mtu) = (EXACTLY, MTU);
        (record.rate_selector, record.rate) = (EXACTLY, RATE);
        record.packet_life_time_selector = EXACTLY;
        record.packet_life_time = PACKET_LIFE_TIME;
        let boxed = Box::new(UnsafeCell::new(record));
        let (place, raw) = (boxed.get(), self.raw.get());
        // SAFETY: as in `refresh`; the record belongs to the identifier until replaced.
        unsafe { (*raw).route.path_rec = place };
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
    let Some(space) = PortSpace::from_number(space.0).filter(|_| !channel.is_null()) else {
        // Synchronous identifiers, without a channel, are not supported.
        return failed(libc::EINVAL);
    };
    // SAFETY: a live channel.
    let of = unsafe { Channel::borrow(channel) };
    let entered = fabric::entered();
    let is_floating = entered.is_none();
    let port = entered.unwrap_or_else(|| of.port.clone());
    if let Err(errno) = port.attempt(Call::CreateId) {
        return failed(errno);
    }
    let num = port.look(|nic| nic.manager.create_id(space));
    let created = Id::create(&port, num, &of.queue, (channel, context), is_floating);
    // SAFETY: the caller's place.
    unsafe { *id = created };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(raw: *mut ffi::rdma_cm_id) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    let num = id.num();
    id.port().call(|nic, now| nic.manager.destroy_id(num, now));
    let subject = id.port().notifier().subjects().ids.remove(&num);
    if let Some(subject) = subject {
        let _gone = subject.queue.remove(|event| event.addr == subject.addr);
        subject.acks.wait();
    }
    // SAFETY: live until here; the caller gives the identifier up.
    unsafe { Id::free(raw) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    raw: *mut ffi::rdma_cm_id,
    channel: *mut ffi::rdma_event_channel,
) -> c_int {
    if channel.is_null() {
        return failed(libc::EINVAL);
    }
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::MigrateId) {
        return failed(errno);
    }
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
    // Blocks until the events taken from the former channel are acknowledged.
    id.acks.wait();
    0
}

/// Creates a passive identifier bound to the source of `info`. Active identifiers and queue pairs fail with
/// `EOPNOTSUPP`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut ffi::rdma_cm_id,
    info: *mut ffi::rdma_addrinfo,
    _pd: *mut verbs::ibv_pd,
    qp_init: *mut verbs::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's information.
    let info = unsafe { &*info };
    let space = u32::try_from(info.ai_port_space).ok();
    let space = space.and_then(PortSpace::from_number);
    let is_passive = info.ai_flags & ffi::RAI_PASSIVE != 0;
    // SAFETY: null, or the caller's address.
    let source = unsafe { address::read(info.ai_src_addr) };
    let (Some(space), Some(source), true, true) = (space, source, is_passive, qp_init.is_null())
    else {
        return failed(libc::EOPNOTSUPP);
    };
    let Some(port) = fabric::current() else {
        return failed(libc::ENODEV);
    };
    if let Err(errno) = port.attempt(Call::CreateEp) {
        return failed(errno);
    }
    let queue = match CmEvents::new() {
        Ok(queue) => Arc::new(queue),
        Err(error) => return failed(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    };
    let num = port.look(|nic| nic.manager.create_id(space));
    let none = (ptr::null_mut(), ptr::null_mut());
    let created = Id::create(&port, num, &queue, none, false);
    let kind = u32::try_from(info.ai_qp_type).unwrap_or(0);
    // SAFETY: live; the field is set before the program knows the identifier.
    unsafe { (*created).qp_type = verbs::ibv_qp_type(kind) };
    // SAFETY: a live identifier.
    let made = unsafe { Id::borrow(created) };
    let bound = super::outcome(made.call(|manager| manager.bind(num, source.ip())));
    if bound != 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        // SAFETY: live, and not yet known to the program.
        unsafe { rdma_destroy_id(created) };
        return failed(errno.unwrap_or(libc::EINVAL));
    }
    made.refresh();
    // SAFETY: the caller's place.
    unsafe { *id = created };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut ffi::rdma_cm_id) {
    // SAFETY: live until here; the caller gives the identifier up.
    unsafe { rdma_destroy_id(id) };
}
