//! Posting requests and handling completions.

use std::{
    mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use verbs::{
    Completed, RemoteRegion, RemoteToken, WcStatus, WorkCompletion, error::Refused, mr::PoolBuf,
    op, qp::Batch,
};

use super::{state::Protocol, transport::Transport};
use crate::{
    device::{Device, POLL_BATCH},
    ib_connection::{ConnectStage, IbConnection, Posted, RESERVED_SENDS, RecvWork, SendWork},
    outbound::{Frame, Payload},
    proto::{
        SocketId,
        connection::{AtomicOp, Body as Bytes, Completion, Direction, Rdma, Request, Tag, Work},
        link::Failure,
        node::{ConnectionId, MAX_COPIED_LEN},
        wire::{FRAGMENT, Header},
    },
    slots::{FRAME_SIZE, FrameBody, SpareSlot},
};

/// Completions handled per completion queue before other threads get their turn.
const COMPLETION_BUDGET: usize = 256;

/// Interval between attempts to post more receives for a connection.
const GROW_INTERVAL: Duration = Duration::from_secs(1);

/// Operation in errors of posting.
const POST: &str = "ibv_post_send";

/// A batch of send queue requests.
type Requests<'q> = Batch<'q, verbs::Rc, SendWork, RecvWork>;

/// The protocol's view of a completion status.
pub(super) fn outcome(status: WcStatus) -> Completion {
    match status {
        WcStatus::SUCCESS => Completion::Success,
        WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
            Completion::RemoteError
        }
        WcStatus::WR_FLUSH_ERR => Completion::Flushed,
        _ => Completion::OtherError,
    }
}

impl Transport {
    /// Polls the completion queues. Returns whether there were completions.
    pub(super) fn complete(&mut self, node: &mut Protocol, epoch: Instant) -> bool {
        self.each_cq(node, |transport, node, _, cq| {
            let mut handled = 0;
            loop {
                let now = epoch.elapsed();
                let completions = cq.cq.poll()?;
                let polled = completions.len();
                for wc in completions {
                    transport.completed(node, now, wc);
                }
                handled += polled;
                if polled < POLL_BATCH {
                    // The queue is empty.
                    return Ok(handled > 0);
                }
                if handled >= COMPLETION_BUDGET {
                    // The rest makes no event.
                    cq.armed = None;
                    return Ok(true);
                }
            }
        })
    }

    /// Handles a completion, unless its queue pair is being destroyed.
    fn completed(&mut self, node: &mut Protocol, now: Duration, wc: WorkCompletion<'_>) {
        let conn = self.queue_pairs.get(wc.qp_id());
        let conn = conn.and_then(|id| Some((*id, self.ib_connections.get_mut(id)?)));
        let Some((id, conn)) = conn else {
            return;
        };
        self.in_work = Some(id);
        if wc.status() != WcStatus::SUCCESS {
            node.failed(id, conn.attempt, Failure::Lost);
        }
        if !wc.is_receive() {
            return sent(node, id, conn, wc);
        }
        let was_starved = conn.is_starved;
        self.used.extend(received(node, now, id, conn, wc));
        if conn.is_starved && !was_starved {
            self.starved.push(id);
        }
        if conn.grow_at.is_some_and(|at| at <= now) && node.is_proven(id) {
            conn.grow_at = Some(now + GROW_INTERVAL);
            self.growing.push(id);
        }
    }

    /// Posts queued frames, operations, acknowledgement and probe of a connection.
    pub(super) fn post(&mut self, node: &mut Protocol, now: Duration, id: ConnectionId) {
        let Some(IbConnection {
            stage: ConnectStage::Up(resources, _),
            closing: None,
            attempt,
            spare,
            is_starved,
            ..
        }) = self.ib_connections.get_mut(&id)
        else {
            return;
        };
        let device = &*resources.device;
        let qp = &mut resources.qp;
        let free = qp.send_queue().capacity() - qp.send_queue().in_flight();
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        let mut batch = qp.batch();
        let mut failed = push_all(&mut batch, node, now, id, free, device, spare).is_err();
        let refused = match batch.is_empty() {
            true => {
                drop(batch);
                None
            }
            false => batch.post().err(),
        };
        let refused = refused.map(|Refused { value, error }| {
            failed = true;
            for work in value {
                Posted::release(work);
            }
            error
        });
        if failed {
            node.failed(id, *attempt, Failure::Lost);
        }
        if !spare.is_ready(&device.slots) && !mem::replace(is_starved, true) {
            self.starved.push(id);
        }
        if let Some(error) = refused {
            self.note_error(&error);
        }
    }
}

