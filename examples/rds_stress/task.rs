//! A task: a socket with a fixed number of requests in flight to each task of the other side,
//! answering the requests of these tasks.
#![expect(clippy::print_stderr, reason = "the user has requested the output")]

use std::{
    io::{self, IoSlice},
    net::SocketAddrV4,
    os::fd::AsFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rds::{
    Cookie, Event, ExportOptions, Interest, Message, Rdma, RdmaBuffer, SendOptions, Socket, Status,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    message::{Header, Kind, Operation, Rdma as Memory, pattern},
    options::{HEADER_LEN, Mode, Options},
    stats::Stats,
};

/// Tasks send and receive.
pub const RUNNING: u8 = 0;
/// Tasks receive answers still in flight, and send no requests.
pub const STOPPING: u8 = 1;
/// Tasks end.
pub const STOPPED: u8 = 2;

/// Number of messages before the first operation.
const PLAIN: u32 = 10;

/// State shared by tasks and the printing thread.
#[derive(Debug)]
pub struct Shared {
    /// [`RUNNING`], [`STOPPING`] or [`STOPPED`].
    pub phase: AtomicU8,
    /// Statistics by task.
    pub stats: Vec<Mutex<Stats>>,
    /// Round trips longer than this, in microseconds, are printed.
    pub outlier: u64,
}

/// Slot for one request and its answer, in each direction.
#[derive(Debug)]
struct Slot {
    sent: Instant,
    /// Last answer, sent or due.
    ack: Option<Header>,
    memory: Option<SlotMemory>,
}

#[derive(Debug)]
struct SlotMemory {
    /// Memory accessed by the other side.
    remote: RdmaBuffer,
    /// Source and target of operations on memory of the other side.
    local: RdmaBuffer,
    /// Cookie of `remote`, if exported.
    key: Option<Cookie>,
    /// Operation in flight.
    inflight: Option<Memory>,
}

/// A task of the other side.
#[derive(Debug)]
struct Peer {
    addr: SocketAddrV4,
    slots: Vec<Slot>,
    /// Requests without an answer.
    pending: usize,
    /// Received requests without an answer.
    unacked: usize,
    send_sequence: u32,
    recv_sequence: u32,
    send_index: usize,
    recv_index: usize,
    congested: bool,
    next: Operation,
}

/// Reason for a send to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// The send buffer is full.
    Full,
    /// The destination is congested.
    Congested,
    /// The previous operation on the same memory is in flight.
    Draining,
}

/// A task.
#[derive(Debug)]
pub struct Task {
    number: usize,
    socket: Socket,
    local: SocketAddrV4,
    options: Options,
    /// Whether the task sends requests.
    asks: bool,
    peers: Vec<Peer>,
    /// Message body.
    pattern: Vec<u8>,
}

