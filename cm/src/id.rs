//! Identifiers: one end of a connection, or a listener.

use std::{
    fmt, io,
    marker::PhantomData,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys::ibv_qp_type;
use rdmacm_sys as ffi;
use verbs::{
    Error, Result, Ud,
    error::{Refused, cvt_neg},
    qp::{QpNum, Transport},
};

#[cfg(feature = "tracing")]
use crate::trace::IdSpan;
use crate::{
    addr::{self, Addr},
    channel::{ChannelHandle, EventChannel},
    depths::Depths,
    phase::Phase,
    phases::{IdPhase, Idle},
    port_space::PortSpace,
    registry::Key,
    trace::note,
};

/// `rdma_cm_id`—One end of a connection, or a listener, in phase `P`.
///
/// Asynchronous calls consume the identifier, which then belongs to the channel; the final event returns the
/// identifier in the next phase. Drop destroys the identifier, and cancels any call in progress. Drop blocks until
/// the kernel's last message for the identifier has been answered or the retransmissions are exhausted: milliseconds
/// as a rule, more than a minute on Linux 6.1 if the peer is gone after a [notification](EventChannel::notify). A
/// [reaper](EventChannel::set_reaper) destroys the identifiers of its channels in threads: then drop does not block.
#[doc(alias = "rdma_cm_id")]
#[doc(alias = "rdma_destroy_id")]
pub struct CmId<P: IdPhase> {
    raw: RawId,
    phase: PhantomData<P>,
}

/// The C object with the registry entry.
pub(crate) struct RawId {
    // INVARIANT: created, and destroyed only after `drop`.
    raw: NonNull<ffi::rdma_cm_id>,
    key: Key,
    channel: Arc<ChannelHandle>,
    /// Number of the queue pair in the request or the answer.
    qp_num: Option<QpNum>,
    /// This side's numbers of reads and atomics in the request.
    depths: Depths,
    #[cfg(feature = "tracing")]
    span: IdSpan,
}

// SAFETY: two concurrent calls on one identifier are excluded: mutating calls need ownership or `&mut`,
// or hold the lock of the registry with the parked identifier. Assumption: calls of librdmacm may be
// made from any thread.
unsafe impl Send for RawId {}
// SAFETY: shared access reads fields set before the identifier was shared, and makes calls that do the same,
// and write to the channel's descriptor: `rdma_disconnect`, `rdma_notify`, `rdma_get_remote_ece`. No queue pair
// is attached to the C object, which the first would change.
unsafe impl Sync for RawId {}

impl RawId {
    /// # Safety
    /// - `raw` is an identifier of `channel` with no other owner, and `key` the identifier's registry entry.
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
            depths: Depths::DEVICE_MAX,
            #[cfg(feature = "tracing")]
            span: IdSpan::none(),
        }
    }

    /// The peer's address of any family, once resolved or connected.
    pub(crate) fn any_peer_addr(&self) -> Option<Addr> {
        // SAFETY: the identifier exists (invariant), and the address is inside it.
        let addr = unsafe { ffi::rdma_get_peer_addr(self.as_ptr()) };
        // SAFETY: as above. Assumption: librdmacm keeps a whole `sockaddr_storage` for each address.
        unsafe { addr::read(addr.cast()) }
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(crate) fn channel(&self) -> &Arc<ChannelHandle> {
        &self.channel
    }

    #[cfg(feature = "tracing")]
    pub(crate) fn span(&self) -> &IdSpan {
        &self.span
    }

    #[cfg(feature = "tracing")]
    pub(crate) fn set_span(&mut self, span: IdSpan) {
        self.span = span;
    }

    /// Records the move of the identifier to another channel.
    pub(crate) fn set_channel(&mut self, channel: Arc<ChannelHandle>) {
        self.channel = channel;
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
        // The parent's identifier, which stays.
        if self.channel.is_inherited() {
            return;
        }
        // A pending identifier is removed before being dropped, so none is found here.
        drop(self.channel.registry().remove(self.key));
        let last = LastUse {
            raw: self.raw,
            channel: Arc::clone(&self.channel),
        };
        match self.channel.reaper() {
            // While the queue is long, rejected requests do not lengthen it: their destruction does not wait.
            Some(reaper) if !reaper.is_overloaded() => reaper.destroy(last),
            _ => drop(last),
        }
        #[cfg(feature = "tracing")]
        if self.span.has_begun() {
            note!(debug, self, "destroyed");
        }
    }
}

