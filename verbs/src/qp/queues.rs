//! The two queues of a queue pair: posting, and returning work.

use std::{
    cell::UnsafeCell,
    fmt,
    marker::PhantomData,
    mem::{self, ManuallyDrop, MaybeUninit},
    num::NonZero,
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys as ffi;

use super::{
    attached::Attached, completion::Completion, extended::Extended, flight_recorder::Recorder,
    inflight::InFlight, limits::Limits, member::Destroyed, multicast, refusal,
    signaling::Signaling, staging::Staging, table::Table, teardown::Leftover, transport::Transport,
    tso::TsoLimits,
};
use crate::{
    bad_wr::{self, BadWr, Effect, QueueKind},
    cq::{Queue, Reservation, WorkCompletion},
    doorbell::ring_again,
    error::{Error, PostError, Result, cvt_errno},
    op::{SendRequest, SendWr},
    pd::ProtectionDomain,
    quirk,
    recv_limits::RecvLimits,
    recv_list::RecvList,
    srq::{Entries, SrqInner},
    work::{Scatter, SgeList},
    wr_id::{OwnedQpId, QpId},
};

/// The part of a queue pair shared by its two halves.
///
/// A post and a completion of the send queue touch one cache line, those of the receive queue a second one: with many queue
/// pairs, misses are the cost. The fields are in this order for it (`hot_fields_are_in_one_line`).
#[repr(C, align(64))]
pub(super) struct Inner<SW, RW> {
    // INVARIANT: created, and destroyed only by `destroy`, which sets `destroyed`.
    pub(super) raw: NonNull<ffi::ibv_qp>,
    pub(super) table: Table,
    // INVARIANT: touched only by the one `SendQueue` of this queue pair, and in `drop`.
    send: UnsafeCell<Sending<SW>>,
    // INVARIANT: touched only by the one `ReceiveQueue` of this queue pair, and in `drop`.
    receive: UnsafeCell<Receiving<RW>>,
    destroyed: bool,
    /// Where the queue pair's scope, if any, is notified of the destruction.
    scope: Option<Destroyed>,
    /// The shared receive queue, in place of an own one, and the entries reserved for its receives.
    pub(super) shared: Option<(Arc<SrqInner>, Arc<Entries>)>,
    pub(super) attached: Attached,
    pub(super) pd: ProtectionDomain,
}

/// The in-flight work is first: see [`Inner`].
#[repr(C)]
pub(super) struct Sending<SW> {
    pub(super) in_flight: ManuallyDrop<InFlight<SW>>,
    pub(super) reservation: ManuallyDrop<Reservation>,
    pub(super) limits: Limits,
    pub(super) signaling: Signaling,
    pub(super) staging: Staging,
    /// The extended way of posting, if the queue pair was made with one.
    pub(super) extended: Option<Extended>,
    pub(super) recorder: Recorder,
    /// Error number of a failed doorbell since the last [`SendQueue::take_doorbell_error`]; 0 for none.
    pub(super) doorbell: i32,
    /// The identity of both queues.
    pub(super) id: OwnedQpId,
}

/// The in-flight work is first, in a line of its own.
#[repr(C, align(64))]
pub(super) struct Receiving<RW> {
    pub(super) in_flight: ManuallyDrop<InFlight<RW>>,
    pub(super) reservation: ManuallyDrop<Reservation>,
    pub(super) limits: RecvLimits,
    pub(super) staging: RecvList,
    pub(super) recorder: Recorder,
}

// SAFETY: each of the two cells is accessed through one half only (invariants), so from one thread
// at a time, and their content may change threads. Assumption: calls of libibverbs may be made from
// any thread, and several at once.
unsafe impl<SW: Send, RW: Send> Send for Inner<SW, RW> {}
// SAFETY: see `Send`. A half shared between threads gives only shared access to its cell.
unsafe impl<SW: Send, RW: Send> Sync for Inner<SW, RW> {}

/// The initial parts of one of the two queues.
pub(super) struct QueueParts<W> {
    pub(super) in_flight: InFlight<W>,
    pub(super) reservation: Reservation,
    pub(super) max_sge: NonZero<u32>,
}

impl<SW, RW> Inner<SW, RW> {
    /// # Safety
    /// - `raw` is a queue pair with no other user, made with the completion queues of the
    ///   reservations, in the domain `pd`. Both queues begin with the identity `id`.
    pub(super) unsafe fn new(
        raw: NonNull<ffi::ibv_qp>,
        id: OwnedQpId,
        send: QueueParts<SW>,
        receive: QueueParts<RW>,
        max_inline: u32,
        shared: Option<(Arc<SrqInner>, Arc<Entries>)>,
        pd: ProtectionDomain,
    ) -> Self {
        let signaling = {
            let ring = &send.in_flight;
            Signaling::new(ring.next(), ring.limit(), ring.order())
        };
        let send = UnsafeCell::new(Sending {
            in_flight: ManuallyDrop::new(send.in_flight),
            reservation: ManuallyDrop::new(send.reservation),
            limits: Limits {
                max_sge: send.max_sge,
                device: pd.context().id(),
                max_inline,
                tso: TsoLimits::default(),
                max_rd_atomic: u8::MAX,
            },
            signaling,
            staging: Staging::new(send.max_sge),
            extended: None,
            recorder: Recorder::new(0),
            doorbell: 0,
            id,
        });
        let receive = UnsafeCell::new(Receiving {
            in_flight: ManuallyDrop::new(receive.in_flight),
            reservation: ManuallyDrop::new(receive.reservation),
            limits: RecvLimits::new(&pd, receive.max_sge.get()),
            staging: RecvList::default(),
            recorder: Recorder::new(0),
        });
        // SAFETY: a queue pair, as the caller promises.
        let table = unsafe { Table::of(raw) };
        Self {
            raw,
            table,
            destroyed: false,
            scope: None,
            send,
            receive,
            shared,
            attached: Attached::default(),
            pd,
        }
    }

    /// Adds optional parts, before the first use of this queue pair.
    pub(super) fn extend(&mut self, extended: Option<Extended>, tso: TsoLimits) {
        let send = self.send.get_mut();
        send.extended = extended;
        send.limits.tso = tso;
    }

    /// Keeps the last events of each queue, with the feature `flight-recorder`.
    pub(super) fn record(&mut self, events: usize) {
        self.send.get_mut().recorder = Recorder::new(events);
        self.receive.get_mut().recorder = Recorder::new(events);
    }

    /// Records that only the device writes received data.
    pub(super) fn receive_elsewhere(&mut self) {
        let limits = &mut self.receive.get_mut().limits;
        *limits = limits.foreign_addresses();
    }

    /// The completion queues.
    pub(super) fn queues(&mut self) -> [Queue; 2] {
        let send = self.send.get_mut().reservation.queue();
        [send, self.receive.get_mut().reservation.queue()]
    }

    /// Makes the queue pair one of a scope, which learns here that it has been destroyed.
    pub(super) fn join_scope(&mut self) -> Destroyed {
        self.scope.get_or_insert_default().clone()
    }

    /// Destroys the queue pair; the device does not use the work in flight any more after success.
    /// Afterwards, only that work is taken, and `self` is dropped.
    pub(super) fn destroy(&mut self) -> Result<()> {
        // SAFETY: the queue pair exists: `destroyed` is not set. `&mut self` excludes every other use.
        unsafe { self.destroy_raw() }?;
        self.destroyed = true;
        if let Some(scope) = &self.scope {
            scope.set();
        }
        let (send, receive) = (self.send.get_mut(), self.receive.get_mut());
        send.reservation.unreaped = send.in_flight.len();
        receive.reservation.unreaped = receive.in_flight.len();
        Ok(())
    }

    /// Destroys the C object.
    ///
    /// # Safety
    /// - The queue pair exists, and nothing else uses `self` during the call. If the result is
    ///   `Ok`, the object is not used any more.
    pub(super) unsafe fn destroy_raw(&self) -> Result<()> {
        let ctx = self.pd.context();
        ctx.check_process("ibv_destroy_qp")?;
        // SAFETY: the queue pair exists, and nothing else uses the cells, as the caller promises.
        unsafe { self.check_completions() }?;
        // Before the number is free for another queue pair. A failed call may have freed the number's memory, too.
        let shared = self.shared.as_ref().map(|(srq, _)| (srq, self.qp_num()));
        if let Some((srq, number)) = shared {
            srq.receivers().remove(number);
        }
        for (gid, lid) in self.attached.take_groups() {
            // SAFETY: the queue pair exists, as the caller promises. A failed detachment shows when
            // the queue pair is destroyed.
            let _: Option<()> = unsafe { multicast::detach(self, gid, lid) }.ok();
        }
        let errno = ctx.destroy(|| {
            // SAFETY: the queue pair exists, and is not used any more, as the caller promises. Its
            // domain and its completion queues exist, since they are dropped after `self`.
            unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) }
        });
        // SAFETY: nothing else uses the cell, as the caller promises.
        let send = unsafe { &*self.send.get() };
        // SAFETY: see above.
        let receive = unsafe { &*self.receive.get() };
        if ctx.is_removed(errno) && self.discard_completions(send, receive) {
            return Ok(());
        }
        if let Some((srq, number)) = shared.filter(|_| errno != 0) {
            srq.receivers().add(number, send.id.id());
        }
        cvt_errno("ibv_destroy_qp", errno)
    }

    /// After the removal of the device, makes sure that its library does not copy messages any
    /// more. Some libraries copy when polled for a completion, and still know the queue pair, since
    /// destroying it failed. Completions of other queue pairs are lost, too; their work returns
    /// when those queue pairs are destroyed. Returns whether the discarding is complete.
    fn discard_completions(&self, send: &Sending<SW>, receive: &Receiving<RW>) -> bool {
        !quirk::copies_messages(self.pd.context())
            || send.reservation.discard_completions() && receive.reservation.discard_completions()
    }

    /// Takes all work in flight, after the destruction or the reset of the queue pair. Assumption: a queue pair that is
    /// destroyed or reset has no access to the memory of its requests any more.
    pub(super) fn take_leftover(&mut self) -> Leftover<SW, RW> {
        let (send, receive) = (self.send.get_mut(), self.receive.get_mut());
        Leftover {
            send: send.in_flight.take_all(),
            receive: receive.in_flight.take_all(),
        }
    }

    /// The mutable state of both queues, by one call: the owner of both halves then needs no second
    /// check.
    #[inline]
    pub(super) fn cells(&self) -> (*mut Sending<SW>, *mut Receiving<RW>) {
        (self.send.get(), self.receive.get())
    }
}

