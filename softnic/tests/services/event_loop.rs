//! Event loops.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use cm::{
    Endpoint, EndpointBuilder,
    event_loop::{Connections, EventLoop, Failure, Handle, InitQp, Next, Protocol, Qp},
};
use softnic::{Call, Fabric, Host, Limits, When};
use verbs::{Buf, Completed, ProtectionDomain, op};

use crate::{ADDR, SHORT, Silent, TEST_TIMEOUT, addr, hosts};

pub(crate) type AnyError = Box<dyn Error + Send + Sync>;

/// Observations of a test about the loop.
#[derive(Default)]
pub(crate) struct Observed {
    /// Number of failures by message.
    failures: BTreeMap<String, usize>,
    closed: usize,
    ticks: usize,
}

impl Observed {
    /// Number of connections ended after the established event.
    pub(crate) fn closed(&self) -> usize {
        self.closed
    }
}

/// Echoes messages, and sends each message handed in by `outbox` to all connections.
pub(crate) struct Echo {
    observed: Arc<Mutex<Observed>>,
    outbox: mpsc::Receiver<Vec<u8>>,
}

impl Protocol for Echo {
    type Send = Buf;
    type Receive = Buf;
    type State = ProtectionDomain;
    type Error = AnyError;

    fn open(
        &mut self,
        pd: &ProtectionDomain,
        qp: &mut InitQp<Self>,
    ) -> Result<Self::State, AnyError> {
        qp.post_recv(pd.alloc_buf(64)?)?;
        Ok(pd.clone())
    }

    fn completed(
        &mut self,
        _: &mut Self::State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Buf, Buf>,
    ) -> Result<Next, AnyError> {
        match done {
            Completed::Receive(message) => {
                let text = message.received()?;
                match text {
                    b"bye" => return Ok(Next::Disconnect),
                    b"wrong" => return Err("a wrong message".into()),
                    _ => {}
                }
                let len = text.len();
                let mut buf = message.into_work()?;
                buf.set_len(len);
                qp.post(op::Send::new(buf))?;
            }
            // At the limits of the host no memory is free for another buffer.
            Completed::Send(sent) => {
                let mut buf = sent.into_work()?;
                buf.set_len(buf.capacity());
                qp.post_recv(buf)?;
            }
        }
        Ok(Next::Wait)
    }

    fn woken(&mut self, connections: &mut Connections<'_, Self>) -> Result<(), AnyError> {
        while let Ok(message) = self.outbox.try_recv() {
            for id in connections.ids() {
                if message == b"close" {
                    assert!(connections.disconnect(id));
                    assert!(!connections.disconnect(id), "twice");
                } else if let Some((pd, qp)) = connections.get_mut(id) {
                    qp.post(op::Send::new(pd.register_buf(message.clone())?))?;
                }
            }
        }
        Ok(())
    }

    fn tick(&mut self, _: &mut Connections<'_, Self>) -> Result<(), AnyError> {
        self.observed.lock().unwrap().ticks += 1;
        Ok(())
    }

    fn closed(&mut self, _: Self::State) -> Result<(), AnyError> {
        self.observed.lock().unwrap().closed += 1;
        Ok(())
    }

    fn connection_failed(&mut self, err: AnyError) {
        let mut observed = self.observed.lock().unwrap();
        *observed.failures.entry(err.to_string()).or_default() += 1;
    }
}

/// A running loop.
pub(crate) struct Service {
    observed: Arc<Mutex<Observed>>,
    outbox: mpsc::Sender<Vec<u8>>,
    handle: Handle,
    running: JoinHandle<Result<(), AnyError>>,
}

impl Service {
    /// Starts a loop with settings.
    pub(crate) fn start(host: &Host, set: impl FnOnce(EventLoop<Echo>) -> EventLoop<Echo>) -> Self {
        let observed = Arc::<Mutex<Observed>>::default();
        let (outbox, received) = mpsc::channel();
        let echo = Echo {
            observed: Arc::clone(&observed),
            outbox: received,
        };
        let service = set(host.run(|| EventLoop::listen(echo, addr()).unwrap()));
        let handle = service.handle();
        let running = host.spawn(move || service.run().map(drop));
        Self {
            observed,
            outbox,
            handle,
            running,
        }
    }

