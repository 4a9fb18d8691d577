//! The checker: faults of programs that use verbs, found while they run.
//!
//! A fabric [with checks](crate::Fabric::checked) has copies of the requests and objects of its programs. A report is made
//! only where a manual page forbids the program's call or access.

#![forbid(unsafe_code)]

mod call_site;
mod lifetime;
mod memory;
mod objects;
mod report;
mod requests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) use call_site::{CallSite, enter_device_thread};
use lifetime::RefusedDestruction;
pub(crate) use lifetime::{Parent, Used, is_reported_in_child};
pub(crate) use memory::CheckedMemory;
pub(crate) use objects::HostQp;
use objects::{CompletionQueueInfo, Handle, QueuePairInfo, RegionInfo};
pub use report::{Check, CheckReport, Location};
pub(crate) use requests::Outstanding;
use requests::{Direction, Element, Queue, misplaced_flag};

use crate::engine::{
    self, Completion, CqId, HostRange, Path, Payload, PdId, QpKind, RecvRequest, SendRequest, Sge,
    SrqId, Status,
};

/// Time until an object whose events are not acknowledged is reported: another thread may acknowledge them meanwhile.
pub(crate) const ACK_TIMEOUT: Duration = Duration::from_secs(3);

/// A queue of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueueKey {
    Send(HostQp),
    Receive(HostQp),
    Shared(usize, SrqId),
}

/// Receiver of reports.
type OnReport = Arc<dyn Fn(&CheckReport) + Send + Sync>;

/// Copies of the objects and requests of a fabric's programs.
#[derive(Default)]
struct ProgramState {
    queues: BTreeMap<QueueKey, Queue>,
    qps: BTreeMap<HostQp, QueuePairInfo>,
    cqs: BTreeMap<(usize, CqId), CompletionQueueInfo>,
    /// Regions by host and local key, also deregistered ones.
    regions: BTreeMap<(usize, u32), RegionInfo>,
    handles: BTreeMap<u64, Handle>,
    addrs: BTreeMap<IpAddr, usize>,
    /// Refused destructions of objects, by the address of the object.
    refused: BTreeMap<u64, RefusedDestruction>,
    /// Stacks of the reports made so far: a fault is reported once.
    reported: BTreeSet<(Check, CallSite, CallSite)>,
    /// Reports not delivered yet.
    pending: Vec<PendingReport>,
}

/// A report before its delivery, where functions and lines are looked up: a device that is locked meanwhile would answer no
/// peer, and requests would time out.
struct PendingReport {
    check: Check,
    sentence: String,
    origin: CallSite,
    here: CallSite,
    seed: u64,
}

impl PendingReport {
    fn locate(self) -> CheckReport {
        CheckReport {
            check: self.check,
            sentence: self.sentence,
            origin: self.origin.location(),
            found_in: self.here.location(),
            seed: self.seed,
        }
    }
}

/// Check, call in conflict and call of the finding of a delivered report.
type DeliveredFault = (Check, Option<Location>, Option<Location>);

