//! Identifiers: one end of a connection, or a listener.

use std::{
    fmt, io,
    marker::PhantomData,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::{Arc, PoisonError},
    time::Duration,
};

use rdmacm_sys as ffi;
use verbs::{Context, Error, QpNum, Refused, Result, error::cvt_neg};

use crate::{
    addr::{self, RawAddr},
    channel::{ChannelHandle, EventChannel},
    phase::Phase,
    registry::Key,
};

/// The phases in which the program has an identifier, as types.
pub mod phases {
    use super::Phase;

    mod sealed {
        pub trait Sealed {}
    }

    /// A phase in which the program has an identifier.
    pub trait IdPhase: sealed::Sealed + 'static {
        /// The name of the phase.
        const NAME: &'static str;
        #[doc(hidden)]
        const PHASE: PhaseTag;
    }

    /// A phase in which the device is known.
    pub trait HasDevice: IdPhase {}

    /// The phase as the state machine knows it.
    #[derive(Debug)]
    pub struct PhaseTag(pub(crate) Phase);

    macro_rules! phases {
        ($($(#[$doc:meta])* $name:ident;)*) => {$(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name(());

            impl sealed::Sealed for $name {}

            impl IdPhase for $name {
                const NAME: &'static str = stringify!($name);
                const PHASE: PhaseTag = PhaseTag(Phase::$name);
            }
        )*};
    }

    phases! {
        /// Just made, or bound to a local address.
        Idle;
        /// The peer's address is resolved, and with it the device.
        AddrResolved;
        /// The way to the peer is known: ready to connect.
        RouteResolved;
        /// The peer has accepted: ready to establish the connection.
        Responded;
        /// Waiting for connection requests.
        Listening;
        /// A peer's connection request: to be accepted or rejected.
        Requested;
        /// One end of an established connection.
        Connected;
        /// Of no more use: the connection has failed.
        Closed;
    }

    impl HasDevice for AddrResolved {}
    impl HasDevice for RouteResolved {}
    impl HasDevice for Responded {}
    impl HasDevice for Requested {}
    impl HasDevice for Connected {}
}

use phases::{AddrResolved, HasDevice, IdPhase, Idle, Listening};

/// `rdma_cm_id`—One end of a connection, or a listener, in phase `P`.
///
/// What takes time consumes the identifier, which then belongs to its channel; the event that ends
/// it gives it back, in its next phase. Dropping an identifier destroys it, and ends whatever it
/// was doing.
#[doc(alias = "rdma_cm_id")]
pub struct CmId<P: IdPhase> {
    raw: RawId,
    phase: PhantomData<P>,
}

/// The C object, and its place in the channel.
pub(crate) struct RawId {
    // INVARIANT: created, and destroyed only in `drop`.
    raw: NonNull<ffi::rdma_cm_id>,
    key: Key,
    channel: Arc<ChannelHandle>,
    /// The number of the queue pair that the connection was asked for or accepted with.
    qp_num: Option<QpNum>,
}

// SAFETY: librdmacm allows its calls from any thread. Two calls on one identifier are never made at
// once: the calls that change it need ownership or `&mut`, or are made under the lock of the
// registry that it is parked in.
unsafe impl Send for RawId {}
// SAFETY: through a shared identifier only fields are read that are set before it is shared.
unsafe impl Sync for RawId {}

impl RawId {
    /// # Safety
    /// - `raw` is an identifier of `channel` that nobody else destroys, and `key` its entry in the
    ///   registry.
    pub(crate) unsafe fn new(
        raw: NonNull<ffi::rdma_cm_id>,
        key: Key,
        channel: Arc<ChannelHandle>,
    ) -> Self {
        Self {
            raw,
            key,
            channel,
            qp_num: None,
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for RawId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawId")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        // An identifier that waits is removed before it is dropped, so this finds none to drop.
        drop(self.channel.registry().remove(self.key));
        // SAFETY: the identifier exists and is destroyed once, here; its channel is open, since it
        // is dropped after this. Every event is acknowledged as soon as it has been read, so this
        // does not block. It can fail only if the channel is broken, and then there is nothing to
        // be done.
        let _: i32 = unsafe { ffi::rdma_destroy_id(self.raw.as_ptr()) };
    }
}

impl EventChannel {
    /// `rdma_create_id(channel, …, RDMA_PS_TCP)`—Creates an identifier for a reliable connection.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [rdma_create_id(3)](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html)
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self) -> Result<CmId<Idle>> {
        let channel = self.handle();
        let key = channel.registry().add(Phase::Idle);
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open for as long as `self` lives, and `raw` is a valid place for
        // the result. The key is a number that comes back with events, as a pointer that nobody
        // follows.
        let ret = unsafe {
            ffi::rdma_create_id(
                channel.as_ptr(),
                &raw mut raw,
                key.to_context(),
                ffi::rdma_port_space::RDMA_PS_TCP,
            )
        };
        let created = cvt_neg("rdma_create_id", ret)
            .and_then(|_| verbs::error::cvt_ptr("rdma_create_id", raw));
        match created {
            // SAFETY: the identifier is fresh, and nobody else's.
            Ok(raw) => Ok(CmId::new(unsafe {
                RawId::new(raw, key, Arc::clone(channel))
            })),
            Err(err) => {
                drop(channel.registry().remove(key));
                Err(err)
            }
        }
    }
}

