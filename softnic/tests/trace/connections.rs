//! Events of `cm` and `verbs`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use cm::{Endpoint, EventChannel, Listener};
use softnic::{Fabric, Host};
use tracing::{
    Dispatch, Event, Subscriber, dispatcher,
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    registry,
};

use crate::{TEST_TIMEOUT, assert_lines, hosts, recorder::Recorder};

const ADDR: &str = "10.9.0.1:7471";

/// Both ends of a connection.
fn connection(server: &Host, client: &Host) -> (Endpoint, Endpoint) {
    let listener = server.run(|| Listener::bind(ADDR).unwrap());
    let same = server.clone();
    let accepted = thread::spawn(move || same.run(|| listener.accept().unwrap()));
    let connected = client.run(|| cm::connect(ADDR).unwrap());
    (accepted.join().unwrap(), connected)
}

#[test]
fn accepted_connection_is_reported_with_its_peer_until_its_end() {
    let fabric = Fabric::seeded(0);
    let [server, client] = hosts(&fabric, 0);
    let listener = server.run(|| Listener::bind(ADDR).unwrap());
    let connecting = thread::spawn(move || {
        client
            .run(|| cm::connect(ADDR).unwrap())
            .disconnect()
            .unwrap();
    });
    let lines = Recorder::lines_of("cm=debug", || {
        let mut accepted = server.run(|| listener.accept().unwrap());
        accepted
            .post_recv(accepted.reg_msgs([0; 8]).unwrap())
            .unwrap();
        assert!(accepted.recv_comp().unwrap().into_work().is_err());
    });
    connecting.join().unwrap();
    let steps = [
        "}: cm: connection requested by the peer listener=",
        " qp=0xcb9f33}: cm: queue pair ready to send peer_qp=0xab04fc peer_gid=::ffff:10.9.0.2 mtu=4096",
        " qp=0xcb9f33}: cm: accepting the connection",
        "}: cm: established",
        "}: cm: disconnected",
        "}: cm: disconnecting",
        "}: cm: destroyed",
    ];
    assert_lines(&lines, &steps);
    assert!(
        lines
            .iter()
            .all(|line| line.contains(" peer=10.9.0.2:32768")),
        "{lines:#?}"
    );
}

#[test]
fn failed_connection_is_a_warning_with_its_peer() {
    let fabric = Fabric::seeded(0);
    let [server, client] = hosts(&fabric, 0);
    let refused = Recorder::lines_of("warn", || {
        drop(client.run(|| cm::connect(ADDR).unwrap_err()));
    });
    assert_lines(
        &refused,
        &["peer=10.9.0.1:7471 qp=0xab04fc}: cm: not connected failure=rejected: no listener there"],
    );
    fabric.link_down(&server);
    let unknown = Recorder::lines_of("warn", || {
        drop(client.run(|| cm::connect("10.9.0.99:7471").unwrap_err()));
    });
    assert_eq!(unknown.len(), 1, "{unknown:#?}");
    assert!(unknown[0].starts_with("WARN cm_id{key="), "{unknown:#?}");
    assert!(unknown[0].contains("peer=10.9.0.99:7471"), "{unknown:#?}");
}

#[test]
fn transitions_of_a_queue_pair_have_the_context_of_its_connection() {
    let fabric = Fabric::seeded(0);
    let [server, client] = hosts(&fabric, 0);
    let listener = server.run(|| Listener::bind(ADDR).unwrap());
    let same = server.clone();
    let accepting = thread::spawn(move || drop(same.run(|| listener.accept().unwrap())));
    let lines = Recorder::lines_of("verbs=debug,cm=warn", || {
        let mut connected = client.run(|| cm::connect(ADDR).unwrap());
        connected.disconnect().unwrap();
    });
    accepting.join().unwrap();
    assert_lines(
        &lines,
        &[
            "queue pair modified qp=0xab04fc from=\"Reset\" to=\"Init\"",
            "queue pair modified qp=0xab04fc from=\"Init\" to=\"Init\"",
            "from=\"Init\" to=\"Rtr\" peer_qp=0xcb9f33 peer_gid=::ffff:10.9.0.1 mtu=4096",
            "from=\"Rtr\" to=\"Rts\" timeout=16 retries=7",
            "from=\"Rts\" to=\"ERR\"",
        ],
    );
    let context = "peer=10.9.0.1:7471 qp=0xab04fc}: verbs: queue pair modified";
    assert!(
        lines.iter().all(|line| line.contains(context)),
        "{lines:#?}"
    );
}

