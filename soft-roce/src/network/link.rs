//! Links between guests: cut, lossy and slow ones.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};

use crate::event::Host;

/// Condition of a link between two hosts, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCondition {
    /// Whether frames pass at all.
    pub is_up: bool,
    /// Probability of the loss of a frame, from 0 to 1.
    pub loss: f64,
    /// Delay of each frame.
    pub delay: Duration,
    /// Probability of the duplication of a frame, from 0 to 1.
    pub duplication: f64,
    /// Probability of the corruption of a frame other than ARP's, in one bit, from 0 to 1.
    pub corruption: f64,
}

impl Default for LinkCondition {
    /// Up, without faults or delay.
    fn default() -> Self {
        Self {
            is_up: true,
            loss: 0.0,
            delay: Duration::ZERO,
            duplication: 0.0,
            corruption: 0.0,
        }
    }
}

impl LinkCondition {
    fn apply(&mut self, change: LinkChange) {
        match change {
            LinkChange::Up => self.is_up = true,
            LinkChange::Down => self.is_up = false,
            LinkChange::Loss(loss) => self.loss = loss,
            LinkChange::Delay(delay) => self.delay = delay,
            LinkChange::Duplication(duplication) => self.duplication = duplication,
            LinkChange::Corruption(corruption) => self.corruption = corruption,
        }
    }
}

/// A change of a link. The text forms are `up`, `down`, `loss=0.1`, `delay=20ms` (or `s`), `duplication=0.1` and
/// `corruption=0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkChange {
    /// Frames pass again; the other conditions are kept.
    Up,
    /// No frame passes.
    Down,
    /// Probability of the loss of a frame, from 0 to 1.
    Loss(f64),
    /// Delay of each frame.
    Delay(Duration),
    /// Probability of the duplication of a frame, from 0 to 1.
    Duplication(f64),
    /// Probability of the corruption of a frame other than ARP's, in one bit, from 0 to 1.
    Corruption(f64),
}

impl FromStr for LinkChange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=') {
            None if text == "up" => Ok(Self::Up),
            None if text == "down" => Ok(Self::Down),
            Some(("loss", value)) => probability(value).map(Self::Loss),
            Some(("delay", value)) => delay(value).map(Self::Delay),
            Some(("duplication", value)) => probability(value).map(Self::Duplication),
            Some(("corruption", value)) => probability(value).map(Self::Corruption),
            _ => bail!(
                "`{text}` is no change of a link: use up, down, loss=0.1, delay=20ms, duplication=0.1 or corruption=0.1"
            ),
        }
    }
}

fn probability(text: &str) -> Result<f64> {
    let probability: f64 = text
        .parse()
        .with_context(|| format!("`{text}` is no number"))?;
    ensure!(
        (0.0..=1.0).contains(&probability),
        "a probability is from 0 to 1, not {text}"
    );
    Ok(probability)
}

/// Longest delay: queues hold delayed frames.
const MAX_DELAY: Duration = Duration::from_secs(60);

fn delay(text: &str) -> Result<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or_default(), 1.0),
    };
    let number: f64 = number
        .parse()
        .with_context(|| format!("`{text}` is no delay: use 20ms or 1.5s"))?;
    let delay = Duration::try_from_secs_f64(number * unit)?;
    ensure!(
        delay <= MAX_DELAY,
        "a delay is at most {} s, not {text}",
        MAX_DELAY.as_secs()
    );
    Ok(delay)
}

impl fmt::Display for LinkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("up"),
            Self::Down => f.write_str("down"),
            Self::Loss(loss) => write!(f, "loss={loss}"),
            Self::Delay(delay) => write!(f, "delay={}s", delay.as_secs_f64()),
            Self::Duplication(duplication) => write!(f, "duplication={duplication}"),
            Self::Corruption(corruption) => write!(f, "corruption={corruption}"),
        }
    }
}

/// Changes of one link, or of all. The text forms are `a-b:down`, `a-c:loss=0.1,delay=20ms` and `all:delay=5ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkOption {
    /// The link's hosts; none for all links.
    pub hosts: Option<(Host, Host)>,
    /// Changes, in this order.
    pub changes: Vec<LinkChange>,
}

impl FromStr for LinkOption {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (hosts, changes) = text
            .split_once(':')
            .with_context(|| format!("`{text}` has no `:`, as in a-b:down or all:loss=0.1"))?;
        let hosts = match hosts.split_once('-') {
            Some((one, other)) => Some((one.parse()?, other.parse()?)),
            None if hosts == "all" => None,
            None => bail!("`{hosts}` names no link: use two hosts, as in a-b, or `all`"),
        };
        let changes = changes.split(',').map(str::parse).collect::<Result<_>>()?;
        Ok(Self { hosts, changes })
    }
}

/// The links of a run in progress. Clones share the state.
#[derive(Clone, Debug)]
pub struct Links {
    hosts: usize,
    /// One condition for each ordered pair of hosts; both directions of a link are equal.
    conditions: Arc<RwLock<Vec<LinkCondition>>>,
}

impl Links {
    /// Links between `hosts` hosts, all up.
    pub(crate) fn new(hosts: usize) -> Self {
        let conditions = vec![LinkCondition::default(); hosts * hosts];
        Self {
            hosts,
            conditions: Arc::new(RwLock::new(conditions)),
        }
    }

