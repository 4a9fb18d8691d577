//! Extended reliable connections: domains, their shared receive queues, and shared receiving ends.
//!
//! Each request of an extended connection names a shared receive queue of the domain, which decides on the protection
//! domain of the request, on the receive of a message, and on the queue for its completion.
//!
//! Source: InfiniBand Architecture Specification, volume 1, annex A14.

use super::{
    device::Engine,
    error::EngineError,
    ids::{CqId, PdId, QpNum, SrqId, XrcdId},
    resources::{Resources, Target},
    srq::XrcBinding,
};

impl Resources {
    /// Target of a request that names a shared receive queue; `None` if the queue is not of the domain.
    pub(super) fn xrc_target(&self, xrcd: XrcdId, number: u32) -> Option<Target> {
        let id = *self.xrc_srqs.get(&number)?;
        let srq = self.srqs.get(&id)?;
        let binding = srq.xrc.filter(|binding| binding.xrcd == xrcd)?;
        Some(Target {
            pd: srq.pd,
            recv_pd: srq.pd,
            srq: Some(id),
            cq: binding.cq,
        })
    }
}

impl Engine {
    /// Creates an XRC domain.
    pub fn open_xrcd(&mut self) -> XrcdId {
        let xrcd = XrcdId(self.next_serial());
        self.resources.xrcds.insert(xrcd);
        xrcd
    }

    /// Destroys an XRC domain.
    ///
    /// # Errors
    /// - [`EngineError::Busy`]: the domain has queue pairs or shared receive queues; destroy all of them first.
    pub fn close_xrcd(&mut self, xrcd: XrcdId) -> Result<(), EngineError> {
        let mut bindings = self.resources.srqs.values().filter_map(|srq| srq.xrc);
        let used = self.qps.values().any(|qp| qp.init.xrcd == Some(xrcd))
            || bindings.any(|binding| binding.xrcd == xrcd);
        if used {
            return Err(EngineError::Busy("something was made in the XRC domain"));
        }
        if self.resources.xrcds.remove(&xrcd) {
            Ok(())
        } else {
            Err(EngineError::NotFound("XRC domain", xrcd.0))
        }
    }

    pub(super) fn check_xrcd(&self, xrcd: XrcdId) -> Result<(), EngineError> {
        if self.resources.xrcds.contains(&xrcd) {
            Ok(())
        } else {
            Err(EngineError::NotFound("XRC domain", xrcd.0))
        }
    }

    /// Creates a shared receive queue for extended connections. Receives complete in `cq`.
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: a domain or the completion queue does not exist.
    pub fn create_xrc_srq(
        &mut self,
        pd: PdId,
        (xrcd, cq): (XrcdId, CqId),
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SrqId, EngineError> {
        self.check_xrcd(xrcd)?;
        self.cq_mut(cq)?;
        let id = self.create_srq(pd, max_wr, max_sge)?;
        let number = self.free_srq_number();
        self.resources.xrc_srqs.insert(number, id);
        if let Some(srq) = self.resources.srqs.get_mut(&id) {
            srq.xrc = Some(XrcBinding { xrcd, cq, number });
        }
        self.cq_mut(cq)?.users += 1;
        Ok(id)
    }

    /// An unused number, not drawn recently, and not 0.
    fn free_srq_number(&mut self) -> u32 {
        loop {
            let num = self.srq_nums.draw();
            if num != 0 && !self.resources.xrc_srqs.contains_key(&num) {
                return num;
            }
        }
    }

    /// Number of a shared receive queue for extended connections; `None` for other queues.
    pub fn srq_number(&self, srq: SrqId) -> Option<u32> {
        let srq = self.resources.srqs.get(&srq)?;
        srq.xrc.map(|binding| binding.number)
    }

    /// Opens the receiving end of an extended connection once more. The queue pair is destroyed by the last
    /// [`destroy_qp`](Self::destroy_qp).
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: the domain has no such queue pair.
    pub fn open_qp(&mut self, xrcd: XrcdId, qp: QpNum) -> Result<(), EngineError> {
        let found = self.qps.get_mut(&qp.0);
        let found = found.filter(|found| found.init.xrcd == Some(xrcd));
        found
            .ok_or(EngineError::NotFound("queue pair", qp.0))?
            .owners += 1;
        Ok(())
    }
}
