//! One side of a connected stream.
//!
//! The driver owns the memory and the queues. [`Stream::send`], [`Stream::control`] and similar functions
//! return requests, which count as posted; the driver reports completions to [`Stream::sent`] and
//! [`Stream::received`].

mod ending;
mod failure;
mod growth;
mod iomap;
mod outgoing;
mod progress;
mod receiving;
mod ring;
mod sending;
mod settings;
mod stats;
mod targets;

use super::{ByteOrder, ConnectData, Control, Mapping, Message, Target};
pub use ending::{Direction, Readiness};
use ending::{Ending, EndingPhase};
pub use failure::{Failure, Violation};
use iomap::{LocalMappings, PeerMappings};
pub use iomap::{MapError, Placement};
pub use outgoing::{Outgoing, Payload, PayloadSource, Tag};
use progress::Progress;
pub use receiving::Piece;
use receiving::Receiving;
pub use sending::Burst;
use sending::Sending;
pub use settings::{CONTROL_SLOTS, Framing, SPARE_RECEIVES, Settings, TARGETS};
use stats::Counters;
pub use stats::StreamStats;

/// Memory of this side, advertised to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Address of the table of targets and mappings.
    pub table_addr: u64,
    /// Remote key of the table.
    pub table_rkey: u32,
    /// Address of the receive buffer.
    pub buffer_addr: u64,
    /// Remote key of the receive buffer.
    pub buffer_rkey: u32,
    /// Byte order of this host.
    pub order: ByteOrder,
}

/// The table written by the peer: targets and mappings.
///
/// The peer may write at any time, even during a read.
pub trait Table {
    /// Reads the target at `index`; zeroes if no message since the last target can have come with one: the bytes of a write have
    /// no order before its completion. With iWARP, where messages do not distinguish, reads the length first: a valid length implies a
    /// complete entry there.
    fn target(&mut self, index: u32) -> [u8; Target::SIZE];

    /// Zeroes the length of a complete target. The peer rewrites the entry only after the target is used up.
    fn clear_target(&mut self, index: u32);

    /// Reads the mapping at `index`.
    fn mapping(&mut self, index: u16) -> [u8; Mapping::SIZE];
}

/// Protocol state of one side of a connected stream.
#[derive(Debug)]
pub struct Stream {
    settings: Settings,
    order: ByteOrder,
    sending: Sending,
    receiving: Receiving,
    ending: Ending,
    local_mappings: LocalMappings,
    peer_mappings: PeerMappings,
    keep_alive_due: bool,
    /// Number of bytes that the driver retains until the peer has room.
    unsent: u32,
    /// Acknowledgement of requests, and grants of room.
    acks: Progress,
    grants: Progress,
    counters: Counters,
}

impl Stream {
    /// Returns the connect data to send to the peer.
    pub fn connect_data(settings: &Settings, local: &Local) -> ConnectData {
        ConnectData {
            order: local.order,
            credits: settings.recv_depth,
            iomap_size: Some(settings.iomap_size),
            targets: Target {
                addr: local.table_addr,
                rkey: local.table_rkey,
                len: TARGETS,
            },
            first: Target {
                addr: local.buffer_addr,
                rkey: local.buffer_rkey,
                len: settings.first_target(),
            },
        }
    }

    /// Creates a newly connected stream from the peer's connect data.
    ///
    /// The table must have been zero when advertised.
    pub fn new(settings: Settings, local: &Local, peer: &ConnectData) -> Self {
        Self {
            settings,
            order: local.order,
            sending: Sending::new(&settings, peer),
            receiving: Receiving::new(&settings, local, peer),
            ending: Ending::default(),
            local_mappings: LocalMappings::new(peer),
            peer_mappings: PeerMappings::new(settings.iomap_size),
            keep_alive_due: false,
            unsent: 0,
            acks: Progress::default(),
            grants: Progress::default(),
            counters: Counters::default(),
        }
    }

    /// Returns the sizes of the stream.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Handles a send completion.
    pub fn sent(&mut self, tag: Tag, ok: bool) {
        self.sending.completed(tag);
        self.acks.advance();
        if tag == Tag::Control(Control::Disconnect) {
            // Even a failed disconnect ends the stream: the peer may have destroyed its queue pair already.
            self.ending.disconnected();
        } else if !ok {
            self.ending.fail(Failure::Send);
        }
    }

    /// Handles a received message.
    ///
    /// # Errors
    /// The peer has violated the protocol; the stream has failed.
    pub fn received(&mut self, message: Message, table: &mut impl Table) -> Result<(), Failure> {
        let handled = match message {
            Message::Data(len) => {
                let unwanted = self.ending.is_shut_to_reading();
                let arrived = self.receiving.arrived(len, unwanted);
                if arrived.is_ok() {
                    self.counters.received(len);
                }
                arrived
            }
            Message::Credit(limit) => {
                if self.sending.granted(limit, table, self.order) {
                    self.grants.advance();
                }
                Ok(())
            }
            Message::Iomap(index) => match self.receiving.count_message() {
                Ok(()) => {
                    // The message used a credit, returned only here.
                    self.receiving.message_done();
                    self.peer_mappings.advertised(index, table, self.order)
                }
                Err(violation) => Err(violation),
            },
            Message::Control(control) => {
                self.ending.handle_control(control);
                Ok(())
            }
            Message::Reserved(op) => Err(Violation::Reserved(op)),
        };
        handled.map_err(|violation| {
            let failure = Failure::Violation(violation);
            self.ending.fail(failure);
            failure
        })
    }

