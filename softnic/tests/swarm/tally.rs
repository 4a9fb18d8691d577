//! Counts of schedules and their events.

use std::{fmt, ops::AddAssign};

use softnic::Traffic;

/// Counts of the events of schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) schedules: u64,
    /// Number of sent frames.
    pub(crate) frames: u64,
    /// Number of lost, duplicated and corrupted frames.
    pub(crate) frame_faults: u64,
    pub(crate) outages: u64,
    /// Number of connections that ended with an error, as the schedule allows.
    pub(crate) failed_connections: u64,
    pub(crate) messages: u64,
    pub(crate) violations: u64,
}

impl Tally {
    /// Adds the frames of a fabric.
    pub(crate) fn count(&mut self, traffic: Traffic) {
        self.frames += traffic.frames;
        self.frame_faults += traffic.lost + traffic.duplicated + traffic.corrupted;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.frames += other.frames;
        self.frame_faults += other.frame_faults;
        self.outages += other.outages;
        self.failed_connections += other.failed_connections;
        self.messages += other.messages;
        self.violations += other.violations;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} schedules, {} messages, {} frames, {} frame faults, {} outages, {} failed connections, {} violations",
            self.schedules,
            self.messages,
            self.frames,
            self.frame_faults,
            self.outages,
            self.failed_connections,
            self.violations
        )
    }
}
