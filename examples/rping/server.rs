//! The server: reads a ping from the client's memory, and writes the ping to another buffer of the client.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of a program for the terminal"
)]

use anyhow::{Context as _, bail, ensure};
use cm::{
    ConnParam,
    event_loop::{InitQp, Next, Protocol, Qp, Step},
};
use verbs::{Buf, Completed, ProtectionDomain, RemoteAccess, RemoteRegion, RemoteToken, op};

use super::advert::{ADVERT_LEN, from_wire};
use crate::text::text_of;

/// The server's side.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Size of the buffer for a ping, in bytes.
    pub size: usize,
    /// Whether to print each ping.
    pub verbose: bool,
    /// Whether to print each step.
    pub debug: bool,
}

/// One client.
#[derive(Debug)]
pub struct State {
    /// Buffer of the read and the write. On iWARP a read response is a remote write, so the region must allow
    /// remote writes.
    memory: RemoteRegion,
    go_ahead: RemoteRegion,
    stage: Stage,
}

/// Next step; the steps repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Source,
    Read,
    Sink,
    Write,
}

impl Protocol for Server {
    type Send = RemoteRegion;
    type Receive = Buf;
    type State = State;
    type Error = anyhow::Error;

    const SEND_DEPTH: u32 = 16;
    const RECEIVE_DEPTH: u32 = 2;

    fn param(&self) -> ConnParam {
        ConnParam::new()
    }

    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> anyhow::Result<State> {
        qp.post_recv(pd.alloc_buf(ADVERT_LEN)?)?;
        Ok(State {
            memory: pd.alloc_remote(self.size, RemoteAccess::READ | RemoteAccess::WRITE)?,
            go_ahead: pd.alloc_remote(ADVERT_LEN, RemoteAccess::empty())?,
            stage: Stage::Source,
        })
    }

    fn completed(
        &mut self,
        state: &mut State,
        qp: &mut Qp<Self>,
        done: Completed<'_, RemoteRegion, Buf>,
    ) -> anyhow::Result<Next> {
        let (stage, work) = match done {
            Completed::Receive(done) => {
                let advert = from_wire(done.received()?);
                let peer = advert
                    .with_context(|| format!("the client has sent {} bytes", done.byte_len()))?;
                qp.post_recv(done.into_work()?)?;
                self.operate(state, qp, peer)?;
                return Ok(Next::Wait);
            }
            Completed::Send(done) => (state.stage, done.into_work()?),
        };
        // Go-ahead sends complete before or after the client's reaction.
        if work.token().addr == state.go_ahead.token().addr {
            return Ok(Next::Wait);
        }
        state.stage = match stage {
            Stage::Read => {
                if self.verbose {
                    println!("server ping data: {}", text_of(&state.ping()));
                }
                Stage::Sink
            }
            Stage::Write => Stage::Source,
            Stage::Source | Stage::Sink => bail!("nothing was to be done"),
        };
        if self.debug {
            println!("{stage:?} is done; go ahead");
        }
        qp.post(op::Send::new(state.go_ahead.clone()))?;
        Ok(Next::Wait)
    }

    fn closed(&mut self, state: State) -> anyhow::Result<()> {
        ensure!(
            state.stage == Stage::Source,
            "the client has disconnected in the middle of a ping"
        );
        Ok(())
    }

    fn connection_failed(&mut self, err: anyhow::Error) {
        eprintln!("a connection has failed: {err:#}");
    }

    fn report_step(&mut self, step: Step) {
        if self.debug {
            println!("{step:?}");
        }
        if step == Step::Disconnected {
            eprintln!("server DISCONNECT EVENT...");
        }
    }
}

impl Server {
    /// Reads from or writes to the client's memory.
    fn operate(
        &self,
        state: &mut State,
        qp: &mut Qp<Self>,
        peer: RemoteToken,
    ) -> anyhow::Result<()> {
        if self.debug {
            println!("{:?}: {peer:x?}", state.stage);
        }
        let capacity = usize::try_from(peer.len).unwrap_or(usize::MAX);
        match state.stage {
            Stage::Source => {
                ensure!(
                    capacity <= state.memory.len(),
                    "the client has {capacity} bytes, and here is room for {}; see -S",
                    state.memory.len()
                );
                state.stage = Stage::Read;
                // Clear bytes of an earlier, longer ping.
                state.memory.write(0, &vec![0; state.memory.len()]);
                qp.post(op::Read::new(state.memory.slice(0..capacity), peer))?;
            }
            Stage::Sink => {
                let ping = state.ping();
                let text = ping.iter().position(|&byte| byte == 0);
                let len = text.map_or(ping.len(), |end| end + 1);
                ensure!(
                    len <= capacity,
                    "a ping of {len} bytes does not fit into the client's buffer of {capacity}"
                );
                state.stage = Stage::Write;
                qp.post(op::Write::new(state.memory.slice(0..len), peer))?;
            }
            Stage::Read | Stage::Write => bail!("the client sent a message out of turn"),
        }
        Ok(())
    }
}

impl State {
    fn ping(&self) -> Vec<u8> {
        let mut ping = vec![0; self.memory.len()];
        self.memory.read(0, &mut ping);
        ping
    }
}
