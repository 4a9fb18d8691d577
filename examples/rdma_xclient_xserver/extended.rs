//! Extended reliable connections: the client sends to a shared receive queue of the server. The number of the
//! queue is in the private data of the server's answer.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use cm::{ConnParam, Connection, Event, EventChannel, Refused, XrcConnection, XrcEnd};
use verbs::{Buf, Init, QueuePair, SharedReceiveQueue, op, qp::XrcSend};

use super::message::{MESSAGE_LEN, answer, srq_in};
use crate::cm_tool::failure::Failure;

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the message to a server.
///
/// # Errors
/// Connecting failed, or the device does not support extended reliable connections.
pub fn send(server: SocketAddr) -> anyhow::Result<()> {
    let channel = EventChannel::new()?;
    let local = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let id = channel.create_xrc_id(XrcEnd::Send, SocketAddr::new(local, 0))?;
    id.resolve_addr(None, server, TIMEOUT)?;
    let id = match channel.wait()? {
        Event::AddrResolved(id) => id,
        Event::AddrError { error, .. } => bail!(Failure::of_addr(&error)),
        other => bail!("unexpected: {other:?}"),
    };
    id.resolve_route(TIMEOUT)?;
    let id = match channel.wait()? {
        Event::RouteResolved(id) => id,
        Event::RouteError { error, .. } => bail!(Failure::of_route(&error)),
        other => bail!("unexpected: {other:?}"),
    };
    let ctx = id.context()?;
    let (pd, mut cq) = (ctx.alloc_pd()?, ctx.cq_builder(1).waitable().create()?);
    let qp = pd.qp_builder::<XrcSend>(&cq, &cq).max_send_wr(1);
    let qp = qp.max_inline_data(16).create_for::<Option<Buf>, Buf>()?;
    let qp: QueuePair<XrcSend, Init, _, _> = id.init_qp(qp)?;
    id.connect(&qp, &ConnParam::new())?;
    let response = match channel.wait()? {
        Event::ConnectResponse(response) => response,
        Event::ConnectFailed { failure, .. } => bail!(Failure::from(&failure)),
        other => bail!("unexpected: {other:?}"),
    };
    let queue =
        srq_in(&response.param().private_data).context("no queue number in the server's answer")?;
    let mut connection: Connection<_, _, XrcSend> = response.establish(qp)?;
    let message = op::Send::new(None).inline(&[0; MESSAGE_LEN]);
    connection.qp_mut().post(op::ToSrq::new(message, queue))?;
    for wc in cq.wait(None)? {
        wc.ok()?;
        let done = connection.qp_mut().complete(wc);
        ensure!(done.is_ok(), "a completion of nothing");
    }
    Ok(())
}

/// Receives the message of one client.
///
/// # Errors
/// The address is in use, or the device does not support extended reliable connections.
pub fn receive(addr: SocketAddr) -> anyhow::Result<()> {
    let channel = EventChannel::new()?;
    let _listener = channel.create_xrc_id(XrcEnd::Receive, addr)?.listen(0)?;
    let Event::ConnectRequest(request) = channel.wait()? else {
        bail!("no request")
    };
    let ctx = request.id().context()?;
    let xrcd = ctx.open_xrcd()?;
    let qp = request.id().init_xrc_receiver(xrcd.create_qp()?)?;
    let (pd, mut cq) = (ctx.alloc_pd()?, ctx.cq_builder(1).waitable().create()?);
    let mut srq: SharedReceiveQueue = pd.create_xrc_srq(&xrcd, &cq, 1, 1)?;
    srq.post(pd.alloc_buf(MESSAGE_LEN)?)?;
    let qp = request.accept_xrc(qp, &answer(Some(srq.srq_num()?)))?;
    let _connection = match channel.wait()? {
        Event::Established(id) => {
            XrcConnection::new(id, qp).map_err(|Refused { error, .. }| error)?
        }
        Event::ConnectFailed { failure, .. } => bail!(Failure::from(&failure)),
        other => bail!("unexpected: {other:?}"),
    };
    for wc in cq.wait(None)? {
        wc.ok()?;
        let done = srq.complete(wc);
        let len = done.ok().context("a completion of nothing")?.byte_len();
        ensure!(len == MESSAGE_LEN, "the peer has sent {len} bytes");
    }
    Ok(())
}
