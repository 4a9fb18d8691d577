//! Order of destructions, overlapping use, and use after `fork`.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    CallSite, Check, CheckReport, Checker, CqId, Direction, HostQp, Outstanding, PdId,
    ProgramState, SrqId,
};

/// An object that others use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parent {
    /// A protection domain.
    Pd(PdId),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
    /// Another object, with the users in words.
    Other(&'static str),
}

/// An object in an overlapping use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Used {
    /// A completion queue of a host.
    Cq(usize, CqId),
    /// A queue pair.
    Qp(HostQp),
}

/// A destruction that has failed since other objects use the object.
#[derive(Debug)]
pub(super) struct RefusedDestruction {
    sentence: String,
    /// Stack of the creation of a user.
    user: CallSite,
    /// Stack of the call.
    site: CallSite,
}

/// Whether this process is a child with a report of its own.
static REPORTED_IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child made by `fork` that has used objects of its parent.
pub(crate) fn is_reported_in_child() -> bool {
    REPORTED_IN_CHILD.load(Ordering::Relaxed)
}

impl ProgramState {
    /// A user of an object in words, with the stack of its creation.
    fn user(&self, host: usize, parent: Parent) -> (String, CallSite) {
        let uses = |info: &super::QueuePairInfo| match parent {
            Parent::Pd(pd) => info.pd == Some(pd),
            Parent::Cq(cq) => [info.send_cq, info.recv_cq].contains(&Some(cq)),
            Parent::Srq(srq) => info.srq == Some(srq),
            Parent::Other(_) => false,
        };
        let mut qps = self.qps.iter().filter(|(qp, _)| qp.host == host);
        if let Some((qp, info)) = qps.find(|(_, info)| uses(info)) {
            return (format!("queue pair {:#x}", qp.num), info.site.clone());
        }
        let mut regions = self.regions.iter().filter(|((of, _), _)| *of == host);
        let region = regions.find(|(_, region)| {
            let is_of_domain = matches!(parent, Parent::Pd(pd) if region.region.pd == pd);
            is_of_domain && region.deregistered.is_none()
        });
        if let Some((_, region)) = region {
            return (region.text(), region.site.clone());
        }
        let words = match parent {
            Parent::Pd(_) => "an address handle, a window or a shared receive queue",
            Parent::Cq(_) => "a shared receive queue",
            Parent::Srq(_) => "a queue pair",
            Parent::Other(words) => words,
        };
        (words.to_owned(), CallSite::default())
    }

    /// The peer of a connection, in the same fabric.
    fn peer(&self, qp: HostQp) -> Option<(u32, &super::QueuePairInfo)> {
        let (path, num) = self.qps.get(&qp)?.peer?;
        let host = *self.addrs.get(&path.dst)?;
        Some((num, self.qps.get(&HostQp { host, num })?))
    }

    /// The reason of a refused read or atomic, in words; `None` if the number in flight is not the reason.
    pub(super) fn read_depth(&self, qp: HostQp, request: &Outstanding) -> Option<String> {
        let max = self.qps.get(&qp)?.max_reads?;
        let (num, peer) = self.peer(qp)?;
        let accepted = peer.max_peer_reads.filter(|accepted| *accepted < max)?;
        (request.access == Direction::Writes).then(|| {
            format!(
                "request {}, {} of queue pair {:#x}, has been refused: the queue pair has max_rd_atomic {max}, and its peer, \
                 queue pair {num:#x}, accepts max_dest_rd_atomic {accepted}",
                request.wr_id, request.name, qp.num
            )
        })
    }

    /// The reason of a message without a receive at the peer, in words.
    pub(super) fn empty_queue(&self, qp: HostQp, request: &Outstanding) -> String {
        let queue = match self.peer(qp) {
            Some((num, info)) => {
                let kind = match info.srq {
                    Some(_) => "shared receive queue",
                    None => "receive queue",
                };
                let site = info.site.location();
                let site = site.map(|location| format!(", created by {location},"));
                format!(
                    "the {kind} of the peer's queue pair {num:#x}{} was empty",
                    site.unwrap_or_default()
                )
            }
            None => "the peer's receive queue was empty".to_owned(),
        };
        format!(
            "request {}, {} of queue pair {:#x}, has used all RNR retries, and {queue}: post receives before the peer sends, \
             or set rnr_retry to 7 for unlimited retries",
            request.wr_id, request.name, qp.num
        )
    }
}

impl Checker {
    /// Notes that a destruction has failed since other objects use the object. A program may repeat the call later: the
    /// report is made at the end.
    pub(crate) fn refused_destruction(&self, host: usize, object: u64, call: &str, parent: Parent) {
        let mut state = self.lock();
        let (user, site) = state.user(host, parent);
        let refused = RefusedDestruction {
            sentence: format!(
                "{call} has failed with EBUSY, since {user} uses the object, and has not been repeated: the object is never \
                 destroyed"
            ),
            user: site,
            site: CallSite::here(),
        };
        state.refused.entry(object).or_insert(refused);
    }

    /// Removes the note of an earlier refusal: the object has been destroyed.
    pub(crate) fn destroyed(&self, object: u64) {
        self.lock().refused.remove(&object);
    }

    /// Reports refused destructions that have not been repeated, at the end of the program or of the fabric.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        for refused in std::mem::take(&mut state.refused).into_values() {
            let sites = (&refused.user, &refused.site);
            state.report_at(self.seed, Check::DestroyedInUse, sites, || refused.sentence);
        }
    }

    /// Reports an overlapping use of an object; `use_` completes a sentence about it.
    pub(crate) fn overlapping(&self, used: Used, use_: &str) {
        let mut state = self.lock();
        let (name, site) = match used {
            Used::Cq(host, cq) => {
                let info = state.cqs.get(&(host, cq));
                let entries = info.map_or(0, |info| info.capacity);
                let site = info.map(|info| info.site.clone());
                (format!("the completion queue of {entries} entries"), site)
            }
            Used::Qp(qp) => {
                let site = state.qps.get(&qp).map(|info| info.site.clone());
                (format!("queue pair {:#x}", qp.num), site)
            }
        };
        let site = site.unwrap_or_default();
        state.report(self.seed, Check::OverlappingUse, &site, || {
            format!("{name} {use_}")
        });
    }

    /// Reports a call in a child made by `fork`, once. The child has no copy of the threads of its parent, which may have held
    /// a lock: none is used.
    pub(crate) fn used_in_child(&self) {
        if REPORTED_IN_CHILD.swap(true, Ordering::Relaxed) {
            return;
        }
        let report = CheckReport {
            check: Check::UsedAfterFork,
            sentence: format!(
                "process {}, a child made by fork, uses an object of its parent: open the device in the child",
                std::process::id()
            ),
            origin: None,
            found_in: CallSite::here().location(),
            seed: self.seed,
        };
        self.hand_over(&report);
    }
}
