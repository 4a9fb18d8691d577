//! A side under a link cut: proceeds to a given phase, waits for the cut, and continues.
//!
//! Synchronization with the surrounding script is by files in the working folder: a side creates
//! `ready-PORT`, the script creates `cut` and `restored`.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use cm::{
    CmId, ConnParam, ConnectFailure, Connection, EndpointBuilder, Event, EventChannel,
    phases::RouteResolved,
};
use verbs::{Buf, Completed, WcStatus, op};

use crate::{TEST_TIMEOUT, failed, in_flight, resolve, side::Side};

/// Timeout for the kernel's retransmissions: those of the connection manager last minutes.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(300);

/// Timeout of a call without an answer; longer than the time before the link cut.
const DEADLINE: Duration = Duration::from_secs(120);

/// Number of messages in flight under load, and of messages required after the link is restored.
const WINDOW: usize = 4;
const MORE: u64 = 100;

/// Interval of a side under load between checks for files.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Phase of the link cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Point {
    /// Before resolving the peer's address
    Resolve,
    /// Before sending the connection request
    Connect,
    /// Before accepting
    Accept,
    /// Connected and idle
    Idle,
    /// Connected, with messages in flight in both directions
    Load,
    /// Before disconnecting
    Disconnect,
}

/// Actions of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkDown {
    pub(crate) addr: SocketAddr,
    pub(crate) point: Point,
    /// Whether the link is restored.
    pub(crate) restored: bool,
}

