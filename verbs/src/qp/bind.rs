//! Binding memory windows.

use std::{
    any::Any,
    io,
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys as ffi;

use super::{
    extended_batch::ExtendedBatch, pair::QueuePair, queues::SendQueue, refusal, state::Rts,
    transport::Connected,
};
use crate::{
    access::RemoteAccess,
    bad_wr::{self, BadWr, Effect, QueueKind},
    context::Context,
    doorbell::ring_again,
    error::{Error, PostError, Refused, Result},
    mr::{RemoteRegion, RemoteToken},
    mw::{Before, MemoryWindow, WindowType},
    op::{self, Parts, SendOps, SendWr},
    pd::ProtectionDomain,
    quirk::{FailedBind, FailedPosts},
    work::SgeList,
    wr_id::WrId,
};

impl<T: Connected, SW: Send + 'static, RW: Send + 'static> SendQueue<T, SW, RW> {
    /// `ibv_bind_mw`, `IBV_WR_BIND_MW`—Posts a request that binds a window to a region, or a
    /// [part](RemoteRegion::slice) of one. Always signaled; the completion returns `work`.
    ///
    /// The token is for the peer, once the request has succeeded. The region must have been made
    /// [for windows](crate::ProtectionDomain::alloc_for_windows).
    ///
    /// # Errors
    /// The error returns the work:
    /// - `WouldBlock`: as many requests are in flight as the queue can hold.
    /// - `InvalidInput`: the window and the queue pair are of different domains, or the region is of another device.
    /// - `QuotaExceeded`: the window has been bound by 16 other queue pairs, and keeps them. Drop
    ///   the window, and allocate another.
    /// - `EINVAL`, `ENOMEM`: the device refused the request.
    ///
    /// After a failure without a proof that the device does not have the request, the error returns
    /// no work, and the window keeps the region, as if bound; see [`post`](Self::post).
    ///
    /// # References
    /// [ibv_bind_mw(3)](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html)
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_window(
        &mut self,
        window: &mut MemoryWindow,
        region: &RemoteRegion,
        access: RemoteAccess,
        work: SW,
    ) -> Result<RemoteToken, PostError<SW>> {
        let call = match window.window_type() {
            WindowType::Type1 => "ibv_bind_mw",
            WindowType::Type2 => "ibv_post_send",
        };
        if let Err(error) = same_domain(call, window, region, &self.inner.pd) {
            return Err(PostError::refused(work, error));
        }
        let raw = self.inner.raw;
        let ctx = self.inner.pd.context().clone();
        // A binding of type 2 also belongs to the queue pair, which cannot be destroyed before the
        // window.
        let qp = (window.window_type() == WindowType::Type2)
            .then(|| Arc::clone(&self.inner) as Arc<dyn Any + Send + Sync>);
        if let Some(qp) = &qp
            && let Err(error) = window.check_binder(call, qp)
        {
            return Err(PostError::refused(work, error));
        }
        let sending = self.sending_mut();
        let Some(vacancy) = sending.in_flight.vacancy() else {
            return Err(PostError::refused(work, refusal::full(call)));
        };
        let token = region.token();
        let bind_info = bind_info(region, access);
        let id = vacancy.id();
        let as_request = window.window_type() == WindowType::Type2
            || FailedPosts::of(&ctx).bind == FailedBind::AsRequest;
        let bind = if as_request {
            bind_as_request
        } else {
            bind_by_call
        };
        // SAFETY: the queue pair and the window exist, and `&mut` excludes other uses of either; the
        // region is registered for as long as `region` lives.
        let (errno, effect, rkey) = unsafe { bind(raw, &ctx, id, window, bind_info) };
        if effect == Effect::Posted(0) {
            let error = bad_wr::failure(call, errno, effect, QueueKind::Send);
            return Err(PostError::refused(work, error));
        }
        let before = window.set_bound(region, rkey, qp);
        (sending.recorder).posted::<MemoryWindow>(id, 0, ffi::ibv_send_flags::IBV_SEND_SIGNALED);
        vacancy.fill(work);
        if errno != 0 && matches!(effect, Effect::Posted(_)) {
            // SAFETY: the queue pair exists, as above.
            sending.doorbell = unsafe { ring_again(raw, &ctx, errno) };
        }
        // Once the posted request is recorded.
        drop(before);
        bad_wr::result_of_posted(call, errno, effect, QueueKind::Send)
            .map(|()| RemoteToken { rkey, ..token })
    }
}

/// Posts a binding as a request. Returns the error number, the effect, and the new key.
///
/// # Safety
/// - The queue pair and the window exist without other users, and the region is registered.
unsafe fn bind_as_request(
    qp: NonNull<ffi::ibv_qp>,
    ctx: &Context,
    id: WrId,
    window: &mut MemoryWindow,
    bind_info: ffi::ibv_mw_bind_info,
) -> (i32, Effect, u32) {
    let rkey = ffi::ibv_inc_rkey(window.rkey());
    let mut wr = SendWr::unwritten();
    let signaled = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
    wr.begin(id, ptr::null_mut(), 0, signaled);
    wr.bind_window(window.as_raw(), rkey, bind_info);
    let mut bad = BadWr::new();
    // SAFETY: the queue pair exists, and `wr` is one complete request, without elements. The window and
    // the region exist during the call, and C does not use them afterwards.
    let errno = unsafe { ffi::ibv_post_send(qp.as_ptr(), wr.as_mut_ptr(), bad.as_out()) };
    let effect = match errno {
        0 => Effect::Posted(1),
        _ => bad.effect(ctx, QueueKind::Send, wr.as_mut_ptr()),
    };
    (errno, effect, rkey)
}

/// Posts a binding by `ibv_bind_mw`. Returns the error number, the effect, and the new key.
///
/// # Safety
/// - As for [`bind_as_request`].
unsafe fn bind_by_call(
    qp: NonNull<ffi::ibv_qp>,
    ctx: &Context,
    id: WrId,
    window: &mut MemoryWindow,
    bind_info: ffi::ibv_mw_bind_info,
) -> (i32, Effect, u32) {
    let mut bind = ffi::ibv_mw_bind {
        wr_id: id.0,
        send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
        bind_info,
    };
    // SAFETY: the caller's promise. C keeps no pointer to `bind`.
    let errno = unsafe { ffi::ibv_bind_mw(qp.as_ptr(), window.as_raw(), &raw mut bind) };
    let effect = match (errno, FailedPosts::of(ctx).bind) {
        (0, _) => Effect::Posted(1),
        (_, FailedBind::Unposted) => Effect::Posted(0),
        _ => Effect::Unknown,
    };
    // C has set the new key.
    (errno, effect, window.rkey())
}

impl<T: Connected, SW: Send + 'static, RW: Send + 'static> QueuePair<T, Rts, SW, RW> {
    /// `ibv_bind_mw`, `IBV_WR_BIND_MW`—Binds a memory window; see [`SendQueue::bind_window`].
    ///
    /// # Errors
    /// As for [`SendQueue::bind_window`].
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_window(
        &mut self,
        window: &mut MemoryWindow,
        region: &RemoteRegion,
        access: RemoteAccess,
        work: SW,
    ) -> Result<RemoteToken, PostError<SW>> {
        self.halves_mut()
            .0
            .bind_window(window, region, access, work)
    }
}

fn same_domain(
    call: &'static str,
    window: &MemoryWindow,
    region: &RemoteRegion,
    pd: &ProtectionDomain,
) -> Result<()> {
    let reason = if window.pd() != pd {
        "the window and the queue pair are of different protection domains"
    } else if region.pd().context() != pd.context() {
        "the region and the queue pair are of different devices"
    } else {
        return Ok(());
    };
    Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
}

/// A binding in the form of a request.
struct Bind;

impl Parts for Bind {
    const DATA: bool = false;

    fn flags(&self) -> ffi::ibv_send_flags {
        ffi::ibv_send_flags::IBV_SEND_SIGNALED
    }
}

fn bind_info(region: &RemoteRegion, access: RemoteAccess) -> ffi::ibv_mw_bind_info {
    let token = region.token();
    ffi::ibv_mw_bind_info {
        mr: region.mr(),
        addr: token.addr,
        length: token.len,
        mw_access_flags: access.rights(),
    }
}

/// A binding that may not be posted.
pub(super) struct UnpostedBind<'q> {
    window: &'q mut MemoryWindow,
    before: Before,
}

