//! A manager beside Linux's connection manager: messages as Linux sends them, and fields as Linux reads them. Two managers
//! of one source agree on a misread field, so these tests make the peer's messages by hand.

use std::time::Duration;

use softnic::{
    cm::{
        CmEvent, CommIds, ConnParam, Ece, IdNum, MAD_LEN, Manager, Message, Mra, Occurrence,
        PortSpace, PrivateData, Reach, Reject, Rejected, Reply, Request, ServiceRequest, Timing,
    },
    engine::{Access, QpAttributes, QpKind, State},
};

use crate::wire::{ADDRS, PORT, param};

/// GUID and communication id of the peer, as rxe of Linux has them: a GUID of a MAC address, and a random id.
const PEER_GUID: u64 = 0x5054_00ff_fe09_0001;
const PEER_ID: u32 = 0xef12_26fa;

/// GUID of the manager.
const GUID: u64 = 0x0200_00ff_fe00_0001;

/// Number of the peer's queue pair.
const PEER_QP: u32 = 0x19;

/// Offset of the class-specific data in a message.
const DATA: usize = 24;

/// A manager, whose peer is the test.
struct Host {
    manager: Manager,
    now: Duration,
}

impl Host {
    fn new() -> Self {
        Self {
            manager: Manager::new([ADDRS[1].into()], GUID, 7),
            now: Duration::from_secs(1),
        }
    }

    /// A manager with a listener.
    fn listening() -> (Self, IdNum) {
        let mut host = Self::new();
        let id = host.manager.create_id(PortSpace::Tcp);
        let addr = (ADDRS[1], PORT).into();
        host.manager.bind(id, addr).unwrap();
        host.manager.listen(id, 8).unwrap();
        (host, id)
    }

    fn receive(&mut self, bytes: &[u8]) {
        let (from, to) = (ADDRS[0].into(), ADDRS[1].into());
        self.manager.handle_message(from, to, bytes, self.now);
    }

    fn take(&mut self, message: Message) {
        self.receive(&message.encode(7));
    }

    /// The bytes of the next message to the peer.
    fn sent_bytes(&mut self) -> Option<[u8; MAD_LEN]> {
        let (path, bytes) = self.manager.transmit()?;
        assert_eq!(path.dst, std::net::IpAddr::from(ADDRS[0]));
        Some(bytes)
    }

    fn sent(&mut self) -> Option<Message> {
        let bytes = self.sent_bytes()?;
        Message::decode(&bytes).map(|(_, message)| message)
    }

    fn event(&mut self) -> Option<Occurrence> {
        self.manager.poll_event().map(|CmEvent { what, .. }| what)
    }

    /// The next request of the peer, taken by the program.
    fn request(&mut self) -> IdNum {
        let Some(Occurrence::ConnectRequest { child, .. }) = self.event() else {
            unreachable!("no request")
        };
        assert!(self.manager.take_request(child));
        child
    }

    fn accept(&mut self, child: IdNum) -> Reply {
        self.manager
            .accept(child, param(18), b"", self.now)
            .unwrap();
        let Some(Message::Reply(reply)) = self.sent() else {
            unreachable!("no reply")
        };
        *reply
    }

    /// A connection requested by the peer.
    fn accepted(&mut self) -> (IdNum, Reply) {
        self.take(Message::Request(Box::new(request())));
        let child = self.request();
        let reply = self.accept(child);
        self.take(Message::Ready(reversed(reply.ids)));
        assert_eq!(self.event(), Some(Occurrence::Established));
        (child, reply)
    }

    /// An identifier with a resolved route to the peer.
    fn resolved(&mut self) -> IdNum {
        let id = self.manager.create_id(PortSpace::Tcp);
        let peer = (ADDRS[0], PORT).into();
        let timeout = Duration::ZERO;
        self.manager
            .resolve_addr(id, (None, peer), Reach::Known, timeout, self.now)
            .unwrap();
        self.manager.resolve_route(id).unwrap();
        assert_eq!(self.event(), Some(Occurrence::AddrResolved));
        assert_eq!(self.event(), Some(Occurrence::RouteResolved));
        id
    }

