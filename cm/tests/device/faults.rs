//! Failures: withdrawn requests, full backlogs, and leaks.

use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use cm::{ConnParam, ConnectFailure, EndpointBuilder, Event, EventChannel, Listener};

use crate::{
    connections::connect,
    resources,
    support::{Halfway, TEST_TIMEOUT, expect_event, listen, local, next, request, silent_client},
};

#[test]
fn requests_beyond_backlog_are_rejected_or_retransmitted() {
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    id.bind(local()).unwrap();
    let listener = id.listen(2).unwrap();
    let addr = listener.local_addr().unwrap();
    // Requests stay in the listener's channel.
    let clients = EventChannel::new().unwrap();
    let mut asking = HashMap::new();
    for _ in 0..5 {
        let half = Halfway::new(&clients, addr);
        let key = half.active.key();
        half.active
            .connect(&half.active_qp, &ConnParam::new())
            .unwrap();
        asking.insert(key, (half.side, half.active_qp));
    }
    // Two requests are pending, and the kernel drops the others, which the clients retransmit until the
    // timeout; each accepted request makes room.
    let mut accepted = 0;
    while accepted < 2 {
        drop(request(&channel));
        accepted += 1;
    }
    let mut rejected = 0;
    while rejected < 2 {
        match next(&clients) {
            Event::ConnectFailed { id, failure } => {
                assert!(asking.remove(&id.key()).is_some());
                assert!(
                    matches!(failure, ConnectFailure::Rejected { .. }),
                    "{failure:?}"
                );
                rejected += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(asking.len(), 3);
}

#[test]
fn accept_after_peer_death_fails() {
    let channel = EventChannel::new().unwrap();
    let (_listener, addr) = listen(&channel, local());
    let Halfway {
        side,
        active,
        active_qp,
    } = Halfway::new(&channel, addr);
    let key = active.key();
    active.connect(&active_qp, &ConnParam::new()).unwrap();
    let request = request(&channel);
    assert!(channel.cancel(key));
    let qp = side
        .pd
        .qp_builder::<verbs::Rc>(&side.cq, &side.cq)
        .max_send_wr(1);
    let qp = qp.max_recv_wr(1).create().unwrap();
    // A step fails at once if the kernel has already been notified; otherwise the connection fails soon
    // after.
    let accepted = match request.id().init_qp(qp) {
        Ok(qp) => request.accept(qp, &ConnParam::new()).map(drop),
        Err(refused) => Err(refused.error),
    };
    match accepted {
        Err(err) => assert_eq!(
            ConnectFailure::of(&err),
            Some(&ConnectFailure::Disconnected)
        ),
        Ok(()) => expect_event!(&channel, Event::ConnectFailed { id, .. } => {
            assert_ne!(id.key(), key);
        }),
    }
}

/// Number of [`withdrawn_requests`].
const WITHDRAWN: usize = 3;

/// Sends connection requests to a listener and withdraws them before an accept.
fn withdrawn_requests(addr: SocketAddr) -> EventChannel {
    let channel = EventChannel::new().unwrap();
    for _ in 0..WITHDRAWN {
        let half = Halfway::new(&channel, addr);
        let key = half.active.key();
        half.active
            .connect(&half.active_qp, &ConnParam::new())
            .unwrap();
        assert!(channel.cancel(key));
    }
    channel
}

#[test]
fn listener_skips_requests_withdrawn_before_accept() {
    let choices = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let listener = choices.listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    // A withdrawal may arrive after the request has been read. Then the accept fails, or the request is returned.
    drop(withdrawn_requests(addr));
    let client = thread::spawn(move || choices.connect(addr).unwrap());
    let accepted = (0..=WITHDRAWN).find_map(|_| listener.accept().ok());
    assert_eq!(
        accepted.unwrap().id().local_addr(),
        client.join().unwrap().id().peer_addr()
    );

    let are_skipped = || {
        drop(withdrawn_requests(addr));
        let pause = Duration::from_millis(500);
        listener.request_timeout(pause).unwrap().is_none()
    };
    assert!((0..20).any(|_| are_skipped()), "requests are returned");
}

#[test]
fn silent_peer_does_not_hold_up_accept() {
    let listener = EndpointBuilder::new().listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, accepted) = mpsc::channel();
    thread::spawn(move || {
        for _ in 0..3 {
            sender.send(listener.accept().unwrap()).unwrap();
        }
    });
    let clients = EventChannel::new().unwrap();
    let ((side, active_qp), response) = silent_client(&clients, addr);
    let choices = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    for _ in 0..2 {
        let client = choices.connect(addr).unwrap();
        let server = accepted.recv_timeout(TEST_TIMEOUT).unwrap();
        assert_eq!(server.id().peer_addr(), client.id().local_addr());
    }
    // The late client is accepted once its handshake completes.
    let late = response.establish(active_qp).unwrap();
    let server = accepted.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(server.id().peer_addr(), late.id().local_addr());
    drop((late, side));
}

/// The backlog limits the number of half-open connections.
#[test]
fn silent_peers_beyond_the_backlog_end_the_oldest() {
    let choices = EndpointBuilder::new().timeout(TEST_TIMEOUT).backlog(2);
    let listener = choices.listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, accepted) = mpsc::channel();
    thread::spawn(move || sender.send(listener.accept().unwrap()).unwrap());
    let channels = [(); 3].map(|()| EventChannel::new().unwrap());
    let silent = channels
        .each_ref()
        .map(|channel| silent_client(channel, addr));
    // The first client receives a disconnect.
    let ended = expect_event!(&channels[0], Event::Disconnected { key, .. } => key);
    assert_eq!(silent[0].1.id().key(), ended);
    let client = EndpointBuilder::new().connect(addr).unwrap();
    let server = accepted.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(server.id().peer_addr(), client.id().local_addr());
}

/// All permutations of four indices.
fn orders() -> impl Iterator<Item = [usize; 4]> {
    let digits = |number: usize| [number / 64, number / 16 % 4, number / 4 % 4, number % 4];
    (0..256).map(digits).filter(|order| {
        let mut delivered = [false; 4];
        order.iter().for_each(|&part| delivered[part] = true);
        delivered == [true; 4]
    })
}

#[test]
fn connection_parts_can_be_dropped_in_every_order() {
    assert_eq!(orders().count(), 24);
    for order in orders() {
        let channel = EventChannel::new().unwrap();
        let (listener, addr) = listen(&channel, local());
        let (side, active, passive) = connect(&channel, addr);
        let (qp, id) = active.into_parts();
        let mut listener = Some(listener);
        let (mut side, mut id) = (Some(side), Some(id));
        let (mut qp, mut channel) = (Some(qp), Some(channel));
        for part in order {
            match part {
                0 => drop(qp.take()),
                1 => drop(id.take()),
                2 => drop((side.take(), listener.take())),
                _ => drop(channel.take()),
            }
        }
        // After any drop order the peer's device works as before.
        assert!(passive.qp().query().is_ok(), "{order:?}");
    }
}

/// Descriptors of this process, and device objects.
#[derive(Debug)]
struct Kept {
    descriptors: usize,
    objects: Vec<usize>,
}

impl Kept {
    fn now() -> Self {
        Self {
            descriptors: descriptors(),
            objects: resources::counts(),
        }
    }

    /// Waits until nothing exceeds the original state: the kernel destroys connections asynchronously.
    fn wait_for_release(&self) {
        let late = Instant::now() + TEST_TIMEOUT;
        while descriptors() > self.descriptors || !resources::are_released(&self.objects) {
            assert!(
                Instant::now() < late,
                "{:?} and before {self:?}",
                Self::now()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Number of open descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

fn make_and_drop(listener: &Listener, addr: SocketAddr, count: usize) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..count {
                drop(listener.accept().unwrap());
            }
        });
        for _ in 0..count {
            let mut endpoint = EndpointBuilder::new()
                .timeout(TEST_TIMEOUT)
                .connect(addr)
                .unwrap();
            endpoint.disconnect().unwrap();
        }
    });
}

