//! The client: connects, exchanges one message in each direction, and disconnects.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    process,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use cm::{Event, EventChannel};
use verbs::{Init, QueuePair};

use super::endpoint::{Endpoint, Link, Output, Peer, param};

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Connects to a server, exchanges one message in each direction, and disconnects.
///
/// # Errors
/// The server does not answer, the exchange has failed, or the device or the process is at a limit.
pub fn run(server_address: &str, server_port: u16, output: &Output) -> anyhow::Result<()> {
    let server = resolve(server_address, server_port)?;
    let channel = EventChannel::new()?;
    channel.create_id()?.resolve_addr(None, server, TIMEOUT)?;

    // Resources of the connection between route resolution and establishment.
    let mut making: Option<(Endpoint, QueuePair<verbs::Rc, Init>)> = None;
    let mut connected: Option<Endpoint> = None;
    loop {
        match channel.wait()? {
            Event::AddrResolved(id) => {
                output.line("address resolved.");
                let endpoint = Endpoint::new(id.context()?, output.clone(), disconnect_when_done)?;
                let qp = endpoint.create_qp(&id)?;
                making = Some((endpoint, qp));
                id.resolve_route(TIMEOUT)?;
            }
            Event::RouteResolved(id) => {
                output.line("route resolved.");
                let (_, qp) = making.as_ref().context("the address was not resolved")?;
                id.connect(qp, &param())?;
            }
            Event::ConnectResponse(response) => {
                let (endpoint, qp) = making.take().context("nothing was connected")?;
                {
                    let mut peers = endpoint.peers();
                    let mut connection = response.establish(qp)?;
                    output.line("connected. posting send...");
                    let text =
                        format!("message from active/client side with pid {}", process::id());
                    endpoint.send(&mut connection, &text)?;
                    let key = connection.key();
                    endpoint.add(&mut peers, Peer::new(key, Link::Established(connection)));
                }
                connected = Some(endpoint);
            }
            Event::Disconnected { key, .. } => {
                output.line("disconnected.");
                if let Some(endpoint) = connected {
                    endpoint.end(key);
                    endpoint.wait_until_idle();
                    ensure!(!endpoint.has_failed(), "the exchange has failed");
                }
                return Ok(());
            }
            Event::AddrError { error, .. } | Event::RouteError { error, .. } => {
                return Err(error).with_context(|| format!("no way to {server}"));
            }
            Event::ConnectFailed { failure, .. } => {
                return Err(failure).with_context(|| format!("no connection to {server}"));
            }
            other => anyhow::bail!("on_event: unknown event: {other:?}"),
        }
    }
}

/// Disconnects after one message in each direction.
fn disconnect_when_done(peer: &mut Peer) -> anyhow::Result<()> {
    if let (Link::Established(connection), 2) = (&mut peer.link, peer.completions) {
        connection.disconnect()?;
    }
    Ok(())
}

fn resolve(address: &str, port: u16) -> anyhow::Result<SocketAddr> {
    (address, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {address}"))?
        .next()
        .with_context(|| format!("{address} has no address"))
}