    /// A request to the peer.
    fn connecting(&mut self) -> (IdNum, Request) {
        let id = self.resolved();
        self.manager.connect(id, param(18), b"", self.now).unwrap();
        let Some(Message::Request(request)) = self.sent() else {
            unreachable!("no request")
        };
        (id, *request)
    }

    /// A connection accepted by the peer.
    fn connected(&mut self) -> (IdNum, Request) {
        let (id, request) = self.connecting();
        self.take(Message::Reply(Box::new(reply(&request))));
        let answer = self.event();
        assert!(matches!(answer, Some(Occurrence::ConnectResponse { .. })));
        self.manager.establish(id).unwrap();
        assert!(matches!(self.sent(), Some(Message::Ready(_))));
        (id, request)
    }

    fn attributes(&self, id: IdNum, to: State) -> QpAttributes {
        self.manager.qp_attributes(id, to).unwrap().0
    }

    /// Times of the messages sent up to the end of all retries.
    fn retries(&mut self) -> Vec<Duration> {
        let mut times = Vec::new();
        while let Some(next) = self.manager.next_timeout() {
            self.now = next;
            self.manager.handle_timeout(next);
            while self.manager.transmit().is_some() {
                times.push(self.now);
            }
        }
        times
    }
}

fn reversed(ids: CommIds) -> CommIds {
    CommIds {
        local: ids.remote,
        remote: ids.local,
    }
}

/// The ids of a message of the peer about a request.
fn ids_for(request: &Request) -> CommIds {
    CommIds {
        local: PEER_ID,
        remote: request.local_comm_id,
    }
}

/// A request as Linux sends it.
fn request() -> Request {
    let mut data = vec![0, 0x40, 0xd7, 0x51];
    for addr in ADDRS {
        data.extend([0; 12]);
        data.extend(addr);
    }
    data.resize(92, 0);
    Request {
        local_comm_id: PEER_ID,
        service_id: 0x0106_0000 + u64::from(PORT),
        ca_guid: PEER_GUID,
        kind: Some(QpKind::Rc),
        param: param(PEER_QP),
        starting_psn: 0x26_bc4f,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        max_cm_retries: 15,
        pkey: 0xffff,
        mtu: 3,
        local_addr: ADDRS[0].into(),
        remote_addr: ADDRS[1].into(),
        flow_label: 0xa_2ffe,
        traffic_class: 0,
        hop_limit: 64,
        ack_timeout: 17,
        ece: Ece::default(),
        private_data: PrivateData::new(&data),
    }
}

/// The peer's reply to a request.
fn reply(request: &Request) -> Reply {
    Reply {
        ids: ids_for(request),
        param: ConnParam {
            retry_count: 0,
            ..param(PEER_QP)
        },
        starting_psn: 0x00_9baa,
        ack_delay: 15,
        ca_guid: PEER_GUID,
        ece: Ece::default(),
        private_data: PrivateData::EMPTY,
    }
}

/// A rejection by the peer, with additional information.
fn reject(ids: CommIds, about: Rejected, reason: u16, info: &[u8]) -> [u8; MAD_LEN] {
    // A receipt has the same first fields.
    let mut bytes = Message::Mra(Mra {
        ids,
        about,
        service_timeout: 0,
    })
    .encode(7);
    bytes[17] = 0x12;
    bytes[DATA + 9] = u8::try_from(info.len()).unwrap() << 1;
    bytes[DATA + 10..DATA + 12].copy_from_slice(&reason.to_be_bytes());
    bytes[DATA + 12..DATA + 12 + info.len()].copy_from_slice(info);
    bytes
}

