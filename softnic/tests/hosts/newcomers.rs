//! Strangers that take everything they can get from an `rds` engine, and a host that connects afterwards.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use rds::{EngineOptions, Socket, proto::wire::Header};
use softnic::{Call, Fabric, Host, Limits, When};

use crate::{
    TEST_TIMEOUT, at,
    child::report,
    pattern,
    prober::{self, Wire, early_data::EarlyData},
};

/// Locked memory and descriptors of a service's host.
pub(crate) fn service_limits() -> Limits {
    Limits::new().locked_memory(8 << 20).descriptors(256)
}

/// Interval between the pings that keep the connections of strangers alive.
pub(crate) const PING_INTERVAL: Duration = Duration::from_millis(200);

/// The addresses of one hostile host.
pub(crate) fn strangers(fabric: &Fabric, net: u8, count: u8) -> (Host, Vec<IpAddr>) {
    let addrs: Vec<IpAddr> = (0..count)
        .map(|host| IpAddr::from([10, 9, net, 100 + host]))
        .collect();
    (fabric.host_with_addrs(&addrs), addrs)
}

pub(crate) fn host(fabric: &Fabric, net: u8, number: u8) -> Host {
    fabric.host(IpAddr::from([10, 9, net, number]))
}

/// A bound socket on an engine of its own.
pub(crate) fn socket(host: &Host, options: EngineOptions) -> Socket {
    host.run(|| {
        let engine = options.start().unwrap();
        let socket = engine.socket().unwrap();
        socket.bind_to(at(host, 4000)).unwrap();
        socket.set_read_timeout(TEST_TIMEOUT);
        socket.set_write_timeout(TEST_TIMEOUT);
        socket
    })
}

/// Connects with each type of service from each address, and returns the accepted connections.
pub(crate) fn connect_all(addrs: &[IpAddr], to: IpAddr, types: u8) -> Vec<Wire> {
    let routes = addrs
        .iter()
        .flat_map(|&addr| (0..types).map(move |tos| (addr, tos)));
    let answers = routes.map(|(addr, tos)| {
        let data = prober::proposal(addr, to, tos).encode();
        prober::dial(addr, to, &data, 4).unwrap()
    });
    answers
        .filter_map(|answer| answer.accepted().ok())
        .collect()
}

/// Pings over each connection, and forgets the ended ones.
pub(crate) fn ping(wires: &mut Vec<Wire>, sequence: u64) {
    let ping = Header {
        sequence,
        from: 77,
        ..Header::default()
    };
    wires.retain_mut(|wire| wire.send(&ping.encode(), true).unwrap_or(false));
}

/// Exchanges messages between a server and a host that connects now.
pub(crate) fn exchange(server: &Socket, newcomer: &Socket) {
    let [server_addr, newcomer_addr] =
        [server, newcomer].map(|socket| socket.local_addr().unwrap());
    let mut buf = vec![0; 20_000];
    for (from, to, dest) in [
        (newcomer, server, server_addr),
        (server, newcomer, newcomer_addr),
    ] {
        let message = pattern(20_000, 3);
        from.send_to(&message, dest).unwrap();
        let (len, _) = to.recv_from(&mut buf).unwrap();
        assert!(buf[..len] == message);
    }
}

/// Has each newcomer exchange messages with the server, and reports the longest time.
pub(crate) fn serve_each(attack: &str, fabric: &Fabric, server: &Socket, newcomers: &[Socket]) {
    let times = newcomers.iter().map(|newcomer| {
        let start = fabric.now();
        exchange(server, newcomer);
        fabric.now() - start
    });
    report(&format!("rds | {attack}"), times.max());
}

