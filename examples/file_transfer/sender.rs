//! The sending side: writes chunks to the receiver's buffer, one for each `Ready`.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::{fs::File, io::Read as _};

use anyhow::{Context as _, bail, ensure};
use cm::{
    ConnParam,
    event_loop::{InitQp, Next, Protocol, Qp},
};
use crc32fast::Hasher;
use indicatif::ProgressBar;
use verbs::{Buf, Completed, ProtectionDomain, RemoteToken, op};

use super::message::{BUFFER_SIZE, Digest, MESSAGE_LEN, Message};

/// The sending side of one transfer.
#[derive(Debug)]
pub struct Sender {
    /// Name of the file on the receiver.
    pub name: Vec<u8>,
    /// The file, read from the current position.
    pub file: File,
    /// Progress bar, in bytes sent.
    pub bar: ProgressBar,
}

/// State of the connection.
#[derive(Debug)]
pub struct State {
    /// Buffer of the next write; `None` while a write is in flight.
    buffer: Option<Buf>,
    chunk: usize,
    peer: Option<RemoteToken>,
    /// Last message of the receiver, if not answered yet.
    said: Option<Message>,
    sent: u64,
    sum: Hasher,
    at_end: bool,
    is_done: bool,
}

/// The parameters of the C programs, except for a retry count of 0, with which one lost packet ends a
/// transfer. Soft-RoCE treats 7 as unlimited, and the loss of a peer must be detected.
pub fn param() -> ConnParam {
    ConnParam::zeroed()
        .responder_resources(1)
        .initiator_depth(1)
        .retry_count(6)
        .rnr_retry_count(7)
}

impl Protocol for Sender {
    type Send = Buf;
    type Receive = Buf;
    type State = State;
    type Error = anyhow::Error;

    fn param(&self) -> ConnParam {
        param()
    }

    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> anyhow::Result<State> {
        let context = pd.context();
        ensure!(
            !context.is_iwarp(),
            "iWARP has no RDMA write with immediate data, which this protocol needs"
        );
        // Limited by the port's maximum message size and the receiver's buffer.
        let largest = context.query_port(1)?.max_msg_sz();
        let chunk = BUFFER_SIZE.min(usize::try_from(largest)?);
        qp.post_recv(pd.alloc_buf(MESSAGE_LEN)?)?;
        Ok(State {
            buffer: Some(pd.alloc_buf(chunk)?),
            chunk,
            peer: None,
            said: None,
            sent: 0,
            sum: Hasher::new(),
            at_end: false,
            is_done: false,
        })
    }

    fn completed(
        &mut self,
        state: &mut State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Buf, Buf>,
    ) -> anyhow::Result<Next> {
        match done {
            Completed::Send(done) => state.buffer = Some(done.into_work()?),
            Completed::Receive(done) => {
                let message = Message::from_wire(done.received()?);
                let message = message.context("the receiver has sent something else")?;
                ensure!(
                    state.said.is_none(),
                    "the receiver sent a message out of turn"
                );
                state.said = Some(message);
                qp.post_recv(done.into_work()?)?;
            }
        }
        // The receiver can be ready before the completion of the last write returns the buffer.
        let Some(buffer) = state.buffer.take_if(|_| state.said.is_some()) else {
            return Ok(Next::Wait);
        };
        match (state.said.take(), state.peer) {
            (Some(Message::Mr(peer)), None) => {
                self.say("received MR, sending file name");
                state.peer = Some(peer);
                self.send_name(buffer, peer, qp)?;
            }
            (Some(Message::Ready), Some(peer)) if !state.at_end => {
                self.say("received READY, sending chunk");
                self.send_chunk(buffer, peer, state, qp)?;
            }
            (Some(Message::Done(stored)), Some(_)) if state.at_end => {
                let sent = state.digest();
                if let Some(stored) = stored {
                    ensure!(
                        stored == sent,
                        "the receiver has stored {} bytes with CRC-32 {:08x}, and {} with {:08x} were sent",
                        stored.len,
                        stored.sum,
                        sent.len,
                        sent.sum
                    );
                }
                self.say("received DONE, disconnecting");
                state.is_done = true;
                return Ok(Next::Disconnect);
            }
            (message, _) => bail!("unexpected message {message:?} from the receiver"),
        }
        Ok(Next::Wait)
    }

    fn closed(&mut self, state: State) -> anyhow::Result<()> {
        ensure!(
            state.is_done,
            "the receiver disconnected before the end of the file"
        );
        let sum = state.sum.finalize();
        self.bar.finish();
        self.say(&format!("sent {} bytes, CRC-32 {sum:08x}", state.sent));
        Ok(())
    }
}

impl State {
    fn digest(&self) -> Digest {
        Digest {
            len: self.sent,
            sum: self.sum.clone().finalize(),
        }
    }
}

impl Sender {
    fn send_name(
        &self,
        mut buffer: Buf,
        peer: RemoteToken,
        qp: &mut Qp<Self>,
    ) -> anyhow::Result<()> {
        let name = [&self.name, &[0][..]].concat();
        let start = buffer.get_mut(..name.len());
        start
            .context("the file's name is too long")?
            .copy_from_slice(&name);
        write(buffer, name.len(), peer, qp)
    }

    fn send_chunk(
        &mut self,
        mut buffer: Buf,
        peer: RemoteToken,
        state: &mut State,
        qp: &mut Qp<Self>,
    ) -> anyhow::Result<()> {
        buffer.set_full();
        let mut len = 0;
        // A read may return fewer bytes before the end of the file.
        while len < state.chunk {
            match self.file.read(&mut buffer[len..])? {
                0 => break,
                count => len += count,
            }
        }
        state.sum.update(&buffer[..len]);
        state.sent += len as u64;
        state.at_end = len == 0;
        self.bar.inc(len as u64);
        if state.at_end {
            let end = Message::Done(Some(state.digest())).to_wire();
            buffer[..end.len()].copy_from_slice(&end);
            buffer.set_len(end.len());
            return Ok(qp.post(op::Write::new(buffer, peer).imm_data(0))?);
        }
        write(buffer, len, peer, qp)
    }

    /// Prints a line above the progress bar.
    fn say(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }
}

/// Writes the first `len` bytes, with the length as immediate data.
fn write(
    mut buffer: Buf,
    len: usize,
    peer: RemoteToken,
    qp: &mut Qp<Sender>,
) -> anyhow::Result<()> {
    buffer.set_len(len);
    let request = op::Write::new(buffer, peer).imm_data(u32::try_from(len)?);
    Ok(qp.post(request)?)
}