#[test]
fn starting_psn_is_that_of_the_receivers_first_packet() {
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(request())));
    let child = host.request();
    let reply_sent = host.accept(child);
    let (rtr, rts) = (State::Rtr, State::Rts);
    assert_eq!(host.attributes(child, rts).sq_psn, request().starting_psn);
    assert_eq!(host.attributes(child, rtr).rq_psn, reply_sent.starting_psn);

    let mut host = Host::new();
    let (id, request) = host.connected();
    assert_eq!(host.attributes(id, rtr).rq_psn, request.starting_psn);
    let from_reply = reply(&request).starting_psn;
    assert_eq!(host.attributes(id, rts).sq_psn, from_reply);
}

#[test]
fn cancelled_request_is_rejected_with_the_guid_of_the_device() {
    let mut host = Host::new();
    let (id, request) = host.connecting();
    host.manager.destroy_id(id, host.now);
    let bytes = host.sent_bytes().unwrap();
    let Some((_, Message::Reject(reject))) = Message::decode(&bytes) else {
        unreachable!("no rejection")
    };
    assert_eq!(reject.reason, Reject::TIMEOUT);
    assert_eq!(reject.ids.local, request.local_comm_id);
    // Linux finds the connection by these 8 bytes and the sender's id.
    assert_eq!(bytes[DATA + 9], 8 << 1);
    assert_eq!(bytes[DATA + 12..DATA + 20], GUID.to_be_bytes());
    assert_eq!(bytes[DATA + 20..DATA + 84], [0; 64]);
}

#[test]
fn rejection_after_a_timeout_is_found_by_guid_and_id_of_the_peer() {
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(request())));
    let child = host.request();
    let unknown = CommIds {
        local: PEER_ID,
        remote: 0,
    };
    let other_guid = (PEER_GUID + 1).to_be_bytes();
    let message = reject(unknown, Rejected::Other, Reject::TIMEOUT, &other_guid);
    host.receive(&message);
    assert!(host.manager.qp_attributes(child, State::Rtr).is_ok());
    let guid = PEER_GUID.to_be_bytes();
    host.receive(&reject(unknown, Rejected::Other, Reject::TIMEOUT, &guid));
    assert!(host.manager.qp_attributes(child, State::Rtr).is_err());

    // The active end: the passive one got no RTU.
    let mut host = Host::new();
    let (_, request) = host.connected();
    let message = reject(ids_for(&request), Rejected::Other, Reject::TIMEOUT, &guid);
    host.receive(&message);
    let ended = host.event();
    assert!(
        matches!(ended, Some(Occurrence::Rejected { reason: 4, .. })),
        "{ended:?}"
    );
}

#[test]
fn requests_of_two_devices_with_one_id_are_two_connections() {
    let (mut host, _) = Host::listening();
    let (child, _) = host.accepted();
    // Another process of the same address, or the same one after a restart.
    let other = Request {
        ca_guid: PEER_GUID + 1,
        param: param(PEER_QP + 1),
        ..request()
    };
    host.take(Message::Request(Box::new(other)));
    assert_ne!(host.request(), child);
}

#[test]
fn request_for_a_connected_queue_pair_is_stale_and_ends_the_old_connection() {
    let (mut host, _) = Host::listening();
    let (child, reply) = host.accepted();
    let again = Request {
        local_comm_id: PEER_ID + 1,
        ..request()
    };
    host.take(Message::Request(Box::new(again)));
    let Some(Message::Reject(reject)) = host.sent() else {
        unreachable!("no rejection")
    };
    assert_eq!(
        (reject.reason, reject.about),
        (Reject::STALE, Rejected::Request)
    );
    assert_eq!((reject.ids.local, reject.ids.remote), (0, PEER_ID + 1));
    let old = Message::Disconnect(reply.ids, PEER_QP);
    assert_eq!(host.sent(), Some(old));
    host.take(Message::Disconnected(reversed(reply.ids)));
    assert_eq!(host.event(), Some(Occurrence::Disconnected(0)));
    // The queue pair can be used for a new connection now.
    let again = Request {
        local_comm_id: PEER_ID + 2,
        ..request()
    };
    host.take(Message::Request(Box::new(again)));
    assert_ne!(host.request(), child);
}

