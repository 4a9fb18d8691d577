//! A host's device, as calls of the program reach it.

use std::{
    net::IpAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::network::Network;
use crate::{
    abi::{Notifier, ProcessMemory},
    engine::{Engine, Memory},
};

/// A fabric, shared by its handle, its hosts, and the devices that are open.
#[derive(Debug)]
pub(super) struct Shared {
    network: Mutex<Network>,
    /// Wakes the timekeeper when it has to look at its deadlines again.
    pub(super) changed: Condvar,
    is_manual: bool,
    is_closed: AtomicBool,
    start: Instant,
}

impl Shared {
    pub(super) fn new(seed: u64, is_manual: bool) -> Arc<Self> {
        Arc::new(Self {
            network: Mutex::new(Network::new(seed, Box::new(ProcessMemory))),
            changed: Condvar::new(),
            is_manual,
            is_closed: AtomicBool::new(false),
            start: Instant::now(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_manual(&self) -> bool {
        self.is_manual
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Ends the timekeeper.
    pub(super) fn close(&self) {
        let _network = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn now(&self, network: &Network) -> Duration {
        if self.is_manual {
            network.virtual_now
        } else {
            self.start.elapsed()
        }
    }
}

/// A host's device.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    shared: Arc<Shared>,
    notifier: Arc<Notifier>,
    addr: IpAddr,
    pub(super) index: usize,
}

/// A device, and the surroundings of a call to it.
pub(crate) struct Device<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) memory: &'a mut dyn Memory,
    pub(crate) now: Duration,
}

impl Port {
    pub(super) fn new(shared: &Arc<Shared>, index: usize) -> Self {
        let (notifier, addr) = {
            let host = &shared.lock().hosts[index];
            (Arc::clone(&host.notifier), host.addr)
        };
        Self {
            shared: Arc::clone(shared),
            notifier,
            addr,
            index,
        }
    }

    /// Whether both are the same device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.index == other.index
    }

    /// Number of the host in its fabric.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Address of the host.
    pub(crate) fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Receiver of the device's events.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Calls the device, and moves what the call has caused.
    pub(crate) fn call<T>(&self, act: impl FnOnce(Device<'_>) -> T) -> T {
        let mut network = self.shared.lock();
        let now = self.shared.now(&network);
        let result = act(device(&mut network, self.index, now));
        network.activate(self.index);
        if !self.shared.is_manual {
            let before = network.next_deadline();
            network.pump(now);
            let after = network.next_deadline();
            if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
                self.shared.changed.notify_one();
            }
        }
        result
    }

    /// Calls the device without moving anything.
    pub(crate) fn look<T>(&self, act: impl FnOnce(Device<'_>) -> T) -> T {
        let mut network = self.shared.lock();
        let now = self.shared.now(&network);
        act(device(&mut network, self.index, now))
    }

    /// Moves what is due.
    pub(crate) fn advance(&self) {
        if !self.shared.is_manual {
            let mut network = self.shared.lock();
            let now = self.shared.now(&network);
            if network.next_deadline().is_some_and(|at| at <= now) {
                network.advance(now);
            }
        }
    }
}

fn device(network: &mut Network, index: usize, now: Duration) -> Device<'_> {
    Device {
        engine: &mut network.hosts[index].engine,
        memory: &mut *network.memory,
        now,
    }
}
