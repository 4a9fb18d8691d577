//! Multicast groups: datagrams for many queue pairs.

use ibverbs_sys as ffi;

use super::{
    attached::Attachment,
    pair::QueuePair,
    queues::Inner,
    state::State,
    transport::{RawPacket, Transport, Ud},
};
use crate::{
    addr::Gid,
    error::{Result, cvt_errno},
};

mod sealed {
    pub trait SealedMulticast {}
}

/// A transport whose queue pairs can receive multicast datagrams.
#[diagnostic::on_unimplemented(
    message = "a queue pair of `{Self}` cannot join a multicast group",
    label = "no transport for multicast",
    note = "use a queue pair of `Ud`"
)]
pub trait Multicast: Transport + sealed::SealedMulticast {}

impl sealed::SealedMulticast for Ud {}
impl Multicast for Ud {}
impl sealed::SealedMulticast for RawPacket {}
impl Multicast for RawPacket {}

impl<T: Multicast, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// `ibv_attach_mcast(qp, gid, lid)`—Attaches to a multicast group: receives its datagrams, too.
    /// Enters the kernel.
    ///
    /// The group must have been joined on the port, for example by `cm`. `lid` is 0 on RoCE. A
    /// second attachment to one group has no effect. The queue pair is detached when destroyed.
    ///
    /// # Errors
    /// - `EINVAL`: `gid` is no multicast address.
    /// - `ENOMEM`: the device has room for no more groups, or no more queue pairs in this one.
    ///
    /// # References
    /// [ibv_attach_mcast(3)](https://man7.org/linux/man-pages/man3/ibv_attach_mcast.3.html)
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<()> {
        let inner = &self.receive_queue().inner;
        let mut attached = inner.attached.lock();
        if attached.iter().any(|to| to.is(gid, lid)) {
            return Ok(());
        }
        // SAFETY: the queue pair exists for as long as `self` lives.
        unsafe { attach(inner, gid, lid) }?;
        attached.push(Attachment::Group(gid, lid));
        Ok(())
    }

    /// `ibv_detach_mcast(qp, gid, lid)`—Detaches from a multicast group.
    ///
    /// # Errors
    /// - `EINVAL`: the queue pair is not attached to the group.
    ///
    /// # References
    /// [ibv_detach_mcast(3)](https://man7.org/linux/man-pages/man3/ibv_attach_mcast.3.html)
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<()> {
        let inner = &self.receive_queue().inner;
        let mut attached = inner.attached.lock();
        // SAFETY: the queue pair exists for as long as `self` lives.
        unsafe { detach(inner, gid, lid) }?;
        attached.retain(|to| !to.is(gid, lid));
        Ok(())
    }
}

/// Attaches a queue pair again, after its destruction failed. A group whose attachment fails is lost.
///
/// # Safety
/// - The queue pair exists.
pub(super) unsafe fn attach_again<SW, RW>(inner: &Inner<SW, RW>, groups: Vec<(Gid, u16)>) {
    let mut attached = inner.attached.lock();
    for (gid, lid) in groups {
        // SAFETY: the caller's promise.
        if unsafe { attach(inner, gid, lid) }.is_ok() {
            attached.push(Attachment::Group(gid, lid));
        }
    }
}

/// # Safety
/// - The queue pair exists.
unsafe fn attach<SW, RW>(inner: &Inner<SW, RW>, gid: Gid, lid: u16) -> Result<()> {
    inner.pd.context().check_process("ibv_attach_mcast")?;
    let raw = ffi::ibv_gid::from(gid);
    // SAFETY: as the caller promised; C copies the address.
    let errno = unsafe { ffi::ibv_attach_mcast(inner.raw.as_ptr(), &raw const raw, lid) };
    cvt_errno("ibv_attach_mcast", errno).map_err(|err| err.detail(gid.to_string()))
}

/// # Safety
/// - The queue pair exists.
pub(super) unsafe fn detach<SW, RW>(inner: &Inner<SW, RW>, gid: Gid, lid: u16) -> Result<()> {
    inner.pd.context().check_process("ibv_detach_mcast")?;
    let raw = ffi::ibv_gid::from(gid);
    // SAFETY: as the caller promised; C copies the address.
    let errno = unsafe { ffi::ibv_detach_mcast(inner.raw.as_ptr(), &raw const raw, lid) };
    cvt_errno("ibv_detach_mcast", errno).map_err(|err| err.detail(gid.to_string()))
}
