//! Calls into the kernel by an engine of `rds`, none of them with the engine's lock.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rds::{Engine, EngineOptions, Event, ExportOptions, Rdma, SendOptions, Socket};
use softnic::{Call, Fabric, Holding, Host};

use crate::{TEST_TIMEOUT, at, hosts, pattern};

/// Calls of the exchange that enter the kernel on hardware.
const CALLS: [Call; 17] = [
    Call::AllocPd,
    Call::RegMr,
    Call::DeregMr,
    Call::CreateCompChannel,
    Call::CreateCq,
    Call::CreateQp,
    Call::ModifyQp,
    Call::DestroyQp,
    Call::CreateId,
    Call::BindAddr,
    Call::Listen,
    Call::ResolveAddr,
    Call::ResolveRoute,
    Call::Connect,
    Call::Accept,
    Call::Establish,
    Call::Disconnect,
];

/// Number of messages, more than the slots of an engine at first.
const MESSAGES: u32 = 300;

/// Interval between two looks at the end of the exchange.
const TICK: Duration = Duration::from_millis(5);

/// Lets each call of a function wait until another thread has taken the engine's lock, until the end
/// of the exchange. Sets `called` at the first call.
fn watch(
    host: &Host,
    engine: &Engine,
    (call, called): (Call, &AtomicBool),
    mut holding: Holding,
    is_over: &AtomicBool,
) {
    let (ask, requests) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let engine = engine.clone();
    let locking = thread::spawn(move || {
        for () in requests {
            engine.stats().unwrap();
            answer.send(()).unwrap();
        }
    });
    loop {
        let is_last = is_over.load(Relaxed);
        if !holding.wait_for_call(TICK) {
            if is_last {
                break;
            }
            continue;
        }
        called.store(true, Relaxed);
        ask.send(()).unwrap();
        let is_unlocked = answered.recv_timeout(TEST_TIMEOUT.unwrap()).is_ok();
        // No call passes in between.
        drop(mem::replace(&mut holding, host.hold(call)));
        assert!(is_unlocked, "{call} with the lock");
    }
    drop(ask);
    locking.join().unwrap();
}

/// A bound socket on a host, with room for all messages.
fn socket(host: &Host, engine: &Engine, port: u16) -> Socket {
    host.run(|| {
        let socket = engine.socket().unwrap();
        socket.bind_to(at(host, port)).unwrap();
        socket.set_read_timeout(TEST_TIMEOUT);
        socket.set_write_timeout(TEST_TIMEOUT);
        for set in [Socket::set_send_limit, Socket::set_recv_limit] {
            set(&socket, 4 << 20).unwrap();
        }
        socket
    })
}

fn start(host: &Host) -> Engine {
    host.run(|| EngineOptions::new().receives(64).start().unwrap())
}

/// Receives all messages.
fn receive(socket: &Socket) {
    for _ in 0..MESSAGES {
        assert!(matches!(socket.recv_event().unwrap(), Event::Message(_)));
    }
}

/// Connections in both directions, more messages in flight than slots, and memory released with the
/// last message that uses it.
fn exchange(fabric: &Fabric, engine: &Engine, local: &Host, other: &Host) {
    let [own_socket, last] = [4000, 4001].map(|port| socket(local, engine, port));
    let third = fabric.host(IpAddr::from([10, 9, 26, 3]));
    let dialed = socket(&third, &start(&third), 4000);
    let to = dialed.local_addr().unwrap();
    own_socket.send_to(b"dialed", to).unwrap();
    assert_eq!(dialed.recv(&mut [0; 6]).unwrap(), 6);

    let socket = socket(other, &start(other), 4000);
    let dest = socket.local_addr().unwrap();
    let bytes = pattern(4096, 1);
    let send = |from: &Socket, to: SocketAddr| {
        for _ in 0..MESSAGES {
            from.send_to(&bytes, to).unwrap();
        }
    };
    send(&socket, own_socket.local_addr().unwrap());
    // Arrives after the messages, which all hold a slot until they are received.
    socket.send_to(b"last", last.local_addr().unwrap()).unwrap();
    assert_eq!(last.recv(&mut [0; 4]).unwrap(), 4);
    receive(&own_socket);
    send(&own_socket, dest);
    receive(&socket);

    let target = socket.alloc(4096).unwrap();
    let cookie = socket.export(&target, ExportOptions::new()).unwrap();
    fabric.cut(local, other);
    for number in 0..MESSAGES {
        let memory = own_socket.alloc(64).unwrap();
        let options = SendOptions::new().to(dest);
        let sent = if number % 2 == 0 {
            own_socket.send_zerocopy(&memory.slice(0..64), number, &options)
        } else {
            let write = Rdma::write(vec![memory.slice(0..64)], cookie);
            own_socket.send_msg(&[], &options.rdma(write).silent())
        };
        sent.unwrap();
    }
    fabric.heal(local, other);
    for number in (0..MESSAGES).step_by(2) {
        assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 64);
        let event = own_socket.recv_event().unwrap();
        assert!(matches!(event, Event::ZeroCopyDone(done) if done == number));
    }
    let memory = own_socket.alloc(4096).unwrap();
    own_socket.export(&memory, ExportOptions::new()).unwrap();
    // Before the peers, so that the engine does not dial again.
    drop((own_socket, last));
    drop((socket, dialed));
}

/// Ends the watching, also after a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn no_call_into_the_kernel_is_made_with_the_lock() {
    let fabric = Fabric::new().keep_objects();
    let [local, other] = &hosts(&fabric, 26);
    let engine = &start(local);
    let is_over = &AtomicBool::new(false);
    let called = CALLS.map(|call| (call, AtomicBool::new(false)));
    let missing = || {
        let calls = called.iter().filter(|(_, called)| !called.load(Relaxed));
        calls.map(|(call, _)| *call).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        for (call, called) in &called {
            // Before the exchange begins.
            let holding = local.hold(*call);
            scope.spawn(move || watch(local, engine, (*call, called), holding, is_over));
        }
        let end = End(is_over);
        exchange(&fabric, engine, local, other);
        // The connections end in the engine's thread.
        let deadline = Instant::now() + TEST_TIMEOUT.unwrap();
        while !missing().is_empty() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        drop(end);
    });
    assert_eq!(missing(), []);
}