/// One machine with sixteen addresses takes all connections that it can get, and keeps each alive.
#[test]
fn newcomer_gets_in_beside_types_of_service_of_few_addresses() {
    let fabric = Fabric::new().keep_objects();
    let (evil, addrs) = strangers(&fabric, 61, 16);
    let to = host(&fabric, 61, 1);
    let options = EngineOptions::new().receives(64);
    let server = socket(&to, options.receive_memory(56 * 64 * 4160));
    let mut wires = evil.run(|| connect_all(&addrs, to.addr(), 16));
    assert!(wires.len() >= 49, "{} connections", wires.len());
    let newcomer = socket(&host(&fabric, 61, 2), EngineOptions::new());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            evil.run(|| {
                for sequence in 1.. {
                    if is_over.load(Relaxed) {
                        break;
                    }
                    ping(&mut wires, sequence);
                    thread::sleep(PING_INTERVAL);
                }
            });
        });
        let newcomers = [newcomer];
        serve_each(
            "types of service of few addresses",
            &fabric,
            &server,
            &newcomers,
        );
        is_over.store(true, Relaxed);
    });
    let evicted = server.engine().stats().unwrap().evicted;
    assert!(evicted > 0, "a stranger has yielded");
}

/// Eight addresses request connections again and again, and complete none.
#[test]
fn newcomer_gets_in_beside_half_open_requests() {
    let fabric = Fabric::new().keep_objects();
    let (evil, addrs) = strangers(&fabric, 62, 8);
    let to = host(&fabric, 62, 1);
    let server = socket(&to, EngineOptions::new());
    let half_open: Vec<EarlyData> = evil.run(|| {
        let routes = addrs
            .iter()
            .flat_map(|&addr| (0..8).map(move |tos| (addr, tos)));
        let dial = |(addr, tos)| {
            let data = prober::proposal(addr, to.addr(), tos).encode();
            EarlyData::dial(addr, to.addr(), &data).unwrap()
        };
        routes.map(dial).collect()
    });
    assert_eq!(half_open.len(), 64, "the limit of pending attempts");
    let newcomer = socket(&host(&fabric, 62, 2), EngineOptions::new());
    serve_each("half-open", &fabric, &server, &[newcomer]);
    assert_eq!(server.engine().stats().unwrap().refused, 0);
}

/// The device or the process has no resources for another connection.
#[test]
fn newcomer_gets_in_when_resources_run_out() {
    for (net, call, errno) in [
        (63, Call::CreateQp, libc::ENOMEM),
        (64, Call::CreateQp, libc::EMFILE),
        // The second allocation.
        (78, Call::ModifyQp, libc::ENOMEM),
    ] {
        let fabric = Fabric::new().keep_objects();
        let (evil, addrs) = strangers(&fabric, net, 2);
        let to = host(&fabric, net, 1);
        let server = socket(&to, EngineOptions::new());
        let mut wires = evil.run(|| connect_all(&addrs, to.addr(), 2));
        assert_eq!(wires.len(), 4);
        let newcomer = socket(&host(&fabric, net, 2), EngineOptions::new());
        let failing = to.fail(call, When::Nth(1), errno);
        let attack = format!("idle, without resources ({call})");
        serve_each(&attack, &fabric, &server, &[newcomer]);
        assert_eq!(failing.failed(), 1);
        // The request was held meanwhile, and one of the strangers has yielded.
        let stats = server.engine().stats().unwrap();
        assert_eq!((stats.refused, stats.evicted), (0, 1));
        let lost = wires
            .iter_mut()
            .filter_map(|wire| (!wire.is_there().unwrap()).then_some(()));
        assert_eq!(lost.count(), 1);
    }
}

/// Without strangers to displace, a request without resources is refused, and the peer tries again.
#[test]
fn request_without_resources_and_without_others_is_refused_once() {
    let fabric = Fabric::new().keep_objects();
    let to = host(&fabric, 65, 1);
    let server = socket(&to, EngineOptions::new());
    let failing = to.fail(Call::CreateQp, When::Nth(1), libc::ENOMEM);
    let newcomer = socket(&host(&fabric, 65, 2), EngineOptions::new());
    exchange(&server, &newcomer);
    assert_eq!(failing.failed(), 1);
    assert_eq!(server.engine().stats().unwrap().refused, 1);
}

