//! Messages, as in `ib_send_lat` and `ib_send_bw`.

use verbs::{
    Buf, Completed, CompletionQueue, SharedBuf, WorkCompletion,
    op::{self, SendRequest},
};

use crate::{
    Plan, Result, TX_DEPTH, clock,
    clock::Samples,
    link::{Role, TestLink},
};

/// Ping-pong of messages; half the median interval between two posts.
pub(crate) fn latency(plan: Plan, role: Role) -> Result<f64> {
    let mut link = TestLink::<Buf>::establish(plan, role)?;
    let mut message = link.pd.alloc_buf(plan.size)?;
    let mut samples = Samples::new(plan.iterations);
    let (mut sent, mut received) = (0, 0);
    while sent < plan.iterations || received < plan.iterations {
        let begins = sent == 0 && matches!(role, Role::Client(_));
        if received < plan.iterations && !begins {
            received += 1;
            let qp = link.connection.qp_mut();
            let buf = next(&mut link.recv_cq, |wc| received_buf(qp.complete(wc)))?;
            if received + plan.rx_depth <= plan.iterations {
                link.connection.qp_mut().post_recv(buf)?;
            }
        }
        if sent < plan.iterations {
            samples.take();
            sent += 1;
            message = round(&mut link, |_| op::Send::new(message))?;
        }
    }
    Ok(samples.median()? / 2.0)
}

/// Messages in one direction, with the maximum number in flight.
pub(crate) fn rate(plan: Plan, role: Role) -> Result<f64> {
    let mut link = TestLink::<SharedBuf>::establish(plan, role)?;
    match role {
        Role::Server => receive(plan, &mut link),
        Role::Client(_) => {
            let message = link.pd.alloc_buf(plan.size)?.freeze();
            let cycles = stream(plan, &mut link, |signaled| {
                let request = op::Send::new(message.clone());
                if signaled {
                    request
                } else {
                    request.unsignaled()
                }
            })?;
            plan.rate(cycles)
        }
    }
}

fn receive(plan: Plan, link: &mut TestLink<SharedBuf>) -> Result<f64> {
    let mut received = 0;
    while received < plan.iterations {
        for wc in link.recv_cq.poll()? {
            received += 1;
            let buf = received_buf(link.connection.qp_mut().complete(wc))?;
            if received + plan.rx_depth <= plan.iterations {
                link.connection.qp_mut().post_recv(buf)?;
            }
        }
    }
    Ok(0.0)
}

fn received_buf<SW>(
    completed: std::result::Result<Completed<'_, SW, Buf>, WorkCompletion<'_>>,
) -> Result<Buf> {
    match completed {
        Ok(Completed::Receive(done)) => Ok(done.into_work()?),
        _ => Err("a completion belongs to no receive".into()),
    }
}

/// Posts requests of one kind, with the maximum number in flight; returns the cycles from the first post to
/// the last completion.
pub(crate) fn stream<R>(
    plan: Plan,
    link: &mut TestLink<SharedBuf>,
    request: impl Fn(bool) -> R,
) -> Result<u64>
where
    R: SendRequest<verbs::Rc, Work = SharedBuf>,
{
    let qp = link.connection.qp_mut();
    let mut sent = 0;
    let begin = clock::cycles();
    while sent < plan.iterations || qp.send_queue().in_flight() > 0 {
        while sent < plan.iterations && qp.send_queue().in_flight() < TX_DEPTH as usize {
            sent += 1;
            let signaled = sent % plan.moderation() == 0 || sent == plan.iterations;
            qp.post(request(signaled)).map_err(|it| it.error)?;
        }
        for wc in link.send_cq.poll()? {
            match qp.complete(wc) {
                Ok(done) => done.ok()?,
                Err(_) => return Err("a completion belongs to no request".into()),
            }
        }
    }
    Ok(clock::cycles() - begin)
}

/// Posts a request, and polls for the completion.
pub(crate) fn round<R>(
    link: &mut TestLink<Buf>,
    request: impl FnOnce(&TestLink<Buf>) -> R,
) -> Result<Buf>
where
    R: SendRequest<verbs::Rc, Work = Buf>,
{
    let request = request(link);
    let qp = link.connection.qp_mut();
    qp.post(request).map_err(|it| it.error)?;
    next(&mut link.send_cq, |wc| match qp.complete(wc) {
        Ok(Completed::Send(done)) => Ok(done.into_work()?),
        _ => Err("a completion belongs to no request".into()),
    })
}

/// Polls for a completion, and passes the completion to `take`.
pub(crate) fn next<T>(
    cq: &mut CompletionQueue,
    take: impl FnOnce(WorkCompletion<'_>) -> Result<T>,
) -> Result<T> {
    loop {
        if let Some(wc) = cq.poll()?.next() {
            return take(wc);
        }
    }
}
