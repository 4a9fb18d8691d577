//! The server: listens, and exchanges one message in each direction with each client.

#![expect(clippy::print_stderr, reason = "of a program for the terminal")]

use std::{net::SocketAddr, process};

use anyhow::Context as _;
use cm::{CmId, phases::Connected};
use cm::{ConnectRequest, Connection, Event, EventChannel, Key, Refused};

use super::endpoint::{Endpoint, Link, Output, Peer, param};

/// Maximum number of pending connection requests.
const BACKLOG: u32 = 10;

/// Listens at `addr`, and exchanges one message in each direction with each client, until the given number of clients
/// has disconnected.
///
/// # Errors
/// The address is taken, or the device or the process is at a limit.
pub fn run(addr: SocketAddr, limit: Option<u32>, output: &Output) -> anyhow::Result<()> {
    let channel = EventChannel::new()?;
    let mut listener = channel.create_id()?;
    listener.bind(addr)?;
    let listener = listener.listen(BACKLOG)?;
    let addr = listener
        .local_addr()
        .context("the listener has no address")?;
    output.line(&format!("listening on port {}.", addr.port()));

    let mut endpoint = None;
    let mut clients = 0;
    while limit.is_none_or(|limit| clients < limit) {
        match channel.wait()? {
            Event::ConnectRequest(request) => {
                output.line("received connection request.");
                let endpoint = match &mut endpoint {
                    Some(endpoint) => endpoint,
                    None => {
                        let context = request.id().context()?;
                        endpoint.insert(Endpoint::new(context, output.clone(), |_| Ok(()))?)
                    }
                };
                if let Err(err) = on_connect_request(endpoint, request) {
                    eprintln!("a client cannot be served: {err:#}");
                }
            }
            Event::Established(id) => {
                let endpoint = endpoint.as_ref().context("nothing has been accepted")?;
                if let Err(err) = on_connection(endpoint, id, output) {
                    eprintln!("a client cannot be served: {err:#}");
                }
            }
            Event::Disconnected { key, .. } => {
                output.line("peer disconnected.");
                end(endpoint.as_ref(), key);
                clients += 1;
            }
            Event::ConnectFailed { id, failure } => {
                eprintln!("a client did not get through: {failure}");
                end(endpoint.as_ref(), id.key());
            }
            // No action at the end of the timewait state.
            Event::TimewaitExit(_) => {}
            other => anyhow::bail!("on_event: unknown event: {other:?}"),
        }
    }
    if let Some(endpoint) = endpoint {
        endpoint.wait_until_idle();
    }
    Ok(())
}

fn on_connect_request(endpoint: &Endpoint, request: ConnectRequest) -> anyhow::Result<()> {
    let key = request.id().key();
    let qp = endpoint.create_qp(request.id())?;
    let mut peers = endpoint.peers();
    let qp = request.accept(qp, &param())?;
    endpoint.add(&mut peers, Peer::new(key, Link::Accepted(qp)));
    Ok(())
}

fn on_connection(endpoint: &Endpoint, id: CmId<Connected>, output: &Output) -> anyhow::Result<()> {
    let key = id.key();
    let mut peers = endpoint.peers();
    let qp_id = peers
        .iter()
        .find(|(_, peer)| peer.key == key)
        .map(|(&qp_id, _)| qp_id);
    let peer = qp_id.and_then(|qp_id| peers.remove(&qp_id));
    let Some(Peer {
        link: Link::Accepted(qp),
        completions,
        ..
    }) = peer
    else {
        anyhow::bail!("connection {key:?} was not accepted");
    };
    let mut connection = Connection::new(id, qp).map_err(|Refused { error, .. }| error)?;
    output.line("connected. posting send...");
    let text = format!(
        "message from passive/server side with pid {}",
        process::id()
    );
    endpoint.send(&mut connection, &text)?;
    let mut peer = Peer::new(key, Link::Established(connection));
    peer.completions = completions;
    peers.extend(qp_id.map(|qp_id| (qp_id, peer)));
    Ok(())
}

fn end(endpoint: Option<&Endpoint>, key: Key) {
    if let Some(endpoint) = endpoint {
        endpoint.end(key);
    }
}
