//! Child processes that never outlive xtask, however it ends.
//!
//! Three nets, for three ways to go: a [`Supervised`] child is killed when it is dropped; a signal handler
//! ends every registered child before xtask exits; and the kernel kills a child whose parent was killed
//! without a chance to do either.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions};

/// What a signal has to clear away.
#[derive(Debug)]
struct Registry {
    children: Vec<Pid>,
    paths: Vec<PathBuf>,
    undo: Vec<Vec<&'static str>>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    children: Vec::new(),
    paths: Vec::new(),
    undo: Vec::new(),
});

/// A running child, killed when dropped.
#[derive(Debug)]
pub(crate) struct Supervised {
    child: Child,
    pid: Pid,
}

impl Supervised {
    /// Starts `command`; the descriptors in `inherited` keep their numbers in the child.
    ///
    /// The kernel kills the child when the *thread* that called this ends, so it must be one that lives on.
    pub(crate) fn spawn(command: &mut Command, inherited: &[&OwnedFd]) -> io::Result<Self> {
        let numbers: Vec<RawFd> = inherited.iter().map(|fd| fd.as_raw_fd()).collect();
        let parent = rustix::process::getpid();
        let in_child = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::other("xtask ended"));
            }
            for &number in &numbers {
                // SAFETY: `inherited` owns the descriptor while `spawn` runs, so the number is open in the
                // forked child; the borrow ends with this iteration; the child has one thread.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls and reads a vector that was filled
        // before; it takes no lock, and allocates only to report a failure that ends the child.
        unsafe { command.pre_exec(in_child) };
        let mut registry = registry();
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        registry.children.push(pid);
        Ok(Self { child, pid })
    }

    /// The child itself, for its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the end of the child.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait();
        self.leave();
        status
    }

    /// Waits for the end of the child, at most until `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = self.child.try_wait();
            if !matches!(status, Ok(None)) {
                self.leave();
                return status;
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// There is nothing left to end. If a signal has ended it, and waited for it, that is not told before xtask
    /// exits: see [`clear_away`].
    fn leave(&self) {
        registry().children.retain(|pid| *pid != self.pid);
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Killing fails only when the child is gone already, which is what is wanted.
        drop(self.child.kill());
        drop(self.wait());
    }
}

/// How the names of folders for unfinished work begin.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// A folder for unfinished work, removed when dropped and on a signal.
#[derive(Debug)]
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A new folder inside `parent`, which is made when it is missing.
    pub(crate) fn inside(parent: &Path) -> Result<Self> {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
        let dir = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        registry().paths.push(dir.path().to_owned());
        Ok(Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        registry().paths.retain(|path| path != self.0.path());
    }
}

/// A change to the system that is taken back when this is dropped and on a signal.
#[derive(Debug)]
pub(crate) struct Undo(Vec<&'static str>);

impl Undo {
    /// Runs `change`, and `back` at the end.
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

/// Ends every child and removes every scratch folder: for the signal handler, just before xtask exits.
///
/// The registry is locked as long as the result lives: until then no other thread starts anything, or reports
/// the violent end of a child as a failure of its own.
pub(crate) fn clear_away() -> impl Drop {
    let registry = registry();
    for &pid in &registry.children {
        let _already_gone = rustix::process::kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + Duration::from_millis(500);
    for &pid in &registry.children {
        // An error means that another thread has waited for the child already.
        while let Ok(None) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            if Instant::now() >= deadline {
                let _already_gone = rustix::process::kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    for words in registry.undo.iter().rev() {
        take_back(words);
    }
    for path in &registry.paths {
        remove_folder(path);
    }
    registry
}

/// Removes a folder, again if grandchildren that are about to end still write to it.
fn remove_folder(path: &Path) {
    for _ in 0..40 {
        if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs `command` to its end; an error unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Runs `command` to its end and tells how it went.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    let start = Supervised::spawn(command, &[]);
    let mut child = start.with_context(|| format!("cannot start `{}`", display(command)))?;
    Ok(child.wait()?)
}

/// Runs `command` to its end and returns what it printed; an error unless it succeeds.
pub(crate) fn output(command: &mut Command) -> Result<String> {
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

/// Where the program `name` is, if it is installed.
///
/// Looks into the system folders too, which are not on everyone's `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
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

/// The command as one would type it.
pub(crate) fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| OsString::from(word).to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Runs the command; when it fails, what it was to take back is gone already.
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
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// As a signal does: another thread locks the registry, and waits for the child itself.
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
            early.expect_err("it was told before the signal was done");
        });
    }

    #[test]
    fn nobody_is_told_of_the_end_while_a_signal_clears_away() {
        end_by_another(|child| child.wait().is_err());
        end_by_another(|child| child.wait_until(Instant::now()).is_err());
    }
}
