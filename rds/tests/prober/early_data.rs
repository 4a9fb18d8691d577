//! A peer with data before the RTU, and no RTU.

use std::{
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use cm::{ConnectResponse, Event, EventChannel};
use verbs::{Buf, Completed, QueuePair, Rts, op};

use super::{DialState, Queues, TEST_TIMEOUT, bring_up, dial_by, odd};

/// A connection without an RTU.
#[derive(Debug)]
pub(crate) struct EarlyData {
    // Declared first, since the queue pair uses the other fields.
    qp: QueuePair<verbs::Rc, Rts>,
    queues: Queues,
    _response: ConnectResponse,
    _channel: EventChannel,
}

impl EarlyData {
    /// Requests a connection and moves the queue pair to RTS.
    pub(crate) fn dial(local: IpAddr, peer: IpAddr, data: &[u8]) -> io::Result<Self> {
        let DialState {
            channel,
            queues,
            qp,
            private_data,
        } = dial_by(local, peer, data, 64)?;
        match private_data {
            Event::ConnectResponse(response) => Ok(Self {
                qp: bring_up(response.id(), qp)?,
                queues,
                _response: response,
                _channel: channel,
            }),
            other => Err(odd(&other)),
        }
    }

    /// Sends a frame and waits for the completion; `false` if it fails.
    pub(crate) fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        let mut buf = self.queues.pd.alloc_buf(frame.len())?;
        buf.copy_from_slice(frame);
        let posted = self.qp.post(op::Send::new(buf).solicited());
        posted.map_err(verbs::Error::from)?;
        self.pump(|completed, ok| matches!(completed, Completed::Send(_)).then_some(ok))
    }

    /// The next frame of any kind.
    pub(crate) fn frame(&mut self) -> io::Result<Vec<u8>> {
        self.pump(|completed, ok| match completed {
            Completed::Receive(done) if ok => done.received().ok().map(<[u8]>::to_vec),
            _ => None,
        })
    }

    /// The first completion selected by `select`.
    fn pump<T>(
        &mut self,
        select: impl Fn(&Completed<'_, Buf, Buf>, bool) -> Option<T>,
    ) -> io::Result<T> {
        let until = Instant::now() + TEST_TIMEOUT;
        while Instant::now() < until {
            for wc in self.queues.cq.wait(Some(Duration::from_millis(100)))? {
                let ok = wc.ok().is_ok();
                let completed = self.qp.complete(wc);
                let completed =
                    completed.map_err(|_| io::Error::other("not of this queue pair"))?;
                if let Some(found) = select(&completed, ok) {
                    return Ok(found);
                }
            }
        }
        Err(io::Error::other("nothing completes"))
    }
}
