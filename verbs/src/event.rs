//! Asynchronous events: port state, queue pair errors, device failure.
//!
//! | item | is |
//! |---|---|
//! | [`AsyncEvents`] | the events of an open device |
//! | [`AsyncEvent`], [`EventType`] | an event |
//! | [`EventObject`], [`KernelHandle`] | the object of an event, by a number |
//!
//! # References
//! [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html)

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_event_type;

use crate::{
    bounded::QpNum,
    context::Context,
    cq::CqHandle,
    error::{Result, cvt_neg},
    fd::{NotifyFd, set_nonblocking, wait_for},
    named::named,
    srq::SrqHandle,
};

named! {
    /// `ibv_event_type`—The type of an asynchronous event.
    ///
    /// # References
    /// [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html)
    #[doc(alias = "ibv_event_type_str")]
    #[doc(alias = "ibv_event_type")]
    EventType(u32) {
        /// A completion queue is broken, for example by an overflow.
        #[doc(alias = "IBV_EVENT_CQ_ERR")]
        CQ_ERR = ibv_event_type::IBV_EVENT_CQ_ERR.0;
        /// A queue pair is broken.
        #[doc(alias = "IBV_EVENT_QP_FATAL")]
        QP_FATAL = ibv_event_type::IBV_EVENT_QP_FATAL.0;
        /// A peer has sent an invalid request to a queue pair.
        #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
        QP_REQ_ERR = ibv_event_type::IBV_EVENT_QP_REQ_ERR.0;
        /// A peer was denied access by a queue pair.
        #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
        QP_ACCESS_ERR = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR.0;
        /// A queue pair that is not ready to send yet has received its first message.
        #[doc(alias = "IBV_EVENT_COMM_EST")]
        COMM_EST = ibv_event_type::IBV_EVENT_COMM_EST.0;
        /// A send queue has drained.
        #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
        SQ_DRAINED = ibv_event_type::IBV_EVENT_SQ_DRAINED.0;
        /// A queue pair has migrated to its alternate path.
        #[doc(alias = "IBV_EVENT_PATH_MIG")]
        PATH_MIG = ibv_event_type::IBV_EVENT_PATH_MIG.0;
        /// A queue pair could not migrate to its alternate path.
        #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
        PATH_MIG_ERR = ibv_event_type::IBV_EVENT_PATH_MIG_ERR.0;
        /// The device is broken.
        #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
        DEVICE_FATAL = ibv_event_type::IBV_EVENT_DEVICE_FATAL.0;
        /// A port has become active.
        #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
        PORT_ACTIVE = ibv_event_type::IBV_EVENT_PORT_ACTIVE.0;
        /// A port has become inactive.
        #[doc(alias = "IBV_EVENT_PORT_ERR")]
        PORT_ERR = ibv_event_type::IBV_EVENT_PORT_ERR.0;
        /// A port has another local identifier.
        #[doc(alias = "IBV_EVENT_LID_CHANGE")]
        LID_CHANGE = ibv_event_type::IBV_EVENT_LID_CHANGE.0;
        /// A port has another P_Key table.
        #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
        PKEY_CHANGE = ibv_event_type::IBV_EVENT_PKEY_CHANGE.0;
        /// A port has another subnet manager.
        #[doc(alias = "IBV_EVENT_SM_CHANGE")]
        SM_CHANGE = ibv_event_type::IBV_EVENT_SM_CHANGE.0;
        /// A shared receive queue is broken.
        #[doc(alias = "IBV_EVENT_SRQ_ERR")]
        SRQ_ERR = ibv_event_type::IBV_EVENT_SRQ_ERR.0;
        /// A shared receive queue has fewer receives left than its limit.
        #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
        SRQ_LIMIT_REACHED = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED.0;
        /// A failed queue pair takes no more receives from its shared receive queue.
        #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
        QP_LAST_WQE_REACHED = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED.0;
        /// The subnet manager asks for subscriptions again.
        #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
        CLIENT_REREGISTER = ibv_event_type::IBV_EVENT_CLIENT_REREGISTER.0;
        /// A port has another GID table.
        #[doc(alias = "IBV_EVENT_GID_CHANGE")]
        GID_CHANGE = ibv_event_type::IBV_EVENT_GID_CHANGE.0;
        /// A work queue is broken.
        #[doc(alias = "IBV_EVENT_WQ_FATAL")]
        WQ_FATAL = ibv_event_type::IBV_EVENT_WQ_FATAL.0;
        /// A port has another speed. Since rdma-core 62.
        DEVICE_SPEED_CHANGE = 20;
    }
}