#[test]
fn reply_of_a_connected_queue_pair_is_stale_and_ends_the_old_connection() {
    let mut host = Host::new();
    let (_, first) = host.connected();
    let (id, second) = host.connecting();
    let mut stale = reply(&second);
    stale.ids.local = PEER_ID + 1;
    host.take(Message::Reply(Box::new(stale)));
    let Some(Message::Reject(reject)) = host.sent() else {
        unreachable!("no rejection")
    };
    assert_eq!(
        (reject.reason, reject.about),
        (Reject::STALE, Rejected::Reply)
    );
    let old = Message::Disconnect(reversed(ids_for(&first)), PEER_QP);
    assert_eq!(host.sent(), Some(old));
    assert_eq!(host.event(), None);
    assert!(host.manager.qp_attributes(id, State::Rtr).is_err());
}

#[test]
fn copy_of_a_request_after_its_connection_is_stale_for_as_long_as_the_peer_may_retry() {
    let (mut host, _) = Host::listening();
    let (child, _) = host.accepted();
    host.manager.destroy_id(child, host.now);
    assert!(matches!(host.sent(), Some(Message::Disconnect(..))));
    host.take(Message::Request(Box::new(request())));
    let Some(Message::Reject(reject)) = host.sent() else {
        unreachable!("no rejection")
    };
    assert_eq!(reject.reason, Reject::STALE);
    // 16 times 4.3 s later, the id is of a new connection.
    host.now += Duration::from_secs(70);
    host.take(Message::Request(Box::new(request())));
    assert_ne!(host.request(), child);
}

#[test]
fn passive_side_waits_and_retries_as_requested() {
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(Request {
        local_response_timeout: 18,
        max_cm_retries: 3,
        ..request()
    })));
    let child = host.request();
    host.accept(child);
    let start = host.now;
    let timeout = Duration::from_nanos(4096 << 18);
    // The reply is sent three times more, and the rejection last.
    let expected: Vec<_> = (1..=4).map(|n| start + n * timeout).collect();
    assert_eq!(host.retries(), expected);

    let (mut host, _) = Host::listening();
    let (child, _) = host.accepted();
    host.manager.disconnect(child, host.now).unwrap();
    host.sent();
    let start = host.now;
    let timeout = Duration::from_nanos(4096 << 20);
    let expected: Vec<_> = (1..=15).map(|n| start + n * timeout).collect();
    assert_eq!(host.retries(), expected);
}

#[test]
fn times_of_linux_are_those_of_its_requests() {
    let mut host = Host::new();
    host.manager.set_timing(Timing::LINUX);
    let (_, sent) = host.connecting();
    let expected = request();
    let times = |request: &Request| {
        (
            request.remote_response_timeout,
            request.local_response_timeout,
            request.max_cm_retries,
            request.ack_timeout,
        )
    };
    assert_eq!(times(&sent), times(&expected));
    let start = host.now;
    // The response timeout, and twice the packet life time, 2^16.
    let interval = Duration::from_nanos((4096 << 20) + 2 * (4096 << 16));
    let expected: Vec<_> = (1..=15).map(|n| start + n * interval).collect();
    assert_eq!(host.retries(), expected);
}

#[test]
fn requested_path_mtu_is_that_of_the_port() {
    for (mtu, code) in [(256, 1), (1024, 3), (4096, 5)] {
        let mut host = Host::new();
        host.manager.set_mtu(mtu);
        let (id, sent) = host.connecting();
        assert_eq!(sent.mtu, code);
        host.take(Message::Reply(Box::new(reply(&sent))));
        assert_eq!(host.attributes(id, State::Rtr).mtu, mtu);
    }
    // The passive side takes the request's.
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(request())));
    let child = host.request();
    assert_eq!(host.attributes(child, State::Rtr).mtu, 1024);
}

