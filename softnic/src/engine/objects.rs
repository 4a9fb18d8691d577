//! The device's objects: creation, queries and destruction.

use std::{collections::VecDeque, net::IpAddr};

use super::{
    cq::{Armed, CompletionQueue, Moderation},
    device::Engine,
    error::EngineError,
    event::Event,
    ids::{CqId, PdId, QpNum, SrqId},
    keys::{Region, WindowKind},
    qp::{QpAttributes, QpInit, QpKind, QueuePair, State},
    srq::SharedReceiveQueue,
};
use crate::adversary::Rule;

/// Range of queue pair numbers. Numbers have 24 bits; the numbers below 17 and the multicast number are left out.
const FIRST_QP: u32 = 17;
const LAST_QP: u32 = 0xff_fffe;

/// Maximum number of queue pairs: a sixteenth of the numbers, so that the search for a free number is short.
const MAX_QPS: usize = 1 << 20;

impl Engine {
    /// Number of objects of each kind.
    pub fn objects(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("protection domain", self.resources.pds.len()),
            ("key", self.resources.keys.len()),
            ("completion queue", self.resources.cqs.len()),
            ("shared receive queue", self.resources.srqs.len()),
            ("XRC domain", self.resources.xrcds.len()),
            ("queue pair", self.qps.len()),
        ]
    }

    /// Sum of the lengths of the registered regions, in bytes.
    pub fn registered_bytes(&self) -> u64 {
        self.resources.keys.registered_bytes()
    }

    pub(super) fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// Creates a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        let free = self.resources.free_pds.pop();
        let pd = free.unwrap_or_else(|| PdId(self.next_serial()));
        self.resources.pds.insert(pd);
        pd
    }

    /// A request that the device has not executed, of a queue pair in a working state, with an element of a local key: the
    /// queue pair, whether the request is a receive, and its identifier.
    pub(crate) fn request_with_key(&self, lkey: u32) -> Option<(QpNum, bool, u64)> {
        let working = |qp: &&QueuePair| !matches!(qp.state, State::Reset | State::Err);
        let mut qps = self.qps.values().filter(working);
        qps.find_map(|qp| {
            let srq = qp.init.srq.and_then(|srq| self.resources.srqs.get(&srq));
            let shared = srq.into_iter().flat_map(|srq| &srq.receives);
            let (is_receive, wr_id) = qp.request_with_key(lkey, shared)?;
            Some((QpNum(qp.num), is_receive, wr_id))
        })
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// - [`EngineError::Busy`]: the domain has objects; destroy all of them first.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), EngineError> {
        let used = self.resources.keys.uses(pd)
            || self.qps.values().any(|qp| qp.init.pd == Some(pd))
            || self.resources.srqs.values().any(|srq| srq.pd == pd);
        if used {
            return Err(EngineError::Busy(
                "something was made in the protection domain",
            ));
        }
        if self.resources.pds.remove(&pd) {
            self.resources.free_pds.push(pd);
            Ok(())
        } else {
            Err(EngineError::NotFound("protection domain", pd.0))
        }
    }

    /// Remote key of a region: equal to the local key, unless the device is an adversary.
    pub(crate) fn remote_key(&self, key: u32) -> u32 {
        self.resources.keys.remote_key(key)
    }

    /// Registers memory, to be kept valid until [`deregister`](Self::deregister). The result is the local and the
    /// remote key.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the range wraps around.
    /// - [`EngineError::Full`]: too many keys exist.
    pub fn register(&mut self, region: Region) -> Result<u32, EngineError> {
        self.check_pd(region.pd)?;
        self.resources.keys.register(region)
    }

    /// Deregisters memory.
    ///
    /// # Errors
    /// - [`EngineError::Busy`]: a memory window is bound to the region; destroy that first. An adversary unbinds the window.
    pub fn deregister(&mut self, key: u32) -> Result<(), EngineError> {
        let unbinds = self.resources.adversary.choose(Rule::BoundDereg, 2) == 1;
        self.resources.keys.deregister(key, unbinds)?;
        self.resources.late.forget_region(key);
        Ok(())
    }

    /// Creates a memory window, and returns its key.
    ///
    /// # Errors
    /// - [`EngineError::Full`]: too many keys exist.
    pub fn alloc_window(&mut self, pd: PdId, kind: WindowKind) -> Result<u32, EngineError> {
        self.check_pd(pd)?;
        self.resources.keys.alloc_window(pd, kind)
    }

    /// Destroys a memory window by its current or an earlier key.
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: no window has this key.
    pub fn dealloc_window(&mut self, key: u32) -> Result<(), EngineError> {
        self.resources.keys.dealloc_window(key)
    }

    fn check_pd(&self, pd: PdId) -> Result<(), EngineError> {
        if self.resources.pds.contains(&pd) {
            Ok(())
        } else {
            Err(EngineError::NotFound("protection domain", pd.0))
        }
    }

    /// Creates a completion queue with room for `capacity` completions.
    pub fn create_cq(&mut self, capacity: usize) -> CqId {
        let cq = CqId(self.next_serial());
        self.resources
            .cqs
            .insert(cq, CompletionQueue::new(capacity));
        cq
    }

    pub(super) fn cq_mut(&mut self, cq: CqId) -> Result<&mut CompletionQueue, EngineError> {
        let missing = EngineError::NotFound("completion queue", cq.0);
        self.resources.cqs.get_mut(&cq).ok_or(missing)
    }

    /// Number of pending completions of a queue.
    pub fn cq_len(&self, cq: CqId) -> Option<usize> {
        self.resources.cqs.get(&cq).map(CompletionQueue::len)
    }

    /// Changes the capacity of a completion queue.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: more completions are pending.
    pub fn resize_cq(&mut self, cq: CqId, capacity: usize) -> Result<(), EngineError> {
        if self.cq_mut(cq)?.resize(capacity) {
            Ok(())
        } else {
            Err(EngineError::Invalid(
                "the queue has more completions than that",
            ))
        }
    }

    /// Arms a queue for an [`Event::Completion`].
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: no queue has this identifier.
    pub fn arm_cq(&mut self, cq: CqId, wish: Armed) -> Result<(), EngineError> {
        self.cq_mut(cq)?;
        self.resources.arm(cq, wish);
        Ok(())
    }

    /// Changes the moderation of notifications.
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: no queue has this identifier.
    pub fn moderate_cq(&mut self, cq: CqId, moderation: Moderation) -> Result<(), EngineError> {
        self.cq_mut(cq)?.moderate(moderation);
        Ok(())
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// - [`EngineError::Busy`]: a queue pair or a shared receive queue uses the queue; destroy that first.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), EngineError> {
        if self.cq_mut(cq)?.users > 0 {
            return Err(EngineError::Busy(
                "a queue pair or a shared receive queue completes there",
            ));
        }
        self.resources.cqs.remove(&cq);
        self.resources
            .events
            .retain(|event| *event != Event::Completion(cq));
        Ok(())
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: no protection domain has this identifier.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SrqId, EngineError> {
        self.check_pd(pd)?;
        let id = SrqId(self.next_serial());
        let srq = SharedReceiveQueue {
            pd,
            max_wr,
            max_sge,
            limit: 0,
            receives: VecDeque::new(),
            occupied: 0,
            users: 0,
            xrc: None,
        };
        self.resources.srqs.insert(id, srq);
        Ok(id)
    }

    /// Changes the capacity of a shared receive queue.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: more receives are posted.
    pub fn resize_srq(&mut self, srq: SrqId, max_wr: usize) -> Result<(), EngineError> {
        let missing = EngineError::NotFound("shared receive queue", srq.0);
        let queue = self.resources.srqs.get_mut(&srq).ok_or(missing)?;
        if max_wr < queue.receives.len() || max_wr == 0 {
            return Err(EngineError::Invalid(
                "the queue has more receives than that",
            ));
        }
        queue.max_wr = max_wr;
        Ok(())
    }

    /// Capacity of a shared receive queue.
    pub fn srq_capacity(&self, srq: SrqId) -> Option<usize> {
        self.resources.srqs.get(&srq).map(|srq| srq.max_wr)
    }

    /// Arms the limit of a shared receive queue: fewer receives than `limit` raise an event, once.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the limit exceeds the capacity.
    pub fn arm_srq(&mut self, srq: SrqId, limit: usize) -> Result<(), EngineError> {
        let missing = EngineError::NotFound("shared receive queue", srq.0);
        let queue = self.resources.srqs.get_mut(&srq).ok_or(missing)?;
        if limit > queue.max_wr {
            return Err(EngineError::Invalid("the limit exceeds the capacity"));
        }
        queue.limit = limit;
        Ok(())
    }

    /// Limit of a shared receive queue; 0 if not armed, or already passed.
    pub fn srq_limit(&self, srq: SrqId) -> Option<usize> {
        self.resources.srqs.get(&srq).map(|srq| srq.limit)
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// - [`EngineError::Busy`]: a queue pair uses the queue; destroy the queue pair first.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), EngineError> {
        let missing = EngineError::NotFound("shared receive queue", srq.0);
        if self.resources.srqs.get(&srq).ok_or(missing)?.users > 0 {
            return Err(EngineError::Busy("a queue pair receives from it"));
        }
        let binding = self.resources.srqs.remove(&srq).and_then(|srq| srq.xrc);
        if let Some(binding) = binding {
            self.resources.xrc_srqs.remove(&binding.number);
            self.cq_mut(binding.cq)?.users -= 1;
        }
        Ok(())
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// - [`EngineError::NotFound`]: a domain, a completion queue or the shared receive queue does not exist.
    /// - [`EngineError::Invalid`]: the transport needs another object, or does not use one.
    /// - [`EngineError::Full`]: too many queue pairs exist.
    pub fn create_qp(&mut self, init: QpInit) -> Result<QpNum, EngineError> {
        let present = [
            init.pd.is_some(),
            init.send_cq.is_some(),
            init.recv_cq.is_some(),
        ];
        let has_objects = match init.kind {
            QpKind::Rc | QpKind::Uc | QpKind::Ud => present == [true; 3] && init.xrcd.is_none(),
            QpKind::Srd => present == [true; 3] && init.xrcd.is_none() && init.srq.is_none(),
            QpKind::XrcSend => present == [true, true, false] && init.xrcd.is_none(),
            QpKind::XrcRecv => present == [false; 3] && init.xrcd.is_some(),
            QpKind::Dci => present == [true, true, false] && init.xrcd.is_none(),
            QpKind::Dct => present == [true; 3] && init.xrcd.is_none() && init.srq.is_some(),
        };
        let srq = init.srq.and_then(|srq| self.resources.srqs.get(&srq));
        let shares = init.srq.is_some();
        let is_xrc_queue = srq.is_some_and(|srq| srq.xrc.is_some());
        if !has_objects || is_xrc_queue || (shares && present != [true; 3]) {
            return Err(EngineError::Invalid(
                "the objects are not those of the transport",
            ));
        }
        init.pd.map_or(Ok(()), |pd| self.check_pd(pd))?;
        init.xrcd.map_or(Ok(()), |xrcd| self.check_xrcd(xrcd))?;
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            self.cq_mut(cq)?;
        }
        let num = self.free_qp_num().ok_or(EngineError::Full("queue pairs"))?;
        if let Some(srq) = init.srq {
            let missing = EngineError::NotFound("shared receive queue", srq.0);
            self.resources.srqs.get_mut(&srq).ok_or(missing)?.users += 1;
        }
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            self.cq_mut(cq)?.users += 1;
        }
        let mut qp = QueuePair::new(num, init, (self.mtu(), self.max_in_flight()));
        qp.frees_at_poll = self.resources.adversary.has(Rule::SlotAtPoll);
        qp.datagrams.next = self.resources.next_datagram;
        self.qps.insert(num, qp);
        Ok(QpNum(num))
    }

    /// An unused number, not drawn recently: frames for a recently destroyed queue pair are dropped.
    fn free_qp_num(&mut self) -> Option<u32> {
        if self.qps.len() >= MAX_QPS || self.qps.len() as u64 >= self.qp_nums.count() {
            return None;
        }
        if self.resources.adversary.choose(Rule::Reuse, 2) == 1
            && let Some(num) = self.last_freed_qp.take()
            && !self.qps.contains_key(&num)
        {
            return Some(num);
        }
        loop {
            let num = self.qp_nums.draw();
            if (FIRST_QP..=LAST_QP).contains(&num) && !self.qps.contains_key(&num) {
                return Some(num);
            }
        }
    }

    /// Keeps the number of a queue pair from being issued again at once: the connection manager has connected it, and its peer may
    /// know the number for some time (`RDMA_CM_EVENT_TIMEWAIT_EXIT` of `rdma_get_cm_event(3)`).
    pub(crate) fn begin_time_wait(&mut self, qp: u32) {
        if let Some(qp) = self.qps.get_mut(&qp) {
            qp.has_time_wait = true;
        }
    }

    /// State and attributes of a queue pair.
    pub fn query_qp(&self, qp: QpNum) -> Option<(State, QpAttributes)> {
        let qp = self.qps.get(&qp.0)?;
        Some((qp.state, qp.attributes))
    }

    /// Transport service of a queue pair.
    pub fn qp_kind(&self, qp: QpNum) -> Option<QpKind> {
        self.qps.get(&qp.0).map(|qp| qp.init.kind)
    }

    /// Shared receive queue of a queue pair.
    pub fn qp_srq(&self, qp: QpNum) -> Option<SrqId> {
        self.qps.get(&qp.0)?.init.srq
    }

    /// Destroys a queue pair, or if [opened](Self::open_qp) several times, takes back one of them. Requests in flight leave no completions, and their memory is no longer accessed.
    /// Completions already in a queue stay.
    ///
    /// # Errors
    /// - [`EngineError::Busy`]: the queue pair is a member of a multicast group; detach it first.
    pub fn destroy_qp(&mut self, qp: QpNum) -> Result<(), EngineError> {
        if self.groups.values().any(|members| members.contains(&qp.0)) {
            return Err(EngineError::Busy("it is a member of a multicast group"));
        }
        let missing = EngineError::NotFound("queue pair", qp.0);
        let found = self.qps.get_mut(&qp.0).ok_or(missing)?;
        found.owners -= 1;
        if found.owners > 0 {
            return Ok(());
        }
        let mut removed = self.qps.remove(&qp.0).ok_or(missing)?;
        self.resources.keys.unbind_all(qp.0);
        self.resources.late.forget_qp(qp.0);
        if removed.init.kind == QpKind::Srd {
            self.resources.next_datagram = removed.datagrams.next;
        }
        if !removed.has_time_wait {
            self.last_freed_qp = Some(qp.0);
        }
        let drops = self.resources.adversary.choose(Rule::DestroyedCqes, 2) == 1;
        for cq in [removed.init.send_cq, removed.init.recv_cq]
            .into_iter()
            .flatten()
        {
            self.cq_mut(cq)?.users -= 1;
            if drops {
                self.resources.remove_completions(cq, qp.0);
            }
        }
        if let Some(id) = removed.init.srq {
            for _unfinished in removed.take_unfinished() {
                self.resources.free_shared_slot(id);
            }
            if let Some(srq) = self.resources.srqs.get_mut(&id) {
                srq.users -= 1;
            }
        }
        Ok(())
    }

    /// Adds a UD queue pair to a multicast group.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the queue pair is not UD, or the address is not a multicast address.
    pub fn attach(&mut self, qp: QpNum, group: IpAddr) -> Result<(), EngineError> {
        if self.qp_kind(qp) != Some(QpKind::Ud) || !group.is_multicast() {
            return Err(EngineError::Invalid(
                "groups are of datagrams and multicast addresses",
            ));
        }
        self.groups.entry(group).or_default().insert(qp.0);
        Ok(())
    }

    /// Multicast groups with members.
    pub fn groups(&self) -> impl Iterator<Item = IpAddr> {
        let groups = self.groups.iter();
        let joined = groups.filter(|(_, members)| !members.is_empty());
        joined.map(|(group, _)| *group)
    }

    /// Removes a queue pair from a multicast group.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the queue pair is not a member.
    pub fn detach(&mut self, qp: QpNum, group: IpAddr) -> Result<(), EngineError> {
        let members = self.groups.get_mut(&group);
        if members.is_some_and(|members| members.remove(&qp.0)) {
            Ok(())
        } else {
            Err(EngineError::Invalid(
                "the queue pair is no member of the group",
            ))
        }
    }
}
