//! Sending on a connected stream, and bytes that wait for room of the peer.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    mem,
    time::Duration,
};

use super::{Connection, ConnectionState};
use crate::{
    proto::stream::{Burst, Outgoing, Payload, Placement},
    waiters::Interest,
    waiting::{Pollable, WaitMode},
};

/// Time for which a blocking call waits for room of the peer, before the bytes that fit into the send buffer are left
/// to the engine. A peer that reads grants room sooner, and a bulk transfer continues in the call. A peer that does not
/// read delays the call by this time.
const ROOM_WAIT: Duration = Duration::from_millis(1);

impl Connection {
    /// Sends the bytes; all of them unless nonblocking. A blocking call leaves the last bytes, at most the size of the
    /// send buffer, to the engine if the peer has no room.
    pub(crate) fn send(&self, bufs: &[IoSlice<'_>], mode: WaitMode<'_>) -> io::Result<usize> {
        let _turn = self.sending.take(mode)?;
        let total = bufs.iter().map(|buf| buf.len()).sum();
        let mut burst = Burst::default();
        let mut done = 0;
        let mut attempt = |state: &mut ConnectionState, retains| {
            state.send(bufs, total, &mut done, &mut burst)?;
            if retains {
                done += state.retain(bufs, total, done);
            }
            Ok((done == total).then_some(()))
        };
        let sent = if mode.is_nonblocking() {
            self.shared
                .until(Interest::WRITE, mode, |state| attempt(state, false))
        } else {
            // Without a look at the clock if there is room.
            let first = attempt(&mut self.shared.lock(), false);
            match first {
                Ok(None) => self.send_waiting(mode, attempt),
                Ok(Some(())) => Ok(()),
                Err(err) => Err(err),
            }
        };
        sent.or_else(|err| if done > 0 { Ok(()) } else { Err(err) })?;
        Ok(done)
    }

    /// Repeats an attempt to send that has lacked room. The attempt retains bytes if its second argument is true.
    fn send_waiting(
        &self,
        mode: WaitMode<'_>,
        mut attempt: impl FnMut(&mut ConnectionState, bool) -> io::Result<Option<()>>,
    ) -> io::Result<()> {
        let within_call = mode.with_limit(ROOM_WAIT);
        let sent = self
            .shared
            .until(Interest::WRITE, within_call, |state| attempt(state, false));
        if !matches!(&sent, Err(err) if err.kind() == io::ErrorKind::WouldBlock) {
            return sent;
        }
        let retained = self
            .shared
            .until(Interest::WRITE, mode, |state| attempt(state, true));
        self.send_later();
        retained
    }

    /// Has the engine send the retained bytes, if any.
    fn send_later(&self) {
        let mut state = self.shared.lock();
        state.limit_room();
        let is_due = !state.unsent.is_empty();
        drop(state);
        if is_due && let Some(engine) = self.engine.upgrade() {
            engine.deliver_later(self.key);
        }
    }

    /// Writes into a mapping of the peer, from `offset` on. Returns the number of bytes written.
    pub(crate) fn write_at(
        &self,
        bytes: &[u8],
        offset: u64,
        mode: WaitMode<'_>,
    ) -> io::Result<usize> {
        let _turn = self.sending.take(mode)?;
        let mut burst = Burst::default();
        let mut done = 0;
        self.shared
            .until(Interest::WRITE, mode, |state| {
                state.write_at(bytes, offset, &mut done, &mut burst)
            })
            .or_else(|err| if done > 0 { Ok(()) } else { Err(err) })?;
        Ok(done)
    }
}

impl ConnectionState {
    /// Fails if the stream is no longer writable: with the failure of the connection, else `BrokenPipe`.
    fn check_writable(&self) -> io::Result<()> {
        if self.stream.is_writable() {
            return Ok(());
        }
        Err(self
            .failure()
            .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }

    fn send(
        &mut self,
        bufs: &[IoSlice<'_>],
        total: usize,
        done: &mut usize,
        burst: &mut Burst,
    ) -> io::Result<()> {
        if total == 0 {
            return self.check_writable();
        }
        while *done < total && !self.exit_phase.blocks() {
            self.check_writable()?;
            if !self.unsent.is_empty() && !self.send_unsent()? {
                break;
            }
            if self.stream.has_unadvertised_mapping() {
                let Some(outgoing) = self.stream.advertise_mapping() else {
                    break;
                };
                self.post(outgoing, &[])?;
                continue;
            }
            let Some(outgoing) = self.stream.send(burst, total - *done) else {
                if self.grow_send() {
                    continue;
                }
                self.limit_room();
                break;
            };
            *done += self.post_data(outgoing, bufs, *done)?;
        }
        Ok(())
    }

    fn write_at(
        &mut self,
        bytes: &[u8],
        offset: u64,
        done: &mut usize,
        burst: &mut Burst,
    ) -> io::Result<Option<()>> {
        while *done < bytes.len() {
            if self.exit_phase.blocks() {
                return Ok(None);
            }
            self.check_writable()?;
            if !self.unsent.is_empty() && !self.send_unsent()? {
                return Ok(None);
            }
            if self.stream.has_unadvertised_mapping() {
                let Some(outgoing) = self.stream.advertise_mapping() else {
                    return Ok(None);
                };
                self.post(outgoing, &[])?;
                continue;
            }
            let remaining = bytes.len() - *done;
            match self
                .stream
                .send_to(burst, remaining, offset.saturating_add(*done as u64))
            {
                Placement::Post(outgoing) => {
                    *done += self.post_data(outgoing, &[IoSlice::new(bytes)], *done)?;
                }
                Placement::Wait if self.grow_send() => {}
                Placement::Wait => return Ok(None),
                Placement::Unmapped => break,
            }
        }
        Ok(Some(()))
    }

    /// Retains bytes from `done` on, as many as fit into a send buffer. Returns their number.
    fn retain(&mut self, bufs: &[IoSlice<'_>], total: usize, done: usize) -> usize {
        if done == total || self.exit_phase.blocks() {
            return 0;
        }
        let capacity = self.stream.settings().send_buffer as usize;
        let len = (total - done).min(capacity.saturating_sub(self.unsent.len()));
        let mut remaining = len;
        for piece in pieces(bufs, done) {
            let piece = &piece[..piece.len().min(remaining)];
            self.unsent.extend(piece);
            remaining -= piece.len();
        }
        self.count_unsent();
        len
    }

    /// Sends retained bytes. Returns whether none remain.
    pub(super) fn send_unsent(&mut self) -> io::Result<bool> {
        let mut burst = Burst::default();
        while !self.unsent.is_empty() && self.stream.is_connected() {
            let Some(outgoing) = self.stream.send(&mut burst, self.unsent.len()) else {
                if self.grow_send() {
                    continue;
                }
                self.limit_room();
                return Ok(false);
            };
            let mut unsent = mem::take(&mut self.unsent);
            let (first, second) = unsent.as_slices();
            let posted = self.post_data(outgoing, &[IoSlice::new(first), IoSlice::new(second)], 0);
            unsent.drain(..*posted.as_ref().unwrap_or(&0));
            self.unsent = unsent;
            self.count_unsent();
            posted?;
        }
        // An idle stream keeps no memory, and an ended one no bytes.
        self.unsent = VecDeque::new();
        self.count_unsent();
        self.wake();
        Ok(true)
    }

    fn count_unsent(&mut self) {
        let unsent = u32::try_from(self.unsent.len()).unwrap_or(u32::MAX);
        self.stream.set_unsent(unsent);
    }

    /// Starts the checks of the time that data waits for room, if that is limited.
    fn limit_room(&mut self) {
        if self.check_at.is_none() && self.stall_limit.is_some() && self.stream.waits_for_peer() {
            self.plan_check();
        }
    }

    /// Posts a write of the caller's bytes from `done` on. Returns the number of bytes posted.
    fn post_data(
        &mut self,
        outgoing: Outgoing,
        bufs: &[IoSlice<'_>],
        done: usize,
    ) -> io::Result<usize> {
        let Payload::Data(len, _) = outgoing.payload else {
            return self.post(outgoing, &[]).map(|()| 0);
        };
        let len = len as usize;
        let mut pieces = pieces(bufs, done);
        let first = pieces.next().unwrap_or_default();
        if first.len() >= len {
            self.post(outgoing, &first[..len])?;
            return Ok(len);
        }
        // The message spans several buffers.
        let mut joined = mem::take(&mut self.scratch);
        joined.clear();
        joined.extend_from_slice(first);
        for piece in pieces {
            let more = (len - joined.len()).min(piece.len());
            joined.extend_from_slice(&piece[..more]);
        }
        let posted = self.post(outgoing, &joined);
        self.scratch = joined;
        posted.map(|()| len)
    }
}

/// The parts of the buffers from an offset on, without empty ones.
fn pieces<'b>(bufs: &'b [IoSlice<'_>], offset: usize) -> impl Iterator<Item = &'b [u8]> {
    let mut skip = offset;
    bufs.iter().filter_map(move |buf| {
        let skipped = skip.min(buf.len());
        skip -= skipped;
        Some(&buf[skipped..]).filter(|piece| !piece.is_empty())
    })
}
