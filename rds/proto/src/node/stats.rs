//! Statistics of a node and of its sockets.

use crate::{connection::ConnectionStats, info::Counter};

/// Statistics of a node, since it was created: those of Linux' `rds-info -c`, and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Lost or closed RDMA connections: `conn_reset`.
    pub resets: u64,
    /// Connection requests of peers that were refused. Linux has no such counter.
    pub refused: u64,
    /// Connections closed in favor of another one, at a limit. Linux has no such counter.
    pub evicted: u64,
    /// Messages sent again on a new connection. Linux has no such counter.
    pub retransmitted: u64,
    /// Messages sent to other hosts: `send_queued`.
    pub sent: u64,
    /// Attempts to send that found the send buffer full: `send_queue_full`. A blocked call tries again when woken.
    pub send_full: u64,
    /// Attempts to send to a congested destination: `cong_send_error`.
    pub congested: u64,
    /// RDMA and atomic operations: `send_rdma`.
    pub operations: u64,
    /// Bytes of RDMA operations: `send_rdma_bytes`.
    pub operation_bytes: u64,
    /// Messages added to receive queues: `recv_queued`.
    pub queued: u64,
    /// Messages received by the program: `recv_delivered`.
    pub delivered: u64,
    /// Messages without a socket, dropped: `recv_drop_no_sock`.
    pub no_socket: u64,
    /// Duplicates of received messages, dropped: `recv_drop_old_seq`.
    pub duplicates: u64,
    /// Frames with a wrong checksum, dropped: `recv_drop_bad_checksum`.
    pub bad_checksums: u64,
    /// Pings received: `recv_ping`.
    pub pings: u64,
    /// Answers to pings: `send_pong`.
    pub pongs: u64,
    /// Acknowledgements sent in frames of their own: `ib_ack_sent`.
    pub acks_sent: u64,
    /// Congestion maps scheduled for a peer: `cong_update_queued`.
    pub maps_queued: u64,
    /// Congestion maps received: `cong_update_received`.
    pub maps_received: u64,
}

impl NodeStats {
    /// Adds the counters of a connection.
    pub(super) fn add(&mut self, connection: ConnectionStats) {
        self.duplicates += connection.duplicates;
        self.retransmitted += connection.retransmitted;
    }

    /// The counters of `RDS_INFO_COUNTERS`, with the kernel's names.
    pub(super) fn list(&self) -> Vec<Counter> {
        let list = [
            ("conn_reset", self.resets),
            ("recv_drop_bad_checksum", self.bad_checksums),
            ("recv_drop_old_seq", self.duplicates),
            ("recv_drop_no_sock", self.no_socket),
            ("recv_delivered", self.delivered),
            ("recv_queued", self.queued),
            ("recv_ping", self.pings),
            ("send_queue_full", self.send_full),
            ("send_queued", self.sent),
            ("send_rdma", self.operations),
            ("send_rdma_bytes", self.operation_bytes),
            ("send_pong", self.pongs),
            ("cong_update_queued", self.maps_queued),
            ("cong_update_received", self.maps_received),
            ("cong_send_error", self.congested),
            ("ib_ack_sent", self.acks_sent),
            // Without a counterpart in the kernel.
            ("conn_refused", self.refused),
            ("conn_evicted", self.evicted),
            ("send_retransmitted", self.retransmitted),
        ];
        list.into_iter()
            .map(|(name, value)| Counter {
                name: name.to_owned(),
                value,
            })
            .collect()
    }
}

/// Statistics of a socket, since it was created. Messages between sockets of one node count, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketStats {
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes of the messages sent, without RDMA operations.
    pub bytes_sent: u64,
    /// Messages received by the program.
    pub messages_received: u64,
    /// Bytes of the messages received by the program.
    pub bytes_received: u64,
    /// Attempts to send that found the send buffer full. A blocked call tries again when woken.
    pub send_full: u64,
    /// Attempts to send to a congested destination.
    pub congested: u64,
}

impl SocketStats {
    #[inline]
    pub(super) fn sent(&mut self, len: u32) {
        self.messages_sent += 1;
        self.bytes_sent += u64::from(len);
    }

    #[inline]
    pub(super) fn received(&mut self, len: u32) {
        self.messages_received += 1;
        self.bytes_received += u64::from(len);
    }
}
