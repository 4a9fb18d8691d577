//! The hostile host of a listener of `rsocket`.

use std::{collections::VecDeque, io::Write};

use rsocket::{Options, Stream};
use softnic::Limits;

use crate::{
    ADDR, TEST_TIMEOUT, addr,
    attacks::{Act, Attack, HELD},
    half_open::{HalfOpen, request},
    stalled::{self, Stalled, Withheld},
};

/// Limits of a service, by their names in `SECURITY.md`.
pub(crate) fn limits() -> [(&'static str, Limits); 5] {
    [
        (
            "8 MiB of lockable memory, 256 descriptors",
            Limits::new().locked_memory(8 << 20).descriptors(256),
        ),
        ("16 queue pairs", Limits::new().queue_pairs(16)),
        ("16 completion queues", Limits::new().completion_queues(16)),
        ("32 memory regions", Limits::new().memory_regions(32)),
        ("32 descriptors", Limits::new().descriptors(32)),
    ]
}

/// The hostile host of a listener.
pub(crate) struct Strangers {
    attack: Attack,
    stalled: VecDeque<Stalled>,
    half_open: VecDeque<HalfOpen>,
    open: VecDeque<Stream>,
    actions: usize,
}

impl Strangers {
    pub(crate) fn new(attack: Attack) -> Self {
        Self {
            attack,
            stalled: VecDeque::new(),
            half_open: VecDeque::new(),
            open: VecDeque::new(),
            actions: 0,
        }
    }
}

impl Act for Strangers {
    fn act(&mut self) {
        self.actions += 1;
        let source = self.attack.source(self.actions);
        match self.attack {
            Attack::HalfOpen | Attack::ForgedSources => {
                self.half_open
                    .push_back(request(Some(source), addr(), true));
                if self.half_open.len() > HELD {
                    self.half_open.pop_front();
                }
            }
            Attack::NoRoom | Attack::NoReceives => {
                let withheld = match self.attack {
                    Attack::NoRoom => Withheld::Room,
                    _ => Withheld::Receives,
                };
                self.stalled
                    .extend(stalled::connect(source, addr(), withheld));
                if self.stalled.len() > HELD {
                    self.stalled.pop_front();
                }
            }
            Attack::Idle | Attack::ManyAddresses | Attack::ReconnectStorm => {
                let options = Options::new().source(source).connect_timeout(TEST_TIMEOUT);
                self.open.extend(options.connect(ADDR).ok());
            }
        }
        if let Attack::ManyAddresses = self.attack
            && let Some(mut stream) = self.open.pop_front()
            && stream.write(b"h").is_ok()
        {
            self.open.push_back(stream);
        }
        if let Attack::ReconnectStorm = self.attack {
            self.open.clear();
        }
        if self.open.len() > HELD {
            self.open.pop_front();
        }
    }
}
