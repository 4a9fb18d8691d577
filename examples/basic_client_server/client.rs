//! The client of the-geek-in-the-corner's first example, in safe Rust.
//!
//! Connects to a server, sends one message, receives one and disconnects. Interoperates with the C program of
//! the same name.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    net::{SocketAddr, ToSocketAddrs},
    process,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use cm::{ConnParam, Event, EventChannel};
use verbs::{Init, QueuePair};

use examples::basic_client_server::endpoint::{Endpoint, Link, Peer, die};

/// Exchanges one message with a server
#[derive(Parser)]
#[command(name = "basic-client")]
struct Options {
    /// The server's address, or its name
    server_address: String,
    /// The server's port, as printed by the server
    server_port: u16,
}

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_millis(500);

fn main() {
    if let Err(err) = run(&Options::parse()) {
        die(&err);
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let server = resolve(options)?;
    let channel = EventChannel::new()?;
    channel.create_id()?.resolve_addr(None, server, TIMEOUT)?;

    // Resources of the connection between route resolution and establishment.
    let mut making: Option<(Endpoint, QueuePair<verbs::Rc, Init>)> = None;
    let mut made: Option<Endpoint> = None;
    loop {
        match channel.wait()? {
            Event::AddrResolved(id) => {
                println!("address resolved.");
                let endpoint = Endpoint::new(id.context()?, disconnect_when_done)?;
                let qp = endpoint.create_qp(&id)?;
                making = Some((endpoint, qp));
                id.resolve_route(TIMEOUT)?;
            }
            Event::RouteResolved(id) => {
                println!("route resolved.");
                let (_, qp) = making.as_ref().context("the address was not resolved")?;
                id.connect(qp, &ConnParam::zeroed())?;
            }
            Event::ConnectResponse(response) => {
                let (endpoint, qp) = making.take().context("nothing was connected")?;
                {
                    let mut peers = endpoint.peers();
                    let mut connection = response.establish(qp)?;
                    println!("connected. posting send...");
                    let text =
                        format!("message from active/client side with pid {}", process::id());
                    endpoint.send(&mut connection, &text)?;
                    let key = connection.key();
                    endpoint.add(&mut peers, Peer::new(key, Link::Established(connection)));
                }
                made = Some(endpoint);
            }
            Event::Disconnected { key, .. } => {
                println!("disconnected.");
                if let Some(endpoint) = made {
                    endpoint.end(key);
                    endpoint.wait_until_idle();
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

fn resolve(options: &Options) -> anyhow::Result<SocketAddr> {
    let Options {
        server_address,
        server_port,
    } = options;
    (server_address.as_str(), *server_port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {server_address}"))?
        .next()
        .with_context(|| format!("{server_address} has no address"))
}
