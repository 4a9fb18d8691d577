//! The program of each service id, and the destination of each message of the connection managers.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::IpAddr,
};

use softnic::cm::{CommIds, Message, Reject};

/// Maximum number of recent requests whose programs are known. A repeated older request goes to the program with the
/// service id.
const MAX_REQUESTS: usize = 4096;

/// Offset of a message in a datagram to queue pair 1: after the BTH and the DETH.
const MESSAGE: usize = 12 + 8;

/// Length of a message.
const MESSAGE_LEN: usize = 256;

/// Receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receivers {
    Slot(u8),
    /// No program is known: the first one answers, as a host without a connection or a listener.
    Any,
    /// Each program may be meant: the message names no receiver.
    All,
}

/// A request by the address and the id of the sender. Senders repeat requests without an answer.
type Sender = (IpAddr, u32);

/// Service ids and recent requests.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Slots with a service id, and whether each permits others.
    claims: BTreeMap<u64, Vec<(u8, bool)>>,
    requests: HashMap<Sender, u8>,
    /// The requests, the oldest first.
    order: VecDeque<Sender>,
}

impl Routes {
    /// Gives a service id to a slot. Returns false if another slot has the service id, unless both share.
    pub(super) fn claim(&mut self, slot: u8, service: u64, is_shared: bool) -> bool {
        let claims = self.claims.entry(service).or_default();
        let mut others = claims.iter().filter(|(other, _)| *other != slot);
        if others.any(|(_, other_shares)| !(is_shared && *other_shares)) {
            return false;
        }
        claims.retain(|(other, _)| *other != slot);
        claims.push((slot, is_shared));
        true
    }

    /// Ends a slot's claim.
    pub(super) fn release(&mut self, slot: u8, service: u64) {
        if let Some(claims) = self.claims.get_mut(&service) {
            claims.retain(|(other, _)| *other != slot);
            if claims.is_empty() {
                self.claims.remove(&service);
            }
        }
    }

    /// Ends all claims of a slot, and forgets its requests.
    pub(super) fn leave(&mut self, slot: u8) {
        self.claims.retain(|_, claims| {
            claims.retain(|(other, _)| *other != slot);
            !claims.is_empty()
        });
        self.requests.retain(|_, other| *other != slot);
        let requests = &self.requests;
        self.order.retain(|sender| requests.contains_key(sender));
    }

    /// The receivers of a datagram to queue pair 1; `None` for other datagrams. Ids and numbers of a program have the slot as
    /// their first byte.
    pub(super) fn receivers(&mut self, from: IpAddr, datagram: &[u8]) -> Option<Receivers> {
        let [_, _, _, _, _, 0, 0, 1, ..] = datagram else {
            return None;
        };
        let bytes = datagram.get(MESSAGE..MESSAGE + MESSAGE_LEN)?;
        let (_, message) = Message::decode(bytes)?;
        Some(match message {
            Message::Request(request) => {
                self.receivers_of_request((from, request.local_comm_id), request.service_id)
            }
            Message::ServiceRequest(request) => {
                self.receivers_of_request((from, request.request_id), request.service_id)
            }
            // After a time-out, the message may name the sender's connection alone.
            Message::Reject(reject) if reject.reason == Reject::TIMEOUT => Receivers::All,
            Message::Reject(reject) => of_id(reject.ids.remote),
            Message::Mra(mra) => of_id(mra.ids.remote),
            Message::Reply(reply) => of_id(reply.ids.remote),
            Message::Ready(CommIds { remote, .. })
            | Message::Disconnect(CommIds { remote, .. }, _)
            | Message::Disconnected(CommIds { remote, .. }) => of_id(remote),
            Message::ServiceReply(reply) => of_id(reply.request_id),
        })
    }

    /// The program that has received the request before, or the one with the service id.
    fn receivers_of_request(&mut self, sender: Sender, service: u64) -> Receivers {
        if let Some(slot) = self.requests.get(&sender) {
            return Receivers::Slot(*slot);
        }
        // Of several programs that share the service id, one may listen: the latest that does not share, by a second claim.
        let claims = self.claims.get(&service);
        let Some((slot, _)) = claims.and_then(|claims| claims.last()) else {
            return Receivers::Any;
        };
        if self.order.len() >= MAX_REQUESTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.requests.remove(&oldest);
        }
        self.requests.insert(sender, *slot);
        self.order.push_back(sender);
        Receivers::Slot(*slot)
    }
}

