//! `ibv_xsrq_pingpong` in safe Rust: messages to and fro between a server and several clients over extended
//! reliable connections. Each message names the shared receive queue for delivery.
//!
//! The server answers each client through the connections of all clients in turn, so all clients must run on
//! one host and share the XRC domain. Interoperates with the C program on either side.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{fs::File, os::fd::AsFd as _, process::ExitCode};

use anyhow::{Context as _, bail};
use clap::Parser;
use examples::pingpong::{
    address::Address,
    options::{Options, finish, mtu, number, positive, service_level},
    setup::{Needed, Setup},
    xrc_exchange::{Peer, XrcAddress, call, end_client, end_server, listen, serve},
};
use verbs::{
    Completed, CompletionQueue, Init, QueuePair, RemoteRegion, Rtr, Rts, SharedReceiveQueue,
    attr::Mtu,
    op,
    qp::{Attributes, XrcReceiver, XrcRecv, XrcSend},
    work::With,
    xrcd::{XrcDomain, XrcdOpen},
};

/// Exchanges messages between a server and clients over extended reliable connections
#[derive(Parser)]
#[command(name = "xsrq_pingpong", args_override_self = true)]
struct CommandLine {
    /// Connect to the server on this host; without a host, run the server
    host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value_t = 18515, value_parser = number::<u16>)]
    port: u16,
    /// Use this device, instead of the first one
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short, long, value_name = "PORT", default_value_t = 1, value_parser = positive::<u8>)]
    ib_port: u8,
    /// Message size, in bytes
    #[arg(short, long, default_value_t = 4096, value_parser = number::<u32>)]
    size: u32,
    /// The path MTU, in bytes
    #[arg(short, long, value_name = "SIZE", default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
    /// Number of clients of the server
    #[arg(short, long, default_value_t = 1, value_parser = positive::<u32>)]
    clients: u32,
    /// Number of messages in each direction, for each client
    #[arg(short, long = "num_tests", default_value_t = 5, value_parser = positive::<u32>)]
    num_tests: u32,
    /// The service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = service_level)]
    sl: u8,
    /// Sleep until there are completions, instead of polling
    #[arg(short, long)]
    events: bool,
    /// Page memory in on demand
    #[arg(short, long)]
    odp: bool,
    /// Index of this side's address in the port's GID table; required on RoCE
    #[arg(short, long, value_name = "INDEX", value_parser = number::<u8>)]
    gid_idx: Option<u8>,
}

/// File representing the XRC domain of all clients on a host.
const DOMAIN: &str = "/tmp/xrc_domain";

/// A message, and whether the message is the client's last.
type Message = With<RemoteRegion, bool>;

type Sender<S> = QueuePair<XrcSend, S, Message, ()>;

fn main() -> ExitCode {
    finish(run(CommandLine::parse()))
}

fn run(line: CommandLine) -> anyhow::Result<()> {
    let clients = if line.host.is_some() { 1 } else { line.clients };
    let options = Options {
        host: line.host,
        port: line.port,
        ib_dev: line.ib_dev,
        ib_port: line.ib_port,
        rx_depth: clients,
        iters: line.num_tests,
        sl: line.sl,
        events: line.events,
        gid_idx: line.gid_idx,
        chk: false,
    };
    let requests = clients
        .checked_mul(line.num_tests)
        .context("too many messages")?;
    let mut setup = match line.odp {
        true => Setup::on_demand(&options, line.size, 0, Needed::Extended)?,
        false => Setup::new(&options, line.size, 0, 0)?,
    };
    let mut side = Side::new(&setup, &options, requests)?;

    let local = side.addresses(&setup)?;
    for address in &local {
        println!("   local: {address}");
    }
    let mut found = local.iter();
    let mut connect = |side: &mut Side, remote: &XrcAddress| {
        println!("  remote: {remote}");
        let local = found.next().context("there is one client too many")?;
        side.connect(&setup, local, remote, line.mtu)
    };
    let mut peers: Vec<Peer> = match &options.host {
        Some(host) => {
            let first = local.first().context("there is no local address")?;
            let server = call(host, options.port, first)?;
            connect(&mut side, &server.remote)?;
            vec![server]
        }
        None => serve(&listen(options.port)?, &local, |remote| {
            connect(&mut side, remote)
        })?,
    };

    if options.host.is_none() {
        for client in 0..side.links.len() {
            side.send(client)?;
        }
    }
    side.play(&mut setup.cq, options.events, requests)?;
    side.finish()?;
    match &mut peers[..] {
        [server] if options.host.is_some() => end_client(server)?,
        clients => end_server(clients)?,
    }
    println!("success");
    Ok(())
}

