//! Teardown of a queue pair, with the return of all work in flight.

use std::{
    fmt, io, mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs_sys as ffi;

use super::{
    key, multicast,
    pair::{Completed, QueuePair},
    queues::Inner,
    state::{Reset, State},
    transport::Transport,
};
use crate::{
    cq::{CompletionQueue, WorkCompletion},
    error::{Error, Refused, Result},
    quirk,
    wr_id::{OwnedQpId, QueueId},
};

/// Work returned without completions, because its queue pair has been
/// [destroyed](QueuePair::destroy) or [reset](QueuePair::to_reset): in posting order.
///
/// The device's progress with them is unknown.
pub struct Leftover<SW, RW> {
    /// The work of the send queue.
    pub send: Vec<SW>,
    /// The work of the receive queue.
    pub receive: Vec<RW>,
}

impl<SW, RW> fmt::Debug for Leftover<SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leftover")
            .field("send", &self.send.len())
            .field("receive", &self.receive.len())
            .finish()
    }
}

/// Interval between polls of a drain without completions.
const PAUSE: Duration = Duration::from_micros(100);

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// Puts the queue pair into the error state, and takes back the work in flight, for at most
    /// `timeout`.
    ///
    /// `cqs` are the completion queues of the queue pair, or the single one. Every completion goes
    /// to `done`: taken back, or, if of another queue pair, unchanged.
    ///
    /// Unsignaled requests that have succeeded already never complete without a later signaled one.
    /// Their work stays in flight, and returns from [`destroy`](Self::destroy) or
    /// [`to_reset`](QueuePair::to_reset).
    ///
    /// # Errors
    /// - `TimedOut`: work is still in flight. Work returned earlier has gone to `done`.
    /// - As for [`to_error`](Self::to_error) and [`CompletionQueue::poll`].
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use verbs::Completed;
    /// # let (_peer, mut qp, mut queue) = doctest::connected();
    /// # let cq = &mut queue;
    /// # qp.post_recv(qp.pd().alloc_buf(64)?)?;
    /// qp.drain(&mut [cq], Duration::from_secs(1), |done| match done {
    ///     Ok(Completed::Send(done)) => println!("{:?}", done.into_parts()),
    ///     Ok(Completed::Receive(done)) => println!("unused: {:?}", done.into_parts()),
    ///     Err(other) => println!("of another queue pair: {other:?}"),
    /// })?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn drain(
        &mut self,
        cqs: &mut [&mut CompletionQueue],
        timeout: Duration,
        mut done: impl FnMut(Result<Completed<'_, SW, RW>, WorkCompletion<'_>>),
    ) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        self.to_error()?;
        loop {
            // Read before polling: the next round finds later completions.
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let mut completed = false;
            for cq in &mut *cqs {
                for wc in cq.poll()? {
                    completed = true;
                    done(self.complete(wc));
                }
            }
            if self.is_drained() {
                return Ok(());
            }
            if late {
                let (sends, receives) = self.in_flight();
                let reason = format!("{sends} sends and {receives} receives are still in flight");
                return Err(Error::refused(
                    "QueuePair::drain",
                    io::ErrorKind::TimedOut,
                    reason,
                ));
            }
            if !completed {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Whether all work that can complete has returned: see [`drain`](Self::drain).
    fn is_drained(&self) -> bool {
        let (sends, receives) = self.in_flight();
        receives == 0 && sends <= self.send_queue().unsignaled()
    }

    fn in_flight(&self) -> (usize, usize) {
        (
            self.send_queue().in_flight(),
            self.receive_queue().in_flight(),
        )
    }

    /// `ibv_destroy_qp`—Destroys the queue pair, and returns the work in flight: the device has
    /// lost its access to them.
    ///
    /// Dropping the queue pair destroys it too, and drops the work.
    ///
    /// # Errors
    /// - `ResourceBusy`: a [`Flow`](crate::flow::Flow), a [`MemoryWindow`](crate::MemoryWindow) or a
    ///   [`QpHandle`](crate::qp::QpHandle) needs the queue pair. Drop the dependent object first.
    /// - `ResourceBusy`: on EFA, requests are in flight. The queue pair is in the error state from then on;
    ///   [drain](Self::drain) it first. A drop leaks it, with its work.
    /// - `EBUSY`: another object, made by C code, still uses the queue pair.
    ///
    /// The error returns the queue pair, attached to its multicast groups. If `ibv_destroy_qp` fails
    /// with a provider that frees parts of the queue pair first (Soft-iWARP, ocrdma, EFA), the queue
    /// pair and its work are leaked, and the error returns `None`.
    ///
    /// # References
    /// [ibv_destroy_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html)
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<Leftover<SW, RW>, Refused<Option<Self>>> {
        // Both halves are here, so the only other owners are flows, windows and handles.
        let shared = self.into_inner();
        let mut inner = match Arc::try_unwrap(shared) {
            Ok(inner) => inner,
            Err(shared) => {
                let reason = "a flow, a window or a handle still needs it";
                let error = Error::refused("ibv_destroy_qp", io::ErrorKind::ResourceBusy, reason);
                // SAFETY: just taken out of a queue pair of this type.
                let value = Some(unsafe { Self::from_inner(shared) });
                return Err(Refused { value, error });
            }
        };
        let groups = inner.attached.groups();
        match inner.destroy() {
            Ok(()) => Ok(inner.take_leftover()),
            // A refusal by this crate: nothing has been called.
            Err(error) if error.raw_os_error().is_none() => {
                // SAFETY: just taken out of a queue pair of this type.
                let value = Some(unsafe { Self::from_inner(Arc::new(inner)) });
                Err(Refused { value, error })
            }
            Err(error) if quirk::failed_destroy_frees_queues(inner.pd.context()) => {
                // No call is made with the queue pair any more.
                #[expect(clippy::mem_forget, reason = "the device may still use it")]
                mem::forget(inner);
                Err(Refused { value: None, error })
            }
            Err(error) => {
                // SAFETY: the queue pair exists. Assumption: a failed destruction leaves the queue
                // pair as it was.
                unsafe { multicast::attach_again(&inner, groups) };
                // SAFETY: just taken out of a queue pair of this type.
                let value = Some(unsafe { Self::from_inner(Arc::new(inner)) });
                Err(Refused { value, error })
            }
        }
    }

    /// `ibv_modify_qp(qp, IBV_QPS_RESET)`—Resets the queue pair, and returns the work in flight:
    /// the device drops them without completions.
    ///
    /// The queue pair has another [id](Self::id) from then on. Completions from before the reset
    /// carry the old one, and [`complete`](Self::complete) returns them as errors.
    ///
    /// # Errors
    /// - `InvalidInput`: the completion queue has no room for the old completions beside new ones.
    /// - `Unsupported`: the device's library (EFA) would take old completions for those of new requests. Drain and destroy
    ///   the queue pair, and create another.
    /// - Any error of the device.
    ///
    /// The error returns the queue pair.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    #[expect(clippy::type_complexity, reason = "the queue pair and its work")]
    pub fn to_reset(
        mut self,
    ) -> Result<(QueuePair<T, Reset, SW, RW>, Leftover<SW, RW>), Refused<Self>> {
        match self.reset() {
            Ok(leftover) => Ok((self.with_state(), leftover)),
            Err(error) => Err(Refused { value: self, error }),
        }
    }

    fn reset(&mut self) -> Result<Leftover<SW, RW>> {
        if quirk::looks_up_requests_when_polled(self.pd().context()) {
            let reason = "the device's library would take old completions for those of new requests; \
                          drain and destroy the queue pair, and create another";
            return Err(Error::refused(
                "ibv_modify_qp",
                io::ErrorKind::Unsupported,
                reason,
            ));
        }
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RESET;
        // Old completions, not polled yet, take up entries beside the new ones.
        let (send, receive) = self.halves_mut();
        let (send, receive) = (send.sending_mut(), receive.receiving_mut());
        let (call, in_flight) = ("ibv_modify_qp", send.in_flight.len());
        let sends = send.reservation.more_for_stale(call, in_flight)?;
        let in_flight = receive.in_flight.len();
        let receives = receive.reservation.more_for_stale(call, in_flight)?;
        self.modify_raw(attr, ffi::ibv_qp_attr_mask::IBV_QP_STATE.0, Reset::NAME)?;
        sends.keep();
        receives.keep();
        let (send, receive) = self.halves_mut();
        let (send, receive) = (send.sending_mut(), receive.receiving_mut());
        // The device has not used the works since the reset. Old completions, not polled yet or
        // held, carry the former id.
        let former = mem::replace(&mut send.id, OwnedQpId::new());
        let id = send.id.id();
        key::move_key(former.id(), id);
        let leftover = Leftover {
            send: send.in_flight.restart(QueueId::send(id)),
            receive: receive.in_flight.restart(QueueId::receive(id)),
        };
        send.signaling.set(0, send.in_flight.next());
        // While the former identity lives, so that the table never has a dead one.
        self.inner().name_receiver(id);
        drop(former);
        Ok(leftover)
    }
}

impl<SW, RW> Inner<SW, RW> {
    /// Refuses the destruction while completions may come, where their requests are [looked
    /// up](quirk::looks_up_requests_when_polled) in the queue pair; the completions come from the error state.
    ///
    /// # Safety
    /// - As for [`destroy_raw`](Self::destroy_raw).
    pub(super) unsafe fn check_completions(&self) -> Result<()> {
        let (send, receive) = self.cells();
        // SAFETY: nothing else uses the cell, as the caller promises.
        let sends = unsafe { &*send }.in_flight.len();
        // SAFETY: as above.
        let receives = unsafe { &*receive }.in_flight.len();
        if sends + receives == 0 || !quirk::looks_up_requests_when_polled(self.pd.context()) {
            return Ok(());
        }
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0;
        // SAFETY: the queue pair exists, and `attr` is complete. After a failure, the requests stay in flight. Assumption: C keeps
        // no pointer to the attributes.
        let _: i32 = unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &raw mut attr, mask as i32) };
        let reason = format!(
            "{sends} sends and {receives} receives are in flight, and the device's library looks up their completions in the \
             queue pair; drain it first: poll until all of the work has returned"
        );
        Err(Error::refused(
            "ibv_destroy_qp",
            io::ErrorKind::ResourceBusy,
            reason,
        ))
    }
}