    fn failures(&self, failure: &Failure) -> usize {
        let observed = self.observed.lock().unwrap();
        let count = observed.failures.get(&failure.to_string());
        count.copied().unwrap_or(0)
    }

    /// Waits for at least `count` failures: a peer can have the answer before the event loop has reported the failure.
    fn wait_for(&self, failure: &Failure, count: usize) {
        let began = Instant::now();
        while self.failures(failure) < count {
            assert!(began.elapsed() < TEST_TIMEOUT, "{failure}");
            std::thread::yield_now();
        }
    }

    fn send_to_all(&self, message: &[u8]) {
        self.outbox.send(message.to_vec()).unwrap();
        self.handle.wake();
    }

    pub(crate) fn stop(self) -> Observed {
        self.handle.stop();
        self.running.join().unwrap().unwrap();
        std::mem::take(&mut *self.observed.lock().unwrap())
    }
}

pub(crate) fn connect(host: &Host) -> verbs::Result<Endpoint> {
    host.run(|| EndpointBuilder::new().timeout(TEST_TIMEOUT).connect(ADDR))
}

/// Sends a message, and receives the echo.
pub(crate) fn echo(client: &mut Endpoint) -> verbs::Result<Vec<u8>> {
    client.post_recv(client.reg_msgs([0; 64])?)?;
    client.post_send(client.reg_msgs(*b"hello")?)?;
    client.send_comp()?.ok()?;
    Ok(client.recv_comp()?.received()?.to_vec())
}

/// Idle connections of a host, until one is refused or there are `max`.
fn idle(host: &Host, max: usize) -> Vec<Endpoint> {
    let connected = std::iter::from_fn(|| connect(host).ok());
    connected.take(max).collect()
}

#[test]
fn idle_connections_of_one_address_leave_capacity_to_others() {
    let fabric = Fabric::new();
    let [host, hostile, honest] = hosts(&fabric);
    let service = Service::start(&host, |service| service.max_connections(16));
    let idle = idle(&hostile, 16);
    assert_eq!(idle.len(), 4, "a quarter");
    service.wait_for(&Failure::AddressLimit, 1);
    assert_eq!(service.failures(&Failure::AddressLimit), 1);
    let mut client = connect(&honest).unwrap();
    assert_eq!(echo(&mut client).unwrap(), b"hello");
    drop((client, idle));
    service.stop();
}

#[test]
fn address_with_most_connections_gives_way_at_the_maximum() {
    let fabric = Fabric::new();
    let [host, hostile, honest] = hosts(&fabric);
    let service = Service::start(&host, |service| {
        service.max_connections(4).max_per_address(4)
    });
    let mut idle = idle(&hostile, 4);
    // The first one is idle for longest at the end.
    for client in idle.iter_mut().skip(1) {
        assert_eq!(echo(client).unwrap(), b"hello");
    }
    let mut clients = [(); 2].map(|()| connect(&honest).unwrap());
    for client in &mut clients {
        assert_eq!(echo(client).unwrap(), b"hello");
    }
    // Both addresses have two connections now.
    connect(&honest).map(drop).unwrap_err();
    service.wait_for(&Failure::Displaced, 2);
    assert_eq!(service.failures(&Failure::Displaced), 2);
    service.wait_for(&Failure::ConnectionLimit, 1);
    assert_eq!(service.failures(&Failure::ConnectionLimit), 1);
    let first = &mut idle[0];
    first.post_recv(first.reg_msgs([0; 8]).unwrap()).unwrap();
    assert!(first.recv_comp().unwrap().ok().is_err(), "displaced");
    assert_eq!(echo(&mut idle[3]).unwrap(), b"hello");
    drop((clients, idle));
    service.stop();
}