/// This side, and the route to each peer.
struct Side {
    srq: SharedReceiveQueue<RemoteRegion>,
    send_cq: CompletionQueue,
    /// Unconnected queue pairs, the next one last.
    idle: Vec<(XrcReceiver<Init>, Sender<Init>)>,
    links: Vec<Link>,
    message: RemoteRegion,
    tests: u32,
}

/// A peer.
struct Link {
    receiver: XrcReceiver<Rts>,
    sender: Sender<Rts>,
    remote: XrcAddress,
    /// Number of messages sent to the peer, through any connection.
    sent: u32,
}

impl Side {
    fn new(setup: &Setup, options: &Options, requests: u32) -> anyhow::Result<Self> {
        let (pd, clients) = (&setup.pd, options.rx_depth);
        let xrcd = open_domain(setup).context(
            "couldn't open the XRC domain: the device may lack extended reliable connections (XRC)",
        )?;
        let mut srq = pd
            .create_xrc_srq(&xrcd, &setup.cq, clients, 1)
            .context("couldn't create the XRC shared receive queue")?;
        let entries = requests.saturating_mul(clients);
        let send_cq = pd.context().create_cq(entries)?;
        let mut idle = Vec::new();
        for _ in 0..clients {
            let receiver = xrcd.create_qp()?;
            let init = Attributes::<XrcRecv, Init>::new(options.ib_port);
            let receiver = receiver.to_init(&init)?;
            let sender = pd.qp_builder::<XrcSend>(&send_cq, &send_cq);
            let sender: Sender<_> = sender.max_send_wr(requests).create_for()?;
            let init = Attributes::<XrcSend, Init>::new(options.ib_port);
            idle.push((receiver, sender.to_init(&init)?));
        }
        idle.reverse();
        for _ in 0..clients {
            srq.post(setup.buffer()).context("couldn't post receive")?;
        }
        Ok(Self {
            srq,
            send_cq,
            idle,
            links: Vec::new(),
            message: setup.message(),
            tests: options.iters,
        })
    }

    /// Addresses for the peers, in the order of connecting.
    fn addresses(&self, setup: &Setup) -> anyhow::Result<Vec<XrcAddress>> {
        let srqn = self.srq.srq_num().context("couldn't get SRQ num")?;
        let addresses = self.idle.iter().rev().map(|(receiver, sender)| {
            let Address { lid, psn, gid, .. } = setup.address(receiver.qp_num());
            XrcAddress {
                lid,
                recv_qpn: receiver.qp_num(),
                send_qpn: sender.qp_num(),
                psn,
                srqn,
                gid,
            }
        });
        Ok(addresses.collect())
    }

