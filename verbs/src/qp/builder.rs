//! Builder of queue pairs.

use std::{fmt, io, marker::PhantomData, num::NonZero, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_qp_init_attr_mask as has;

use super::{
    extended::Extended,
    flags::QpFlags,
    inflight::InFlight,
    key::{self, QpKey},
    member::Member,
    pair::QueuePair,
    queues::{Inner, QueueParts},
    state::Reset,
    transport::{Queued, Transport},
    tso::TsoLimits,
    unordered::Order,
};
use crate::{
    context::Context,
    cq::CqHandle,
    error::{Error, Result, cvt_ptr},
    hint,
    mr::Buf,
    op::SendOps,
    pd::ProtectionDomain,
    quirk,
    srq::{Kind, SrqHandle, SrqInner, TagMatchingQueue},
    work::MAX_SGE,
    wr_id::{MAX_IN_FLIGHT, OwnedQpId, QueueId},
};

/// Builder of a [`QueuePair`].
#[must_use = "call `create` to make the queue pair"]
pub struct QueuePairBuilder<'a, T> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CqHandle,
    recv_cq: &'a CqHandle,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: NonZero<u32>,
    max_recv_sge: NonZero<u32>,
    max_inline_data: u32,
    send_ops: SendOps,
    max_tso_header: u16,
    flags: QpFlags,
    receives_elsewhere: bool,
    recorded: usize,
    srq: Option<Arc<SrqInner>>,
    key: Option<QpKey>,
    transport: PhantomData<T>,
}

impl ProtectionDomain {
    /// Returns the builder of a queue pair of transport `T` in this domain.
    ///
    /// A [`CompletionQueue`](crate::CompletionQueue) dereferences to its handle, so `&cq` is
    /// accepted. The two may be the same queue. A transport without receives does not use the
    /// second.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// let pd = ctx.alloc_pd()?;
    /// let cq = ctx.create_cq(64)?;
    /// let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(16).max_recv_wr(48).create()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "IBV_QP_INIT_ATTR_PD")]
    pub fn qp_builder<'a, T: Queued>(
        &'a self,
        send_cq: &'a CqHandle,
        recv_cq: &'a CqHandle,
    ) -> QueuePairBuilder<'a, T> {
        QueuePairBuilder {
            pd: self,
            send_cq,
            recv_cq,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: NonZero::<u32>::MIN,
            max_recv_sge: NonZero::<u32>::MIN,
            max_inline_data: 0,
            send_ops: SendOps::empty(),
            max_tso_header: 0,
            flags: QpFlags::empty(),
            receives_elsewhere: false,
            recorded: 0,
            srq: None,
            key: None,
            transport: PhantomData,
        }
    }
}

