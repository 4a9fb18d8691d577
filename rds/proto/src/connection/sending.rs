//! Fragmentation of messages, in order.

use std::{num::NonZero, ops::Range};

use super::{
    Settings,
    acks::Acks,
    message::{Atomic, Draft, Message, MessageOutcome, Rdma, Refused},
    queue::{Completion, Entry, Part, Queue},
};
use crate::wire::{CongestionMap, Extension, Extensions, FRAGMENT, Flags, Header};

/// A request to post.
#[derive(Debug)]
pub struct Work<'a, P> {
    /// Tag to return with the completion.
    pub tag: Tag,
    /// Post the request signaled. An unsignaled request completes with a later signaled one.
    pub signaled: bool,
    /// Kind of request.
    pub request: Request<'a, P>,
}

/// Kind of request.
#[derive(Debug)]
pub enum Request<'a, P> {
    /// Send a frame.
    Frame {
        /// The header.
        header: [u8; Header::SIZE],
        /// The body.
        body: Body<'a, P>,
        /// Post with the solicited flag, because kernels arm only solicited notifications.
        solicited: bool,
        /// Post with the fence flag.
        fence: bool,
    },
    /// RDMA read or write.
    Rdma {
        /// The operation.
        rdma: &'a Rdma,
        /// Payload of the message.
        payload: &'a P,
    },
    /// Atomic operation.
    Atomic {
        /// The operation.
        atomic: &'a Atomic,
        /// Payload of the message.
        payload: &'a P,
    },
}

/// The body of a frame.
#[derive(Debug)]
pub enum Body<'a, P> {
    /// Empty.
    Nothing,
    /// Bytes of a message.
    Message {
        /// Payload of the message.
        payload: &'a P,
        /// Range of bytes.
        range: Range<u32>,
    },
    /// Bytes of the congestion map. Must stay unchanged until completion. One buffer per connection
    /// suffices, because a map is not sent before the previous one has completed.
    Map {
        /// The map.
        map: &'a CongestionMap,
        /// Range of bytes.
        range: Range<usize>,
    },
}

impl<'a, P> Body<'a, P> {
    /// The bytes of a message of `len` bytes that begin at `at`.
    fn of_message(draft: Option<&'a Draft<P>>, at: u32, len: u32) -> Self {
        match draft {
            Some(draft) if len > 0 => Self::Message {
                payload: &draft.payload,
                range: at..len.min(at + FRAGMENT),
            },
            _ => Self::Nothing,
        }
    }
}

/// Identifies a request of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    kind: WorkKind,
    /// Acknowledgement carried by the frame.
    pub(super) ack: u64,
    /// Counts the RDMA connections of this [`Connection`](super::Connection).
    pub(super) incarnation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WorkKind {
    Ack,
    Probe,
    Map,
    Message(u64, Part),
}

/// Partially posted map or message.
#[derive(Debug)]
enum Current {
    Map {
        header: [u8; Header::SIZE],
        ack: u64,
        at: usize,
    },
    Message {
        sequence: u64,
        header: [u8; Header::SIZE],
        ack: u64,
        stage: MessageStage,
    },
}

#[derive(Clone, Copy, Debug)]
enum MessageStage {
    Rdma,
    Atomic,
    Frame(u32),
}

impl MessageStage {
    /// The part of a message posted at this stage, the next stage, and the number of requests.
    fn part<P>(
        self,
        draft: Option<&Draft<P>>,
        len: u32,
        silent: bool,
    ) -> (Part, Option<Self>, u32) {
        match self {
            Self::Rdma => {
                let next = match draft {
                    Some(Draft {
                        atomic: Some(_), ..
                    }) => Some(Self::Atomic),
                    _ => (!silent).then_some(Self::Frame(0)),
                };
                let rdma = draft.and_then(|draft| draft.rdma.as_ref());
                (Part::Rdma, next, rdma.map_or(1, |rdma| rdma.requests))
            }
            Self::Atomic => (Part::Atomic, (!silent).then_some(Self::Frame(0)), 1),
            Self::Frame(at) if len - at > FRAGMENT => {
                (Part::Frame, Some(Self::Frame(at + FRAGMENT)), 1)
            }
            Self::Frame(_) => (Part::LastFrame, None, 1),
        }
    }
}

/// The capabilities extension sent with maps.
fn capability_extension(capabilities: u32) -> Extensions {
    let mut extensions = Extensions::NONE;
    if capabilities != 0 {
        let added = extensions.add(Extension::Capabilities(capabilities));
        debug_assert_eq!(added, Ok(()), "it is the only one");
    }
    extensions
}