#[test]
fn thousand_connections_leak_nothing() {
    // Otherwise the kernel may merge pages of a thread's stack into a huge page of 2 MiB during the test.
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let listener = EndpointBuilder::new()
        .timeout(TEST_TIMEOUT)
        .listen(local())
        .unwrap();
    let addr = listener.local_addr().unwrap();
    // Warm-up for the allocator, the devices, and the listener's domain.
    make_and_drop(&listener, addr, 50);
    thread::sleep(Duration::from_secs(1));
    let (usage, memory) = (Kept::now(), resident());
    make_and_drop(&listener, addr, 1000);
    usage.wait_for_release();
    let more = resident().saturating_sub(memory);
    println!("{more} KiB more after 1000 connections");
    assert!(more < 1024, "{more} KiB more after 1000 connections");
}

/// The descriptor supports waiting, and misuse is harmless.
#[test]
fn event_channel_descriptor_gives_no_access_to_events() {
    use std::{
        io::{Read, Write},
        os::fd::AsFd,
    };
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id().unwrap();
    id.resolve_addr(None, local(), TEST_TIMEOUT).unwrap();
    assert!(verbs::fd::wait_readable("poll", channel.as_fd(), Some(TEST_TIMEOUT)).unwrap());
    verbs::fd::set_nonblocking(channel.as_fd(), false).unwrap();
    let mut file = fs::File::from(channel.as_fd().try_clone_to_owned().unwrap());
    assert!(file.read(&mut [0; 64]).is_err());
    assert!(file.write(&[0; 64]).is_err());
    // SAFETY: the channel is open.
    let fd = unsafe { (*channel.as_raw()).fd };
    // SAFETY: takes and returns numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    assert_ne!(flags & libc::O_NONBLOCK, 0);
    assert!(
        matches!(next(&channel), Event::AddrResolved { .. }),
        "the event is still there"
    );
    assert!(channel.try_next().unwrap().is_none());
}
