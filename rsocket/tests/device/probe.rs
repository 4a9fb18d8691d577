//! A raw peer, for observing and sending arbitrary messages.

use std::{collections::VecDeque, io::Write, net::SocketAddr, time::Duration};

use cm::{
    CmId, ConnParam, ConnectFailure, Connection, Event, EventChannel,
    phases::{HasDevice, Listening, RouteResolved},
};
use rsocket::{
    Options, Stream,
    proto::{ByteOrder, ConnectData, Mapping, Message, Target},
};
use verbs::{
    Completed, CompletionQueue, Init, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, op,
};

use crate::local;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const RESOLVING: Duration = Duration::from_secs(5);

/// Number of credits granted by a probe.
pub(crate) const CREDITS: u16 = 384;
/// Receives for these messages and for control messages.
pub(crate) const RECEIVES: u16 = CREDITS + 16;
const SENDS: u32 = 16;
const INLINE: u32 = 16;
/// Size in bytes of a separate message.
const WORD: usize = 4;
const ENTRIES: u32 = 2;
pub(crate) const MAPPINGS: u16 = 3;
const TARGETS_SIZE: usize = ENTRIES as usize * Target::SIZE;
/// Messages of an rsocket: a grant, plus the number of credits, and the disconnect.
pub(crate) const GRANT: u32 = 0x8000_0000;
pub(crate) const DISCONNECT: u32 = 0xe000_0000;
/// Half of the buffer size in bytes.
const HALF: u32 = 64 << 10;

type Work = Option<RemoteRegion>;

/// Resolves the route to `addr`. Returns the identifier and its channel.
pub(crate) fn resolved(addr: SocketAddr) -> (EventChannel, CmId<RouteResolved>) {
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id().unwrap();
    id.resolve_addr(None, addr, RESOLVING).unwrap();
    let Event::AddrResolved(id) = channel.wait().unwrap() else {
        unreachable!("no way to {addr}");
    };
    id.resolve_route(RESOLVING).unwrap();
    let Event::RouteResolved(id) = channel.wait().unwrap() else {
        unreachable!("no route to {addr}");
    };
    (channel, id)
}

fn next(channel: &EventChannel) -> Event {
    let event = channel.wait_timeout(TEST_TIMEOUT).unwrap();
    event.expect("no event in time")
}

/// Queue and memory of a probe.
struct Memory {
    cq: CompletionQueue,
    /// Table for targets and mappings, written by the rsocket.
    table: RemoteRegion,
    /// Data buffer, written by the rsocket.
    buffer: RemoteRegion,
    /// Buffers of separate messages.
    words: RemoteRegion,
    /// Source buffer of writes.
    outgoing: RemoteRegion,
}

impl Memory {
    /// Allocates the memory and creates a queue pair with all receives posted.
    fn new<P: HasDevice>(id: &CmId<P>) -> (Self, QueuePair<verbs::Rc, Init, Work, Work>) {
        let ctx = id.context().unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(u32::from(RECEIVES) + SENDS).waitable();
        let cq = cq.create().unwrap();
        let qp = pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .max_send_wr(SENDS)
            .max_recv_wr(RECEIVES.into())
            .max_inline_data(INLINE);
        let mut qp = id.init_qp(qp.create_for().unwrap()).unwrap();
        let memory = |len| pd.alloc_remote(len, RemoteAccess::WRITE).unwrap();
        let words = memory(usize::from(RECEIVES) * WORD);
        for receive in 0..RECEIVES {
            qp.post_recv(Some(buf(&words, receive))).unwrap();
        }
        let memory = Self {
            table: memory(TARGETS_SIZE + usize::from(MAPPINGS) * Mapping::SIZE),
            buffer: memory(2 * HALF as usize),
            outgoing: memory(2 * HALF as usize),
            words,
            cq,
        };
        (memory, qp)
    }

    /// Returns the connect data of the probe.
    fn data(&self) -> ConnectData {
        let target = |region: &RemoteRegion, len| Target {
            addr: region.token().addr,
            rkey: region.token().rkey,
            len,
        };
        ConnectData {
            order: ByteOrder::HOST,
            credits: CREDITS,
            iomap_size: Some(MAPPINGS),
            targets: target(&self.table, ENTRIES),
            first: target(&self.buffer, HALF),
        }
    }

    fn connected(self, connection: Connection<Work, Work>, peer: ConnectData) -> Probe {
        Probe {
            separate: connection.qp().pd().context().is_iwarp(),
            connection,
            memory: self,
            target: peer.first,
            peer,
            receive: 0,
            received: VecDeque::new(),
            withheld: None,
        }
    }
}

/// Returns the buffer of a receive.
fn buf(words: &RemoteRegion, receive: u16) -> RemoteRegion {
    let at = usize::from(receive) * WORD;
    words.slice(at..at + WORD)
}