#[test]
fn posting_and_polling_emit_nothing() {
    let fabric = Fabric::new();
    let [server, client] = hosts(&fabric, 0);
    let (mut accepted, mut connected) = connection(&server, &client);
    let lines = Recorder::lines_of("trace", || {
        for _ in 0..100 {
            accepted
                .post_recv(accepted.reg_msgs([0; 8]).unwrap())
                .unwrap();
            connected
                .post_send(connected.reg_msgs(*b"a packet").unwrap())
                .unwrap();
            drop(connected.send_comp().unwrap().into_work().unwrap());
            drop(accepted.recv_comp().unwrap().into_work().unwrap());
        }
    });
    assert_lines(&lines, &[]);
}

/// Part of a subscriber that takes the locks of a traced channel.
struct LockTaker {
    channel: Arc<EventChannel>,
    events: Arc<AtomicU32>,
    is_busy: AtomicBool,
}

impl LockTaker {
    fn take_locks(&self) {
        // The identifier made here has a span too.
        if self.is_busy.swap(true, Relaxed) {
            return;
        }
        let other = EventChannel::new().unwrap();
        other.create_id().unwrap().migrate(&self.channel).unwrap();
        self.is_busy.store(false, Relaxed);
    }
}

impl<S: Subscriber> Layer<S> for LockTaker {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.take_locks();
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.events.fetch_add(1, Relaxed);
        self.take_locks();
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        self.take_locks();
    }
}

/// Runs the calls that emit events, with a subscriber that takes the locks of their channel. Returns the number of events.
fn run_with_lock_taker() -> u32 {
    let channel = Arc::new(EventChannel::new().unwrap());
    let events = Arc::new(AtomicU32::new(0));
    let layer = LockTaker {
        channel: Arc::clone(&channel),
        events: Arc::clone(&events),
        is_busy: AtomicBool::new(false),
    };
    dispatcher::with_default(&Dispatch::new(registry().with(layer)), || {
        let resolve = |addr: SocketAddr| {
            let id = channel.create_id().unwrap();
            id.resolve_addr(None, addr, TEST_TIMEOUT)
        };
        resolve(ADDR.parse().unwrap()).unwrap();
        let cm::Event::AddrResolved(id) = channel.wait().unwrap() else {
            panic!("no such host");
        };
        id.resolve_route(TEST_TIMEOUT).unwrap();
        drop(channel.wait().unwrap());
        // A refused call, with the registry locked until then.
        drop(resolve("[fd00::1]:7471".parse().unwrap()).unwrap_err());
        // A call in progress, whose identifier the channel owns.
        let id = channel.create_id().unwrap();
        let key = id.key();
        id.resolve_addr(None, ADDR.parse::<SocketAddr>().unwrap(), TEST_TIMEOUT)
            .unwrap();
        assert!(channel.cancel(key));
    });
    events.load(Relaxed)
}

#[test]
fn subscriber_runs_without_a_lock_of_the_channel() {
    let fabric = Fabric::new();
    let [_server, client] = hosts(&fabric, 0);
    let (sender, done) = mpsc::channel();
    let running = client.spawn(move || sender.send(run_with_lock_taker()).unwrap());
    // A subscriber that waits for a lock of its own thread never returns.
    let events = done.recv_timeout(TEST_TIMEOUT);
    assert!(events.is_ok_and(|events| events > 8), "{events:?}");
    running.join().unwrap();
}
