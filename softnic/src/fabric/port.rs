//! A host's device, as used by calls of the program.

use std::{
    net::IpAddr,
    process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use super::{
    limits::{Accounts, Limits},
    network::Network,
};
use crate::{
    abi::{Notifier, ProcessMemory, scripted},
    adversary::Adversary,
    card::Card,
    carrier::Interface,
    check::{Checker, HostQp, Parent},
    cm::{Manager, Reach},
    engine::{Engine, Memory, QpNum},
    failure::{Call, Failing, Failures, Holding, When},
};

/// State shared by a fabric's handle, its hosts, and open devices.
#[derive(Debug)]
pub(super) struct Shared {
    network: Mutex<Network>,
    /// Notifies the timekeeper of an earlier deadline.
    pub(super) changed: Condvar,
    is_manual: bool,
    is_closed: AtomicBool,
    /// Speed of the fabric's time, as a multiple of real time.
    pub(super) speed: AtomicU32,
    start: Instant,
    /// The process of the fabric. A child made by `fork` has a copy, whose lock may be held by a thread that the child does
    /// not have.
    process: u32,
    /// Wall-clock time of the start, since 1970; zero for a manual fabric.
    pub(super) start_since_1970: Duration,
}

impl Shared {
    pub(super) fn new(seed: u64, is_manual: bool) -> Arc<Self> {
        Arc::new(Self {
            network: Mutex::new(Network::new(seed, Box::new(ProcessMemory))),
            changed: Condvar::new(),
            is_manual,
            is_closed: AtomicBool::new(false),
            speed: AtomicU32::new(1),
            start: Instant::now(),
            process: process::id(),
            start_since_1970: if is_manual {
                Duration::ZERO
            } else {
                SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default()
            },
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the network, and moves the resulting frames unless the fabric is manual.
    pub(super) fn change(&self, change: impl FnOnce(&mut Network, Duration)) {
        let mut network = self.lock();
        let now = self.now(&network);
        change(&mut network, now);
        if !self.is_manual {
            network.pump(now);
            self.changed.notify_one();
        }
    }

    pub(super) fn is_manual(&self) -> bool {
        self.is_manual
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Processes datagrams pending at a host's socket.
    pub(super) fn receive(&self, host: usize) {
        let mut network = self.lock();
        let now = self.now(&network);
        let before = network.next_deadline();
        network.receive(host, now);
        self.notify_of_earlier(&network, before);
    }

    /// Processes datagrams forwarded by the keeper of a host's address, and returns to the slot at another keeper if this one
    /// has ended. Returns false if that fails: the host has been killed then.
    pub(super) fn receive_forwarded(&self, host: usize) -> bool {
        let mut network = self.lock();
        let now = self.now(&network);
        let before = network.next_deadline();
        let is_kept = network.receive_forwarded(host, now);
        self.notify_of_earlier(&network, before);
        if is_kept {
            return true;
        }
        let carrier = network.hosts[host].carrier.as_ref();
        let shared = carrier.and_then(|carrier| carrier.shared());
        let Some(keeper) = shared.map(|(_, keeper)| Arc::clone(keeper)) else {
            return false;
        };
        // Calls of the program go on meanwhile.
        drop(network);
        let has_returned = keeper.return_to_slot();
        if !has_returned {
            self.change(|network, now| network.kill(host, now));
        }
        has_returned
    }

    /// Reads the state of the interface with a host's address, unless the system does not report it. An interface that goes down
    /// loses its IPv6 addresses, so the link is read by the index, too.
    pub(super) fn follow_interface(&self, host: usize) {
        let (addr, index) = {
            let host = &self.lock().hosts[host];
            let carrier = host.carrier.as_ref();
            (
                host.addrs.first().copied(),
                carrier.and_then(|carrier| carrier.interface()),
            )
        };
        let Some(Ok(interface)) = addr.map(Interface::of) else {
            return;
        };
        match (interface, index) {
            (None, Some(index)) => {
                let has_link =
                    Interface::at(index).is_ok_and(|of| of.is_some_and(|of| of.has_link));
                self.change(|network, _| network.remove_address(host, has_link));
            }
            // An address of a local route alone is of no interface.
            (interface, _) => {
                self.change(|network, _| network.set_interface(host, interface.as_ref()));
            }
        }
    }

    /// Notifies the timekeeper if the next deadline is earlier than before.
    fn notify_of_earlier(&self, network: &Network, before: Option<Duration>) {
        let after = network.next_deadline();
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.changed.notify_one();
        }
    }

    /// Stops the timekeeper and the receiving threads, and closes their sockets.
    pub(super) fn close(&self) {
        let mut network = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        for host in &mut network.hosts {
            if let Some(carrier) = host.carrier.take() {
                carrier.link().close();
            }
        }
    }

    /// Takes the steps of a duration in a manual fabric, at the end of which the virtual time is.
    pub(super) fn advance_manual(&self, by: Duration) {
        if !self.is_manual {
            return;
        }
        let mut network = self.lock();
        let end = network.virtual_now.saturating_add(by);
        while network.is_busy() || network.next_deadline().is_some_and(|at| at <= end) {
            network.step();
        }
        network.virtual_now = end;
    }

    pub(super) fn now(&self, network: &Network) -> Duration {
        if self.is_manual {
            network.virtual_now
        } else {
            self.start.elapsed() * self.speed()
        }
    }

    pub(super) fn speed(&self) -> u32 {
        self.speed.load(Ordering::Relaxed)
    }
}

/// A host's device.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    shared: Arc<Shared>,
    notifier: Arc<Notifier>,
    failures: Arc<Failures>,
    adversary: Arc<Adversary>,
    card: Option<Card>,
    checker: Option<Arc<Checker>>,
    accounts: Arc<Accounts>,
    addrs: Arc<[IpAddr]>,
    guid: u64,
    pub(super) index: usize,
}

/// A device, and the environment of a call.
pub(crate) struct Device<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) manager: &'a mut Manager,
    pub(crate) memory: &'a mut dyn Memory,
}

impl Port {
    pub(super) fn new(shared: &Arc<Shared>, index: usize) -> Self {
        let network = shared.lock();
        let host = &network.hosts[index];
        Self {
            shared: Arc::clone(shared),
            notifier: Arc::clone(&host.notifier),
            failures: Arc::clone(&host.failures),
            adversary: Arc::clone(&host.adversary),
            card: host.card,
            checker: network.checker().cloned(),
            accounts: Arc::clone(&host.accounts),
            addrs: Arc::clone(&host.addrs),
            guid: host.guid,
            index,
        }
    }

    /// Whether both belong to the same host.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.index == other.index
    }

    /// Whether the host is of a fabric.
    pub(super) fn is_of(&self, fabric: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, fabric)
    }

    /// Whether the host has been killed.
    pub(crate) fn is_removed(&self) -> bool {
        self.look(|nic| nic.manager.is_removed())
    }

    /// Whether the fabric has been dropped or the host killed, and no object is left on the host. False in a child made by
    /// `fork`.
    pub(crate) fn is_abandoned(&self) -> bool {
        if self.shared.process != process::id() {
            return false;
        }
        let network = self.shared.lock();
        let host = &network.hosts[self.index];
        (self.shared.is_closed() || host.manager.is_removed())
            && host.manager.id_count() == 0
            && host.engine.objects().iter().all(|(_, count)| *count == 0)
    }

    /// The device of the fabric's host with this address.
    pub(crate) fn host_of(&self, addr: IpAddr) -> Option<Self> {
        let index = self.shared.lock().host_of(addr)?;
        Some(Self::new(&self.shared, index))
    }

    /// Number of the host in its fabric.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Addresses of the host, in the order of its GIDs.
    pub(crate) fn addrs(&self) -> &[IpAddr] {
        &self.addrs
    }

    /// Whether the links keep the order of frames.
    pub(crate) fn keeps_order(&self) -> bool {
        self.shared.lock().order.is_some()
    }

    /// Whether the host is over UDP.
    pub(crate) fn is_over_udp(&self) -> bool {
        let network = self.shared.lock();
        network.hosts[self.index].carrier.is_some()
    }

    /// Index of an address among the host's addresses.
    pub(crate) fn addr_index(&self, addr: IpAddr) -> Option<u8> {
        let index = self.addrs.iter().position(|local| *local == addr)?;
        u8::try_from(index).ok()
    }

    /// GUID of the device.
    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// Wall-clock time since 1970 at a time of the fabric. A manual fabric starts in 1970.
    pub(crate) fn since_1970(&self, time: Duration) -> Duration {
        self.shared.start_since_1970 + time
    }

    /// Reachability of an address for the host.
    pub(crate) fn reach(&self, addr: IpAddr) -> Reach {
        self.shared.lock().reach(self.index, addr)
    }

    /// Scripted devices of the host.
    pub(crate) fn scripted(&self) -> Vec<Arc<scripted::Shared>> {
        let scripted = &mut self.shared.lock().hosts[self.index].scripted;
        scripted.retain(|device| device.strong_count() > 0);
        let devices = scripted.iter().filter_map(Weak::upgrade);
        devices.filter(|device| device.is_plugged()).collect()
    }

    /// Adds a scripted device to the host.
    pub(super) fn add_scripted(&self, device: Weak<scripted::Shared>) {
        self.shared.lock().hosts[self.index].scripted.push(device);
    }

    /// Requests failures of a function until the result is dropped.
    pub(super) fn fail(&self, call: Call, when: When, errno: i32) -> Failing {
        self.failures.request(call, when, errno)
    }

    /// Blocks calls of a function until the result is dropped.
    pub(super) fn hold(&self, call: Call) -> Holding {
        self.failures.hold(call)
    }

    /// Blocks a call, if requested; then counts it, and returns its failure, if requested.
    pub(crate) fn attempt(&self, call: Call) -> Result<(), i32> {
        self.failures.attempt(call)?;
        if self.adversary.is_kind() {
            return Ok(());
        }
        self.adversary.attempt(call)
    }

    /// Checks of the host's programs; `None` without checks.
    pub(crate) fn checker(&self) -> Option<&Checker> {
        self.checker.as_deref()
    }

    /// Notes the result of a destruction, for checks: 0 or an errno.
    pub(crate) fn note_destruction(&self, object: u64, errno: i32, call: &str, parent: Parent) {
        let Some(checker) = &self.checker else {
            return;
        };
        match errno {
            0 => checker.destroyed(object),
            libc::EBUSY => checker.refused_destruction(self.index, object, call, parent),
            _ => {}
        }
    }

    /// A queue pair of the host, for checks.
    pub(crate) fn host_qp(&self, qp: QpNum) -> HostQp {
        HostQp {
            host: self.index,
            num: qp.0,
        }
    }

    /// Delivers reports, with nothing locked.
    pub(crate) fn deliver_reports(&self) {
        if let Some(checker) = &self.checker {
            checker.deliver();
        }
    }

    /// Decisions of the device.
    pub(crate) fn adversary(&self) -> &Adversary {
        &self.adversary
    }

    /// The card whose limits the device has.
    pub(crate) fn card(&self) -> Option<Card> {
        self.card
    }

    /// Limits of the host, and the amounts in use.
    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// Changes the limits of the host.
    pub(super) fn set_limits(&self, limits: Limits) {
        self.accounts.set_limits(limits);
    }

    /// Seed of decisions about the host's calls.
    pub(super) fn seed(&self) -> u64 {
        self.failures.seed()
    }

    /// Receiver of the device's events.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Reports a call in a child made by `fork`.
    fn check_process(&self) {
        if let Some(checker) = &self.checker
            && self.shared.process != process::id()
        {
            checker.used_in_child();
        }
    }

    /// Calls the device with the time of the fabric, and moves the resulting frames unless the fabric is manual.
    pub(crate) fn call<T>(&self, act: impl FnOnce(Device<'_>, Duration) -> T) -> T {
        self.check_process();
        let mut network = self.shared.lock();
        let now = self.shared.now(&network);
        let before = network.next_deadline();
        let result = act(device(&mut network, self.index), now);
        network.activate(self.index);
        if !self.shared.is_manual {
            network.pump(now);
            self.shared.notify_of_earlier(&network, before);
        }
        drop(network);
        self.deliver_reports();
        result
    }

    /// Calls the device without moving frames.
    pub(crate) fn look<T>(&self, act: impl FnOnce(Device<'_>) -> T) -> T {
        self.check_process();
        let result = act(device(&mut self.shared.lock(), self.index));
        self.deliver_reports();
        result
    }

    /// Changes the members of multicast groups, and joins the groups at the socket of a host over UDP.
    ///
    /// # Errors
    /// - An errno of the system: too many memberships or descriptors.
    pub(crate) fn change_groups<T>(&self, change: impl FnOnce(&mut Engine) -> T) -> Result<T, i32> {
        let network = &mut *self.shared.lock();
        let host = &mut network.hosts[self.index];
        let result = change(&mut host.engine);
        let carrier = host.carrier.as_ref();
        let joined = carrier.map_or(Ok(()), |carrier| carrier.set_groups(host.engine.groups()));
        joined.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
        Ok(result)
    }

    /// Time of the fabric.
    pub(crate) fn now(&self) -> Duration {
        self.shared.now(&self.shared.lock())
    }

    /// Processes expired timers and arrivals, unless the fabric is manual.
    pub(crate) fn advance(&self) {
        if !self.shared.is_manual {
            let mut network = self.shared.lock();
            let now = self.shared.now(&network);
            if let Some(carrier) = &network.hosts[self.index].carrier {
                carrier.link().count_poll();
                let before = network.next_deadline();
                network.receive(self.index, now);
                self.shared.notify_of_earlier(&network, before);
            }
            if network.next_deadline().is_some_and(|at| at <= now) {
                network.advance(now);
            }
        }
    }
}

fn device(network: &mut Network, index: usize) -> Device<'_> {
    let host = &mut network.hosts[index];
    Device {
        engine: &mut host.engine,
        manager: &mut host.manager,
        memory: &mut *network.memory,
    }
}
