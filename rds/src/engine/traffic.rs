//! Posting requests and handling completions.

use std::{iter::Peekable, mem, sync::Arc, time::Duration};

use rustix::io::Errno;
use verbs::{
    Completed, RemoteRegion, RemoteToken, Rts, WcStatus, WorkCompletion, cq::Completions,
    error::Refused, mr::PoolBuf, op, qp::Batch,
};

use super::{
    clock::Clock,
    state::Protocol,
    transport::{Transport, UsedExport},
};
use crate::{
    device::{Device, POLL_BATCH, SharedCq},
    ib_connection::{IbConnection, Pair, Posted, RESERVED_SENDS, RecvWork, SendWork, Stage},
    outbound::{Frame, Payload},
    proto::{
        connection::{
            Atomic, AtomicOp, Body as Bytes, Completion, Direction, Rdma, Request, Tag, Work,
        },
        link::Failure,
        node::{ConnectionId, MAX_COPIED_LEN, Route},
        wire::{FRAGMENT, Header},
    },
    slots::{Body, FRAME_SIZE, SpareSlot},
};

/// Completions handled per completion queue before other threads get their turn.
const COMPLETION_BUDGET: usize = 256;

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

/// Writes the header of a frame into its slot.
fn finish(mut slot: PoolBuf, header: &[u8; Header::SIZE]) -> PoolBuf {
    slot[..Header::SIZE].copy_from_slice(header);
    slot
}

impl Transport {
    /// Polls the completion queues. Returns whether there were completions.
    pub(super) fn complete(&mut self, node: &mut Protocol, now: Duration, clock: &Clock) -> bool {
        self.each_cq(node, |transport, node, _, cq| {
            Ok(transport.complete_some(node, now, clock, cq)? > 0)
        })
    }

    /// Handles at most [`COMPLETION_BUDGET`] completions of a queue, rounded up to a batch. Returns the
    /// number.
    fn complete_some(
        &mut self,
        node: &mut Protocol,
        mut now: Duration,
        clock: &Clock,
        shared: &mut SharedCq,
    ) -> verbs::Result<usize> {
        let mut handled = 0;
        loop {
            let mut completions = shared.cq.poll()?.peekable();
            let polled = completions.len();
            while let Some(first) = completions.next() {
                self.complete_run(node, now, first, &mut completions);
            }
            handled += polled;
            if polled < POLL_BATCH {
                // The queue is empty.
                return Ok(handled);
            }
            if handled >= COMPLETION_BUDGET {
                // The rest makes no event.
                shared.armed = None;
                return Ok(handled);
            }
            // Handling a batch takes time, so read the clock again.
            now = clock.now();
        }
    }

    /// Handles a completion, and the following ones of the same queue pair. Drops completions of a
    /// queue pair being destroyed.
    fn complete_run(
        &mut self,
        node: &mut Protocol,
        now: Duration,
        first: WorkCompletion<'_>,
        rest: &mut Peekable<Completions<'_>>,
    ) {
        let qp_id = first.qp_id();
        let Some(&id) = self.queue_pairs.get(&qp_id) else {
            return;
        };
        let Some(conn) = self.ib_connections.get_mut(&id) else {
            return;
        };
        let (attempt, closing) = (conn.attempt, conn.closing.is_some());
        let Some(resources) = conn.stage.resources() else {
            return;
        };
        let mut completing = Completing {
            node,
            id,
            qp: &mut resources.qp,
            device: &resources.device,
            broken: &mut conn.broken,
            repost_queue: &mut conn.repost_queue,
            closing,
            lost: false,
            arrived: false,
            starved: false,
            used: &mut self.used,
        };
        completing.completed(now, first);
        while let Some(wc) = rest.next_if(|wc| wc.qp_id() == qp_id) {
            completing.completed(now, wc);
        }
        completing.repost();
        let (lost, arrived, starved) = (completing.lost, completing.arrived, completing.starved);
        if arrived {
            conn.data_received(now);
        }
        if starved && !mem::replace(&mut conn.is_starved, true) {
            self.starved.push(id);
        }
        if lost {
            node.failed(id, attempt, Failure::Lost);
        }
    }

    /// Posts queued frames, operations, acknowledgement and probe of a connection.
    pub(super) fn post(&mut self, node: &mut Protocol, now: Duration, id: ConnectionId) {
        let Some(IbConnection {
            stage: Stage::Up(resources, _),
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
        if !spare.is_ready(&device.slots) && !mem::replace(is_starved, true) {
            self.starved.push(id);
        }
    }
}

/// The connection whose completions are being handled, and the outcome.
struct Completing<'a> {
    node: &'a mut Protocol,
    id: ConnectionId,
    qp: &'a mut Pair<Rts>,
    device: &'a Arc<Device>,
    broken: &'a mut Option<(Tag, Completion)>,
    repost_queue: &'a mut Vec<RecvWork>,
    closing: bool,
    /// Whether the RDMA connection has failed.
    lost: bool,
    /// Whether a frame has arrived.
    arrived: bool,
    /// Whether a long body was copied, since no slot was free.
    starved: bool,
    used: &'a mut Vec<UsedExport>,
}

impl Completing<'_> {
    /// Reposts receives in batches.
    fn repost(&mut self) {
        if self.repost_queue.len() >= self.device.max_reposts() {
            for slot in self.repost_queue.drain(..) {
                self.lost |= self.qp.post_recv(slot).is_err();
            }
        }
    }

