//! The server of the-geek-in-the-corner's first example, in safe Rust.
//!
//! Listens, and exchanges one message in each direction with each client. Interoperates with the C program of
//! the same name.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process,
};

use anyhow::Context as _;
use clap::Parser;
use cm::{CmId, phases::Connected};
use cm::{ConnParam, ConnectRequest, Connection, Event, EventChannel, Key, Refused};

use examples::basic_client_server::endpoint::{Endpoint, Link, Peer, die};

/// Waits for clients, and exchanges one message with each
#[derive(Parser)]
#[command(name = "basic-server")]
struct Options {
    /// Listen on an IPv6 address, instead of an IPv4 one
    #[arg(short = '6', long)]
    ipv6: bool,
    /// The port to listen on; 0 takes a free one
    #[arg(short, long, default_value_t = 0)]
    port: u16,
    /// Exit after this number of clients, instead of never
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<u32>,
}

/// Maximum number of pending connection requests.
const BACKLOG: u32 = 10;

fn main() {
    if let Err(err) = serve(&Options::parse()) {
        die(&err);
    }
}

fn serve(options: &Options) -> anyhow::Result<()> {
    let any: IpAddr = match options.ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let channel = EventChannel::new()?;
    let mut listener = channel.create_id()?;
    listener.bind(SocketAddr::new(any, options.port))?;
    let listener = listener.listen(BACKLOG)?;
    let addr = listener
        .local_addr()
        .context("the listener has no address")?;
    println!("listening on port {}.", addr.port());

    let mut endpoint = None;
    let mut clients = 0;
    while options.clients.is_none_or(|limit| clients < limit) {
        match channel.wait()? {
            Event::ConnectRequest(request) => {
                println!("received connection request.");
                let endpoint = match &mut endpoint {
                    Some(endpoint) => endpoint,
                    None => endpoint.insert(Endpoint::new(request.id().context()?, |_| Ok(()))?),
                };
                if let Err(err) = on_connect_request(endpoint, request) {
                    eprintln!("a client cannot be served: {err:#}");
                }
            }
            Event::Established(id) => {
                let endpoint = endpoint.as_ref().context("nothing has been accepted")?;
                if let Err(err) = on_connection(endpoint, id) {
                    eprintln!("a client cannot be served: {err:#}");
                }
            }
            Event::Disconnected { key, .. } => {
                println!("peer disconnected.");
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
    let qp = request.accept(qp, &ConnParam::zeroed())?;
    endpoint.add(&mut peers, Peer::new(key, Link::Accepted(qp)));
    Ok(())
}

fn on_connection(endpoint: &Endpoint, id: CmId<Connected>) -> anyhow::Result<()> {
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
    println!("connected. posting send...");
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
