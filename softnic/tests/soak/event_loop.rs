//! Event loops of `cm`.

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
};

use cm::{
    ConnParam, Endpoint, EndpointBuilder,
    event_loop::{EventLoop, InitQp, Next, Protocol, Qp},
};
use fastrand::Rng;
use softnic::{Fabric, Host, Limits};
use verbs::{Buf, Completed, ProtectionDomain, op};

use crate::{
    TEST_TIMEOUT,
    half_open::{HalfOpen, request_with},
    run_exclusively, soak,
};

type AnyError = Box<dyn Error + Send + Sync>;

/// Number of hostile actions before the next honest client.
const ACTIONS: usize = 24;

/// Echoes messages.
struct Echo;

impl Protocol for Echo {
    type Send = Buf;
    type Receive = Buf;
    type State = ();
    type Error = AnyError;

    fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> Result<(), AnyError> {
        Ok(qp.post_recv(pd.alloc_buf(64)?)?)
    }

    fn completed(
        &mut self,
        (): &mut (),
        qp: &mut Qp<Self>,
        done: Completed<'_, Buf, Buf>,
    ) -> Result<Next, AnyError> {
        match done {
            Completed::Receive(message) => qp.post(op::Send::new(message.into_work()?))?,
            Completed::Send(sent) => qp.post_recv(sent.into_work()?)?,
        }
        Ok(Next::Wait)
    }
}

fn connect(source: SocketAddr, addr: SocketAddr) -> verbs::Result<Endpoint> {
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    builder.source(source).connect(addr)
}

/// Sends a message, and receives the echo.
fn echo(client: &mut Endpoint) -> verbs::Result<()> {
    client.post_recv(client.reg_msgs([0; 64])?)?;
    client.post_send(client.reg_msgs(*b"hello")?)?;
    client.send_comp()?.ok()?;
    client.recv_comp()?.ok().map_err(verbs::Error::from)
}

/// The peers of a loop, with random actions.
struct Strangers {
    rng: Rng,
    addr: SocketAddr,
    half_open: Vec<HalfOpen>,
    clients: Vec<Endpoint>,
}

impl Strangers {
    fn act(&mut self) {
        let source = SocketAddr::from(([10, 9, 92, self.rng.u8(100..140)], 0));
        match self.rng.u8(0..10) {
            0..3 => self
                .half_open
                .push(request_with(Some(source), self.addr, &ConnParam::new())),
            3..6 => self.clients.extend(connect(source, self.addr).ok()),
            6 if !self.clients.is_empty() => {
                let index = self.rng.usize(0..self.clients.len());
                if echo(&mut self.clients[index]).is_err() {
                    drop(self.clients.swap_remove(index));
                }
            }
            7 if !self.clients.is_empty() => {
                let index = self.rng.usize(0..self.clients.len());
                drop(self.clients.swap_remove(index));
            }
            _ if !self.half_open.is_empty() => {
                let index = self.rng.usize(0..self.half_open.len());
                drop(self.half_open.swap_remove(index));
            }
            _ => {}
        }
    }
}

/// Asks for an echo: the loop serves an address without a connection at once.
fn ask(honest: &Host, addr: SocketAddr) {
    honest.run(|| {
        let source = SocketAddr::new(honest.addr(), 0);
        echo(&mut connect(source, addr).unwrap()).unwrap();
    });
}

#[test]
fn strangers_of_an_event_loop_leave_nothing() {
    let _alone = run_exclusively();
    let fabric = Fabric::new().keep_objects();
    let [server, honest] = [1, 2].map(|number| fabric.host(IpAddr::from([10, 9, 92, number])));
    let addrs: Vec<_> = (100..140)
        .map(|number| IpAddr::from([10, 9, 92, number]))
        .collect();
    let evil = fabric.host_with_addrs(&addrs);
    server.set_limits(Limits::new().locked_memory(8 << 20).descriptors(256));
    let addr = SocketAddr::new(server.addr(), 7471);
    let service = server.run(|| EventLoop::listen(Echo, addr).unwrap());
    let service = service.max_connections(32);
    let handle = service.handle();
    let running = server.spawn(move || service.run().map(drop));
    let mut strangers = Strangers {
        rng: Rng::with_seed(fabric.seed()),
        addr,
        half_open: Vec::new(),
        clients: Vec::new(),
    };
    soak(&fabric, 4 * (ACTIONS + 1) + 1, || {
        for _ in 0..4 {
            evil.run(|| (0..ACTIONS).for_each(|_| strangers.act()));
            ask(&honest, addr);
        }
        evil.run(|| {
            strangers.half_open.clear();
            strangers.clients.clear();
        });
        ask(&honest, addr);
    });
    handle.stop();
    running.join().unwrap().unwrap();
}