impl<T: Queued> QueuePairBuilder<'_, T> {
    /// Maximum number of requests in flight on the send queue; 1 if not set.
    #[doc(alias = "IBV_QP_CAP")]
    pub fn max_send_wr(mut self, requests: u32) -> Self {
        self.max_send_wr = requests;
        self
    }

    /// Maximum number of receives in flight; 1 if not set. Not used beside a [shared receive queue](Self::srq), nor is the
    /// number of their elements.
    pub fn max_recv_wr(mut self, receives: u32) -> Self {
        self.max_recv_wr = receives;
        self
    }

    /// Maximum number of elements of a request; 1 if not set, and at least 1 and at most [`MAX_SGE`].
    pub fn max_send_sge(mut self, elements: u32) -> Self {
        self.max_send_sge = NonZero::new(elements).unwrap_or(NonZero::<u32>::MIN);
        self
    }

    /// Maximum number of elements of a receive; 1 if not set, and at least 1 and at most [`MAX_SGE`].
    pub fn max_recv_sge(mut self, elements: u32) -> Self {
        self.max_recv_sge = NonZero::new(elements).unwrap_or(NonZero::<u32>::MIN);
        self
    }

    /// Maximum number of [inline](crate::op::Inline) bytes in a request; 0 if not set. The device
    /// may grant more.
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.max_inline_data = bytes;
        self
    }

    /// Allows receives into memory with [no address](crate::mr::UnmappedRegion) in this process, or
    /// registered under [another](crate::mr::RemoteRegistration::iova) address. Without this call,
    /// only Soft-RoCE and Soft-iWARP accept such receives: other devices' libraries may copy short
    /// messages themselves, to the same address in this process.
    ///
    /// # Safety
    /// - The device's library leaves all writing of received data on this queue pair to the device.
    ///   mlx5's does with `MLX5_SCATTER_TO_CQE=0` in the environment, or if the queue pair is
    ///   [made](Self::create_with) with `MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE`.
    #[doc(alias = "MLX5_SCATTER_TO_CQE")]
    pub unsafe fn receives_elsewhere(mut self) -> Self {
        self.receives_elsewhere = true;
        self
    }

    /// Keeps the last `events` posts and completions of each queue, for
    /// [`QueuePair::flight_record`]; none if not set. Takes up to 64 bytes for each event, allocated with the queue pair, and the
    /// time for reading the clock with each post and completion.
    #[cfg(feature = "flight-recorder")]
    pub fn flight_recorder(mut self, events: usize) -> Self {
        self.recorded = events;
        self
    }

    /// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`—Also allows [extended
    /// batches](crate::qp::ExtendedBatch) of these operations; none if not set.
    #[doc(alias = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")]
    pub fn send_ops(mut self, ops: SendOps) -> Self {
        self.send_ops = ops;
        self
    }

    /// `IBV_QP_INIT_ATTR_MAX_TSO_HEADER`—Maximum number of header bytes of a
    /// [`SendTso`](crate::op::SendTso) or a [`SendFrameTso`](crate::op::SendFrameTso); 0 if not
    /// set, which allows none of these requests.
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub fn max_tso_header(mut self, bytes: u16) -> Self {
        self.max_tso_header = bytes;
        self
    }

    /// `IBV_QP_INIT_ATTR_CREATE_FLAGS`—Options for the handling of packets; none, if not set.
    #[doc(alias = "IBV_QP_INIT_ATTR_CREATE_FLAGS")]
    pub fn flags(mut self, flags: QpFlags) -> Self {
        let padding = self.flags.difference(QpFlags::all());
        self.flags = padding | flags.intersection(QpFlags::all());
        self
    }

    /// `IBV_QP_CREATE_PCI_WRITE_END_PADDING`—Lets the device pad the end of a message in memory to a cache line, which
    /// makes the write faster on some machines.
    ///
    /// # Safety
    /// - The memory of each receive ends at the end of a cache line, or is followed by bytes of the line that the
    ///   device may overwrite.
    #[doc(alias = "IBV_QP_CREATE_PCI_WRITE_END_PADDING")]
    pub unsafe fn pci_write_end_padding(mut self) -> Self {
        let padding = ffi::ibv_qp_create_flags::IBV_QP_CREATE_PCI_WRITE_END_PADDING;
        self.flags |= QpFlags::from_bits_retain(padding.0);
        self
    }

    /// Uses the receives of a shared queue, instead of a receive queue of its own: posting receives
    /// to the queue pair is then impossible. The shared queue must be of the same protection
    /// domain: a device checks receive memory against the shared queue's domain, so a peer of this
    /// queue pair would write to memory of that domain.
    ///
    /// A [`SharedReceiveQueue`](crate::SharedReceiveQueue) dereferences to its handle, so `&srq` is accepted.
    pub fn srq(mut self, srq: &SrqHandle) -> Self {
        self.srq = Some(Arc::clone(srq.inner()));
        self
    }

    /// Uses the receives of a tag-matching shared queue. Posting to the queue pair is then
    /// impossible: the device uses the send queue, to read the data of a rendezvous.
    pub fn tag_matching<RW: Send + 'static>(mut self, queue: &TagMatchingQueue<RW>) -> Self {
        self.srq = Some(Arc::clone(queue.inner()));
        self.max_send_wr = 0;
        self
    }

    /// The program's [key](super::QpId::key) for the completions of the queue pair; none if not set.
    pub fn key(mut self, key: QpKey) -> Self {
        self.key = Some(key);
        self
    }

    /// `ibv_create_qp(pd, …)`—Creates the queue pair, in the state [`Reset`], for work of one
    /// [`Buf`] each. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: a completion queue has too few entries left, or belongs to another device;
    ///   or a number is beyond this crate's limits.
    /// - `EINVAL`: a number is more than the device allows.
    /// - `EOPNOTSUPP`: the device does not have the transport, or one of the [flags](Self::flags).
    /// - `EPERM`: raw packets need the capability `CAP_NET_RAW`.
    /// - `ENOMEM`: out of memory, or of queue pairs.
    /// - `Unsupported`: the device has no extended batches, or not with all of the
    ///   [operations](Self::send_ops); or the device does not support
    ///   [segmentation](Self::max_tso_header) for the transport.
    ///
    /// # References
    /// [ibv_create_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html)
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create(self) -> Result<QueuePair<T, Reset, Buf, Buf>> {
        self.create_for()
    }

    /// `ibv_create_qp(pd, …)`—Creates the queue pair as [`create`](Self::create) does, for work of
    /// the caller's types: `SW` for the send queue, and `RW` for the receive queue.
    ///
    /// Work with borrows can only be posted to a queue pair [of a
    /// scope](crate::scope::Scope::create_qp): otherwise forgetting the queue pair (`mem::forget`)
    /// would end the borrow while the device continues.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    ///
    /// # Examples
    /// Messages with the number of their request:
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(64)?);
    /// use verbs::{Buf, QueuePair, Reset, SharedBuf, work::With};
    /// struct Request(u64);
    /// let qp: QueuePair<verbs::Rc, Reset, With<SharedBuf, Request>, Buf> =
    ///     pd.qp_builder(cq, cq).create_for()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn create_for<SW: 'static, RW: 'static>(self) -> Result<QueuePair<T, Reset, SW, RW>> {
        let inner = self.make_plain()?;
        // SAFETY: matches its type: made with `T::RAW`, in the initial state of queue pairs.
        Ok(unsafe { QueuePair::from_inner(Arc::new(inner)) })
    }

    /// Creates the queue pair as [`create_for`](Self::create_for) does, for a scope, which destroys
    /// the queue pair at its end.
    pub(crate) fn create_member<SW, RW>(self) -> Result<(QueuePair<T, Reset, SW, RW>, Member)> {
        let mut inner = self.make_plain()?;
        let (destroyed, queues) = (inner.join_scope(), inner.queues());
        let inner = Arc::new(inner);
        let member = Member::new(&inner, destroyed, queues);
        // SAFETY: as for `create_for`.
        Ok((unsafe { QueuePair::from_inner(inner) }, member))
    }

    fn make_plain<SW, RW>(self) -> Result<Inner<SW, RW>> {
        // SAFETY: the context is open, since `self` borrows a domain of the context, and the attributes name the domain and the
        // queues that `self` borrows.
        let create = |ctx, attr: &mut _| unsafe { T::create(ctx, attr) };
        let plain = self.send_ops.is_empty() && self.max_tso_header == 0 && self.flags.is_empty();
        let call = match plain {
            true => "ibv_create_qp",
            false => "ibv_create_qp_ex",
        };
        let call = T::CREATE.unwrap_or(call);
        // SAFETY: `create` makes a queue pair of the attributes, or none: C's call, or one that `VendorTransport` promises this of.
        unsafe { self.make(call, create) }
    }

    /// Creates the queue pair by another call than `ibv_create_qp`: a vendor's, such as
    /// `mlx5dv_create_qp`. `create` receives the builder's attributes, and `call` is its name, for
    /// errors.
    ///
    /// Use [`as_raw`](QueuePair::as_raw) for operations specific to the vendor's calls. A transport of a vendor's own is a
    /// [`VendorTransport`](super::VendorTransport).
    ///
    /// # Safety
    /// - `create` returns null, with `errno` set, or a queue pair made of these attributes, in the
    ///   state RESET, with no other owner.
    /// - `create` may change the capacities in the attributes, to the granted ones, not less than
    ///   requested, and nothing else.
    /// - Requests posted with the vendor's calls never complete in a queue of this crate, and own
    ///   their memory themselves.
    ///
    /// # Errors
    /// As for [`create`](Self::create), and the errors of `create`.
    #[doc(alias = "mlx5dv_create_qp")]
    pub unsafe fn create_with<SW: 'static, RW: 'static>(
        self,
        call: &'static str,
        create: impl FnOnce(*mut ffi::ibv_context, &mut ffi::ibv_qp_init_attr_ex) -> *mut ffi::ibv_qp,
    ) -> Result<QueuePair<T, Reset, SW, RW>> {
        // SAFETY: the caller's promise.
        let inner = unsafe { self.make(call, create) }?;
        // SAFETY: as for `create_for`.
        Ok(unsafe { QueuePair::from_inner(Arc::new(inner)) })
    }

    /// # Safety
    /// - As for [`create_with`](Self::create_with).
    unsafe fn make<SW, RW>(
        self,
        call: &'static str,
        create: impl FnOnce(*mut ffi::ibv_context, &mut ffi::ibv_qp_init_attr_ex) -> *mut ffi::ibv_qp,
    ) -> Result<Inner<SW, RW>> {
        self.pd.context().check_process(call)?;
        self.validate()?;
        let receives = T::RECEIVES && self.srq.is_none();
        let max_recv_wr = if receives { self.max_recv_wr } else { 0 };
        let shared = match &self.srq {
            Some(srq) => Some((Arc::clone(srq), srq.reserve_on(call, self.recv_cq)?)),
            None => None,
        };
        let send_entries = self.send_cq.reserve(call, self.max_send_wr)?;
        let recv_entries = self.recv_cq.reserve(call, max_recv_wr)?;
        let ctx = self.pd.context();
        let tso = self.tso_limits()?;
        let mangles_lists = quirk::mangles_lists(ctx)?;
        let mut attr = self.init_attr(max_recv_wr);
        let attr_in = attr;
        let raw = create(self.pd.context().as_raw(), &mut attr);
        let raw = cvt_ptr(call, raw).map_err(|err| self.explain(err, &attr_in))?;
        if let Some((_, entries)) = &shared {
            entries.begin_use();
        }
        // Allocated only now: the device has checked the numbers.
        let owned = OwnedQpId::new();
        let id = owned.id();
        if let Some(key) = self.key {
            key::set(id, key);
        }
        let (sends, receives) = Self::orders(ctx);
        let send = QueueParts {
            reservation: send_entries,
            in_flight: InFlight::new(QueueId::send(id), self.max_send_wr, sends),
            max_sge: self.max_send_sge,
        };
        let receive = QueueParts {
            reservation: recv_entries,
            in_flight: InFlight::new(QueueId::receive(id), max_recv_wr, receives),
            max_sge: self.max_recv_sge,
        };
        // SAFETY: the queue pair has just been created with these queues, in this domain, and has
        // no other owner, as the caller promises.
        let mut inner = unsafe {
            Inner::new(
                raw,
                owned,
                send,
                receive,
                attr.cap.max_inline_data,
                shared,
                self.pd.clone(),
            )
        };
        let extended = if self.send_ops.is_empty() {
            None
        } else {
            // SAFETY: the queue pair has just been created, with `T::RAW`, for these operations.
            Some(unsafe { Extended::of::<T>(raw, self.send_ops, mangles_lists) }?)
        };
        inner.extend(extended, tso);
        inner.name_receiver(id);
        if self.receives_elsewhere {
            inner.receive_elsewhere();
        }
        inner.record(self.recorded);
        Ok(inner)
    }

    /// The orders of the two queues.
    fn orders(ctx: &Context) -> (Order, Order) {
        match T::IN_ORDER {
            true => (Order::of_sends(ctx), Order::of_receives(ctx)),
            false => (Order::Any, Order::Any),
        }
    }

    /// The attributes in C, with this length of the receive queue.
    fn init_attr(&self, max_recv_wr: u32) -> ffi::ibv_qp_init_attr_ex {
        let mut attr = ffi::ibv_qp_init_attr_ex::zeroed();
        attr.comp_mask = has::IBV_QP_INIT_ATTR_PD.0;
        attr.pd = self.pd.as_raw();
        if !self.send_ops.is_empty() {
            attr.comp_mask |= has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            attr.send_ops_flags = self.send_ops.bits();
        }
        if self.max_tso_header > 0 {
            attr.comp_mask |= has::IBV_QP_INIT_ATTR_MAX_TSO_HEADER.0;
            attr.max_tso_header = self.max_tso_header;
        }
        if !self.flags.is_empty() {
            attr.comp_mask |= has::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
            attr.create_flags = self.flags.bits();
        }
        attr.send_cq = self.send_cq.as_raw();
        attr.qp_type = T::RAW;
        attr.cap.max_send_wr = self.max_send_wr;
        attr.cap.max_send_sge = self.max_send_sge.get();
        attr.cap.max_inline_data = self.max_inline_data;
        if T::RECEIVES {
            attr.recv_cq = self.recv_cq.as_raw();
        }
        if T::RECEIVES && self.srq.is_none() {
            attr.cap.max_recv_wr = max_recv_wr;
            attr.cap.max_recv_sge = self.max_recv_sge.get();
        }
        if let Some(srq) = &self.srq {
            attr.srq = srq.as_raw();
        }
        attr
    }

    /// Adds the requested queue pair to the error, and the reason of the failure where it is known.
    fn explain(&self, err: Error, attr_in: &ffi::ibv_qp_init_attr_ex) -> Error {
        let err = err.detail(self.description());
        let raw_packets = T::RAW == ffi::ibv_qp_type::IBV_QPT_RAW_PACKET;
        if raw_packets && err.raw_os_error() == Some(libc::EPERM) {
            return err.hint(hint::RAW_PACKETS);
        }
        let requested = hint::limits::RequestedCaps {
            max_send_wr: attr_in.cap.max_send_wr,
            max_recv_wr: attr_in.cap.max_recv_wr,
            max_send_sge: attr_in.cap.max_send_sge,
            max_recv_sge: attr_in.cap.max_recv_sge,
            max_inline_data: attr_in.cap.max_inline_data,
        };
        let ctx = self.pd.context();
        hint::limits::qp(
            err,
            ctx,
            requested,
            // SAFETY: the attributes name the domain and the queues that `self` borrows.
            || unsafe { max_inline::<T>(ctx, attr_in) },
            || {
                let mut smallest = *attr_in;
                let cap = &mut smallest.cap;
                (cap.max_send_wr, cap.max_send_sge) = (1, 1);
                cap.max_recv_wr = cap.max_recv_wr.min(1);
                cap.max_recv_sge = cap.max_recv_sge.min(1);
                cap.max_inline_data = 0;
                // SAFETY: as above.
                unsafe { is_created::<T>(ctx, smallest) }
            },
        )
    }

    fn description(&self) -> String {
        let mut description = format!(
            "{}, {} sends of {} elements, {} receives of {} elements, {} bytes inline",
            T::NAME,
            self.max_send_wr,
            self.max_send_sge,
            self.max_recv_wr,
            self.max_recv_sge,
            self.max_inline_data
        );
        if !self.send_ops.is_empty() {
            description += &format!(", for {:?}", self.send_ops);
        }
        if self.max_tso_header > 0 {
            description += &format!(", headers of {} bytes", self.max_tso_header);
        }
        if !self.flags.is_empty() {
            description += &format!(", {:?}", self.flags);
        }
        description
    }

    /// The device's limits for segmentation, if requested.
    fn tso_limits(&self) -> Result<TsoLimits> {
        if self.max_tso_header == 0 {
            return Ok(TsoLimits::default());
        }
        let caps = self.pd.context().query_device()?.tso_caps();
        if caps.max_tso == 0 || !caps.supported_qpts.has::<T>() {
            let reason = format!("the device does not cut the packets of {}", T::NAME);
            let kind = io::ErrorKind::Unsupported;
            return Err(Error::refused("ibv_create_qp_ex", kind, reason));
        }
        Ok(TsoLimits {
            max_header: self.max_tso_header,
            max_data: caps.max_tso,
        })
    }

    fn validate(&self) -> Result<()> {
        const CALL: &str = "ibv_create_qp";
        let refuse = |reason: String| {
            let kind = io::ErrorKind::InvalidInput;
            Err(Error::refused(CALL, kind, reason))
        };
        let ctx = self.pd.context();
        for cq in [self.send_cq, self.recv_cq] {
            ctx.check_same(CALL, "the completion queue", cq.context())?;
        }
        if let Some(srq) = &self.srq {
            ctx.check_same(CALL, "the shared receive queue", srq.pd().context())?;
            if !srq.pd().is_same_for_device(self.pd) {
                let reason = "the shared receive queue is of another protection domain; make both in one domain";
                return refuse(reason.to_owned());
            }
            let receives = match srq.kind() {
                Kind::Basic => T::RECEIVES,
                Kind::Xrc { .. } => false,
                Kind::TagMatching => T::RAW == ffi::ibv_qp_type::IBV_QPT_RC,
            };
            if !receives {
                return refuse(format!("{} does not receive by this shared queue", T::NAME));
            }
            if matches!(srq.kind(), Kind::TagMatching) && self.max_send_wr > 0 {
                return refuse("the send queue is the device's, for matching tags".to_owned());
            }
        }
        // A shared receive queue has capacities of its own.
        let (recv_wr, recv_sge) = match self.srq {
            Some(_) => (0, 0),
            None => (self.max_recv_wr, self.max_recv_sge.get()),
        };
        for (name, requests) in [("max_send_wr", self.max_send_wr), ("max_recv_wr", recv_wr)] {
            if requests > MAX_IN_FLIGHT {
                return refuse(format!("{name} is {requests}, and at most {MAX_IN_FLIGHT}"));
            }
        }
        for (name, elements) in [
            ("max_send_sge", self.max_send_sge.get()),
            ("max_recv_sge", recv_sge),
        ] {
            if elements as usize > MAX_SGE {
                return refuse(format!("{name} is {elements}, and at most {MAX_SGE}"));
            }
        }
        Ok(())
    }
}

