//! Services under the limits of a process and a device, while peers that follow the protocol attack without a pause: honest
//! clients of another host are served. `MEASURE=1` prints the time that they needed.

use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use softnic::{Fabric, Host};

use crate::TEST_TIMEOUT;

/// Number of clients served during an attack.
const CLIENTS: usize = 4;

/// Number of hostile actions before the first client.
const BEFORE: usize = 64;

/// Number of connections held by an attack.
pub(crate) const HELD: usize = 64;

/// Number of addresses of the hostile host.
const ADDRESSES: u8 = 100;

/// An attack by peers that follow the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    /// Requests of one address, whose handshakes are never completed.
    HalfOpen,
    /// The same, each with another source.
    ForgedSources,
    /// Connections of one address, never used.
    Idle,
    /// A connection of each of many addresses, each with a message now and then.
    ManyAddresses,
    /// Connections set up and ended again and again.
    ReconnectStorm,
    /// Connections with a request whose answer has no room.
    NoRoom,
    /// Connections with a request whose answer finds no receive.
    NoReceives,
}

/// A hostile host.
pub(crate) trait Act {
    /// The next action. May fail: the service may refuse.
    fn act(&mut self);
}

/// An address of the hostile host.
fn hostile_addr(number: usize) -> IpAddr {
    let number = u8::try_from(number % usize::from(ADDRESSES)).unwrap();
    IpAddr::from([10, 9, 1, number])
}

impl Attack {
    /// The source of an action.
    pub(crate) fn source(self, action: usize) -> SocketAddr {
        let number = match self {
            Self::ForgedSources | Self::ManyAddresses => action,
            Self::HalfOpen
            | Self::Idle
            | Self::ReconnectStorm
            | Self::NoRoom
            | Self::NoReceives => 0,
        };
        SocketAddr::new(hostile_addr(number), 0)
    }
}

/// Serves honest clients during an attack, once `ready` has returned, and returns the longest time of one.
pub(crate) fn serve_during<H: Act, E: Display>(
    (attack, attacker): (Attack, fn(Attack) -> H),
    (limits, fabric): (&str, &Fabric),
    [hostile, honest]: [&Host; 2],
    ready: impl FnOnce(),
    ask: impl Fn(&Host) -> Result<Vec<u8>, E>,
) -> Duration {
    let is_over = AtomicBool::new(false);
    let (begun, has_begun) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            hostile.run(|| {
                let mut hostile = attacker(attack);
                (0..BEFORE).for_each(|_| hostile.act());
                begun.send(()).unwrap();
                while !is_over.load(Relaxed) {
                    hostile.act();
                }
            });
        });
        has_begun.recv_timeout(TEST_TIMEOUT).unwrap();
        ready();
        let times = (0..CLIENTS).map(|_| {
            let (start, until) = (fabric.now(), Instant::now() + TEST_TIMEOUT);
            loop {
                match ask(honest) {
                    Ok(answer) => {
                        assert_eq!(answer, b"hello");
                        return fabric.now() - start;
                    }
                    // Displaced by a later request.
                    Err(error) => assert!(Instant::now() < until, "{attack:?}, {limits}: {error}"),
                }
            }
        });
        let longest = times.max();
        is_over.store(true, Relaxed);
        longest.unwrap()
    })
}

/// The service's host, the hostile one, and the honest one.
pub(crate) fn hosts(fabric: &Fabric) -> [Host; 3] {
    let hostile: Vec<IpAddr> = (0..usize::from(ADDRESSES)).map(hostile_addr).collect();
    let [service, honest] = [1, 3].map(|number| fabric.host(IpAddr::from([10, 9, 0, number])));
    [service, fabric.host_with_addrs(&hostile), honest]
}
