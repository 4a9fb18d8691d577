//! The interface between the event loop and a protocol.

use verbs::{
    Completed, Init, ProtectionDomain, QueuePair, Rts,
    work::{Gather, Scatter},
};

use super::{Connections, Failure, Handle};
use crate::ConnParam;

/// One side of a protocol over reliable connections.
///
/// The loop calls all methods from one thread. An error ends the connection concerned; the loop passes the error to
/// [`connection_failed`](Self::connection_failed), or returns the last one.
pub trait Protocol {
    /// Payload of requests in the send queue.
    type Send: Gather + Send + 'static;
    /// Payload of receives.
    type Receive: Scatter + Send + 'static;
    /// State of one connection.
    type State;
    /// Error of the protocol. `Box<dyn Error + Send + Sync>` and `anyhow::Error` convert from a [`Failure`].
    type Error: From<Failure>;

    /// Maximum number of requests in flight on a connection.
    const SEND_DEPTH: u32 = 10;
    /// Maximum number of receives posted on a connection.
    const RECEIVE_DEPTH: u32 = 10;

    /// Parameters of connecting and of accepting.
    fn param(&self) -> ConnParam {
        ConnParam::new()
    }

    /// Called once, before the first event: the handle lets callbacks and threads of the protocol
    /// [wake](Handle::wake) the loop. Does nothing by default.
    fn started(&mut self, _: Handle) {}

    /// Called for a new connection: allocates memory and posts the first receives.
    ///
    /// # Errors
    /// The device or the process is at a limit. On the passive side another connection may give way (see the
    /// [limits](super#limits)), and `open` is called once more; otherwise the connection attempt is abandoned.
    fn open(
        &mut self,
        pd: &ProtectionDomain,
        qp: &mut InitQp<Self>,
    ) -> Result<Self::State, Self::Error>;

    /// Called when the connection is established. On the passive side, the first message may have completed
    /// before.
    ///
    /// # Errors
    /// Posting failed.
    fn established(&mut self, _: &mut Self::State, _: &mut Qp<Self>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Called after a successful completion of a request or a receive.
    ///
    /// # Errors
    /// The peer violates the protocol, or posting failed.
    fn completed(
        &mut self,
        state: &mut Self::State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Self::Send, Self::Receive>,
    ) -> Result<Next, Self::Error>;

    /// Whether the exchange is complete, so that the peer may disconnect even before the last message has
    /// been acknowledged.
    fn is_over(&self, _: &Self::State) -> bool {
        false
    }

    /// Called soon after [`Handle::wake`], with access to all connections: for work handed in from other threads, and for
    /// messages to other connections than the one of a callback. Does nothing by default.
    ///
    /// # Errors
    /// Ends the loop.
    fn woken(&mut self, _: &mut Connections<'_, Self>) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Called at each [tick](super::EventLoop::tick). Does nothing by default.
    ///
    /// # Errors
    /// Ends the loop.
    fn tick(&mut self, _: &mut Connections<'_, Self>) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Called when either side has ended the connection.
    ///
    /// # Errors
    /// The connection ended too early.
    fn closed(&mut self, _: Self::State) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Called after the failure of a connection that does not end the loop. Does nothing by default.
    fn connection_failed(&mut self, _: Self::Error) {}

    /// Called after each step of a connection, for progress output.
    fn report_step(&mut self, _: Step) {}
}

/// A queue pair ready for posting receives.
pub type InitQp<P> = QueuePair<verbs::Rc, Init, <P as Protocol>::Send, <P as Protocol>::Receive>;

/// A queue pair ready for all requests.
pub type Qp<P> = QueuePair<verbs::Rc, Rts, <P as Protocol>::Send, <P as Protocol>::Receive>;

/// Whether a connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for more completions.
    Wait,
    /// The exchange is complete: disconnect.
    Disconnect,
}

/// A step towards a connection, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The peer's address is resolved.
    AddrResolved,
    /// The route to the peer is resolved.
    RouteResolved,
    /// A connection request has arrived.
    Requested,
    /// A connection is established.
    Established,
    /// A connection has ended.
    Disconnected,
}
