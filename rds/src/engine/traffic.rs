//! Posting requests and handling completions.

use std::{mem, sync::Arc, time::Duration};

use rustix::io::Errno;
use smallvec::SmallVec;
use verbs::{
    Completed, CompletionQueue, RemoteRegion, RemoteToken, Rts, WcStatus, WorkCompletion,
    cq::CqKey, error::Refused, mr::PoolBuf, op, qp::Batch,
};

use super::{State, clock::Clock};
use crate::{
    device::Device,
    ib_connection::{
        Armed, IbConnection, POLL_BATCH, Pair, Posted, RESERVED_SENDS, RecvWork, SendWork, Stage,
    },
    outbound::{Frame, Payload},
    proto::{
        SocketId,
        connection::{
            Atomic, AtomicOp, Body as Bytes, Completion, Direction, Rdma, Request, Tag, Work,
        },
        link::Failure,
        node::{ConnectionId, Node},
        wire::Header,
    },
    slots::{Body, FRAME_SIZE},
};

/// Longest body copied to the heap, so that its slot can be reposted at once. Longer bodies keep
/// their slot.
const MAX_COPIED_LEN: usize = 1024;

/// Completions handled per connection before other connections get their turn.
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

impl State {
    /// Handles a completion event of a connection.
    pub(super) fn on_cq_event(&mut self, key: CqKey) {
        if let Some(&id) = self.queues.get(&key.0) {
            if let Some(conn) = self.ib_connections.get_mut(&id)
                && conn.armed.take().is_some()
            {
                self.armed -= 1;
            }
            self.due.insert(id);
        }
    }

    /// Schedules a connection for arming if solicited notifications no longer suffice.
    pub(super) fn rearm_if_needed(&mut self, id: ConnectionId) {
        let conn = self.ib_connections.get(&id);
        let solicited_only = conn.is_some_and(|conn| conn.armed == Some(Armed::Solicited));
        if solicited_only && self.wanted_notification(id) == Armed::All {
            self.due.insert(id);
        }
    }

    /// The notification a connection needs. Without a reason to see send completions, they are
    /// polled along with receives and sends.
    fn wanted_notification(&self, id: ConnectionId) -> Armed {
        let Some(conn) = self.ib_connections.get(&id) else {
            return Armed::Solicited;
        };
        let all = conn.closing.is_some()
            || conn.device().is_none_or(|device| device.iwarp)
            || self.node.awaits_device(id);
        if all { Armed::All } else { Armed::Solicited }
    }

    /// Arms the due connections, and handles completions that arrived before arming. Returns whether
    /// there were any.
    pub(super) fn arm_due(&mut self, now: Duration) -> bool {
        let mut any = false;
        for id in mem::take(&mut self.due).drain() {
            let wanted = self.wanted_notification(id);
            let Some(conn) = self.ib_connections.get_mut(&id) else {
                continue;
            };
            let was_armed = conn.armed.is_some();
            let result = conn.arm(wanted);
            self.armed += usize::from(conn.armed.is_some()) - usize::from(was_armed);
            if result.is_err() {
                let attempt = conn.attempt;
                self.node.failed(id, attempt, Failure::Lost);
                any = true;
            }
            any |= self.look(now, id);
        }
        any
    }

    /// Polls one connection, armed or not. Returns whether there were completions.
    pub(crate) fn look(&mut self, now: Duration, id: ConnectionId) -> bool {
        let handled = self.complete_some(now, id);
        if handled >= COMPLETION_BUDGET {
            self.due.insert(id);
        }
        handled > 0
    }

    /// Polls the connections with pending completions. Returns whether there were any.
    pub(super) fn complete(&mut self, now: Duration) -> bool {
        let due = mem::take(&mut self.due);
        let mut any = false;
        for &id in due.iter() {
            any |= self.complete_some(now, id) > 0;
        }
        self.due = due;
        any
    }

    /// Handles at most [`COMPLETION_BUDGET`] completions of one connection, rounded up to a batch.
    /// Returns the number.
    fn complete_some(&mut self, mut now: Duration, id: ConnectionId) -> usize {
        let Self {
            node,
            ib_connections,
            clock,
            ..
        } = self;
        let Some(conn) = ib_connections.get_mut(&id) else {
            return 0;
        };
        let (attempt, closing) = (conn.attempt, conn.closing.is_some());
        let IbConnection {
            stage,
            broken,
            repost_queue,
            cq_failed,
            ..
        } = conn;
        let Some((qp, cq, device)) = stage.queues().filter(|_| !*cq_failed) else {
            return 0;
        };
        let mut completing = Completing {
            node,
            id,
            qp,
            device,
            broken,
            repost_queue,
            closing,
            cq_failed,
            lost: false,
            arrived: false,
            used: SmallVec::new(),
        };
        let handled = completing.poll(&mut now, cq, clock);
        let Completing {
            lost,
            arrived,
            used,
            ..
        } = completing;
        if arrived {
            conn.data_received(now);
        }
        if lost {
            node.failed(id, attempt, Failure::Lost);
        }
        if let Some(route) = self.node.route(id) {
            for (owner, rkey) in used {
                self.export_used(owner, rkey, route.peer);
            }
        }
        handled
    }

