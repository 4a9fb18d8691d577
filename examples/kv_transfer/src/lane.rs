//! A lane: one of the queue pairs to a peer, with the credits of both directions.

use anyhow::ensure;
use cm::{Endpoint, SharedQueues};
use verbs::{
    Completed, ProtectionDomain, RemoteRegion, RemoteToken, WcStatus, WorkCompletion,
    cq::WcError,
    mr::{BufPool, PoolBuf},
    op,
    qp::Completion,
    work::{Either, With},
};

use super::message::{Immediate, MESSAGE_LEN, Message};

/// Receives of each lane: the credits of the peer.
pub(crate) const RECEIVES: u32 = 32;
/// Requests in flight of each lane.
pub(crate) const SENDS: u32 = 64;
/// Requests in flight of each lane that only messages may use.
const RESERVED: usize = 8;

/// A request in flight.
#[derive(Debug)]
pub(crate) enum Request {
    Message(Message),
    Page(PageWrite),
}

/// The write of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageWrite {
    pub(crate) lease: u32,
    pub(crate) group: u8,
    /// Whether the write has the immediate data of the group.
    pub(crate) last: bool,
}

pub(crate) type Payload = With<Either<PoolBuf, RemoteRegion>, Request>;

/// Meaning of a completion.
#[derive(Debug)]
pub(crate) enum Outcome {
    Message(Message),
    Immediate(Immediate),
    Sent(Request),
    /// The request failed. The peer may have executed it nevertheless.
    Unsent(Request),
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Lane {
    endpoint: Endpoint<Payload, PoolBuf, SharedQueues>,
    pool: BufPool,
    /// Receives of the peer that this side may consume.
    credits: u32,
    /// Receives posted again and not yet returned to the peer as credits.
    owed: u32,
    /// Why the lane is being closed: its queue pair is in the error state, until the last completion.
    closing: Option<String>,
    /// Whether the only known reason is a flushed request.
    is_flushed: bool,
}

/// Buffers for the messages of a lane.
pub(crate) fn buffers(pd: &ProtectionDomain) -> verbs::Result<BufPool> {
    pd.alloc_pool((RECEIVES + SENDS) as usize, MESSAGE_LEN)
}

/// Posts all receives of a lane by `post`, before the connection exists.
pub(crate) fn post_receives<E: Into<anyhow::Error>>(
    pool: &BufPool,
    mut post: impl FnMut(PoolBuf) -> Result<(), E>,
) -> anyhow::Result<()> {
    for _ in 0..RECEIVES {
        post(
            pool.try_take()
                .expect("the pool has a buffer for each receive"),
        )
        .map_err(Into::into)?;
    }
    Ok(())
}

impl Lane {
    /// A connected lane; all receives of both sides are posted.
    pub(crate) fn new(endpoint: Endpoint<Payload, PoolBuf, SharedQueues>, pool: BufPool) -> Self {
        Self {
            endpoint,
            pool,
            credits: RECEIVES,
            owed: 0,
            closing: None,
            is_flushed: false,
        }
    }

    pub(crate) fn closing(&self) -> Option<&str> {
        self.closing.as_deref()
    }

    /// Moves the queue pair to the error state. The lane must not be dropped before it is [drained](Self::is_drained).
    pub(crate) fn close(&mut self, reason: impl Into<String>) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(reason.into());
        let connection = self.endpoint.connection_mut();
        // After the end of the connection or the device, both calls fail, and the requests are flushed without them.
        drop(connection.qp_mut().to_error());
        drop(connection.disconnect());
    }

    /// Whether the closed queue pair has returned all requests and receives.
    pub(crate) fn is_drained(&mut self) -> bool {
        let qp = self.endpoint.connection_mut().qp();
        let in_flight = qp.send_queue().in_flight() + qp.receive_queue().in_flight();
        self.closing.is_some() && in_flight == 0
    }

    /// Closes the lane because of a failed request. Flushed requests only follow from the cause, and may complete before it.
    fn fail(&mut self, error: &WcError) {
        let flushed = error.status == WcStatus::WR_FLUSH_ERR;
        if self.closing.is_none() || (self.is_flushed && !flushed) {
            self.is_flushed = flushed;
            self.closing.take();
            self.close(error.to_string());
        }
    }

