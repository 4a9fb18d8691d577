//! How calls wait: one of those that do works for all sockets, instead of the thread.
//!
//! What a call waits for comes by a completion. If the thread handled it, it would have to be woken
//! first, only to wake the call. So the first call that waits is told of completions itself, and the
//! thread is not. While no call waits, the thread is told.
//!
//! Whoever takes an event off a channel has its queue armed again before it sleeps or leaves, and
//! whoever handles completions wakes everybody they concern. So nothing is lost, whoever comes first.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, MutexGuard},
    time::Instant,
};

use rustix::event::epoll;

use super::{Shared, State, sleep};
use crate::{bell::Bell, device::Device, proto::SocketId, socket::Waiters};

/// The call that works for all sockets while it waits.
#[derive(Debug)]
pub(super) struct Leader {
    socket: SocketId,
    /// Rung when something has changed that it did not do itself.
    bell: Arc<Bell>,
    rung: bool,
}

impl Shared {
    /// Waits until something changes for a socket; `None` if that has not happened by `deadline`. Who
    /// is `receiving` makes its descriptor right after that, before it unlocks anything.
    pub(crate) fn wait<'s>(
        &'s self,
        waiters: &Waiters,
        receiving: bool,
        mut state: MutexGuard<'s, State>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'s, State>> {
        if state.leader.is_some() {
            return waiters.wait(state, deadline);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        let bell = Arc::clone(&self.leader);
        state.leader = Some(Leader {
            socket: waiters.id(),
            bell: Arc::clone(&bell),
            rung: false,
        });
        let devices = state.devices();
        state.tell_thread(false);
        drop(state);
        let ready = {
            let mut fds: Vec<BorrowedFd<'_>> = vec![bell.as_fd()];
            fds.extend(devices.iter().map(|device| device.channel.as_fd()));
            sleep(&fds, left)
        };
        let mut state = self.lock_here();
        if state.leader.take().is_some_and(|leader| leader.rung) {
            self.leader.clear();
        }
        for (device, ready) in devices.iter().zip(&ready[1..]) {
            if *ready {
                state.take_events(device);
            }
        }
        // Gone devices are closed when nobody has them.
        drop(devices);
        let now = self.now();
        state.receiving = receiving.then(|| waiters.id());
        state.complete(now);
        self.drive_at(&mut state, now);
        state.receiving = None;
        state.tell_thread(true);
        Some(state)
    }
}

impl State {
    /// Takes the events of a device.
    pub(super) fn take_events(&mut self, device: &Device) {
        while let Ok(Some(key)) = device.channel.try_next() {
            self.announced(key);
            if self.lanes.len() == 1 {
                // Its queue announces nothing more before it is armed.
                break;
            }
        }
    }

    /// Whether the thread is told of completions.
    fn tell_thread(&self, told: bool) {
        let flags = if told {
            epoll::EventFlags::IN
        } else {
            epoll::EventFlags::empty()
        };
        for device in self.devices_here() {
            let data = epoll::EventData::new_u64(0);
            // It is there, and needs no memory.
            let _: Result<(), _> = epoll::modify(&self.poller, &device.channel, data, flags);
        }
    }

    /// Wakes the call that leads, if it waits for this socket.
    pub(super) fn call_leader(&mut self, id: SocketId) {
        if let Some(leader) = &mut self.leader
            && leader.socket == id
        {
            leader.ring();
        }
    }

    /// Wakes the call that leads, whatever it waits for.
    pub(super) fn stop_leader(&mut self) {
        if let Some(leader) = &mut self.leader {
            leader.ring();
        }
    }
}

impl Leader {
    fn ring(&mut self) {
        if !self.rung {
            self.rung = true;
            self.bell.ring();
        }
    }
}