    /// Posts queued frames, operations, acknowledgement and probe of a connection.
    pub(super) fn post(&mut self, now: Duration, id: ConnectionId) {
        let Self {
            node,
            ib_connections,
            ..
        } = self;
        let Some(IbConnection {
            stage: Stage::Up(resources),
            closing: None,
            attempt,
            ..
        }) = ib_connections.get_mut(&id)
        else {
            return;
        };
        let device = &resources.device;
        let qp = resources.qp.qp_mut();
        let free = qp.send_queue().capacity() - qp.send_queue().in_flight();
        let mut free = u32::try_from(free).unwrap_or(u32::MAX);
        let mut failed = false;
        let mut batch = qp.batch();
        while let Some(work) = node.transmit(id, free.saturating_sub(RESERVED_SENDS)) {
            let requests = match work.request {
                Request::Rdma { rdma, .. } => rdma.requests,
                Request::Frame { .. } | Request::Atomic { .. } => 1,
            };
            free = free.saturating_sub(requests);
            if push(&mut batch, work, device).is_err() {
                failed = true;
                break;
            }
        }
        if !failed && let Some((tag, header)) = node.acknowledge(now, id) {
            failed |= frame(tag, &header, Bytes::Nothing, device)
                .and_then(|work| {
                    batch
                        .push(op::Send::new(work).solicited())
                        .map_err(|refused| refused.error)
                })
                .is_err();
        }
        if !failed && let Some(tag) = node.probe(now, id) {
            let nothing = SendWork::new((None, Vec::new()), Posted::alone(tag));
            let nowhere = RemoteToken {
                addr: 0,
                len: 0,
                rkey: 0,
            };
            failed |= batch.push(op::Write::new(nothing, nowhere)).is_err();
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

/// The connection whose completions are being handled, and the outcome.
struct Completing<'a> {
    node: &'a mut Node<Payload, Body>,
    id: ConnectionId,
    qp: &'a mut Pair<Rts>,
    device: &'a Arc<Device>,
    broken: &'a mut Option<(Tag, Completion)>,
    repost_queue: &'a mut Vec<RecvWork>,
    /// Whether polling has failed.
    cq_failed: &'a mut bool,
    closing: bool,
    /// Whether the RDMA connection has failed.
    lost: bool,
    /// Whether a frame has arrived.
    arrived: bool,
    /// Memory used by operations of the peer: the owner, and the key.
    used: SmallVec<[(SocketId, u32); 1]>,
}

impl Completing<'_> {
    /// Handles at most [`COMPLETION_BUDGET`] completions, rounded up to a batch. Returns the number,
    /// and sets `now` to the time of the last batch.
    fn poll(&mut self, now: &mut Duration, cq: &mut CompletionQueue, clock: &Clock) -> usize {
        let max_reposts = self.device.max_reposts();
        let mut handled = 0;
        while handled < COMPLETION_BUDGET {
            let before = handled;
            if handled >= POLL_BATCH {
                // Handling a batch takes time, so read the clock again.
                *now = clock.now();
            }
            let Ok(completions) = cq.poll() else {
                // Polling would fail again.
                *self.cq_failed = true;
                self.lost = true;
                handled += 1;
                break;
            };
            for wc in completions {
                handled += 1;
                self.completed(*now, wc);
            }
            if self.repost_queue.len() >= max_reposts {
                for slot in self.repost_queue.drain(..) {
                    self.lost |= self.qp.post_recv(slot).is_err();
                }
            }
            if handled < before + POLL_BATCH {
                // The queue is empty.
                break;
            }
        }
        handled
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
        if !self.closing {
            self.repost_queue.push(next);
        }
        // The node closes the connection on a violation.
        let received = self
            .node
            .received(now, self.id, &header[..header_len], body);
        if let Ok(Some(key)) = received {
            self.used.push(key);
        }
    }
}

/// Adds a request to the batch.
fn push(batch: &mut Requests<'_>, work: Work<'_, Payload>, device: &Device) -> verbs::Result<()> {
    let (tag, signaled) = (work.tag, work.signaled);
    match work.request {
        Request::Frame {
            header,
            body,
            solicited,
            fence,
        } => frame(tag, &header, body, device).and_then(|work| {
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
    if body.len() > MAX_COPIED_LEN
        && let Ok(next) = device.slot(FRAME_SIZE)
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
) -> verbs::Result<SendWork> {
    let mut posted = Posted::alone(tag);
    let (slot, rest) = match body {
        Bytes::Nothing => (device.slot(0)?, None),
        Bytes::Map { map, range } => {
            let part = map.as_bytes().get(range).unwrap_or_default();
            let mut slot = device.slot(part.len())?;
            slot[Header::SIZE..].copy_from_slice(part);
            (slot, None)
        }
        Bytes::Message { payload, range } => {
            let start = range.start;
            // The body is present, since only one connection at a time posts a message.
            let Frame { slot, rest } = payload
                .take(range, device)?
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
