//! End of a stream: shutdown of one or both directions, or failure.

use super::failure::Failure;
use crate::Control;

/// Connection phase seen by the other modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndingPhase {
    Connected,
    Disconnected,
    Failed(Failure),
}

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the peer.
    Read,
    /// To the peer.
    Write,
    /// Both directions.
    Both,
}

/// Operations possible without blocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness {
    /// A read returns data, the end, or an error.
    pub readable: bool,
    /// A write accepts data or returns an error.
    pub writable: bool,
    /// The peer has ended sending, or this side has shut down reading.
    pub ended: bool,
    /// Both directions have ended, though the peer may not have been notified yet.
    pub hung_up: bool,
    /// The stream has failed.
    pub failed: bool,
}

/// Open directions and pending shutdown messages.
#[derive(Debug)]
pub(super) struct Ending {
    phase: EndingPhase,
    readable: bool,
    writable: bool,
    /// Reading has been shut down: received data is discarded.
    shut_to_reading: bool,
    /// Shutdown message not sent yet.
    pending_control: Option<Control>,
    /// The peer has disconnected.
    peer_disconnected: bool,
    /// The peer's message that ends its direction has arrived.
    peer_ended: bool,
    /// Sending has been shut down by this side.
    shut_to_writing: bool,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            phase: EndingPhase::Connected,
            readable: true,
            writable: true,
            shut_to_reading: false,
            pending_control: None,
            peer_disconnected: false,
            peer_ended: false,
            shut_to_writing: false,
        }
    }
}

