//! Objects of programs, as far as checks need them.

use std::collections::VecDeque;

use super::{
    CallSite, Check, Checker, Completion, CqId, IpAddr, Outstanding, Path, PdId, ProgramState,
    QpKind, QueueKey, Sge, SrqId, engine,
};

/// Number of regions from which on deregistered ones are removed.
const MAX_REGIONS: usize = 1 << 16;

/// A queue pair of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostQp {
    pub(crate) host: usize,
    pub(crate) num: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePairInfo {
    pub(super) kind: QpKind,
    pub(super) pd: Option<PdId>,
    pub(super) send_cq: Option<CqId>,
    pub(super) recv_cq: Option<CqId>,
    pub(super) srq: Option<SrqId>,
    pub(super) send_wr: usize,
    pub(super) max_inline: usize,
    pub(super) signals_all: bool,
    /// Attributes of the connection, once set: path, peer's number, expected and own packet sequence number.
    pub(super) peer: Option<(Path, u32)>,
    pub(super) rq_psn: Option<u32>,
    pub(super) sq_psn: Option<u32>,
    /// Maximum numbers of reads and atomics in flight, as initiator and as responder, once set.
    pub(super) max_reads: Option<u8>,
    pub(super) max_peer_reads: Option<u8>,
    pub(super) site: CallSite,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueueInfo {
    pub(super) capacity: usize,
    /// Number of requests whose completion comes here, or is here.
    pub(super) expected: usize,
    /// Number of events received by the program and not acknowledged.
    pub(super) events: u64,
    pub(super) site: CallSite,
}

/// A memory region.
#[derive(Debug)]
pub(super) struct RegionInfo {
    pub(super) region: engine::Region,
    pub(super) remote_key: u32,
    pub(super) site: CallSite,
    /// Stack of the deregistration.
    pub(super) deregistered: Option<CallSite>,
}

/// An address handle.
#[derive(Debug)]
pub(super) struct Handle {
    path: Path,
    site: CallSite,
}

impl RegionInfo {
    /// Whether an element is inside of the region.
    pub(super) fn contains(&self, sge: &Sge) -> bool {
        self.distance(sge.addr, sge.len.into()).is_none() && self.region.host == self.region.start
    }

    pub(super) fn is_shared(&self) -> bool {
        self.region
            .access
            .contains(engine::Access::SHARED_WITH_PROGRAM)
    }

    pub(super) fn overlaps(&self, addr: u64, len: u64) -> bool {
        self.region.host < addr.saturating_add(len)
            && addr < self.region.host.saturating_add(self.region.len)
    }

    /// How a range exceeds the region, in words; `None` if it does not.
    fn distance(&self, addr: u64, len: u64) -> Option<String> {
        let start = match self.region.access.contains(engine::Access::ZERO_BASED) {
            true => 0,
            false => self.region.start,
        };
        let (end, region_end) = (
            addr.saturating_add(len),
            start.saturating_add(self.region.len),
        );
        if addr < start {
            Some(format!("starts {} bytes before it", start - addr))
        } else if end > region_end {
            Some(format!("ends {} bytes behind it", end - region_end))
        } else {
            None
        }
    }

    /// The region in words.
    pub(super) fn text(&self) -> String {
        let site = self
            .site
            .location()
            .map(|location| format!(" by {location}"));
        format!(
            "the region of {} bytes at {:#x}, registered{}",
            self.region.len,
            self.region.start,
            site.unwrap_or_default()
        )
    }

    /// The call that deregistered the region, in words; `None` for a live region.
    fn end(&self) -> Option<String> {
        let site = self.deregistered.as_ref()?.location();
        let by = site
            .map(|location| format!(" by {location}"))
            .unwrap_or_default();
        Some(format!(
            "names {}, which has been deregistered{by}",
            self.text()
        ))
    }
}

impl ProgramState {
    /// Removes the requests that a completion has ended, the oldest first.
    pub(super) fn end(&mut self, qp: HostQp, completion: &Completion) -> Vec<Outstanding> {
        if let Some(srq) = completion.shared_queue() {
            let queue = self.queues.get_mut(&QueueKey::Shared(qp.host, srq));
            return queue
                .into_iter()
                .filter_map(|queue| {
                    let at = queue
                        .iter()
                        .position(|request| request.wr_id == completion.wr_id)?;
                    queue.remove(at)
                })
                .collect();
        }
        let key = match completion.is_receive() {
            true => QueueKey::Receive(qp),
            false => QueueKey::Send(qp),
        };
        let Some(queue) = self.queues.get_mut(&key) else {
            return Vec::new();
        };
        let count = (completion.ended as usize).min(queue.len());
        queue.drain(..count).collect()
    }

    /// The reason of a local protection error, in words.
    pub(super) fn local_fault(&self, qp: HostQp, request: &Outstanding) -> Option<String> {
        request.elements.iter().find_map(|element| {
            let sge = &element.sge;
            let what = format!(
                "request {}, {} of queue pair {:#x}, has {} bytes at {:#x} with the local key {:#x}, and",
                request.wr_id, request.name, qp.num, sge.len, sge.addr, sge.lkey
            );
            let Some(region) = self.regions.get(&(qp.host, sge.lkey)) else {
                let is_remote = self.regions.iter().any(|((host, _), region)| {
                    *host == qp.host && region.remote_key == sge.lkey && region.deregistered.is_none()
                });
                return Some(match is_remote {
                    true => format!("{what} the key is a remote key: use `lkey`"),
                    false => format!("{what} no region of the device has the key"),
                });
            };
            let fault = region.end().or_else(|| {
                let distance = region.distance(sge.addr, sge.len.into())?;
                Some(format!("{distance}: {}", region.text()))
            });
            let needs_write = request.access == super::Direction::Writes;
            let may_write = region.region.access.contains(engine::Access::LOCAL_WRITE);
            let fault = fault.or_else(|| {
                (needs_write && !may_write)
                    .then(|| format!("lacks IBV_ACCESS_LOCAL_WRITE of {}", region.text()))
            });
            Some(format!("{what} {}", fault?))
        })
    }

    /// The reason of a remote access error, in words; `None` for peers in other processes.
    pub(super) fn remote_fault(&self, qp: HostQp, request: &Outstanding) -> Option<String> {
        let (addr, rkey, len) = request.remote?;
        let (path, _) = self.qps.get(&qp)?.peer?;
        let peer = *self.addrs.get(&path.dst)?;
        let what = format!(
            "request {}, {} of queue pair {:#x}, accesses {len} bytes at {addr:#x} with the remote key {rkey:#x}, and",
            request.wr_id, request.name, qp.num
        );
        let with_key = |region: &RegionInfo| region.remote_key == rkey;
        let of_host = |host: usize| {
            let regions = self.regions.iter().filter(move |((of, _), _)| *of == host);
            regions.map(|(_, region)| region)
        };
        let found = of_host(peer).filter(|region| with_key(region));
        let Some(region) = found.max_by_key(|region| region.deregistered.is_none()) else {
            let mut all = self.regions.iter();
            let is_live = |region: &RegionInfo| with_key(region) && region.deregistered.is_none();
            let elsewhere = all.find(|((host, _), region)| *host != peer && is_live(region));
            let is_local = self.regions.contains_key(&(peer, rkey));
            return Some(match elsewhere {
                _ if is_local => format!("{what} the key is a local key of the peer: use `rkey`"),
                Some((_, region)) => {
                    format!(
                        "{what} the key is that of {}, on another device than the peer's",
                        region.text()
                    )
                }
                None => format!(
                    "{what} no region of the peer has the key, and no window with the key allows the access"
                ),
            });
        };
        let fault = region.end().or_else(|| {
            let distance = region.distance(addr, len)?;
            Some(format!("{distance}: {}", region.text()))
        });
        let fault = fault.unwrap_or_else(|| {
            format!(
                "the rights {:#x} of {}, or those of the peer's queue pair, or its protection domain, do not allow it",
                region.region.access.0,
                region.text()
            )
        });
        Some(format!("{what} {fault}"))
    }
}

impl Checker {
    pub(crate) fn add_host(&self, host: usize, addrs: &[IpAddr]) {
        let mut state = self.lock();
        state.addrs.extend(addrs.iter().map(|addr| (*addr, host)));
    }

    pub(crate) fn created_cq(&self, host: usize, cq: CqId, capacity: usize) {
        let info = CompletionQueueInfo {
            capacity,
            expected: 0,
            events: 0,
            site: CallSite::here(),
        };
        self.lock().cqs.insert((host, cq), info);
    }

    pub(crate) fn resized_cq(&self, host: usize, cq: CqId, capacity: usize) {
        if let Some(cq) = self.lock().cqs.get_mut(&(host, cq)) {
            cq.capacity = capacity;
        }
    }

    pub(crate) fn destroyed_cq(&self, host: usize, cq: CqId) {
        self.lock().cqs.remove(&(host, cq));
    }

    /// Counts an event received by the program.
    pub(crate) fn event(&self, host: usize, cq: CqId) {
        if let Some(cq) = self.lock().cqs.get_mut(&(host, cq)) {
            cq.events += 1;
        }
    }

    /// Counts acknowledged events, and reports acknowledgements without an event.
    pub(crate) fn acknowledged(&self, host: usize, cq: CqId, count: u32) {
        let mut state = self.lock();
        let Some(cq) = state.cqs.get_mut(&(host, cq)) else {
            return;
        };
        let (count, received) = (u64::from(count), cq.events);
        cq.events = received.saturating_sub(count);
        let site = cq.site.clone();
        if count > received {
            state.report(self.seed, Check::TooManyAcknowledged, &site, || {
                format!(
                    "{count} events of a completion queue are acknowledged, and {received} have been received and not \
                     acknowledged: its destruction would block for ever"
                )
            });
        }
    }

    pub(crate) fn created_qp(&self, qp: HostQp, init: &engine::QpInit) {
        let info = QueuePairInfo {
            kind: init.kind,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            send_wr: init.capacity.max_send_wr,
            max_inline: init.capacity.max_inline,
            signals_all: init.signal_all,
            peer: None,
            rq_psn: None,
            sq_psn: None,
            max_reads: None,
            max_peer_reads: None,
            site: CallSite::here(),
        };
        self.lock().qps.insert(qp, info);
    }

    /// Ends all requests of a queue pair without completions: it is destroyed or reset.
    pub(crate) fn discarded(&self, qp: HostQp, is_destroyed: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let srq = state.qps.get(&qp).and_then(|info| info.srq);
        let cqs = state.qps.get(&qp).map(|info| (info.send_cq, info.recv_cq));
        let (send_cq, recv_cq) = cqs.unwrap_or_default();
        for (key, cq) in [
            (QueueKey::Send(qp), send_cq),
            (QueueKey::Receive(qp), recv_cq),
        ] {
            let requests: VecDeque<Outstanding> = state.queues.remove(&key).unwrap_or_default();
            let signaled = requests
                .iter()
                .filter(|request| request.is_signaled)
                .count();
            if let Some(cq) = cq.and_then(|cq| state.cqs.get_mut(&(qp.host, cq))) {
                cq.expected = cq.expected.saturating_sub(signaled);
            }
        }
        // Receives of a shared queue that the queue pair has taken are gone with it.
        let shared = srq.and_then(|srq| state.queues.get_mut(&QueueKey::Shared(qp.host, srq)));
        for request in shared.into_iter().flatten() {
            request.forget_bytes();
        }
        if is_destroyed {
            state.qps.remove(&qp);
        } else if let Some(info) = state.qps.get_mut(&qp) {
            (info.peer, info.rq_psn, info.sq_psn) = (None, None, None);
        }
    }

    pub(crate) fn destroyed_srq(&self, host: usize, srq: SrqId) {
        self.lock().queues.remove(&QueueKey::Shared(host, srq));
    }

    /// Takes over the attributes of a connection, and compares the packet sequence numbers of both ends.
    pub(crate) fn connected(
        &self,
        qp: HostQp,
        to: engine::State,
        attributes: &engine::QpAttributes,
    ) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(info) = state
            .qps
            .get_mut(&qp)
            .filter(|info| info.kind == QpKind::Rc)
        else {
            return;
        };
        match to {
            engine::State::Rtr => {
                info.peer = attributes.path.map(|path| (path, attributes.dest_qp));
                info.rq_psn = Some(attributes.rq_psn);
                info.max_peer_reads = Some(attributes.max_dest_rd_atomic);
            }
            engine::State::Rts if info.sq_psn.is_none() => {
                info.sq_psn = Some(attributes.sq_psn);
                info.max_reads = Some(attributes.max_rd_atomic);
            }
            _ => return,
        }
        let Some((path, dest_qp)) = info.peer else {
            return;
        };
        let host = state.addrs.get(&path.dst).copied();
        let Some(peer) = host.map(|host| HostQp { host, num: dest_qp }) else {
            return;
        };
        match to {
            engine::State::Rtr => self.compare_psns(state, peer, qp, path),
            _ => self.compare_psns(state, qp, peer, path),
        }
    }

    fn compare_psns(&self, state: &mut ProgramState, sender: HostQp, receiver: HostQp, path: Path) {
        let (Some(from), Some(to)) = (state.qps.get(&sender), state.qps.get(&receiver)) else {
            return;
        };
        let is_of_connection = |end: Option<(Path, u32)>, num| {
            end.is_some_and(|(end, dest)| dest == num && [path.src, path.dst].contains(&end.dst))
        };
        let is_pair =
            is_of_connection(from.peer, receiver.num) && is_of_connection(to.peer, sender.num);
        let (Some(sq_psn), Some(rq_psn)) = (from.sq_psn, to.rq_psn) else {
            return;
        };
        let mask = 0xff_ffff;
        if is_pair && sq_psn & mask != rq_psn & mask {
            let site = from.site.clone();
            state.report(self.seed, Check::PsnMismatch, &site, || {
                format!(
                    "queue pair {:#x} sends from sq_psn {sq_psn:#x} on, and its peer, queue pair {:#x}, expects rq_psn \
                     {rq_psn:#x}: the peer drops all requests",
                    sender.num, receiver.num
                )
            });
        }
    }

    pub(crate) fn registered(
        &self,
        host: usize,
        lkey: u32,
        remote_key: u32,
        region: engine::Region,
    ) {
        let mut state = self.lock();
        if state.regions.len() >= MAX_REGIONS {
            state
                .regions
                .retain(|_, region| region.deregistered.is_none());
        }
        let info = RegionInfo {
            region,
            remote_key,
            site: CallSite::here(),
            deregistered: None,
        };
        state.regions.insert((host, lkey), info);
    }

    pub(crate) fn deregistered(&self, host: usize, lkey: u32) {
        if let Some(region) = self.lock().regions.get_mut(&(host, lkey)) {
            region.deregistered = Some(CallSite::here());
        }
    }

    pub(crate) fn created_ah(&self, addr: u64, path: Path) {
        let site = CallSite::here();
        self.lock().handles.insert(addr, Handle { path, site });
    }

    /// Reports requests to the path of a destroyed address handle, unless another handle has the same path.
    pub(crate) fn destroyed_ah(&self, addr: u64) {
        let mut state = self.lock();
        let Some(handle) = state.handles.remove(&addr) else {
            return;
        };
        if state
            .handles
            .values()
            .any(|other| other.path == handle.path)
        {
            return;
        }
        let mut requests = state.queues.values().flatten();
        let used = requests.find(|request| request.path == Some(handle.path));
        let Some((wr_id, site)) = used.map(|request| (request.wr_id, request.site.clone())) else {
            return;
        };
        state.report(self.seed, Check::AhInUse, &site, || {
            let creator = handle.site.location().map(|location| format!(", made by {location},"));
            format!(
                "the address handle to {}{} is destroyed before the completion of request {wr_id} has been polled",
                handle.path.dst,
                creator.unwrap_or_default()
            )
        });
    }
}