impl Task {
    /// Creates the socket of task `number`, and its memory.
    ///
    /// # Errors
    /// As for sockets and memory.
    pub fn new(number: u16, options: &Options, active: bool) -> Result<Self> {
        let local = SocketAddrV4::new(options.local, options.task_port(number));
        let socket = Socket::bind(local).with_context(|| format!("a socket at {local}"))?;
        socket.set_nonblocking(true);
        if options.tos != 0 {
            socket.set_tos(options.tos)?;
        }
        let capacity = u64::from(options.tasks) * u64::from(options.depth) * 2;
        let capacity = capacity * u64::from(options.request + options.ack);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        socket.set_send_limit(capacity)?;
        socket.set_recv_limit(capacity)?;
        socket.set_congestion_monitor(options.monitor)?;
        let peers = (0..options.tasks)
            .map(|peer| Peer::new(peer, &socket, options))
            .collect::<Result<_>>()?;
        let len = options.request.max(options.ack) - HEADER_LEN;
        Ok(Self {
            number: number.into(),
            socket,
            local,
            options: options.clone(),
            asks: active || !options.simplex,
            peers,
            pattern: pattern(len as usize),
        })
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Runs until the program stops the tasks.
    ///
    /// # Errors
    /// A message was unexpected or corrupt, or could not be sent. Finding these is the purpose of
    /// the program.
    pub fn run(&mut self, shared: &Shared) -> Result<()> {
        while shared.phase.load(Relaxed) != STOPPED {
            self.receive(shared)?;
            let mut full = false;
            if shared.phase.load(Relaxed) == RUNNING {
                full = self.send(shared)?;
            }
            let interest = if full {
                Interest::ReadWrite
            } else {
                Interest::Read
            };
            let ready = self.socket.readiness(interest)?;
            if ready.map_changed {
                self.peers
                    .iter_mut()
                    .for_each(|peer| peer.congested = false);
            }
            if ready.readable || ready.map_changed || (full && ready.writable) {
                continue;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            match poll(&mut fds, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(err) => return Err(err).context("waiting"),
            }
        }
        Ok(())
    }

    fn count(&self, shared: &Shared, change: impl FnOnce(&mut Stats)) {
        let stats = &shared.stats[self.number];
        change(&mut stats.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Receives all pending messages and events.
    fn receive(&mut self, shared: &Shared) -> Result<()> {
        loop {
            match self.socket.try_recv_event() {
                Ok(Event::Message(message)) => self.take(&message, shared)?,
                Ok(Event::Operation(end)) => self.ended(end.token, end.status)?,
                Ok(Event::Congestion(ports)) => {
                    for peer in &mut self.peers {
                        peer.congested &= ports >> (peer.addr.port() % 64) & 1 == 0;
                    }
                }
                Ok(_) => {}
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(err) => return Err(err).context("receiving"),
            }
        }
    }

    /// Handles the end of an operation on memory of the other side.
    fn ended(&mut self, token: u64, status: Status) -> Result<()> {
        let depth = u64::from(self.options.depth);
        let slot = usize::try_from(token / depth)
            .ok()
            .and_then(|peer| self.peers.get_mut(peer))
            .and_then(|peer| peer.slots.get_mut(usize::try_from(token % depth).ok()?));
        let memory = slot.and_then(|slot| slot.memory.as_mut());
        let memory = memory.context("unknown operation has ended")?;
        let Some(rdma) = memory.inflight.take() else {
            bail!("an operation has ended twice");
        };
        ensure!(
            status == Status::Success,
            "the {:?} of {} bytes ended with {status:?}",
            rdma.operation,
            memory.local.len()
        );
        if self.options.verify && rdma.operation == Operation::Read {
            compare(&memory.local, 0, &rdma)?;
        }
        Ok(())
    }

    /// Checks a message, in sequence from its sender.
    fn take(&mut self, message: &Message, shared: &Shared) -> Result<()> {
        let bytes = message.to_vec();
        let header = Header::from_wire(&bytes);
        let header = header.with_context(|| format!("{} bytes are no message", bytes.len()))?;
        let local = self.local;
        let asks = self.asks;
        let peer = self
            .peers
            .iter_mut()
            .find(|peer| message.from() == peer.addr.into())
            .with_context(|| format!("message from unknown task {}", message.from()))?;
        let (len, index) = match header.kind {
            Kind::Request => (self.options.request, peer.recv_index),
            Kind::Ack => {
                ensure!(asks && peer.pending > 0, "unexpected answer");
                let oldest = peer.send_index + peer.slots.len() - peer.pending;
                (self.options.ack, oldest % peer.slots.len())
            }
        };
        ensure!(
            bytes.len() == len as usize,
            "{:?} of {} bytes, not {len}",
            header.kind,
            bytes.len()
        );
        let requested = (peer.recv_sequence, peer.addr, local, index);
        let got = (
            header.sequence,
            header.from,
            header.to,
            usize::from(header.index),
        );
        ensure!(got == requested, "message {got:?} instead of {requested:?}");
        let rest = &bytes[HEADER_LEN as usize..];
        ensure!(
            !self.options.verify || rest == &self.pattern[..rest.len()],
            "the body of message {} is corrupt",
            header.sequence
        );
        peer.recv_sequence = peer.recv_sequence.wrapping_add(1);
        match header.kind {
            Kind::Request => {
                let cookie = message.cookie();
                peer.request(header, cookie, local, &self.options)?;
                self.count(shared, |stats| {
                    stats.received += 1;
                    stats.bytes += u64::from(len);
                });
                Ok(())
            }
            Kind::Ack => {
                let slot = &mut peer.slots[index];
                let took = slot.answered(&self.socket, header.rdma, &self.options)?;
                peer.pending -= 1;
                self.count_ack(shared, &header, len, took);
                Ok(())
            }
        }
    }

    /// Counts an answer of `len` bytes, and its operation.
    fn count_ack(&self, shared: &Shared, header: &Header, len: u32, took: Duration) {
        if took.as_micros() > shared.outlier.into() {
            eprintln!("a round trip took {} us", took.as_micros());
        }
        self.count(shared, |stats| {
            stats.bytes += u64::from(len);
            stats.round(took);
            let bytes = header
                .rdma
                .map(|rdma| (rdma.operation, u64::from(rdma.len)));
            match bytes {
                Some((Operation::Write, len)) => stats.memory_in += len,
                Some((Operation::Read, len)) => stats.memory_out += len,
                None => {}
            }
        });
    }

    /// Sends due messages; returns whether the socket is full.
    fn send(&mut self, shared: &Shared) -> Result<bool> {
        for number in 0..self.peers.len() {
            if self.peers[number].congested {
                continue;
            }
            match self.send_to(number, shared)? {
                None | Some(Blocked::Draining) => {}
                Some(Blocked::Congested) => self.peers[number].congested = true,
                Some(Blocked::Full) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Sends all answers and requests due to a task.
    fn send_to(&mut self, number: usize, shared: &Shared) -> Result<Option<Blocked>> {
        while self.peers[number].unacked > 0 {
            let peer = &self.peers[number];
            let index = (peer.recv_index + peer.slots.len() - peer.unacked) % peer.slots.len();
            if let Some(blocked) = self.answer(number, index, shared)? {
                return Ok(Some(blocked));
            }
            self.peers[number].unacked -= 1;
        }
        while self.asks && self.peers[number].pending < self.peers[number].slots.len() {
            if let Some(blocked) = self.ask(number, shared)? {
                return Ok(Some(blocked));
            }
        }
        Ok(None)
    }

    fn answer(&mut self, number: usize, index: usize, shared: &Shared) -> Result<Option<Blocked>> {
        let depth = self.options.depth as usize;
        let peer = &mut self.peers[number];
        let slot = &mut peer.slots[index];
        let mut header = slot.ack.context("answer without a request")?;
        header.sequence = peer.send_sequence;
        let mut send = SendOptions::new().to(peer.addr.into());
        if let (Some(rdma), Some(memory)) = (header.rdma, &slot.memory) {
            if memory.inflight.is_some() {
                return Ok(Some(Blocked::Draining));
            }
            let len = rdma.len as usize;
            let pieces =
                (0..rdma.vector as usize).map(|at| memory.local.slice(at * len..(at + 1) * len));
            let cookie = Cookie::from_u64(rdma.key);
            let operation = match rdma.operation {
                Operation::Write => {
                    if self.options.verify {
                        fill(&memory.local, 0, rdma.len, rdma.pattern);
                    }
                    Rdma::write(pieces.collect(), cookie)
                }
                Operation::Read if self.options.fence => {
                    Rdma::read(pieces.collect(), cookie).fence()
                }
                Operation::Read => Rdma::read(pieces.collect(), cookie),
            };
            let token = (number * depth + index) as u64;
            send = send.rdma(operation.at(rdma.offset).notify().token(token));
            if self.options.trace {
                eprintln!("{} for {}: {rdma:?}", self.local, peer.addr);
            }
        }
        let ack = self.options.ack;
        if let Some(blocked) = put(
            &self.socket,
            &header,
            ack,
            &self.pattern,
            &self.options,
            &send,
        )? {
            return Ok(Some(blocked));
        }
        peer.send_sequence = peer.send_sequence.wrapping_add(1);
        if let (Some(rdma), Some(memory)) = (header.rdma, &mut slot.memory) {
            memory.inflight = Some(rdma);
        }
        self.count(shared, |stats| {
            stats.bytes += u64::from(ack);
            match header
                .rdma
                .map(|rdma| (rdma.operation, u64::from(rdma.len)))
            {
                Some((Operation::Write, len)) => stats.memory_out += len,
                Some((Operation::Read, len)) => stats.memory_in += len,
                None => {}
            }
        });
        Ok(None)
    }

    fn ask(&mut self, number: usize, shared: &Shared) -> Result<Option<Blocked>> {
        let peer = &mut self.peers[number];
        let slot = &mut peer.slots[peer.send_index];
        let mut send = SendOptions::new().to(peer.addr.into());
        let mut next = peer.next;
        let mut rdma = None;
        if let Some(memory) = &mut slot.memory
            && peer.send_sequence > PLAIN
        {
            next = match (self.options.mode, peer.next) {
                (Mode::ReadWrite, Operation::Write) | (Mode::ReadOnly, _) => Operation::Read,
                (Mode::ReadWrite, Operation::Read) | (Mode::WriteOnly, _) => Operation::Write,
            };
            // An unsent request may have been exported.
            let cookie = match memory.key {
                Some(cookie) => cookie,
                None => export(&self.socket, memory, &self.options)?,
            };
            send = send.cookie(cookie);
            let operation = operation(memory, next, cookie, peer.send_sequence, &self.options);
            rdma = Some(operation);
        }
        let header = Header {
            sequence: peer.send_sequence,
            from: self.local,
            to: peer.addr,
            // `check` excludes an overflow.
            index: u16::try_from(peer.send_index)?,
            kind: Kind::Request,
            rdma,
        };
        let request = self.options.request;
        let start = Instant::now();
        if let Some(blocked) = put(
            &self.socket,
            &header,
            request,
            &self.pattern,
            &self.options,
            &send,
        )? {
            return Ok(Some(blocked));
        }
        slot.sent = start;
        peer.next = next;
        peer.send_sequence = peer.send_sequence.wrapping_add(1);
        peer.send_index = (peer.send_index + 1) % peer.slots.len();
        peer.pending += 1;
        self.count(shared, |stats| stats.sent(request, start.elapsed()));
        Ok(None)
    }
}

impl Peer {
    fn new(number: u16, socket: &Socket, options: &Options) -> Result<Self> {
        let slots = (0..options.depth).map(|_| Slot::new(socket, options));
        Ok(Self {
            addr: SocketAddrV4::new(options.peer, options.task_port(number)),
            slots: slots.collect::<Result<_>>()?,
            pending: 0,
            unacked: 0,
            send_sequence: 0,
            recv_sequence: 0,
            send_index: 0,
            recv_index: 0,
            congested: false,
            next: if number % 2 == 1 {
                Operation::Read
            } else {
                Operation::Write
            },
        })
    }

    /// Handles a request.
    fn request(
        &mut self,
        header: Header,
        cookie: Option<Cookie>,
        local: SocketAddrV4,
        options: &Options,
    ) -> Result<()> {
        ensure!(
            self.unacked < self.slots.len(),
            "{} sends more than {} requests at a time",
            self.addr,
            self.slots.len()
        );
        let rdma = match header.rdma {
            None => None,
            Some(rdma) => {
                ensure!(
                    (rdma.len, rdma.vector) == (options.rdma, options.vector) && rdma.len > 0,
                    "an operation on {} pieces of {} bytes, not {} of {}",
                    rdma.vector,
                    rdma.len,
                    options.vector,
                    options.rdma
                );
                let key = cookie.map_or(rdma.key, Cookie::to_u64);
                ensure!(key != 0, "operation on memory without a key");
                Some(Memory { key, ..rdma })
            }
        };
        self.slots[self.recv_index].ack = Some(Header {
            sequence: 0,
            from: local,
            to: self.addr,
            index: header.index,
            kind: Kind::Ack,
            rdma,
        });
        self.unacked += 1;
        self.recv_index = (self.recv_index + 1) % self.slots.len();
        Ok(())
    }
}

impl Slot {
    fn new(socket: &Socket, options: &Options) -> Result<Self> {
        let memory = if options.rdma > 0 {
            let context = || format!("memory for operations on {} bytes", options.memory());
            let remote = socket.alloc(options.alignment as usize + options.memory());
            let local = socket.alloc(options.memory());
            Some(SlotMemory {
                remote: remote.with_context(context)?,
                local: local.with_context(context)?,
                key: None,
                inflight: None,
            })
        } else {
            None
        };
        Ok(Self {
            sent: Instant::now(),
            ack: None,
            memory,
        })
    }

    /// Checks an answer and the result of its operation. Returns the time since the request.
    fn answered(
        &mut self,
        socket: &Socket,
        rdma: Option<Memory>,
        options: &Options,
    ) -> Result<Duration> {
        let agreed = (options.rdma, options.vector);
        ensure!(
            rdma.is_none_or(|rdma| (rdma.len, rdma.vector) == agreed),
            "an answer about {rdma:?}, not {agreed:?}"
        );
        let took = self.sent.elapsed();
        if let (Some(rdma), Some(memory)) = (rdma, self.memory.as_mut()) {
            answered(socket, memory, &rdma, options)?;
        }
        Ok(took)
    }
}

/// Exports the memory of a slot.
fn export(socket: &Socket, memory: &mut SlotMemory, options: &Options) -> Result<Cookie> {
    let how = if options.use_once {
        ExportOptions::new().use_once()
    } else {
        ExportOptions::new()
    };
    let cookie = socket
        .export(&memory.remote, how)
        .context("exporting memory")?;
    memory.key = Some(cookie);
    Ok(cookie)
}

/// Handles the answer to an operation on the memory of a slot.
fn answered(
    socket: &Socket,
    memory: &mut SlotMemory,
    rdma: &Memory,
    options: &Options,
) -> Result<()> {
    if !options.cache
        && let Some(cookie) = memory.key.take()
        && !options.use_once
    {
        socket.free(cookie).context("ending the export")?;
    }
    if options.verify && rdma.operation == Operation::Write {
        compare(&memory.remote, options.alignment as usize, rdma)?;
    }
    Ok(())
}

/// The operation requested from the other side with the message `sequence`, on filled memory.
fn operation(
    memory: &SlotMemory,
    operation: Operation,
    cookie: Cookie,
    sequence: u32,
    options: &Options,
) -> Memory {
    let value = u64::from(sequence) << 32 | u64::from(std::process::id());
    let first = match operation {
        Operation::Read => value,
        Operation::Write => 0,
    };
    let start = options.alignment as usize;
    if options.verify {
        fill(&memory.remote, start, options.rdma, first);
    }
    Memory {
        operation,
        // The address is local to this side.
        addr: 0,
        offset: start as u64,
        pattern: value,
        key: if options.get_mr { cookie.to_u64() } else { 0 },
        len: options.rdma,
        vector: options.vector,
    }
}

/// Fills the first piece of memory with a number.
fn fill(pages: &RdmaBuffer, start: usize, len: u32, value: u64) {
    let words = (0..len / 8).flat_map(|_| value.to_ne_bytes());
    pages.write(start, &words.collect::<Vec<_>>());
}

/// Checks the number in the first piece of memory.
fn compare(pages: &RdmaBuffer, start: usize, rdma: &Memory) -> Result<()> {
    let mut bytes = vec![0; (rdma.len / 8 * 8) as usize];
    pages.read(start, &mut bytes);
    let wrong = bytes
        .chunks(8)
        .position(|word| word != rdma.pattern.to_ne_bytes());
    match wrong {
        None => Ok(()),
        Some(at) => bail!(
            "memory has something else than {:#x} after {} bytes of a {:?}",
            rdma.pattern,
            at * 8,
            rdma.operation
        ),
    }
}

/// Sends a message, or returns the reason to wait.
fn put(
    socket: &Socket,
    header: &Header,
    len: u32,
    pattern: &[u8],
    options: &Options,
    send: &SendOptions,
) -> Result<Option<Blocked>> {
    let rest = (len - HEADER_LEN) as usize;
    let zeros;
    let rest = if options.verify {
        &pattern[..rest]
    } else {
        zeros = vec![0; rest];
        &zeros
    };
    match socket.send_msg(&[IoSlice::new(&header.to_wire()), IoSlice::new(rest)], send) {
        Ok(_) => Ok(None),
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
            let congested = rds::errno(&err) == rustix::io::Errno::NOBUFS.raw_os_error();
            Ok(Some(if congested {
                Blocked::Congested
            } else {
                Blocked::Full
            }))
        }
        Err(err) => Err(err).with_context(|| format!("sending {header:?}")),
    }
}

/// Time for messages in flight to arrive after the end of sending.
pub const GRACE: Duration = Duration::from_secs(1);