#[test]
fn longest_response_timeout_is_bounded() {
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(Request {
        local_response_timeout: 31,
        ..request()
    })));
    let child = host.request();
    host.accept(child);
    let start = host.now;
    let last = host.retries().pop().unwrap() - start;
    // 16 times 69 s, not 16 times 2.4 hours.
    assert_eq!(last, 16 * Duration::from_nanos(4096 << 24));
}

#[test]
fn ack_timeout_of_zero_is_not_requested_and_not_read_as_none() {
    let mut host = Host::new();
    let id = host.resolved();
    host.manager.set_ack_timeout(id, 0).unwrap();
    host.manager.connect(id, param(18), b"", host.now).unwrap();
    let Some(Message::Request(sent)) = host.sent() else {
        unreachable!("no request")
    };
    assert_ne!(sent.ack_timeout, 0);
    host.take(Message::Reply(Box::new(reply(&sent))));
    host.event();
    assert_eq!(host.attributes(id, State::Rts).timeout, 0, "the option's");

    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(Request {
        ack_timeout: 0,
        ..request()
    })));
    let child = host.request();
    assert_eq!(host.attributes(child, State::Rts).timeout, 1);
}

#[test]
fn ack_timeout_option_of_the_passive_side_overrides_the_requests() {
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(request())));
    let child = host.request();
    assert_eq!(host.attributes(child, State::Rts).timeout, 17);
    host.manager.set_ack_timeout(child, 20).unwrap();
    assert_eq!(host.attributes(child, State::Rts).timeout, 20);
}

#[test]
fn ack_delay_of_the_reply_widens_the_timeout() {
    // Codes of the peer's delay, and the timeout of a requester that would wait 16 without any.
    let rows = [
        (0, 16),
        (14, 16),
        (15, 17),
        (16, 17),
        (17, 18),
        (18, 18),
        (31, 31),
    ];
    for (ack_delay, expected) in rows {
        let mut host = Host::new();
        let (id, sent) = host.connecting();
        assert_eq!(sent.ack_timeout, 16);
        host.take(Message::Reply(Box::new(Reply {
            ack_delay,
            ..reply(&sent)
        })));
        let attributes = host.attributes(id, State::Rts);
        assert_eq!(attributes.timeout, expected, "{ack_delay}");
    }
}

#[test]
fn connected_queue_pairs_grant_flushes_with_reads() {
    let (mut host, _) = Host::listening();
    host.take(Message::Request(Box::new(request())));
    let child = host.request();
    let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let access = host.attributes(child, State::Init).access;
    assert!(access.contains(flushes | Access::REMOTE_READ));
    let mut none = request();
    none.local_comm_id += 1;
    none.param.qp_num += 1;
    none.param.initiator_depth = 0;
    host.take(Message::Request(Box::new(none)));
    let child = host.request();
    let access = host.attributes(child, State::Init).access;
    assert_eq!(access, Access::REMOTE_WRITE);
}