impl<SW, RW> Drop for Inner<SW, RW> {
    fn drop(&mut self) {
        if !self.destroyed {
            // Before the destruction, whose failure may free the queue pair.
            #[cfg(feature = "tracing")]
            let number = self.qp_num();
            if let Err(_error) = self.destroy() {
                // The device may still access the works in flight: they are leaked, with the completion
                // queues and the shared receive queue.
                #[expect(clippy::mem_forget, reason = "the device may still use it")]
                mem::forget(self.shared.take());
                // Last: a subscriber is the program's code, and may panic.
                #[cfg(feature = "tracing")]
                crate::trace::leaked(number, &_error);
                return;
            }
        }
        let (send, receive) = (self.send.get_mut(), self.receive.get_mut());
        // All in variables before the first drop: if the drop of a work panics, the others are dropped all the same.
        // SAFETY: taken once, here, and not used again.
        let _send_entries = unsafe { ManuallyDrop::take(&mut send.reservation) };
        // SAFETY: as above.
        let _receive_entries = unsafe { ManuallyDrop::take(&mut receive.reservation) };
        // SAFETY: as above.
        let receives = unsafe { ManuallyDrop::take(&mut receive.in_flight) };
        // SAFETY: as above.
        let sends = unsafe { ManuallyDrop::take(&mut send.in_flight) };
        drop(sends);
        drop(receives);
    }
}

