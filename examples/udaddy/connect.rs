//! Resolving the address for datagrams, and answering such requests.

use std::time::Duration;

use anyhow::{Context as _, bail};
use cm::{
    CmId, Event, EventChannel,
    phases::{Listening, ServiceResolved},
};

use super::{node::Node, options::Options};
use crate::cm_tool::address;

/// Port number, the same on both sides and in the C program.
const PORT: &str = "7174";
/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Requests the server's datagram address. The identifier is not needed afterwards.
///
/// # Errors
/// The server is unreachable or has rejected the request.
pub fn call(channel: &EventChannel, options: &Options) -> anyhow::Result<Node> {
    let server = options.server.as_deref().context("there is no server")?;
    let bind = options.bind.as_deref();
    let target = address::to_connect(&options.hints(), bind, server, PORT)?;
    let id = channel.create_id_in(options.space)?;
    id.resolve_addr(target.from, target.to, TIMEOUT)?;
    let mut id = match channel.wait()? {
        Event::AddrResolved(id) => id,
        Event::AddrError { error, .. } => return Err(error.into()),
        other => bail!("unexpected: {other:?}"),
    };
    if let Some(tos) = options.tos {
        id.set_tos(tos)?;
    }
    id.resolve_route(TIMEOUT)?;
    let id = match channel.wait()? {
        Event::RouteResolved(id) => id,
        Event::RouteError { error, .. } => return Err(error.into()),
        other => bail!("unexpected: {other:?}"),
    };
    let mut node = Node::new(&id, options)?;
    id.resolve_service(&target.connect)?;
    let (_id, peer): (CmId<ServiceResolved>, _) = match channel.wait()? {
        Event::ServiceResolved { id, peer } => (id, peer),
        Event::ConnectFailed { failure, .. } => return Err(failure.into()),
        other => bail!("unexpected: {other:?}"),
    };
    node.peer = Some(peer.destination(&node.pd)?);
    Ok(node)
}

/// Listens, and answers the configured number of peers.
///
/// # Errors
/// The address is in use, or a device has failed.
pub fn accept(
    channel: &EventChannel,
    options: &Options,
) -> anyhow::Result<(CmId<Listening>, Vec<Node>)> {
    let addr = address::to_listen(&options.hints(), options.bind.as_deref(), PORT)?;
    let mut id = channel.create_id_in(options.space)?;
    id.bind(addr)?;
    let listener = id.listen(0)?;
    let mut nodes = Vec::new();
    for _ in 0..options.connections {
        let request = match channel.wait()? {
            Event::ServiceRequest(request) => request,
            other => bail!("unexpected: {other:?}"),
        };
        let node = Node::new(request.id(), options)?;
        request.accept(&node.qp, b"")?;
        nodes.push(node);
    }
    Ok((listener, nodes))
}
