//! Binding memory windows.

use std::{any::Any, io, ptr, sync::Arc};

use ibverbs_sys as ffi;

use super::{pair::QueuePair, queues::SendQueue, refusal, state::Rts, transport::Connected};
use crate::{
    access::RemoteAccess,
    error::{Error, Refused, Result, cvt_errno},
    mr::{RemoteRegion, RemoteToken},
    mw::{MemoryWindow, WindowType},
    op::SendWr,
    work::SgeList,
};

impl<T: Connected, SW: Send + 'static, RW: Send + 'static> SendQueue<T, SW, RW> {
    /// `ibv_bind_mw`, `IBV_WR_BIND_MW`—Posts a request that binds a window to a region, or a
    /// [part](RemoteRegion::slice) of one. It is signaled, and gives `work` back when it is done.
    ///
    /// The token is for the peer, once the request has succeeded. The region must have been made
    /// [for windows](crate::ProtectionDomain::alloc_for_windows).
    ///
    /// # Errors
    /// The work is given back:
    /// - `WouldBlock`: as many requests are in flight as the queue can hold.
    /// - `InvalidInput`: the window and the queue pair are of different domains.
    /// - `EINVAL`, `ENOMEM`: the device refused the request.
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
    ) -> Result<RemoteToken, Refused<SW>> {
        let call = match window.window_type() {
            WindowType::Type1 => "ibv_bind_mw",
            WindowType::Type2 => "ibv_post_send",
        };
        if *window.pd() != self.inner.pd {
            let reason = "the window and the queue pair are of different protection domains";
            let error = Error::refused(call, io::ErrorKind::InvalidInput, reason);
            return Err(Refused { value: work, error });
        }
        let raw = self.inner.raw;
        // A binding of type 2 is the queue pair's, too, which is not destroyed before it.
        let qp = (window.window_type() == WindowType::Type2)
            .then(|| Arc::clone(&self.inner) as Arc<dyn Any + Send + Sync>);
        let sending = self.sending_mut();
        let Some(vacancy) = sending.in_flight.vacancy() else {
            let error = refusal::full(call);
            return Err(Refused { value: work, error });
        };
        let token = region.token();
        let bind_info = ffi::ibv_mw_bind_info {
            mr: region.mr(),
            addr: token.addr,
            length: token.len,
            mw_access_flags: access.bits(),
        };
        let id = vacancy.id();
        let signaled = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        let (posted, rkey) = match window.window_type() {
            WindowType::Type1 => {
                let mut bind = ffi::ibv_mw_bind {
                    wr_id: id.0,
                    send_flags: signaled.0,
                    bind_info,
                };
                // SAFETY: the queue pair and the window exist, and `&mut` excludes other uses of
                // either; the region is registered for as long as `region` lives. C keeps no
                // pointer to `bind`.
                let errno =
                    unsafe { ffi::ibv_bind_mw(raw.as_ptr(), window.as_raw(), &raw mut bind) };
                // C has set the new key.
                (cvt_errno(call, errno), window.rkey())
            }
            WindowType::Type2 => {
                let rkey = ffi::ibv_inc_rkey(window.rkey());
                let (mut wr, mut sges) = (SendWr::unwritten(), SgeList::new());
                wr.begin(id, &mut sges, signaled);
                wr.bind_window(window.as_raw(), rkey, bind_info);
                let mut bad = ptr::null_mut();
                // SAFETY: the queue pair exists, and `wr` is one complete request, without
                // elements. What it points to, the window and the region, exists during the call,
                // after which C does not use it.
                let errno =
                    unsafe { ffi::ibv_post_send(raw.as_ptr(), wr.as_mut_ptr(), &raw mut bad) };
                (cvt_errno(call, errno), rkey)
            }
        };
        if let Err(error) = posted {
            return Err(Refused { value: work, error });
        }
        window.set_bound(region, rkey, qp);
        sending.signaling.unsignaled = 0;
        vacancy.fill(work);
        Ok(RemoteToken { rkey, ..token })
    }
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
    ) -> Result<RemoteToken, Refused<SW>> {
        self.halves_mut()
            .0
            .bind_window(window, region, access, work)
    }
}
