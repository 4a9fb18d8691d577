//! Counters of a datagram socket.

/// Counters of a datagram socket, since its first use. Lengths are of payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramStats {
    /// Datagrams sent. Those lost by the network are included.
    pub datagrams_sent: u64,
    /// Of these, datagrams sent over UDP: the route to the peer is not resolved, or its MTU is smaller than the datagram.
    pub datagrams_sent_by_udp: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Datagrams received into the queue of the socket.
    pub datagrams_received: u64,
    /// Of these, datagrams received over UDP.
    pub datagrams_received_by_udp: u64,
    /// Bytes received into the queue of the socket.
    pub bytes_received: u64,
    /// Received datagrams dropped: the queue is full, the source is not the connected peer, receiving is shut down, or
    /// the header is malformed.
    pub datagrams_dropped: u64,
}
