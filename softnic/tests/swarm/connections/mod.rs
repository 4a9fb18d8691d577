//! Connections of `cm` between hosts, driven by one thread in virtual time.

mod end;
mod node;

use std::time::Duration;

use softnic::Fabric;

use self::{
    end::{Outcome, Record},
    node::Node,
};
use crate::{
    HOSTS,
    outages::{Change, Outages, Restart},
    schedule::Schedule,
    swarm::Violation,
    tally::Tally,
};

/// Maximum number of steps of a schedule, far beyond all retries.
const MAX_STEPS: u32 = 1_000_000;

/// Maximum duration of a schedule in virtual time.
const MAX_TIME: Duration = Duration::from_secs(3600);

struct World<'a> {
    schedule: &'a Schedule,
    nodes: Vec<Node>,
    outages: Outages,
    records: Vec<Record>,
    /// The fabric. The last field, so dropped last.
    fabric: Fabric,
}

impl<'a> World<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let fabric = Fabric::manual(schedule.seed).keep_objects();
        fabric.set_faults(schedule.frame_faults());
        let mut rng = schedule.rng();
        let records = (0..schedule.connections).map(|_| {
            let from = rng.usize(..HOSTS);
            let start = rng.usize(..=schedule.messages);
            Record::new([from, (from + rng.usize(1..HOSTS)) % HOSTS], start)
        });
        Self {
            nodes: (0..HOSTS).map(|at| Node::start(&fabric, at)).collect(),
            records: records.collect(),
            outages: Outages::new(schedule),
            schedule,
            fabric,
        }
    }

    /// Number of received messages.
    fn received(&self) -> usize {
        self.records.iter().flat_map(|record| record.received).sum()
    }

    /// Starts the connections that are due, or the first one.
    fn connect(&mut self, is_idle: bool) -> bool {
        let received = self.received();
        let mut has_started = false;
        for (number, record) in self.records.iter_mut().enumerate() {
            let is_due = record.start <= received || (is_idle && !has_started);
            if record.has_started || !is_due {
                continue;
            }
            record.has_started = true;
            has_started = true;
            let [from, to] = record.hosts;
            self.nodes[from].connect(number, to, record);
        }
        has_started
    }

    fn change(&mut self, change: Change) {
        let nodes = &mut self.nodes;
        match change.apply(&self.fabric, |at| Some(&nodes[at].host)) {
            Some(Restart::Kill(at)) => {
                self.fabric.kill(&nodes[at].host);
                nodes[at].stop(&mut self.records);
            }
            Some(Restart::Start(at)) if nodes[at].is_stopped() => {
                nodes[at] = Node::start(&self.fabric, at);
            }
            _ => {}
        }
    }

    /// Handles events and completions of all hosts.
    fn drive(&mut self) -> Result<(), Violation> {
        for node in &mut self.nodes {
            node.drive(self.schedule, &mut self.records)?;
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.records.iter().all(|record| record.has_started)
            && self.nodes.iter().all(|node| node.count() == 0)
    }

    fn run(&mut self) -> Result<(), Violation> {
        for _ in 0..MAX_STEPS {
            self.drive()?;
            let changes = self.outages.due_changes(self.received(), self.fabric.now());
            let has_changed = !changes.is_empty();
            changes.into_iter().for_each(|change| self.change(change));
            let has_started = self.connect(false);
            if self.has_ended() {
                return Ok(());
            }
            if self.fabric.now() > MAX_TIME {
                break;
            }
            if self.fabric.step() || has_changed || has_started {
                continue;
            }
            self.drive()?;
            // Nothing is left to happen on its own.
            if let Some(change) = self.outages.end_first() {
                self.change(change);
            } else if !self.connect(true) && !self.has_ended() {
                self.drop_orphans()?;
            }
        }
        Err(format!(
            "a hang at {:?}: {:#?}",
            self.fabric.now(),
            self.records
        ))
    }

    /// Drops the ends whose peers have ended without a message that arrived, which only outages explain.
    fn drop_orphans(&mut self) -> Result<(), Violation> {
        let mut count = 0;
        for node in &mut self.nodes {
            count += node.drop_orphans(&mut self.records);
        }
        if count == 0 || self.schedule.is_gentle() {
            return Err(format!(
                "a hang at {:?}: {:#?}",
                self.fabric.now(),
                self.records
            ));
        }
        Ok(())
    }
}

pub(crate) fn run(schedule: &Schedule) -> Result<Tally, Violation> {
    let mut world = World::new(schedule);
    world.run()?;
    for record in &world.records {
        record.check(schedule)?;
    }
    let failed = world
        .records
        .iter()
        .filter(|record| record.outcomes[0] != Some(Outcome::Complete));
    let mut tally = Tally {
        schedules: 1,
        outages: world.outages.begun,
        failed_connections: failed.count() as u64,
        messages: world.received() as u64,
        ..Tally::default()
    };
    tally.count(world.fabric.traffic());
    world.nodes.clear();
    let books = world.fabric.books();
    if !books.is_empty() {
        return Err(format!("objects are left: {books}"));
    }
    Ok(tally)
}

#[test]
fn connections_of_a_seed_take_the_same_course() {
    for seed in 0..20 {
        let schedule = Schedule::new(seed, HOSTS);
        assert_eq!(
            run(&schedule).unwrap(),
            run(&schedule).unwrap(),
            "seed {seed}"
        );
    }
}
