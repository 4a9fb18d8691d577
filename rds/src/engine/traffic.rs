//! Posting what is to be sent, and handling what has completed.

use std::time::Duration;

use verbs::{
    Completed, CqKey, PoolBuf, RemoteToken, WcStatus,
    error::Refused,
    op::{Send, Write},
};

use super::State;
use crate::{
    device::Device,
    lane::{Lane, Posted, RESERVED, SendWork, Stage},
    proto::{
        connection::{Body as Bytes, Completion, Request, Tag},
        link::Failure,
        node::ConnectionId,
        wire::Header,
    },
    slots::{Body, WHOLE},
};

/// The longest body that is copied out of its slot, so that the slot can receive again at once.
const COPIED: usize = 1024;

/// So many completions of a connection are handled before others get their turn.
const TURN: usize = 256;

/// What a failed request says about its message.
fn outcome(status: WcStatus) -> Completion {
    match status {
        WcStatus::SUCCESS => Completion::Success,
        WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
            Completion::RemoteError
        }
        WcStatus::WR_FLUSH_ERR => Completion::Flushed,
        _ => Completion::OtherError,
    }
}

/// Writes the header of a frame into its slot.
fn finish(mut slot: PoolBuf, header: &[u8; Header::SIZE]) -> PoolBuf {
    slot[..Header::SIZE].copy_from_slice(header);
    slot
}

impl State {
    /// The channel of a device says that completions have come.
    pub(super) fn announced(&mut self, key: CqKey) {
        if let Some(&id) = self.queues.get(&key.0) {
            self.due.insert(id);
        }
    }

    /// Handles what has completed.
    pub(super) fn complete(&mut self, now: Duration) {
        for id in std::mem::take(&mut self.due) {
            if self.complete_some(now, id) {
                self.due.insert(id);
            }
        }
    }

    /// Handles completions of one connection; whether there may be more.
    fn complete_some(&mut self, now: Duration, id: ConnectionId) -> bool {
        let Self { node, lanes, .. } = self;
        let Some(lane) = lanes.get_mut(&id) else {
            return false;
        };
        let (attempt, key, closing) = (lane.attempt, lane.key, lane.closing.is_some());
        let accepted = matches!(lane.stage, Stage::Accepted(_));
        let Some((qp, cq, device)) = lane.queues() else {
            return false;
        };
        let mut lost = false;
        let mut arrived = false;
        let mut handled = 0;
        let more = loop {
            let completions = match cq.poll_or_arm() {
                Ok(Some(completions)) => completions,
                Ok(None) => break false,
                Err(_) => {
                    lost = true;
                    break false;
                }
            };
            for wc in completions {
                handled += 1;
                let status = wc.status();
                lost |= status != WcStatus::SUCCESS;
                if !wc.is_receive() {
                    let done = qp.complete_each(wc, |earlier| {
                        node.completed(id, Posted::give_back(earlier), Completion::Success);
                    });
                    if let Ok(done) = done {
                        node.completed(id, Posted::give_back(done.work), outcome(status));
                    }
                    continue;
                }
                let len = wc.byte_len();
                let Ok(Completed::Receive(done)) = qp.complete(wc) else {
                    continue;
                };
                if status != WcStatus::SUCCESS {
                    continue;
                }
                arrived = true;
                let (header, body, next) = unpack(done.work, len, device);
                if let Some(next) = next
                    && !closing
                    && qp.post_recv(next).is_err()
                {
                    lost = true;
                }
                // A violation gives the connection up.
                let _: Result<_, _> = node.received(now, id, &header, body);
            }
            if handled >= TURN {
                break true;
            }
        };
        if lost {
            node.failed(id, attempt, Failure::Lost);
        }
        if arrived && accepted {
            // The peer's last word of the handshake may be lost, but it has begun to talk.
            drop(self.channel.notify(key, verbs::EventType::COMM_EST));
        }
        more
    }

