//! Events posted by this process: user events, and the ends of name lookups.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use verbs::{Result, fd::NotifyFd, waiting::EventFd};

use crate::{
    addrinfo::AddrInfo,
    channel::ChannelHandle,
    event::Event,
    id::CmId,
    phase::{Disposition, Kind},
    registry::Key,
};

/// An event of this process, not yet read.
#[derive(Debug)]
pub(crate) enum Posted {
    /// Written by the program.
    User { key: Key, status: i32, arg: u64 },
    /// End of a name lookup.
    AddrInfo {
        key: Key,
        found: Result<Vec<AddrInfo>>,
    },
}

impl Posted {
    /// Applies the event to the registry, and returns the public event. `None` if the identifier is gone.
    pub(crate) fn deliver(self, channel: &ChannelHandle) -> Option<Event> {
        let (key, found) = match self {
            Self::User { key, status, arg } => return Some(Event::User { key, status, arg }),
            Self::AddrInfo { key, found } => (key, found),
        };
        let id = {
            let mut registry = channel.registry();
            let disposition = registry.phase(key)?.disposition(Kind::AddrInfo);
            let Disposition::ReturnsId(next) = disposition else {
                return None;
            };
            CmId::new(registry.unpark(key, next)?)
        };
        Some(match found {
            Ok(found) => Event::AddrInfoResolved { id, found },
            Err(error) => Event::AddrInfoError { id, error },
        })
    }
}

/// Queue of the events posted by this process to a channel.
#[derive(Debug, Default)]
pub(crate) struct PostedEvents(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Posted>,
    /// Readable exactly while an event is queued. Absent until the first use: most channels have no such events, and
    /// descriptors are scarce.
    readiness: Option<EventFd>,
}

impl PostedEvents {
    /// Makes `notify` readable while an event is queued.
    pub(crate) fn enable(&self, notify: &NotifyFd) -> Result<()> {
        let mut queue = self.lock();
        if queue.readiness.is_none() {
            let readiness = EventFd::new()?;
            notify.add(readiness.as_fd())?;
            queue.readiness = Some(readiness);
        }
        Ok(())
    }

    /// Queues an event, after [`enable`](Self::enable).
    pub(crate) fn post(&self, event: Posted) {
        let mut queue = self.lock();
        queue.events.push_back(event);
        if let Some(readiness) = &queue.readiness {
            readiness.notify();
        }
    }

    /// Takes the oldest event.
    pub(crate) fn take(&self) -> Option<Posted> {
        let mut queue = self.lock();
        let event = queue.events.pop_front()?;
        if let (true, Some(readiness)) = (queue.events.is_empty(), &queue.readiness) {
            readiness.drain();
        }
        Some(event)
    }

    /// No code that could panic runs under this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
