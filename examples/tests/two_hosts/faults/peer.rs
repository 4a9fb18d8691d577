//! One side of a connection, which dies where it is told to, or says what has become of it.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod removed;
mod severed;
mod side;

use std::{net::SocketAddr, os::fd::AsFd, process::ExitCode, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use cm::{CmId, ConnParam, ConnectFailure, Connection, Event, EventChannel, phases::RouteResolved};
use verbs::{fd::wait_readable, op::Send};

use severed::{Point, Severed};
use side::Side;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a listener waits for its turn.
const TURN: Duration = Duration::from_secs(150);

/// Where a side is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Phase {
    /// A request has come, and nobody has looked
    Listening,
    /// A request has been taken
    Requested,
    /// It has been accepted
    Accepted,
    /// A connection has been asked for
    Connecting,
    /// The peer has accepted
    Responded,
    /// A message has been exchanged
    Established,
    /// This side has just disconnected
    Disconnecting,
    /// The peer has disconnected, and has no answer yet
    Disconnected,
}

/// Which side, and where the listener is
#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Passive,
    Active,
    /// A listener that takes no requests, and goes away
    Deaf,
    /// Five that ask for connections at once
    Crowd,
    /// Both sides on one device, which is removed
    Removed,
}

#[derive(Parser)]
struct Options {
    role: Role,
    addr: SocketAddr,
    /// Killed there
    #[arg(long)]
    die: Option<Phase>,
    /// Disconnects once a message has been exchanged
    #[arg(long)]
    hang_up: bool,
    /// Where the side is when its link is cut
    #[arg(long)]
    cut: Option<Point>,
    /// The link comes back
    #[arg(long, requires = "cut")]
    restored: bool,
    /// Rejects, saying this
    #[arg(long)]
    reject: Option<String>,
    /// The private data of its request, or of its answer
    #[arg(long, default_value = "")]
    say: String,
    /// What the private data of the peer has to begin with
    #[arg(long, default_value = "")]
    want: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let severed = options.cut.map(|point| Severed {
        addr: options.addr,
        point,
        restored: options.restored,
    });
    let outcome = match (options.role, severed) {
        (Role::Passive, Some(severed)) => severed.passive(),
        (Role::Active, Some(severed)) => severed.active(),
        (Role::Passive, None) => options.passive(),
        (Role::Active, None) => options.active(),
        (Role::Deaf, _) => deaf(options.addr),
        (Role::Crowd, _) => crowd(options.addr),
        (Role::Removed, _) => removed::run(options.addr),
    };
    match outcome {
        Ok(outcome) => {
            println!("{outcome}");
            // Everything has been dropped by now.
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
    /// Dies, if it is to die here.
    fn reach(&self, phase: Phase) {
        if self.die == Some(phase) {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }

    fn param(&self) -> ConnParam {
        ConnParam::new().private_data(self.say.as_bytes())
    }

    /// Whether the peer has said what it must. Behind what it has said there may be zeros.
    fn is_wanted(&self, private_data: &[u8]) -> bool {
        private_data.starts_with(self.want.as_bytes())
    }

    fn passive(&self) -> Result<String> {
        let channel = EventChannel::new()?;
        let mut id = channel.create_id()?;
        id.bind(self.addr)?;
        let _listener = id.listen(8)?;
        ensure!(
            wait_readable("a request", channel.as_fd(), Some(TURN))?,
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
        // A peer that is gone may be known to be, or not yet.
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
                // There is no listener yet.
                Event::ConnectFailed {
                    failure: ConnectFailure::Rejected { reason: 8, .. },
                    ..
                } => thread::sleep(Duration::from_millis(200)),
                Event::ConnectFailed { failure, .. } => return Ok(failed(&failure)),
                other => return Ok(format!("{other:?}")),
            }
        }
        Ok("nobody has listened".into())
    }

    /// Exchanges messages, and waits for the end.
    fn connected(
        &self,
        channel: &EventChannel,
        side: &mut Side,
        mut connection: Connection,
    ) -> Result<String> {
        let hello = connection.qp().pd().register_buf(*b"hello")?;
        connection.qp_mut().post(Send::new(hello))?;
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
        // What was in flight comes back.
        let pending = in_flight(&connection);
        let flushed = side.completions(&mut connection, pending)?;
        ensure!(in_flight(&connection) == 0, "{flushed:?}");
        Ok(format!("disconnected, {}", flushed.join(" and ")))
    }
}

fn in_flight(connection: &Connection) -> usize {
    connection.qp().send_queue().in_flight() + connection.qp().receive_queue().in_flight()
}

/// Five requests for a listener with room for one.
fn crowd(addr: SocketAddr) -> Result<String> {
    let channel = EventChannel::new()?;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let id = resolve(&channel, addr)?.map_err(anyhow::Error::msg)?;
        let mut side = Side::new(&id.context()?)?;
        let qp = side.qp(&id)?;
        id.connect(&qp, &ConnParam::new())?;
        waiting.push((qp, side));
    }
    // The kernel drops those beyond the backlog, and they go on asking for a minute.
    let mut rejected = 0;
    while rejected < waiting.len() {
        match channel.wait_timeout(PATIENCE / 2)? {
            Some(Event::ConnectFailed {
                failure: ConnectFailure::Rejected { .. },
                ..
            }) => rejected += 1,
            Some(other) => return Ok(format!("{other:?}")),
            None => break,
        }
    }
    ensure!(rejected > 0, "nobody is told");
    Ok("rejected, and the others given up".into())
}

fn deaf(addr: SocketAddr) -> Result<String> {
    let channel = EventChannel::new()?;
    let mut id = channel.create_id()?;
    id.bind(addr)?;
    let listener = id.listen(1)?;
    ensure!(
        wait_readable("a request", channel.as_fd(), Some(TURN))?,
        "no request"
    );
    // The others come meanwhile.
    thread::sleep(Duration::from_secs(2));
    drop(listener);
    Ok("deaf".into())
}

/// The way to a peer, or why there is none.
fn resolve(
    channel: &EventChannel,
    addr: SocketAddr,
) -> Result<Result<CmId<RouteResolved>, String>> {
    if let Err(refused) = channel.create_id()?.resolve_addr(None, addr, PATIENCE / 4) {
        return Ok(Err(format!("no way: {}", refused.error)));
    }
    let id = match next(channel)? {
        Event::AddrResolved(id) => id,
        Event::AddrError { error, .. } => return Ok(Err(format!("no address: {error}"))),
        other => return Ok(Err(format!("{other:?}"))),
    };
    id.resolve_route(PATIENCE / 4)?;
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
    channel.wait_timeout(PATIENCE)?.context("it hangs")
}
