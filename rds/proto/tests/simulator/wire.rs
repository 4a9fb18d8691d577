//! The network between two simulated hosts.

use std::{collections::VecDeque, time::Duration};

use rds_proto::{connection::Completion, link::Failure};

use crate::host::{Done, Host, Packet, State, What};

/// The two hosts, with packets in transit.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) hosts: [Host; 2],
    /// Packets to each host.
    pub(crate) packets: [VecDeque<Packet>; 2],
    pub(crate) now: Duration,
    /// The link is down.
    pub(crate) is_cut: bool,
}

impl Wire {
    pub(crate) fn new(hosts: [Host; 2]) -> Self {
        Self {
            hosts,
            packets: [VecDeque::new(), VecDeque::new()],
            now: Duration::ZERO,
            is_cut: false,
        }
    }

    pub(crate) fn pump(&mut self, i: usize) {
        let packets = self.hosts[i].pump(self.now);
        self.packets[1 - i].extend(packets);
    }

    /// Delivers a connection manager packet to a host; `false` if there is none.
    pub(crate) fn deliver_packet(&mut self, i: usize) -> bool {
        let Some(packet) = self.packets[i].pop_front() else {
            return false;
        };
        if !self.is_cut {
            let answer = self.hosts[i].on_packet(self.now, packet);
            self.packets[1 - i].extend(answer);
        }
        true
    }

    /// Transmits the next request of a queue pair; `false` if there is none.
    pub(crate) fn deliver(&mut self, from: usize, index: usize) -> bool {
        let pair = &mut self.hosts[from].pairs[index];
        if pair.state != State::Up || pair.queue.is_empty() {
            return false;
        }
        let peer = pair.peer.unwrap();
        let other = &self.hosts[1 - from].pairs[peer];
        let reached = other.peer == Some(index)
            && matches!(other.state, State::Connecting | State::Up)
            && !self.is_cut;
        if !reached {
            self.break_off(from, index);
            return true;
        }
        let pair = &mut self.hosts[from].pairs[index];
        let posted = pair.queue.pop_front().unwrap();
        match &posted.what {
            What::Frame(header, bytes) => {
                let body = self.hosts[from].fetch(index, bytes);
                let done = Done::Received(header.to_vec(), body);
                self.hosts[1 - from].pairs[peer].done.push_back(done);
            }
            What::Probe => {}
            &What::Operation(payload, fetches) => {
                let host = &mut self.hosts[from];
                let is_queued = host.payloads.contains_key(&payload);
                assert!(is_queued, "the device reads memory it was given");
                if !fetches {
                    host.operated.insert(payload);
                }
            }
        }
        let pair = &mut self.hosts[from].pairs[index];
        pair.arrived.push_back(posted);
        true
    }

    /// Completes transmitted requests, up to the next signaled one.
    pub(crate) fn acknowledge(&mut self, i: usize, index: usize) -> bool {
        let host = &mut self.hosts[i];
        let pair = &mut host.pairs[index];
        let Some(signaled) = pair.arrived.iter().position(|posted| posted.signaled) else {
            return false;
        };
        for posted in pair.arrived.drain(..=signaled) {
            if let What::Operation(operation, _) = posted.what {
                host.operated.insert(operation);
            }
            pair.done
                .push_back(Done::Sent(posted.tag, Completion::Success));
        }
        true
    }

    /// Fails a queue pair with requests in flight, without notice to the other host.
    pub(crate) fn break_off(&mut self, i: usize, index: usize) {
        let pair = &mut self.hosts[i].pairs[index];
        if pair.state == State::Up && !(pair.queue.is_empty() && pair.arrived.is_empty()) {
            pair.fail(Completion::OtherError);
        }
    }

    /// Makes polling fail. Unpolled frames are lost, although acknowledged by the device.
    pub(crate) fn deafen(&mut self, i: usize, index: usize) {
        let host = &mut self.hosts[i];
        let pair = &mut host.pairs[index];
        if pair.state == State::Up {
            pair.cq_failed = true;
            let (id, attempt) = (pair.connection, pair.attempt);
            host.node.failed(id, attempt, Failure::Lost);
        }
    }
}