impl UnpostedBind<'_> {
    pub(super) fn undo(self) {
        self.window.restore(self.before);
    }
}

impl<'q, T: Connected, SW: Send + 'static, RW: Send + 'static> ExtendedBatch<'q, T, SW, RW> {
    /// `ibv_wr_bind_mw`—Adds a request that binds a window of type 2 to a region, or a
    /// [part](RemoteRegion::slice) of one. Always signaled; the completion returns `work`.
    ///
    /// The token is valid for the peer once the request has succeeded: a send added later in the
    /// batch can carry the token. If the batch is not posted, the window is unchanged. The first
    /// window of a batch makes the batch allocate.
    ///
    /// # Errors
    /// The error returns the work:
    /// - `InvalidInput`: the window is of type 1, or of another domain than the queue pair; or the region is of another
    ///   device.
    /// - Otherwise as for [`push`](Self::push).
    ///
    /// # References
    /// [ibv_wr_bind_mw(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind_window(
        &mut self,
        window: &'q mut MemoryWindow,
        region: &RemoteRegion,
        access: RemoteAccess,
        work: SW,
    ) -> Result<RemoteToken, Refused<SW>> {
        let call = SendOps::BIND_MW.call();
        if let Err(error) = same_domain(call, window, region, &self.queue.inner.pd) {
            return Err(Refused { value: work, error });
        }
        if window.window_type() != WindowType::Type2 {
            let reason = "a window of type 1 is bound by `SendQueue::bind_window`";
            let error = Error::refused(call, io::ErrorKind::InvalidInput, reason);
            return Err(Refused { value: work, error });
        }
        let qp = Arc::clone(&self.queue.inner) as Arc<dyn Any + Send + Sync>;
        if let Err(error) = window.check_binder(call, &qp) {
            return Err(Refused { value: work, error });
        }
        let admitted = match self.admit(SendOps::BIND_MW, &SgeList::new(), &Bind) {
            Ok(admitted) => admitted,
            Err(error) => return Err(Refused { value: work, error }),
        };
        let rkey = ffi::ibv_inc_rkey(window.rkey());
        let mut recording = self.record(&admitted);
        // The window is borrowed for as long as the batch, and keeps the region.
        recording.bind_mw(op::Binding {
            mw: window.as_raw(),
            rkey_before: window.rkey(),
            rkey,
            bind_info: bind_info(region, access),
        });
        recording.keep();
        // SAFETY: admitted above.
        unsafe { self.put(admitted, work) };
        let before = window.set_bound(region, rkey, Some(qp));
        self.bindings.push(UnpostedBind { window, before });
        Ok(RemoteToken {
            rkey,
            ..region.token()
        })
    }
}
