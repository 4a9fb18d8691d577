//! Waking threads that wait for events of completion queues.

use std::{
    fmt, io, ptr,
    sync::{Mutex, PoisonError},
};

use ibverbs_sys as ffi;

use super::{
    channel::{CompletionChannel, CqKey},
    queue::{CompletionQueue, Notify},
};
use crate::{
    error::{Error, Result, cvt_errno},
    mr::Buf,
    pd::ProtectionDomain,
    qp::{self, Attributes, Init, QueuePair},
};

/// Capacity of the queue pair. One request is with the device at a time, but its completion may precede the release of
/// its entry.
const ROOM: u32 = 4;

/// Wakes threads blocked in [`CompletionChannel::wait`], by an event on the channel.
///
/// `ibv_get_cq_event` has no timeout, and waits for one descriptor only. A program with other descriptors or a
/// timeout makes the channel's descriptor nonblocking, and polls the descriptors before taking an event: three
/// system calls instead of one.
///
/// The event is a completion event of a private queue, whose queue pair is in the error state, so that the
/// device completes each request at once.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// use verbs::cq::CqKey;
/// const STOP: CqKey = CqKey(usize::MAX);
/// let pd = ctx.alloc_pd()?;
/// let channel = ctx.create_comp_channel()?;
/// let waker = channel.waker(&pd, STOP)?;
/// std::thread::scope(|scope| {
///     let waiter = scope.spawn(|| channel.wait());
///     waker.wake()?;
///     assert_eq!(waiter.join().expect("it does not panic")?, STOP);
///     Ok::<(), verbs::Error>(())
/// })?;
/// # Ok::<(), verbs::Error>(())
/// ```
pub struct ChannelWaker {
    requests: Mutex<Requests>,
}

/// Requests that the device hands back.
struct Requests {
    // Destroyed before its completion queue.
    qp: QueuePair<qp::Rc, Init, Buf, Buf>,
    cq: CompletionQueue,
    /// How many there have been, each with an event of its own: the next is made when that has been taken.
    posted: u32,
}

impl CompletionChannel {
    /// Creates a waker for the threads waiting on this channel; its events have the key `key`. Enters the kernel.
    ///
    /// # Errors
    /// - `Unsupported`: the device speaks iWARP, whose queue pairs take no requests in the error state.
    /// - `EINVAL`: the domain is of another device.
    /// - As for [creating](crate::qp::QueuePairBuilder::create) queues, and queue pairs.
    pub fn waker(&self, pd: &ProtectionDomain, key: CqKey) -> Result<ChannelWaker> {
        let ctx = pd.context();
        if ctx.is_iwarp() {
            let reason = "queue pairs of iWARP take no requests in the error state";
            let kind = io::ErrorKind::Unsupported;
            return Err(Error::refused("CompletionChannel::waker", kind, reason));
        }
        if ctx != self.context() {
            let reason = "the domain is of another device than the channel";
            let kind = io::ErrorKind::InvalidInput;
            return Err(Error::refused("CompletionChannel::waker", kind, reason));
        }
        let cq = ctx.cq_builder(ROOM).channel(self, key).create()?;
        let qp = pd
            .qp_builder::<qp::Rc>(&cq, &cq)
            .max_send_wr(ROOM)
            .max_recv_wr(1)
            .create()?;
        let mut qp = qp.to_init(&Attributes::<qp::Rc, Init>::new(1))?;
        qp.to_error()?;
        let requests = Requests { qp, cq, posted: 0 };
        Ok(ChannelWaker {
            requests: Mutex::new(requests),
        })
    }
}

impl ChannelWaker {
    /// Wakes one thread blocked in [`wait`](CompletionChannel::wait), or the next one to block.
    ///
    /// Calls coalesce until a thread has taken the event, so at most one event of this waker is
    /// pending in the kernel. May enter the kernel.
    ///
    /// # Errors
    /// The device refused, or is gone.
    pub fn wake(&self) -> Result<()> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Requests { qp, cq, posted } = &mut *requests;
        if events_taken(cq) != *posted {
            // The last event has not been taken yet. The thread that takes the event sees
            // everything the caller did before this call.
            return Ok(());
        }
        // The last event has been taken, so the completion of its request is in the queue.
        while cq.poll()?.count() > 0 {}
        cq.req_notify(Notify::Next)?;
        let mut request = ffi::ibv_send_wr::zeroed();
        request.opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        request.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists as long as it is borrowed, and has room for one more request (the last has
        // come back); this one has no memory. C reads it before it returns, and writes to `bad`,
        // which is ours.
        let ret = unsafe { ffi::ibv_post_send(qp.as_raw(), &raw mut request, &raw mut bad) };
        cvt_errno("ibv_post_send", ret)?;
        *posted = posted.wrapping_add(1);
        Ok(())
    }
}

/// How many events of this queue have been taken, and acknowledged, from the channel. libibverbs counts them, modulo
/// 2^32, since it has to wait for them when the queue is destroyed.
fn events_taken(cq: &CompletionQueue) -> u32 {
    let cq = cq.as_raw();
    // SAFETY: the queue exists as long as it is borrowed. libibverbs has made its lock.
    let lock = unsafe { &raw mut (*cq).mutex };
    // SAFETY: as above. The calling thread does not have the lock: only calls of C take it beside this function, and
    // have released it when they return.
    let _: i32 = unsafe { libc::pthread_mutex_lock(lock) };
    // SAFETY: the queue exists, and `ibv_ack_cq_events`, which changes the number, does so with the lock.
    let taken = unsafe { (*cq).comp_events_completed };
    // SAFETY: this thread has locked it, above.
    let _: i32 = unsafe { libc::pthread_mutex_unlock(lock) };
    taken
}

impl fmt::Debug for ChannelWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelWaker").finish_non_exhaustive()
    }
}