impl<P: IdPhase> CmId<P> {
    pub(crate) fn new(raw: RawId) -> Self {
        Self {
            raw,
            phase: PhantomData,
        }
    }

    /// Notes that the identifier goes on to another phase, in which the program has it.
    pub(crate) fn advance<To: IdPhase>(self) -> CmId<To> {
        self.raw
            .channel
            .registry()
            .set_phase(self.raw.key, To::PHASE.0);
        CmId::new(self.raw)
    }

    pub(crate) fn set_qp_num(&mut self, qp_num: QpNum) {
        self.raw.qp_num = Some(qp_num);
    }

    pub(crate) fn expected_qp_num(&self) -> Option<QpNum> {
        self.raw.qp_num
    }

    /// The name of this identifier in this process. Its events carry it.
    pub fn key(&self) -> Key {
        self.raw.key
    }

    /// `rdma_get_local_addr`—The local address and port, once it has one.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists (invariant), and the address is inside it.
        let addr = unsafe { ffi::rdma_get_local_addr(self.as_raw()) };
        // SAFETY: librdmacm keeps a whole `sockaddr_storage` there.
        unsafe { addr::read(addr.cast()) }
    }

    /// `rdma_get_peer_addr`—The peer's address and port, once there is a peer.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists (invariant), and the address is inside it.
        let addr = unsafe { ffi::rdma_get_peer_addr(self.as_raw()) };
        // SAFETY: librdmacm keeps a whole `sockaddr_storage` there.
        unsafe { addr::read(addr.cast()) }
    }

    /// The C object, for calls that this crate does not wrap. It exists for as long as `self`
    /// lives.
    pub fn as_raw(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Gives the identifier to the channel, and makes the call whose end an event will tell. The
    /// call is made under the lock of the registry, so the event finds the identifier there.
    pub(crate) fn start(
        self,
        phase: Phase,
        name: &'static str,
        call: impl FnOnce(*mut ffi::rdma_cm_id) -> i32,
    ) -> Result<(), Refused<Self>> {
        let (key, channel) = (self.raw.key, Arc::clone(&self.raw.channel));
        let raw = self.raw.as_ptr();
        let mut registry = channel.registry();
        registry.park(self.raw, phase);
        match cvt_neg(name, call(raw)) {
            Ok(_) => Ok(()),
            Err(error) => match registry.unpark(key, P::PHASE.0) {
                Some(raw) => Err(Refused {
                    value: Self::new(raw),
                    error,
                }),
                // Not reached: it was parked three lines up, and the lock is held since.
                None => Ok(()),
            },
        }
    }
}