impl LinkDown {
    pub(crate) fn passive(self) -> Result<String> {
        let channel = EventChannel::new()?;
        let mut id = channel.create_id()?;
        id.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.addr.port())))?;
        let _listener = id.listen(8)?;
        if matches!(self.point, Point::Resolve | Point::Connect) {
            self.reach()?;
        }
        let before_cut = matches!(self.point, Point::Resolve | Point::Connect) && !self.restored;
        let timeout = if before_cut {
            TEST_TIMEOUT
        } else {
            KERNEL_TIMEOUT
        };
        let request = match channel.wait_timeout(timeout)? {
            Some(Event::ConnectRequest(request)) => request,
            None => return Ok("no request".into()),
            Some(other) => return Ok(format!("{other:?}")),
        };
        let mut side = Side::new(&request.id().context()?)?;
        let qp = side.qp(request.id())?;
        if self.point == Point::Accept {
            self.reach()?;
        }
        let qp = request.accept(qp, &self.param())?;
        match next(&channel)? {
            Event::Established(id) => {
                let connection = Connection::new(id, qp).map_err(|refused| refused.error)?;
                self.connected(&channel, &mut side, connection, false)
            }
            Event::ConnectFailed { failure, .. } => Ok(failed(&failure)),
            other => Ok(format!("{other:?}")),
        }
    }

    pub(crate) fn active(self) -> Result<String> {
        let channel = EventChannel::new()?;
        if self.point == Point::Resolve {
            self.reach()?;
        }
        if self.point == Point::Accept && !self.restored {
            return self.ask_in_time();
        }
        let late = Instant::now() + KERNEL_TIMEOUT;
        while Instant::now() < late {
            let id = match resolve(&channel, self.addr)? {
                Ok(id) => id,
                Err(outcome) if !self.restored => return Ok(outcome),
                Err(_) => continue,
            };
            match self.request(&channel, id)? {
                Requested::Done(outcome) => return Ok(outcome),
                // No listener yet.
                Requested::NoListener => thread::sleep(Duration::from_millis(200)),
            }
        }
        bail!("no listener")
    }

    fn request(self, channel: &EventChannel, id: CmId<RouteResolved>) -> Result<Requested> {
        let mut side = Side::new(&id.context()?)?;
        let qp = side.qp(&id)?;
        if self.point == Point::Connect {
            self.reach()?;
        }
        id.connect(&qp, &self.param())?;
        if self.point == Point::Accept {
            self.ready()?;
        }
        Ok(match next(channel)? {
            Event::ConnectResponse(response) => {
                let connection = response.establish(qp)?;
                Requested::Done(self.connected(channel, &mut side, connection, true)?)
            }
            Event::ConnectFailed {
                failure: ConnectFailure::Rejected { reason: 8, .. },
                ..
            } => Requested::NoListener,
            Event::ConnectFailed { failure, .. } => Requested::Done(failed(&failure)),
            other => Requested::Done(format!("{other:?}")),
        })
    }

    /// Requests a connection with a deadline. A peer's kernel with the request extends the response time by
    /// minutes, so the deadline ends the call.
    fn ask_in_time(self) -> Result<String> {
        // The peer signals the arrival of the request.
        self.ready()?;
        let late = Instant::now() + KERNEL_TIMEOUT;
        while Instant::now() < late {
            let builder = EndpointBuilder::new().timeout(DEADLINE);
            let err = match builder.param(self.param()).connect(self.addr) {
                Ok(_) => return Ok("connected".into()),
                Err(err) => err,
            };
            match ConnectFailure::of(&err) {
                // No listener yet.
                Some(ConnectFailure::Rejected { reason: 8, .. }) => {
                    thread::sleep(Duration::from_millis(200));
                }
                _ => return Ok(err.to_string()),
            }
        }
        bail!("no listener")
    }

    /// Retry count below 7: Soft-RoCE treats 7 as unlimited.
    fn param(self) -> ConnParam {
        let retries = if self.restored { 7 } else { 6 };
        ConnParam::new().retry_count(retries)
    }

    fn connected(
        self,
        channel: &EventChannel,
        side: &mut Side,
        mut connection: Connection,
        active: bool,
    ) -> Result<String> {
        let mut traffic = Traffic::default();
        while connection.qp().receive_queue().in_flight() < WINDOW {
            let receives = side.pd.alloc_buf(64)?;
            let posted = connection.qp_mut().post_recv(receives);
            posted.map_err(|refused| refused.error)?;
        }
        // The message confirms the connection to both sides.
        match traffic.exchange(channel, side, &mut connection)? {
            Exchange::Lost(status) => bail!("the first message has failed: {status:?}"),
            Exchange::Ended => return ended(&mut traffic, side, connection),
            Exchange::Enough => {}
        }
        let exchange = match self.point {
            Point::Idle => {
                self.reach()?;
                traffic.exchange(channel, side, &mut connection)?
            }
            Point::Load => self.load(channel, &mut traffic, side, &mut connection, active)?,
            Point::Disconnect => {
                self.reach()?;
                Exchange::Enough
            }
            Point::Resolve | Point::Connect | Point::Accept => Exchange::Enough,
        };
        match exchange {
            Exchange::Lost(status) => return lost(status, &mut traffic, side, connection),
            Exchange::Ended => return ended(&mut traffic, side, connection),
            Exchange::Enough => {}
        }
        // After a permanent cut, the sides cannot reach each other.
        if active || !self.restored {
            connection.disconnect()?;
        }
        match next(channel)? {
            Event::Disconnected { key, .. } if key == connection.key() => {}
            other => return Ok(format!("{other:?}")),
        }
        if !active && self.restored {
            connection.disconnect()?;
        }
        traffic.rest(side, &mut connection)?;
        Ok("disconnected".into())
    }

    /// Sends messages in both directions, until one is lost, or enough have arrived after the link was
    /// restored, or the peer has disconnected.
    fn load(
        self,
        channel: &EventChannel,
        traffic: &mut Traffic,
        side: &mut Side,
        connection: &mut Connection,
        active: bool,
    ) -> Result<Exchange> {
        let mut enough = None;
        self.ready()?;
        loop {
            let sending = enough.is_none_or(|enough| traffic.received < enough);
            while sending && in_sending(connection) < WINDOW {
                traffic.send(connection)?;
            }
            if !sending && in_sending(connection) == 0 {
                return Ok(Exchange::Enough);
            }
            if let Some(status) = traffic.take_within(CHECK_INTERVAL, side, connection)? {
                return Ok(Exchange::Lost(status));
            }
            if active && enough.is_none() && Path::new("restored").exists() {
                enough = Some(traffic.received + MORE);
            }
            if has_ended(channel)? {
                return Ok(Exchange::Ended);
            }
        }
    }

    /// Signals readiness, and waits for the link cut.
    fn reach(self) -> Result<()> {
        self.ready()?;
        let late = Instant::now() + KERNEL_TIMEOUT;
        while !Path::new("cut").exists() {
            ensure!(Instant::now() < late, "the link is not cut");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn ready(self) -> Result<()> {
        File::create(format!("ready-{}", self.addr.port()))?;
        Ok(())
    }
}

/// Ends the connection after the peer's disconnect.
fn ended(traffic: &mut Traffic, side: &mut Side, mut connection: Connection) -> Result<String> {
    connection.disconnect()?;
    traffic.rest(side, &mut connection)?;
    Ok("disconnected".into())
}

/// Whether the peer has disconnected. An error for every other event.
fn has_ended(channel: &EventChannel) -> Result<bool> {
    match channel.try_next()? {
        Some(Event::Disconnected { .. }) => Ok(true),
        Some(other) => bail!("{other:?}"),
        None => Ok(false),
    }
}

/// Outcome of an exchange under the link cut.
enum Exchange {
    Lost(WcStatus),
    Enough,
    /// The peer has disconnected.
    Ended,
}

/// Outcome of a connection request.
enum Requested {
    NoListener,
    Done(String),
}

/// Numbered messages.
#[derive(Default)]
struct Traffic {
    sent: u64,
    received: u64,
}

impl Traffic {
    fn send(&mut self, connection: &mut Connection) -> Result<()> {
        let message = self.sent.to_be_bytes();
        let message = connection.qp().pd().register_buf(message)?;
        connection.qp_mut().post(op::Send::new(message))?;
        self.sent += 1;
        Ok(())
    }

    /// Sends a message, and waits for its acknowledgement and for the peer's.
    fn exchange(
        &mut self,
        channel: &EventChannel,
        side: &mut Side,
        connection: &mut Connection,
    ) -> Result<Exchange> {
        self.send(connection)?;
        while self.received < self.sent || in_sending(connection) > 0 {
            if let Some(status) = self.take_within(CHECK_INTERVAL, side, connection)? {
                return Ok(Exchange::Lost(status));
            }
            // The acknowledgement may be lost in a cut, and the peer no longer there to repeat it.
            if has_ended(channel)? {
                // A message before the end, not yet taken.
                self.take_within(Duration::ZERO, side, connection)?;
                ensure!(self.received == self.sent, "a message is missing");
                return Ok(Exchange::Ended);
            }
        }
        Ok(Exchange::Enough)
    }

    /// Waits for completions for up to `timeout`, and reposts receives. Returns the status of the first failure.
    fn take_within(
        &mut self,
        timeout: Duration,
        side: &mut Side,
        connection: &mut Connection,
    ) -> Result<Option<WcStatus>> {
        let (failure, receives) = self.collect(timeout, side, connection)?;
        for buf in receives {
            let posted = connection.qp_mut().post_recv(buf);
            posted.map_err(|refused| refused.error)?;
        }
        Ok(failure)
    }

    /// Waits for completions. Returns the status of the first failure, and the buffers received before.
    fn collect(
        &mut self,
        timeout: Duration,
        side: &mut Side,
        connection: &mut Connection,
    ) -> Result<(Option<WcStatus>, Vec<Buf>)> {
        let mut failure = None;
        let mut receives = Vec::new();
        for wc in side.cq.wait(Some(timeout))? {
            if wc.status() != WcStatus::SUCCESS {
                failure = failure.or(Some(wc.status()));
            }
            if let Ok(Completed::Receive(done)) = connection.qp_mut().complete(wc)
                && failure.is_none()
            {
                let expected = self.received.to_be_bytes();
                ensure!(
                    done.received()? == expected,
                    "not message {}",
                    self.received
                );
                self.received += 1;
                receives.push(done.into_work()?);
            }
        }
        Ok((failure, receives))
    }

    /// Flushes all requests in flight on an ended connection.
    fn rest(&mut self, side: &mut Side, connection: &mut Connection) -> Result<()> {
        while in_flight(connection) > 0 {
            let before = in_flight(connection);
            // Messages received before the end may complete before the flush.
            self.collect(KERNEL_TIMEOUT, side, connection)?;
            ensure!(
                in_flight(connection) < before,
                "something does not come back"
            );
        }
        Ok(())
    }
}

/// A message retransmitted until the device gave up: all requests are flushed.
fn lost(
    status: WcStatus,
    traffic: &mut Traffic,
    side: &mut Side,
    mut connection: Connection,
) -> Result<String> {
    traffic.rest(side, &mut connection)?;
    Ok(format!("lost: {status:?}"))
}

fn in_sending(connection: &Connection) -> usize {
    connection.qp().send_queue().in_flight()
}

fn next(channel: &EventChannel) -> Result<Event> {
    match channel.wait_timeout(KERNEL_TIMEOUT)? {
        Some(event) => Ok(event),
        None => bail!("timed out"),
    }
}
