//! Child processes with a lifetime bounded by this process's.
//!
//! Three mechanisms: dropping a [`Supervised`] kills the child; the signal handler kills every registered child before
//! this process exits; and the parent-death signal kills the child if this process is killed by SIGKILL.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::descendants::Descendants;

/// Cleanup work for the signal handler.
#[derive(Debug)]
struct Registry {
    children: Vec<Pid>,
    /// Children whose descendants are ended with the child.
    trees: Vec<Pid>,
    paths: Vec<PathBuf>,
    undo: Vec<Vec<&'static str>>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    children: Vec::new(),
    trees: Vec::new(),
    paths: Vec::new(),
    undo: Vec::new(),
});

/// A running child, killed when dropped.
#[derive(Debug)]
pub struct Supervised {
    child: Child,
    pid: Pid,
}

impl Supervised {
    /// Starts `command`. The descriptors in `inherited` keep their numbers in the child.
    ///
    /// The kernel kills the child when the calling *thread* exits, so the thread must outlive the child.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub fn spawn(command: &mut Command, inherited: &[&OwnedFd]) -> io::Result<Self> {
        let numbers: Vec<RawFd> = inherited.iter().map(|fd| fd.as_raw_fd()).collect();
        let parent = rustix::process::getpid();
        let in_child = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::other("the parent process ended"));
            }
            for &number in &numbers {
                // SAFETY: `inherited` owns the descriptor while `spawn` runs, so the number is open in the forked
                // child; the borrow ends with this iteration; the child has one thread.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls and reads a vector filled before the fork; the
        // closure takes no lock, and allocates only to report a failure, after which the child exits.
        unsafe { command.pre_exec(in_child) };
        let mut registry = registry();
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        registry.children.push(pid);
        Ok(Self { child, pid })
    }

    /// Has the signal handler end the processes started by the child as well, such as cargo's test programs. Not for a
    /// package manager, whose programs must complete their changes.
    pub fn end_descendants_at_exit(&self) {
        registry().trees.push(self.pid);
    }

    /// The child process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Blocks until the child exits.
    ///
    /// # Errors
    ///
    /// Another thread, such as the signal handler, has waited for the child.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait();
        self.leave();
        status
    }

    /// Blocks until the child exits or `deadline` passes (`None`). Polls every 5 ms.
    ///
    /// # Errors
    ///
    /// Another thread, such as the signal handler, has waited for the child.
    pub fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = self.child.try_wait();
            if !matches!(status, Ok(None)) {
                self.leave();
                return status;
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Unregisters the child. Blocks while [`clear_away`] holds the registry, so a child killed by the signal handler
    /// is never reported as a failure before this process exits.
    fn leave(&self) {
        let mut registry = registry();
        registry.children.retain(|pid| *pid != self.pid);
        registry.trees.retain(|pid| *pid != self.pid);
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Fails only if the child has exited already.
        drop(self.child.kill());
        drop(self.wait());
    }
}

/// Has the signal handler remove a folder.
pub(crate) fn clear_at_exit(folder: &Path) {
    registry().paths.push(folder.to_owned());
}

/// Takes back [`clear_at_exit`].
pub(crate) fn keep_at_exit(folder: &Path) {
    registry().paths.retain(|path| path != folder);
}

