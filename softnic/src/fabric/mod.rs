//! Hosts, and the network between them.
//!
//! A [`Fabric`] carries frames between the devices of its [`Host`]s. Faults are a pure function of the seed, the link
//! and the frame's number on the link, so the same seed has the same effect on the same traffic.

#![forbid(unsafe_code)]

mod books;
mod environment;
mod faults;
mod host;
mod identity;
mod interface;
mod limits;
mod network;
mod order;
mod over_udp;
mod port;
mod receiver;
mod recording;
mod timekeeper;
mod traffic;

use std::{
    ffi::OsStr,
    fmt, io,
    net::{IpAddr, Ipv4Addr},
    ops::Range,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub use books::Books;
pub use faults::Faults;
pub use host::{Entered, Host};
pub(crate) use host::{current, entered};
pub use limits::Limits;
pub(crate) use limits::{Charge, ObjectCharge, Resource, locked};
use order::LinkOrder;
pub(crate) use port::Port;
use port::Shared;
pub use recording::RecordedFrame;
use recording::Recording;
pub use traffic::Traffic;

use crate::{
    abi,
    adversary::{self, AdversaryOptions, Rule, Rules},
    card::Card,
    carrier::{Carrier, Interface, PortSlot},
    check::{CheckReport, Checker},
    cm::Timing,
    seed::Seed,
};

/// Maximum number of addresses of a host: the indices of GIDs have 8 bits.
const MAX_ADDRS: usize = 256;

/// Minimum MTU of links: a path MTU of 256 bytes and the headers.
const MIN_LINK_MTU: u32 = 256 + 96;

/// Environment variable with the seed of fabrics.
const SEED: &str = "SOFTNIC_SEED";

/// Environment variable with the rules of devices, and their seed.
const ADVERSARY: &str = "SOFTNIC_ADVERSARY";

/// Environment variable with the name of a card.
const CARD: &str = "SOFTNIC_CARD";

/// Environment variable that requests checks of programs.
const CHECK: &str = "SOFTNIC_CHECK";

/// A network of hosts in this process.
///
/// Frames move while a program posts or polls. A thread of the fabric delivers delayed frames and expires timers. A
/// [manual](Self::manual) fabric has no thread: frames move and time passes only in [`step`](Self::step).
///
/// # Panics
/// Dropping a fabric panics if programs have left objects on the hosts (see [`books`](Self::books) and
/// [`keep_objects`](Self::keep_objects)). If the thread is already panicking, the drop prints the seed instead. Open
/// devices keep working after the drop, but without delayed frames and timers.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// let fabric = softnic::Fabric::seeded(7)
///     .loss(0.01)
///     .delay(Duration::from_micros(5)..Duration::from_micros(80));
/// let (a, b) = (fabric.host("10.9.0.1".parse()?), fabric.host("10.9.0.2".parse()?));
/// a.run(|| { /* the devices of this host are listed here */ });
/// fabric.cut(&a, &b);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
    seed: u64,
    checks_books: bool,
}

impl Fabric {
    /// Creates a network without faults. Keys of memory, GUIDs, and numbers of queue pairs and connections are random, unless
    /// the environment variable `SOFTNIC_SEED` has a seed.
    ///
    /// # Panics
    /// If `SOFTNIC_SEED` is not a number.
    pub fn new() -> Self {
        let fabric = Self::seeded(0);
        if std::env::var_os(SEED).is_none() {
            fabric.shared.lock().numbers = Seed::of_system();
        }
        fabric
    }

    /// Creates a network with a seed for faults, and for the keys of memory, GUIDs, numbers of queue pairs and ids of
    /// connections of its hosts, initially without faults. The environment variable `SOFTNIC_SEED` overrides the seed, to replay the seed printed by a failed test.
    ///
    /// # Panics
    /// If `SOFTNIC_SEED` is not a number.
    pub fn seeded(seed: u64) -> Self {
        let fabric = Self::build(seed, false);
        timekeeper::start(&fabric.shared);
        fabric
    }

    /// Creates a network without a thread: frames move and time passes only in [`step`](Self::step). The seed is as for
    /// [`seeded`](Self::seeded).
    ///
    /// # Panics
    /// If `SOFTNIC_SEED` is not a number.
    pub fn manual(seed: u64) -> Self {
        Self::build(seed, true)
    }

