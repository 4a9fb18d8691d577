//! `cargo soft-roce link`: changes of the links of a run in progress.
//!
//! A run with a switch listens to a socket in the user's cache. A request and its answer are a line each:
//! `identify`: the process's id, the workspace and a description of the run, with tabs between; `link a b CHANGE`: `ok`, or `error` and the reason.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::event::Host;
use crate::network::link::{LinkChange, Links};
use crate::scratch::Scratch;
use crate::workspace::Workspace;

/// Name of the socket in its scratch folder.
const SOCKET: &str = "control";

/// Maximum length of a request, and of an answer.
const MAX_LINE: u64 = 4096;

/// Timeout for the other end of a connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The socket of a run, until dropped.
#[derive(Debug)]
pub(crate) struct Control {
    folder: Scratch,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Accepts requests for `links`, as the run with `description`, one line of text.
    pub(crate) fn listen(workspace: &Workspace, links: Links, description: &str) -> Result<Self> {
        let folder = Scratch::inside(&runs(workspace))?;
        let path = folder.path().join(SOCKET);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen to {}", path.display()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let root = workspace.root().display();
        let identity = format!("{}\t{root}\t{description}", std::process::id());
        let ended = Arc::clone(&is_over);
        let serve = move || {
            for connection in listener.incoming() {
                if ended.load(Ordering::Acquire) {
                    break;
                }
                // A failed connection concerns its client only.
                drop(connection.and_then(|connection| answer(&connection, &identity, &links)));
            }
        };
        let thread = thread::Builder::new().name("control".into()).spawn(serve)?;
        Ok(Self {
            folder,
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Unblocks the thread.
        let woken = UnixStream::connect(self.folder.path().join(SOCKET)).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            drop(thread.join());
        }
    }
}

fn answer(connection: &UnixStream, identity: &str, links: &Links) -> std::io::Result<()> {
    connection.set_read_timeout(Some(ANSWER_LIMIT))?;
    connection.set_write_timeout(Some(ANSWER_LIMIT))?;
    let mut request = String::new();
    BufReader::new(connection)
        .take(MAX_LINE)
        .read_line(&mut request)?;
    let request = request.trim_end();
    let answer = match request {
        "identify" => identity.to_owned(),
        _ => match change(request, links) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("error {error:#}"),
        },
    };
    let mut connection = connection;
    writeln!(connection, "{answer}")
}

fn change(request: &str, links: &Links) -> Result<()> {
    let words: Vec<&str> = request.split(' ').collect();
    let ["link", one, other, change] = words[..] else {
        bail!("`{request}` is no request");
    };
    links.change(one.parse()?, other.parse()?, change.parse()?)
}

/// Folder of the sockets.
fn runs(workspace: &Workspace) -> PathBuf {
    workspace.cache().join("runs")
}

/// A run in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunningRun {
    socket: PathBuf,
    process: u32,
    root: PathBuf,
    /// Commands and folder of the run.
    description: String,
}

/// Changes a link of a run in progress: the run of process `requested`, or the only run of the workspace, or the only run.
pub(crate) fn request(
    workspace: &Workspace,
    requested: Option<u32>,
    (one, other): (Host, Host),
    change: LinkChange,
) -> Result<()> {
    let running = running(&runs(workspace));
    let run = choose(&running, workspace.root(), requested)?;
    let answer = ask(&run.socket, &format!("link {one} {other} {change}"))?;
    match answer.strip_prefix("error ") {
        Some(reason) => bail!("{reason}"),
        None => {
            ensure!(
                answer == "ok",
                "the run {} answered `{answer}`",
                run.process
            );
            Ok(())
        }
    }
}

fn running(folder: &Path) -> Vec<RunningRun> {
    let sockets = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = sockets.filter_map(|entry| {
        let socket = entry.path().join(SOCKET);
        // The socket of a killed run refuses connections.
        let identity = ask(&socket, "identify").ok()?;
        let mut parts = identity.splitn(3, '\t');
        let (process, root, description) = (parts.next()?, parts.next()?, parts.next()?);
        Some(RunningRun {
            socket,
            process: process.parse().ok()?,
            root: root.into(),
            description: description.to_owned(),
        })
    });
    runs.collect()
}