/// Handles the completion of a signaled request, and of the unsignaled ones before.
fn sent(node: &mut Protocol, id: ConnectionId, conn: &mut IbConnection, wc: WorkCompletion<'_>) {
    let Some(resources) = conn.stage.resources() else {
        return;
    };
    let status = wc.status();
    let done = resources.qp.complete_each(wc, |earlier| {
        if let (tag, true) = Posted::release(earlier) {
            node.completed(id, tag, Completion::Success);
        }
    });
    let Ok(done) = done else {
        return;
    };
    let (tag, is_last) = Posted::release(done.into_parts().1);
    let mut result = outcome(status);
    if !is_last {
        if status != WcStatus::SUCCESS {
            conn.broken.get_or_insert((tag, result));
        }
        return;
    }
    if let Some((_, first)) = conn.broken.take_if(|(of, _)| *of == tag) {
        result = first;
    }
    node.completed(id, tag, result);
}

/// Handles a received frame, and reposts receives in batches. Returns owner, key and user of
/// an export used by the peer.
fn received(
    node: &mut Protocol,
    now: Duration,
    id: ConnectionId,
    conn: &mut IbConnection,
    wc: WorkCompletion<'_>,
) -> Option<(SocketId, u32, IpAddr)> {
    let resources = conn.stage.resources()?;
    let (len, status) = (wc.byte_len(), wc.status());
    let Ok(Completed::Receive(done)) = resources.qp.complete(wc) else {
        return None;
    };
    if status != WcStatus::SUCCESS {
        return None;
    }
    let device = &resources.device;
    let (header, header_len, body, next) = unpack(done.into_parts().1, len, device);
    conn.is_starved |=
        matches!(&body, FrameBody::Heap(body) if body.len() > MAX_COPIED_LEN as usize);
    // The node closes the connection on a violation.
    let used = node.received(now, id, &header[..header_len], body);
    conn.has_violation |= used.is_err();
    if conn.closing.is_none() && !conn.has_violation {
        conn.repost_queue.push(next);
    }
    if conn.repost_queue.len() >= resources.max_reposts() {
        for slot in conn.repost_queue.drain(..) {
            if resources.qp.post_recv(slot).is_err() {
                node.failed(id, conn.attempt, Failure::Lost);
            }
        }
    }
    conn.data_received(now);
    let (owner, rkey) = used.ok()??;
    Some((owner, rkey, node.route(id)?.peer))
}

/// Adds a request to a batch; unsignaled, unless a completion is wanted.
macro_rules! push {
    ($batch:expr, $signaled:expr, $request:expr) => {
        match $signaled {
            true => $batch.push($request),
            false => $batch.push($request.unsignaled()),
        }
    };
}

/// Adds queued frames and operations, acknowledgement and probe of a connection to the batch, given
/// `free` entries of the send queue. Stops without a slot for a frame.
fn push_all(
    batch: &mut Requests<'_>,
    node: &mut Protocol,
    now: Duration,
    id: ConnectionId,
    mut free: u32,
    device: &Device,
    spare: &mut SpareSlot,
) -> verbs::Result<()> {
    while spare.is_ready(&device.slots)
        && let Some(work) = node.transmit(id, free.saturating_sub(RESERVED_SENDS))
    {
        let requests = match work.request {
            Request::Rdma { rdma, .. } => rdma.requests,
            Request::Frame { .. } | Request::Atomic { .. } => 1,
        };
        free = free.saturating_sub(requests);
        push(batch, work, device, spare)?;
    }
    if spare.is_ready(&device.slots)
        && let Some((tag, header)) = node.acknowledge(now, id)
    {
        let ack = frame(tag, &header, Bytes::Nothing, device, spare)?;
        batch.push(op::Send::new(ack).solicited())?;
    }
    if let Some(tag) = node.probe(now, id) {
        let empty = SendWork::new((None, Vec::new()), Posted::bare(tag));
        let no_target = RemoteToken {
            addr: 0,
            len: 0,
            rkey: 0,
        };
        batch.push(op::Write::new(empty, no_target))?;
    }
    Ok(())
}

