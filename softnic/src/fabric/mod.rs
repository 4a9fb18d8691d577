//! Hosts, and the network between them.
//!
//! A [`Fabric`] carries frames between the devices of its [`Host`]s. What it does to a frame is a pure function of the seed,
//! of the link and of the number of the frame on that link, so that a seed does the same to the same traffic.

#![forbid(unsafe_code)]

mod faults;
mod host;
mod network;
mod pcap;
mod port;
mod timekeeper;

use std::{io, net::IpAddr, ops::Range, path::Path, sync::Arc, time::Duration};

pub use faults::Faults;
pub(crate) use host::current;
pub use host::{Entered, Host};
pub(crate) use port::Port;
use port::Shared;

/// A network of hosts in this process.
///
/// Frames move while a program posts or polls, and by a thread of the fabric when they are delayed or a timer is due. A
/// [manual](Self::manual) fabric has no thread: nothing moves and no time passes but in [`step`](Self::step).
///
/// Devices that are open keep working after their fabric has been dropped, but for delays and timers.
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
}

impl Fabric {
    /// A network without faults.
    pub fn new() -> Self {
        Self::seeded(0)
    }

    /// A network whose faults are those of a seed; none until they are asked for.
    pub fn seeded(seed: u64) -> Self {
        let shared = Shared::new(seed, false);
        timekeeper::start(&shared);
        Self { shared }
    }

    /// A network in which nothing moves and no time passes but in [`step`](Self::step).
    pub fn manual(seed: u64) -> Self {
        Self {
            shared: Shared::new(seed, true),
        }
    }

    /// Sets the probability, 0 to 1, that a frame is lost.
    #[must_use]
    pub fn loss(self, probability: f64) -> Self {
        self.change_faults(|faults| faults.loss = probability)
    }

    /// Sets the probability, 0 to 1, that a frame arrives twice.
    #[must_use]
    pub fn duplication(self, probability: f64) -> Self {
        self.change_faults(|faults| faults.duplication = probability)
    }

    /// Sets the probability, 0 to 1, that a bit of a frame is flipped.
    #[must_use]
    pub fn corruption(self, probability: f64) -> Self {
        self.change_faults(|faults| faults.corruption = probability)
    }

    /// Sets the range of delays. Frames with different delays overtake each other.
    #[must_use]
    pub fn delay(self, range: Range<Duration>) -> Self {
        self.change_faults(|faults| faults.delay = range)
    }

    /// Records all frames, as they are sent, for [`write_pcap`](Self::write_pcap). Memory grows with the traffic.
    #[must_use]
    pub fn record(self) -> Self {
        self.shared.lock().record();
        self
    }

    fn change_faults(self, change: impl FnOnce(&mut Faults)) -> Self {
        change(&mut self.shared.lock().faults);
        self
    }

    /// Sets the faults of frames that are sent from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// Adds a host with one device, one port and one address, named `softnic0` and so on.
    ///
    /// # Panics
    /// If another host has the address.
    pub fn host(&self, addr: IpAddr) -> Host {
        let index = self.shared.lock().add_host(addr);
        Host::new(Port::new(&self.shared, index))
    }

    /// Drops all frames between two hosts, in both directions, until [`heal`](Self::heal).
    pub fn cut(&self, a: &Host, b: &Host) {
        self.set_cut(a, b, true);
    }

    /// Ends a [`cut`](Self::cut).
    pub fn heal(&self, a: &Host, b: &Host) {
        self.set_cut(a, b, false);
    }

    fn set_cut(&self, a: &Host, b: &Host, is_cut: bool) {
        let mut network = self.shared.lock();
        network.set_cut((a.index(), b.index()), is_cut);
        network.set_cut((b.index(), a.index()), is_cut);
    }

    /// Lets the next thing happen in a manual fabric: frames that were posted leave, and then time passes to the next
    /// arrival or timer. False if nothing is left to happen, and in a fabric that is not manual.
    pub fn step(&self) -> bool {
        self.shared.is_manual() && self.shared.lock().step()
    }

    /// Time since the fabric was made; virtual in a manual fabric.
    pub fn now(&self) -> Duration {
        self.shared.now(&self.shared.lock())
    }

    /// Writes the recorded frames to a file that Wireshark reads.
    ///
    /// # Errors
    /// - [`io::ErrorKind::InvalidInput`]: the fabric does not record; make it with [`record`](Self::record).
    /// - as for [`std::fs::write`].
    pub fn write_pcap(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let network = self.shared.lock();
        let bytes = network.recorded().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the fabric does not record: make it with `record`",
            )
        })?;
        std::fs::write(path, bytes)
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.shared.close();
    }
}
