//! An engine in the place of one of two hosts with Linux's rxe: gets the other one's recorded frames, and sends the
//! frames of the replaced host, but for the differences listed here.

use std::collections::BTreeSet;

use softnic::{
    engine::{
        Access, Binding, QpAttributes, QpKind, Remote, SendOp, SendRequest, Status, WindowKind,
    },
    wire::{Bth, Extensions, Frame, Nak, Operation, Syndrome},
};

use crate::{
    exchange_vectors::{Recorded, exchanges},
    pair::{EVERYTHING, Pair, SEND, attributes, request},
    shadow::BASE,
};

/// Recordings of two versions of Linux.
const RECORDINGS: [&str; 2] = [
    include_str!("../recorded/rxe-6.12.txt"),
    include_str!("../recorded/rxe-7.2.txt"),
];

/// Number of the first packet of both sides, and lengths of the messages, as in the recording.
const FIRST_PSN: u32 = 0xff_fffe;
const LENS: [u32; 2] = [600, 5];
const IMM: u32 = 0x0102_0304;

/// Interval in packets between the engine's acknowledgement requests within a long message.
const ACK_INTERVAL: u32 = 32;

/// Answers that may differ: the exchange, rxe's syndrome, the engine's, and the reason.
const DIFFERENT: [(&str, Syndrome, Syndrome, &str); 2] = [
    (
        "TooLong",
        Syndrome::Nak(Nak::RemoteOperation),
        Syndrome::Nak(Nak::InvalidRequest),
        "the specification's NAK for a message longer than its receive",
    ),
    (
        "WrongInvalidation",
        Syndrome::Ack(31),
        Syndrome::Nak(Nak::RemoteAccess),
        "the sender learns the reason at once",
    ),
];

/// Two hosts, of which the engine under test is one.
fn pair(name: &str) -> Pair {
    let mut pair = Pair::new(QpKind::Rc, false);
    let access = match name {
        "NotGranted" => Access::REMOTE_WRITE,
        _ => EVERYTHING,
    };
    pair.connect(&QpAttributes {
        access,
        sq_psn: FIRST_PSN,
        rq_psn: FIRST_PSN,
        min_rnr_timer: 12,
        max_rd_atomic: 8,
        max_dest_rd_atomic: 8,
        ..attributes()
    });
    pair
}

/// Binds a window of the second host, and returns the key.
fn window(pair: &mut Pair) -> u32 {
    let host = &mut pair.hosts[1];
    let rkey = host
        .engine
        .alloc_window(host.pd, WindowKind::Type2)
        .unwrap();
    let new_rkey = rkey & !0xff | (rkey + 1) & 0xff;
    let binding = Binding {
        region: host.key,
        addr: BASE + 4096,
        len: 64,
        access: Access::REMOTE_WRITE,
    };
    let op = SendOp::Bind {
        rkey,
        new_rkey,
        binding,
    };
    pair.post(1, request(1, op, &[]));
    pair.run();
    pair.hosts[1].poll();
    new_rkey
}

/// Content of a frame that does not depend on the numbers of the hosts.
#[derive(Debug, PartialEq)]
struct Content {
    operation: Operation,
    psn: u32,
    flags: [bool; 2],
    pkey: u16,
    extensions: Extensions,
    payload: Vec<u8>,
}

impl Content {
    /// The content with addresses from the start of the memory, and without keys.
    fn of(frame: &Frame<'_>, memory: u64) -> Self {
        let (_, operation) = frame.bth.opcode.parse().unwrap();
        let mut extensions = frame.extensions;
        if let Some(reth) = &mut extensions.reth {
            (reth.addr, reth.rkey) = (reth.addr.wrapping_sub(memory), 0);
        }
        if let Some(atomic) = &mut extensions.atomic {
            (atomic.addr, atomic.rkey) = (atomic.addr.wrapping_sub(memory), 0);
        }
        extensions.invalidate = extensions.invalidate.map(|_| 0);
        // rxe leaves the field of a fetch-and-add as it was.
        if let (Operation::FetchAdd, Some(atomic)) = (operation, &mut extensions.atomic) {
            atomic.compare = 0;
        }
        let Bth {
            solicited,
            ack_request,
            pkey,
            psn,
            ..
        } = frame.bth;
        Self {
            operation,
            psn,
            flags: [solicited, ack_request],
            pkey,
            extensions,
            payload: frame.payload.to_vec(),
        }
    }
}

