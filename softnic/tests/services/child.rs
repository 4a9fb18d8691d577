//! A test in a process of its own, with the limits of a service.

use std::{
    env,
    io::{self, Write as _},
    process::Command,
    thread,
    time::Duration,
};

use rustix::{
    process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities, set_thread_uid},
};

/// Set in the child process.
const CHILD: &str = "SERVICE_CHILD";

/// Maximum number of descriptors of a service.
const DESCRIPTORS: u64 = 256;

/// A user without other processes.
const USER: u32 = 61_048;

fn limit(resource: Resource, value: u64) {
    let maximum = getrlimit(resource).maximum;
    let current = Some(maximum.map_or(value, |maximum| maximum.min(value)));
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

/// Runs a test, by its whole name, in a child process that may lock `locked` bytes of memory and open 256 descriptors.
pub(crate) fn with_limits(name: &str, locked: u64, test: impl FnOnce()) {
    if env::var_os(CHILD).is_none() {
        let mut child = Command::new(env::current_exe().unwrap());
        let child = child.args(["--exact", name, "--nocapture", "--test-threads=1"]);
        let output = child.env(CHILD, "1").output().unwrap();
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let passed = output.status.success() && stdout.contains("1 passed");
        assert!(passed, "{stdout}{stderr}");
        let reports = stdout.lines().filter(|line| line.contains(" | "));
        reports.for_each(print);
        return;
    }
    limit(Resource::Nofile, DESCRIPTORS);
    limit(Resource::Memlock, locked);
    // Root is exempt from the limit of processes, and by a capability from that of locked memory. Later threads inherit
    // both from this one.
    if geteuid().is_root() {
        set_thread_uid(Uid::from_raw(USER)).unwrap();
    }
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    test();
}

fn print(line: &str) {
    drop(writeln!(io::stdout(), "{line}"));
}

/// Prints the longest time that an honest client needed, with `MEASURE=1`.
pub(crate) fn report(attack: &str, longest: Option<Duration>) {
    if env::var_os("MEASURE").is_some() {
        print(&format!("{attack} | {longest:?}"));
    }
}

/// No further thread of the process can be started.
pub(crate) fn forbid_threads() {
    limit(Resource::Nproc, 0);
    let started = thread::Builder::new().spawn(|| ());
    assert!(started.is_err(), "the limit of processes has no effect");
}