pub(super) const POST_SEND: &str = "ibv_post_send";
const POST_RECV: &str = "ibv_post_recv";

/// The send queue of a queue pair, ready to send.
///
/// [`QueuePair::split`](crate::QueuePair::split) makes one, for a thread of its own. The queue pair
/// is destroyed after the drop of both halves; then the work in flight on a dropped half is
/// dropped.
pub struct SendQueue<T, SW, RW> {
    pub(super) inner: Arc<Inner<SW, RW>>,
    pub(super) transport: PhantomData<T>,
}

/// The receive queue of a queue pair.
///
/// [`QueuePair::split`](crate::QueuePair::split) makes one, for a thread of its own.
pub struct ReceiveQueue<T, SW, RW> {
    pub(super) inner: Arc<Inner<SW, RW>>,
    pub(super) transport: PhantomData<T>,
}

impl<T, SW, RW> SendQueue<T, SW, RW> {
    #[inline]
    pub(super) fn sending(&self) -> &Sending<SW> {
        // SAFETY: only this half accesses the cell (invariant of `Inner`), and `&self` excludes a
        // mutable borrow through this half.
        unsafe { &*self.inner.send.get() }
    }

    #[inline]
    pub(super) fn sending_mut(&mut self) -> &mut Sending<SW> {
        // SAFETY: only this half accesses the cell (invariant of `Inner`), and `&mut self` excludes
        // every other borrow through this half.
        unsafe { &mut *self.inner.send.get() }
    }

