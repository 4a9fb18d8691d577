//! The switch between guests: learns addresses, and forwards, delays, loses, duplicates or corrupts frames as the links'
//! conditions ask for.
//!
//! One thread receives from each guest, and one sends to each guest from a bounded queue. A frame for a full queue is
//! lost, as in a hardware switch.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};

use crate::network::link::Links;
use crate::network::wire::{Capture, MAX_FRAME};

/// Maximum number of bytes of queued frames for a guest: about a thousand of the largest RoCE frames.
const QUEUED_BYTES: usize = 4 << 20;

/// Length of the two addresses at the start of an Ethernet frame.
const ADDRESSES: usize = 12;

/// An Ethernet address.
type Mac = [u8; 6];

/// The switch's end of a guest's cable.
#[derive(Debug)]
pub(crate) enum Port {
    /// User-Mode Linux: one frame a datagram.
    Datagram(UnixDatagram),
    /// QEMU: each frame follows its length, 32 bits in network byte order.
    Stream(UnixStream),
}

/// Kind of the guests' cables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cable {
    /// For User-Mode Linux.
    Datagram,
    /// For QEMU.
    Stream,
}

impl Port {
    fn pair(cable: Cable) -> io::Result<(OwnedFd, Self)> {
        Ok(match cable {
            Cable::Datagram => {
                let (guests, ours) = UnixDatagram::pair()?;
                (guests.into(), Self::Datagram(ours))
            }
            Cable::Stream => {
                let (guests, ours) = UnixStream::pair()?;
                (guests.into(), Self::Stream(ours))
            }
        })
    }

    /// Receives a frame into `buffer`, and returns its length; 0 at the end.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Datagram(socket) => socket.recv(buffer),
            Self::Stream(socket) => {
                let mut socket: &UnixStream = socket;
                let mut length = [0; 4];
                socket.read_exact(&mut length)?;
                let length =
                    usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
                let frame = buffer.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
                socket.read_exact(frame)?;
                Ok(length)
            }
        }
    }

    fn send(&self, frame: &[u8]) -> io::Result<()> {
        match self {
            Self::Datagram(socket) => socket.send(frame).map(drop),
            Self::Stream(socket) => {
                let mut socket: &UnixStream = socket;
                let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
                socket.write_all(&[&length.to_be_bytes(), frame].concat())
            }
        }
    }

    fn shut_down(&self) {
        // Fails only if already shut down.
        drop(match self {
            Self::Datagram(socket) => socket.shutdown(Shutdown::Both),
            Self::Stream(socket) => socket.shutdown(Shutdown::Both),
        });
    }
}

/// A running switch, until dropped.
#[derive(Debug)]
pub(crate) struct Switch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// State shared by the threads.
#[derive(Debug)]
struct Shared {
    ports: Vec<Port>,
    queues: Vec<Queue>,
    links: Links,
    /// The port behind each address.
    learned: Mutex<HashMap<Mac, usize>>,
    capture: Option<Mutex<Capture<BufWriter<File>>>>,
}

impl Switch {
    /// Starts a switch for the hosts of `links`, and returns the guests' ends of the cables. With `pcap`, records every
    /// received frame to that file.
    pub(crate) fn start(
        hosts: usize,
        cable: Cable,
        links: Links,
        pcap: Option<&Path>,
    ) -> Result<(Self, Vec<OwnedFd>)> {
        let pairs = (0..hosts).map(|_| Port::pair(cable));
        let pairs = pairs.collect::<io::Result<Vec<_>>>()?;
        let (ends, ports): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let capture = match pcap {
            Some(pcap) => {
                let file = File::create(pcap)
                    .with_context(|| format!("cannot write {}", pcap.display()))?;
                Some(Mutex::new(Capture::new(BufWriter::new(file))?))
            }
            None => None,
        };
        let shared = Arc::new(Shared {
            queues: ports.iter().map(|_| Queue::default()).collect(),
            ports,
            links,
            learned: Mutex::default(),
            capture,
        });
        let mut switch = Self {
            shared,
            threads: Vec::new(),
        };
        for port in 0..hosts {
            let shared = Arc::clone(&switch.shared);
            switch.spawn(move || shared.receive_from(port))?;
            let shared = Arc::clone(&switch.shared);
            switch.spawn(move || shared.send_to(port))?;
        }
        Ok((switch, ends))
    }

