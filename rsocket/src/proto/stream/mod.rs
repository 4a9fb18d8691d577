//! One side of a connected stream.
//!
//! The one who drives it owns the memory and the queues. [`Stream::send`], [`Stream::control`] and
//! their like say what to post; [`Stream::sent`] and [`Stream::received`] are told what has
//! completed. What they say to post counts as posted.

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
mod targets;

use super::{ByteOrder, ConnectData, Control, Mapping, Message, Target};
pub use ending::{Direction, Readiness};
use ending::{Ending, Phase};
pub use failure::{Failure, Violation};
use iomap::{Announced, Mapped};
pub use iomap::{MapError, Placement};
pub use outgoing::{Outgoing, Payload, Place, Tag};
use progress::Progress;
pub use receiving::Piece;
use receiving::Receiving;
pub use sending::Burst;
use sending::Sending;
pub use settings::{CONTROL_SLOTS, Framing, SPARE_RECEIVES, Settings, TARGETS};

/// Where the peer finds this side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The address of the table of targets and mappings.
    pub table_addr: u64,
    /// Its key.
    pub table_rkey: u32,
    /// The address of the receive buffer.
    pub buffer_addr: u64,
    /// Its key.
    pub buffer_rkey: u32,
    /// The byte order of this host.
    pub order: ByteOrder,
}

/// The memory that the peer writes its targets and mappings to.
///
/// The peer may write at any time, also while it is read.
pub trait Table {
    /// Reads the target at `index`. The length is read first: where it is there, the rest is.
    fn target(&mut self, index: u32) -> [u8; Target::SIZE];

    /// Sets the length of a target to zero that has been read whole. The peer does not write it
    /// again before it has been used up.
    fn clear_target(&mut self, index: u32);

    /// Reads the mapping at `index`.
    fn mapping(&mut self, index: u16) -> [u8; Mapping::SIZE];
}

/// One side of a connected stream.
#[derive(Debug)]
pub struct Stream {
    settings: Settings,
    order: ByteOrder,
    sending: Sending,
    receiving: Receiving,
    ending: Ending,
    announced: Announced,
    mapped: Mapped,
    keep_alive_due: bool,
    progress: Progress,
}

impl Stream {
    /// What to tell the peer when connecting.
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
                len: settings.half(),
            },
        }
    }

    /// A stream that has just been connected to the peer that said `peer`.
    ///
    /// The table must have been zero when the peer was told of it.
    pub fn new(settings: Settings, local: &Local, peer: &ConnectData) -> Self {
        Self {
            settings,
            order: local.order,
            sending: Sending::new(&settings, peer),
            receiving: Receiving::new(&settings, local, peer),
            ending: Ending::default(),
            announced: Announced::new(peer),
            mapped: Mapped::new(settings.iomap_size),
            keep_alive_due: false,
            progress: Progress::default(),
        }
    }

    /// The sizes it has.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A request has completed: successfully, or not.
    pub fn sent(&mut self, tag: Tag, ok: bool) {
        self.sending.completed(tag);
        self.progress.completed();
        if tag == Tag::Control(Control::Disconnect) {
            // However it ended: the peer may have destroyed its side in the meantime.
            self.ending.disconnected();
        } else if !ok {
            self.ending.fail(Failure::Send);
        }
    }

    /// A message has arrived.
    ///
    /// # Errors
    /// The peer has broken the protocol; the stream has failed.
    pub fn received(&mut self, message: Message, table: &mut impl Table) -> Result<(), Failure> {
        let taken = match message {
            Message::Data(len) => self
                .receiving
                .arrived(len, self.ending.is_shut_to_reading()),
            Message::Credit(limit) => {
                self.sending.granted(limit, table, self.order);
                Ok(())
            }
            Message::Iomap(index) => match self.receiving.count_message() {
                Ok(()) => {
                    // It has used up a credit, which nothing else will give back.
                    self.receiving.message_done();
                    self.mapped.announced(index, table, self.order)
                }
                Err(violation) => Err(violation),
            },
            Message::Control(control) => {
                self.ending.told(control);
                Ok(())
            }
            Message::Reserved(op) => Err(Violation::Reserved(op)),
        };
        taken.map_err(|violation| {
            let failure = Failure::Violation(violation);
            self.ending.fail(failure);
            failure
        })
    }

    /// The next request that moves no data of the caller's: credits, targets, what
    /// [`shut_down`](Self::shut_down) and [`keep_alive`](Self::keep_alive) want to tell.
    ///
    /// To be asked for until there is none, after [`consume`](Self::consume),
    /// [`sent`](Self::sent) and [`received`](Self::received).
    pub fn control(&mut self) -> Option<Outgoing> {
        if self.ending.phase() != Phase::Connected {
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
        if self.ending.has_news() {
            self.sending.take_control_slots(1)?;
            let control = self.ending.take_news()?;
            let message = Message::Control(control);
            return Some(Outgoing::bare(Tag::Control(control), Some(message)));
        }
        if self.keep_alive_due {
            self.sending.take_control_slots(1)?;
            self.keep_alive_due = false;
            return Some(Outgoing::bare(Tag::KeepAlive, None));
        }
        None
    }

    /// Makes [`control`](Self::control) write nothing to the peer, which fails when it is not there
    /// any more.
    pub fn keep_alive(&mut self) {
        self.keep_alive_due = true;
    }

    /// Whether what [`shut_down`](Self::shut_down) wants to tell has been posted, or is of no use any more.
    pub fn has_told(&self) -> bool {
        !(self.ending.has_news() && self.is_connected())
    }

    /// Whether everything that was posted has completed, and nothing is waiting to be told; or what
    /// has not is of no use any more.
    pub fn is_flushed(&self) -> bool {
        let idle = self.sending.is_idle() && self.has_told();
        idle || self.ending.is_deaf() || self.failure().is_some()
    }

    /// The peer's side of the connection is gone, says the connection manager. What it had sent
    /// must have been [`received`](Self::received) before.
    pub fn lost(&mut self) {
        self.ending.lost();
    }

    /// Whether messages can still come and go.
    pub fn is_connected(&self) -> bool {
        self.ending.phase() == Phase::Connected
    }

    /// Whether who waits to read, or to `write`, has to be woken when something has been sent, too:
    /// something waits for room on this side, or the connection is coming to its end.
    pub fn waits_for_sent(&self, write: bool) -> bool {
        write && !self.sending.has_room()
            || self.receiving.update_due().is_some()
            || self.keep_alive_due
            || self.ending.has_news()
            || !self.ending.is_readable()
            || !self.ending.is_writable()
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        match self.ending.phase() {
            Phase::Failed(failure) => Some(failure),
            Phase::Connected | Phase::Disconnected => None,
        }
    }

    /// Ends one direction, or both. [`control`](Self::control) tells the peer.
    pub fn shut_down(&mut self, direction: Direction) {
        self.ending.shut_down(direction);
    }

    /// What can be done without waiting.
    pub fn readiness(&self) -> Readiness {
        let ended = self.ending.phase() != Phase::Connected;
        Readiness {
            readable: self.unread() > 0 || !self.ending.is_readable(),
            writable: ended || !self.ending.is_writable() || self.can_send(),
            ended: ended || !self.ending.is_readable(),
            hung_up: ended || !self.ending.is_readable() && !self.ending.is_writable(),
            failed: self.failure().is_some(),
        }
    }

    /// Whether the peer may still send data.
    pub fn is_readable(&self) -> bool {
        self.ending.is_readable()
    }

    /// Whether data may still be sent.
    pub fn is_writable(&self) -> bool {
        self.ending.is_writable()
    }
}