/// The slot of an id.
fn of_id(id: u32) -> Receivers {
    let [slot, ..] = id.to_be_bytes();
    Receivers::Slot(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    /// A datagram to queue pair 1 with a message, given by its attribute id, and fields at offsets of its body.
    fn datagram(attribute: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE + MESSAGE_LEN + 4];
        bytes[7] = 1;
        bytes[MESSAGE..MESSAGE + 4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[MESSAGE + 16..MESSAGE + 18].copy_from_slice(&attribute.to_be_bytes());
        for (at, field) in fields {
            let at = MESSAGE + 24 + at;
            bytes[at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    fn request(id: u32, service: u64) -> Vec<u8> {
        datagram(0x10, &[(0, &id.to_be_bytes()), (8, &service.to_be_bytes())])
    }

    #[test]
    fn requests_go_to_the_program_with_the_service_id_and_repeated_ones_to_the_same() {
        let mut routes = Routes::default();
        let to = |routes: &mut Routes, id, service| routes.receivers(PEER, &request(id, service));
        assert_eq!(to(&mut routes, 1, 77), Some(Receivers::Any));
        assert!(routes.claim(5, 77, false));
        assert_eq!(to(&mut routes, 1, 77), Some(Receivers::Slot(5)));
        routes.release(5, 77);
        assert!(routes.claim(6, 77, false));
        // The first program has accepted this connection, and its reply has been lost.
        assert_eq!(to(&mut routes, 1, 77), Some(Receivers::Slot(5)));
        assert_eq!(to(&mut routes, 2, 77), Some(Receivers::Slot(6)));
        routes.leave(5);
        assert_eq!(to(&mut routes, 1, 77), Some(Receivers::Slot(6)));
        let datagrams = datagram(0x17, &[(0, &[0, 0, 0, 3]), (15, &[77])]);
        assert_eq!(routes.receivers(PEER, &datagrams), Some(Receivers::Slot(6)));
    }

    #[test]
    fn service_id_is_of_one_program_unless_all_share() {
        let mut routes = Routes::default();
        assert!(routes.claim(5, 77, true));
        assert!(routes.claim(6, 77, true));
        assert!(!routes.claim(7, 77, false));
        // A listener shares no more.
        assert!(!routes.claim(5, 77, false));
        routes.leave(6);
        assert!(routes.claim(5, 77, false));
        assert!(!routes.claim(6, 77, true));
        routes.release(5, 77);
        assert!(routes.claim(6, 77, true));
    }

    #[test]
    fn other_messages_go_to_the_slot_in_the_receivers_id() {
        let mut routes = Routes::default();
        let ids: &[(usize, &[u8])] = &[(0, &[1, 2, 3, 4]), (4, &[9, 8, 7, 6])];
        for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16] {
            let found = routes.receivers(PEER, &datagram(attribute, ids));
            assert_eq!(found, Some(Receivers::Slot(9)), "{attribute:#x}");
        }
        let reply = datagram(0x18, ids);
        assert_eq!(routes.receivers(PEER, &reply), Some(Receivers::Slot(1)));
        let timeout = datagram(0x12, &[(10, &[0, 4])]);
        assert_eq!(routes.receivers(PEER, &timeout), Some(Receivers::All));
    }

    #[test]
    fn other_datagrams_are_dropped() {
        let mut routes = Routes::default();
        let valid = request(1, 77);
        let mut other_queue_pair = valid.clone();
        other_queue_pair[7] = 2;
        let mut other_class = valid.clone();
        other_class[MESSAGE + 1] = 3;
        for bytes in [&other_queue_pair, &other_class, &valid[..200], &valid[..5]] {
            assert_eq!(routes.receivers(PEER, bytes), None);
        }
    }

    #[test]
    fn recent_requests_are_bounded() {
        let mut routes = Routes::default();
        assert!(routes.claim(5, 77, false));
        for id in 0..2 * u32::try_from(MAX_REQUESTS).unwrap() {
            routes.receivers(PEER, &request(id, 77));
        }
        assert_eq!(routes.requests.len(), MAX_REQUESTS);
        assert_eq!(routes.order.len(), MAX_REQUESTS);
    }
}
