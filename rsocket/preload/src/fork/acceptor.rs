//! The RDMA listeners of this process for streams to be moved, one for each local address, at a port of their own.
//!
//! A thread accepts RDMA streams, reads the proof of each, and gives the stream to the offer with this secret and these
//! ends. A stream without such an offer is closed. So no port is a lock, and no call of the program waits for a stranger.

#![forbid(unsafe_code)]

use std::{
    io,
    mem::ManuallyDrop,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use interpose::last_errno;
use rsocket::{PollEntry, PollEvents, poll};
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{SendFlags, send},
};

use super::{
    Inner,
    dup::Dup,
    frame::{Ends, Frame, Kind, PROOF_SIZE, Proof, Secret},
    offers::Offers,
    turn::{Turn, turn},
};
use crate::{log, move_options::nudge, sockets::take};

/// Maximum number of RDMA streams without a proof; more wait to be accepted.
const MAX_UNPROVEN: usize = 64;

/// Age from which the oldest stream without a proof gives way to another.
const YIELD_AGE: Duration = Duration::from_secs(1);

/// Limit for the proof of an accepted RDMA stream.
const PROOF_LIMIT: Duration = Duration::from_secs(10);

/// Number of RDMA streams that may wait to be accepted by the thread.
const BACKLOG: u32 = 128;

pub(crate) struct Acceptor {
    offers: Mutex<Offers<Dup, Inner>>,
    listeners: Mutex<Vec<Inner>>,
    /// When to wake calls that wait to send.
    alarms: Mutex<Vec<(Instant, Secret)>>,
    wake: OwnedFd,
}

/// The acceptor, with the process that it belongs to.
static ACCEPTOR: Mutex<Option<(u32, Arc<Acceptor>)>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An RDMA stream whose peer has not proven anything.
pub(crate) struct Unproven {
    inner: Inner,
    bytes: [u8; PROOF_SIZE],
    len: usize,
    since: Instant,
}

impl Acceptor {
    /// Returns the acceptor of this process.
    pub(crate) fn of_process() -> io::Result<Arc<Self>> {
        let mut current = lock(&ACCEPTOR);
        if let Some((process, acceptor)) = &*current
            && *process == process::id()
        {
            return Ok(Arc::clone(acceptor));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let acceptor = Arc::new(Self {
            offers: Mutex::default(),
            listeners: Mutex::default(),
            alarms: Mutex::default(),
            wake: eventfd(0, flags)?,
        });
        let run = Arc::clone(&acceptor);
        verbs::signals::spawn_without_signals("rsocket-accept", move || run.run())?;
        // The parent's sockets must not be closed by a child.
        let _parents = ManuallyDrop::new(current.replace((process::id(), Arc::clone(&acceptor))));
        Ok(acceptor)
    }

    pub(crate) fn offers(&self) -> MutexGuard<'_, Offers<Dup, Inner>> {
        lock(&self.offers)
    }

    /// Returns the port of the listener at an address.
    ///
    /// # Errors
    /// - No RDMA device has the address.
    pub(crate) fn port_at(&self, ip: IpAddr) -> io::Result<u16> {
        let mut listeners = lock(&self.listeners);
        for listener in &*listeners {
            let at = listener.socket.local_addr()?;
            // Not from before a change of the process's credentials.
            if at.ip() == ip && !listener.socket.is_refused() {
                return Ok(at.port());
            }
        }
        let at = SocketAddr::new(ip, 0);
        let listener = Inner::new(at)?;
        listener.socket.bind(at)?;
        listener.socket.listen(BACKLOG)?;
        listener.socket.set_nonblocking(true);
        let port = listener.socket.local_addr()?.port();
        listeners.push(listener);
        drop(listeners);
        self.wake();
        Ok(port)
    }

