//! Statistics counters with the kernel's names.

use crate::info::Counter;

/// Statistics counters of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) resets: u64,
    pub(super) bad_checksums: u64,
    pub(super) no_socket: u64,
    pub(super) delivered: u64,
    pub(super) queued: u64,
    pub(super) pings: u64,
    pub(super) pongs: u64,
    pub(super) sent: u64,
    pub(super) send_full: u64,
    pub(super) operations: u64,
    pub(super) operation_bytes: u64,
    pub(super) maps_queued: u64,
    pub(super) maps_received: u64,
    pub(super) congested: u64,
    pub(super) acks_sent: u64,
    pub(super) refused: u64,
    pub(super) evicted: u64,
}

impl Counters {
    /// All counters; `duplicates` is counted by the connections.
    pub(super) fn list(&self, duplicates: u64) -> Vec<Counter> {
        let list = [
            ("conn_reset", self.resets),
            ("recv_drop_bad_checksum", self.bad_checksums),
            ("recv_drop_old_seq", duplicates),
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
        ];
        list.into_iter()
            .map(|(name, value)| Counter {
                name: name.to_owned(),
                value,
            })
            .collect()
    }
}