/// Sixty addresses with one connection each.
#[test]
fn newcomer_gets_in_beside_many_addresses() {
    let fabric = Fabric::new().keep_objects();
    let (evil, addrs) = strangers(&fabric, 66, 60);
    let to = host(&fabric, 66, 1);
    let server = socket(&to, EngineOptions::new().receive_memory(1000 * 4160));
    let mut wires = evil.run(|| connect_all(&addrs, to.addr(), 1));
    let newcomer = socket(&host(&fabric, 66, 2), EngineOptions::new());
    evil.run(|| ping(&mut wires, 1));
    serve_each("many addresses", &fabric, &server, &[newcomer]);
    assert!(server.engine().stats().unwrap().evicted > 0);
}

/// Forty addresses connect and ping without a pause, from four threads.
#[test]
fn newcomers_get_in_during_a_reconnect_storm() {
    let fabric = Fabric::new().keep_objects();
    let (evil, addrs) = strangers(&fabric, 77, 40);
    let to = host(&fabric, 77, 1);
    to.set_limits(service_limits());
    let server = socket(&to, EngineOptions::new().receive_memory(4 << 20));
    let newcomers: Vec<Socket> = (2..6)
        .map(|number| socket(&host(&fabric, 77, number), EngineOptions::new()))
        .collect();
    let is_over = AtomicBool::new(false);
    let storm = |addrs: &[IpAddr]| {
        let mut wires = Vec::new();
        for &addr in addrs.iter().cycle() {
            if is_over.load(Relaxed) {
                return;
            }
            let data = prober::proposal(addr, to.addr(), 0).encode();
            let answer = prober::dial(addr, to.addr(), &data, 4);
            wires.extend(answer.and_then(prober::Answer::accepted).ok());
            ping(&mut wires, 1);
            if wires.len() >= addrs.len() {
                drop(wires.remove(0));
            }
        }
    };
    let served = thread::scope(|scope| {
        for addrs in addrs.chunks(10) {
            scope.spawn(|| evil.run(|| storm(addrs)));
        }
        let serving = scope.spawn(|| {
            // Each is served again after later ones.
            for _ in 0..2 {
                serve_each("reconnect storm", &fabric, &server, &newcomers);
            }
        });
        let served = serving.join();
        is_over.store(true, Relaxed);
        served
    });
    served.unwrap();
}

/// Whichever resource of a service ends first, a stranger yields. The sizes of the queues are softnic's.
#[test]
fn newcomer_gets_in_under_limits_of_a_service() {
    let limits = [
        service_limits(),
        Limits::new().queue_pairs(10),
        Limits::new().completion_queues(2),
        Limits::new().memory_regions(6),
    ];
    for (net, limits) in (67..).zip(limits) {
        let fabric = Fabric::new().keep_objects();
        let (evil, addrs) = strangers(&fabric, net, 8);
        let to = host(&fabric, net, 1);
        to.set_limits(limits);
        // Half of the locked memory, as by default.
        let server = socket(&to, EngineOptions::new().receive_memory(4 << 20));
        let mut wires = evil.run(|| connect_all(&addrs, to.addr(), 16));
        assert!(wires.len() < 128, "{limits:?} has no effect");
        let newcomers: Vec<Socket> = (2..6)
            .map(|number| socket(&host(&fabric, net, number), EngineOptions::new()))
            .collect();
        for newcomer in newcomers.chunks(1) {
            evil.run(|| ping(&mut wires, 1));
            serve_each(&format!("idle, {limits:?}"), &fabric, &server, newcomer);
        }
        for newcomer in &newcomers {
            exchange(&server, newcomer);
        }
        assert!(server.engine().stats().unwrap().evicted > 0, "{limits:?}");
    }
}
