//! A manager in the place of one of two Linux hosts: gets the other one's recorded messages, and sends those of the
//! replaced host, byte for byte but for the fields listed here.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    ops::Range,
    time::Duration,
};

use softnic::{
    cm::{
        CmEvent, IdNum, MAD_LEN, Manager, Message, Occurrence, PortSpace, PrivateData, Reach,
        Timing,
    },
    wire::Frame,
};

use crate::exchange_vectors::{Recorded, exchanges};

/// Recordings of two versions of Linux.
const RECORDINGS: [&str; 2] = [
    include_str!("../recorded/rxe-6.12.txt"),
    include_str!("../recorded/rxe-7.2.txt"),
];

/// Offset of the class-specific data in a message.
const DATA: usize = 24;

/// A field that may differ: attribute of the message, offsets in the class-specific data, and the reason.
type Field = (u8, Range<usize>, &'static str);

/// Fields that may differ. Communication ids and transaction ids are compared by their places of use.
const DIFFERENT: [Field; 7] = [
    (0x10, 16..24, "GUID of the device"),
    (0x10, 44..47, "packet sequence number, random"),
    (0x10, 88..91, "flow label: no load balancing"),
    (0x12, 12..20, "GUID of the device, after a time-out"),
    (0x13, 20..23, "packet sequence number, random"),
    (
        0x13,
        26..27,
        "delay of acknowledgements: none, 134 ms on rxe",
    ),
    (0x13, 28..36, "GUID of the device"),
];

/// A message of a recording.
struct Mad {
    is_active: bool,
    at: Duration,
    from: IpAddr,
    to: IpAddr,
    bytes: [u8; MAD_LEN],
}

impl Mad {
    fn message(&self) -> Message {
        Message::decode(&self.bytes).unwrap().1
    }
}

/// The messages of an exchange; frames of queue pairs other than 1 are left out.
fn mads(frames: &[Recorded]) -> Vec<Mad> {
    let mads = frames.iter().filter_map(|recorded| {
        let frame = Frame::decode(&recorded.packet).unwrap();
        (frame.bth.dest_qp == 1).then(|| Mad {
            is_active: recorded.is_active,
            at: recorded.at,
            from: frame.ip.src(),
            to: frame.ip.dst(),
            bytes: frame.payload.try_into().unwrap(),
        })
    });
    mads.collect()
}

/// A manager in the place of one host.
struct Player {
    name: String,
    is_active: bool,
    manager: Manager,
    addrs: [IpAddr; 2],
    now: Duration,
    /// The latest connection or service, and earlier ones.
    id: Option<IdNum>,
    /// Ids of this manager, by those of the replaced host; the same for transaction ids.
    ids: HashMap<[u8; 4], [u8; 4]>,
    tids: HashMap<[u8; 8], [u8; 8]>,
    /// Messages of the replaced host so far.
    sent: Vec<[u8; MAD_LEN]>,
    /// Fields that differed.
    different: BTreeSet<usize>,
}

impl Player {
    fn new(name: &str, is_active: bool, mads: &[Mad]) -> Self {
        // The first message of an exchange is the active side's.
        let (active, peer) = (mads[0].from, mads[0].to);
        let addrs = if is_active {
            [active, peer]
        } else {
            [peer, active]
        };
        let mut manager = Manager::new([addrs[0]], 0x0200_00ff_fe00_0001, 5);
        manager.set_timing(Timing::LINUX);
        Self {
            name: name.to_owned(),
            is_active,
            manager,
            addrs,
            now: Duration::from_secs(1),
            id: None,
            ids: HashMap::new(),
            tids: HashMap::new(),
            sent: Vec::new(),
            different: BTreeSet::new(),
        }
    }

    /// Listens at the ports of the recording.
    fn listen(&mut self) {
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            let id = self.manager.create_id(space);
            let addr = SocketAddr::new(self.addrs[0], crate::wire::PORT);
            self.manager.bind(id, addr).unwrap();
            self.manager.listen(id, 8).unwrap();
        }
    }

    /// Gives a message of the other host to the manager, with this manager's ids.
    fn receive(&mut self, mad: &Mad) {
        let mut bytes = mad.bytes;
        replace(&mut bytes, DATA, &self.ids);
        replace(&mut bytes, DATA + 4, &self.ids);
        replace(&mut bytes, 8, &self.tids);
        let [local, peer] = self.addrs;
        self.manager.handle_message(peer, local, &bytes, self.now);
        while let Some(CmEvent { what, .. }) = self.manager.poll_event() {
            if let Occurrence::ConnectRequest { child, .. }
            | Occurrence::ServiceRequest { child, .. } = what
            {
                assert!(self.manager.take_request(child));
                self.id = Some(child);
            }
        }
    }

    /// Compares the next message of the manager with the replaced host's.
    fn send(&mut self, expected: &Mad) {
        let next = self.manager.transmit();
        let next = next.or_else(|| {
            if self.sent.contains(&expected.bytes) {
                self.now = self.manager.next_timeout().unwrap();
                self.manager.handle_timeout(self.now);
            } else {
                self.act(&expected.message());
            }
            self.manager.transmit()
        });
        let Some((path, bytes)) = next else {
            unreachable!("{}: no {:?}", self.name, expected.message())
        };
        assert_eq!([path.src, path.dst], self.addrs, "{}", self.name);
        self.compare(&bytes, expected);
        self.sent.push(expected.bytes);
    }

    fn compare(&mut self, actual: &[u8; MAD_LEN], expected: &Mad) {
        let mut translated = expected.bytes;
        let starts = matches!(
            expected.message(),
            Message::Request(_) | Message::ServiceRequest(_) | Message::Disconnect(..)
        );
        if starts {
            learn(&mut self.tids, &expected.bytes, actual, 8);
        }
        if !matches!(expected.message(), Message::ServiceReply(_)) {
            learn(&mut self.ids, &expected.bytes, actual, DATA);
        }
        replace(&mut translated, 8, &self.tids);
        replace(&mut translated, DATA, &self.ids);
        for (index, (attribute, range, _)) in DIFFERENT.iter().enumerate() {
            let range = DATA + range.start..DATA + range.end;
            if translated[17] == *attribute && translated[range.clone()] != actual[range.clone()] {
                self.different.insert(index);
                translated[range.clone()].copy_from_slice(&actual[range]);
            }
        }
        let decode = |bytes: &[u8]| Message::decode(bytes).unwrap();
        assert_eq!(
            decode(actual),
            decode(&translated),
            "{}, active: {}, at {:?}",
            self.name,
            self.is_active,
            expected.at
        );
        assert_eq!(
            *actual, translated,
            "{}: a field that is not decoded",
            self.name
        );
    }

    /// Makes the call of the replaced host's program that sends a message.
    fn act(&mut self, message: &Message) {
        let now = self.now;
        let id = self.id;
        let manager = &mut self.manager;
        match message {
            Message::Request(request) => {
                let id = self.resolved(PortSpace::Tcp, request.service_id, &request.private_data);
                let data = program_data(&request.private_data);
                self.manager.set_mtu(128 << request.mtu);
                self.manager.connect(id, request.param, data, now).unwrap();
            }
            Message::ServiceRequest(request) => {
                let id = self.resolved(PortSpace::Udp, request.service_id, &request.private_data);
                let data = program_data(&request.private_data);
                self.manager.resolve_service(id, data, now).unwrap();
            }
            Message::Reply(reply) => {
                let data = reply.private_data.as_slice();
                manager.accept(id.unwrap(), reply.param, data, now).unwrap();
            }
            Message::Ready(_) => manager.establish(id.unwrap()).unwrap(),
            Message::Reject(_) if self.is_active => manager.destroy_id(id.unwrap(), now),
            Message::Reject(reject) => {
                let data = reject.private_data.as_slice();
                manager
                    .reject(id.unwrap(), reject.reason, data, now)
                    .unwrap();
            }
            Message::Disconnect(..) => manager.disconnect(id.unwrap(), now).unwrap(),
            Message::Disconnected(ids) => {
                let local = self.ids[&ids.local.to_be_bytes()];
                let id = IdNum(u32::from_be_bytes(local));
                manager.disconnect(id, now).unwrap();
            }
            Message::ServiceReply(reply) if reply.status == 0 => {
                let data = reply.private_data.as_slice();
                manager
                    .accept_service(id.unwrap(), reply.qp_num, data)
                    .unwrap();
            }
            Message::ServiceReply(reply) => {
                let data = reply.private_data.as_slice();
                manager.reject(id.unwrap(), 28, data, now).unwrap();
            }
            Message::Mra(_) => unreachable!("no program sends it"),
        }
    }

    /// An identifier with the port and the peer of a recorded request.
    fn resolved(&mut self, space: PortSpace, service_id: u64, data: &PrivateData) -> IdNum {
        let [.., high, low] = service_id.to_be_bytes();
        let peer = SocketAddr::new(self.addrs[1], u16::from_be_bytes([high, low]));
        let bytes = data.as_slice();
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let manager = &mut self.manager;
        let id = manager.create_id(space);
        manager
            .bind(id, SocketAddr::new(self.addrs[0], port))
            .unwrap();
        let timeout = Duration::ZERO;
        manager
            .resolve_addr(id, (None, peer), Reach::Known, timeout, self.now)
            .unwrap();
        manager.resolve_route(id).unwrap();
        while manager.poll_event().is_some() {}
        self.id = Some(id);
        id
    }
}