    /// Wakes calls that wait to send on the TCP connection of an offer at a time, if the offer still exists then.
    pub(crate) fn nudge_at(&self, time: Instant, secret: Secret) {
        let mut alarms = lock(&self.alarms);
        if !alarms.iter().any(|(_, other)| *other == secret) {
            alarms.push((time, secret));
            drop(alarms);
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only if the thread is being woken already.
        let _: rustix::io::Result<usize> = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut unproven = Vec::new();
        loop {
            turn(self, &mut unproven);
        }
    }

    /// Gives a stream to its offer, and notifies the peer.
    fn confirm(&self, proof: &Proof, inner: Inner) {
        let mut offers = self.offers();
        let Ok(tcp) = offers.prove(proof, inner) else {
            log::write_line(|| "an RDMA stream without an offer is closed".to_owned());
            return;
        };
        let (kind, secret) = (Kind::Confirm, proof.secret);
        if let Ok(tcp) = tcp.get() {
            // Nothing but the offer was sent before, so there is space. Fails if the peer is gone.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _: rustix::io::Result<usize> = send(tcp, &Frame { kind, secret }.encode(), flags);
            nudge(tcp);
        }
    }

    /// Offers a connection to its peer.
    pub(crate) fn offer(&self, secret: Secret, ends: Ends, tcp: Dup) -> io::Result<()> {
        let kind = Kind::Offer {
            port: self.port_at(ends.accepting.ip())?,
        };
        let offer = Frame { kind, secret }.encode();
        let mut offers = self.offers();
        // The first bytes of this side: there is space.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = send(tcp.get()?, &offer, flags)?;
        if sent != offer.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offers.make(secret, ends, tcp);
        Ok(())
    }
}

impl Turn for Acceptor {
    type Listener = Inner;
    type Stream = Unproven;

    fn listeners(&self) -> Vec<Inner> {
        lock(&self.listeners).clone()
    }

    fn wait(&self, listeners: &[Inner], unproven: &[Unproven]) -> io::Result<()> {
        let is_full = unproven.len() >= MAX_UNPROVEN;
        let listeners = if is_full { &[] } else { listeners };
        let sockets = listeners
            .iter()
            .chain(unproven.iter().map(|one| &one.inner));
        let mut entries = vec![PollEntry::fd(self.wake.as_fd(), PollEvents::IN)];
        entries.extend(sockets.map(|inner| PollEntry::socket(&inner.socket, PollEvents::IN)));
        let limit = if is_full { YIELD_AGE } else { PROOF_LIMIT };
        let proofs = unproven.first().map(|oldest| oldest.since + limit);
        let alarms = lock(&self.alarms).iter().map(|(time, _)| *time).min();
        let next = proofs.into_iter().chain(alarms).min();
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        poll(&mut entries, timeout)?;
        // Fails if the thread was not woken.
        let _: rustix::io::Result<usize> = rustix::io::read(&self.wake, &mut [0; 8]);
        Ok(())
    }

    fn read_proof(&self, mut stream: Unproven) -> Option<Unproven> {
        if Instant::now() >= stream.since + PROOF_LIMIT {
            return None;
        }
        while stream.len < PROOF_SIZE {
            match stream.inner.socket.recv(&mut stream.bytes[stream.len..]) {
                Ok(0) => return None,
                Ok(len) => stream.len += len,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Some(stream),
                Err(_) => return None,
            }
        }
        if let Some(proof) = Proof::decode(&stream.bytes) {
            self.confirm(&proof, stream.inner);
        }
        None
    }

    /// The oldest stream gives way to others.
    fn accept(&self, listener: &Inner, unproven: &mut Vec<Unproven>) {
        if let Some(oldest) = unproven.first()
            && unproven.len() >= MAX_UNPROVEN
            && Instant::now() >= oldest.since + YIELD_AGE
        {
            unproven.remove(0);
        }
        while unproven.len() < MAX_UNPROVEN
            && let Some(fd) = take(listener.rsocket.fd())
        {
            let Ok(inner) = Inner::of(fd) else { continue };
            inner.socket.set_nonblocking(true);
            // A stranger's stream is closed without waiting.
            inner.socket.set_linger(Some(Duration::ZERO));
            unproven.push(Unproven {
                inner,
                bytes: [0; PROOF_SIZE],
                len: 0,
                since: Instant::now(),
            });
        }
        if unproven.len() < MAX_UNPROVEN && last_errno() == libc::EACCES {
            // Ready for ever: the process has changed its credentials.
            let is_other = |other: &Inner| !Arc::ptr_eq(&other.socket, &listener.socket);
            lock(&self.listeners).retain(is_other);
        }
    }

    fn ring(&self) {
        let now = Instant::now();
        let mut expired = Vec::new();
        lock(&self.alarms).retain(|(time, secret)| {
            if *time <= now {
                expired.push(*secret);
            }
            *time > now
        });
        let offers = self.offers();
        for secret in expired {
            if let Some(tcp) = offers.connection(&secret)
                && let Ok(tcp) = tcp.get()
            {
                nudge(tcp);
            }
        }
    }
}
