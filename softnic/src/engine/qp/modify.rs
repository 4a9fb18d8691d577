//! Changing the state and the attributes of a queue pair.

use super::{
    AttributeMask, InitiatorConnection, QpAttributes, QueuePair, Requester, Responder, State,
    transition::transition,
};
use crate::engine::{
    completion::Status, error::EngineError, psn::Psn, request::RecvRequest, resources::Context,
};

impl QueuePair {
    /// Posts a receive.
    pub(in crate::engine) fn post_recv(
        &mut self,
        request: RecvRequest,
        ctx: &mut Context<'_>,
    ) -> Result<(), EngineError> {
        let capacity = &self.init.capacity;
        let cq = self.init.recv_cq.filter(|_| self.init.srq.is_none());
        let Some(cq) = cq.filter(|_| self.state != State::Reset) else {
            return Err(EngineError::Invalid("the queue pair takes no receives"));
        };
        if request.sges.len() > capacity.max_recv_sge {
            return Err(EngineError::Invalid("the list has too many elements"));
        }
        let len = match self.frees_at_poll {
            true => self.occupied_receives,
            false => self.receives.len(),
        };
        if len >= capacity.max_recv_wr {
            return Err(EngineError::Full("receives"));
        }
        self.occupied_receives += 1;
        if self.state == State::Err && self.flush_after.is_none() {
            self.fail_receive(request.wr_id, Status::Flushed, cq, ctx);
        } else {
            self.receives.push_back(request);
        }
        Ok(())
    }

    /// Changes the state, and the attributes in `mask`.
    pub(in crate::engine) fn modify(
        &mut self,
        to: State,
        from: &QpAttributes,
        mask: AttributeMask,
        ctx: &mut Context<'_>,
    ) -> Result<(), EngineError> {
        let legal = transition(self.state, to, self.init.kind);
        let (needs, allows) = legal.ok_or(EngineError::Invalid("the transition is illegal"))?;
        let set = mask.without(AttributeMask::STATE);
        if !set.contains(needs) {
            return Err(EngineError::Invalid("the transition needs more attributes"));
        }
        if !set.without(needs | allows).is_empty() {
            return Err(EngineError::Invalid(
                "the transition does not allow an attribute",
            ));
        }
        if let Some(fault) = from.fault(set) {
            return Err(EngineError::Invalid(fault));
        }
        let before = self.state;
        self.attributes.merge(from, set);
        match to {
            State::Reset => self.reset(ctx),
            State::Err => {
                self.responder.drop_replies();
                self.fail(ctx);
            }
            State::Rtr => {
                self.responder.start(Psn::new(self.attributes.rq_psn));
                self.state = to;
            }
            State::Rts if before == State::Rtr => {
                self.requester
                    .start(Psn::new(self.attributes.sq_psn), &self.attributes);
                self.state = to;
            }
            State::Sqd => {
                self.state = to;
                if before != State::Sqd {
                    self.requester.is_draining = true;
                    self.note_drained(ctx);
                }
            }
            _ => self.state = to,
        }
        Ok(())
    }

    /// Drops all requests without completions.
    pub(in crate::engine) fn reset(&mut self, ctx: &mut Context<'_>) {
        self.state = State::Reset;
        self.occupied_receives = 0;
        if let Some(srq) = self.init.srq {
            for _unfinished in self.take_unfinished() {
                ctx.resources.free_shared_slot(srq);
            }
        }
        self.attributes = QpAttributes::new(self.init.kind, self.port_mtu);
        self.flush_after = None;
        self.is_last_wqe_raised = false;
        ctx.resources.late.settle(self.num, true, ctx.memory);
        ctx.resources.late.forget_qp(self.num);
        self.receives.clear();
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.datagrams.reset();
        self.initiator = InitiatorConnection::default();
        ctx.resources.keys.unbind_all(self.num);
        let cqs = [self.init.send_cq, self.init.recv_cq];
        for cq in cqs.into_iter().flatten() {
            ctx.resources.remove_completions(cq, self.num);
        }
    }
}