    /// Closes the lane if its connection has ended.
    pub(crate) fn check_connection(&mut self) {
        match self.endpoint.check_disconnected() {
            Ok(false) => {}
            Ok(true) => match self.endpoint.end_cause() {
                Some(cause) => self.close(cause.to_string()),
                None => self.close("the peer has disconnected"),
            },
            Err(error) => self.close(error.to_string()),
        }
    }

    fn capacity(&mut self) -> usize {
        let in_flight = self.endpoint.connection_mut().qp().send_queue().in_flight();
        (SENDS as usize).saturating_sub(in_flight)
    }

    /// Whether a message can be sent. The last credit is for [`Message::Credit`], so that credits always return.
    pub(crate) fn can_send(&mut self) -> bool {
        self.closing.is_none() && self.credits > 1 && self.capacity() > 0
    }

    /// Whether a page can be written.
    pub(crate) fn can_write(&mut self, with_immediate: bool) -> bool {
        let has_credit = !with_immediate || self.credits > 1;
        self.closing.is_none() && has_credit && self.capacity() > RESERVED
    }

    /// Sends a message, and returns credits with it.
    pub(crate) fn send(&mut self, message: Message) -> anyhow::Result<()> {
        let mut buf = self
            .pool
            .try_take()
            .expect("the pool has a buffer for each send");
        buf.copy_from_slice(&message.to_wire(self.owed));
        let work = With::new(Either::Left(buf), Request::Message(message));
        self.endpoint.post(op::Send::new(work))?;
        self.credits -= 1;
        self.owed = 0;
        Ok(())
    }

    /// Returns credits by a message of their own, if half of the receives have been consumed.
    pub(crate) fn return_credits(&mut self) -> anyhow::Result<()> {
        let is_due = self.closing.is_none() && self.owed >= RECEIVES / 2;
        match is_due && self.credits > 0 && self.capacity() > 0 {
            true => self.send(Message::Credit),
            false => Ok(()),
        }
    }

    /// Writes a page to the peer's memory.
    pub(crate) fn write(
        &mut self,
        page: RemoteRegion,
        target: RemoteToken,
        write: PageWrite,
        immediate: Option<Immediate>,
    ) -> anyhow::Result<()> {
        let work = With::new(Either::Right(page), Request::Page(write));
        let mut request = op::Write::new(work, target);
        if let Some(immediate) = immediate {
            request = request.imm_data(immediate.to_wire());
        }
        self.endpoint.post(request)?;
        self.credits -= u32::from(immediate.is_some());
        Ok(())
    }

    /// Handles a completion of this lane.
    ///
    /// # Errors
    /// The peer has broken the protocol.
    pub(crate) fn complete(&mut self, wc: WorkCompletion<'_>) -> anyhow::Result<Outcome> {
        match self.endpoint.complete(wc) {
            Ok(Completed::Send(done)) => {
                let failure = done.ok().err();
                let (_, work) = done.into_parts();
                Ok(match failure {
                    None => Outcome::Sent(work.context),
                    Some(failure) => {
                        self.fail(&failure);
                        Outcome::Unsent(work.context)
                    }
                })
            }
            Ok(Completed::Receive(done)) => self.receive(done),
            Err(_) => Ok(Outcome::Nothing),
        }
    }

    fn receive(&mut self, done: Completion<'_, PoolBuf>) -> anyhow::Result<Outcome> {
        if let Err(error) = done.ok() {
            self.fail(&error);
            return Ok(Outcome::Nothing);
        }
        let outcome = match done.imm_data() {
            Some(number) => Outcome::Immediate(Immediate::from_wire(number)?),
            None => {
                let (message, returned) = Message::from_wire(done.received()?)?;
                let credits = u64::from(self.credits) + u64::from(returned);
                let max = u64::from(RECEIVES);
                ensure!(
                    credits <= max,
                    "the peer returns {returned} credits, {credits} in all, above {max}"
                );
                self.credits += returned;
                Outcome::Message(message)
            }
        };
        let (_, buf) = done.into_parts();
        if self.closing.is_none() {
            match self.endpoint.post_recv(buf) {
                Ok(()) => self.owed += 1,
                Err(error) => self.close(error.to_string()),
            }
        }
        Ok(outcome)
    }
}
