//! Messages of the connection manager: accepted and rejected connections and services.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use cm::{CmId, Event, EventChannel, PortSpace, phases::RouteResolved};
use verbs::Ud;

use crate::{PORT, control::Control, side::TIMEOUT};

fn next(channel: &EventChannel) -> Result<Event> {
    channel.wait_timeout(TIMEOUT)?.context("no event")
}

/// Accepts a connection, ended by the peer, and rejects another one; the same with services.
pub(crate) fn passive(control: &mut Control, is_ipv4: bool) -> Result<()> {
    let any = match is_ipv4 {
        true => SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)),
        false => SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)),
    };
    let listener = cm::EndpointBuilder::new().timeout(TIMEOUT).listen(any)?;
    control.barrier()?;
    let mut connection = listener.accept()?;
    connection.post_recv(connection.reg_msgs([0; 64])?)?;
    // Flushed by the peer's end of the connection.
    ensure!(connection.recv_comp()?.ok().is_err(), "a message");
    connection.disconnect()?;
    listener.request()?.reject(b"rejected")?;
    control.barrier()?;
    services(control, any)
}

fn services(control: &mut Control, any: SocketAddr) -> Result<()> {
    let channel = EventChannel::new()?;
    let mut id = channel.create_id_in(PortSpace::Udp)?;
    id.bind(any)?;
    let _listener = id.listen(8)?;
    control.barrier()?;
    let Event::ServiceRequest(request) = next(&channel)? else {
        bail!("no request")
    };
    let ctx = request.id().context()?;
    let (pd, cq) = (ctx.alloc_pd()?, ctx.cq_builder(4).create()?);
    let qp = pd.qp_builder::<Ud>(&cq, &cq).create()?;
    let qp = request.id().ready_datagram_qp(qp)?;
    let _accepted = request.accept(&qp, b"accepted")?;
    let Event::ServiceRequest(request) = next(&channel)? else {
        bail!("no second request")
    };
    request.reject(b"rejected")?;
    control.barrier()
}

/// Requests an accepted, a rejected and an unknown connection, and the same services.
pub(crate) fn active(control: &mut Control, addr: SocketAddr) -> Result<()> {
    let unknown = SocketAddr::new(addr.ip(), PORT + 1);
    let builder = cm::EndpointBuilder::new().timeout(TIMEOUT);
    control.barrier()?;
    builder.connect(addr)?.disconnect()?;
    for addr in [addr, unknown] {
        ensure!(builder.connect(addr).is_err(), "accepted");
    }
    control.barrier()?;
    control.barrier()?;
    let channel = EventChannel::new()?;
    let accepted = ask(&channel, addr)?;
    ensure!(
        matches!(accepted, Event::ServiceResolved { .. }),
        "{accepted:?}"
    );
    for addr in [addr, unknown] {
        let rejected = ask(&channel, addr)?;
        ensure!(
            matches!(rejected, Event::ConnectFailed { .. }),
            "{rejected:?}"
        );
    }
    control.barrier()
}

/// Requests the service of an address, and returns the answer.
fn ask(channel: &EventChannel, addr: SocketAddr) -> Result<Event> {
    resolve(channel, addr)?.resolve_service(b"request")?;
    next(channel)
}

fn resolve(channel: &EventChannel, addr: SocketAddr) -> Result<CmId<RouteResolved>> {
    let id = channel.create_id_in(PortSpace::Udp)?;
    id.resolve_addr(None, addr, TIMEOUT)?;
    let Event::AddrResolved(id) = next(channel)? else {
        bail!("no address")
    };
    id.resolve_route(TIMEOUT)?;
    match next(channel)? {
        Event::RouteResolved(id) => Ok(id),
        other => bail!("{other:?}"),
    }
}
