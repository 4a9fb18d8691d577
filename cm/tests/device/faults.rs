//! What goes wrong: peers that give up, full listeners, and what is left of connections.

use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use cm::{ConnParam, ConnectFailure, EndpointBuilder, Event, EventChannel, Listener};

use verbs::Rc;

use crate::{
    connections::connect,
    resources,
    support::{Halfway, TEST_TIMEOUT, listen, local, next, request, taken},
};

#[test]
fn requests_beyond_the_backlog_are_rejected_or_wait() {
    let channel = EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    id.bind(local()).unwrap();
    let listener = id.listen(2).unwrap();
    let addr = listener.local_addr().unwrap();
    // Nobody takes the requests from the listener's channel.
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
    // Two of them wait, and the kernel drops the others, which try again until they give up; those
    // that are taken make room.
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
fn a_peer_that_is_gone_before_it_is_accepted_is_noticed() {
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
    let qp = side.pd.qp_builder::<Rc>(&side.cq, &side.cq).max_send_wr(1);
    let qp = qp.max_recv_wr(1).create().unwrap();
    // A step fails at once, when the kernel has heard of it already, or the connection does soon.
    let accepted = match request.id().init_qp(qp) {
        Ok(qp) => request.accept(qp, &ConnParam::new()).map(drop),
        Err(refused) => Err(refused.error),
    };
    match accepted {
        Err(err) => assert_eq!(
            ConnectFailure::of(&err),
            Some(&ConnectFailure::Disconnected)
        ),
        Ok(()) => taken!(&channel, Event::ConnectFailed { id, .. } => {
            assert_ne!(id.key(), key);
        }),
    }
}

/// Asks a listener for connections that the client takes back before they are accepted.
fn impatient_clients(addr: SocketAddr) -> EventChannel {
    let channel = EventChannel::new().unwrap();
    for _ in 0..3 {
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
fn listener_passes_over_clients_that_left_before_accept() {
    let choices = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let listener = choices.listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(impatient_clients(addr));
    // The requests are taken after their clients have left.
    let client = thread::spawn(move || choices.connect(addr).unwrap());
    let accepted = listener.accept().unwrap();
    assert_eq!(
        accepted.id().local_addr(),
        client.join().unwrap().id().peer_addr()
    );

    let clients = impatient_clients(addr);
    drop(clients);
    let pause = Duration::from_millis(500);
    let incoming = listener.request_timeout(pause).unwrap();
    assert!(incoming.is_none(), "{incoming:?}");
}

/// Every order of four things.
fn orders() -> impl Iterator<Item = [usize; 4]> {
    let digits = |number: usize| [number / 64, number / 16 % 4, number / 4 % 4, number % 4];
    (0..256).map(digits).filter(|order| {
        let mut seen = [false; 4];
        order.iter().for_each(|&part| seen[part] = true);
        seen == [true; 4]
    })
}

#[test]
fn the_parts_of_a_connection_are_dropped_in_every_order() {
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
        // Whatever went first, the peer's device is as good as before.
        assert!(passive.qp().query().is_ok(), "{order:?}");
    }
}

/// Descriptors of this process, and objects of the device.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    descriptors: usize,
    objects: String,
}

impl Kept {
    fn now() -> Self {
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            objects: resources::shown(),
        }
    }

    /// Waits until it is as it was: the kernel ends connections in its own time.
    fn again(&self) {
        let late = Instant::now() + TEST_TIMEOUT;
        while Self::now() != *self {
            assert!(
                Instant::now() < late,
                "{:?} and before {self:?}",
                Self::now()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The memory of this process, in kibibytes.
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
fn a_thousand_connections_leave_nothing_behind() {
    // Otherwise the kernel may turn the few pages of a thread's stack into a huge one meanwhile, of 2 MiB.
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let listener = EndpointBuilder::new()
        .timeout(TEST_TIMEOUT)
        .listen(local())
        .unwrap();
    let addr = listener.local_addr().unwrap();
    // The allocator, the devices and the domain of the listener are there after some.
    make_and_drop(&listener, addr, 50);
    thread::sleep(Duration::from_secs(1));
    let (kept, memory) = (Kept::now(), resident());
    make_and_drop(&listener, addr, 1000);
    kept.again();
    let more = resident().saturating_sub(memory);
    println!("{more} KiB more after 1000 connections");
    assert!(more < 1024, "{more} KiB more after 1000 connections");
}

/// The descriptor can be waited for, and misusing it harms nothing.
#[test]
fn event_channel_descriptor_gives_no_access_to_its_events() {
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
    let own = unsafe { (*channel.as_raw()).fd };
    // SAFETY: takes and returns numbers.
    let flags = unsafe { libc::fcntl(own, libc::F_GETFL) };
    assert_ne!(flags & libc::O_NONBLOCK, 0);
    assert!(
        matches!(next(&channel), Event::AddrResolved { .. }),
        "the event is still there"
    );
    assert!(channel.try_next().unwrap().is_none());
}
