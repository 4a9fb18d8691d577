//! The exchange of both sides: tokens, then RDMA writes or reads, then a completion message.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of programs for the terminal"
)]

use std::process;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use cm::{
    ConnParam,
    event_loop::{InitQp, Next, Protocol, Qp, Step},
};
use verbs::{Buf, Completed, ProtectionDomain, RemoteAccess, RemoteRegion, RemoteToken, op};

use super::message::{MESSAGE_LEN, Message};
use crate::text::text_of;

/// Size of the memory written or read, in bytes.
pub const BUFFER_SIZE: usize = 1024;

/// Operation on the peer's memory. Both sides must choose the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Read from the peer's memory
    Read,
    /// Write to the peer's memory
    Write,
}

/// Role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Connects, and sends the first token.
    Client,
    /// Waits for clients.
    Server,
}

/// One side of the exchange.
#[derive(Debug)]
pub struct Exchange {
    /// The operation.
    pub mode: Mode,
    /// The role.
    pub side: Side,
}

/// Progress of one connection.
#[derive(Debug)]
pub struct State {
    pd: ProtectionDomain,
    /// Local memory exposed to the peer.
    remote: RemoteRegion,
    /// Local buffer of the operation; `None` while in flight.
    local: Option<Buf>,
    peer: Option<RemoteToken>,
    sent_memory: bool,
    /// Number of completed requests: token, RDMA operation, completion message.
    sent: u32,
    peer_is_done: bool,
}

impl Protocol for Exchange {
    type Send = Buf;
    type Receive = Buf;
    type State = State;
    type Error = anyhow::Error;

    /// Parameters of the C program, with one RDMA read at a time, except for its retry count of 0, with which one
    /// lost packet ends the exchange. Soft-RoCE treats 7 as unlimited, and the loss of a peer must be detected.
    fn param(&self) -> ConnParam {
        ConnParam::zeroed()
            .responder_resources(1)
            .initiator_depth(1)
            .retry_count(6)
            .rnr_retry_count(7)
    }

    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> anyhow::Result<State> {
        let access = match self.mode {
            Mode::Write => RemoteAccess::WRITE,
            Mode::Read => RemoteAccess::READ,
        };
        let remote = pd.alloc_remote(BUFFER_SIZE, access)?;
        let mut local = pd.alloc_buf(BUFFER_SIZE)?;
        let text = match self.side {
            Side::Client => format!("message from active/client side with pid {}", process::id()),
            Side::Server => format!(
                "message from passive/server side with pid {}",
                process::id()
            ),
        };
        match self.mode {
            Mode::Write => local[..text.len()].copy_from_slice(text.as_bytes()),
            Mode::Read => remote.write(0, text.as_bytes()),
        }
        // Two receives, one for each message of the peer: on iWARP, a message without a receive ends the
        // connection.
        for _ in 0..2 {
            qp.post_recv(pd.alloc_buf(MESSAGE_LEN)?)?;
        }
        Ok(State {
            pd: pd.clone(),
            remote,
            local: Some(local),
            peer: None,
            sent_memory: false,
            sent: 0,
            peer_is_done: false,
        })
    }

    fn established(&mut self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        match self.side {
            Side::Client => state.send_memory(qp),
            Side::Server => Ok(()),
        }
    }

    fn completed(
        &mut self,
        state: &mut State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Buf, Buf>,
    ) -> anyhow::Result<Next> {
        match done {
            Completed::Receive(done) => match Message::from_wire(done.received()?) {
                Some(Message::Mr(peer)) if state.peer.is_none() => {
                    state.peer = Some(peer);
                    if !state.sent_memory {
                        state.send_memory(qp)?;
                    }
                    self.operate(state, qp)?;
                }
                Some(Message::Done) if state.peer.is_some() => state.peer_is_done = true,
                other => bail!("unexpected message {other:?} from the peer"),
            },
            Completed::Send(done) => {
                println!("send completed successfully.");
                state.sent += 1;
                match state.sent {
                    1 => self.operate(state, qp)?,
                    2 => state.local = Some(done.into_work()?),
                    _ => {}
                }
            }
        }
        if !state.is_done() {
            return Ok(Next::Wait);
        }
        self.show(state);
        Ok(Next::Disconnect)
    }

    fn closed(&mut self, state: State) -> anyhow::Result<()> {
        if !state.is_done() {
            // The peer disconnects after the last message, possibly before the completion of that send
            // arrives here.
            ensure!(
                state.sent == 2 && state.peer_is_done,
                "the peer has disconnected too early"
            );
            self.show(&state);
        }
        Ok(())
    }

    fn connection_failed(&mut self, err: anyhow::Error) {
        eprintln!("a connection has failed: {err:#}");
    }

    fn report_step(&mut self, step: Step) {
        match (step, self.side) {
            (Step::AddrResolved, _) => println!("address resolved."),
            (Step::RouteResolved, _) => println!("route resolved."),
            (Step::Requested, _) => println!("received connection request."),
            (Step::Disconnected, Side::Client) => println!("disconnected."),
            (Step::Disconnected, Side::Server) => println!("peer disconnected."),
            _ => {}
        }
    }
}

impl Exchange {
    /// Once both tokens are known, writes to or reads from the peer's memory, and sends the completion
    /// message.
    fn operate(&self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        let (1, Some(peer)) = (state.sent, state.peer) else {
            return Ok(());
        };
        let local = state.local.take().context("the memory is in use")?;
        match self.mode {
            Mode::Write => {
                println!("received MSG_MR. writing message to remote memory...");
                qp.post(op::Write::new(local, peer))?;
            }
            Mode::Read => {
                println!("received MSG_MR. reading message from remote memory...");
                qp.post(op::Read::new(local, peer))?;
            }
        }
        state.send(qp, Message::Done)
    }

    fn show(&self, state: &State) {
        println!("remote buffer: {}", text_of(&self.peers_text(state)));
    }

    /// The text written by the peer, or the text read from the peer.
    fn peers_text(&self, state: &State) -> Vec<u8> {
        let mut text = vec![0; BUFFER_SIZE];
        match (self.mode, &state.local) {
            (Mode::Write, _) => state.remote.read(0, &mut text),
            (Mode::Read, Some(local)) => text.copy_from_slice(local),
            (Mode::Read, None) => {}
        }
        text
    }
}

impl State {
    fn send_memory(&mut self, qp: &mut Qp<Exchange>) -> anyhow::Result<()> {
        self.sent_memory = true;
        self.send(qp, Message::Mr(self.remote.token()))
    }

    fn send(&self, qp: &mut Qp<Exchange>, message: Message) -> anyhow::Result<()> {
        let buf = self.pd.register_buf(message.to_wire())?;
        // Fenced, so that the completion message follows the end of the read. (The C program omits the
        // fence.)
        Ok(qp.post(op::Send::new(buf).fenced())?)
    }

    fn is_done(&self) -> bool {
        self.sent == 3 && self.peer_is_done
    }
}
