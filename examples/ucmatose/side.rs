//! Event handling of the two sides, from the first event to the last.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

use std::{collections::BTreeMap, io, time::Duration};

use anyhow::{Context as _, bail};
use cm::{
    AddrHints, CmId, ConnParam, ConnectRequest, Connection, Event, EventChannel, Key, PortSpace,
    Refused,
    phases::{AddrResolved, Connected, Listening, RouteResolved},
};
use examples::cm_tool::{address, failure::Failure};

use crate::{
    Format, Options, Space,
    node::{InitQp, Messages, Node, ReadyQp},
};

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the side selected by the options.
///
/// # Errors
/// A connection attempt or a connection has failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut side = Side {
        options,
        greeting: Vec::new(),
        making: BTreeMap::new(),
        accepted: BTreeMap::new(),
        nodes: BTreeMap::new(),
        channel: EventChannel::new()?,
        connects_left: options.connections,
        disconnects_left: 0,
    };
    match &options.server {
        Some(server) => side.call(server),
        None => side.serve(),
    }
}

struct Side<'a> {
    options: &'a Options,
    /// Header required at the start of a request's private data.
    greeting: Vec<u8>,
    /// Connections of the active side before establishment.
    making: BTreeMap<Key, (InitQp, Messages)>,
    /// Connections accepted, but not established yet.
    accepted: BTreeMap<Key, (ReadyQp, Messages)>,
    nodes: BTreeMap<Key, Node>,
    channel: EventChannel,
    connects_left: u32,
    /// Number of connections not disconnected yet.
    disconnects_left: u32,
}

