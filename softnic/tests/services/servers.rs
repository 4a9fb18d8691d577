//! Servers of `cm` under the limits of a process and a device, while peers attack without a pause.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use cm::{Endpoint, EndpointBuilder};
use softnic::{Fabric, Limits};

use crate::{
    ADDR, Silent, TEST_TIMEOUT,
    attacks::{Act, Attack, HELD, hosts, serve_during},
    child::{forbid_threads, report, with_limits},
    endpoints::ask,
    event_loop::{Service, connect, echo},
};

/// Limits of a service, by their names in `SECURITY.md`.
fn limits() -> [(&'static str, Limits); 6] {
    [
        (
            "8 MiB of lockable memory, 256 descriptors",
            Limits::new().locked_memory(8 << 20).descriptors(256),
        ),
        (
            "64 KiB of lockable memory",
            Limits::new().locked_memory(64 << 10),
        ),
        ("16 queue pairs", Limits::new().queue_pairs(16)),
        ("16 completion queues", Limits::new().completion_queues(16)),
        ("16 memory regions", Limits::new().memory_regions(16)),
        ("16 descriptors", Limits::new().descriptors(16)),
    ]
}

/// The hostile host of a service of `cm`. Without a listener of its own.
struct Hostile {
    attack: Attack,
    silent: Silent,
    open: Vec<Endpoint>,
    actions: usize,
}

/// Sends a message, and waits for nothing.
fn say(client: &mut Endpoint) -> verbs::Result<()> {
    client.post_recv(client.reg_msgs([0; 64])?)?;
    Ok(client.post_send(client.reg_msgs(*b"hello")?)?)
}

impl Hostile {
    fn new(attack: Attack) -> Self {
        Self {
            attack,
            silent: Silent::new(),
            open: Vec::new(),
            actions: 0,
        }
    }
}

impl Act for Hostile {
    fn act(&mut self) {
        self.actions += 1;
        let source = self.attack.source(self.actions);
        match self.attack {
            Attack::HalfOpen | Attack::ForgedSources => {
                self.silent.request_from(source);
                if self.silent.requested.len() > 2 * HELD {
                    self.silent.requested.drain(..HELD);
                }
            }
            Attack::Idle | Attack::ManyAddresses | Attack::ReconnectStorm => {
                let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
                self.open.extend(builder.source(source).connect(ADDR).ok());
            }
            Attack::NoRoom | Attack::NoReceives => unreachable!("attacks on streams"),
        }
        if let Attack::ReconnectStorm = self.attack {
            self.open.clear();
        }
        if self.open.len() > HELD {
            drop(self.open.remove(0));
        }
        if let Attack::ManyAddresses = self.attack
            && let Some(client) = self.open.first_mut()
        {
            // Fails once the queue is full.
            if say(client).is_err() {
                drop(self.open.remove(0));
            } else {
                self.open.rotate_left(1);
            }
        }
    }
}

/// The tutorial's server, a thread for each request, until it is over.
fn serve_each(listener: &cm::Listener, is_over: &AtomicBool) {
    thread::scope(|scope| {
        while !is_over.load(Relaxed) {
            let requested = listener.request_timeout(Duration::from_millis(1)).unwrap();
            let Some(mut incoming) = requested else {
                continue;
            };
            let posted = incoming.reg_msgs([0; 64]);
            if posted
                .and_then(|buf| incoming.post_recv(buf).map_err(|refused| refused.error))
                .is_err()
            {
                continue;
            }
            scope.spawn(|| -> verbs::Result<()> {
                let mut client = incoming.accept()?;
                let message = client.recv_comp()?.received()?.to_vec();
                client.post_send(client.reg_msgs(message)?)?;
                let _sent = client.send_comp()?.into_parts();
                client.disconnect()
            });
        }
    });
}

/// An attack on the tutorial's server under each limit.
#[track_caller]
pub(crate) fn check_listener(attack: Attack) {
    for (name, limits) in limits() {
        let fabric = Fabric::new();
        let [service, hostile, honest] = hosts(&fabric);
        service.set_limits(limits);
        let builder = EndpointBuilder::new().handshake_timeout(TEST_TIMEOUT);
        let listener = Arc::new(service.run(|| builder.listen(ADDR).unwrap()));
        let is_over = Arc::new(AtomicBool::new(false));
        let serving = {
            let (listener, is_over) = (Arc::clone(&listener), Arc::clone(&is_over));
            service.spawn(move || serve_each(&listener, &is_over))
        };
        let ends = [&hostile, &honest];
        let attacker = (attack, Hostile::new as fn(_) -> _);
        let time = serve_during(attacker, (name, &fabric), ends, || (), ask);
        report(&format!("listener | {attack:?} | {name}"), Some(time));
        is_over.store(true, Relaxed);
        serving.join().unwrap();
    }
}

/// An attack on an event loop under each limit.
#[track_caller]
pub(crate) fn check_event_loop(attack: Attack) {
    for (name, limits) in limits() {
        let fabric = Fabric::new();
        let [service, hostile, honest] = hosts(&fabric);
        service.set_limits(limits);
        let service = Service::start(&service, |service| service.max_connections(HELD));
        let time = serve_during(
            (attack, Hostile::new as fn(_) -> _),
            (name, &fabric),
            [&hostile, &honest],
            || (),
            |host| echo(&mut connect(host)?),
        );
        report(&format!("event loop | {attack:?} | {name}"), Some(time));
        service.stop();
    }
}

#[test]
fn listener_serves_during_half_open_requests_within_limits() {
    check_listener(Attack::HalfOpen);
}

#[test]
fn listener_serves_during_requests_with_forged_sources_within_limits() {
    check_listener(Attack::ForgedSources);
}

#[test]
fn listener_serves_during_reconnect_storm_within_limits() {
    check_listener(Attack::ReconnectStorm);
}

#[test]
fn event_loop_serves_during_half_open_requests_within_limits() {
    check_event_loop(Attack::HalfOpen);
}

#[test]
fn event_loop_serves_during_requests_with_forged_sources_within_limits() {
    check_event_loop(Attack::ForgedSources);
}

#[test]
fn event_loop_serves_beside_idle_connections_within_limits() {
    check_event_loop(Attack::Idle);
}

#[test]
fn event_loop_serves_beside_connections_of_many_addresses_within_limits() {
    check_event_loop(Attack::ManyAddresses);
}

#[test]
fn event_loop_serves_during_reconnect_storm_within_limits() {
    check_event_loop(Attack::ReconnectStorm);
}

/// The limits of `setrlimit(2)`, and no thread can be started once the loop runs.
#[test]
fn event_loop_serves_within_limits_of_a_process() {
    let name = "servers::event_loop_serves_within_limits_of_a_process";
    with_limits(name, 8 << 20, || {
        let fabric = Fabric::new();
        let [service, hostile, honest] = hosts(&fabric);
        let [(name, limits), ..] = limits();
        service.set_limits(limits);
        let service = Service::start(&service, |service| service.max_connections(HELD));
        let ends = [&hostile, &honest];
        let attack = Attack::HalfOpen;
        let attacker = (attack, Hostile::new as fn(_) -> _);
        let time = serve_during(attacker, (name, &fabric), ends, forbid_threads, |host| {
            echo(&mut connect(host)?)
        });
        report("event loop | half-open, limits of the process", Some(time));
        service.stop();
    });
}
