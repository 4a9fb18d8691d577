//! Services with the limits of `setrlimit(2)` and of a device, and peers that use them up. The fabric's books are checked at its
//! drop.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attacks;
mod child;
mod descriptors;
mod destruction;
mod endpoints;
mod ends;
mod event_loop;
mod half_open;
mod honest;
mod servers;
mod stalled;
mod strangers;
mod streams;
mod unanswered;

use std::{net::SocketAddr, time::Duration};

use cm::{CmId, ConnParam, ConnectResponse, Event, EventChannel, phases::RouteResolved};
use softnic::{Fabric, Host};
use verbs::{CompletionQueue, Init, ProtectionDomain, QueuePair};

/// Timeout of everything that must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A time-out to be reached.
const SHORT: Duration = Duration::from_millis(30);

/// Address of the service.
const ADDR: &str = "10.9.0.1:7471";

fn addr() -> SocketAddr {
    ADDR.parse().unwrap()
}

/// The service's host, and two others.
fn hosts(fabric: &Fabric) -> [Host; 3] {
    ["10.9.0.1", "10.9.0.2", "10.9.0.3"].map(|addr| fabric.host(addr.parse().unwrap()))
}

/// A peer that requests connections and completes no handshake.
struct Silent {
    // Dropped before the queues.
    requested: Vec<Requested>,
    channel: EventChannel,
}

/// A requested connection.
struct Requested {
    response: Option<ConnectResponse>,
    qp: Option<QueuePair<verbs::Rc, Init>>,
    _queues: (ProtectionDomain, CompletionQueue),
}

impl Silent {
    fn new() -> Self {
        Self {
            requested: Vec::new(),
            channel: EventChannel::new().unwrap(),
        }
    }

    fn next(&self) -> Event {
        self.channel.wait_timeout(TEST_TIMEOUT).unwrap().unwrap()
    }

    fn resolve(&self, source: Option<SocketAddr>) -> CmId<RouteResolved> {
        let id = self.channel.create_id().unwrap();
        id.resolve_addr(source, addr(), TEST_TIMEOUT).unwrap();
        loop {
            match self.next() {
                Event::AddrResolved(id) => id.resolve_route(TEST_TIMEOUT).unwrap(),
                Event::RouteResolved(id) => return id,
                // Earlier connections end meanwhile.
                _ => {}
            }
        }
    }

    /// Requests a connection, and waits for the answer: the service's acceptance or rejection. Returns whether the
    /// service has accepted.
    fn request(&mut self) -> bool {
        self.request_with(None)
    }

    /// Requests a connection from an address.
    fn request_from(&mut self, source: SocketAddr) -> bool {
        self.request_with(Some(source))
    }

    fn request_with(&mut self, source: Option<SocketAddr>) -> bool {
        let id = self.resolve(source);
        let ctx = id.context().unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(4).unwrap());
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let qp = id.init_qp(qp.max_send_wr(1).max_recv_wr(1).create().unwrap());
        let (key, qp) = (id.key(), qp.unwrap());
        id.connect(&qp, &ConnParam::new()).unwrap();
        let response = loop {
            match self.next() {
                Event::ConnectResponse(response) => break Some(response),
                Event::ConnectFailed { id, .. } if id.key() == key => break None,
                _ => {}
            }
        };
        let is_accepted = response.is_some();
        self.requested.push(Requested {
            response,
            qp: Some(qp),
            _queues: (pd, cq),
        });
        is_accepted
    }

    /// Completes the handshake of a request.
    fn complete(&mut self, index: usize) -> verbs::Result<cm::Connection> {
        let requested = &mut self.requested[index];
        let (response, qp) = (requested.response.take(), requested.qp.take());
        response.unwrap().establish(qp.unwrap())
    }
}
