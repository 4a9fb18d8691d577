//! Counters of a stream.

/// Counters of one side of a stream, since it was connected.
///
/// A wait is counted when a send finds no room, once until the next message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Bytes sent, in messages and into mappings of the peer.
    pub bytes_sent: u64,
    /// Bytes received in messages. The device does not report writes of the peer into mappings.
    pub bytes_received: u64,
    /// Messages sent with data of the stream.
    pub messages_sent: u64,
    /// Messages received with data of the stream.
    pub messages_received: u64,
    /// Waits for a credit: the peer has as many unread messages as it has receives.
    pub waits_for_credit: u64,
    /// Waits for room in the peer's receive buffer: the peer reads more slowly than this side sends.
    pub waits_for_peer_buffer: u64,
    /// Waits for room in the send buffer or the send queue: this side sends more quickly than the device, or the peer's
    /// device, acknowledges.
    pub waits_for_send_buffer: u64,
    /// Keepalive probes sent.
    pub keep_alive_probes: u64,
}

/// Missing resource of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Credit,
    PeerBuffer,
    SendBuffer,
}

/// The counters, with the state of a wait.
#[derive(Debug, Default)]
pub(super) struct Counters {
    stats: StreamStats,
    /// The present wait has been counted.
    waits: bool,
}

impl Counters {
    pub(super) fn stats(&self) -> StreamStats {
        self.stats
    }

    pub(super) fn sent(&mut self, len: u32) {
        self.stats.bytes_sent += u64::from(len);
        self.stats.messages_sent += 1;
        self.waits = false;
    }

    pub(super) fn sent_direct(&mut self, len: u32) {
        self.stats.bytes_sent += u64::from(len);
    }

    pub(super) fn received(&mut self, len: u32) {
        self.stats.bytes_received += u64::from(len);
        self.stats.messages_received += 1;
    }

    pub(super) fn probed(&mut self) {
        self.stats.keep_alive_probes += 1;
    }

    pub(super) fn lacked(&mut self, lack: Lack) {
        if self.waits {
            return;
        }
        self.waits = true;
        let StreamStats {
            waits_for_credit,
            waits_for_peer_buffer,
            waits_for_send_buffer,
            ..
        } = &mut self.stats;
        *match lack {
            Lack::Credit => waits_for_credit,
            Lack::PeerBuffer => waits_for_peer_buffer,
            Lack::SendBuffer => waits_for_send_buffer,
        } += 1;
    }
}