/// An identifier to be destroyed, without a registry entry.
struct LastUse {
    // INVARIANT: created, with no other user, and destroyed only in `drop`.
    raw: NonNull<ffi::rdma_cm_id>,
    /// Open until the identifier is destroyed.
    channel: Arc<ChannelHandle>,
}

// SAFETY: the only user. Assumption: calls of librdmacm may be made from any thread.
unsafe impl Send for LastUse {}

impl Drop for LastUse {
    fn drop(&mut self) {
        // A child of a fork has the parent's queue of a reaper.
        if self.channel.is_inherited() {
            return;
        }
        // SAFETY: the identifier exists and is destroyed once, here; the channel is open, being dropped after the
        // identifier. Every event is acknowledged right after reading, so librdmacm waits for none; the kernel waits
        // for its own message, with bounded retransmissions. The call fails on a broken channel, and with other credentials
        // than those of the channel's opener. The kernel's identifier then stays until the channel is closed, and no event of it
        // is delivered, as the registry has no entry.
        let _: i32 = unsafe { ffi::rdma_destroy_id(self.raw.as_ptr()) };
    }
}

impl EventChannel {
    /// `rdma_create_id(channel, …, RDMA_PS_TCP)`—Creates an identifier for a reliable connection.
    ///
    /// # Errors
    /// As for [`create_id_in`](Self::create_id_in).
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self) -> Result<CmId<Idle>> {
        self.create_id_in(PortSpace::Tcp)
    }

    /// `rdma_create_id(channel, …, space)`—Creates an identifier in a port space.
    ///
    /// C's user context is replaced by the identifier's [`key`](CmId::key), suitable as the key of a map.
    /// Every event carries the key.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [rdma_create_id(3)](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html)
    #[doc(alias = "rdma_create_id")]
    pub fn create_id_in(&self, space: PortSpace) -> Result<CmId<Idle>> {
        let channel = self.handle();
        let key = channel.registry().add(Phase::Idle);
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open for as long as `self` lives, and `raw` is valid for writes. The context
        // is a number returned with events, as a pointer never dereferenced.
        let ret = unsafe {
            ffi::rdma_create_id(
                channel.as_ptr(),
                &raw mut raw,
                key.to_context(),
                space.to_raw(),
            )
        };
        let created = cvt_neg("rdma_create_id", ret)
            .and_then(|_| verbs::error::cvt_ptr("rdma_create_id", raw));
        match created {
            Ok(raw) => {
                // SAFETY: the identifier is new, and exclusively owned.
                let raw = unsafe { RawId::new(raw, key, Arc::clone(channel)) };
                let id = CmId::begin(raw);
                note!(debug, id, ?space, "created");
                Ok(id)
            }
            Err(err) => {
                drop(channel.registry().remove(key));
                Err(err.detail(format!("{space:?}")))
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

    /// A new identifier of this process, whose span begins here.
    pub(crate) fn begin(raw: RawId) -> Self {
        let id = Self::new(raw);
        #[cfg(feature = "tracing")]
        let id = {
            let mut id = id;
            id.raw.begin_span();
            id
        };
        id
    }

    /// Records the transition to another phase, with the identifier owned by the program.
    pub(crate) fn advance<To: IdPhase>(self) -> CmId<To> {
        self.raw
            .channel
            .registry()
            .set_phase(self.raw.key, To::PHASE.0);
        CmId::new(self.raw)
    }

    pub(crate) fn set_qp_num(&mut self, qp_num: QpNum) {
        #[cfg(feature = "tracing")]
        self.span().set_qp(qp_num);
        self.raw.qp_num = Some(qp_num);
    }

    pub(crate) fn expected_qp_num(&self) -> Option<QpNum> {
        self.raw.qp_num
    }

    pub(crate) fn set_depths(&mut self, depths: Depths) {
        self.raw.depths = depths;
    }

    pub(crate) fn depths(&self) -> Depths {
        self.raw.depths
    }

    pub(crate) fn raw(&self) -> &RawId {
        &self.raw
    }

    pub(crate) fn raw_mut(&mut self) -> &mut RawId {
        &mut self.raw
    }

    /// Whether the identifier is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        // SAFETY: the identifier exists (invariant), and the type is constant after creation.
        unsafe { (*self.as_raw()).qp_type == Ud::RAW }
    }

    /// Checks the transport of the identifier against `T`.
    pub(crate) fn check_transport<T: Transport>(&self, call: &'static str) -> Result<()> {
        // SAFETY: the identifier exists (invariant), and the type is constant after creation.
        let transport = unsafe { (*self.as_raw()).qp_type };
        if transport == T::RAW {
            return Ok(());
        }
        let transport = QP_TYPES
            .iter()
            .find(|(raw, _)| *raw == transport)
            .map_or("others", |(_, name)| name);
        let reason = format!(
            "the identifier, of {:?}, is for {transport}, not for {}",
            self.port_space(),
            T::NAME
        );
        Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }

    /// Unique name of this identifier in this process. Events carry the key, and migration to another channel
    /// keeps the key.
    pub fn key(&self) -> Key {
        self.raw.key
    }

    /// Port space of the identifier. `None` if unknown to this crate.
    pub fn port_space(&self) -> Option<PortSpace> {
        // SAFETY: the identifier exists (invariant), and the port space is constant after creation.
        PortSpace::from_raw(unsafe { (*self.as_raw()).ps })
    }

    /// `rdma_get_local_addr`—Local IP address and port, if any.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.any_local_addr()?.ip()
    }

    /// Local address in any family.
    pub fn any_local_addr(&self) -> Option<Addr> {
        // SAFETY: the identifier exists (invariant), and contains the address.
        let addr = unsafe { ffi::rdma_get_local_addr(self.as_raw()) };
        // SAFETY: as above. Assumption: librdmacm keeps a whole `sockaddr_storage` for each address.
        unsafe { addr::read(addr.cast()) }
    }

    /// `rdma_get_peer_addr`—The peer's IP address and port, if any.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.any_peer_addr()?.ip()
    }

    /// Peer's address in any family.
    pub fn any_peer_addr(&self) -> Option<Addr> {
        self.raw.any_peer_addr()
    }

    /// The C object, for calls not wrapped by this crate. Valid for as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Parks the identifier in the registry, and starts an asynchronous call. The registry stays locked
    /// during the call, so the final event finds the identifier. Once the channel has been dropped, no event
    /// can arrive, and the call is refused.
    pub(crate) fn start(
        self,
        phase: Phase,
        name: &'static str,
        call: impl FnOnce(*mut ffi::rdma_cm_id) -> i32,
    ) -> Result<(), Refused<Self>> {
        self.start_with(phase, name, |id| cvt_neg(name, call(id)).map(drop))
    }

    /// [`start`](Self::start) for a call with an error of its own.
    pub(crate) fn start_with(
        self,
        phase: Phase,
        name: &'static str,
        call: impl FnOnce(*mut ffi::rdma_cm_id) -> Result<()>,
    ) -> Result<(), Refused<Self>> {
        let (key, channel) = (self.raw.key, Arc::clone(&self.raw.channel));
        let raw = self.raw.as_ptr();
        let mut registry = channel.registry();
        if registry.is_closed() {
            drop(registry);
            let reason = "the event channel has been dropped";
            let error = Error::refused(name, io::ErrorKind::InvalidInput, reason);
            return Err(Refused { value: self, error });
        }
        registry.park(self.raw, phase);
        let error = match call(raw) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let Some(raw) = registry.unpark(key, P::PHASE.0) else {
            // Unreachable: parked above, and the lock is still held.
            return Ok(());
        };
        drop(registry);
        let value = Self::new(raw);
        note!(warn, value, %error, "call failed");
        Err(Refused { value, error })
    }
}

impl<P: IdPhase> fmt::Debug for CmId<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("phase", &P::NAME)
            .field("key", &self.key())
            .field("local", &self.any_local_addr())
            .field("peer", &self.any_peer_addr())
            .finish_non_exhaustive()
    }
}

/// Names of the transports of identifiers.
const QP_TYPES: [(ibv_qp_type, &str); 5] = [
    (ibv_qp_type::IBV_QPT_RC, "Rc"),
    (ibv_qp_type::IBV_QPT_UC, "Uc"),
    (ibv_qp_type::IBV_QPT_UD, "Ud"),
    (ibv_qp_type::IBV_QPT_XRC_SEND, "XrcSend"),
    (ibv_qp_type::IBV_QPT_XRC_RECV, "XrcRecv"),
];

/// Error for a call with the wrong queue pair.
pub(crate) fn wrong_qp(call: &'static str, found: QpNum, expected: Option<QpNum>) -> Error {
    let reason = match expected {
        Some(expected) => {
            format!("queue pair {found} given, and the connection was made for {expected}")
        }
        None => format!("queue pair {found} given to an identifier without one"),
    };
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}