    fn build(seed: u64, is_manual: bool) -> Self {
        let seed = chosen(SEED, parse_seed).unwrap_or(seed);
        let without_rules = AdversaryOptions {
            seed,
            ..AdversaryOptions::default()
        };
        let shared = Shared::new(seed, is_manual);
        shared.lock().adversary =
            chosen(ADVERSARY, AdversaryOptions::parse).unwrap_or(without_rules);
        shared.lock().card = chosen(CARD, str::parse);
        let fabric = Self {
            shared,
            seed,
            checks_books: true,
        };
        match std::env::var_os(CHECK) {
            Some(value) if value != "0" => fabric.checked(),
            _ => fabric,
        }
    }

    /// Checks the programs on hosts added from now on, as a sanitizer: each [`Check`](crate::Check) that fails is written to
    /// standard error once, and the drop of the fabric panics. Requests take up to five times as long: a round trip of 64 bytes
    /// 7.4 µs in place of 1.7 µs, a write of 64 KiB 11 µs in place of 3 µs (`cargo xtask bench softnic`).
    ///
    /// The environment variable `SOFTNIC_CHECK=1` does the same in all fabrics of a process.
    ///
    /// # Examples
    /// ```
    /// let fabric = softnic::Fabric::seeded(7).checked();
    /// ```
    #[must_use]
    pub fn checked(self) -> Self {
        self.shared.lock().check(Checker::new(self.seed, None));
        self
    }

    /// Checks the programs on hosts added from now on, as [`checked`](Self::checked) does, and calls `on_report` for each
    /// report. The drop does not panic because of reports.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// let reports = Arc::new(Mutex::new(Vec::new()));
    /// let sink = Arc::clone(&reports);
    /// let fabric = softnic::Fabric::seeded(7)
    ///     .on_report(move |report| sink.lock().unwrap().push(report.clone()));
    /// drop(fabric);
    /// assert!(reports.lock().unwrap().is_empty());
    /// ```
    #[must_use]
    pub fn on_report(self, on_report: impl Fn(&CheckReport) + Send + Sync + 'static) -> Self {
        let checker = Checker::new(self.seed, Some(Arc::new(on_report)));
        self.shared.lock().check(checker);
        self
    }

    /// Number of reports written to standard error, at the end of the fabric or of the process.
    pub(crate) fn report_count(&self) -> usize {
        let checker = self.shared.lock().checker().cloned();
        checker.map_or(0, |checker| {
            checker.finish();
            checker.deliver();
            checker.unhandled_count()
        })
    }

    /// Lets the devices of hosts added from now on use the freedoms of the standard, all [rules](Rule) but those by which
    /// calls [fail](Rule::refuses_calls). The seed of the fabric determines the decisions.
    ///
    /// The environment variable `SOFTNIC_ADVERSARY` does the same in all fabrics of a process: `7` for all rules with the
    /// seed 7, `7:stale-fields,keys` for two of them.
    ///
    /// # Examples
    /// ```
    /// use softnic::{Fabric, Rule};
    /// let all = Fabric::seeded(7).adversarial();
    /// let one = Fabric::seeded(7).rule(Rule::StaleFields);
    /// ```
    #[must_use]
    pub fn adversarial(self) -> Self {
        self.shared.lock().adversary.rules = Rules::without_refusals();
        self
    }