    fn spawn(&mut self, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name("switch".into());
        self.threads
            .push(thread.spawn(body).context("cannot start a thread")?);
        Ok(())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for port in &self.shared.ports {
            port.shut_down();
        }
        for queue in &self.shared.queues {
            queue.close();
        }
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        if let Some(capture) = &self.shared.capture
            && let Err(error) = lock(capture).flush()
        {
            eprintln!("the capture of the switch is incomplete: {error}");
        }
    }
}

impl Shared {
    /// Forwards the frames of a port until its end.
    fn receive_from(&self, port: usize) {
        let mut buffer = vec![0; MAX_FRAME];
        while let Ok(length @ 1..) = self.ports[port].receive(&mut buffer) {
            let frame = &buffer[..length];
            if let Some(capture) = &self.capture {
                // An error, such as a full disk, stops the recording and not the switch.
                lock(capture).record(SystemTime::now(), frame);
            }
            self.forward(port, frame);
        }
    }

    /// Queues a frame from a port for its destinations.
    fn forward(&self, from: usize, frame: &[u8]) {
        let Some((to, source)) = addresses(frame) else {
            return;
        };
        let destination = {
            let mut learned = lock(&self.learned);
            if !is_group(source) {
                learned.insert(source, from);
            }
            learned.get(&to).copied().filter(|_| !is_group(to))
        };
        let everyone = 0..self.ports.len();
        for port in everyone.filter(|port| {
            *port != from && destination.is_none_or(|destination| destination == *port)
        }) {
            let condition = self.links.between(from, port);
            if !condition.is_up || happens(condition.loss) {
                continue;
            }
            let delivery = Instant::now() + condition.delay;
            for _ in 0..1 + usize::from(happens(condition.duplication)) {
                let mut frame = frame.to_vec();
                if happens(condition.corruption) && !is_arp(&frame) {
                    corrupt(&mut frame);
                }
                self.queues[port].push(delivery, frame);
            }
        }
    }

    /// Sends the queued frames of a port until the queue is closed.
    fn send_to(&self, port: usize) {
        while let Some(frame) = self.queues[port].pop() {
            // The guest may have exited.
            drop(self.ports[port].send(&frame));
        }
    }
}

fn happens(probability: f64) -> bool {
    probability > 0.0 && fastrand::f64() < probability
}

/// Inverts a bit after the addresses.
fn corrupt(frame: &mut [u8]) {
    if frame.len() > ADDRESSES {
        frame[fastrand::usize(ADDRESSES..frame.len())] ^= 1 << fastrand::u32(..8);
    }
}

/// Whether a frame is of ARP, which has no checksum: a host would keep a corrupted address for up to a minute. Ethernet drops
/// such a frame by the frame's own checksum.
fn is_arp(frame: &[u8]) -> bool {
    const ARP: [u8; 2] = [8, 6];
    frame.get(ADDRESSES..ADDRESSES + 2) == Some(&ARP)
}

/// Destination and source of an Ethernet frame.
fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    let (to, source) = frame.get(..ADDRESSES)?.split_at(ADDRESSES / 2);
    Some((to.try_into().ok()?, source.try_into().ok()?))
}

/// Whether an address is a multicast or broadcast address.
fn is_group(address: Mac) -> bool {
    address[0] & 1 == 1
}

/// Frames for a guest, ordered by the time to send them.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Time, number of the frame, and frame. Frames of equal time keep their order.
    frames: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    bytes: usize,
    number: u64,
    is_closed: bool,
}

impl Queue {
    /// Queues a frame to be sent at `delivery`. The frame is lost if the queue is full.
    fn push(&self, delivery: Instant, frame: Vec<u8>) {
        let mut state = lock(&self.state);
        if state.bytes + frame.len() > QUEUED_BYTES {
            return;
        }
        state.bytes += frame.len();
        state.number += 1;
        let number = state.number;
        state.frames.push(Reverse((delivery, number, frame)));
        drop(state);
        self.changed.notify_one();
    }

