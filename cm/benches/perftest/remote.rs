//! Remote memory access, as in `ib_write_lat`, `ib_write_bw` and `ib_read_lat`.

use verbs::{Buf, SharedBuf, op};

use crate::{
    Plan, Result,
    clock::Samples,
    link::{Role, TestLink},
    message::{self, round},
};

/// Ping-pong of writes: each side writes after the last byte of the peer's write has arrived; half the median
/// interval between two posts.
pub(crate) fn write_latency(plan: Plan, role: Role) -> Result<f64> {
    let mut link = TestLink::<Buf>::establish(plan, role)?;
    let mut buf = link.pd.alloc_buf(plan.size)?;
    let mut samples = Samples::new(plan.iterations);
    let last = plan.size - 1;
    // Value of the last byte: the number of writes sent or received, modulo 256.
    let (mut mark, mut awaited) = (0_u8, 0_u8);
    let (mut sent, mut received) = (0, 0);
    while sent < plan.iterations || received < plan.iterations {
        let begins = sent == 0 && matches!(role, Role::Client(_));
        if received < plan.iterations && !begins {
            received += 1;
            awaited = awaited.wrapping_add(1);
            let mut byte = [awaited.wrapping_sub(1)];
            while byte != [awaited] {
                link.region.read(last, &mut byte);
            }
        }
        if sent < plan.iterations {
            samples.take();
            sent += 1;
            mark = mark.wrapping_add(1);
            buf[last] = mark;
            buf = round(&mut link, |link| op::Write::new(buf, link.peer))?;
        }
    }
    // The peer may still be waiting for the last write.
    finish(link, role, buf)?;
    Ok(samples.median()? / 2.0)
}

/// Writes in one direction, with the maximum number in flight.
pub(crate) fn write_rate(plan: Plan, role: Role) -> Result<f64> {
    let mut link = TestLink::<SharedBuf>::establish(plan, role)?;
    let message = link.pd.alloc_buf(plan.size)?.freeze();
    let mut cycles = 0;
    if let Role::Client(_) = role {
        let peer = link.peer;
        cycles = message::stream(plan, &mut link, |signaled| {
            let request = op::Write::new(message.clone(), peer);
            if signaled {
                request
            } else {
                request.unsignaled()
            }
        })?;
    }
    finish(link, role, message)?;
    match role {
        Role::Server => Ok(0.0),
        Role::Client(_) => plan.rate(cycles),
    }
}

/// One read after another; median interval between two posts.
pub(crate) fn read_latency(plan: Plan, role: Role) -> Result<f64> {
    let mut link = TestLink::<Buf>::establish(plan, role)?;
    let mut buf = link.pd.alloc_buf(plan.size)?;
    let mut samples = Samples::new(plan.iterations);
    if let Role::Client(_) = role {
        for _ in 0..plan.iterations {
            samples.take();
            buf = round(&mut link, |link| op::Read::new(buf, link.peer))?;
        }
    }
    finish(link, role, buf)?;
    match role {
        Role::Server => Ok(0.0),
        Role::Client(_) => samples.median(),
    }
}

/// The client sends a final message, and the server polls meanwhile, as in perftest.
fn finish<SW: verbs::work::Gather + 'static>(
    mut link: TestLink<SW>,
    role: Role,
    message: SW,
) -> Result<()> {
    let qp = link.connection.qp_mut();
    match role {
        Role::Server => message::next(&mut link.recv_cq, |wc| Ok(wc.ok()?)),
        Role::Client(_) => {
            qp.post(op::Send::new(message)).map_err(|it| it.error)?;
            message::next(&mut link.send_cq, |wc| Ok(wc.ok()?))
        }
    }
}
