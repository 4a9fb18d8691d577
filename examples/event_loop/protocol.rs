//! What a protocol has to say, for the loop to run it.

use cm::ConnParam;
use verbs::{
    Completed, Init, ProtectionDomain, QueuePair, Rc, Rts,
    work::{Gather, Scatter},
};

/// One side of a protocol over reliable connections.
///
/// The loop calls it, from one thread, when something has become of a connection. An error ends the
/// connection that it is about.
pub trait Protocol {
    /// What requests of the send queue own while they are in flight.
    type Send: Gather + Send + 'static;
    /// What receives own.
    type Receive: Scatter + Send + 'static;
    /// What this side remembers of a connection.
    type State;

    /// How many requests a connection has in flight at most.
    const SEND_DEPTH: u32 = 10;
    /// How many receives it has posted at most.
    const RECEIVE_DEPTH: u32 = 10;

    /// What a connection is asked for, or accepted, with.
    fn param(&self) -> ConnParam {
        ConnParam::new()
    }

    /// A connection is being made: allocates its memory, and posts its first receives.
    ///
    /// # Errors
    /// The device or the process is at a limit. The connection is not made.
    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>)
    -> anyhow::Result<Self::State>;

    /// The connection is established. On the passive side, the first message may have come before.
    ///
    /// # Errors
    /// Nothing can be posted.
    fn established(&mut self, _: &mut Self::State, _: &mut Qp<Self>) -> anyhow::Result<()> {
        Ok(())
    }

    /// A request or a receive has completed, with success.
    ///
    /// # Errors
    /// The peer does not keep to the protocol, or nothing can be posted.
    fn completed(
        &mut self,
        state: &mut Self::State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Self::Send, Self::Receive>,
    ) -> anyhow::Result<Next>;

    /// Whether all is done, and the peer may go without another word: even before its device has
    /// acknowledged the last message.
    fn is_over(&self, _: &Self::State) -> bool {
        false
    }

    /// The connection has ended, by whichever side.
    ///
    /// # Errors
    /// It has ended too early.
    fn closed(&mut self, _: Self::State) -> anyhow::Result<()> {
        Ok(())
    }

    /// A step has been taken, which a program may want to tell its user.
    fn tell(&mut self, _: Step) {}
}

/// A queue pair to which receives can be posted.
pub type InitQp<P> = QueuePair<Rc, Init, <P as Protocol>::Send, <P as Protocol>::Receive>;

/// A queue pair to which everything can be posted.
pub type Qp<P> = QueuePair<Rc, Rts, <P as Protocol>::Send, <P as Protocol>::Receive>;

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is more to come.
    Wait,
    /// Everything is done: end it.
    Disconnect,
}

/// A step towards a connection, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Waiting for peers on this port.
    Listening(u16),
    /// The peer's address is resolved.
    AddrResolved,
    /// The way to the peer is known.
    RouteResolved,
    /// A peer wants to connect.
    Requested,
    /// A connection is established.
    Established,
    /// A connection has ended.
    Disconnected,
}