#[derive(Debug)]
pub(super) struct Sending<P> {
    pub(super) queue: Queue<P>,
    next_sequence: u64,
    current: Option<Current>,
    map_pending: bool,
    map_in_flight: u32,
    /// Snapshot of the map being sent.
    map: CongestionMap,
    incarnation: u32,
    /// Sequence number of the last message posted completely on this RDMA connection.
    posted: u64,
    /// Messages and bytes to send before the next acknowledgement request. Restored when everything
    /// is acknowledged.
    messages_until_ack_request: u32,
    bytes_until_ack_request: u32,
    unsignaled: u32,
    /// The next request did not fit into the send queue.
    waits_for_send_queue: bool,
    /// The peer sends delayed acknowledgements, so the last message need not request one.
    pub(super) peer_delays_acks: bool,
    /// An urgent message was sent without an acknowledgement request.
    urgent: bool,
    /// Capability bits sent with maps.
    capabilities: u32,
    max_unacked_messages: u32,
    max_unacked_bytes: u32,
    max_unsignaled: u32,
}

impl<P> Sending<P> {
    pub(super) fn new(settings: &Settings, first: NonZero<u64>) -> Self {
        Self {
            queue: Queue::new(),
            next_sequence: first.get(),
            current: None,
            map_pending: false,
            map_in_flight: 0,
            map: CongestionMap::default(),
            incarnation: 0,
            posted: 0,
            messages_until_ack_request: 0,
            bytes_until_ack_request: 0,
            unsignaled: 0,
            waits_for_send_queue: false,
            peer_delays_acks: false,
            urgent: false,
            capabilities: match settings.ack_after {
                Some(_) => Extension::DELAYED_ACKS,
                None => 0,
            },
            max_unacked_messages: settings.max_unacked_messages,
            max_unacked_bytes: settings.max_unacked_bytes,
            max_unsignaled: settings.max_unsignaled,
        }
    }