/// The checks of a fabric.
pub(crate) struct Checker {
    seed: u64,
    on_report: Option<OnReport>,
    state: Mutex<ProgramState>,
    /// Faults of delivered reports.
    delivered: Mutex<Vec<DeliveredFault>>,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker")
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl ProgramState {
    /// Adds a report, unless the fault has been reported. `origin` is the stack of the post, or empty.
    fn report(
        &mut self,
        seed: u64,
        check: Check,
        origin: &CallSite,
        sentence: impl FnOnce() -> String,
    ) {
        let here = CallSite::here();
        self.report_at(seed, check, (origin, &here), sentence);
    }

    /// Adds a report of a call at `here`, unless the fault has been reported.
    fn report_at(
        &mut self,
        seed: u64,
        check: Check,
        (origin, here): (&CallSite, &CallSite),
        sentence: impl FnOnce() -> String,
    ) {
        // Memory is compared some time after its change, so the call of the finding is no part of the fault.
        let found_in = match check {
            Check::SendMemoryChanged | Check::TargetChanged => CallSite::default(),
            _ => here.clone(),
        };
        if !self.reported.insert((check, origin.clone(), found_in)) {
            return;
        }
        self.pending.push(PendingReport {
            check,
            sentence: sentence(),
            origin: origin.clone(),
            here: here.clone(),
            seed,
        });
    }

    /// Whether the bytes of an element are compared: those of a region that is not shared with the program.
    fn compares(&self, host: usize, sge: &Sge) -> bool {
        let region = self.regions.get(&(host, sge.lkey));
        region.is_some_and(|region| {
            region.deregistered.is_none() && region.contains(sge) && !region.is_shared()
        })
    }

    /// Counts a request whose completion is to come, and returns the completion queue if it may overrun.
    fn expect_completion(&mut self, host: usize, cq: Option<CqId>) -> Option<&CompletionQueueInfo> {
        let cq = self.cqs.get_mut(&(host, cq?))?;
        cq.expected += 1;
        (cq.expected > cq.capacity).then_some(cq)
    }
}

impl Checker {
    pub(crate) fn new(seed: u64, on_report: Option<OnReport>) -> Arc<Self> {
        Arc::new(Self {
            seed,
            on_report,
            state: Mutex::default(),
            delivered: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ProgramState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the reports of a call. Called without locks, since the receiver is the program's.
    pub(crate) fn deliver(&self) {
        let pending = std::mem::take(&mut self.lock().pending);
        if pending.is_empty() {
            return;
        }
        for report in pending.into_iter().map(PendingReport::locate) {
            if self.is_first(&report) {
                self.hand_over(&report);
            }
        }
    }

    /// Notes a report as delivered, unless the same fault has been: an inlined function has several addresses.
    fn is_first(&self, report: &CheckReport) -> bool {
        let fault = (report.check, report.origin.clone(), report.found_in.clone());
        let mut delivered = self.delivered();
        let is_first = !delivered.contains(&fault);
        if is_first {
            delivered.push(fault);
        }
        is_first
    }

    fn delivered(&self) -> MutexGuard<'_, Vec<DeliveredFault>> {
        self.delivered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the receiver of reports.
    fn hand_over(&self, report: &CheckReport) {
        match &self.on_report {
            Some(on_report) => on_report(report),
            #[expect(clippy::print_stderr, reason = "the receiver of reports")]
            None => eprintln!("{report}"),
        }
    }

    /// Number of reports written to standard error.
    pub(crate) fn unhandled_count(&self) -> usize {
        match self.on_report {
            Some(_) => 0,
            None => self.delivered().len(),
        }
    }

    /// Describes a send request before its post.
    pub(crate) fn describe_send(
        &self,
        qp: HostQp,
        request: &SendRequest,
        site: CallSite,
    ) -> Outstanding {
        let mut state = self.lock();
        let info = state.qps.get(&qp);
        let (kind, signals_all) =
            info.map_or((QpKind::Rc, false), |info| (info.kind, info.signals_all));
        if let Some(flag) = misplaced_flag(request, kind) {
            state.report(self.seed, Check::FlagOfOtherOpcode, &site, || {
                format!(
                    "request {} of queue pair {:#x} has {flag}",
                    request.wr_id, qp.num
                )
            });
        }
        let compares = |sge: &Sge| state.compares(qp.host, sge);
        Outstanding::of_send(request, signals_all, compares, site)
    }

    /// Takes over a posted send request.
    pub(crate) fn sent(&self, qp: HostQp, request: Outstanding) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(info) = state.qps.get(&qp) else {
            return;
        };
        let (capacity, cq, site) = (info.send_wr, info.send_cq, info.site.clone());
        let queue = state.queues.entry(QueueKey::Send(qp)).or_default();
        if queue.len() >= capacity && queue.iter().all(|request| !request.is_signaled) {
            let (wr_id, len) = (request.wr_id, queue.len());
            state.report(self.seed, Check::NoSignaledRequest, &request.site, || {
                format!(
                    "request {wr_id} of queue pair {:#x} is posted behind {len} unsignaled ones, as many as the send queue \
                     has slots: no completion will free a slot, and the post fails on cards",
                    qp.num
                )
            });
        }
        self.check_fence(state, qp, &request);
        if request.is_signaled {
            self.check_capacity(state, qp, cq, &request, &site);
        }
        let queue = state.queues.entry(QueueKey::Send(qp)).or_default();
        queue.push_back(request);
    }

    /// Reports a request that reads memory of an outstanding read of the same queue pair.
    fn check_fence(&self, state: &mut ProgramState, qp: HostQp, request: &Outstanding) {
        if request.is_fenced || request.access != Direction::Reads {
            return;
        }
        let Some(queue) = state.queues.get(&QueueKey::Send(qp)) else {
            return;
        };
        let overlaps = |element: &Element| {
            let overlap =
                |other: &Element| other.overlaps(element.sge.addr, element.sge.len.into());
            let reads = queue
                .iter()
                .filter(|other| other.access == Direction::Writes);
            reads
                .flat_map(|read| read.elements.iter().map(move |other| (read, other)))
                .find(|(_, other)| overlap(other))
                .map(|(read, other)| (read.wr_id, read.name, other.sge.addr, read.site.clone()))
        };
        let Some((read, name, addr, site)) = request.elements.iter().find_map(overlaps) else {
            return;
        };
        let wr_id = request.wr_id;
        state.report(self.seed, Check::UnfencedSource, &site, || {
            format!(
                "request {wr_id} of queue pair {:#x} reads memory at {addr:#x}, which request {read}, {name} without a polled \
                 completion, writes: set IBV_SEND_FENCE, or wait for the completion",
                qp.num
            )
        });
    }

    /// Reports a completion queue that may overrun.
    fn check_capacity(
        &self,
        state: &mut ProgramState,
        qp: HostQp,
        cq: Option<CqId>,
        request: &Outstanding,
        site: &CallSite,
    ) {
        let Some((capacity, expected)) = state
            .expect_completion(qp.host, cq)
            .map(|cq| (cq.capacity, cq.expected))
        else {
            return;
        };
        let wr_id = request.wr_id;
        // The queue is at fault, not the request: each queue pair is reported once.
        state.report(self.seed, Check::CqTooSmall, site, || {
            format!(
                "request {wr_id} of queue pair {:#x} makes {expected} requests with a completion to be polled, and the \
                 completion queue has {capacity} entries",
                qp.num
            )
        });
    }

    /// Describes a receive before its post.
    pub(crate) fn describe_recv(
        &self,
        host: usize,
        request: &RecvRequest,
        site: CallSite,
    ) -> Outstanding {
        let state = self.lock();
        Outstanding::of_recv(request, |sge| state.compares(host, sge), site)
    }

    /// Takes over a posted receive.
    pub(crate) fn received(&self, qp: HostQp, request: Outstanding) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(info) = state.qps.get(&qp) else {
            return;
        };
        let (cq, site) = (info.recv_cq, info.site.clone());
        self.check_capacity(state, qp, cq, &request, &site);
        state
            .queues
            .entry(QueueKey::Receive(qp))
            .or_default()
            .push_back(request);
    }

    /// Takes over a receive posted to a shared queue.
    pub(crate) fn received_shared(&self, host: usize, srq: SrqId, request: Outstanding) {
        let mut state = self.lock();
        state
            .queues
            .entry(QueueKey::Shared(host, srq))
            .or_default()
            .push_back(request);
    }

    /// Reports the reason of a refused post, if the program could have avoided it.
    pub(crate) fn refused(&self, qp: HostQp, request: &SendRequest, site: &CallSite) {
        let mut state = self.lock();
        let Some(max) = state.qps.get(&qp).map(|info| info.max_inline) else {
            return;
        };
        if let Payload::Inline(bytes) = &request.payload
            && bytes.len() > max
        {
            state.report(self.seed, Check::InlineTooLong, site, || {
                format!(
                    "request {} of queue pair {:#x} has {} bytes of inline data, and the creation returned max_inline_data {max}",
                    request.wr_id,
                    qp.num,
                    bytes.len()
                )
            });
        }
    }

    /// Ends the requests of a polled completion.
    pub(crate) fn polled(&self, host: usize, completion: &Completion) {
        let mut state = self.lock();
        let state = &mut *state;
        let qp = HostQp {
            host,
            num: completion.qp,
        };
        let ended = state.end(qp, completion);
        let info = state.qps.get(&qp).map(|info| (info.send_cq, info.recv_cq));
        let cq = info.and_then(|(send, recv)| if completion.is_receive() { recv } else { send });
        for request in &ended {
            if request.is_signaled
                && completion.shared_queue().is_none()
                && let Some(cq) = cq.and_then(|cq| state.cqs.get_mut(&(host, cq)))
            {
                cq.expected = cq.expected.saturating_sub(1);
            }
            if let Some((addr, old, new)) = request.changed_source() {
                state.report(self.seed, Check::SendMemoryChanged, &request.site, || {
                    format!(
                        "the byte at {addr:#x} was {old:#04x} when request {}, {} of queue pair {:#x}, was posted, and is \
                         {new:#04x} before its completion has been polled",
                        request.wr_id, request.name, qp.num
                    )
                });
            }
        }
        if let Some(request) = ended.last() {
            self.diagnose(state, qp, request, completion.status);
        }
    }

    /// Explains a completion that failed by the access to memory.
    fn diagnose(
        &self,
        state: &mut ProgramState,
        qp: HostQp,
        request: &Outstanding,
        status: Status,
    ) {
        let sentence = match status {
            Status::LocalProtection => state
                .local_fault(qp, request)
                .map(|text| (Check::LocalAccess, text)),
            Status::RemoteAccess => state
                .remote_fault(qp, request)
                .map(|text| (Check::RemoteAccess, text)),
            Status::RemoteInvalidRequest => state
                .read_depth(qp, request)
                .map(|text| (Check::ReadDepth, text)),
            Status::RnrRetryExceeded => {
                let text = state.empty_queue(qp, request);
                Some((Check::NoReceive, text))
            }
            _ => None,
        };
        if let Some((check, sentence)) = sentence {
            state.report(self.seed, check, &request.site, || sentence);
        }
    }

    /// Reports memory that is not mapped or freed, at an access of the device.
    fn memory_gone(&self, range: HostRange) {
        let mut state = self.lock();
        let (addr, len) = (range.addr, range.len as u64);
        let named = |request: &&Outstanding| {
            request
                .elements
                .iter()
                .any(|element| element.overlaps(addr, len))
        };
        let request = state.queues.values().flatten().find(named);
        let (site, by) = match request {
            Some(request) => (
                request.site.clone(),
                format!(
                    "request {}, {} without a polled completion, names it",
                    request.wr_id, request.name
                ),
            ),
            None => {
                let regions = state.regions.values();
                let mut regions = regions.filter(|region| region.deregistered.is_none());
                let region = regions.find(|region| region.overlaps(addr, len));
                let site = region.map(|region| region.site.clone()).unwrap_or_default();
                (site, "a peer accesses it by its key".to_owned())
            }
        };
        state.report(self.seed, Check::MemoryGone, &site, || {
            format!("{len} bytes at {addr:#x} are not mapped, or freed: {by}")
        });
    }

    /// Reports bytes that the program has changed, of a range that the device is about to write.
    fn before_write(&self, range: HostRange) {
        let mut state = self.lock();
        let targets = state
            .queues
            .values()
            .flatten()
            .filter(|request| request.access == Direction::Writes);
        let changed = targets.flat_map(|request| {
            let changes = request.elements.iter().filter_map(|element| {
                element
                    .changed_in(range)
                    .map(|change| (element.sge.addr, change))
            });
            changes.map(move |change| (request, change))
        });
        let changed: Vec<_> = changed
            .map(|(request, change)| (request.wr_id, request.name, request.site.clone(), change))
            .collect();
        for (wr_id, name, site, (addr, (at, old, new))) in changed {
            state.report(self.seed, Check::TargetChanged, &site, || {
                format!(
                    "byte {at} of the memory at {addr:#x} was {old:#04x} when request {wr_id}, {name}, was posted, and is \
                     {new:#04x} before the device writes it"
                )
            });
        }
    }

    fn after_write(&self, range: HostRange) {
        let mut state = self.lock();
        let requests = state.queues.values_mut().flatten();
        for element in requests.flat_map(|request| &mut request.elements) {
            element.update(range);
        }
    }

    /// Reports that events are not acknowledged.
    pub(crate) fn not_acknowledged(&self, call: &str) {
        self.lock().report(self.seed, Check::EventsNotAcknowledged, &CallSite::default(), || {
            format!(
                "{call} waits until the events of the object are acknowledged, and none has been acknowledged for \
                 {} s: the call would block for ever",
                ACK_TIMEOUT.as_secs()
            )
        });
    }

    /// Reports a registration refused for its rights.
    pub(crate) fn rights_without_local_write(&self, access: u32) {
        self.lock().report(self.seed, Check::RightsWithoutLocalWrite, &CallSite::default(), || {
            format!("the rights {access:#x} let peers write, without IBV_ACCESS_LOCAL_WRITE: the call fails")
        });
    }

    /// Reports a region that is deregistered while a request of a queue pair names it.
    pub(crate) fn region_in_use(&self, qp: HostQp, lkey: u32, (name, wr_id): (&str, u64)) {
        let mut state = self.lock();
        let region = state.regions.get(&(qp.host, lkey));
        let site = region.map(|region| region.site.clone()).unwrap_or_default();
        state.report(self.seed, Check::RegionInUse, &site, || {
            format!(
                "the region with the local key {lkey:#x} is deregistered, and request {wr_id}, {name} of queue pair {:#x} in a \
                 working state, names it",
                qp.num
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn change_of_memory_is_one_fault_whichever_call_finds_it() {
        let origin = CallSite::here();
        let (first, second) = (CallSite::here(), CallSite::here());
        assert_ne!(first, second);
        let count = |check| {
            let mut state = ProgramState::default();
            for here in [&first, &second, &first] {
                state.report_at(7, check, (&origin, here), String::new);
            }
            state.pending.len()
        };
        assert_eq!(count(Check::TargetChanged), 1);
        assert_eq!(count(Check::SendMemoryChanged), 1);
        assert_eq!(count(Check::DestroyedInUse), 2);
    }

    #[test]
    fn threads_of_the_device_have_no_call_of_the_program() {
        let of_device = thread::spawn(|| {
            enter_device_thread();
            CallSite::here()
        });
        let mut state = ProgramState::default();
        let here = of_device.join().unwrap();
        let origin = CallSite::default();
        state.report_at(7, Check::TargetChanged, (&origin, &here), String::new);
        let report = state.pending.pop().unwrap().locate();
        assert_eq!(report.found_in, None);
        assert!(
            report
                .to_string()
                .contains("found in a thread of the device")
        );
    }
}