impl Ending {
    pub(super) fn phase(&self) -> EndingPhase {
        self.phase
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn is_shut_to_reading(&self) -> bool {
        self.shut_to_reading
    }

    pub(super) fn has_pending_control(&self) -> bool {
        self.pending_control.is_some()
    }

    pub(super) fn take_pending_control(&mut self) -> Option<Control> {
        self.pending_control.take()
    }

    /// Whether the peer has disconnected and discards data in flight.
    pub(super) fn peer_disconnected(&self) -> bool {
        self.peer_disconnected
    }

    /// Whether each side has ended sending, or the stream has failed: TCP's state CLOSED.
    pub(super) fn is_closed(&self) -> bool {
        let has_failed = matches!(self.phase, EndingPhase::Failed(_));
        has_failed || self.has_peer_ended() && self.shut_to_writing
    }

    /// Whether the peer has ended sending, so that all of its bytes have arrived.
    pub(super) fn has_peer_ended(&self) -> bool {
        self.peer_ended
    }

    fn end(&mut self, phase: EndingPhase) {
        // Only the first end is recorded.
        if self.phase == EndingPhase::Connected {
            self.phase = phase;
        }
        self.readable = false;
        self.writable = false;
    }

    pub(super) fn disconnected(&mut self) {
        self.end(EndingPhase::Disconnected);
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.end(EndingPhase::Failed(failure));
    }

    /// Handles a lost peer: a failure, unless both directions had ended.
    pub(super) fn lost(&mut self) {
        if self.readable || self.writable {
            self.fail(Failure::Lost);
        } else {
            self.disconnected();
        }
    }

    /// Handles a control message of the peer.
    pub(super) fn handle_control(&mut self, control: Control) {
        self.peer_ended |= matches!(control, Control::Disconnect | Control::Shutdown);
        match control {
            Control::Disconnect => {
                self.peer_disconnected = true;
                self.disconnected();
            }
            Control::Shutdown => {
                self.readable = false;
                match &mut self.pending_control {
                    // The pending message must also report the end of this side.
                    Some(pending) => *pending = Control::Disconnect,
                    None if !self.writable => self.disconnected(),
                    None => {}
                }
            }
            Control::KeepAlive | Control::Unknown(_) => {}
        }
    }

    pub(super) fn shut_down(&mut self, direction: Direction) {
        self.shut_to_writing |= direction != Direction::Read;
        if self.phase != EndingPhase::Connected {
            return;
        }
        let (was_readable, was_writable) = (self.readable, self.writable);
        if direction != Direction::Write {
            self.readable = false;
            self.shut_to_reading = true;
        }
        if direction != Direction::Read {
            self.writable = false;
        }
        if (self.readable, self.writable) == (was_readable, was_writable) {
            return;
        }
        self.pending_control = match (self.readable, self.writable) {
            (false, false) => Some(Control::Disconnect),
            (true, false) => Some(Control::Shutdown),
            // No message is sent: the peer continues to send, and the data is discarded.
            (_, true) => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shut(directions: &[Direction]) -> (Ending, Vec<Control>) {
        let mut ending = Ending::default();
        let sent = directions
            .iter()
            .filter_map(|&direction| {
                ending.shut_down(direction);
                ending.take_pending_control()
            })
            .collect();
        (ending, sent)
    }

    #[test]
    fn shutdown_of_each_direction_queues_its_control_message() {
        use Direction::{Both, Read, Write};
        for (directions, sent) in [
            (&[Write][..], &[Control::Shutdown][..]),
            (&[Read], &[]),
            (&[Both], &[Control::Disconnect]),
            (&[Read, Write], &[Control::Disconnect]),
            (&[Write, Read], &[Control::Shutdown, Control::Disconnect]),
            (&[Write, Write], &[Control::Shutdown]),
            (&[Both, Both, Write], &[Control::Disconnect]),
        ] {
            assert_eq!(shut(directions).1, sent, "{directions:?}");
        }
    }

    #[test]
    fn control_message_of_peer_ends_one_or_both_directions() {
        let mut ending = Ending::default();
        ending.handle_control(Control::Shutdown);
        assert!(!ending.is_readable() && ending.is_writable());
        assert_eq!(ending.phase(), EndingPhase::Connected);
        // Both directions have ended.
        ending.shut_down(Direction::Write);
        assert_eq!(ending.take_pending_control(), Some(Control::Disconnect));

        let (mut ending, _) = shut(&[Direction::Write]);
        ending.handle_control(Control::Shutdown);
        assert_eq!(ending.phase(), EndingPhase::Disconnected);

        let mut ending = Ending::default();
        for ignored in [Control::KeepAlive, Control::Unknown(0x77)] {
            ending.handle_control(ignored);
            assert_eq!(ending.phase(), EndingPhase::Connected);
        }
        ending.handle_control(Control::Disconnect);
        assert_eq!(ending.phase(), EndingPhase::Disconnected);
    }

    #[test]
    fn shutdown_of_both_sides_at_once_still_sends_disconnect() {
        let mut ending = Ending::default();
        ending.shut_down(Direction::Write);
        ending.handle_control(Control::Shutdown);
        assert_eq!(ending.phase(), EndingPhase::Connected);
        assert_eq!(ending.take_pending_control(), Some(Control::Disconnect));
        // Data in flight still counts, unless the peer has disconnected.
        assert!(!ending.peer_disconnected());
        ending.handle_control(Control::Disconnect);
        assert!(ending.peer_disconnected());
    }

    #[test]
    fn stream_is_closed_after_the_end_of_both_sides() {
        for control in [Control::Shutdown, Control::Disconnect] {
            let mut ending = Ending::default();
            ending.handle_control(control);
            assert!(!ending.is_closed());
            ending.shut_down(Direction::Read);
            assert!(!ending.is_closed());
            ending.shut_down(Direction::Write);
            assert!(ending.is_closed());
            let (mut ending, _) = shut(&[Direction::Both]);
            assert!(!ending.is_closed());
            ending.handle_control(control);
            assert!(ending.is_closed());
        }
        let mut ending = Ending::default();
        ending.fail(Failure::Send);
        assert!(ending.is_closed());
    }

    #[test]
    fn connection_lost_after_disconnect_is_no_failure() {
        let mut ending = Ending::default();
        ending.lost();
        assert_eq!(ending.phase(), EndingPhase::Failed(Failure::Lost));
        let (mut ending, _) = shut(&[Direction::Both]);
        ending.lost();
        assert_eq!(ending.phase(), EndingPhase::Disconnected);
        // The first end is kept.
        ending.fail(Failure::Send);
        assert_eq!(ending.phase(), EndingPhase::Disconnected);
    }

    #[test]
    fn connection_lost_after_shutdown_of_one_direction_fails() {
        for direction in [Direction::Read, Direction::Write] {
            let (mut ending, _) = shut(&[direction]);
            ending.lost();
            assert_eq!(
                ending.phase(),
                EndingPhase::Failed(Failure::Lost),
                "{direction:?}"
            );
        }
        // The peer had shut down its direction, and data written by this side is lost.
        let mut ending = Ending::default();
        ending.handle_control(Control::Shutdown);
        ending.lost();
        assert_eq!(ending.phase(), EndingPhase::Failed(Failure::Lost));
        assert!(!ending.is_readable() && !ending.is_writable());
        // Both sides have shut down their direction.
        let (mut ending, _) = shut(&[Direction::Write]);
        ending.handle_control(Control::Shutdown);
        ending.lost();
        assert_eq!(ending.phase(), EndingPhase::Disconnected);
    }
}