/// A change to the system, undone on drop and on a signal.
#[derive(Debug)]
pub(crate) struct Undo(Vec<&'static str>);

impl Undo {
    /// Runs `change`, and registers `back` as its undo command.
    pub(crate) fn after(change: &[&str], back: &[&'static str]) -> Result<Self> {
        output(&mut command(change))?;
        registry().undo.push(back.to_vec());
        Ok(Self(back.to_vec()))
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut registry = registry();
        if let Some(last) = registry.undo.iter().rposition(|words| *words == self.0) {
            take_back(&registry.undo.remove(last));
        }
    }
}

/// Kills every child, and the descendants of some, runs the undo commands and removes the scratch folders: for the signal handler, before this
/// process exits.
///
/// The returned guard keeps the registry locked, so that no other thread starts a child or reports the death of a
/// killed child as a failure. Blocks for 500 ms at most before SIGKILL follows SIGTERM.
pub(crate) fn clear_away() -> impl Drop {
    let registry = registry();
    let descendants = Descendants::of(&registry.trees);
    descendants.send(Signal::TERM);
    for &pid in &registry.children {
        let _already_gone = rustix::process::kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + Duration::from_millis(500);
    for &pid in &registry.children {
        // An error: another thread has reaped the child.
        while let Ok(None) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            if Instant::now() >= deadline {
                let _already_gone = rustix::process::kill_process(pid, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    descendants.send(Signal::KILL);
    for words in registry.undo.iter().rev() {
        take_back(words);
    }
    for path in &registry.paths {
        remove_folder(path, || {
            eprintln!("Removing unfinished files in {}", path.display())
        });
    }
    registry
}

/// Time after which the removal of a folder, such as the 2 GB of a kernel's build, is reported.
const SLOW_REMOVAL: Duration = Duration::from_secs(1);

/// Removes a folder, and calls `notify` if this takes longer than [`SLOW_REMOVAL`]. Retries for 2 s, because exiting
/// grandchildren may still write to the folder.
fn remove_folder(path: &Path, notify: impl FnOnce() + Send) {
    thread::scope(|scope| {
        // Dropped with this closure, which ends the other thread.
        let (_removing, is_removed) = mpsc::channel::<()>();
        scope.spawn(move || {
            if is_removed.recv_timeout(SLOW_REMOVAL) == Err(RecvTimeoutError::Timeout) {
                notify();
            }
        });
        for _ in 0..40 {
            if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    });
}

/// Runs `command` and waits. An error unless the exit status is success.
///
/// # Errors
///
/// The program cannot be started, or its exit status is not success.
pub fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Runs `command`, waits, and returns the exit status.
///
/// # Errors
///
/// The program cannot be started.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    let start = Supervised::spawn(command, &[]);
    let mut child = start.with_context(|| format!("cannot start `{}`", display(command)))?;
    Ok(child.wait()?)
}

/// Runs `command`, waits, and returns standard output. An error unless the exit status is success.
///
/// # Errors
///
/// The program cannot be started, its exit status is not success, or it printed no text.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", display(command)))?;
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    if !status.success() {
        let text = String::from_utf8_lossy(&stderr);
        bail!(
            "`{}` failed ({status})\n{}",
            display(command),
            text.trim_end()
        );
    }
    String::from_utf8(stdout).with_context(|| format!("`{}` printed no text", display(command)))
}

/// Path of the program `name`, if installed.
///
/// Searches `PATH` and the system folders, because an ordinary user's `PATH` may lack `/sbin`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if !folders.is_empty() && !path.is_empty() {
        folders.extend(system);
    }
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// A command of the program `name`, wherever [`find_program`] finds it.
pub(crate) fn system_command(name: &str) -> Command {
    Command::new(find_program(name).unwrap_or_else(|| name.into()))
}

/// The command line, without quoting.
pub fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| OsString::from(word).to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}

fn command(words: &[&str]) -> Command {
    let mut command = system_command(words[0]);
    command.args(&words[1..]);
    command
}

/// Runs an undo command. A failure means the change is already undone, and is ignored.
fn take_back(words: &[&str]) {
    drop(
        command(words)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status(),
    );
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Acts as the signal handler: locks the registry, kills the child and reaps it from another thread.
    fn end_by_another(end: impl FnOnce(&mut Supervised) -> bool + Send) {
        let mut command = Command::new("sleep");
        let mut child = Supervised::spawn(command.arg("60"), &[]).unwrap();
        let pid = child.pid;
        let (ended, ends) = mpsc::channel();
        thread::scope(|scope| {
            let registry = registry();
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
            rustix::process::waitpid(Some(pid), WaitOptions::empty()).unwrap();
            let child = &mut child;
            let waiter = scope.spawn(move || {
                let is_error = end(child);
                ended.send(()).unwrap();
                is_error
            });
            let early = ends.recv_timeout(Duration::from_millis(200));
            drop(registry);
            assert!(waiter.join().unwrap(), "another has waited for it");
            early.expect_err("wait returned while the registry was locked");
        });
    }

    #[test]
    fn wait_during_signal_cleanup_blocks_until_the_registry_is_unlocked() {
        end_by_another(|child| child.wait().is_err());
        end_by_another(|child| child.wait_until(Instant::now()).is_err());
    }

    #[test]
    fn slow_removal_is_reported() {
        let reported = |path: &Path| {
            let reported = AtomicBool::new(false);
            remove_folder(path, || reported.store(true, Ordering::Relaxed));
            reported.into_inner()
        };
        let folder = tempfile::tempdir().unwrap();
        // No folder, so each attempt fails.
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(reported(file.path()));
        assert!(!reported(folder.path()));
        assert!(!folder.path().exists());
    }

    /// Of an ordinary user, whose `PATH` lacks the folders of the system's programs.
    #[test]
    fn system_programs_are_found_outside_of_path() {
        let program = system_command("sh");
        assert!(Path::new(program.get_program()).is_absolute());
        let missing = system_command("no-such-program");
        assert_eq!(missing.get_program(), "no-such-program");
    }
}
