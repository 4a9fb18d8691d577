//! One side of a connection: dies in a given phase, or prints the outcome.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod link_down;
mod removed;
mod side;

use std::{net::SocketAddr, os::fd::AsFd, process::ExitCode, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use cm::{CmId, ConnParam, ConnectFailure, Connection, Event, EventChannel, phases::RouteResolved};
use verbs::{fd::wait_readable, op};

use link_down::{LinkDown, Point};
use side::Side;

/// Timeout for each step.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of a listener for the first request.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(150);

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Phase {
    /// A request is pending in the listener's queue
    Listening,
    /// A request has been received
    Requested,
    /// A request has been accepted
    Accepted,
    /// A connection request has been sent
    Connecting,
    /// The peer has accepted
    Responded,
    /// A message has been exchanged
    Established,
    /// This side has disconnected
    Disconnecting,
    /// The peer has disconnected, and waits for the answer
    Disconnected,
}

/// Role of this side, and the listener's address
#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Passive,
    Active,
    /// A listener without `accept`, which closes
    Unresponsive,
    /// Five concurrent connection requests
    Backlog,
    /// Both sides on one device, which is removed
    Removed,
}

#[derive(Parser)]
struct Options {
    role: Role,
    addr: SocketAddr,
    /// Phase of the kill
    #[arg(long)]
    die: Option<Phase>,
    /// Disconnect after one message
    #[arg(long)]
    hang_up: bool,
    /// Phase of the link cut
    #[arg(long)]
    cut: Option<Point>,
    /// The link is restored
    #[arg(long, requires = "cut")]
    restored: bool,
    /// Reject, with this private data
    #[arg(long)]
    reject: Option<String>,
    /// Private data of the request or the answer
    #[arg(long, default_value = "")]
    say: String,
    /// Required prefix of the peer's private data
    #[arg(long, default_value = "")]
    want: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let link_down = options.cut.map(|point| LinkDown {
        addr: options.addr,
        point,
        restored: options.restored,
    });
    let outcome = match (options.role, link_down) {
        (Role::Passive, Some(link_down)) => link_down.passive(),
        (Role::Active, Some(link_down)) => link_down.active(),
        (Role::Passive, None) => options.passive(),
        (Role::Active, None) => options.active(),
        (Role::Unresponsive, _) => unresponsive(options.addr),
        (Role::Backlog, _) => backlog(options.addr),
        (Role::Removed, _) => removed::run(options.addr),
    };
    match outcome {
        Ok(outcome) => {
            println!("{outcome}");
            // Everything has been dropped.
            println!("torn down");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    /// Kills this process, if `phase` is the phase of the kill.
    fn reach(&self, phase: Phase) {
        if self.die == Some(phase) {
            let local = rustix::process::getpid();
            let _ = rustix::process::kill_process(local, rustix::process::Signal::KILL);
        }
    }

    fn param(&self) -> ConnParam {
        ConnParam::new().private_data(self.say.as_bytes())
    }

    /// Whether the peer's private data starts with the required prefix. Padding zeros may follow.
    fn is_wanted(&self, private_data: &[u8]) -> bool {
        private_data.starts_with(self.want.as_bytes())
    }

    fn passive(&self) -> Result<String> {
        let channel = EventChannel::new()?;
        let mut id = channel.create_id()?;
        id.bind(self.addr)?;
        let _listener = id.listen(8)?;
        ensure!(
            wait_readable("a request", channel.as_fd(), Some(LISTEN_TIMEOUT))?,
            "no request"
        );
        self.reach(Phase::Listening);
        let Event::ConnectRequest(request) = next(&channel)? else {
            return Ok("no request".into());
        };
        self.reach(Phase::Requested);
        if let Some(words) = &self.reject {
            request.reject(words.as_bytes())?;
            return Ok("rejected".into());
        }
        if !self.is_wanted(&request.param().private_data) {
            request.reject(format!("{} is wanted", self.want).as_bytes())?;
            return Ok("rejected".into());
        }
        let mut side = Side::new(&request.id().context()?)?;
        // The peer's death may have been detected or not.
        let accepted = side
            .qp(request.id())
            .and_then(|qp| Ok(request.accept(qp, &self.param())?));
        let qp = match accepted {
            Ok(qp) => qp,
            Err(err) => return Ok(format!("not accepted: {err:#}")),
        };
        self.reach(Phase::Accepted);
        match next(&channel)? {
            Event::Established(id) => {
                let connection = Connection::new(id, qp).map_err(|refused| refused.error)?;
                self.connected(&channel, &mut side, connection)
            }
            Event::ConnectFailed { failure, .. } => Ok(failed(&failure)),
            other => Ok(format!("{other:?}")),
        }
    }

    fn active(&self) -> Result<String> {
        let channel = EventChannel::new()?;
        for _ in 0..100 {
            let id = match resolve(&channel, self.addr)? {
                Ok(id) => id,
                Err(outcome) => return Ok(outcome),
            };
            let mut side = Side::new(&id.context()?)?;
            let qp = side.qp(&id)?;
            id.connect(&qp, &self.param())?;
            self.reach(Phase::Connecting);
            match next(&channel)? {
                Event::ConnectResponse(response) => {
                    self.reach(Phase::Responded);
                    if !self.is_wanted(&response.param().private_data) {
                        return Ok(format!("{} is wanted", self.want));
                    }
                    let connection = match response.establish(qp) {
                        Ok(connection) => connection,
                        Err(err) => return Ok(format!("not established: {err}")),
                    };
                    return self.connected(&channel, &mut side, connection);
                }
                // No listener yet.
                Event::ConnectFailed {
                    failure: ConnectFailure::Rejected { reason: 8, .. },
                    ..
                } => thread::sleep(Duration::from_millis(200)),
                Event::ConnectFailed { failure, .. } => return Ok(failed(&failure)),
                other => return Ok(format!("{other:?}")),
            }
        }
        Ok("no listener".into())
    }

    /// Exchanges messages, and waits for the end of the connection.
    fn connected(
        &self,
        channel: &EventChannel,
        side: &mut Side,
        mut connection: Connection,
    ) -> Result<String> {
        let hello = connection.qp().pd().register_buf(*b"hello")?;
        connection.qp_mut().post(op::Send::new(hello))?;
        let exchanged = side.completions(&mut connection, 2)?;
        if exchanged == ["sent", "received"] || exchanged == ["received", "sent"] {
            self.reach(Phase::Established);
            connection
                .qp_mut()
                .post_recv(side.pd.alloc_buf(64)?)
                .map_err(|refused| refused.error)?;
        }
        if self.hang_up {
            connection.disconnect()?;
            self.reach(Phase::Disconnecting);
        }
        match next(channel)? {
            Event::Disconnected { key, .. } if key == connection.key() => {}
            other => return Ok(format!("{other:?}")),
        }
        self.reach(Phase::Disconnected);
        if !self.hang_up {
            connection.disconnect()?;
        }
        // Requests in flight are flushed.
        let pending = in_flight(&connection);
        let flushed = side.completions(&mut connection, pending)?;
        ensure!(in_flight(&connection) == 0, "{flushed:?}");
        Ok(format!("disconnected, {}", flushed.join(" and ")))
    }
}

fn in_flight(connection: &Connection) -> usize {
    connection.qp().send_queue().in_flight() + connection.qp().receive_queue().in_flight()
}

/// Sends five requests to a listener with a backlog of one.
fn backlog(addr: SocketAddr) -> Result<String> {
    let channel = EventChannel::new()?;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let id = resolve(&channel, addr)?.map_err(anyhow::Error::msg)?;
        let mut side = Side::new(&id.context()?)?;
        let qp = side.qp(&id)?;
        id.connect(&qp, &ConnParam::new())?;
        waiting.push((qp, side));
    }
    // The kernel drops requests above the backlog; the clients retransmit for a minute.
    let mut rejected = 0;
    while rejected < waiting.len() {
        match channel.wait_timeout(TEST_TIMEOUT / 2)? {
            Some(Event::ConnectFailed {
                failure: ConnectFailure::Rejected { .. },
                ..
            }) => rejected += 1,
            Some(other) => return Ok(format!("{other:?}")),
            None => break,
        }
    }
    ensure!(rejected > 0, "no request was rejected");
    Ok("rejected, and the others given up".into())
}

fn unresponsive(addr: SocketAddr) -> Result<String> {
    let channel = EventChannel::new()?;
    let mut id = channel.create_id()?;
    id.bind(addr)?;
    let listener = id.listen(1)?;
    ensure!(
        wait_readable("a request", channel.as_fd(), Some(LISTEN_TIMEOUT))?,
        "no request"
    );
    // The other requests arrive meanwhile.
    thread::sleep(Duration::from_secs(2));
    drop(listener);
    Ok("unresponsive".into())
}

/// Resolves the route to a peer; the inner error is the failure.
fn resolve(
    channel: &EventChannel,
    addr: SocketAddr,
) -> Result<Result<CmId<RouteResolved>, String>> {
    if let Err(refused) = channel
        .create_id()?
        .resolve_addr(None, addr, TEST_TIMEOUT / 4)
    {
        return Ok(Err(format!("no way: {}", refused.error)));
    }
    let id = match next(channel)? {
        Event::AddrResolved(id) => id,
        Event::AddrError { error, .. } => return Ok(Err(format!("no address: {error}"))),
        other => return Ok(Err(format!("{other:?}"))),
    };
    id.resolve_route(TEST_TIMEOUT / 4)?;
    match next(channel)? {
        Event::RouteResolved(id) => Ok(Ok(id)),
        other => Ok(Err(format!("{other:?}"))),
    }
}

fn failed(failure: &ConnectFailure) -> String {
    match failure {
        ConnectFailure::Rejected {
            reason,
            private_data,
        } => {
            let words = String::from_utf8_lossy(private_data);
            format!("rejected {reason} {}", words.trim_end_matches('\0'))
                .trim_end()
                .to_owned()
        }
        other => other.to_string(),
    }
}

fn next(channel: &EventChannel) -> Result<Event> {
    channel.wait_timeout(TEST_TIMEOUT)?.context("timed out")
}
