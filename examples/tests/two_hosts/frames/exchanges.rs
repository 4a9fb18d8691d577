//! Exchanges of the connection manager, each after a marker: accepted, rejected, cancelled, slow and stale connections,
//! and services.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use cm::{
    CmId, ConnParam, ConnectRequest, Event, EventChannel, PortSpace, ServiceRequest,
    phases::{Connected, RouteResolved},
};
use verbs::{
    CompletionQueue, Context, Init, ProtectionDomain, QueuePair, Reset, Ud, qp::Attributes,
};

use crate::{PORT, Role, control::Control, side::TIMEOUT};

/// Time until a slow program accepts: longer than Linux waits for an answer, 4.6 s.
const SLOW: Duration = Duration::from_secs(6);

/// An exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    /// Accepted, and ended by the active side.
    Accepted,
    /// Accepted, and ended by the passive side.
    Ended,
    /// Rejected by the program.
    Rejected,
    /// At a port without a listener.
    Unknown,
    /// Given up by the active side before the answer.
    Cancelled,
    /// Accepted after the request has been repeated.
    Slow,
    /// A second request with the queue pair of a connection.
    Stale,
    /// A service with a queue pair.
    Service,
    ServiceRejected,
    ServiceUnknown,
}

const EXCHANGES: [Exchange; 10] = [
    Exchange::Accepted,
    Exchange::Ended,
    Exchange::Rejected,
    Exchange::Unknown,
    Exchange::Cancelled,
    Exchange::Slow,
    Exchange::Stale,
    Exchange::Service,
    Exchange::ServiceRejected,
    Exchange::ServiceUnknown,
];

/// Runs the exchanges with the passive side at `addr`, or at any address of the family.
pub(crate) fn run(role: Role, control: &mut Control, addr: SocketAddr) -> Result<()> {
    let channel = EventChannel::new()?;
    let listen = |space| -> Result<_> {
        let mut id = channel.create_id_in(space)?;
        id.bind(addr)?;
        Ok(id.listen(8).map_err(|refused| refused.error)?)
    };
    let _listeners = match role {
        Role::Active => None,
        Role::Passive => Some((listen(PortSpace::Tcp)?, listen(PortSpace::Udp)?)),
    };
    for exchange in EXCHANGES {
        control.barrier()?;
        match role {
            Role::Active => {
                control.mark(&format!("{exchange:?}"))?;
                request(exchange, control, addr)?;
            }
            Role::Passive => answer(exchange, control, &channel)?,
        }
        control.barrier()?;
    }
    Ok(())
}

fn next(channel: &EventChannel) -> Result<Event> {
    channel.wait_timeout(TIMEOUT)?.context("no event")
}

/// Takes the next event, of this kind.
macro_rules! expected {
    ($channel:expr, $kind:pat => $value:expr) => {
        match next($channel)? {
            $kind => $value,
            other => bail!("{other:?}"),
        }
    };
}

/// Objects of a device for a queue pair.
struct Objects {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Objects {
    fn new(ctx: &Context) -> Result<Self> {
        Ok(Self {
            pd: ctx.alloc_pd()?,
            cq: ctx.cq_builder(4).create()?,
        })
    }

    fn qp(&self) -> Result<QueuePair<verbs::Rc, Reset>> {
        let builder = self.pd.qp_builder::<verbs::Rc>(&self.cq, &self.cq);
        Ok(builder.create()?)
    }