fn ask(socket: &Path, request: &str) -> Result<String> {
    let mut connection = UnixStream::connect(socket)?;
    connection.set_read_timeout(Some(ANSWER_LIMIT))?;
    connection.set_write_timeout(Some(ANSWER_LIMIT))?;
    writeln!(connection, "{request}")?;
    let mut answer = String::new();
    BufReader::new(connection)
        .take(MAX_LINE)
        .read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

fn choose<'a>(
    running: &'a [RunningRun],
    root: &Path,
    requested: Option<u32>,
) -> Result<&'a RunningRun> {
    if let Some(process) = requested {
        let run = running.iter().find(|run| run.process == process);
        return run
            .with_context(|| format!("no run has the process id {process}; {}", names(running)));
    }
    let ours: Vec<_> = running.iter().filter(|run| run.root == root).collect();
    match (&ours[..], running) {
        ([run], _) => Ok(run),
        ([], [run]) => Ok(run),
        ([], []) => bail!(
            "no run with changeable links is in progress: start one with --hosts, --each or --link"
        ),
        _ => bail!(
            "several runs are in progress, name one by --run: {}",
            names(running)
        ),
    }
}

fn names(running: &[RunningRun]) -> String {
    let name = |run: &RunningRun| format!("{} ({})", run.process, run.description);
    match running {
        [] => "no run is in progress".to_owned(),
        running => running.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_changes_the_links_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::with_cache(folder.path(), folder.path());
        let links = Links::new(2);
        let control = Control::listen(&workspace, links.clone(), "`one` in /x").unwrap();
        let hosts = (Host::A, Host::B);
        request(&workspace, None, hosts, LinkChange::Down).unwrap();
        assert!(!links.condition(hosts.0, hosts.1).unwrap().is_up);
        let this = Some(std::process::id());
        request(&workspace, this, hosts, LinkChange::Loss(0.5)).unwrap();
        assert!((links.condition(hosts.0, hosts.1).unwrap().loss - 0.5).abs() < 1e-9);
        let wrong = request(
            &workspace,
            None,
            (Host::A, "c".parse().unwrap()),
            LinkChange::Up,
        );
        assert!(wrong.unwrap_err().to_string().contains("no host c"));
        let unknown = request(&workspace, Some(0), hosts, LinkChange::Up).unwrap_err();
        let name = format!("{} (`one` in /x)", std::process::id());
        assert!(unknown.to_string().ends_with(&name), "{unknown}");
        drop(control);
        let none = request(&workspace, None, hosts, LinkChange::Up).unwrap_err();
        assert!(none.to_string().contains("no run"), "{none}");
    }

    #[test]
    fn unknown_requests_are_refused() {
        let links = Links::new(2);
        for request in [
            "",
            "link a b",
            "link a b down now",
            "link a b cut",
            "cut a b down",
        ] {
            assert!(change(request, &links).is_err(), "{request}");
        }
    }

    #[test]
    fn run_of_the_workspace_is_chosen_before_others() {
        let run = |process, root: &str| RunningRun {
            socket: PathBuf::new(),
            process,
            root: root.into(),
            description: String::new(),
        };
        let running = [run(1, "/x"), run(2, "/y"), run(3, "/y")];
        let chosen = |root: &str, requested| {
            choose(&running, Path::new(root), requested).map(|run| run.process)
        };
        assert_eq!(chosen("/x", None).unwrap(), 1);
        assert_eq!(chosen("/x", Some(3)).unwrap(), 3);
        assert!(
            chosen("/y", None).is_err()
                && chosen("/z", None).is_err()
                && chosen("/x", Some(4)).is_err()
        );
        assert_eq!(
            choose(&running[..1], Path::new("/z"), None)
                .unwrap()
                .process,
            1
        );
    }
}