/// The reason of the rejection of a request.
fn reason(host: &mut Host, bytes: &[u8]) -> u16 {
    host.receive(bytes);
    match host.sent() {
        Some(Message::Reject(reject)) => reject.reason,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn reason_names_the_lack_of_a_service_or_of_a_matching_listener() {
    let (mut host, _) = Host::listening();
    let encode = |request: &Request| Message::Request(Box::new(request.clone())).encode(7);
    let closed = Request {
        service_id: request().service_id + 1,
        ..request()
    };
    assert_eq!(reason(&mut host, &encode(&closed)), 8);
    // An address without a listener, and an unknown version of the header, at a port with a listener.
    for (at, byte) in [(140 + 35, 77), (140, 0x10)] {
        let mut bytes = encode(&request());
        bytes[DATA + at] = byte;
        assert_eq!(reason(&mut host, &bytes), 28, "{at}");
    }
    // Unreliable connections, reliable datagrams, and extended connections.
    for kind in 1..=3 {
        let mut bytes = encode(&request());
        bytes[DATA + 43] |= kind << 1;
        assert_eq!(reason(&mut host, &bytes), 28, "transport {kind}");
    }
}

#[test]
fn request_in_another_partition_is_rejected_for_its_path() {
    let (mut host, _) = Host::listening();
    let other = Request {
        pkey: 0x8001,
        ..request()
    };
    let bytes = Message::Request(Box::new(other)).encode(7);
    assert_eq!(reason(&mut host, &bytes), 12);
    assert_eq!(host.event(), None);
}

#[test]
fn path_to_the_peer_is_that_of_the_request() {
    let (mut host, _) = Host::listening();
    let other: std::net::IpAddr = [10, 9, 0, 77].into();
    let request = Request {
        local_addr: other,
        ..request()
    };
    host.take(Message::Request(Box::new(request)));
    let child = host.request();
    let path = host.attributes(child, State::Rtr).path.unwrap();
    assert_eq!((path.src, path.dst), (ADDRS[1].into(), other));
}

#[test]
fn second_receipt_does_not_extend_the_wait() {
    let mut host = Host::new();
    let (_, request) = host.connecting();
    let receipt = Message::Mra(Mra {
        ids: ids_for(&request),
        about: Rejected::Request,
        service_timeout: 20,
    });
    host.take(receipt.clone());
    let first = host.manager.next_timeout();
    let retry = |host: &mut Host| {
        while host.manager.transmit().is_none() {
            host.now = host.manager.next_timeout().unwrap();
            host.manager.handle_timeout(host.now);
        }
        host.now
    };
    let start = host.now;
    host.now += Duration::from_secs(2);
    host.take(receipt);
    assert!(first.is_some());
    let waited = retry(&mut host) - start;
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn rejected_service_has_no_key() {
    let mut host = Host::new();
    let id = host.manager.create_id(PortSpace::Udp);
    host.manager.bind(id, (ADDRS[1], PORT).into()).unwrap();
    host.manager.listen(id, 8).unwrap();
    let mut private_data = request().private_data.as_slice().to_vec();
    private_data.resize(216, 0);
    let ask = |request_id, service_id, data: &[u8]| {
        Message::ServiceRequest(Box::new(ServiceRequest {
            request_id,
            pkey: 0xffff,
            service_id,
            private_data: PrivateData::new(data),
        }))
    };
    let udp = 0x0111_0000 + u64::from(PORT);
    host.take(ask(1, udp, &private_data));
    let Some(Occurrence::ServiceRequest { child, .. }) = host.event() else {
        unreachable!("no request")
    };
    host.manager.reject(child, 28, b"", host.now).unwrap();
    let answer = |host: &mut Host| match host.sent() {
        Some(Message::ServiceReply(reply)) => (reply.status, reply.qkey),
        other => unreachable!("{other:?}"),
    };
    assert_eq!(answer(&mut host), (2, 0));
    // No service, and a service at another address.
    host.take(ask(2, udp + 1, &private_data));
    assert_eq!(answer(&mut host), (1, 0));
    private_data[35] = 77;
    host.take(ask(3, udp, &private_data));
    assert_eq!(answer(&mut host), (2, 0));
}

#[test]
fn service_id_of_ip_over_infiniband_is_its_number_and_port() {
    let mut host = Host::new();
    let id = host.manager.create_id(PortSpace::IpoIb);
    let peer = (ADDRS[0], PORT).into();
    let now = host.now;
    host.manager
        .resolve_addr(id, (None, peer), Reach::Known, Duration::ZERO, now)
        .unwrap();
    host.manager.resolve_route(id).unwrap();
    host.manager.resolve_service(id, b"", now).unwrap();
    let Some(Message::ServiceRequest(request)) = host.sent() else {
        unreachable!("no request")
    };
    assert_eq!(request.service_id, 0x0002_0000 + u64::from(PORT));
}
