//! What both sides do: tell each other where their memory is, write to or read from the other's,
//! and say so.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::process;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use cm::ConnParam;
use verbs::{
    Buf, Completed, ProtectionDomain, RemoteAccess, RemoteRegion, RemoteToken,
    op::{Read, Send, Write},
};

use super::message::{MESSAGE_LEN, Message};
use crate::{
    event_loop::protocol::{InitQp, Next, Protocol, Qp, Step},
    text::text_of,
};

/// The size of the memory that is written or read.
pub const BUFFER_SIZE: usize = 1024;

/// What is done to the peer's memory. Both sides must do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Read what the peer has written there
    Read,
    /// Write to it
    Write,
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It connects, and tells first where its memory is.
    Client,
    /// It waits for clients.
    Server,
}

/// One side of the exchange.
#[derive(Debug)]
pub struct Exchange {
    /// What is done.
    pub mode: Mode,
    /// Who does it.
    pub side: Side,
}

/// How far one connection is.
#[derive(Debug)]
pub struct State {
    pd: ProtectionDomain,
    /// Memory of this side that the peer writes to or reads from.
    remote: RemoteRegion,
    /// What this side writes from or reads to; with the device meanwhile.
    local: Option<Buf>,
    peer: Option<RemoteToken>,
    told: bool,
    /// How many requests have completed: the memory told, the RDMA operation, the end told.
    sent: u32,
    peer_is_done: bool,
}

impl Protocol for Exchange {
    type Send = Buf;
    type Receive = Buf;
    type State = State;

    /// As the C program: one RDMA read at a time, and no retries but for a receiver that is not
    /// ready.
    fn param(&self) -> ConnParam {
        ConnParam::zeroed()
            .responder_resources(1)
            .initiator_depth(1)
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
        // For both messages of the peer: on iWARP, one that finds no receive ends the connection.
        for _ in 0..2 {
            qp.post_recv(pd.alloc_buf(MESSAGE_LEN)?)?;
        }
        Ok(State {
            pd: pd.clone(),
            remote,
            local: Some(local),
            peer: None,
            told: false,
            sent: 0,
            peer_is_done: false,
        })
    }

    fn established(&mut self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        match self.side {
            Side::Client => state.tell_memory(qp),
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
                    if !state.told {
                        state.tell_memory(qp)?;
                    }
                    self.operate(state, qp)?;
                }
                Some(Message::Done) if state.peer.is_some() => state.peer_is_done = true,
                other => bail!("the peer has sent {other:?} when it should not"),
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
            // The peer, which disconnects when it has got everything, may have been quicker than
            // the completion of what it got last.
            ensure!(
                state.sent == 2 && state.peer_is_done,
                "the peer has disconnected too early"
            );
            self.show(&state);
        }
        Ok(())
    }

    fn tell(&mut self, step: Step) {
        match (step, self.side) {
            (Step::Listening(port), _) => println!("listening on port {port}."),
            (Step::AddrResolved, _) => println!("address resolved."),
            (Step::RouteResolved, _) => println!("route resolved."),
            (Step::Requested, _) => println!("received connection request."),
            (Step::Disconnected, Side::Client) => println!("disconnected."),
            (Step::Disconnected, Side::Server) => println!("peer disconnected."),
            (Step::Established, _) => {}
        }
    }
}

impl Exchange {
    /// Writes to the peer's memory or reads from it, and says so, as soon as both sides have told
    /// where their memory is.
    fn operate(&self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        let (1, Some(peer)) = (state.sent, state.peer) else {
            return Ok(());
        };
        let local = state.local.take().context("the memory is in use")?;
        match self.mode {
            Mode::Write => {
                println!("received MSG_MR. writing message to remote memory...");
                qp.post(Write::new(local, peer))?;
            }
            Mode::Read => {
                println!("received MSG_MR. reading message from remote memory...");
                qp.post(Read::new(local, peer))?;
            }
        }
        state.send(qp, Message::Done)
    }

    fn show(&self, state: &State) {
        println!("remote buffer: {}", text_of(&self.peers_text(state)));
    }

    /// What the peer has written here, or what has been read from it.
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
    fn tell_memory(&mut self, qp: &mut Qp<Exchange>) -> anyhow::Result<()> {
        self.told = true;
        self.send(qp, Message::Mr(self.remote.token()))
    }

    fn send(&self, qp: &mut Qp<Exchange>, message: Message) -> anyhow::Result<()> {
        let buf = self.pd.register_buf(message.to_wire())?;
        // Fenced: that a read is done is not said before it is. (The C program leaves that out.)
        Ok(qp.post(Send::new(buf).fenced())?)
    }

    fn is_done(&self) -> bool {
        self.sent == 3 && self.peer_is_done
    }
}