    /// Lets the devices of hosts added from now on use one freedom of the standard, beside those of earlier calls.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        {
            let rules = &mut self.shared.lock().adversary.rules;
            *rules = rules.with(rule);
        }
        self
    }

    /// Gives the devices of hosts added from now on the limits of a card, and the roundings of its driver. Requests beyond the
    /// limits, and combinations that the driver refuses, fail with the driver's error number.
    ///
    /// The environment variable `SOFTNIC_CARD` does the same in all fabrics of a process, by the [name](Card::name).
    ///
    /// # Examples
    /// ```
    /// use softnic::{Card, Fabric};
    /// let fabric = Fabric::seeded(7).card(Card::ConnectX5);
    /// let host = fabric.host("10.9.0.1".parse()?);
    /// let ctx = host.run(|| verbs::devices()?.find("softnic0").unwrap().open())?;
    /// assert_eq!(ctx.query_device()?.max_sge(), 30);
    ///
    /// // The driver adds an unused entry, and rounds up to a power of two.
    /// let cq = ctx.create_cq(128)?;
    /// assert_eq!(cq.capacity(), 255);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn card(self, card: Card) -> Self {
        self.shared.lock().card = Some(card);
        self
    }

    /// The seed of the network's faults.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Disables the check for left objects at the drop, for libraries whose objects exist until the process ends.
    #[must_use]
    pub fn keep_objects(mut self) -> Self {
        self.checks_books = false;
        self
    }

    /// Sets the probability, 0 to 1, of the loss of a copy of a frame.
    ///
    /// # Panics
    /// If the probability is not between 0 and 1.
    #[must_use]
    pub fn loss(self, probability: f64) -> Self {
        self.change_faults(|faults| faults.loss = probability)
    }

    /// Sets the probability, 0 to 1, of a second copy of a frame.
    ///
    /// # Panics
    /// If the probability is not between 0 and 1.
    #[must_use]
    pub fn duplication(self, probability: f64) -> Self {
        self.change_faults(|faults| faults.duplication = probability)
    }

    /// Sets the probability, 0 to 1, of a flipped bit in a copy of a frame.
    ///
    /// # Panics
    /// If the probability is not between 0 and 1.
    #[must_use]
    pub fn corruption(self, probability: f64) -> Self {
        self.change_faults(|faults| faults.corruption = probability)
    }

    /// Sets the range of delays. Frames with different delays overtake each other, so a reliable connection retransmits, as
    /// over several paths; [`in_order`](Self::in_order) keeps the order, as over one cable.
    ///
    /// # Panics
    /// If the range ends before its start, or after a day.
    #[must_use]
    pub fn delay(self, range: Range<Duration>) -> Self {
        self.change_faults(|faults| faults.delay = range)
    }

    /// Keeps the order of the frames of each link: a frame with a shorter [delay](Self::delay) than an earlier one arrives with
    /// the earlier frame. Loss, duplication and corruption do not change. The bytes of a peer's write are then in order
    /// (`ibv_query_qp_data_in_order`), except by the rules [`Placement`](Rule::Placement), [`Torn`](Rule::Torn) and
    /// [`NotVisible`](Rule::NotVisible).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// // A long cable, without retransmissions.
    /// let fabric = softnic::Fabric::seeded(7)
    ///     .delay(Duration::from_micros(20)..Duration::from_micros(90))
    ///     .in_order();
    /// ```
    #[must_use]
    pub fn in_order(self) -> Self {
        self.shared.lock().order = Some(LinkOrder::default());
        self
    }

    /// Sets the speed of the fabric's time, as a multiple of real time: at 50, a retransmission due after 268 ms takes
    /// 5.4 ms. Delays of threads count as much longer then. A [manual](Self::manual) fabric has no speed.
    ///
    /// # Panics
    /// If `factor` is 0.
    #[must_use]
    pub fn speed(self, factor: u32) -> Self {
        assert!(factor > 0, "time would stand still");
        self.shared.speed.store(factor, Ordering::Relaxed);
        self
    }

    /// Sets the MTU of the links, as of an Ethernet: longer IP packets are lost. Hosts added from now on have the path MTU
    /// that fits, such as 1024 bytes for 1500. Without a link MTU, the path MTU is 4096.
    ///
    /// # Panics
    /// If `bytes` is below 352: the headers of the smallest path MTU do not fit.
    #[must_use]
    pub fn link_mtu(self, bytes: u32) -> Self {
        assert!(
            bytes >= MIN_LINK_MTU,
            "the link MTU is {bytes} bytes: it must be at least {MIN_LINK_MTU}"
        );
        self.shared.lock().link_mtu = Some(bytes);
        self
    }

    /// Puts a router between the networks of the hosts: the first 24 bits of an IPv4 address, or 64 bits of an IPv6 address.
    /// A frame to another network arrives with one hop less, and is lost if its hop limit is 1. Multicast stays in a
    /// network. Without a router, all hosts are on one link.
    #[must_use]
    pub fn router(self) -> Self {
        self.shared.lock().has_router = true;
        self
    }

    /// Sets the times of the connection managers of hosts added from now on. The default is [`Timing::FABRIC`];
    /// [`Timing::LINUX`] has those of Linux, sixteen times longer.
    #[must_use]
    pub fn cm_timing(self, timing: Timing) -> Self {
        self.shared.lock().timing = timing;
        self
    }

    /// Records all sent frames for [`recorded_frames`](Self::recorded_frames) and [`write_pcap`](Self::write_pcap).
    /// Memory grows with the traffic.
    #[must_use]
    pub fn record(self) -> Self {
        self.shared.lock().record(Recording::Memory(Vec::new()));
        self
    }

    /// Writes all frames sent, and frames received [over UDP](Self::host_over_udp), to a pcap file for Wireshark, as they
    /// pass. The file is complete after each frame, also if the process is killed.
    ///
    /// # Errors
    /// As for [`std::fs::File::create`].
    pub fn record_to(self, path: impl AsRef<Path>) -> io::Result<Self> {
        let recording = Recording::create(path.as_ref(), self.shared.start_since_1970)?;
        self.shared.lock().record(recording);
        Ok(self)
    }

    fn change_faults(self, change: impl FnOnce(&mut Faults)) -> Self {
        let mut faults = self.shared.lock().faults.clone();
        change(&mut faults);
        self.set_faults(faults);
        self
    }

    /// Sets the faults of frames sent from now on.
    ///
    /// # Panics
    /// If a probability is not between 0 and 1, or the range of delays ends before its start
    /// or after a day.
    pub fn set_faults(&self, faults: Faults) {
        faults.check();
        self.shared.lock().faults = faults;
    }

    /// Adds a host with one device, one port and one address. Devices are named `softnic0`, `softnic1` and so on.
    ///
    /// # Panics
    /// If another host has the address, or no host can have it: unspecified, multicast and broadcast addresses.
    pub fn host(&self, addr: IpAddr) -> Host {
        self.host_with_addrs(&[addr])
    }

    /// Adds a host with up to 256 addresses, in the order of its GIDs. An IPv4 address mapped to IPv6 counts as the IPv4
    /// address.
    ///
    /// # Panics
    /// If `addrs` is empty or too long, has an address twice or one of another host, or has one that no host can have, as for
    /// [`host`](Self::host).
    pub fn host_with_addrs(&self, addrs: &[IpAddr]) -> Host {
        assert!(
            (1..=MAX_ADDRS).contains(&addrs.len()),
            "a host has 1 to {MAX_ADDRS} addresses, not {}",
            addrs.len()
        );
        let addrs: Vec<_> = addrs.iter().map(IpAddr::to_canonical).collect();
        for addr in &addrs {
            check_addr(*addr);
        }
        let index = self.shared.lock().add_host(&addrs);
        Host::new(Port::new(&self.shared, index))
    }

    /// Adds a host with an address of this machine, and with a socket at UDP port 4791 of the address: the host exchanges
    /// frames with hosts of other processes and machines, as an ordinary user. Frames to other addresses leave by the
    /// socket, also those to other hosts of the fabric, and those to multicast groups of IPv4, at the interface of the address.
    /// Frames to groups of IPv6 stay in the fabric.
    ///
    /// The fabric's faults concern the frames sent. A thread receives frames while no thread of the program polls. The path MTU
    /// is the greatest for the MTU of the address's interface: 1024 bytes on an Ethernet of 1500, 4096 on the loopback
    /// interface. The port follows the interface: its MTU, its link and the address. On addresses other than loopback ones,
    /// connections have the times of [`Timing::LINUX`].
    ///
    /// Each sender of a datagram to the address can send frames to the host. Loopback addresses such as 127.0.0.2
    /// are reached by processes of this machine alone.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AddrInUse`]: another process, or Linux's driver `rdma_rxe`, has the port; use another address.
    /// - [`io::ErrorKind::AddrNotAvailable`]: the machine does not have the address.
    /// - [`io::ErrorKind::InvalidInput`]: the fabric is [manual](Self::manual).
    ///
    /// # Panics
    /// As for [`host`](Self::host).
    ///
    /// # Examples
    /// ```
    /// let fabric = softnic::Fabric::new();
    /// let host = fabric.host_over_udp("127.0.0.77".parse()?)?;
    /// host.run(|| { /* queue pairs reach those of other processes */ });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn host_over_udp(&self, addr: IpAddr) -> io::Result<Host> {
        if self.shared.is_manual() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a manual fabric has no hosts over UDP, whose frames arrive by themselves",
            ));
        }
        let addr = addr.to_canonical();
        check_addr(addr);
        self.host_of_carrier(addr, Carrier::bind(addr)?)
    }

    /// Adds a host over UDP at an address shared with other processes, by the keeper of the address.
    fn host_in_slot(&self, addr: IpAddr, command: &OsStr) -> io::Result<Host> {
        let addr = addr.to_canonical();
        let slot = PortSlot::get(addr, command)?;
        abi::close_in_children(slot.fds())?;
        self.host_of_carrier(addr, Carrier::of_slot(addr, slot)?)
    }

    /// The files in sysfs of the device at an address, as each process there has it.
    pub(crate) fn sysfs_files(addr: IpAddr, node: &str) -> Vec<abi::SysfsFile> {
        let interface = Interface::of(addr).ok().flatten();
        let interface = interface.map_or_else(String::new, |interface| interface.name);
        // Without a thread: the host of this call sends nothing.
        let fabric = Self::manual(0);
        let index = fabric.shared.lock().add_host_without_socket(addr);
        abi::sysfs_files(&Port::new(&fabric.shared, index), &interface, node)
    }

    fn host_of_carrier(&self, addr: IpAddr, carrier: Carrier) -> io::Result<Host> {
        let link = Arc::clone(carrier.link());
        let index = {
            let mut network = self.shared.lock();
            let index = network.add_host_over_udp(addr, carrier);
            if !addr.is_loopback() {
                network.hosts[index].manager.set_timing(Timing::LINUX);
            }
            index
        };
        self.shared.follow_interface(index);
        receiver::start(&self.shared, index, link)?;
        Ok(Host::new(Port::new(&self.shared, index)))
    }

    /// Drops all frames between two hosts, in both directions, until [`heal`](Self::heal).
    ///
    /// # Panics
    /// If a host is of another fabric.
    pub fn cut(&self, a: &Host, b: &Host) {
        self.set_cut(a, b, true);
    }

    /// Ends a [`cut`](Self::cut).
    ///
    /// # Panics
    /// If a host is of another fabric.
    pub fn heal(&self, a: &Host, b: &Host) {
        self.set_cut(a, b, false);
    }

    fn set_cut(&self, a: &Host, b: &Host, is_cut: bool) {
        let (a, b) = (a.index_in(&self.shared), b.index_in(&self.shared));
        let mut network = self.shared.lock();
        network.set_cut((a, b), is_cut);
        network.set_cut((b, a), is_cut);
    }

    /// Sets the link of a host's port down: frames are lost until [`link_up`](Self::link_up), and the host's programs
    /// get `IBV_EVENT_PORT_ERR`.
    ///
    /// # Panics
    /// If the host is of another fabric.
    pub fn link_down(&self, host: &Host) {
        self.set_link(host, false);
    }

    /// Ends a [`link_down`](Self::link_down).
    ///
    /// # Panics
    /// If the host is of another fabric.
    pub fn link_up(&self, host: &Host) {
        self.set_link(host, true);
    }

    fn set_link(&self, host: &Host, has_link: bool) {
        let host = host.index_in(&self.shared);
        self.shared
            .change(|network, _| network.set_link(host, has_link));
    }

    /// Kills a host. Peers get no message: the host is silent from now on. The host's programs see a failed device:
    /// requests are flushed, and each bound connection identifier has `RDMA_CM_EVENT_DEVICE_REMOVAL`. A new host may
    /// take the addresses over, as after a restart.
    ///
    /// # Panics
    /// If the host is of another fabric.
    pub fn kill(&self, host: &Host) {
        let host = host.index_in(&self.shared);
        self.shared.change(|network, now| network.kill(host, now));
    }

    /// Takes one step of a manual fabric: posted frames leave, or, if none are left, time advances to the next arrival
    /// or timer. Returns false if nothing is pending, or if the fabric is not manual.
    pub fn step(&self) -> bool {
        self.shared.is_manual() && self.shared.lock().step()
    }

    /// Advances the time of a manual fabric by `by`: frames and timers due until then are processed, each at its time. No effect
    /// on another fabric.
    ///
    /// With the same steps for the clock of tokio ([`advance`](https://docs.rs/tokio/latest/tokio/time/fn.advance.html)), time-outs
    /// of tasks and of devices elapse in their order, however long the threads of the test wait for a processor: see the guide.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// let fabric = softnic::Fabric::manual(7);
    /// fabric.advance(Duration::from_secs(60));
    /// assert_eq!(fabric.now(), Duration::from_secs(60));
    /// ```
    pub fn advance(&self, by: Duration) {
        self.shared.advance_manual(by);
    }

    /// Time since the creation of the fabric; virtual in a manual fabric.
    pub fn now(&self) -> Duration {
        self.shared.now(&self.shared.lock())
    }

    /// Numbers of frames so far.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().traffic
    }

    /// Objects created by programs on the hosts and not destroyed.
    pub fn books(&self) -> Books {
        Books::of(&self.shared.lock())
    }

    /// The recorded frames, in the order of their departure.
    ///
    /// # Errors
    /// - [`io::ErrorKind::InvalidInput`]: the fabric does not record; make it with [`record`](Self::record).
    pub fn recorded_frames(&self) -> io::Result<Vec<RecordedFrame>> {
        let network = self.shared.lock();
        let frames = network.recorded().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the fabric does not record: make it with `record`",
            )
        })?;
        Ok(frames.to_vec())
    }

    /// Writes the recorded frames to a pcap file for Wireshark.
    ///
    /// # Errors
    /// As for [`recorded_frames`](Self::recorded_frames) and [`std::fs::write`].
    pub fn write_pcap(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::write(path, recording::pcap(&self.recorded_frames()?))
    }
}