    /// Handles a completion.
    fn completed(&mut self, now: Duration, wc: WorkCompletion<'_>) {
        self.lost |= wc.status() != WcStatus::SUCCESS;
        if wc.is_receive() {
            self.received(now, wc);
        } else {
            self.sent(wc);
        }
    }

    /// Handles the completion of a signaled request, and of the unsignaled ones before.
    fn sent(&mut self, wc: WorkCompletion<'_>) {
        let (node, id, status) = (&mut *self.node, self.id, wc.status());
        let done = self.qp.complete_each(wc, |earlier| {
            if let (tag, true) = Posted::give_back(earlier) {
                node.completed(id, tag, Completion::Success);
            }
        });
        let Ok(done) = done else {
            return;
        };
        let (tag, whole) = Posted::give_back(done.into_parts().1);
        let mut result = outcome(status);
        if !whole {
            if status != WcStatus::SUCCESS {
                self.broken.get_or_insert((tag, result));
            }
            return;
        }
        if let Some((_, first)) = self.broken.take_if(|(of, _)| *of == tag) {
            result = first;
        }
        node.completed(id, tag, result);
    }

    /// Handles a received frame.
    fn received(&mut self, now: Duration, wc: WorkCompletion<'_>) {
        let (len, status) = (wc.byte_len(), wc.status());
        let Ok(Completed::Receive(done)) = self.qp.complete(wc) else {
            return;
        };
        if status != WcStatus::SUCCESS {
            return;
        }
        self.arrived = true;
        let (header, header_len, body, next) = unpack(done.into_parts().1, len, self.device);
        self.starved |= matches!(&body, Body::Heap(body) if body.len() > MAX_COPIED_LEN as usize);
        if !self.closing {
            self.repost_queue.push(next);
        }
        // The node closes the connection on a violation.
        let received = self
            .node
            .received(now, self.id, &header[..header_len], body);
        if let Ok(Some((owner, rkey))) = received
            && let Some(Route { peer, .. }) = self.node.route(self.id)
        {
            self.used.push(UsedExport { owner, rkey, peer });
        }
    }
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
        let nothing = SendWork::new((None, Vec::new()), Posted::alone(tag));
        let nowhere = RemoteToken {
            addr: 0,
            len: 0,
            rkey: 0,
        };
        batch.push(op::Write::new(nothing, nowhere))?;
    }
    Ok(())
}

/// Adds a request to the batch.
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
        } => frame(tag, &header, body, device, spare).and_then(|work| {
            let mut send = op::Send::new(work);
            if solicited {
                send = send.solicited();
            }
            if fence {
                send = send.fenced();
            }
            if !signaled {
                send = send.unsignaled();
            }
            batch.push(send).map_err(|refused| {
                Posted::give_back(refused.value.into_work());
                refused.error
            })
        }),
        Request::Rdma { rdma, payload } => {
            let elements = device.elements as usize;
            let pieces = payload.operands().map(|operands| &operands.rdma[..]);
            let pieces = pieces.unwrap_or_default();
            push_rdma(batch, tag, signaled, rdma, pieces, elements)
        }
        Request::Atomic { atomic, payload } => {
            let place = payload.operands().and_then(|all| all.atomic.as_ref());
            push_atomic(batch, tag, signaled, atomic, place)
        }
    }
}

/// Splits a receive into header, header length, body, and the slot to repost.
fn unpack(
    mut slot: PoolBuf,
    len: usize,
    device: &Device,
) -> ([u8; Header::SIZE], usize, Body, PoolBuf) {
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
        return (header, start_len, Body::Slot(slot), next);
    }
    let body = Body::Heap(body.into());
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
    let mut posted = Posted::alone(tag);
    let (slot, rest) = match body {
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
    let slot = finish(slot, header);
    let rest = match rest {
        Some(rest) => vec![rest],
        None => Vec::new(),
    };
    Ok(SendWork::new((Some(slot), rest), posted))
}

/// Adds the requests of an RDMA operation to the batch. Not inlined, to keep the path of plain
/// messages short.
#[inline(never)]
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
            ..Posted::alone(tag)
        };
        let work = SendWork::new((None, part.to_vec()), posted);
        let unsignaled = partial || !signaled;
        match rdma.direction {
            Direction::Write => {
                let mut request = op::Write::new(work, remote);
                if unsignaled {
                    request = request.unsignaled();
                }
                batch.push(request)?;
            }
            Direction::Read => {
                let mut request = op::Read::new(work, remote);
                if unsignaled {
                    request = request.unsignaled();
                }
                batch.push(request)?;
            }
        }
    }
    Ok(())
}

/// Adds the request of an atomic operation to the batch. Not inlined, as [`push_rdma`].
#[inline(never)]
fn push_atomic(
    batch: &mut Requests<'_>,
    tag: Tag,
    signaled: bool,
    atomic: &Atomic,
    place: Option<&RemoteRegion>,
) -> verbs::Result<()> {
    let remote = RemoteToken {
        addr: atomic.addr,
        len: 8,
        rkey: atomic.rkey,
    };
    let work = SendWork::new(
        (None, place.cloned().into_iter().collect()),
        Posted::alone(tag),
    );
    match atomic.op {
        AtomicOp::FetchAdd(add) => {
            let mut request = op::FetchAdd::new(work, remote, add);
            if !signaled {
                request = request.unsignaled();
            }
            batch.push(request)?;
        }
        AtomicOp::CompareSwap(compare, swap) => {
            let mut request = op::CompareSwap::new(work, remote, compare, swap);
            if !signaled {
                request = request.unsignaled();
            }
            batch.push(request)?;
        }
    }
    Ok(())
}