    fn qp_for_requests(&self) -> Result<QueuePair<verbs::Rc, Init>> {
        let qp = self.qp()?.to_init(&Attributes::<verbs::Rc, Init>::new(1));
        Ok(qp.map_err(|refused| refused.error)?)
    }
}

fn resolve(
    channel: &EventChannel,
    space: PortSpace,
    addr: SocketAddr,
) -> Result<CmId<RouteResolved>> {
    let id = channel.create_id_in(space)?;
    id.resolve_addr(None, addr, TIMEOUT)?;
    let id = expected!(channel, Event::AddrResolved(id) => id);
    id.resolve_route(TIMEOUT)?;
    Ok(expected!(channel, Event::RouteResolved(id) => id))
}

fn connect(
    channel: &EventChannel,
    addr: SocketAddr,
    qp: &QueuePair<verbs::Rc, Init>,
) -> Result<()> {
    let id = resolve(channel, PortSpace::Tcp, addr)?;
    let param = ConnParam::new().private_data(*b"request");
    id.connect(qp, &param).map_err(|refused| refused.error)?;
    Ok(())
}

/// The active side of an exchange.
fn request(exchange: Exchange, control: &mut Control, addr: SocketAddr) -> Result<()> {
    let channel = EventChannel::new()?;
    let unknown = SocketAddr::new(addr.ip(), PORT + 1);
    match exchange {
        Exchange::Service => {
            resolve(&channel, PortSpace::Udp, addr)?.resolve_service(b"request")?;
            expected!(&channel, Event::ServiceResolved { .. } => ());
            return Ok(());
        }
        Exchange::ServiceRejected | Exchange::ServiceUnknown => {
            let is_known = exchange == Exchange::ServiceRejected;
            let addr = if is_known { addr } else { unknown };
            resolve(&channel, PortSpace::Udp, addr)?.resolve_service(b"request")?;
            expected!(&channel, Event::ConnectFailed { .. } => ());
            return Ok(());
        }
        _ => {}
    }
    // The queue pair is on the context of the connection manager.
    let id = resolve(&channel, PortSpace::Tcp, addr)?;
    let objects = Objects::new(&id.context()?)?;
    drop(id);
    let qp = objects.qp_for_requests()?;
    match exchange {
        Exchange::Rejected | Exchange::Unknown => {
            let is_known = exchange == Exchange::Rejected;
            connect(&channel, if is_known { addr } else { unknown }, &qp)?;
            expected!(&channel, Event::ConnectFailed { .. } => ());
        }
        Exchange::Cancelled => {
            connect(&channel, addr, &qp)?;
            control.barrier()?;
            // Destroys the identifier.
            drop(channel);
            control.barrier()?;
        }
        _ => {
            connect(&channel, addr, &qp)?;
            let response = expected!(&channel, Event::ConnectResponse(response) => response);
            let id = response.establish_number(qp.qp_num())?;
            control.barrier()?;
            end(exchange, &channel, &id, |channel| {
                connect(channel, addr, &qp)
            })?;
        }
    }
    Ok(())
}

/// Ends an established connection on the active side; `again` requests another one.
fn end(
    exchange: Exchange,
    channel: &EventChannel,
    id: &CmId<Connected>,
    again: impl Fn(&EventChannel) -> Result<()>,
) -> Result<()> {
    match exchange {
        Exchange::Ended => {
            expected!(channel, Event::Disconnected { .. } => ());
            id.disconnect()?;
        }
        Exchange::Stale => {
            again(channel)?;
            for _ in 0..2 {
                match next(channel)? {
                    Event::ConnectFailed { .. } => {}
                    Event::Disconnected { .. } => id.disconnect()?,
                    other => bail!("{other:?}"),
                }
            }
        }
        _ => {
            id.disconnect()?;
            expected!(channel, Event::Disconnected { .. } => ());
        }
    }
    Ok(())
}

/// The passive side of an exchange.
fn answer(exchange: Exchange, control: &mut Control, channel: &EventChannel) -> Result<()> {
    match exchange {
        Exchange::Unknown | Exchange::ServiceUnknown => Ok(()),
        Exchange::Service => accept_service(service_request(channel)?),
        Exchange::ServiceRejected => Ok(service_request(channel)?.reject(b"rejected")?),
        Exchange::Rejected => Ok(connect_request(channel)?.reject(b"rejected")?),
        Exchange::Cancelled => {
            let request = connect_request(channel)?;
            control.barrier()?;
            control.barrier()?;
            drop(request);
            Ok(())
        }
        _ => {
            let request = connect_request(channel)?;
            if exchange == Exchange::Slow {
                thread::sleep(SLOW);
            }
            let objects = Objects::new(&request.id().context()?)?;
            let qp = objects.qp()?;
            let param = ConnParam::new().private_data(*b"accepted");
            request.accept_number(qp.qp_num(), &param)?;
            let id = expected!(channel, Event::Established(id) => id);
            control.barrier()?;
            if exchange != Exchange::Ended {
                expected!(channel, Event::Disconnected { .. } => ());
            }
            id.disconnect()?;
            if exchange == Exchange::Ended {
                expected!(channel, Event::Disconnected { .. } => ());
            }
            // Events of the end of the time-wait, if the identifier lives as long.
            drop(id);
            Ok(())
        }
    }
}

fn connect_request(channel: &EventChannel) -> Result<ConnectRequest> {
    Ok(expected!(channel, Event::ConnectRequest(request) => request))
}

fn service_request(channel: &EventChannel) -> Result<ServiceRequest> {
    Ok(expected!(channel, Event::ServiceRequest(request) => request))
}

fn accept_service(request: ServiceRequest) -> Result<()> {
    let objects = Objects::new(&request.id().context()?)?;
    let qp = objects
        .pd
        .qp_builder::<Ud>(&objects.cq, &objects.cq)
        .create()?;
    let qp = request.id().ready_datagram_qp(qp)?;
    let _accepted = request.accept(&qp, b"accepted")?;
    Ok(())
}