    /// Returns the next request without the caller's data: credits, targets, and the messages of
    /// [`shut_down`](Self::shut_down) and [`keep_alive`](Self::keep_alive).
    ///
    /// Call repeatedly until `None`, after [`consume`](Self::consume), [`sent`](Self::sent) and
    /// [`received`](Self::received).
    pub fn control(&mut self) -> Option<Outgoing> {
        if self.ending.phase() != EndingPhase::Connected {
            return None;
        }
        if let Some(update) = self.receiving.update_due() {
            let slots = if update.writes_target() && self.settings.framing == Framing::Separate {
                2
            } else {
                1
            };
            if let Some(slot) = self.sending.take_control_slots(slots) {
                return Some(self.receiving.update(update, slot, &self.settings));
            }
            return None;
        }
        if self.ending.has_pending_control() && self.unsent == 0 {
            self.sending.take_control_slots(1)?;
            let control = self.ending.take_pending_control()?;
            let message = Message::Control(control);
            return Some(Outgoing::bare(Tag::Control(control), Some(message)));
        }
        if self.keep_alive_due {
            self.sending.take_control_slots(1)?;
            self.keep_alive_due = false;
            self.counters.probed();
            return Some(Outgoing::bare(Tag::KeepAlive, None));
        }
        None
    }

    /// Schedules an empty write as a keepalive probe, returned by [`control`](Self::control). Fails if the
    /// peer is gone.
    pub fn keep_alive(&mut self) {
        self.keep_alive_due = true;
    }

    /// Whether the messages of [`shut_down`](Self::shut_down) have been posted, or are obsolete.
    pub fn has_sent_shutdown(&self) -> bool {
        !(self.ending.has_pending_control() && self.is_connected())
    }

    /// Returns the counters of the stream.
    pub fn stats(&self) -> StreamStats {
        self.counters.stats()
    }

    /// Sets the number of bytes that the driver retains until the peer has room. [`send`](Self::send) sends them even
    /// after a shutdown of this direction, whose message follows them. New data waits for them.
    pub fn set_unsent(&mut self, bytes: u32) {
        self.unsent = bytes;
    }

    /// Number of bytes retained or sent that the peer has not acknowledged; at least 1 for each request with inline data.
    pub fn unacked(&self) -> u32 {
        self.sending.unacked().saturating_add(self.unsent)
    }

    /// Whether no bytes are retained, all requests have completed and no control message is pending, or the rest is
    /// obsolete.
    pub fn is_flushed(&self) -> bool {
        let idle = self.sending.is_idle() && self.unsent == 0 && self.has_sent_shutdown();
        idle || self.ending.peer_disconnected() || self.failure().is_some()
    }

    /// Handles a disconnect event. Earlier messages must have been passed to [`received`](Self::received)
    /// before.
    pub fn lost(&mut self) {
        self.ending.lost();
    }

    /// Whether messages can still be exchanged.
    pub fn is_connected(&self) -> bool {
        self.ending.phase() == EndingPhase::Connected
    }

    /// Whether a waiting reader, or writer if `write`, depends on send completions: data waits for room on
    /// this side, or the connection is ending.
    pub fn waits_for_sent(&self, write: bool) -> bool {
        (write || self.unsent > 0) && !self.sending.has_space()
            || self.receiving.update_due().is_some()
            || self.keep_alive_due
            || self.ending.has_pending_control()
            || !self.ending.is_readable()
            || !self.ending.is_writable()
    }

    /// Returns the failure, if any.
    pub fn failure(&self) -> Option<Failure> {
        match self.ending.phase() {
            EndingPhase::Failed(failure) => Some(failure),
            EndingPhase::Connected | EndingPhase::Disconnected => None,
        }
    }

    /// Shuts down one or both directions. [`control`](Self::control) returns the message for the peer.
    pub fn shut_down(&mut self, direction: Direction) {
        self.ending.shut_down(direction);
    }

    /// Returns the operations possible without blocking.
    pub fn readiness(&self) -> Readiness {
        let ended = self.ending.phase() != EndingPhase::Connected;
        Readiness {
            readable: self.unread() > 0 || !self.ending.is_readable(),
            writable: ended || !self.ending.is_writable() || self.can_send(),
            ended: ended || !self.ending.is_readable(),
            hung_up: ended || !self.ending.is_readable() && !self.ending.is_writable(),
            failed: self.failure().is_some(),
        }
    }

    /// Whether each side has ended sending, or the stream has failed: TCP's state CLOSED.
    pub fn is_closed(&self) -> bool {
        self.ending.is_closed()
    }

    /// Whether the peer has ended sending, so that all of its bytes have arrived. A later failure affects only the other direction.
    pub fn has_peer_ended(&self) -> bool {
        self.ending.has_peer_ended()
    }

    /// Whether the peer may still send data.
    pub fn is_readable(&self) -> bool {
        self.ending.is_readable()
    }

    /// Whether this side may still send data.
    pub fn is_writable(&self) -> bool {
        self.ending.is_writable()
    }
}
