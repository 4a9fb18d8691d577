//! Memory and threads of many connections, in one process and on one thread.
//!
//! ```text
//! connections ADDR COUNT
//! ```
//!
//! Establishes COUNT connections from this process to itself, through one event channel, and prints
//! `connections COUNT BYTES THREADS`: the growth of the process in bytes per connection, including both ends,
//! and the number of threads while all connections are up. Run by `cargo xtask bench cm`.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

use std::{
    collections::HashMap,
    error::Error,
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use cm::{CmId, ConnParam, Connection, Event, EventChannel, Key, phases::HasDevice};
use verbs::{CompletionQueue, Init, ProtectionDomain, QueuePair, Rts};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Number of connections set up concurrently. More requests than the listener's backlog would be dropped and
/// retransmitted much later.
const WINDOW: usize = 16;

/// Resources shared by all queue pairs.
struct SharedResources {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

/// All connections, both ends.
#[derive(Default)]
struct IdleConnections {
    shared: Option<SharedResources>,
    requested: HashMap<Key, QueuePair<verbs::Rc, Init>>,
    accepted: HashMap<Key, QueuePair<verbs::Rc, Rts>>,
    established: Vec<Connection>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [addr, count, ..] = &arguments[..] else {
        return Err("usage: connections ADDR COUNT".into());
    };
    let (addr, count): (IpAddr, usize) = (addr.parse()?, count.parse()?);
    let channel = EventChannel::new()?;
    let mut listener = channel.create_id()?;
    listener.bind(SocketAddr::new(addr, 0))?;
    let listener = listener.listen(128)?;
    let to = listener.local_addr().ok_or("the listener has no address")?;
    let mut connections = IdleConnections::default();
    // The first connection opens the device shared by all others.
    connections.grow(&channel, to, 1, count)?;
    let before = status("VmRSS:")?;
    connections.grow(&channel, to, count, count)?;
    let grown = status("VmRSS:")?.saturating_sub(before) * 1024;
    let later_connections = u64::try_from(count.saturating_sub(1).max(1))?;
    println!(
        "connections {count} {} {}",
        grown / later_connections,
        status("Threads:")?
    );
    Ok(())
}

impl IdleConnections {
    /// Establishes connections up to `count`; the shared queue has room for all of them.
    fn grow(
        &mut self,
        channel: &EventChannel,
        to: SocketAddr,
        count: usize,
        capacity: usize,
    ) -> Result<()> {
        let mut requested_count = self.established.len() / 2;
        while self.established.len() < 2 * count {
            while requested_count < count && requested_count < self.established.len() / 2 + WINDOW {
                channel.create_id()?.resolve_addr(None, to, TIMEOUT)?;
                requested_count += 1;
            }
            self.on_event(channel.wait()?, capacity)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event, capacity: usize) -> Result<()> {
        match event {
            Event::AddrResolved(id) => id.resolve_route(TIMEOUT)?,
            Event::RouteResolved(id) => {
                let qp = self.qp(&id, capacity)?;
                let key = id.key();
                id.connect(&qp, &ConnParam::new())?;
                self.requested.insert(key, qp);
            }
            Event::ConnectRequest(request) => {
                let qp = self.qp(request.id(), capacity)?;
                let key = request.id().key();
                let qp = request.accept(qp, &ConnParam::new())?;
                self.accepted.insert(key, qp);
            }
            Event::ConnectResponse(response) => {
                let qp = self.requested.remove(&response.id().key());
                let qp = qp.ok_or("no request for this connection")?;
                self.established.push(response.establish(qp)?);
            }
            Event::Established(id) => {
                let qp = self.accepted.remove(&id.key());
                let qp = qp.ok_or("no response for this connection")?;
                let connection = Connection::new(id, qp).map_err(|refused| refused.error)?;
                self.established.push(connection);
            }
            other => return Err(format!("{other:?}").into()),
        }
        Ok(())
    }

    fn qp<P: HasDevice>(
        &mut self,
        id: &CmId<P>,
        capacity: usize,
    ) -> Result<QueuePair<verbs::Rc, Init>> {
        let shared = match &self.shared {
            Some(shared) => shared,
            None => {
                let context = id.context()?;
                // Two ends, with two requests each.
                let cq = context.create_cq(u32::try_from(4 * capacity)?)?;
                let pd = context.alloc_pd()?;
                self.shared.insert(SharedResources { pd, cq })
            }
        };
        let qp = shared
            .pd
            .qp_builder(&shared.cq, &shared.cq)
            .max_send_wr(1)
            .max_recv_wr(1)
            .create()?;
        Ok(id.init_qp(qp)?)
    }
}

/// A number from the kernel's status of this process.
fn status(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number
        .ok_or("no such field in the process status")?
        .parse()?)
}
