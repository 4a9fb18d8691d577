//! The receiving side: exposes a buffer for RDMA writes, and notifies the sender when the buffer is free.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of programs for the terminal"
)]

use anyhow::{Context as _, bail, ensure};
use cm::{
    ConnParam,
    event_loop::{InitQp, Next, Protocol, Qp},
};
use verbs::{Buf, Completed, ProtectionDomain, RemoteAccess, RemoteRegion, WorkCompletion, op};

use super::{
    incoming::{Folder, Incoming, Received},
    message::{BUFFER_SIZE, Digest, Message},
    sender::param,
};
use crate::text::text_of;

/// The receiving side of all connections.
#[derive(Debug)]
pub struct Receiver {
    /// Destination folder.
    pub folder: Folder,
}

/// State of one connection.
#[derive(Debug)]
pub struct State {
    pd: ProtectionDomain,
    /// Buffer written by the sender.
    buffer: RemoteRegion,
    stage: Stage,
}

/// Expected next transfer.
#[derive(Debug)]
enum Stage {
    Name,
    Bytes(Incoming),
    Nothing(Received),
}

impl Protocol for Receiver {
    type Send = Buf;
    /// Receives carry no payload: the immediate data is the number of bytes written to the buffer.
    type Receive = ();
    type State = State;
    type Error = anyhow::Error;

    fn param(&self) -> ConnParam {
        param()
    }

    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> anyhow::Result<State> {
        let buffer = pd.alloc_remote(BUFFER_SIZE, RemoteAccess::WRITE)?;
        qp.post_recv(())?;
        Ok(State {
            pd: pd.clone(),
            buffer,
            stage: Stage::Name,
        })
    }

    fn established(&mut self, state: &mut State, qp: &mut Qp<Self>) -> anyhow::Result<()> {
        state.send(qp, Message::Mr(state.buffer.token()))
    }

    fn completed(
        &mut self,
        state: &mut State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Buf, ()>,
    ) -> anyhow::Result<Next> {
        if let Completed::Receive(wc) = done {
            let digest = (wc.byte_len() == Digest::WIRE_LEN)
                .then(|| Digest::from_wire(&state.read(Digest::WIRE_LEN)))
                .flatten();
            let answer = self.receive(state, written(&wc)?, digest)?;
            if answer == Message::Ready {
                qp.post_recv(())?;
            }
            state.send(qp, answer)?;
        }
        Ok(Next::Wait)
    }

    fn is_over(&self, state: &State) -> bool {
        matches!(state.stage, Stage::Nothing(_))
    }

    fn connection_failed(&mut self, err: anyhow::Error) {
        eprintln!("a connection has failed: {err:#}");
    }

    fn closed(&mut self, state: State) -> anyhow::Result<()> {
        match state.stage {
            Stage::Nothing(Received { path, len, sum }) => {
                let name = text_of(path.as_os_str().as_encoded_bytes());
                println!("finished transferring {name}");
                println!("verified {len} bytes, CRC-32 {sum:08x}");
                Ok(())
            }
            Stage::Name => bail!("the peer has sent no file"),
            Stage::Bytes(incoming) => bail!(
                "{}: the peer disconnected before the end of the file; the partial file was discarded",
                text_of(incoming.path().as_os_str().as_encoded_bytes())
            ),
        }
    }
}

impl Receiver {
    /// Processes `len` bytes written by the peer, and returns the answer. `digest` is the sender's, at the
    /// end of a file.
    fn receive(
        &self,
        state: &mut State,
        len: usize,
        digest: Option<Digest>,
    ) -> anyhow::Result<Message> {
        match &mut state.stage {
            Stage::Name => {
                // Read once: the peer can change the buffer in the meantime.
                let name = state.read(len);
                let incoming = self.folder.begin(&name)?;
                println!("opening file {}", text_of(&name));
                state.stage = Stage::Bytes(incoming);
                Ok(Message::Ready)
            }
            Stage::Bytes(_) if len == 0 => {
                let stage = std::mem::replace(&mut state.stage, Stage::Name);
                let Stage::Bytes(incoming) = stage else {
                    bail!("there is no file to end");
                };
                let received = incoming.finish(digest)?;
                let stored = Digest {
                    len: received.len,
                    sum: received.sum,
                };
                state.stage = Stage::Nothing(received);
                Ok(Message::Done(Some(stored)))
            }
            Stage::Bytes(incoming) => {
                println!("received {len} bytes.");
                incoming.append(&read(&state.buffer, len))?;
                Ok(Message::Ready)
            }
            Stage::Nothing(_) => bail!("the peer goes on behind the end of the file"),
        }
    }
}

impl State {
    fn send(&self, qp: &mut Qp<Receiver>, message: Message) -> anyhow::Result<()> {
        let buf = self.pd.register_buf(message.to_wire())?;
        Ok(qp.post(op::Send::new(buf))?)
    }

    fn read(&self, len: usize) -> Vec<u8> {
        read(&self.buffer, len)
    }
}

fn read(buffer: &RemoteRegion, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.read(0, &mut bytes);
    bytes
}

/// Number of bytes written according to the peer's immediate data, checked against the completion.
fn written(wc: &WorkCompletion<'_>) -> anyhow::Result<usize> {
    let announced = wc
        .imm_data()
        .context("the peer has sent a message, not written")?;
    let len = usize::try_from(announced)?;
    let is_end = len == 0 && wc.byte_len() == Digest::WIRE_LEN;
    ensure!(
        len <= BUFFER_SIZE && (len == wc.byte_len() || is_end),
        "the peer's immediate data is {announced} bytes, but the write was {}",
        wc.byte_len()
    );
    Ok(len)
}