/// Checks that a host can have an address.
///
/// # Panics
/// For unspecified, multicast and broadcast addresses.
fn check_addr(addr: IpAddr) {
    let is_broadcast = addr == IpAddr::V4(Ipv4Addr::BROADCAST);
    assert!(
        !(addr.is_unspecified() || addr.is_multicast() || is_broadcast),
        "{addr} is no address of a host"
    );
}

/// The value in an environment variable; `None` without the variable.
///
/// # Panics
/// If the value is refused: a test runs with the requested value only.
fn chosen<T, E: fmt::Display>(
    variable: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<T> {
    let value = std::env::var_os(variable)?;
    Some(parsed(variable, &value.to_string_lossy(), parse))
}

fn parsed<T, E: fmt::Display>(
    variable: &str,
    value: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> T {
    match parse(value) {
        Ok(parsed) => parsed,
        #[expect(clippy::panic, reason = "the documented panic")]
        Err(error) => panic!("{variable}: {error}"),
    }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no seed: use a number, such as 7"))
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.shared.close();
        abi::free_abandoned();
        if std::thread::panicking() {
            let seed = self.seed;
            #[expect(clippy::print_stderr, reason = "the seed of a failed test")]
            {
                eprintln!("softnic: faults of seed {seed}; replay them with SOFTNIC_SEED={seed}");
                let network = self.shared.lock();
                let devices = network.hosts.iter().map(|host| &*host.adversary);
                let devices: Vec<_> = devices.collect();
                if let Some(used) = adversary::used_rules(&devices, network.adversary.seed) {
                    eprintln!("softnic: {used}");
                }
            }
            let _delivered: usize = self.report_count();
        } else if self.report_count() > 0 {
            let count = self.report_count();
            #[expect(clippy::panic, reason = "a test with a report fails")]
            {
                panic!(
                    "softnic's checks have found {count} faults: see the reports on standard error"
                );
            }
        } else if self.checks_books {
            let books = self.books();
            assert!(
                books.is_empty(),
                "objects exist that were not destroyed before their fabric was dropped: {books}; drop them first, or make \
                 the fabric with `keep_objects` for a library that keeps them until the process ends"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_has_a_seed_rules_and_a_card() {
        assert_eq!(parsed(SEED, "42", parse_seed), 42);
        let options = parsed(ADVERSARY, "7:keys", AdversaryOptions::parse);
        assert!(options.seed == 7 && options.rules.has(Rule::Keys));
        assert_eq!(parsed(CARD, "siw", str::parse::<Card>), Card::Siw);
        assert_eq!(chosen("SOFTNIC_NO_VARIABLE", parse_seed), None);
    }

    #[test]
    #[should_panic(expected = "SOFTNIC_SEED: `seven` is no seed: use a number")]
    fn seed_that_is_no_number_fails_the_test() {
        parsed(SEED, "seven", parse_seed);
    }

    #[test]
    #[should_panic(expected = "SOFTNIC_CARD: no card is named `connectx`: use one of connectx-3, ")]
    fn unknown_card_fails_the_test() {
        parsed(CARD, "connectx", str::parse::<Card>);
    }
}
