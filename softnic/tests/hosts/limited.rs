//! An `rds` engine in a process with the limits of a service.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use rds::{EngineOptions, Socket};
use softnic::{Fabric, Limits};

use crate::{
    at,
    child::{forbid_threads, report, with_limits},
    newcomers::{PING_INTERVAL, connect_all, exchange, host, ping, socket, strangers},
};

/// Strangers take all connections that they can get, and keep each alive. Threads that end connections cannot be started.
#[test]
fn newcomers_get_in_within_limits_of_a_process() {
    let name = "limited::newcomers_get_in_within_limits_of_a_process";
    with_limits(name, 8 << 20, || {
        let fabric = Fabric::new().keep_objects();
        let (evil, addrs) = strangers(&fabric, 75, 40);
        let to = host(&fabric, 75, 1);
        to.set_limits(Limits::new().locked_memory(8 << 20).descriptors(256));
        // The memory of receives is half of the limit by default.
        let server = socket(&to, EngineOptions::new());
        let newcomers: Vec<Socket> = (2..6)
            .map(|number| socket(&host(&fabric, 75, number), EngineOptions::new()))
            .collect();
        let mut wires = evil.run(|| connect_all(&addrs, to.addr(), 4));
        assert!(wires.len() < 160, "the limits have no effect");
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
            forbid_threads();
            let times = newcomers.iter().chain(&newcomers).map(|newcomer| {
                let start = fabric.now();
                exchange(&server, newcomer);
                fabric.now() - start
            });
            let longest = times.max();
            is_over.store(true, Relaxed);
            report("rds | idle", longest);
        });
        assert!(server.engine().stats().unwrap().evicted > 0);
    });
}

#[test]
fn bind_with_64_kib_of_lockable_memory_is_refused() {
    let name = "limited::bind_with_64_kib_of_lockable_memory_is_refused";
    with_limits(name, 64 << 10, || {
        let fabric = Fabric::new().keep_objects();
        let host = host(&fabric, 76, 1);
        host.set_limits(Limits::new().locked_memory(64 << 10));
        let refused = host.run(|| {
            let engine = EngineOptions::new().start().unwrap();
            let socket = engine.socket().unwrap();
            socket.bind_to(at(&host, 4000)).unwrap_err()
        });
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        let text = refused.to_string();
        for part in [
            "10.9.76.1",
            "65536 bytes",
            "RLIMIT_MEMLOCK",
            "ulimit -l 8192",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        // Nothing stays locked but the slots of the engine, which has ended.
        assert_eq!(fabric.books().locked_bytes(), 0);
        // Without the limit of the device, the same process binds.
        host.set_limits(Limits::new());
        drop(socket(&host, EngineOptions::new()));
    });
}
