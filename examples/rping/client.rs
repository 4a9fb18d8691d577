//! The client: memory for pings and memory for pongs.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of a program for the terminal"
)]

use anyhow::{bail, ensure};
use cm::{
    ConnParam,
    event_loop::{InitQp, Next, Protocol, Qp, Step},
};
use verbs::{Buf, Completed, ProtectionDomain, RemoteAccess, RemoteRegion, op};

use super::{
    advert::{ADVERT_LEN, to_wire},
    ping::ping,
};
use crate::text::text_of;

/// The client's side.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Size of a ping, in bytes.
    pub size: usize,
    /// Number of pings; 0 for no limit.
    pub count: u64,
    /// Whether to print each pong.
    pub verbose: bool,
    /// Whether to compare each pong with the ping.
    pub validate: bool,
    /// Whether to print each step.
    pub debug: bool,
}

/// State of the connection.
#[derive(Debug)]
pub struct State {
    source: RemoteRegion,
    sink: RemoteRegion,
    advert: RemoteRegion,
    /// Number of pongs received.
    pongs: u64,
    stage: Stage,
}

/// Last advertisement sent to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Nothing,
    Source,
    Sink,
    Done,
}

impl Protocol for Client {
    type Send = RemoteRegion;
    type Receive = Buf;
    type State = State;
    type Error = anyhow::Error;

    const SEND_DEPTH: u32 = 16;
    const RECEIVE_DEPTH: u32 = 2;

    fn param(&self) -> ConnParam {
        ConnParam::new().responder_resources(1).initiator_depth(1)
    }

    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> anyhow::Result<State> {
        qp.post_recv(pd.alloc_buf(ADVERT_LEN)?)?;
        Ok(State {
            source: pd.alloc_remote(self.size, RemoteAccess::READ)?,
            sink: pd.alloc_remote(self.size, RemoteAccess::WRITE)?,
            advert: pd.alloc_remote(ADVERT_LEN, RemoteAccess::empty())?,
            pongs: 0,
            stage: Stage::Nothing,
        })
    }

    fn established(&mut self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        self.ping(state, qp)
    }

    fn completed(
        &mut self,
        state: &mut State,
        qp: &mut Qp<Self>,
        done: Completed<'_, RemoteRegion, Buf>,
    ) -> anyhow::Result<Next> {
        let Completed::Receive(done) = done else {
            return Ok(Next::Wait);
        };
        ensure!(
            done.byte_len() == ADVERT_LEN,
            "the server has sent {} bytes",
            done.byte_len()
        );
        qp.post_recv(done.into_work()?)?;
        if self.debug {
            println!("{:?}: go ahead", state.stage);
        }
        match state.stage {
            Stage::Source => {
                state.stage = Stage::Sink;
                state.send_advert(qp, &state.sink)?;
            }
            Stage::Sink => {
                self.pong(state)?;
                state.pongs += 1;
                if state.pongs == self.count {
                    state.stage = Stage::Done;
                    return Ok(Next::Disconnect);
                }
                self.ping(state, qp)?;
            }
            Stage::Nothing | Stage::Done => bail!("the server sent a go-ahead out of turn"),
        }
        Ok(Next::Wait)
    }

    fn closed(&mut self, state: State) -> anyhow::Result<()> {
        ensure!(
            state.stage == Stage::Done,
            "the server has disconnected after {} pings",
            state.pongs
        );
        Ok(())
    }

    fn report_step(&mut self, step: Step) {
        if self.debug {
            println!("{step:?}");
        }
        if step == Step::Disconnected {
            eprintln!("client DISCONNECT EVENT...");
        }
    }
}

impl Client {
    /// Prepares a ping, and sends the address to the server.
    fn ping(&self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        state.source.write(0, &ping(state.pongs, self.size));
        state.stage = Stage::Source;
        state.send_advert(qp, &state.source)
    }

    /// Checks the pong written by the server.
    fn pong(&self, state: &State) -> anyhow::Result<()> {
        let mut pong = vec![0; self.size];
        state.sink.read(0, &mut pong);
        if self.validate {
            ensure!(pong == ping(state.pongs, self.size), "data mismatch!");
        }
        if self.verbose {
            println!("ping data: {}", text_of(&pong));
        }
        Ok(())
    }
}

impl State {
    fn send_advert(&self, qp: &mut Qp<Client>, memory: &RemoteRegion) -> anyhow::Result<()> {
        // The server has answered the last message, so the buffer is free.
        self.advert.write(0, &to_wire(memory.token()));
        Ok(qp.post(op::Send::new(self.advert.clone()))?)
    }
}