impl CmId<Idle> {
    /// `rdma_bind_addr`—Binds to a local address. Port 0 takes a free port, and an unspecified
    /// address every device.
    ///
    /// # Errors
    /// - `EADDRINUSE`: another identifier has the port.
    /// - `ENODEV`, `EADDRNOTAVAIL`: the address is of no RDMA device of this machine.
    /// - `EACCES`: a port below 1024 needs privileges.
    ///
    /// # References
    /// [rdma_bind_addr(3)](https://man7.org/linux/man-pages/man3/rdma_bind_addr.3.html)
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&mut self, addr: SocketAddr) -> Result<()> {
        let mut raw = RawAddr::new(addr);
        // SAFETY: the identifier exists (invariant), and the address outlives the call, which
        // copies it.
        let ret = unsafe { ffi::rdma_bind_addr(self.as_raw(), raw.as_mut_ptr()) };
        cvt_neg("rdma_bind_addr", ret)
            .map(drop)
            .map_err(|err| err.detail(addr.to_string()))
    }

    /// `rdma_listen`—Waits for connection requests, of which `backlog` can be outstanding. Each
    /// comes as
    /// [`Event::ConnectRequest`](crate::Event::ConnectRequest).
    ///
    /// # Errors
    /// - `EINVAL`: not bound.
    /// - `EADDRINUSE`: somebody else listens there.
    ///
    /// # References
    /// [rdma_listen(3)](https://man7.org/linux/man-pages/man3/rdma_listen.3.html)
    #[doc(alias = "rdma_listen")]
    pub fn listen(self, backlog: u32) -> Result<CmId<Listening>, Refused<Self>> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // The phase is noted first: the request of a peer may come before this call is back.
        let id = self.advance::<Listening>();
        // SAFETY: the identifier exists (invariant).
        let ret = unsafe { ffi::rdma_listen(id.as_raw(), backlog) };
        match cvt_neg("rdma_listen", ret) {
            Ok(_) => Ok(id),
            Err(error) => Err(Refused {
                value: id.advance(),
                error,
            }),
        }
    }

    /// `rdma_resolve_addr`—Finds the device and the peer's hardware address, within `timeout`. The
    /// identifier comes back with
    /// [`Event::AddrResolved`](crate::Event::AddrResolved) or [`Event::AddrError`](crate::Event::AddrError).
    ///
    /// # Errors
    /// The identifier is given back:
    /// - `ENETUNREACH`, `EHOSTUNREACH`: there is no way to that address.
    /// - `ENODEV`: the way to it is through no RDMA device.
    /// - `EINVAL`: the two addresses are of different families.
    ///
    /// # References
    /// [rdma_resolve_addr(3)](https://man7.org/linux/man-pages/man3/rdma_resolve_addr.3.html)
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Refused<Self>> {
        let mut raw_source = source.map(RawAddr::new);
        let mut raw_destination = RawAddr::new(destination);
        self.start(Phase::ResolvingAddr, "rdma_resolve_addr", |id| {
            let source = raw_source
                .as_mut()
                .map_or(ptr::null_mut(), RawAddr::as_mut_ptr);
            // SAFETY: the identifier exists: `start` holds the lock it is parked under. The
            // addresses outlive the call, which copies them.
            unsafe {
                ffi::rdma_resolve_addr(id, source, raw_destination.as_mut_ptr(), millis(timeout))
            }
        })
        .map_err(|refused| Refused {
            error: refused.error.detail(destination.to_string()),
            value: refused.value,
        })
    }
}

impl CmId<AddrResolved> {
    /// `rdma_resolve_route`—Finds the way to the peer, within `timeout`. The identifier comes back
    /// with
    /// [`Event::RouteResolved`](crate::Event::RouteResolved) or [`Event::RouteError`](crate::Event::RouteError).
    ///
    /// # Errors
    /// The identifier is given back, when the request could not be made.
    ///
    /// # References
    /// [rdma_resolve_route(3)](https://man7.org/linux/man-pages/man3/rdma_resolve_route.3.html)
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(self, timeout: Duration) -> Result<(), Refused<Self>> {
        self.start(Phase::ResolvingRoute, "rdma_resolve_route", |id| {
            // SAFETY: the identifier exists: `start` holds the lock it is parked under.
            unsafe { ffi::rdma_resolve_route(id, millis(timeout)) }
        })
    }
}

impl<P: HasDevice> CmId<P> {
    /// The device that the connection goes through, open. It is the same one for every identifier
    /// of that device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn context(&self) -> Result<Context> {
        // SAFETY: the identifier exists (invariant), and `verbs` is set before the phase is
        // reached.
        let verbs = unsafe { (*self.as_raw()).verbs };
        self.raw
            .channel
            .contexts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .find(verbs)
    }

    /// The port of the device, counting from 1.
    pub fn port_num(&self) -> u8 {
        // SAFETY: the identifier exists (invariant), and `port_num` is set before the phase is
        // reached.
        unsafe { (*self.as_raw()).port_num }
    }
}

impl<P: IdPhase> fmt::Debug for CmId<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("phase", &P::NAME)
            .field("key", &self.key())
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

/// Whole milliseconds, rounded up, as far as C can count.
fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

/// An error for a call that the phase does not allow.
pub(crate) fn wrong_qp(call: &'static str, found: QpNum, expected: Option<QpNum>) -> Error {
    let reason = match expected {
        Some(expected) => {
            format!("queue pair {found} given, and the connection was made for {expected}")
        }
        None => format!("queue pair {found} given to an identifier that has none"),
    };
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}