/// Idle connections of a host use the host's resources up, and another host gets in.
#[track_caller]
fn check_exhausted(limits: Limits) {
    let fabric = Fabric::new();
    let [host, hostile, honest] = hosts(&fabric);
    host.set_limits(limits);
    let service = Service::start(&host, |service| service);
    let idle: Vec<_> = (0..100).filter_map(|_| connect(&hostile).ok()).collect();
    let mut clients = [(); 2].map(|()| connect(&honest).unwrap());
    for client in &mut clients {
        assert_eq!(echo(client).unwrap(), b"hello");
    }
    service.wait_for(&Failure::Displaced, 2);
    drop((clients, idle));
    service.stop();
}

#[test]
fn idle_connections_give_way_at_the_limit_of_queue_pairs() {
    check_exhausted(Limits::new().queue_pairs(16));
}

#[test]
fn idle_connections_give_way_at_the_limit_of_memory_regions() {
    check_exhausted(Limits::new().memory_regions(24));
}

#[test]
fn idle_connections_give_way_at_the_limit_of_locked_memory() {
    check_exhausted(Limits::new().locked_memory(256 << 10));
}

#[test]
fn event_loop_needs_no_descriptor_for_a_connection() {
    let fabric = Fabric::new();
    let [host, _, honest] = hosts(&fabric);
    // An event channel, a completion channel, and the context of the connection manager.
    host.set_limits(Limits::new().descriptors(3));
    let service = Service::start(&host, |service| service);
    let mut clients: Vec<_> = (0..10).map(|_| connect(&honest).unwrap()).collect();
    for client in &mut clients {
        assert_eq!(echo(client).unwrap(), b"hello");
    }
    drop(clients);
    service.stop();
}

#[test]
fn connections_beyond_a_completion_queue_are_served() {
    let fabric = Fabric::new();
    let [host, _, honest] = hosts(&fabric);
    let service = Service::start(&host, |service| service);
    // With 20 entries each, more than the first two queues have.
    let mut clients: Vec<_> = (0..120).map(|_| connect(&honest).unwrap()).collect();
    for client in &mut clients {
        assert_eq!(echo(client).unwrap(), b"hello");
    }
    drop(clients);
    let observed = service.stop();
    assert_eq!(observed.failures, BTreeMap::new());
    assert_eq!(observed.closed, 120);
}

#[test]
fn half_open_connection_of_an_event_loop_times_out() {
    let fabric = Fabric::new();
    let [host, hostile, honest] = hosts(&fabric);
    let service = Service::start(&host, |service| service.handshake_timeout(SHORT));
    let mut silent = hostile.run(Silent::new);
    assert!(hostile.run(|| silent.request()));
    service.wait_for(&Failure::HandshakeTimeout, 1);
    // On a slow machine, the handshake of a client times out as well.
    let (mut attempts, until) = (0, Instant::now() + TEST_TIMEOUT);
    let client = loop {
        attempts += 1;
        let served = connect(&honest).and_then(|mut client| Ok((echo(&mut client)?, client)));
        match served {
            Ok((answer, client)) => {
                assert_eq!(answer, b"hello");
                break client;
            }
            Err(err) => assert!(Instant::now() < until, "{err}"),
        }
    };
    drop((client, silent));
    assert_eq!(service.stop().closed, 1 + attempts);
}

#[test]
fn idle_connection_of_an_event_loop_times_out() {
    let fabric = Fabric::new();
    let [host, _, honest] = hosts(&fabric);
    let service = Service::start(&host, |service| service.idle_timeout(SHORT));
    let mut client = connect(&honest).unwrap();
    client.wait_disconnected().unwrap();
    drop(client);
    service.wait_for(&Failure::IdleTimeout, 1);
    service.stop();
}

