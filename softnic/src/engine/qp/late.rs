//! Decisions of an adversary about requests: dropped or delayed requests, and payloads that are placed late, in parts, or at
//! the poll of their completion.

use std::{cmp::Reverse, num::NonZero, ops::Range, sync::Arc, time::Duration};

use super::{QueuePair, State};
use crate::{
    adversary::{Adversary, Rule},
    engine::{
        ids::PdId,
        late::Cause,
        memory::HostRange,
        packet::Content,
        request::Sge,
        resources::{Context, Timer},
        transfer::{self, scatter, scatter_bytes},
    },
};

/// Maximum number of bytes in a completion.
pub(super) const MAX_POLLED: usize = 64;

/// Maximum delay of bytes, and of the start of a request, in microseconds.
const MAX_DELAY_US: u64 = 50;

/// Bytes of a number that the processor reads and writes as a whole.
const WORD: usize = 8;

/// A decision about a part of a write.
struct Late {
    /// The bytes to be placed late.
    part: Range<usize>,
    rule: Rule,
}

/// Decides about a write of `len` bytes; `None` places all bytes now.
fn decide(adversary: &Adversary, len: usize, is_relaxed: bool) -> Option<Late> {
    let late = |part, rule| (adversary.choose(rule, 2) == 1).then_some(Late { part, rule });
    let half = 0..len / 2;
    let relaxed = || is_relaxed.then(|| late(0..len, Rule::Relaxed)).flatten();
    let torn = || {
        (len <= WORD)
            .then(|| late(0..len / 2, Rule::Torn))
            .flatten()
    };
    late(0..len, Rule::NotVisible)
        .or_else(relaxed)
        .or_else(|| late(half, Rule::Placement))
        .or_else(torn)
        .filter(|late| !late.part.is_empty())
}

/// The memory of a list for a payload, and the bytes of the payload; `None` if a key does not allow the access.
fn collect(
    (pd, sges): (PdId, &[Sge]),
    offset: u64,
    from: Content<'_>,
    ctx: &mut Context<'_>,
) -> Option<(Vec<HostRange>, Vec<u8>)> {
    let (keys, mut ranges) = (&ctx.resources.keys, Vec::new());
    let range = (offset, from.len() as u64);
    if !transfer::resolve(keys, pd, sges, range, true, &mut ranges) {
        return None;
    }
    let mut bytes = vec![0; from.len()];
    from.read(ctx.memory, &mut bytes);
    Some((ranges, bytes))
}

impl QueuePair {
    /// Whether an adversary accepts requests before the state allows them, and drops them.
    pub(super) fn drops_early(&self, ctx: &Context<'_>) -> bool {
        let is_early = matches!(self.state, State::Reset | State::Init | State::Rtr);
        is_early && ctx.resources.adversary.choose(Rule::EarlyPost, 2) == 1
    }

    /// Decides once about the start of the current request: an adversary may read its memory later.
    pub(super) fn is_delayed(&mut self, ctx: &Context<'_>) -> bool {
        if ctx.resources.adversary.is_kind() {
            return false;
        }
        let requester = &mut self.requester;
        let Some(wqe) = requester.wqes.get_mut(requester.current) else {
            return false;
        };
        if std::mem::replace(&mut wqe.is_decided, true) {
            return false;
        }
        let delay = ctx.resources.adversary.delay(Rule::LateReads, MAX_DELAY_US);
        requester.start_after = delay.map(|delay| ctx.now + delay);
        requester.start_after.is_some()
    }

    /// Writes the bytes of earlier requests of the peer; those of relaxed writes before another relaxed write stay late.
    pub(super) fn settle(&self, is_write: bool, ctx: &mut Context<'_>) {
        if !ctx.resources.adversary.is_kind() {
            ctx.resources.late.settle(self.num, !is_write, ctx.memory);
        }
    }

    /// Places a part of a write, at once on a kind device.
    pub(super) fn write_part(
        &mut self,
        to: HostRange,
        from: Content<'_>,
        rkey: u32,
        ctx: &mut Context<'_>,
    ) {
        if ctx.resources.adversary.is_kind() {
            return scatter(ctx.memory, &[to], from);
        }
        let adversary = Arc::clone(&ctx.resources.adversary);
        let is_relaxed = ctx.resources.keys.is_relaxed(rkey);
        let Some(late) = decide(&adversary, to.len, is_relaxed) else {
            return scatter(ctx.memory, &[to], from);
        };
        let mut bytes = vec![0; to.len];
        from.read(ctx.memory, &mut bytes);
        let rest = bytes.split_off(late.part.end);
        if !rest.is_empty() {
            ctx.memory.write(&rest, to.part(late.part.end, rest.len()));
        }
        let cause = match late.rule {
            Rule::Relaxed => Cause::RemoteRelaxed,
            _ => Cause::Remote,
        };
        let at = self.place_late((to.part(0, bytes.len()), bytes), (late.rule, cause), ctx);
        if late.rule != Rule::NotVisible {
            self.responder.delay_until(at);
        }
    }

    /// Adds bytes to be placed later, and returns the time.
    pub(super) fn place_late(
        &self,
        bytes: (HostRange, Vec<u8>),
        (rule, cause): (Rule, Cause),
        ctx: &mut Context<'_>,
    ) -> Duration {
        let micros = 1 + ctx.resources.adversary.number(rule) % MAX_DELAY_US;
        let at = ctx.now + Duration::from_micros(micros);
        ctx.resources.late.add(self.num, bytes, at, cause);
        ctx.resources.timers.push(Reverse((at, Timer::Late)));
        at
    }

    /// Copies a part of a received message, or of the response to a read, to a list. An adversary may write the first half of
    /// its first range later, before the completion. Returns false if a key does not allow the access.
    pub(super) fn scatter(
        &self,
        (pd, sges): (PdId, &[Sge]),
        offset: u64,
        from: Content<'_>,
        ctx: &mut Context<'_>,
    ) -> bool {
        if ctx.resources.adversary.is_kind() {
            return ctx.scatter(pd, sges, offset, from);
        }
        // The range may be that of a dropped message.
        ctx.resources.late.settle_local(self.num, ctx.memory);
        if ctx.resources.adversary.choose(Rule::Placement, 2) == 0 {
            return ctx.scatter(pd, sges, offset, from);
        }
        let Some((mut ranges, mut bytes)) = collect((pd, sges), offset, from, ctx) else {
            return false;
        };
        if let Some(first) = ranges.first_mut() {
            let rest = bytes.split_off(first.len.div_ceil(2));
            let late = first.part(0, bytes.len());
            *first = first.part(bytes.len(), first.len - bytes.len());
            let how = (Rule::Placement, Cause::Local);
            let _at: Duration = self.place_late((late, bytes), how, ctx);
            scatter_bytes(ctx.memory, &ranges, &rest);
        }
        true
    }

    /// Takes bytes to be written at the poll of a completion, and returns their number; `None` if a key does not allow the
    /// access.
    pub(super) fn defer(
        &self,
        pd: PdId,
        sges: &[Sge],
        from: Content<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<NonZero<u32>> {
        let (ranges, bytes) = collect((pd, sges), 0, from, ctx)?;
        let late = &mut ctx.resources.late;
        NonZero::new(late.add_polled(self.num, sges, ranges, bytes))
    }
}