/// A listener for rsockets.
pub(crate) struct ListeningProbe {
    channel: EventChannel,
    id: CmId<Listening>,
}

impl ListeningProbe {
    pub(crate) fn new() -> Self {
        let channel = EventChannel::new().unwrap();
        let mut id = channel.create_id().unwrap();
        id.bind(local()).unwrap();
        let id = id.listen(1).unwrap();
        Self { channel, id }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap()
    }

    /// Accepts a connection. Returns the probe and the private data of the request.
    pub(crate) fn accept(&self) -> (Probe, Vec<u8>) {
        let Event::ConnectRequest(request) = next(&self.channel) else {
            unreachable!("no connection request");
        };
        let private_data = request.param().private_data.clone();
        let (memory, qp) = Memory::new(request.id());
        let qp = request.accept(qp, &param(&memory.data().encode())).unwrap();
        let Event::Established(id) = next(&self.channel) else {
            unreachable!("no completed handshake");
        };
        let connection = Connection::new(id, qp).unwrap();
        let peer = ConnectData::decode(&private_data).unwrap();
        (memory.connected(connection, peer), private_data)
    }
}

fn param(data: &[u8]) -> ConnParam {
    ConnParam::new().private_data(data).rnr_retry_count(7)
}

/// A raw peer connected to an rsocket.
pub(crate) struct Probe {
    connection: Connection<Work, Work>,
    memory: Memory,
    /// Connect data of the rsocket.
    pub(crate) peer: ConnectData,
    /// Separate framing: iWARP.
    pub(crate) separate: bool,
    /// Target for the next bytes.
    target: Target,
    /// Index of the next receive to complete.
    receive: u16,
    /// Received messages, not yet returned by `recv_message`.
    received: VecDeque<u32>,
    /// Number of receives not reposted, while reposting is suspended.
    withheld: Option<u16>,
}

/// Returns a stream and its peer, a raw one without receives for the last `unreceived` bytes of the stream.
pub(crate) fn stalled(options: &Options, unreceived: u16) -> (Stream, Probe) {
    let listener = options.listen(local()).unwrap();
    let plain = |data: ConnectData| data.encode().to_vec();
    let (mut probe, _) = Probe::connect(listener.local_addr().unwrap(), plain).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    probe.withhold_receives();
    probe.send_message(GRANT + 2 * u32::from(RECEIVES));
    for _ in 0..RECEIVES + unreceived {
        stream.write_all(b"x").unwrap();
    }
    (stream, probe)
}

impl Probe {
    /// Connects to an rsocket with private data computed by `encode`. Returns the probe and the private data of
    /// the reply.
    pub(crate) fn connect(
        addr: SocketAddr,
        encode: impl FnOnce(ConnectData) -> Vec<u8>,
    ) -> Result<(Self, Vec<u8>), ConnectFailure> {
        let (channel, id) = resolved(addr);
        let (memory, qp) = Memory::new(&id);
        id.connect(&qp, &param(&encode(memory.data()))).unwrap();
        let response = match next(&channel) {
            Event::ConnectResponse(response) => response,
            Event::ConnectFailed { failure, .. } => return Err(failure),
            other => unreachable!("{other:?}"),
        };
        let private_data = response.param().private_data.clone();
        let connection = response.establish(qp).unwrap();
        let peer = ConnectData::decode(&private_data).unwrap();
        Ok((memory.connected(connection, peer), private_data))
    }

    /// Takes one completion. Returns the message, if any.
    fn step(&mut self) -> Option<u32> {
        let Self {
            connection, memory, ..
        } = self;
        let mut completions = memory.cq.wait(Some(TEST_TIMEOUT)).unwrap();
        let wc = completions.next().expect("no completion");
        wc.ok().unwrap();
        let (len, imm_data) = (wc.byte_len(), wc.imm_data());
        let done = match connection.qp_mut().complete(wc).unwrap() {
            Completed::Send(_) => return None,
            Completed::Receive(done) => done.into_work().unwrap().unwrap(),
        };
        assert_eq!(imm_data.is_none(), self.separate);
        let word = imm_data.unwrap_or_else(|| {
            assert_eq!(len, WORD);
            let mut word = [0; WORD];
            done.read(0, &mut word);
            u32::from_ne_bytes(word)
        });
        drop(completions);
        match &mut self.withheld {
            Some(withheld) => *withheld += 1,
            None => self.receive(),
        }
        Some(word)
    }

    /// Posts one more receive.
    fn receive(&mut self) {
        let buf = buf(&self.memory.words, self.receive);
        let qp = self.connection.qp_mut();
        qp.post_recv(Some(buf)).unwrap();
        self.receive = (self.receive + 1) % RECEIVES;
    }

    /// Suspends reposting of receives.
    pub(crate) fn withhold_receives(&mut self) {
        self.withheld = Some(0);
    }

