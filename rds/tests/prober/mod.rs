//! A scriptable RDS peer: sends any private data and any frames.
#![allow(
    dead_code,
    reason = "several programs have it, and none of them uses all"
)]

pub(crate) mod early_data;
mod wire;

pub(crate) use wire::Wire;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use cm::{
    CmId, ConnParam, ConnectFailure, ConnectRequest, Connection, Event, EventChannel,
    phases::{HasDevice, Listening, RouteResolved},
};
use rds::proto::wire::{ConnectData, Family, HostPair, REJECTED};
use verbs::{
    Init, QueuePair, Rtr, Rts,
    qp::{Attributes, RnrTimer},
};

use wire::Queues;

/// Time-out of each step.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Room for frames over the maximum size.
pub(crate) const ROOM: usize = 5000;

/// A host with one address and a listener.
#[derive(Debug)]
pub(crate) struct Prober {
    local: IpAddr,
    channel: EventChannel,
    _listener: CmId<Listening>,
}

/// The answer to a connection request.
#[derive(Debug)]
pub(crate) enum Answer {
    Accepted(Wire),
    Rejected { reason: i32, data: Vec<u8> },
}

impl Answer {
    /// The connection, or an error.
    pub(crate) fn accepted(self) -> io::Result<Wire> {
        match self {
            Self::Accepted(wire) => Ok(wire),
            Self::Rejected { reason, data } => {
                Err(io::Error::other(format!("rejected {reason} {data:?}")))
            }
        }
    }

    /// Reason and private data of a rejection, without the padding of the connection manager.
    pub(crate) fn rejected(self) -> io::Result<(i32, Vec<u8>)> {
        match self {
            Self::Accepted(_) => Err(io::Error::other("accepted")),
            Self::Rejected { reason, mut data } => {
                data.truncate(4);
                Ok((reason, data))
            }
        }
    }
}

fn family(ip: IpAddr) -> Family {
    match ip {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

fn odd(event: &Event) -> io::Error {
    io::Error::other(format!("{event:?}"))
}

fn next(channel: &EventChannel, until: Instant) -> io::Result<Event> {
    let remaining = until.saturating_duration_since(Instant::now());
    let event = channel.wait_timeout(remaining)?;
    event.ok_or_else(|| io::Error::other("no event of the connection manager"))
}

fn param(data: &[u8]) -> ConnParam {
    ConnParam::new()
        .private_data(data)
        .retry_count(1)
        .rnr_retry_count(7)
}

/// Moves a queue pair to RTS, with a short RNR timer.
fn bring_up<P: HasDevice>(
    id: &CmId<P>,
    mut qp: QueuePair<verbs::Rc, Init>,
) -> verbs::Result<QueuePair<verbs::Rc, Rts>> {
    qp.modify(&id.attributes()?)?;
    let to_rtr: Attributes<verbs::Rc, Rtr> = id.attributes()?;
    let qp = qp.to_rtr(&to_rtr.min_rnr_timer(RnrTimer::new(10)?))?;
    Ok(qp.to_rts(&id.attributes()?)?)
}

impl Prober {
    /// Listens on the RDS port of an address.
    pub(crate) fn new(local: IpAddr) -> io::Result<Self> {
        let channel = EventChannel::new()?;
        let mut id = channel.create_id()?;
        id.bind(SocketAddr::new(local, family(local).port()))?;
        let listener = id.listen(64).map_err(verbs::Error::from)?;
        Ok(Self {
            local,
            channel,
            _listener: listener,
        })
    }

    /// Private data of a regular request.
    pub(crate) fn proposal(&self, peer: IpAddr, tos: u8) -> ConnectData {
        proposal(self.local, peer, tos)
    }

    /// Requests a connection.
    pub(crate) fn dial(&self, peer: IpAddr, data: &[u8]) -> io::Result<Answer> {
        dial(self.local, peer, data, 64)
    }

    /// Accepts the next connection request with a regular reply.
    pub(crate) fn accept(&self) -> io::Result<Wire> {
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            match next(&self.channel, until)? {
                Event::ConnectRequest(request) => {
                    if let Some(wire) = self.take(request, until)? {
                        return Ok(wire);
                    }
                }
                // An event of an abandoned connection.
                Event::Established(_)
                | Event::ConnectFailed { .. }
                | Event::Disconnected { .. } => {}
                other => return Err(odd(&other)),
            }
        }
    }

    /// Rejects the next connection request.
    pub(crate) fn reject(&self) -> io::Result<()> {
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            match next(&self.channel, until)? {
                Event::ConnectRequest(request) => return Ok(request.reject(&REJECTED)?),
                // An event of an abandoned connection.
                Event::ConnectFailed { .. } | Event::Disconnected { .. } => {}
                other => return Err(odd(&other)),
            }
        }
    }

    /// Accepts a request; `None` if the peer has given up.
    fn take(&self, request: ConnectRequest, until: Instant) -> io::Result<Option<Wire>> {
        let private_data = request.param().private_data.clone();
        let proposal =
            ConnectData::decode(&private_data, family(self.local)).map_err(io::Error::other)?;
        let answer = proposal.answer(proposal.hosts).map_err(io::Error::other)?;
        let (queues, qp) = Queues::new(request.id(), 64)?;
        let key = request.id().key();
        let accepted = bring_up(request.id(), qp)
            .and_then(|qp| request.accept_ready(qp, &param(&answer.encode())));
        let Ok(qp) = accepted else {
            return Ok(None);
        };
        loop {
            match next(&self.channel, until)? {
                Event::Established(id) if id.key() == key => {
                    let mut connection = Connection::new(id, qp).map_err(verbs::Error::from)?;
                    let channel = EventChannel::new()?;
                    connection.migrate(&channel)?;
                    return Ok(Some(Wire::new(connection, queues, channel, private_data)));
                }
                Event::ConnectFailed { id, .. } if id.key() == key => return Ok(None),
                Event::Established(_)
                | Event::ConnectFailed { .. }
                | Event::Disconnected { .. } => {}
                other => return Err(odd(&other)),
            }
        }
    }
}