/// Address of the passive side's memory in a recording.
fn memory_of(frames: &[Recorded]) -> u64 {
    let mut reths = frames.iter().filter_map(|recorded| {
        let extensions = Frame::decode(&recorded.packet).unwrap().extensions;
        extensions
            .reth
            .map(|reth| reth.addr)
            .or(extensions.atomic.map(|atomic| atomic.addr))
    });
    reths.next().unwrap_or(0)
}

/// A recorded frame for a host of the pair, with the numbers and keys of the pair.
fn readdressed(pair: &Pair, recorded: &Recorded, memory: u64, keys: &mut Keys) -> Vec<u8> {
    let mut frame = Frame::decode(&recorded.packet).unwrap();
    frame.bth.dest_qp = pair.hosts[usize::from(recorded.is_active)].qp.0;
    if let Some(reth) = &mut frame.extensions.reth {
        (reth.addr, reth.rkey) = (BASE + (reth.addr - memory), keys.memory);
    }
    if let Some(atomic) = &mut frame.extensions.atomic {
        (atomic.addr, atomic.rkey) = (BASE + (atomic.addr - memory), keys.memory);
    }
    if let Some(key) = &mut frame.extensions.invalidate {
        *key = keys.windows.pop().unwrap_or(!keys.memory);
    }
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).unwrap();
    bytes
}

/// Keys of the second host: of the memory, and of the windows, the last one first.
struct Keys {
    memory: u32,
    windows: Vec<u32>,
}

/// The exchanges of queue pairs, with the address of the passive side's memory.
fn of_queue_pairs() -> Vec<(&'static str, u64, Vec<Recorded>)> {
    let all = RECORDINGS.into_iter().flat_map(exchanges);
    let all = all.map(|(name, frames)| {
        let is_of_qp =
            |recorded: &Recorded| Frame::decode(&recorded.packet).unwrap().bth.dest_qp != 1;
        let frames: Vec<_> = frames.into_iter().filter(is_of_qp).collect();
        assert!(frames.is_sorted_by_key(|recorded| recorded.at), "{name}");
        (name, memory_of(&frames), frames)
    });
    all.filter(|(_, _, frames)| !frames.is_empty()).collect()
}

#[test]
fn answers_to_recorded_requests_are_those_of_the_recording() {
    let mut different = BTreeSet::new();
    let all = of_queue_pairs();
    assert_eq!(all.len(), 7 * RECORDINGS.len());
    for (name, memory, frames) in all {
        let mut pair = pair(name);
        let windows = match name {
            "Requests" => vec![window(&mut pair), window(&mut pair)],
            _ => Vec::new(),
        };
        let key = pair.hosts[1].key;
        let mut keys = Keys {
            memory: if name == "WrongKey" { !key } else { key },
            windows,
        };
        let receives = match name {
            "Requests" => 8,
            "Missing" | "TooLong" | "WrongInvalidation" => 1,
            _ => 0,
        };
        for wr_id in 0..receives {
            let sge = pair.hosts[1].sge(8192 + 1024 * wr_id, LENS[0]);
            pair.post_recv(1, wr_id, &[sge]);
        }
        let mut answers = Vec::new();
        for request in frames.iter().filter(|recorded| recorded.is_active) {
            let request = readdressed(&pair, request, memory, &mut keys);
            pair.deliver(1, &request);
            answers.extend(std::iter::from_fn(|| pair.transmit(1)));
        }
        let answers = answers
            .iter()
            .map(|bytes| Content::of(&Frame::decode(bytes).unwrap(), 0));
        let recorded = frames.iter().filter(|recorded| !recorded.is_active);
        let mut recorded: Vec<_> = recorded
            .map(|answer| Content::of(&Frame::decode(&answer.packet).unwrap(), 0))
            .collect();
        for (exchange, of_rxe, of_engine, _) in DIFFERENT {
            for aeth in recorded
                .iter_mut()
                .filter_map(|content| content.extensions.aeth.as_mut())
            {
                if exchange == name && aeth.syndrome == of_rxe {
                    aeth.syndrome = of_engine;
                    // A refused message does not count.
                    aeth.msn = 0;
                    different.insert(exchange);
                }
            }
        }
        assert_eq!(answers.collect::<Vec<_>>(), recorded, "{name}");
    }
    assert_eq!(different.len(), DIFFERENT.len(), "{different:?}");
}