/// Private data of a program, without the header.
fn program_data(data: &PrivateData) -> &[u8] {
    &data.as_slice()[36..]
}

/// Replaces a field by its counterpart, if known.
fn replace<const N: usize>(bytes: &mut [u8], at: usize, map: &HashMap<[u8; N], [u8; N]>) {
    let field: [u8; N] = bytes[at..at + N].try_into().unwrap();
    if let Some(other) = map.get(&field) {
        bytes[at..at + N].copy_from_slice(other);
    }
}

/// Remembers the counterpart of a field, at the first use.
fn learn<const N: usize>(
    map: &mut HashMap<[u8; N], [u8; N]>,
    recorded: &[u8],
    actual: &[u8],
    at: usize,
) {
    let field = |bytes: &[u8]| -> [u8; N] { bytes[at..at + N].try_into().unwrap() };
    if field(recorded) != [0; N] && field(actual) != [0; N] {
        map.entry(field(recorded)).or_insert(field(actual));
    }
}

/// Plays one side of all exchanges, and returns the fields that differed.
fn play(is_active: bool) -> BTreeSet<usize> {
    let mut different = BTreeSet::new();
    for text in RECORDINGS {
        let mut count = 0;
        for (name, frames) in exchanges(text) {
            let mads = mads(&frames);
            if mads.is_empty() {
                continue;
            }
            count += 1;
            let mut player = Player::new(name, is_active, &mads);
            if !is_active {
                player.listen();
            }
            for mad in &mads {
                if mad.is_active == is_active {
                    player.send(mad);
                } else {
                    player.receive(mad);
                }
            }
            assert!(player.manager.transmit().is_none(), "{name}: more messages");
            different.extend(player.different);
        }
        assert_eq!(count, 10, "exchanges of the connection manager");
    }
    different
}

#[test]
fn manager_in_the_place_of_a_recorded_host_sends_its_messages() {
    let mut different = play(true);
    different.extend(play(false));
    // Each listed field differs: the list has no other.
    assert_eq!(different, (0..DIFFERENT.len()).collect());
}