/// Private data of a regular request.
pub(crate) fn proposal(local: IpAddr, peer: IpAddr, tos: u8) -> ConnectData {
    let hosts = HostPair::new(local, peer).expect("addresses of one family");
    ConnectData::proposal(hosts, tos)
}

/// Requests a connection from any local address, with `receives` posted receives.
pub(crate) fn dial(local: IpAddr, peer: IpAddr, data: &[u8], receives: u32) -> io::Result<Answer> {
    let DialState {
        channel,
        queues,
        qp,
        private_data,
    } = dial_by(local, peer, data, receives)?;
    match private_data {
        Event::ConnectResponse(response) => {
            let private_data = response.param().private_data.clone();
            let qp = bring_up(response.id(), qp)?;
            let connection = response.establish_ready(qp)?;
            let wire = Wire::new(connection, queues, channel, private_data);
            Ok(Answer::Accepted(wire))
        }
        Event::ConnectFailed {
            failure:
                ConnectFailure::Rejected {
                    reason,
                    private_data,
                },
            ..
        } => Ok(Answer::Rejected {
            reason,
            data: private_data,
        }),
        other => Err(odd(&other)),
    }
}

/// The answer to a request, with the resources of a connection.
struct DialState {
    channel: EventChannel,
    queues: Queues,
    qp: QueuePair<verbs::Rc, Init>,
    private_data: Event,
}

fn dial_by(local: IpAddr, peer: IpAddr, data: &[u8], receives: u32) -> io::Result<DialState> {
    let until = Instant::now() + TEST_TIMEOUT;
    let channel = EventChannel::new()?;
    let id = resolve(&channel, local, peer, until)?;
    let (queues, qp) = Queues::new(&id, receives)?;
    id.connect(&qp, &param(data)).map_err(verbs::Error::from)?;
    let private_data = next(&channel, until)?;
    Ok(DialState {
        channel,
        queues,
        qp,
        private_data,
    })
}

fn resolve(
    channel: &EventChannel,
    local: IpAddr,
    peer: IpAddr,
    until: Instant,
) -> io::Result<CmId<RouteResolved>> {
    let from = SocketAddr::new(local, 0);
    let to = SocketAddr::new(peer, family(peer).port());
    channel
        .create_id()?
        .resolve_addr(Some(from), to, TEST_TIMEOUT)
        .map_err(verbs::Error::from)?;
    let Event::AddrResolved(id) = next(channel, until)? else {
        return Err(io::Error::other("no address"));
    };
    id.resolve_route(TEST_TIMEOUT).map_err(verbs::Error::from)?;
    match next(channel, until)? {
        Event::RouteResolved(id) => Ok(id),
        other => Err(odd(&other)),
    }
}