    /// The constant part, and the mutable one.
    #[inline]
    pub(super) fn parts(&mut self) -> (&Inner<SW, RW>, &mut Sending<SW>) {
        // SAFETY: as for `sending_mut`.
        let sending = unsafe { &mut *self.inner.send.get() };
        (&self.inner, sending)
    }

    /// The number of requests posted and not returned.
    pub fn in_flight(&self) -> usize {
        self.sending().in_flight.len() as usize
    }

    /// Takes the error of a doorbell that has failed since the last call of this method, for a request that counts as
    /// [posted](Self::post).
    ///
    /// The device executes the request only after a successful doorbell, which comes with a later request. A doorbell
    /// that fails with `EACCES` always fails: after a change of the process's credentials (user, group or capabilities), the
    /// kernel refuses a `write` to the device. Linux before 5.0 has no other call for a doorbell.
    pub fn take_doorbell_error(&mut self) -> Option<Error> {
        let errno = mem::take(&mut self.sending_mut().doorbell);
        (errno != 0).then(|| Error::from_errno(POST_SEND, errno.saturating_abs()))
    }

    /// The number of unsignaled requests posted since the last signaled one.
    pub fn unsignaled(&self) -> usize {
        let sending = self.sending();
        let unsignaled = sending.signaling.unsignaled(sending.in_flight.next());
        (unsignaled as usize).min(self.in_flight())
    }

    /// Maximum number of requests in flight.
    ///
    /// On iWARP a request completed before an earlier one still takes up room, until the earlier
    /// one has completed, too.
    pub fn capacity(&self) -> usize {
        self.sending().in_flight.limit() as usize
    }

    /// Maximum number of elements of a request.
    pub fn max_sge(&self) -> usize {
        self.sending().limits.max_sge.get() as usize
    }

    /// Maximum number of [inline](crate::op::Inline) bytes in a request, as granted by the device:
    /// not fewer than requested.
    pub fn max_inline_data(&self) -> usize {
        self.sending().limits.max_inline as usize
    }

    /// The name of the queue pair, carried by its completions. A
    /// [reset](crate::QueuePair::to_reset) assigns another one.
    pub fn id(&self) -> QpId {
        self.sending().in_flight.next().qp()
    }

    /// Returns the work completed by `wc`.
    ///
    /// Earlier work without completions of its own is dropped; see
    /// [`complete_each`](Self::complete_each) to get them, too.
    ///
    /// On iWARP a request can complete before an earlier one, for example a send before a read.
    /// Every request has a completion there, and a completion returns only the work of its own
    /// request: if a completion is lost, its work stays in flight until the queue pair is destroyed
    /// or reset.
    ///
    /// # Errors
    /// The completion belongs to another queue, or is stale; the error returns the completion.
    #[inline(always)]
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, SW>, WorkCompletion<'p>> {
        self.complete_each(wc, drop)
    }

    /// Returns the work completed by `wc`. Before, passes each earlier work without a completion of
    /// its own, the unsignaled ones, to `earlier`.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    #[inline(always)]
    pub fn complete_each<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
        earlier: impl FnMut(SW),
    ) -> Result<Completion<'p, SW>, WorkCompletion<'p>> {
        let sending = self.sending_mut();
        let work = sending.in_flight.take(wc.wr_id(), earlier);
        given_back(work, wc, &mut sending.recorder)
    }

    /// As [`complete`](Self::complete), for a request that is not the oldest.
    #[inline]
    pub(super) fn complete_later<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, SW>, WorkCompletion<'p>> {
        let sending = self.sending_mut();
        let work = sending.in_flight.take_later(wc.wr_id(), drop);
        given_back(work, wc, &mut sending.recorder)
    }
}

