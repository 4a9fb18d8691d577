//! Packets to one queue pair that the kernel sends by one call: all of one length, but for a shorter last one.
//!
//! The kernel cuts the datagrams out of one range (`UDP_SEGMENT`), and numbers them by IPv4's identification, from 0. On the
//! loopback interface and between namespaces, the range stays whole up to the receiver's socket, which is chosen by the queue
//! pair of the first packet.

use std::net::IpAddr;

/// Maximum number of packets of a call, of the kernel.
const MAX_COUNT: usize = 64;

/// Maximum number of bytes of a call; below the 65,507 of a datagram.
const MAX_BYTES: usize = 65_000;

/// Packets to be sent.
#[derive(Debug)]
pub(super) struct Batch {
    /// Address and queue pair of the receiver.
    to: (IpAddr, u32),
    /// Length of each packet but the last in bytes.
    len: usize,
    /// Packets, each with its IP and UDP headers.
    pub(super) packets: Vec<u8>,
    max_count: usize,
}

impl Batch {
    pub(super) fn new(local: IpAddr) -> Self {
        Self {
            to: (local, 0),
            len: 0,
            packets: Vec::new(),
            max_count: MAX_COUNT,
        }
    }

    /// Whether a packet of `len` bytes may follow.
    pub(super) fn takes(&self, to: (IpAddr, u32), len: usize) -> bool {
        // No packet follows a shorter one.
        let is_even = self.packets.len() == self.count() * self.len;
        let fits = self.count() < self.max_count && self.packets.len() + len <= MAX_BYTES;
        self.to == to && len <= self.len && is_even && fits
    }

    /// Removes all packets, for packets to a queue pair, the first of `len` bytes.
    pub(super) fn restart(&mut self, to: (IpAddr, u32), len: usize) {
        self.packets.clear();
        (self.to, self.len) = (to, len);
    }

    /// Number of packets.
    pub(super) fn count(&self) -> usize {
        match self.len {
            0 => 0,
            len => self.packets.len().div_ceil(len),
        }
    }

    /// Address of the receiver.
    pub(super) fn addr(&self) -> IpAddr {
        self.to.0
    }

    /// Length of each packet but the last in bytes.
    pub(super) fn packet_len(&self) -> usize {
        self.len
    }

    /// Sends packets one by one from now on.
    pub(super) fn refuse_more(&mut self) {
        self.max_count = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_one_length_follow_up_to_a_shorter_one() {
        let [addr, other] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from);
        let mut batch = Batch::new(addr);
        assert!(!batch.takes((addr, 7), 100));
        batch.restart((addr, 7), 100);
        batch.packets.resize(200, 0);
        assert_eq!(batch.count(), 2);
        assert!(batch.takes((addr, 7), 100) && batch.takes((addr, 7), 60));
        for (to, len) in [((addr, 7), 104), ((addr, 8), 100), ((other, 7), 100)] {
            assert!(!batch.takes(to, len));
        }
        batch.packets.resize(260, 0);
        assert_eq!(batch.count(), 3);
        assert!(!batch.takes((addr, 7), 60));
    }

    #[test]
    fn number_of_packets_and_of_bytes_has_a_maximum() {
        let addr = IpAddr::from([127, 0, 0, 1]);
        for (len, max) in [(60, 64), (1084, 59), (4156, 15)] {
            let mut batch = Batch::new(addr);
            batch.restart((addr, 7), len);
            while batch.takes((addr, 7), len) {
                let end = batch.packets.len() + len;
                batch.packets.resize(end, 0);
            }
            assert_eq!(batch.count(), max);
            batch.restart((addr, 7), len);
            batch.refuse_more();
            assert!(batch.takes((addr, 7), len));
            batch.packets.resize(len, 0);
            assert!(!batch.takes((addr, 7), len));
        }
    }
}
