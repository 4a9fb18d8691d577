//! Two hosts with one connection, polled by one thread.

use std::{hint::black_box, time::Instant};

use softnic::Fabric;
use verbs::{RemoteAccess, attr::Mtu, op};

use crate::{
    Result,
    end::{Connection, End, Returned},
};

/// Operations per timed chunk, and chunks. The result is the median of the chunks.
const COUNT: u32 = 1000;
const CHUNKS: usize = 21;

const MESSAGE: usize = 64;
const WRITE: usize = 64 << 10;

/// An end of the connection.
struct Side {
    end: End,
    qp: Connection,
    returned: Returned,
}

impl Side {
    /// Polls until `count` requests have completed.
    fn poll(&mut self, count: usize) -> Result<()> {
        let mut remaining = count;
        while remaining > 0 {
            for wc in self.end.cq.poll()? {
                self.returned.take(&mut self.qp, wc)?;
                remaining -= 1;
            }
        }
        Ok(())
    }

    /// Polls until a message has arrived.
    fn poll_message(&mut self) -> Result<()> {
        while self.returned.receives.is_empty() {
            self.poll(1)?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let buf = self.returned.sends.pop().ok_or("no buffer to send")?;
        Ok(self
            .qp
            .post(op::Send::new(buf))
            .map_err(|refused| refused.error)?)
    }

    fn receive(&mut self) -> Result<()> {
        let buf = self.returned.receives.pop().ok_or("no buffer to fill")?;
        Ok(self.qp.post_recv(buf).map_err(|refused| refused.error)?)
    }
}

fn connected(fabric: &Fabric, mtu: Mtu) -> Result<[Side; 2]> {
    let hosts = [
        fabric.host([10, 9, 0, 1].into()),
        fabric.host([10, 9, 0, 2].into()),
    ];
    let [a, b] = [End::new(&hosts[0], 64)?, End::new(&hosts[1], 64)?];
    let (qp_a, qp_b) = (a.create_qp(16)?, b.create_qp(16)?);
    let (num_a, num_b) = (qp_a.qp_num(), qp_b.qp_num());
    let (qp_a, qp_b) = (
        End::connect(qp_a, (&b, num_b), mtu)?,
        End::connect(qp_b, (&a, num_a), mtu)?,
    );
    let side = |end: End, qp| -> Result<Side> {
        let returned = Returned {
            sends: vec![end.pd.alloc_buf(MESSAGE)?],
            receives: vec![end.pd.alloc_buf(MESSAGE)?],
        };
        Ok(Side { end, qp, returned })
    };
    Ok([side(a, qp_a)?, side(b, qp_b)?])
}

/// Median time of an operation in nanoseconds.
fn median(mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(CHUNKS);
    for _ in 0..CHUNKS {
        let start = Instant::now();
        for _ in 0..COUNT {
            operation()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(COUNT));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[CHUNKS / 2])
}

/// Time of a message and its answer, in nanoseconds.
pub(crate) fn round_trip() -> Result<f64> {
    let fabric = Fabric::new();
    let [mut a, mut b] = connected(&fabric, Mtu::B1024)?;
    b.receive()?;
    median(|| {
        a.receive()?;
        a.send()?;
        b.poll_message()?;
        b.receive()?;
        b.send()?;
        // A send and a receive of `a`; the receive of `b` has been polled.
        a.poll(2)?;
        b.poll(1)
    })
}

/// Time of a write of 64 KiB in packets of the MTU, in nanoseconds.
pub(crate) fn write(mtu: Mtu) -> Result<f64> {
    let fabric = Fabric::new();
    let [mut a, b] = connected(&fabric, mtu)?;
    let region = b.end.pd.alloc_remote(WRITE, RemoteAccess::WRITE)?;
    a.returned.sends = vec![a.end.pd.alloc_buf(WRITE)?];
    let token = region.token();
    median(|| {
        let buf = a.returned.sends.pop().ok_or("no buffer to write")?;
        let write = op::Write::new(buf, token);
        a.qp.post(write).map_err(|refused| refused.error)?;
        a.poll(1)
    })
}

/// Time of a copy of 64 KiB in memory, in nanoseconds.
pub(crate) fn copy() -> Result<f64> {
    let (source, mut target) = (vec![1_u8; WRITE], vec![0_u8; WRITE]);
    median(|| {
        black_box(&mut target[..]).copy_from_slice(black_box(&source[..]));
        Ok(())
    })
}