impl<T: Transport, SW, RW> SendQueue<T, SW, RW> {
    /// `ibv_post_send`—Posts a request. The work belongs to the queue until returned by its
    /// completion.
    ///
    /// Does not block, enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// The error returns the request:
    /// - `WouldBlock`: as many requests are in flight as the queue can hold. Poll the completion
    ///   queue.
    /// - `InvalidInput`: the request has more elements, or carries more bytes, than the queue pair
    ///   was made for, or more bytes than its [token](crate::RemoteToken) grants; or an element has 2 GiB
    ///   or more, or the request more than 2 GiB; or the request reads, and
    ///   [`max_rd_atomic`](crate::qp::Attributes::max_rd_atomic) is 0.
    /// - `EINVAL`, `ENOMEM`, `EFAULT`: the device refused the request.
    ///
    /// After a failure without a proof that the device does not have the request, the error returns
    /// [no request](PostError::value), whose work stays in flight: until its completion, a completion
    /// of a later request, a [reset](crate::QueuePair::to_reset), or the destruction of the queue
    /// pair. A proof is the source of the device's library; devices of unknown vendors have none.
    ///
    /// On Soft-RoCE and Soft-iWARP the doorbell is a system call. A request whose doorbell fails
    /// counts as posted: the kernel finds the request with the next doorbell. Without a next one, nothing is sent:
    /// [`take_doorbell_error`](Self::take_doorbell_error) returns the error.
    ///
    /// # References
    /// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<T, Work = SW>,
    {
        self.post_gathered::<R, false>(request)
    }

    /// Posts a request, with all elements if `ALL`, else with those of the [usual case](SgeList::pass).
    #[inline(always)]
    fn post_gathered<R, const ALL: bool>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<T, Work = SW>,
    {
        let (inner, sending) = self.parts();
        // First of all: this may be a function call, and the compiler would forget all about the
        // elements.
        let Some(vacancy) = sending.in_flight.vacancy() else {
            return Err(sending.limits.refused(request).into());
        };
        let mut sges = SgeList::pass(ALL);
        request.gather(&mut sges);
        if !sges.finish() {
            return self.post_all(request);
        }
        // Nothing below panics. A possible panic would force `request` into memory, to be dropped
        // from there.
        let request = ManuallyDrop::new(request);
        let refuse = |request, error| {
            let value = ManuallyDrop::into_inner(request);
            Err(PostError::refused(value, error))
        };
        let refusal = sending.limits.refusal(POST_SEND, &sges, &*request);
        if let Some(error) = refusal {
            return refuse(request, error);
        }
        let id = vacancy.id();
        let (flags, unsignaled) =
            (sending.signaling).flags(request.flags(), |it| it.unsignaled(id));
        let mut wr = SendWr::unwritten();
        let (mut single, count) = (MaybeUninit::uninit(), sges.count());
        wr.begin(id, sges.lay_out(&mut single), count, flags);
        request.describe(&mut wr);
        let mut bad = BadWr::new();
        // SAFETY: the queue pair is created (invariant of `Inner`), and `wr` is one request with
        // every field used by its opcode. Assumption: C reads requests and their elements only
        // before a post returns. The described memory stays as `Gather` promises until `request` is
        // dropped, and so until the queue pair is destroyed or the completion has come.
        let errno =
            unsafe { (inner.table.post_send)(inner.raw.as_ptr(), wr.as_mut_ptr(), bad.as_out()) };
        if errno != 0 {
            let effect = bad.effect(inner.pd.context(), QueueKind::Send, wr.as_mut_ptr());
            let request = ManuallyDrop::into_inner(request);
            let bytes = Recorder::bytes(&sges);
            return self.post_failed(request, errno, effect, flags, unsignaled, bytes);
        }
        sending.recorder.posted::<R>(id, sges.bytes(), flags);
        sending.signaling.posted(unsignaled, id.next());
        vacancy.fill(ManuallyDrop::into_inner(request).into_work());
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn post_all<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<T, Work = SW>,
    {
        self.post_gathered::<R, true>(request)
    }

    /// Ends a failed post: the queue keeps the work, unless the request is certainly not posted.
    #[cold]
    #[inline(never)]
    fn post_failed<R>(
        &mut self,
        request: R,
        errno: i32,
        effect: Effect,
        flags: ffi::ibv_send_flags,
        unsignaled: u32,
        bytes: u64,
    ) -> Result<(), PostError<R>>
    where
        R: SendRequest<T, Work = SW>,
    {
        let (inner, sending) = self.parts();
        if effect == Effect::Posted(0) {
            let id = sending.in_flight.next();
            sending.recorder.refused(id, 1, errno);
            let error = bad_wr::failure(POST_SEND, errno, effect, QueueKind::Send);
            return Err(PostError::refused(request, error));
        }
        let Some(vacancy) = sending.in_flight.vacancy() else {
            // Not reached: the post has found a slot.
            let _leaked = ManuallyDrop::new(request);
            return bad_wr::result_of_posted(POST_SEND, errno, effect, QueueKind::Send);
        };
        let id = vacancy.id();
        sending.recorder.posted::<R>(id, bytes, flags);
        sending.signaling.posted(unsignaled, id.next());
        vacancy.fill(request.into_work());
        if matches!(effect, Effect::Posted(_)) {
            // SAFETY: the queue pair is created (invariant of `Inner`).
            sending.doorbell = unsafe { ring_again(inner.raw, inner.pd.context(), errno) };
        }
        bad_wr::result_of_posted(POST_SEND, errno, effect, QueueKind::Send)
    }
}

impl<T, SW, RW> ReceiveQueue<T, SW, RW> {
    #[inline]
    pub(super) fn receiving(&self) -> &Receiving<RW> {
        // SAFETY: only this half accesses the cell (invariant of `Inner`), and `&self` excludes a
        // mutable borrow through this half.
        unsafe { &*self.inner.receive.get() }
    }