/// Adds the request of the protocol to the batch.
fn push(
    batch: &mut Requests<'_>,
    work: Work<'_, Payload>,
    device: &Device,
    spare: &mut SpareSlot,
) -> verbs::Result<()> {
    let (tag, signaled) = (work.tag, work.signaled);
    match work.request {
        Request::Frame {
            header,
            body,
            solicited,
            fence,
        } => {
            let mut send = op::Send::new(frame(tag, &header, body, device, spare)?);
            if solicited {
                send = send.solicited();
            }
            if fence {
                send = send.fenced();
            }
            push!(batch, signaled, send).map_err(|refused| {
                Posted::release(refused.value.into_work());
                refused.error
            })
        }
        Request::Rdma { rdma, payload } => {
            let pieces = payload.operands().map(|operands| &operands.rdma[..]);
            let elements = device.elements as usize;
            push_rdma(
                batch,
                tag,
                signaled,
                rdma,
                pieces.unwrap_or_default(),
                elements,
            )
        }
        Request::Atomic { atomic, payload } => {
            let result = payload.operands().and_then(|all| all.atomic.clone());
            let work = (None, result.into_iter().collect());
            let work = SendWork::new(work, Posted::bare(tag));
            let remote = RemoteToken {
                addr: atomic.addr,
                len: 8,
                rkey: atomic.rkey,
            };
            match atomic.op {
                AtomicOp::FetchAdd(add) => {
                    push!(batch, signaled, op::FetchAdd::new(work, remote, add))?;
                }
                AtomicOp::CompareSwap(compare, swap) => {
                    let request = op::CompareSwap::new(work, remote, compare, swap);
                    push!(batch, signaled, request)?;
                }
            }
            Ok(())
        }
    }
}

/// Splits a receive into header, header length, body, and the slot to repost.
fn unpack(
    mut slot: PoolBuf,
    len: usize,
    device: &Device,
) -> ([u8; Header::SIZE], usize, FrameBody, PoolBuf) {
    slot.set_len(len.min(FRAME_SIZE));
    let (start, body) = slot.split_at(len.min(Header::SIZE));
    let start_len = start.len();
    let mut header = [0; Header::SIZE];
    header[..start_len].copy_from_slice(start);
    // A short body is copied, so that its slot can be reposted at once. So is any body if no other
    // slot is free.
    if body.len() > MAX_COPIED_LEN as usize
        && let Some(next) = device.slots.try_take(FRAGMENT as usize)
    {
        return (header, start_len, FrameBody::Slot(slot), next);
    }
    let body = FrameBody::Heap(body.into());
    slot.set_full();
    (header, start_len, body, slot)
}

/// Builds the send request of a frame.
fn frame(
    tag: Tag,
    header: &[u8; Header::SIZE],
    body: Bytes<'_, Payload>,
    device: &Device,
    spare: &mut SpareSlot,
) -> verbs::Result<SendWork> {
    let mut posted = Posted::bare(tag);
    let (mut slot, rest) = match body {
        Bytes::Nothing => (spare.take(&device.slots, 0)?, None),
        Bytes::Map { map, range } => {
            let part = map.as_bytes().get(range).unwrap_or_default();
            let mut slot = spare.take(&device.slots, part.len())?;
            slot[Header::SIZE..].copy_from_slice(part);
            (slot, None)
        }
        Bytes::Message { payload, range } => {
            let start = range.start;
            // The body is present, since only one connection at a time posts a message.
            let Frame { slot, rest } = payload
                .take(range, device, spare)?
                .ok_or_else(|| verbs::Error::from_errno(POST, Errno::BUSY.raw_os_error()))?;
            posted.message = Some((Arc::clone(payload), start));
            (slot, rest)
        }
    };
    slot[..Header::SIZE].copy_from_slice(header);
    Ok(SendWork::new(
        (Some(slot), rest.into_iter().collect()),
        posted,
    ))
}

/// Adds the requests of an RDMA operation to the batch.
fn push_rdma(
    batch: &mut Requests<'_>,
    tag: Tag,
    signaled: bool,
    rdma: &Rdma,
    pieces: &[RemoteRegion],
    elements: usize,
) -> verbs::Result<()> {
    let mut addr = rdma.addr;
    let mut parts = pieces.chunks(elements).peekable();
    while let Some(part) = parts.next() {
        let partial = parts.peek().is_some();
        let len = part.iter().map(|piece| piece.len() as u64).sum();
        let remote = RemoteToken {
            addr,
            len,
            rkey: rdma.rkey,
        };
        addr = addr.wrapping_add(len);
        let posted = Posted {
            partial,
            ..Posted::bare(tag)
        };
        let work = SendWork::new((None, part.to_vec()), posted);
        let signaled = signaled && !partial;
        match rdma.direction {
            Direction::Write => push!(batch, signaled, op::Write::new(work, remote))?,
            Direction::Read => push!(batch, signaled, op::Read::new(work, remote))?,
        }
    }
    Ok(())
}
