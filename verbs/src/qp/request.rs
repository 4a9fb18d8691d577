//! What can be posted to a send queue.

use ibverbs_sys as ffi;

use super::{
    send_wr::SendWr,
    transport::{Connected, Transport},
};
use crate::work::Gather;

mod sealed {
    use super::{SendWr, ffi};

    /// What of a work request depends on what is posted.
    pub trait Describe {
        /// The flags that the caller asked for.
        fn flags(&self) -> ffi::ibv_send_flags;

        /// Sets the opcode, and the fields that belong to it.
        fn describe(&self, wr: &mut SendWr);
    }
}

pub(super) use sealed::Describe;

/// A request that the transport `T` carries, with the work it owns.
///
/// The requests of this module implement it, and nothing else can.
pub trait SendRequest<T: Transport>: Describe {
    /// What the device reads or writes for it.
    type Work: Gather;

    /// The work.
    fn work(&self) -> &Self::Work;

    /// The work, when the request has been posted.
    fn into_work(self) -> Self::Work;
}

/// `IBV_WR_SEND`, `IBV_WR_SEND_WITH_IMM`—A message to a receive that the peer has posted.
///
/// ```no_run
/// # fn f(qp: &mut verbs::QueuePair<verbs::Rc, verbs::Rts>, buf: verbs::Buf) -> verbs::Result<()> {
/// use verbs::op::Send;
/// qp.post(Send::new(buf).imm_data(7).solicited())?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "IBV_WR_SEND")]
#[doc(alias = "IBV_WR_SEND_WITH_IMM")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Send<W> {
    work: W,
    imm_data: Option<u32>,
    flags: ffi::ibv_send_flags,
}

impl<W: Gather> Send<W> {
    /// A message of the bytes of `work`, whose completion is signaled.
    #[inline]
    pub fn new(work: W) -> Self {
        Self {
            work,
            imm_data: None,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    /// Sends a number along with the message. The receiver sees it in the completion.
    #[inline]
    pub fn imm_data(mut self, imm_data: u32) -> Self {
        self.imm_data = Some(imm_data);
        self
    }

    /// Wakes a receiver that waits for solicited completions only.
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_SOLICITED;
        self
    }

    /// Starts only when all RDMA reads and atomics posted before it are done.
    #[inline]
    pub fn fenced(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_FENCE;
        self
    }

    /// Asks for no completion of its own when it succeeds: the work comes back with a later one.
    ///
    /// Every now and then the queue asks for one nevertheless, so that it never fills up with
    /// requests that would never come back.
    #[inline]
    pub fn unsignaled(mut self) -> Self {
        self.flags.0 &= !ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        self
    }

    /// The work, unposted.
    pub fn into_work(self) -> W {
        self.work
    }
}

impl<W> Describe for Send<W> {
    #[inline]
    fn flags(&self) -> ffi::ibv_send_flags {
        self.flags
    }

    #[inline]
    fn describe(&self, wr: &mut SendWr) {
        match self.imm_data {
            None => wr.opcode(ffi::ibv_wr_opcode::IBV_WR_SEND),
            Some(imm_data) => {
                wr.opcode(ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM);
                wr.imm_data(imm_data);
            }
        }
    }
}

impl<T: Connected, W: Gather> SendRequest<T> for Send<W> {
    type Work = W;

    #[inline]
    fn work(&self) -> &W {
        &self.work
    }

    #[inline]
    fn into_work(self) -> W {
        self.work
    }
}
