//! A connection with raw frames.

use std::{collections::VecDeque, io, time::Duration, time::Instant};

use cm::{CmId, Connection, Event, EventChannel, phases::HasDevice};
use rds::proto::wire::{Flags, Header};
use verbs::{Completed, CompletionQueue, Init, ProtectionDomain, QueuePair, op};

use super::{ROOM, TEST_TIMEOUT};

/// Resources of a queue pair.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
}

impl Queues {
    /// Creates a queue pair with `receives` posted receives.
    pub(super) fn new<P: HasDevice>(
        id: &CmId<P>,
        receives: u32,
    ) -> io::Result<(Self, QueuePair<verbs::Rc, Init>)> {
        let ctx = id.context()?;
        let pd = ctx.alloc_pd()?;
        let cq = ctx.cq_builder(1024).waitable().create()?;
        let builder = pd.qp_builder(&cq, &cq);
        let qp = builder.max_send_wr(300).max_recv_wr(600).create()?;
        let mut qp = id.init_qp(qp).map_err(verbs::Error::from)?;
        for _ in 0..receives {
            qp.post_recv(pd.alloc_buf(ROOM)?)
                .map_err(verbs::Error::from)?;
        }
        Ok((Self { pd, cq }, qp))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    // Declared first, since its queue pair uses the other fields.
    connection: Connection,
    queues: Queues,
    channel: EventChannel,
    /// Private data of the peer.
    pub(crate) private_data: Vec<u8>,
    received_frames: VecDeque<Vec<u8>>,
    sending: usize,
    lost: bool,
}

impl Wire {
    pub(super) fn new(
        connection: Connection,
        queues: Queues,
        channel: EventChannel,
        private_data: Vec<u8>,
    ) -> Self {
        Self {
            connection,
            queues,
            channel,
            private_data,
            received_frames: VecDeque::new(),
            sending: 0,
            lost: false,
        }
    }

    /// Sends a frame and waits for the completion; `false` if it fails.
    pub(crate) fn send(&mut self, frame: &[u8], solicited: bool) -> io::Result<bool> {
        let mut buf = self.queues.pd.alloc_buf(frame.len().max(1))?;
        buf.set_len(frame.len());
        buf.copy_from_slice(frame);
        let mut send = op::Send::new(buf);
        if solicited {
            send = send.solicited();
        }
        if self.connection.qp_mut().post(send).is_err() {
            self.lost = true;
        } else {
            self.sending += 1;
        }
        let until = Instant::now() + TEST_TIMEOUT;
        while self.sending > 0 && !self.lost && Instant::now() < until {
            self.pump(Duration::from_millis(100))?;
        }
        Ok(!self.lost && self.sending == 0)
    }

    /// Sends a message in frames.
    pub(crate) fn message(&mut self, header: &Header, body: &[u8]) -> io::Result<bool> {
        let head = header.encode();
        let mut parts = body.chunks(4096).peekable();
        if parts.peek().is_none() {
            return self.send(&head, true);
        }
        let mut accepted = true;
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            accepted &= self.send(&[&head, part].concat(), last)?;
        }
        Ok(accepted)
    }

    /// Acknowledges messages up to `ack`.
    pub(crate) fn acknowledge(&mut self, ack: u64) -> io::Result<bool> {
        let header = Header {
            ack,
            ..Header::default()
        };
        self.send(&header.encode(), true)
    }

    /// The next frame; `None` if the connection is lost.
    pub(crate) fn frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.frame_within(TEST_TIMEOUT)
    }

    /// The next frame; `None` on timeout, or if the connection is lost.
    pub(crate) fn frame_within(&mut self, wait: Duration) -> io::Result<Option<Vec<u8>>> {
        let until = Instant::now() + wait;
        while self.received_frames.is_empty() && !self.lost && Instant::now() < until {
            self.pump(Duration::from_millis(50))?;
        }
        Ok(self.received_frames.pop_front())
    }

    /// The next frame of a message.
    pub(crate) fn recv_frame(&mut self) -> io::Result<Option<(Header, Vec<u8>)>> {
        while let Some(mut frame) = self.frame()? {
            let header = Header::decode(&frame, false).map_err(io::Error::other)?;
            let is_about_a_message = header.sequence != 0 && header.flags != Flags::CONG_BITMAP;
            if is_about_a_message {
                return Ok(Some((header, frame.split_off(Header::SIZE))));
            }
        }
        Ok(None)
    }

    /// Posts more receives.
    pub(crate) fn receive(&mut self, frames: u32) -> io::Result<()> {
        for _ in 0..frames {
            let buf = self.queues.pd.alloc_buf(ROOM)?;
            let posted = self.connection.qp_mut().post_recv(buf);
            posted.map_err(verbs::Error::from)?;
        }
        Ok(())
    }

    /// Waits for the peer to end the connection; returns whether it has.
    pub(crate) fn is_lost(&mut self) -> io::Result<bool> {
        let until = Instant::now() + TEST_TIMEOUT;
        while !self.lost && Instant::now() < until {
            self.pump(Duration::from_millis(100))?;
        }
        Ok(self.lost)
    }

    /// Whether the connection is up, according to the events so far.
    pub(crate) fn is_there(&mut self) -> io::Result<bool> {
        self.pump(Duration::ZERO)?;
        Ok(!self.lost)
    }

    /// Stops answering, without notice to the peer.
    pub(crate) fn fall_silent(&mut self) -> io::Result<()> {
        Ok(self.connection.qp_mut().to_error()?)
    }

    /// Disconnects.
    pub(crate) fn disconnect(mut self) {
        // Fails if the peer has disconnected first.
        drop(self.connection.disconnect());
    }

    fn pump(&mut self, wait: Duration) -> io::Result<()> {
        let qp = self.connection.qp_mut();
        for wc in self.queues.cq.wait(Some(wait))? {
            let succeeded = wc.ok().is_ok();
            self.lost |= !succeeded;
            match qp.complete(wc) {
                Ok(Completed::Receive(done)) if succeeded => {
                    self.received_frames.push_back(done.received()?.to_vec());
                    let mut work = done.into_work()?;
                    work.set_full();
                    // A lost queue pair shows in its completions.
                    drop(qp.post_recv(work));
                }
                Ok(Completed::Send(_)) => self.sending -= 1,
                _ => {}
            }
        }
        while let Some(event) = self.channel.try_next()? {
            self.lost |= matches!(event, Event::Disconnected { .. } | Event::TimewaitExit(_));
        }
        Ok(())
    }
}