    fn take_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence = self.next_sequence.wrapping_add(1);
        sequence
    }

    pub(super) fn push(&mut self, message: Message<P>, flags: Flags) -> Result<u64, Refused<P>> {
        if let Err(error) = message.check() {
            let draft = message.draft;
            return Err(Refused { error, draft });
        }
        let sequence = self.take_sequence();
        self.queue.push(Entry::new(sequence, message, flags));
        Ok(sequence)
    }

    pub(super) fn push_pong(&mut self, to: u16) {
        let sequence = self.take_sequence();
        self.queue.push(Entry::pong(sequence, to, Flags::empty()));
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    pub(super) fn map_changed(&mut self) {
        self.map_pending = true;
    }

    /// Whether something is postable.
    pub(super) fn has_work(&self) -> bool {
        self.current.is_some() || self.may_send_map() || self.queue.has_unpicked()
    }

    /// Whether progress depends on a send completion.
    pub(super) fn awaits_device(&self) -> bool {
        self.map_pending && self.map_in_flight > 0 || self.queue.awaits_device()
    }

    fn may_send_map(&self) -> bool {
        self.map_pending && self.map_in_flight == 0
    }

    /// Sequence number of the partially posted message.
    fn sending(&self) -> Option<u64> {
        match self.current {
            Some(Current::Message { sequence, .. }) => Some(sequence),
            _ => None,
        }
    }

    pub(super) fn withdraw(
        &mut self,
        outcome: MessageOutcome,
        which: impl Fn(&Message<P>) -> bool,
    ) {
        self.queue.withdraw(self.sending(), outcome, which);
    }

    /// Handles an acknowledgement; `false` if it exceeds the posted messages.
    pub(super) fn acknowledged(&mut self, sequence: u64) -> bool {
        if self.queue.acknowledged(sequence.min(self.posted)) {
            self.reset_ack_request();
        }
        sequence <= self.posted
    }

    /// Restarts the count of messages and bytes until the next acknowledgement request.
    fn reset_ack_request(&mut self) {
        self.messages_until_ack_request = self.max_unacked_messages;
        self.bytes_until_ack_request = self.max_unacked_bytes;
    }

    pub(super) fn completed(&mut self, tag: Tag, completion: Completion, acks: &mut Acks) {
        match tag.kind {
            WorkKind::Ack => acks.completed(),
            WorkKind::Probe => {}
            WorkKind::Map => self.map_in_flight = self.map_in_flight.saturating_sub(1),
            WorkKind::Message(sequence, part) => self.queue.completed(sequence, part, completion),
        }
    }

    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    pub(super) fn ack_tag(&self, ack: u64) -> Tag {
        self.tag(WorkKind::Ack, ack)
    }

    /// Whether the next request waits for room held by unsignaled requests.
    pub(super) fn needs_signal(&self) -> bool {
        self.waits_for_send_queue && self.unsignaled > 0
    }

    /// Posts a probe, which is signaled.
    pub(super) fn probe(&mut self) -> Tag {
        self.unsignaled = 0;
        self.probe_tag()
    }

    pub(super) fn probe_tag(&self) -> Tag {
        self.tag(WorkKind::Probe, 0)
    }

    /// Informs the peer of the loss of its acknowledged frames, from the next connection on.
    pub(super) fn mark_rx_lost(&mut self) {
        self.capabilities |= Extension::RX_LOST;
    }

    /// Resets after the loss of the connection. Returns the number of messages to be sent again.
    pub(super) fn reset(&mut self) -> u64 {
        let retransmitted = self.queue.reset();
        self.incarnation = self.incarnation.wrapping_add(1);
        self.current = None;
        self.map_pending = false;
        self.map_in_flight = 0;
        self.posted = 0;
        self.unsignaled = 0;
        self.waits_for_send_queue = false;
        self.peer_delays_acks = false;
        self.urgent = false;
        self.reset_ack_request();
        retransmitted
    }

    /// Whether a message of `len` bytes must request an acknowledgement.
    fn is_ack_due(&self, len: u32) -> bool {
        self.messages_until_ack_request == 0 || self.bytes_until_ack_request < len
    }

    /// Adds the acknowledgement request to the flags of a message of `len` bytes if due, and counts
    /// the message otherwise.
    fn request_ack(&mut self, mut flags: Flags, len: u32, urgent: bool) -> Flags {
        self.urgent |= urgent;
        // The last queued message also requests an acknowledgement, unless the peer sends delayed acknowledgements.
        // Otherwise its end is noticed only by chance.
        let requests_on_last = self.urgent || !self.peer_delays_acks;
        if self.is_ack_due(len) || requests_on_last && !self.queue.has_unpicked_frames() {
            flags |= Flags::ACK_REQUIRED;
        }
        if flags.contains(Flags::ACK_REQUIRED) {
            self.urgent = false;
            self.reset_ack_request();
        } else {
            self.messages_until_ack_request -= 1;
            self.bytes_until_ack_request -= len;
        }
        flags
    }

    /// Starts the next map or message.
    fn begin<'m>(
        &mut self,
        map: impl FnOnce() -> &'m CongestionMap,
        acks: &mut Acks,
    ) -> Option<()> {
        if self.may_send_map() {
            self.map_pending = false;
            let ack = acks.carry();
            let header = Header {
                ack,
                len: CongestionMap::LEN,
                flags: Flags::CONG_BITMAP,
                extensions: capability_extension(self.capabilities),
                ..Header::default()
            };
            self.map.clone_from(map());
            self.current = Some(Current::Map {
                header: header.encode(),
                ack,
                at: 0,
            });
            return Some(());
        }
        let entry = self.queue.pick()?;
        let sequence = entry.sequence;
        let stage = match entry.draft() {
            Some(Draft { rdma: Some(_), .. }) => MessageStage::Rdma,
            Some(Draft {
                atomic: Some(_), ..
            }) => MessageStage::Atomic,
            _ => MessageStage::Frame(0),
        };
        let (header, ack) = self.head(acks)?;
        self.current = Some(Current::Message {
            sequence,
            header,
            ack,
            stage,
        });
        Some(())
    }

    /// The header of the picked message, and the acknowledgement in it.
    fn head(&mut self, acks: &mut Acks) -> Option<([u8; Header::SIZE], u64)> {
        let entry = self.queue.last_picked()?;
        let (sequence, len, silent) = (entry.sequence, entry.len(), entry.is_silent());
        let (from, to, mut flags) = (entry.from, entry.to, entry.flags);
        let draft = entry.draft();
        let urgent = draft.is_some_and(|draft| draft.urgent);
        let extensions = draft.map(Draft::extensions).unwrap_or_default();
        let mut ack = 0;
        if !silent {
            ack = acks.carry();
            flags = self.request_ack(flags, len, urgent);
        }
        let header = Header {
            sequence,
            ack,
            len,
            from,
            to,
            flags,
            extensions,
            ..Header::default()
        };
        Some((header.encode(), ack))
    }

    pub(super) fn transmit<'m>(
        &mut self,
        free: u32,
        map: impl FnOnce() -> &'m CongestionMap,
        acks: &mut Acks,
    ) -> Option<Work<'_, P>> {
        if free == 0 {
            return None;
        }
        if self.current.is_none() {
            if !self.may_send_map() && self.queue.next_is_short() {
                return self.transmit_short(free, acks);
            }
            self.begin(map, acks)?;
        }
        match self.current.take()? {
            Current::Map { header, ack, at } => Some(self.transmit_map(free, header, ack, at)),
            Current::Message {
                sequence,
                header,
                ack,
                stage,
            } => self.transmit_message(free, sequence, header, ack, stage),
        }
    }

    /// Posts the next message, a single frame, without going through [`Current`].
    fn transmit_short(&mut self, free: u32, acks: &mut Acks) -> Option<Work<'_, P>> {
        let entry = self.queue.post_short()?;
        let (sequence, len, plain) = (entry.sequence, entry.len(), entry.is_plain());
        let (header, ack) = self.head(acks)?;
        self.waits_for_send_queue = false;
        self.posted = sequence;
        let signaled = self.signal(1, !plain || free == 1);
        let tag = self.tag(WorkKind::Message(sequence, Part::LastFrame), ack);
        let draft = self.queue.last_picked().and_then(Entry::draft);
        let body = match draft {
            Some(draft) if len > 0 => Body::Message {
                payload: &draft.payload,
                range: 0..len,
            },
            _ => Body::Nothing,
        };
        Some(Work {
            tag,
            signaled,
            request: Request::Frame {
                header,
                body,
                solicited: true,
                fence: false,
            },
        })
    }

    fn transmit_map(
        &mut self,
        free: u32,
        header: [u8; Header::SIZE],
        ack: u64,
        at: usize,
    ) -> Work<'_, P> {
        let range = at..at + FRAGMENT as usize;
        let last = range.end == CongestionMap::SIZE;
        if !last {
            let at = range.end;
            self.current = Some(Current::Map { header, ack, at });
        }
        self.map_in_flight += 1;
        Work {
            // As in `transmit_message`.
            signaled: self.signal(1, last || free == 1),
            tag: self.tag(WorkKind::Map, ack),
            request: Request::Frame {
                header,
                body: Body::Map {
                    map: &self.map,
                    range,
                },
                solicited: last,
                fence: false,
            },
        }
    }

    fn transmit_message(
        &mut self,
        free: u32,
        sequence: u64,
        header: [u8; Header::SIZE],
        ack: u64,
        stage: MessageStage,
    ) -> Option<Work<'_, P>> {
        let entry = self.queue.find(sequence)?;
        let draft = entry.draft();
        let (len, silent, plain) = (entry.len(), entry.is_silent(), entry.is_plain());
        let (part, next, requests) = stage.part(draft, len, silent);
        let stay = requests > free;
        self.waits_for_send_queue = stay;
        if !stay {
            self.queue.posted(sequence);
        }
        if let Some(stage) = if stay { Some(stage) } else { next } {
            self.current = Some(Current::Message {
                sequence,
                header,
                ack,
                stage,
            });
        }
        if stay {
            return None;
        }
        let last = next.is_none();
        if last {
            self.posted = sequence;
            self.queue.all_posted(sequence);
        }
        // If the last free entry were unsignaled, the send queue would never drain.
        let signaled = self.signal(requests, last && !plain || requests == free);
        // Only frames carry acknowledgements.
        let is_frame = matches!(part, Part::Frame | Part::LastFrame);
        let acked = if is_frame { ack } else { 0 };
        let tag = self.tag(WorkKind::Message(sequence, part), acked);
        let draft = self.queue.get(sequence).and_then(Entry::draft);
        let request = match stage {
            MessageStage::Frame(at) => Request::Frame {
                header,
                body: Body::of_message(draft, at, len),
                solicited: last,
                fence: at == 0 && draft.is_some_and(Draft::fence),
            },
            MessageStage::Rdma => {
                let Draft { rdma, payload, .. } = draft?;
                let rdma = rdma.as_ref()?;
                Request::Rdma { rdma, payload }
            }
            MessageStage::Atomic => {
                let Draft {
                    atomic, payload, ..
                } = draft?;
                let atomic = atomic.as_ref()?;
                Request::Atomic { atomic, payload }
            }
        };
        Some(Work {
            tag,
            signaled,
            request,
        })
    }

    /// Whether to signal a request: if `is_required`, or if [`Settings::max_unsignaled`] is reached.
    fn signal(&mut self, requests: u32, is_required: bool) -> bool {
        self.unsignaled = self.unsignaled.saturating_add(requests);
        let signaled = is_required || self.unsignaled >= self.max_unsignaled;
        if signaled {
            self.unsignaled = 0;
        }
        signaled
    }

    fn tag(&self, kind: WorkKind, ack: u64) -> Tag {
        Tag {
            kind,
            ack,
            incarnation: self.incarnation,
        }
    }
}