impl Side<'_> {
    fn serve(&mut self) -> anyhow::Result<()> {
        println!("cmatose: starting server");
        let mut listener = self.channel.create_id_in(self.port_space())?;
        let addr = address::to_listen(
            &self.hints(),
            self.options.bind.as_deref(),
            &self.options.port,
        )?;
        listener.bind(addr)?;
        let mut listener = listener.listen(0)?;
        self.connect_events()?;
        if self.has_messages() {
            println!("initiating data transfers");
            self.each_node(Node::post_sends)?;
            println!("completing sends");
            self.each_node(Node::complete_sends)?;
            println!("receiving data transfers");
            self.each_node(Node::complete_receives)?;
            println!("data transfers complete");
        }
        if self.options.migrate {
            self.migrate(Some(&mut listener))?;
        }
        println!("cmatose: disconnecting");
        self.each_node(|node| disconnect(&mut node.connection))?;
        self.disconnect_events()?;
        println!("disconnected");
        Ok(())
    }

    fn call(&mut self, server: &str) -> anyhow::Result<()> {
        println!("cmatose: starting client");
        let bind = self.options.bind.as_deref();
        let target = address::to_connect(&self.hints(), bind, server, &self.options.port)?;
        self.greeting = target.connect;
        println!("cmatose: connecting");
        for _ in 0..self.options.connections {
            let id = self.channel.create_id_in(self.port_space())?;
            id.resolve_addr(target.from, target.to, TIMEOUT)?;
        }
        self.connect_events()?;
        if self.has_messages() {
            println!("receiving data transfers");
            self.each_node(Node::complete_receives)?;
            println!("sending replies");
            self.each_node(Node::post_sends)?;
            println!("data transfers complete");
        }
        if self.options.migrate {
            self.migrate(None)?;
        }
        self.disconnect_events()
    }

    fn port_space(&self) -> PortSpace {
        match self.options.port_space {
            Space::Tcp => PortSpace::Tcp,
            Space::Ib => PortSpace::Ib,
        }
    }

    fn hints(&self) -> AddrHints {
        let hints = AddrHints::new().port_space(self.port_space());
        match self.options.format {
            Format::Ip => hints.numeric_host(),
            Format::Gid => hints.numeric_host().infiniband(),
            Format::Name => hints,
        }
    }

    fn has_messages(&self) -> bool {
        self.options.size > 0 && self.options.count > 0
    }

    fn each_node(
        &mut self,
        act: impl FnMut(&mut Node) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.nodes.values_mut().try_for_each(act)
    }

    /// Moves all identifiers to another event channel, and closes the first one.
    fn migrate(&mut self, listener: Option<&mut CmId<Listening>>) -> anyhow::Result<()> {
        println!("migrating to new event channel");
        let channel = EventChannel::new()?;
        if let Some(listener) = listener {
            listener.migrate(&channel)?;
        }
        self.each_node(|node| Ok(node.connection.migrate(&channel)?))?;
        self.channel = channel;
        Ok(())
    }

    fn connect_events(&mut self) -> anyhow::Result<()> {
        while self.connects_left > 0 {
            let event = self.channel.wait()?;
            self.on_event(event)?;
        }
        Ok(())
    }

    fn disconnect_events(&mut self) -> anyhow::Result<()> {
        while self.disconnects_left > 0 {
            let event = self.channel.wait()?;
            self.on_event(event)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::AddrResolved(id) => self.resolve_route(id),
            Event::RouteResolved(id) => self.connect(id),
            Event::ConnectResponse(response) => {
                let making = self.making.remove(&response.id().key());
                let (qp, messages) = making.context("nothing was connected")?;
                self.establish(response.establish(qp)?, messages);
                Ok(())
            }
            Event::ConnectRequest(request) => self.accept(request),
            Event::Established(id) => self.join(id),
            Event::AddrError { error, .. } => fail(Failure::of_addr(&error)),
            Event::RouteError { error, .. } => fail(Failure::of_route(&error)),
            Event::ConnectFailed { failure, .. } => fail(Failure::from(&failure)),
            Event::Disconnected { key, .. } => {
                if let Some(node) = self.nodes.get_mut(&key) {
                    self.disconnects_left -= 1;
                    disconnect(&mut node.connection)?;
                }
                Ok(())
            }
            // No action: all resources are dropped at the end.
            _ => Ok(()),
        }
    }

    fn resolve_route(&self, mut id: CmId<AddrResolved>) -> anyhow::Result<()> {
        if let Some(tos) = self.options.tos {
            id.set_tos(tos)?;
        }
        if let Some(timeout) = self.options.ack_timeout {
            id.set_ack_timeout(timeout)?;
        }
        Ok(id.resolve_route(TIMEOUT)?)
    }

    fn connect(&mut self, id: CmId<RouteResolved>) -> anyhow::Result<()> {
        let (qp, messages) = self.prepare(&id)?;
        let key = id.key();
        let param = ConnParam::zeroed()
            .responder_resources(1)
            .initiator_depth(1)
            .retry_count(5)
            .private_data(self.greeting.clone());
        id.connect(&qp, &param)?;
        self.making.insert(key, (qp, messages));
        Ok(())
    }

    fn accept(&mut self, mut request: ConnectRequest) -> anyhow::Result<()> {
        let created = self.accepted.len() + self.nodes.len();
        if created == usize::try_from(self.options.connections)? {
            println!("cmatose: failing connection request");
            request.reject(&[])?;
            bail!("there are more connections than {created}");
        }
        let (qp, messages) = self.prepare(request.id())?;
        if let Some(timeout) = self.options.ack_timeout {
            request.id_mut().set_ack_timeout(timeout)?;
        }
        let key = request.id().key();
        let qp = request.accept(qp, &ConnParam::new())?;
        self.accepted.insert(key, (qp, messages));
        Ok(())
    }

    fn prepare<P: cm::phases::HasDevice>(
        &self,
        id: &CmId<P>,
    ) -> anyhow::Result<(InitQp, Messages)> {
        let count = if self.has_messages() {
            self.options.count
        } else {
            0
        };
        Messages::prepare(id, count, self.options.size)
    }

    fn join(&mut self, id: CmId<Connected>) -> anyhow::Result<()> {
        let accepted = self.accepted.remove(&id.key());
        let (qp, messages) = accepted.context("nothing was accepted")?;
        let connection = Connection::new(id, qp).map_err(|Refused { error, .. }| error)?;
        self.establish(connection, messages);
        Ok(())
    }

    fn establish(
        &mut self,
        connection: Connection<verbs::SharedBuf, verbs::Buf>,
        messages: Messages,
    ) {
        let node = Node {
            connection,
            messages,
        };
        self.nodes.insert(node.connection.key(), node);
        self.connects_left -= 1;
        self.disconnects_left += 1;
    }
}

fn fail(failure: Failure) -> anyhow::Result<()> {
    println!("cmatose: {failure}");
    bail!(failure)
}

/// Disconnects, or answers a disconnect of the peer.
fn disconnect(connection: &mut Connection<verbs::SharedBuf, verbs::Buf>) -> anyhow::Result<()> {
    match connection.disconnect() {
        Err(err) if err.kind() == io::ErrorKind::InvalidInput => Ok(()),
        ended => Ok(ended?),
    }
}