    /// Changes the link between two hosts. Frames sent from now on are subject to the change.
    ///
    /// # Errors
    ///
    /// A host is not part of the run, or both are the same.
    pub fn change(&self, one: Host, other: Host, change: LinkChange) -> Result<()> {
        let directions = [self.direction(one, other)?, self.direction(other, one)?];
        let mut conditions = self
            .conditions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for direction in directions {
            conditions[direction].apply(change);
        }
        Ok(())
    }

    /// Cuts the link between two hosts: no frame passes until [`Links::restore`].
    ///
    /// # Errors
    ///
    /// As for [`Links::change`].
    pub fn cut(&self, one: Host, other: Host) -> Result<()> {
        self.change(one, other, LinkChange::Down)
    }

    /// Restores a cut link.
    ///
    /// # Errors
    ///
    /// As for [`Links::change`].
    pub fn restore(&self, one: Host, other: Host) -> Result<()> {
        self.change(one, other, LinkChange::Up)
    }

    /// The condition of the link between two hosts.
    ///
    /// # Errors
    ///
    /// As for [`Links::change`].
    pub fn condition(&self, one: Host, other: Host) -> Result<LinkCondition> {
        let direction = self.direction(one, other)?;
        Ok(self.between_ports(direction))
    }

    /// Applies an option of the command line.
    pub(crate) fn apply(&self, option: &LinkOption) -> Result<()> {
        let links: Vec<(Host, Host)> = match option.hosts {
            Some(hosts) => vec![hosts],
            None => {
                let hosts = (0..self.hosts).filter_map(Host::at);
                let pairs = hosts
                    .clone()
                    .flat_map(|one| hosts.clone().map(move |other| (one, other)));
                pairs.filter(|(one, other)| one < other).collect()
            }
        };
        for (one, other) in links {
            for change in &option.changes {
                self.change(one, other, *change)?;
            }
        }
        Ok(())
    }

    /// The condition for a frame from port `from` of the switch to port `to`.
    pub(crate) fn between(&self, from: usize, to: usize) -> LinkCondition {
        self.between_ports(from * self.hosts + to)
    }

    fn between_ports(&self, direction: usize) -> LinkCondition {
        let conditions = self
            .conditions
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        conditions.get(direction).copied().unwrap_or_default()
    }

    fn direction(&self, one: Host, other: Host) -> Result<usize> {
        for host in [one, other] {
            ensure!(
                host.index() < self.hosts,
                "the run has no host {host}: it has {} hosts, from a",
                self.hosts
            );
        }
        ensure!(one != other, "a link has two hosts: {one}-{other} has one");
        Ok(one.index() * self.hosts + other.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: &str = "c";

    fn host(name: &str) -> Host {
        name.parse().unwrap()
    }

    #[test]
    fn change_of_a_link_reads_back_as_its_text() {
        for text in [
            "up",
            "down",
            "loss=0.25",
            "delay=0.02s",
            "duplication=1",
            "corruption=0.5",
        ] {
            let change: LinkChange = text.parse().unwrap();
            assert_eq!(change.to_string(), text);
        }
        let delay: LinkChange = "delay=20ms".parse().unwrap();
        assert_eq!(delay, LinkChange::Delay(Duration::from_millis(20)));
    }

    #[test]
    fn change_of_a_link_with_wrong_text_is_refused() {
        for text in [
            "",
            "cut",
            "loss",
            "loss=2",
            "loss=x",
            "loss=NaN",
            "duplication=2",
            "corruption=-1",
            "delay=5",
            "delay=-1s",
            "delay=1h",
            "delay=61s",
        ] {
            assert!(text.parse::<LinkChange>().is_err(), "{text}");
        }
        for text in ["a-b", "a:down", "a-b:", "a-1:down", "all:cut", "-:down"] {
            assert!(text.parse::<LinkOption>().is_err(), "{text}");
        }
    }

    #[test]
    fn option_for_all_links_changes_each_in_both_directions() {
        let links = Links::new(3);
        links.apply(&"all:loss=0.5".parse().unwrap()).unwrap();
        links.apply(&"c-a:down,delay=1s".parse().unwrap()).unwrap();
        let expected = |is_up, delay| LinkCondition {
            is_up,
            loss: 0.5,
            delay,
            ..LinkCondition::default()
        };
        let cut = expected(false, Duration::from_secs(1));
        assert_eq!(links.between(0, 2), cut);
        assert_eq!(links.between(2, 0), cut);
        assert_eq!(links.condition(Host::A, host(C)).unwrap(), cut);
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            assert_eq!(links.between(from, to), expected(true, Duration::ZERO));
        }
        links.restore(Host::A, host(C)).unwrap();
        assert!(links.between(0, 2).is_up);
    }

    #[test]
    fn link_without_two_hosts_of_the_run_is_refused() {
        let links = Links::new(2);
        let error = links.cut(Host::A, host(C)).unwrap_err().to_string();
        assert!(error.contains("no host c"), "{error}");
        assert!(links.cut(Host::A, Host::A).is_err());
    }
}