/// The requests of the recording, in their order.
fn posted(pair: &Pair) -> Vec<SendRequest> {
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let mut all = Vec::new();
    for len in LENS {
        let sge = pair.hosts[0].sge(0, len);
        let send = |imm, invalidate| SendOp::Send { imm, invalidate };
        let mut solicited = request(1, send(Some(IMM), None), &[sge]);
        solicited.solicited = true;
        let write = |imm| SendOp::Write { remote, imm };
        all.extend([
            request(0, SEND, &[sge]),
            solicited,
            request(2, send(None, Some(remote.rkey)), &[sge]),
            request(3, write(None), &[sge]),
            request(4, write(Some(IMM)), &[sge]),
            request(5, SendOp::Read(remote), &[pair.hosts[0].sge(4096, len)]),
        ]);
    }
    let number = pair.hosts[0].sge(8192, 8);
    let (compare, swap) = (1, 2);
    let swap = SendOp::CompareSwap {
        remote,
        compare,
        swap,
    };
    let value = *b"at once!";
    all.extend([
        request(6, swap, &[number]),
        request(7, SendOp::FetchAdd { remote, add: 3 }, &[number]),
        request(8, SendOp::AtomicWrite { remote, value }, &[]),
    ]);
    all
}

#[test]
fn requests_are_those_of_the_recording_and_complete_by_its_answers() {
    for (name, memory, frames) in of_queue_pairs() {
        if name != "Requests" {
            continue;
        }
        let mut pair = pair(name);
        for (at, byte) in pair.hosts[0].memory.at(BASE, 600).iter_mut().enumerate() {
            *byte = at.to_le_bytes()[0];
        }
        let requests = posted(&pair);
        let count = requests.len();
        for request in requests {
            pair.post(0, request);
        }
        let sent: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
        let sent = sent
            .iter()
            .map(|bytes| Content::of(&Frame::decode(bytes).unwrap(), BASE));
        let recorded = frames.iter().filter(|recorded| recorded.is_active);
        let recorded = recorded.map(|sent| {
            let mut content = Content::of(&Frame::decode(&sent.packet).unwrap(), memory);
            // The engine asks for an acknowledgement at each 32nd number, rxe after 64 packets.
            content.flags[1] |= content.psn % ACK_INTERVAL == ACK_INTERVAL - 1;
            content
        });
        assert_eq!(sent.collect::<Vec<_>>(), recorded.collect::<Vec<_>>());
        let mut keys = Keys {
            memory: 0,
            windows: Vec::new(),
        };
        for answer in frames.iter().filter(|recorded| !recorded.is_active) {
            let answer = readdressed(&pair, answer, memory, &mut keys);
            pair.deliver(0, &answer);
        }
        let done = pair.hosts[0].poll();
        assert!(
            done.iter().all(|wc| wc.status == Status::Success),
            "{done:?}"
        );
        assert_eq!(done.len(), count);
    }
}
