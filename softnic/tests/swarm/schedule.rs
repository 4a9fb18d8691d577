//! Schedules: the traffic and the faults chosen by a seed.

use std::{fmt, str::FromStr, time::Duration};

use fastrand::Rng;
use softnic::Faults;

/// Maximum number of connections, and of messages in each direction of a connection.
const MAX_CONNECTIONS: usize = 3;
const MAX_MESSAGES: usize = 6;

/// An interruption that ends after some time of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// The link between two hosts loses all frames.
    Cut(usize, usize),
    /// The port of a host has no link.
    LinkDown(usize),
    /// A host is killed. At the end, a new host starts at its address.
    Restart(usize),
}

/// A fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Probabilities in thousandths.
    Loss(u8),
    Duplication(u8),
    Corruption(u8),
    /// Maximum delay of a frame.
    Delay(Duration),
    /// An outage that starts after a number of received messages, and its duration.
    Outage(usize, Outage, Duration),
}

/// Traffic and faults chosen by a seed, without the faults and the traffic removed by the minimizer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) connections: usize,
    /// Number of messages in each direction of a connection.
    pub(crate) messages: usize,
    /// Number of each fault in the seed's list, and the fault.
    faults: Vec<(usize, Fault)>,
}

impl Schedule {
    /// The whole schedule of a seed, for a number of hosts.
    pub(crate) fn new(seed: u64, hosts: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (connections, messages) = (
            1 + rng.usize(..MAX_CONNECTIONS),
            1 + rng.usize(..MAX_MESSAGES),
        );
        let mut faults = Vec::new();
        if rng.bool() {
            faults.push(Fault::Loss(rng.u8(1..=20)));
        }
        if rng.bool() {
            faults.push(Fault::Duplication(rng.u8(1..=50)));
        }
        if rng.u8(..4) == 0 {
            faults.push(Fault::Corruption(rng.u8(1..=5)));
        }
        if rng.bool() {
            faults.push(Fault::Delay(Duration::from_micros(rng.u64(2..2000))));
        }
        let outages = if rng.bool() { rng.usize(1..4) } else { 0 };
        for _ in 0..outages {
            let start = rng.usize(..=2 * connections * messages);
            let host = rng.usize(..hosts);
            let outage = match rng.u8(..3) {
                0 => Outage::Cut(host, (host + rng.usize(1..hosts)) % hosts),
                1 => Outage::LinkDown(host),
                _ => Outage::Restart(host),
            };
            let duration = Duration::from_millis(1 << rng.u32(..13));
            faults.push(Fault::Outage(start, outage, duration));
        }
        Self {
            seed,
            connections,
            messages,
            faults: faults.into_iter().enumerate().collect(),
        }
    }

    /// The random numbers of the traffic.
    pub(crate) fn rng(&self) -> Rng {
        Rng::with_seed(self.seed ^ 0x5eed)
    }

    /// Whether all faults are below the transport's limits, so that no connection may fail.
    pub(crate) fn is_gentle(&self) -> bool {
        self.outages().next().is_none()
    }

    /// Outages with their start, in received messages, and their duration.
    pub(crate) fn outages(&self) -> impl Iterator<Item = (usize, Outage, Duration)> {
        self.faults.iter().filter_map(|(_, fault)| match *fault {
            Fault::Outage(start, outage, duration) => Some((start, outage, duration)),
            _ => None,
        })
    }

    /// Faults of frames.
    pub(crate) fn frame_faults(&self) -> Faults {
        let mut all = Faults::default();
        let share = |thousandths: u8| f64::from(thousandths) / 1000.0;
        for (_, fault) in &self.faults {
            match *fault {
                Fault::Loss(loss) => all.loss = share(loss),
                Fault::Duplication(duplication) => all.duplication = share(duplication),
                Fault::Corruption(corruption) => all.corruption = share(corruption),
                Fault::Delay(delay) => all.delay = Duration::from_micros(1)..delay,
                Fault::Outage(..) => {}
            }
        }
        all
    }

    /// Schedules with less traffic or a fault less, the smallest ones first.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let counts = [
            (self.connections / 2, self.messages),
            (self.connections - 1, self.messages),
            (self.connections, self.messages / 2),
            (self.connections, self.messages - 1),
        ];
        for (connections, messages) in counts {
            if connections > 0 && messages > 0 {
                all.push(Self {
                    connections,
                    messages,
                    ..self.clone()
                });
            }
        }
        for at in 0..self.faults.len() {
            let mut smaller = self.clone();
            smaller.faults.remove(at);
            all.push(smaller);
        }
        all
    }
}

/// `seed:connections x messages`, and the numbers of the remaining faults: `17:2x4+0+3`.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            connections,
            messages,
            faults,
        } = self;
        write!(f, "{seed}:{connections}x{messages}")?;
        faults
            .iter()
            .try_for_each(|(number, _)| write!(f, "+{number}"))
    }
}

/// A schedule for three hosts, from its [`Display`](fmt::Display).
impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no schedule, such as 17:2x4+0+3");
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
        let (seed, rest) = text.split_once(':').ok_or_else(wrong)?;
        let mut parts = rest.split('+');
        let counts = parts.next().and_then(|counts| counts.split_once('x'));
        let (connections, messages) = counts.ok_or_else(wrong)?;
        let numbers = parts.map(number).collect::<Result<Vec<_>, _>>()?;
        let mut schedule = Self::new(seed.parse().map_err(|_| wrong())?, crate::HOSTS);
        schedule.connections = number(connections)?;
        schedule.messages = number(messages)?;
        schedule
            .faults
            .retain(|(number, _)| numbers.contains(number));
        Ok(schedule)
    }
}

#[test]
fn schedule_survives_the_way_to_text_and_back() {
    for seed in 0..100 {
        let complete = Schedule::new(seed, crate::HOSTS);
        for schedule in complete.smaller().into_iter().chain([complete]) {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }
}