impl EventType {
    fn subject(self) -> Subject {
        match self {
            Self::CQ_ERR => Subject::Cq,
            Self::QP_FATAL
            | Self::QP_REQ_ERR
            | Self::QP_ACCESS_ERR
            | Self::COMM_EST
            | Self::SQ_DRAINED
            | Self::PATH_MIG
            | Self::PATH_MIG_ERR
            | Self::QP_LAST_WQE_REACHED => Subject::Qp,
            Self::SRQ_ERR | Self::SRQ_LIMIT_REACHED => Subject::Srq,
            Self::WQ_FATAL => Subject::Wq,
            Self::PORT_ACTIVE
            | Self::PORT_ERR
            | Self::LID_CHANGE
            | Self::PKEY_CHANGE
            | Self::SM_CHANGE
            | Self::CLIENT_REREGISTER
            | Self::GID_CHANGE
            | Self::DEVICE_SPEED_CHANGE => Subject::Port,
            Self::DEVICE_FATAL => Subject::Device,
            _ => Subject::Unknown,
        }
    }
}

/// The valid field of an event's union.
enum Subject {
    Cq,
    Qp,
    Srq,
    Wq,
    Port,
    Device,
    Unknown,
}

/// The kernel's name for an object: unique among the existing objects of its kind on one
/// [`Context`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelHandle(
    /// The number.
    pub u32,
);

/// The object of an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventObject {
    /// A completion queue, by its [handle](CqHandle::kernel_handle).
    Cq(KernelHandle),
    /// A queue pair, by its [number](crate::QueuePair::qp_num).
    Qp(QpNum),
    /// A shared receive queue, by its [handle](SrqHandle::kernel_handle).
    Srq(KernelHandle),
    /// A work queue, by its number.
    Wq(u32),
    /// A port, counting from 1.
    Port(u8),
    /// The device.
    Device,
    /// An unknown object, of an event unknown to this crate.
    Unknown,
}

/// `ibv_async_event`—An event of a device, or of one of its objects.
///
/// A copy, acknowledged when taken: holding one blocks nothing.
#[doc(alias = "ibv_async_event")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// The type of the event.
    pub event_type: EventType,
    /// The affected object.
    pub object: EventObject,
}

/// The asynchronous events of an open device.
///
/// [`AsFd`] provides a descriptor for `poll` or `epoll`, with no other use; see [`NotifyFd`]. Each
/// event is taken once, also with several `AsyncEvents` for one [`Context`].
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device_without_link();
/// use verbs::event::{EventObject, EventType};
/// let events = ctx.async_events()?;
/// let event = events.wait()?;
/// match (event.event_type, event.object) {
///     (EventType::PORT_ERR, EventObject::Port(port)) => println!("port {port} is down"),
///     (EventType::DEVICE_FATAL, _) => println!("the device is broken"),
///     _ => println!("{event:?}"),
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html)
pub struct AsyncEvents {
    ctx: Context,
    /// In place of the device's own descriptor, which is never handed out: an event read from there
    /// directly would never be acknowledged, and destroying its object waits for the
    /// acknowledgement.
    notify: NotifyFd,
}

impl Context {
    /// The asynchronous events of this device.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files.
    pub fn async_events(&self) -> Result<AsyncEvents> {
        set_nonblocking(self.async_fd(), true)?;
        Ok(AsyncEvents {
            notify: NotifyFd::of(self.async_fd())?,
            ctx: self.clone(),
        })
    }

