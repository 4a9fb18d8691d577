//! The wire between two hosts.

use crate::side::{Completion, Side};

/// Two hosts and their connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) sides: [Side; 2],
    pub(crate) broken: bool,
    /// Host with a stuck device.
    pub(crate) stuck: Option<usize>,
}

impl Wire {
    pub(crate) fn new(sides: [Side; 2]) -> Self {
        Self {
            sides,
            broken: false,
            stuck: None,
        }
    }

    /// Delivers the next request of `from`. Returns false if impossible.
    pub(crate) fn deliver(&mut self, from: usize) -> bool {
        if self.stuck == Some(from) {
            return false;
        }
        let (a, b) = self.sides.split_at_mut(1);
        let (this, that) = if from == 0 {
            (&mut a[0], &mut b[0])
        } else {
            (&mut b[0], &mut a[0])
        };
        let Some(request) = this.queue.front() else {
            return false;
        };
        if self.broken {
            let request = this.queue.pop_front().unwrap();
            while let Some(tag) = this.unacknowledged.pop_front() {
                this.completions.push_back(Completion::Sent(tag, false));
            }
            this.completions
                .push_back(Completion::Sent(request.tag, false));
            return true;
        }
        if request.message.is_some() && that.receives == 0 {
            // Receiver not ready: retried later.
            return false;
        }
        let request = this.queue.pop_front().unwrap();
        if let Some(write) = &request.write {
            let bytes = this.fetch(&write.from);
            if !that.write(write.addr, write.rkey, &bytes) {
                this.completions
                    .push_back(Completion::Sent(request.tag, false));
                self.broken = true;
                return true;
            }
        }
        if let Some(message) = request.message {
            that.receives -= 1;
            // Encoded as on the wire.
            let message = rsocket_proto::Message::decode(message.encode());
            that.completions.push_back(Completion::Received(message));
        }
        this.unacknowledged.push_back(request.tag);
        true
    }

    /// Completes the next request of `side`. Returns false if there is none.
    pub(crate) fn acknowledge(&mut self, side: usize) -> bool {
        if self.stuck == Some(side) {
            return false;
        }
        let side = &mut self.sides[side];
        let Some(tag) = side.unacknowledged.pop_front() else {
            return false;
        };
        side.completions
            .push_back(Completion::Sent(tag, !self.broken));
        true
    }

    /// Delivers and processes everything in flight.
    pub(crate) fn run_until_idle(&mut self) {
        loop {
            let mut moved = false;
            for side in 0..2 {
                while self.deliver(side) || self.acknowledge(side) {
                    moved = true;
                }
                moved |= !self.sides[side].completions.is_empty();
                self.sides[side].poll(usize::MAX);
            }
            if !moved {
                break;
            }
        }
    }
}