    /// Connects the next queue pairs: the receiving one to the peer's sending one, and vice versa.
    fn connect(
        &mut self,
        setup: &Setup,
        local: &XrcAddress,
        remote: &XrcAddress,
        mtu: Mtu,
    ) -> anyhow::Result<()> {
        let (receiver, sender) = self.idle.pop().context("there is one peer too many")?;
        let XrcAddress { lid, psn, gid, .. } = *remote;
        let to = |qpn| Address { lid, qpn, psn, gid };
        let address_vector = setup.address_vector(&to(remote.send_qpn))?;
        let rtr = Attributes::<XrcRecv, Rtr>::new(&address_vector, remote.send_qpn, psn).mtu(mtu);
        let receiver = receiver.to_rtr(&rtr)?;
        let receiver = receiver.to_rts(&Attributes::<XrcRecv, Rts>::new(local.psn))?;
        let rtr = Attributes::<XrcSend, Rtr>::new(&address_vector, remote.recv_qpn, psn).mtu(mtu);
        let sender = sender.to_rtr(&rtr)?;
        let sender = sender.to_rts(&Attributes::<XrcSend, Rts>::new(local.psn))?;
        self.links.push(Link {
            receiver,
            sender,
            remote: *remote,
            sent: 0,
        });
        Ok(())
    }

    /// Sends a message to a peer's queue, through the connections of all peers in turn. The last message is
    /// signaled.
    fn send(&mut self, peer: usize) -> anyhow::Result<()> {
        let Link { remote, sent, .. } = &mut self.links[peer];
        let srqn = remote.srqn;
        let through = peer + usize::try_from(*sent)?;
        *sent += 1;
        let last = *sent >= self.tests;
        let message = op::Send::new(With::new(self.message.clone(), last));
        let message = if last { message } else { message.unsignaled() };
        let through = through % self.links.len();
        self.links[through]
            .sender
            .post(op::ToSrq::new(message, srqn))
            .context("couldn't post send")
    }

    /// Answers messages until the expected number has been received.
    fn play(
        &mut self,
        cq: &mut CompletionQueue,
        events: bool,
        messages: u32,
    ) -> anyhow::Result<()> {
        let mut received = 0;
        while received < messages {
            let completions = match events {
                true => cq.wait(None)?,
                false => cq.poll()?,
            };
            for wc in completions {
                wc.ok().context("a receive has failed")?;
                let number = wc.qp_num();
                let buffer = match self.srq.complete(wc) {
                    Ok(done) => done.into_work()?,
                    Err(wc) => bail!("{wc:?} belongs to no request"),
                };
                self.srq.post(buffer).context("couldn't post receive")?;
                // With a single peer, messages for the queue may arrive through any connection of the peer's
                // host.
                let found = |link: &Link| link.receiver.qp_num() == number;
                let peer = match self.links.len() {
                    1 => 0,
                    _ => self
                        .links
                        .iter()
                        .position(found)
                        .with_context(|| format!("unable to find QP {number}"))?,
                };
                if self.links[peer].sent < self.tests {
                    self.send(peer)?;
                }
                received += 1;
            }
        }
        Ok(())
    }

    /// Blocks until the last message to each peer has completed.
    fn finish(&mut self) -> anyhow::Result<()> {
        let mut remaining = self.links.len();
        while remaining > 0 {
            for wc in self.send_cq.poll()? {
                wc.ok().context("a send has failed")?;
                let id = wc.qp_id();
                let mut senders = self.links.iter_mut().map(|link| &mut link.sender);
                let sender = senders.find(|sender| sender.id() == id);
                match sender.context("unable to find QP")?.complete(wc) {
                    Ok(Completed::Send(done)) => {
                        remaining -= usize::from(done.into_work()?.context)
                    }
                    other => bail!("{other:?} is not of a send"),
                }
            }
        }
        Ok(())
    }
}

/// Opens the XRC domain of all clients on this host, or a private one where the file is not usable.
fn open_domain(setup: &Setup) -> verbs::Result<XrcDomain> {
    let context = setup.pd.context();
    // Another user may have created the file, readable for others only.
    let file = File::open(DOMAIN).or_else(|_| {
        let mut create = File::options();
        create.append(true).create(true).open(DOMAIN)
    });
    match file {
        Ok(file) => context.open_shared_xrcd(file.as_fd(), XrcdOpen::CREATE),
        Err(_) => context.open_xrcd(),
    }
}
