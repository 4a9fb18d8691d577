//! Processes started by a child process, directly or not. A test program of cargo is one: it outlives cargo's end by a signal.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, Signal};

/// Processes, each with the time of its start, by which the number of another one is distinguished.
#[derive(Debug)]
pub(crate) struct Descendants(Vec<(Pid, u64)>);

impl Descendants {
    /// Finds the descendants of `roots`.
    pub(crate) fn of(roots: &[Pid]) -> Self {
        let mut children: HashMap<Pid, Vec<(Pid, u64)>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = number.and_then(Pid::from_raw)
                && let Some((parent, start)) = parent_and_start(pid)
            {
                children.entry(parent).or_default().push((pid, start));
            }
        }
        let mut found = Vec::new();
        let mut parents = roots.to_vec();
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).into_iter().flatten() {
                parents.push(child.0);
                found.push(child);
            }
        }
        Self(found)
    }

    /// Sends the signal to each process that has not ended.
    pub(crate) fn send(&self, signal: Signal) {
        for &(pid, start) in &self.0 {
            if parent_and_start(pid).is_some_and(|(_, other)| other == start) {
                let _already_gone = rustix::process::kill_process(pid, signal);
            }
        }
    }
}

/// Parent of a process, and its start in clock ticks since the boot; none if it has ended. See `proc_pid_stat(5)`.
fn parent_and_start(pid: Pid) -> Option<(Pid, u64)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may have any characters.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let parent = Pid::from_raw(fields.nth(1)?.parse().ok()?)?;
    // The 22nd field; the parent was the 4th.
    Some((parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn descendants_of_a_killed_process_are_found_before_and_end_by_the_signal() {
        // The pipe is at its end once no process has it open.
        let script = "sh -c 'sleep 60 & echo; wait' & wait";
        let mut command = Command::new("sh");
        let mut child = command
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let found = Descendants::of(&[Pid::from_child(&child)]);
        assert_eq!(found.0.len(), 2, "{found:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        found.send(Signal::KILL);
        assert_eq!(output.read_to_string(&mut line).unwrap(), 0);
    }

    #[test]
    fn process_with_the_number_of_another_one_gets_no_signal() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (_, start) = parent_and_start(pid).unwrap();
        Descendants(vec![(pid, start - 1)]).send(Signal::KILL);
        assert!(child.try_wait().unwrap().is_none());
        Descendants(vec![(pid, start)]).send(Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }
}