    /// Resumes reposting of receives.
    pub(crate) fn receive_again(&mut self) {
        for _ in 0..self.withheld.take().unwrap_or(0) {
            self.receive();
        }
    }

    /// Waits for the next message.
    pub(crate) fn recv_message(&mut self) -> u32 {
        loop {
            if let Some(word) = self.received.pop_front().or_else(|| self.step()) {
                return word;
            }
        }
    }

    /// Returns an entry of the table of targets.
    pub(crate) fn target(&self, index: usize) -> [u8; Target::SIZE] {
        let mut entry = [0; Target::SIZE];
        self.memory.table.read(index * Target::SIZE, &mut entry);
        entry
    }

    /// Returns an entry of the table of mappings.
    pub(crate) fn mapping(&self, index: u16) -> [u8; Mapping::SIZE] {
        let at = TARGETS_SIZE + usize::from(index) * Mapping::SIZE;
        let mut entry = [0; Mapping::SIZE];
        self.memory.table.read(at, &mut entry);
        entry
    }

    /// Returns the first bytes sent by the rsocket.
    pub(crate) fn data(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.buffer.read(0, &mut bytes);
        bytes
    }

    /// Writes bytes to the rsocket's memory, then sends a message.
    fn write(&mut self, bytes: &[u8], to: RemoteToken, word: u32) {
        self.memory.outgoing.write(0, bytes);
        let from = (!bytes.is_empty()).then(|| self.memory.outgoing.slice(0..bytes.len()));
        let qp = self.connection.qp_mut();
        let mut posted = 1;
        if self.separate {
            if from.is_some() {
                qp.post(op::Write::new(from, to)).unwrap();
                posted += 1;
            }
            qp.post(op::Send::new(None).inline(&word.to_ne_bytes()))
                .unwrap();
        } else {
            qp.post(op::Write::new(from, to).imm_data(word)).unwrap();
        }
        // Waits for the completions, and queues messages received meanwhile.
        while posted > 0 {
            match self.step() {
                None => posted -= 1,
                Some(word) => self.received.push_back(word),
            }
        }
    }

    /// Writes bytes to arbitrary memory. Returns whether the peer's device accepted; a refusal ends the
    /// connection.
    pub(crate) fn writes(&mut self, bytes: &[u8], to: Target) -> bool {
        let to = RemoteToken {
            addr: to.addr,
            len: bytes.len() as u64,
            rkey: to.rkey,
        };
        self.memory.outgoing.write(0, bytes);
        let from = self.memory.outgoing.slice(0..bytes.len());
        let Self {
            connection, memory, ..
        } = self;
        connection
            .qp_mut()
            .post(op::Write::new(Some(from), to))
            .unwrap();
        loop {
            let mut completions = memory.cq.wait(Some(TEST_TIMEOUT)).unwrap();
            let wc = completions.next().expect("no completion");
            let ok = wc.ok().is_ok();
            let is_send = matches!(
                connection.qp_mut().complete(wc).unwrap(),
                Completed::Send(_)
            );
            // Messages received meanwhile are discarded.
            if is_send {
                return ok;
            }
        }
    }

    /// Sends data after the bytes advertised without data.
    pub(crate) fn send_again(&mut self, bytes: &[u8]) {
        let advertised = 5;
        self.target.addr += u64::from(advertised);
        self.target.len -= advertised;
        self.send(bytes);
    }

    /// Sends a message without data.
    pub(crate) fn send_message(&mut self, word: u32) {
        let no_target = RemoteToken {
            addr: 0,
            len: 0,
            rkey: 0,
        };
        self.write(&[], no_target, word);
    }

    /// Writes the second entry of the rsocket's table of targets, by a message with new credits.
    pub(crate) fn grant(&mut self, target: Target, limit: u16) {
        let table = self.peer.targets;
        let entry = RemoteToken {
            addr: table.addr + Target::SIZE as u64,
            len: Target::SIZE as u64,
            rkey: table.rkey,
        };
        let word = Message::Credit(limit).encode();
        self.write(&target.encode(ByteOrder::HOST), entry, word);
    }

    /// Sends data from the start of another target on.
    pub(crate) fn send_to(&mut self, bytes: &[u8], target: Target) {
        self.target = target;
        self.send(bytes);
    }

    /// Sends data, within the first half of the rsocket's buffer.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let Target { addr, rkey, len } = self.target;
        let sent = u32::try_from(bytes.len()).unwrap();
        self.target = Target {
            addr: addr + u64::from(sent),
            rkey,
            len: len.checked_sub(sent).expect("there is no room"),
        };
        let to = RemoteToken {
            addr,
            len: sent.into(),
            rkey,
        };
        self.write(bytes, to, Message::Data(sent).encode());
    }
}