#[test]
fn disconnect_of_an_event_loop_that_the_peer_does_not_answer_times_out() {
    let fabric = Fabric::new();
    let [host, hostile, _] = hosts(&fabric);
    let service = Service::start(&host, |service| service.disconnect_timeout(SHORT));
    let mut client = connect(&hostile).unwrap();
    client.post_send(client.reg_msgs(*b"bye").unwrap()).unwrap();
    // The client neither reads its events, nor answers.
    service.wait_for(&Failure::DisconnectTimeout, 1);
    drop(client);
    service.stop();
}

#[test]
fn connect_of_an_event_loop_without_an_answer_times_out() {
    let fabric = Fabric::new();
    let [host, client, _] = hosts(&fabric);
    // Requests are not taken.
    let _listener = host.run(|| cm::Listener::bind(ADDR).unwrap());
    let echo = Echo {
        observed: Arc::default(),
        outbox: mpsc::channel().1,
    };
    let active = client.run(|| EventLoop::connect(echo, None, addr()).unwrap());
    let active = active.handshake_timeout(SHORT);
    let error = client.run(|| active.run()).err().unwrap();
    assert_eq!(error.to_string(), Failure::HandshakeTimeout.to_string());
}

#[test]
fn message_of_another_thread_reaches_all_connections() {
    let fabric = Fabric::new();
    let [host, _, honest] = hosts(&fabric);
    let service = Service::start(&host, |service| service);
    let mut clients = [(); 3].map(|()| connect(&honest).unwrap());
    for client in &mut clients {
        // Also shows that the loop has seen the end of the handshake.
        assert_eq!(echo(client).unwrap(), b"hello");
        client.post_recv(client.reg_msgs([0; 64]).unwrap()).unwrap();
    }
    service.send_to_all(b"news");
    for client in &mut clients {
        assert_eq!(client.recv_comp().unwrap().received().unwrap(), b"news");
        client.post_recv(client.reg_msgs([0; 64]).unwrap()).unwrap();
    }
    service.send_to_all(b"close");
    for client in &mut clients {
        assert!(client.recv_comp().unwrap().ok().is_err(), "disconnected");
    }
    drop(clients);
    assert_eq!(service.stop().closed, 3);
}

#[test]
fn tick_is_called_without_any_event() {
    let fabric = Fabric::new();
    let [host, _, _] = hosts(&fabric);
    let service = Service::start(&host, |service| service.tick(SHORT / 30));
    while service.observed.lock().unwrap().ticks < 3 {
        std::thread::yield_now();
    }
    service.stop();
}

/// Some messages overtake the last frame of the handshake.
#[test]
fn failure_before_the_end_of_the_handshake_disconnects_the_peer() {
    for seed in 0..40 {
        let fabric = Fabric::seeded(seed).delay(Duration::ZERO..SHORT);
        let [server, client, _] = hosts(&fabric);
        let service = Service::start(&server, |service| service.limit(1));
        client.run(|| {
            let mut client = EndpointBuilder::new()
                .timeout(TEST_TIMEOUT)
                .connect(ADDR)
                .unwrap();
            let message = client.reg_msgs(*b"wrong").unwrap();
            client.post_send(message).unwrap();
            client.wait_disconnected().unwrap();
            assert!(client.end_cause().is_none(), "{seed}: rejected");
        });
        let failure = service.running.join().unwrap().unwrap_err();
        assert_eq!(failure.to_string(), "a wrong message", "{seed}");
    }
}

/// A queue for several connections may not have memory, where one for a single connection has.
#[test]
fn connection_without_memory_for_several_has_a_completion_queue_of_its_own() {
    let fabric = Fabric::new();
    let [service, client, _] = hosts(&fabric);
    let failing = [Call::CreateCq, Call::CreateCqEx]
        .map(|call| service.fail(call, When::Nth(1), libc::ENOMEM));
    let service = Service::start(&service, |service| service);
    let mut first = connect(&client).unwrap();
    echo(&mut first).unwrap();
    service.stop();
    drop((first, failing));
}