/// Whether the device creates a queue pair with these attributes; the queue pair is destroyed at once.
///
/// # Safety
/// - The objects that the attributes name exist, and are of that device.
unsafe fn is_created<T: Queued>(ctx: &Context, mut attr: ffi::ibv_qp_init_attr_ex) -> bool {
    // SAFETY: the context is open for as long as `ctx` lives, and the caller's promise for the rest.
    let Some(qp) = NonNull::new(unsafe { T::create(ctx.as_raw(), &mut attr) }) else {
        return false;
    };
    // SAFETY: the queue pair has just been created, and nothing uses it. One that stays has nothing in flight.
    let _errno = unsafe { ffi::ibv_destroy_qp(qp.as_ptr()) };
    true
}

/// Maximum inline bytes for which the device creates a queue pair like `attr_in`, less than those of
/// `attr_in`. Found by creating queue pairs, since devices do not report the limit. `None` if the
/// inline bytes are not the reason of the refusal.
///
/// # Safety
/// - The objects that the attributes name exist, and are of that device.
unsafe fn max_inline<T: Queued>(ctx: &Context, attr_in: &ffi::ibv_qp_init_attr_ex) -> Option<u32> {
    let is_created = |max_inline_data| {
        let mut attr = *attr_in;
        attr.cap.max_inline_data = max_inline_data;
        // SAFETY: the caller's promise.
        unsafe { is_created::<T>(ctx, attr) }
    };
    let mut refused = attr_in.cap.max_inline_data;
    let mut created = 0;
    if !is_created(created) || is_created(refused) {
        return None;
    }
    while refused - created > 1 {
        let between = created + (refused - created) / 2;
        if is_created(between) {
            created = between;
        } else {
            refused = between;
        }
    }
    Some(created)
}

impl<T: Transport> fmt::Debug for QueuePairBuilder<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePairBuilder")
            .field("transport", &T::NAME)
            .field("max_send_wr", &self.max_send_wr)
            .field("max_recv_wr", &self.max_recv_wr)
            .finish_non_exhaustive()
    }
}