    /// Posts what a connection has to send.
    pub(super) fn post(&mut self, now: Duration, id: ConnectionId) {
        let Self { node, lanes, .. } = self;
        let Some(Lane {
            stage: Stage::Up(ends),
            closing: None,
            attempt,
            ..
        }) = lanes.get_mut(&id)
        else {
            return;
        };
        let device = &ends.device;
        let qp = ends.qp.qp_mut();
        let free = qp.send_queue().capacity() - qp.send_queue().in_flight();
        let mut free = u32::try_from(free).unwrap_or(u32::MAX);
        let mut failed = false;
        let mut batch = qp.batch();
        while let Some(work) = node.transmit(id, free.saturating_sub(RESERVED)) {
            let (tag, signalled) = (work.tag, work.signalled);
            let pushed = match work.request {
                Request::Frame {
                    header,
                    body,
                    solicited,
                    fence,
                } => frame(tag, &header, body, device).and_then(|work| {
                    let mut send = Send::new(work);
                    if solicited {
                        send = send.solicited();
                    }
                    if fence {
                        send = send.fenced();
                    }
                    if !signalled {
                        send = send.unsignaled();
                    }
                    batch.push(send).map_err(|refused| {
                        Posted::give_back(refused.value.into_work());
                        refused.error
                    })
                }),
                Request::Rdma { .. } | Request::Atomic { .. } => {
                    Err(verbs::Error::from_errno("ibv_post_send", 95))
                }
            };
            free -= 1;
            if pushed.is_err() {
                failed = true;
                break;
            }
        }
        if !failed && let Some((tag, header)) = node.acknowledge(now, id) {
            failed |= frame(tag, &header, Bytes::Nothing, device)
                .and_then(|work| {
                    batch
                        .push(Send::new(work).solicited())
                        .map_err(|refused| refused.error)
                })
                .is_err();
        }
        if !failed && let Some(tag) = node.probe(now, id) {
            let nothing = SendWork::new((None, Vec::new()), Posted { tag, message: None });
            let nowhere = RemoteToken {
                addr: 0,
                len: 0,
                rkey: 0,
            };
            failed |= batch.push(Write::new(nothing, nowhere)).is_err();
        }
        if !batch.is_empty()
            && let Err(Refused { value, .. }) = batch.post()
        {
            failed = true;
            for work in value {
                Posted::give_back(work);
            }
        }
        if failed {
            node.failed(id, *attempt, Failure::Lost);
        }
    }
}

/// The header of a frame that has arrived, what follows it, and what to receive into next.
fn unpack(mut slot: PoolBuf, len: usize, device: &Device) -> (Vec<u8>, Body, Option<PoolBuf>) {
    slot.set_len(len.min(WHOLE));
    let (header, body) = slot.split_at(len.min(Header::SIZE));
    let header = header.to_vec();
    if body.len() > COPIED
        && let Ok(next) = device.slot(WHOLE)
    {
        return (header, Body::Slot(slot), Some(next));
    }
    let body = Body::Heap(body.into());
    slot.set_full();
    (header, body, Some(slot))
}

/// A frame as it is posted.
fn frame(
    tag: Tag,
    header: &[u8; Header::SIZE],
    body: Bytes<'_, crate::outbound::Payload>,
    device: &Device,
) -> verbs::Result<SendWork> {
    let (slot, message) = match body {
        Bytes::Nothing => (device.slot(0)?, None),
        Bytes::Map { map, range } => {
            let part = map.as_bytes().get(range).unwrap_or_default();
            let mut slot = device.slot(part.len())?;
            slot[Header::SIZE..].copy_from_slice(part);
            (slot, None)
        }
        Bytes::Message { payload, range } => {
            let slot = payload.take(range.start, device)?;
            // It is here, since it is sent by one connection at a time.
            let slot = slot.ok_or_else(|| verbs::Error::from_errno("ibv_post_send", 16))?;
            (slot, Some((std::sync::Arc::clone(payload), range.start)))
        }
    };
    let slot = finish(slot, header);
    let posted = Posted { tag, message };
    Ok(SendWork::new((Some(slot), Vec::new()), posted))
}