    /// The next frame, once it is due; none after [`Queue::close`]. Blocks.
    fn pop(&self) -> Option<Vec<u8>> {
        let mut state = lock(&self.state);
        loop {
            if state.is_closed {
                return None;
            }
            let wait = state
                .frames
                .peek()
                .map(|Reverse((delivery, ..))| delivery.saturating_duration_since(Instant::now()));
            state = match wait {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(wait) if wait.is_zero() => {
                    let Reverse((_, _, frame)) = state.frames.pop()?;
                    state.bytes -= frame.len();
                    return Some(frame);
                }
                Some(wait) => {
                    let waited = self.changed.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::event::Host;
    use crate::network::link::LinkChange;

    /// A guest's end of a cable.
    fn ends(cable: Cable, ends: Vec<OwnedFd>) -> Vec<Port> {
        let port = |end| match cable {
            Cable::Datagram => Port::Datagram(UnixDatagram::from(end)),
            Cable::Stream => Port::Stream(UnixStream::from(end)),
        };
        ends.into_iter().map(port).collect()
    }

    fn switch(hosts: usize, cable: Cable) -> (Switch, Vec<Port>, Links) {
        let links = Links::new(hosts);
        let (switch, fds) = Switch::start(hosts, cable, links.clone(), None).unwrap();
        (switch, ends(cable, fds), links)
    }

    const BROADCAST: Mac = [0xff; 6];

    fn mac(port: usize) -> Mac {
        [2, 0, 0, 0, 0, u8::try_from(port).unwrap()]
    }

    fn frame(to: Mac, from: usize, text: &str) -> Vec<u8> {
        [&to, &mac(from), text.as_bytes()].concat()
    }

    /// The text of the next frame.
    fn next(port: &Port) -> String {
        let mut buffer = vec![0; MAX_FRAME];
        let length = port.receive(&mut buffer).unwrap();
        String::from_utf8(buffer[ADDRESSES..length].to_vec()).unwrap()
    }

    #[test]
    fn frames_to_learned_addresses_reach_their_port_only() {
        for cable in [Cable::Datagram, Cable::Stream] {
            let (_switch, ports, _links) = switch(3, cable);
            ports[1].send(&frame(BROADCAST, 1, "all")).unwrap();
            assert_eq!(
                (next(&ports[0]), next(&ports[2])),
                ("all".into(), "all".into())
            );
            // Port 2 is unknown yet: flooded.
            ports[0].send(&frame(mac(2), 0, "flood")).unwrap();
            assert_eq!(
                (next(&ports[1]), next(&ports[2])),
                ("flood".into(), "flood".into())
            );
            ports[0].send(&frame(mac(1), 0, "one")).unwrap();
            ports[0].send(&frame(BROADCAST, 0, "end")).unwrap();
            assert_eq!(
                (next(&ports[1]), next(&ports[1])),
                ("one".into(), "end".into())
            );
            assert_eq!(next(&ports[2]), "end");
        }
    }

    #[test]
    fn frames_of_a_cut_link_are_lost_until_it_is_restored() {
        let (_switch, ports, links) = switch(3, Cable::Datagram);
        links.cut(Host::A, Host::B).unwrap();
        ports[0].send(&frame(BROADCAST, 0, "lost")).unwrap();
        assert_eq!(next(&ports[2]), "lost");
        links.restore(Host::A, Host::B).unwrap();
        ports[0].send(&frame(BROADCAST, 0, "kept")).unwrap();
        assert_eq!(next(&ports[1]), "kept");
    }

    #[test]
    fn loss_of_one_loses_every_frame_and_none_of_other_links() {
        let (_switch, ports, links) = switch(3, Cable::Datagram);
        links
            .change(Host::A, Host::B, LinkChange::Loss(1.0))
            .unwrap();
        for number in 0..20 {
            ports[0]
                .send(&frame(BROADCAST, 0, &number.to_string()))
                .unwrap();
            assert_eq!(next(&ports[2]), number.to_string());
        }
        links
            .change(Host::A, Host::B, LinkChange::Loss(0.0))
            .unwrap();
        ports[0].send(&frame(BROADCAST, 0, "end")).unwrap();
        assert_eq!(next(&ports[1]), "end");
    }

    #[test]
    fn duplication_and_corruption_of_one_change_every_frame_but_of_arp() {
        let (_switch, ports, links) = switch(2, Cable::Stream);
        let change = |change| links.change(Host::A, Host::B, change).unwrap();
        change(LinkChange::Duplication(1.0));
        ports[0].send(&frame(mac(1), 0, "twice")).unwrap();
        assert_eq!([next(&ports[1]), next(&ports[1])], ["twice", "twice"]);
        change(LinkChange::Duplication(0.0));
        change(LinkChange::Corruption(1.0));
        let sent = frame(mac(1), 0, "corrupted");
        for _ in 0..20 {
            ports[0].send(&sent).unwrap();
            let mut buffer = [0; MAX_FRAME];
            let length = ports[1].receive(&mut buffer).unwrap();
            let pairs = buffer[..length].iter().zip(&sent);
            let bits: u32 = pairs.map(|(got, sent)| (got ^ sent).count_ones()).sum();
            assert_eq!((length, bits), (sent.len(), 1));
        }
        let arp = "\u{8}\u{6}address";
        for _ in 0..20 {
            ports[0].send(&frame(mac(1), 0, arp)).unwrap();
            assert_eq!(next(&ports[1]), arp);
        }
        change(LinkChange::Corruption(0.0));
        ports[0].send(&frame(mac(1), 0, "end")).unwrap();
        assert_eq!(next(&ports[1]), "end");
    }

    #[test]
    fn delayed_frames_arrive_late_and_in_order() {
        let (_switch, ports, links) = switch(2, Cable::Stream);
        let delay = Duration::from_millis(80);
        links
            .change(Host::A, Host::B, LinkChange::Delay(delay))
            .unwrap();
        let begin = Instant::now();
        for text in ["1", "2", "3"] {
            ports[0].send(&frame(mac(1), 0, text)).unwrap();
        }
        assert_eq!(
            [next(&ports[1]), next(&ports[1]), next(&ports[1])],
            ["1", "2", "3"]
        );
        assert!(begin.elapsed() >= delay);
    }

    #[test]
    fn full_queue_loses_frames_and_keeps_its_bound() {
        let queue = Queue::default();
        let (delivery, frame) = (Instant::now(), vec![0; QUEUED_BYTES / 4]);
        (0..10).for_each(|_| queue.push(delivery, frame.clone()));
        assert_eq!(lock(&queue.state).frames.len(), 4);
        assert!(queue.pop().is_some());
        queue.push(delivery, frame);
        assert_eq!(lock(&queue.state).bytes, QUEUED_BYTES);
        queue.close();
        assert!(queue.pop().is_none());
    }

    #[test]
    fn exited_guest_does_not_stop_the_others() {
        let (_switch, mut ports, _links) = switch(3, Cable::Datagram);
        drop(ports.remove(1));
        for text in ["1", "2"] {
            ports[0].send(&frame(BROADCAST, 0, text)).unwrap();
            assert_eq!(next(&ports[1]), text);
        }
    }

    #[test]
    fn short_frames_and_wrong_lengths_end_nothing_else() {
        let (_switch, ports, _links) = switch(3, Cable::Stream);
        ports[0].send(b"short").unwrap();
        let Port::Stream(socket) = &ports[1] else {
            panic!("a stream")
        };
        let mut socket: &UnixStream = socket;
        socket.write_all(&u32::MAX.to_be_bytes()).unwrap();
        ports[0].send(&frame(BROADCAST, 0, "after")).unwrap();
        assert_eq!(next(&ports[2]), "after");
    }

    #[test]
    fn capture_has_each_frame_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.pcap");
        let (switch, fds) = Switch::start(3, Cable::Datagram, Links::new(3), Some(&file)).unwrap();
        let ports = ends(Cable::Datagram, fds);
        ports[0].send(&frame(BROADCAST, 0, "all")).unwrap();
        assert_eq!(next(&ports[1]), "all");
        drop(switch);
        assert_eq!(fs::read(&file).unwrap().len(), 24 + 16 + ADDRESSES + 3);
    }
}