    #[inline]
    pub(super) fn receiving_mut(&mut self) -> &mut Receiving<RW> {
        // SAFETY: only this half accesses the cell (invariant of `Inner`), and `&mut self` excludes
        // every other borrow through this half.
        unsafe { &mut *self.inner.receive.get() }
    }

    /// The constant part, and the mutable one.
    #[inline]
    fn parts(&mut self) -> (&Inner<SW, RW>, &mut Receiving<RW>) {
        // SAFETY: as for `receiving_mut`.
        let receiving = unsafe { &mut *self.inner.receive.get() };
        (&self.inner, receiving)
    }

    /// The number of receives posted and not returned.
    pub fn in_flight(&self) -> usize {
        self.receiving().in_flight.len() as usize
    }

    /// Maximum number of receives in flight.
    pub fn capacity(&self) -> usize {
        self.receiving().in_flight.limit() as usize
    }

    /// Maximum number of elements of a receive.
    pub fn max_sge(&self) -> usize {
        self.receiving().limits.max_sge() as usize
    }

    /// The name of the queue pair, carried by its completions. A
    /// [reset](crate::QueuePair::to_reset) assigns another one.
    pub fn id(&self) -> QpId {
        self.receiving().in_flight.next().qp()
    }

    /// Returns the work completed by `wc`.
    ///
    /// # Errors
    /// The completion belongs to another queue, or is stale; the error returns the completion.
    #[inline(always)]
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, RW>, WorkCompletion<'p>> {
        let receiving = self.receiving_mut();
        let work = receiving.in_flight.take(wc.wr_id(), drop);
        given_back(work, wc, &mut receiving.recorder)
    }

    /// As [`complete`](Self::complete), for a request that is not the oldest.
    #[inline]
    pub(super) fn complete_later<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, RW>, WorkCompletion<'p>> {
        let receiving = self.receiving_mut();
        let work = receiving.in_flight.take_later(wc.wr_id(), drop);
        given_back(work, wc, &mut receiving.recorder)
    }
}

impl<T: Transport, SW, RW: Scatter> ReceiveQueue<T, SW, RW> {
    /// `ibv_post_recv`—Posts memory for one message. The memory belongs to the queue until returned
    /// by its completion.
    ///
    /// Does not block, enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// As for [`SendQueue::post`]; the error returns the work, if the device certainly does not have it.
    ///
    /// # References
    /// [ibv_post_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html)
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post(&mut self, work: RW) -> Result<(), PostError<RW>> {
        self.post_gathered::<false>(work)
    }