    /// The device's own descriptor, read by C. Not for users.
    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open for as long as `self` lives, and its descriptor is constant
        // after opening.
        let fd = unsafe { (*self.as_raw()).async_fd };
        // SAFETY: the descriptor is open for as long as the context, and so for as long as `self`
        // is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl AsyncEvents {
    /// `ibv_get_async_event`, `ibv_ack_async_event`—Takes the next event, if there is one. Never
    /// blocks.
    ///
    /// # Errors
    /// - `EIO`, `ENODEV`: the device is gone.
    ///
    /// # References
    /// [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html)
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn try_next(&self) -> Result<Option<AsyncEvent>> {
        self.ctx.check_process("ibv_get_async_event")?;
        let mut raw = ffi::ibv_async_event::zeroed();
        // SAFETY: the context is open for as long as `self.ctx` lives; C writes the event before
        // returning success.
        let ret = unsafe { ffi::ibv_get_async_event(self.ctx.as_raw(), &raw mut raw) };
        match cvt_neg("ibv_get_async_event", ret) {
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(err) => return Err(err),
        }
        let event_type = EventType(raw.event_type.0);
        // SAFETY: the event has been taken and not acknowledged.
        let object = unsafe { object(&raw, &event_type.subject()) };
        // SAFETY: the event has been taken, and is acknowledged once, here. Its object still
        // exists, since destroying the object waits for this.
        unsafe { ffi::ibv_ack_async_event(&raw mut raw) };
        let event = AsyncEvent { event_type, object };
        #[cfg(feature = "tracing")]
        crate::trace::async_event(self.ctx.name(), &event);
        Ok(Some(event))
    }

    /// Blocks until the next event.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait(&self) -> Result<AsyncEvent> {
        const CALL: &str = "ibv_get_async_event";
        loop {
            if let Some(event) = wait_for(CALL, self.ctx.async_fd(), None, || self.try_next())? {
                return Ok(event);
            }
        }
    }

    /// Blocks until the next event, for at most `timeout`; `None` if the time has elapsed.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        const CALL: &str = "ibv_get_async_event";
        let fd = self.ctx.async_fd();
        wait_for(CALL, fd, Some(timeout), || self.try_next())
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.ctx
    }
}

/// The object of an event.
///
/// # Safety
/// - The event has been taken and not been acknowledged: destroying its object waits for the
///   acknowledgement, and an event of an object destroyed before is never taken. `subject` is the
///   one for the event's type.
unsafe fn object(raw: &ffi::ibv_async_event, subject: &Subject) -> EventObject {
    match subject {
        Subject::Cq => {
            // SAFETY: the valid field for events of completion queues.
            let cq = unsafe { raw.element.cq };
            // SAFETY: the queue exists, as the caller promises, and its handle never changes.
            EventObject::Cq(KernelHandle(unsafe { (*cq).handle }))
        }
        Subject::Qp => {
            // SAFETY: the valid field for events of queue pairs.
            let qp = unsafe { raw.element.qp };
            // SAFETY: the queue pair exists, as the caller promises, and its number never changes.
            EventObject::Qp(QpNum::from_low_bits(unsafe { (*qp).qp_num }))
        }
        Subject::Srq => {
            // SAFETY: the valid field for events of shared receive queues.
            let srq = unsafe { raw.element.srq };
            // SAFETY: the queue exists, as the caller promises, and its handle never changes.
            EventObject::Srq(KernelHandle(unsafe { (*srq).handle }))
        }
        Subject::Wq => {
            // SAFETY: the valid field for events of work queues.
            let wq = unsafe { raw.element.wq };
            // SAFETY: the queue exists, as the caller promises, and its number never changes.
            EventObject::Wq(unsafe { (*wq).wq_num })
        }
        Subject::Port => {
            // SAFETY: the valid field for events of ports.
            let port = unsafe { raw.element.port_num };
            EventObject::Port(u8::try_from(port).unwrap_or(0))
        }
        Subject::Device => EventObject::Device,
        Subject::Unknown => EventObject::Unknown,
    }
}

/// Readable when there is an event. The descriptor can be registered with an event loop, and does
/// nothing else.
impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notify.as_fd()
    }
}

impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents")
            .field("context", &self.ctx)
            .field("fd", &self.as_raw_fd())
            .finish()
    }
}

impl CqHandle {
    /// The kernel's name for this queue, as in [`EventObject::Cq`].
    pub fn kernel_handle(&self) -> KernelHandle {
        // SAFETY: the queue exists for as long as `self` lives, and its handle never changes.
        KernelHandle(unsafe { (*self.as_raw()).handle })
    }
}

impl SrqHandle {
    /// The kernel's name for this queue, as in [`EventObject::Srq`].
    pub fn kernel_handle(&self) -> KernelHandle {
        // SAFETY: the queue exists for as long as `self` lives, and its handle never changes.
        KernelHandle(unsafe { (*self.as_raw()).handle })
    }
}
