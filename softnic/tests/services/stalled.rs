//! Peers of a listener of `rsocket` that complete the handshake, send a greeting, and receive no answer.

use std::net::SocketAddr;

use cm::{ConnParam, ConnectResponse, Connection, Event, EventChannel, phases::RouteResolved};
use rsocket::proto::{ByteOrder, ConnectData, Message, Target};
use verbs::{CompletionQueue, Init, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, op};

use crate::TEST_TIMEOUT;

type Work = Option<RemoteRegion>;

/// Resource that a peer withholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withheld {
    /// It grants one byte.
    Room,
    /// It posts no receives.
    Receives,
}

/// A connected peer.
pub(crate) struct Stalled {
    _connection: Connection<Work, Work>,
    _memory: Memory,
    _channel: EventChannel,
}

/// Memory written by the listener's stream, or sent to it, and the queue.
struct Memory {
    region: RemoteRegion,
    _cq: CompletionQueue,
}

const GREETING: &[u8] = b"hello";

/// Bytes of the table of targets.
const TABLE: usize = 2 * Target::SIZE;

/// Number of receives, if any: for an answer and the messages around it.
const RECEIVES: u32 = 16;

impl Memory {
    fn new(id: &cm::CmId<RouteResolved>) -> (Self, QueuePair<verbs::Rc, Init, Work, Work>) {
        let ctx = id.context().unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(2 * RECEIVES).waitable().create().unwrap();
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(1);
        let qp = qp.max_recv_wr(RECEIVES).create_for().unwrap();
        let region = pd.alloc_remote(4096, RemoteAccess::WRITE).unwrap();
        region.write(0, GREETING);
        (Self { region, _cq: cq }, id.init_qp(qp).unwrap())
    }

    fn data(&self, withheld: Withheld) -> ConnectData {
        let token = self.region.token();
        let target = |at: usize, len| Target {
            addr: token.addr + at as u64,
            rkey: token.rkey,
            len,
        };
        ConnectData {
            order: ByteOrder::HOST,
            credits: 384,
            iomap_size: Some(0),
            targets: target(64, 2),
            first: target(
                64 + TABLE,
                match withheld {
                    Withheld::Room => 1,
                    Withheld::Receives => 1024,
                },
            ),
        }
    }
}

/// The answer of the listener, if it accepts.
fn answer(channel: &EventChannel) -> Option<ConnectResponse> {
    match channel.wait_timeout(TEST_TIMEOUT).unwrap().unwrap() {
        Event::ConnectResponse(response) => Some(response),
        _ => None,
    }
}

/// Connects a peer and sends its greeting. `None` if the listener refuses or ends the connection.
pub(crate) fn connect(source: SocketAddr, addr: SocketAddr, withheld: Withheld) -> Option<Stalled> {
    let channel = EventChannel::new().unwrap();
    let next = || channel.wait_timeout(TEST_TIMEOUT).unwrap().unwrap();
    let id = channel.create_id().unwrap();
    id.resolve_addr(Some(source), addr, TEST_TIMEOUT).unwrap();
    let Event::AddrResolved(id) = next() else {
        unreachable!("no address");
    };
    id.resolve_route(TEST_TIMEOUT).unwrap();
    let Event::RouteResolved(id) = next() else {
        unreachable!("no route");
    };
    let (memory, mut qp) = Memory::new(&id);
    if withheld == Withheld::Room {
        (0..RECEIVES).for_each(|_| qp.post_recv(None).unwrap());
    }
    let data = memory.data(withheld).encode();
    let param = ConnParam::new().private_data(data).rnr_retry_count(7);
    id.connect(&qp, &param).unwrap();
    let response = answer(&channel)?;
    let peer = ConnectData::decode(&response.param().private_data).unwrap();
    let mut connection = response.establish(qp).ok()?;
    let to = RemoteToken {
        addr: peer.first.addr,
        rkey: peer.first.rkey,
        len: GREETING.len() as u64,
    };
    let word = Message::Data(u32::try_from(GREETING.len()).unwrap()).encode();
    let from = memory.region.slice(0..GREETING.len());
    let greeting = op::Write::new(Some(from), to).imm_data(word);
    connection.qp_mut().post(greeting).ok()?;
    Some(Stalled {
        _connection: connection,
        _memory: memory,
        _channel: channel,
    })
}