    /// Posts work, with all elements if `ALL`, as for a request to send.
    #[inline(always)]
    fn post_gathered<const ALL: bool>(&mut self, work: RW) -> Result<(), PostError<RW>> {
        let (inner, receiving) = self.parts();
        // First of all, as for a request to send.
        let Some(vacancy) = receiving.in_flight.vacancy() else {
            return Err(full_of_receives(receiving.limits, work));
        };
        let mut sges = SgeList::pass(ALL);
        work.gather(&mut sges);
        if !sges.finish() {
            return self.post_all(work);
        }
        if let Some(error) = receiving.limits.refusal(POST_RECV, &sges) {
            return Err(PostError::refused(work, error));
        }
        let (mut single, num_sge) = (MaybeUninit::uninit(), sges.count());
        let mut wr = ffi::ibv_recv_wr {
            wr_id: vacancy.id().0,
            next: ptr::null_mut(),
            sg_list: sges.lay_out(&mut single),
            num_sge,
        };
        let mut bad = BadWr::new();
        // SAFETY: the queue pair is created (invariant of `Inner`), and `wr` is one complete
        // request. Assumption: C reads requests and their elements only before a post returns. The
        // described memory stays as `Scatter` promises until `work` is dropped, and so until the
        // queue pair is destroyed or the completion has come.
        let errno =
            unsafe { (inner.table.post_recv)(inner.raw.as_ptr(), &raw mut wr, bad.as_out()) };
        if errno != 0 {
            let effect = bad.effect(inner.pd.context(), QueueKind::Receive, &raw const wr);
            return self.post_failed(work, errno, effect, Recorder::bytes(&sges));
        }
        receiving.recorder.received(vacancy.id(), sges.bytes());
        vacancy.fill(work);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn post_all(&mut self, work: RW) -> Result<(), PostError<RW>> {
        self.post_gathered::<true>(work)
    }

    /// Ends a failed post: the queue keeps the work, unless the receive is certainly not posted.
    #[cold]
    #[inline(never)]
    fn post_failed(
        &mut self,
        work: RW,
        errno: i32,
        effect: Effect,
        bytes: u64,
    ) -> Result<(), PostError<RW>> {
        let receiving = self.receiving_mut();
        if effect == Effect::Posted(0) {
            let id = receiving.in_flight.next();
            receiving.recorder.refused(id, 1, errno);
            let error = bad_wr::failure(POST_RECV, errno, effect, QueueKind::Receive);
            let error = bad_wr::explain_receive(error, &work);
            return Err(PostError::refused(work, error));
        }
        let Some(vacancy) = receiving.in_flight.vacancy() else {
            // Not reached: the post has found a slot.
            let _leaked = ManuallyDrop::new(work);
            return bad_wr::result_of_posted(POST_RECV, errno, effect, QueueKind::Receive);
        };
        receiving.recorder.received(vacancy.id(), bytes);
        vacancy.fill(work);
        bad_wr::result_of_posted(POST_RECV, errno, effect, QueueKind::Receive)
    }
}

#[inline(always)]
fn given_back<'p, W>(
    work: Option<W>,
    wc: WorkCompletion<'p>,
    recorder: &mut Recorder,
) -> Result<Completion<'p, W>, WorkCompletion<'p>> {
    match work {
        Some(work) => {
            recorder.completed(&wc);
            Ok(Completion::new(work, wc))
        }
        None => Err(wc),
    }
}

/// The refusal of a receive on a full queue, with a more lasting reason if there is one.
#[cold]
#[inline(never)]
fn full_of_receives<W: Scatter>(limits: RecvLimits, work: W) -> PostError<W> {
    let error = limits.refusal(POST_RECV, &SgeList::of(&work));
    let error = error.unwrap_or_else(|| refusal::full(POST_RECV));
    PostError::refused(work, error)
}

impl<T: Transport, SW, RW> fmt::Debug for SendQueue<T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("transport", &T::NAME)
            .field("qp_num", &self.inner.qp_num())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl<T: Transport, SW, RW> fmt::Debug for ReceiveQueue<T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("transport", &T::NAME)
            .field("qp_num", &self.inner.qp_num())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "queues_layout.rs"]
mod layout;
