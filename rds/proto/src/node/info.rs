//! `RDS_INFO_*` of a node.

use std::net::{Ipv4Addr, SocketAddr};

use super::{ConnectionId, Node};
use crate::{
    SocketId,
    info::{ConnectionFlags, ConnectionInfo, Info, MessageFlags, MessageInfo, SocketInfo},
    wire::Flags,
};

/// The kernel's name of the RDMA transport.
const TRANSPORT: &str = "infiniband";

/// Address of an unbound socket.
const NONE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// A snapshot without the device's part. Sockets are numbered in order of creation.
    pub fn info(&self) -> Info {
        let mut info = Info::default();
        for (id, peer) in self.peers.iter() {
            let (route, connection) = (peer.route, &peer.connection);
            let (next_tx, next_rx) = connection.next_sequences();
            let mut flags = self.connection_flags(id);
            flags.set(ConnectionFlags::SENDING, connection.has_work());
            info.connections.push(ConnectionInfo {
                next_tx,
                next_rx,
                local: route.local,
                peer: route.peer,
                transport: TRANSPORT.to_owned(),
                flags,
                tos: route.tos,
            });
            connection.waiting(|sent, sequence, (from, to), len, ack_flags| {
                let list = if sent {
                    &mut info.unacknowledged
                } else {
                    &mut info.sending
                };
                let mut flags = MessageFlags::empty();
                flags.set(MessageFlags::ACK, ack_flags.contains(Flags::ACK_REQUIRED));
                list.push(MessageInfo {
                    sequence,
                    len,
                    local: (route.local, from).into(),
                    peer: (route.peer, to).into(),
                    flags,
                    tos: route.tos,
                });
            });
        }
        let mut sockets: Vec<_> = self.sockets.iter().collect();
        sockets.sort_by_key(|&(&SocketId(number), _)| number);
        for (&SocketId(number), socket) in sockets {
            let local = socket.bound.unwrap_or(NONE);
            info.sockets.push(SocketInfo {
                send_limit: socket.send_limit,
                local,
                peer: socket.peer.unwrap_or(NONE),
                recv_limit: socket.recv_limit,
                inode: number,
            });
            for delivery in socket.messages() {
                info.receiving.push(MessageInfo {
                    sequence: delivery.sequence,
                    len: delivery.len,
                    local,
                    peer: delivery.from,
                    flags: MessageFlags::empty(),
                    tos: socket.tos,
                });
            }
        }
        info.counters = self.stats().list();
        info
    }

    /// State of the RDMA connection.
    fn connection_flags(&self, id: ConnectionId) -> ConnectionFlags {
        let mut flags = ConnectionFlags::empty();
        flags.set(ConnectionFlags::CONNECTED, self.is_up(id));
        let connecting = !self.is_up(id) && self.attempt(id).is_some();
        flags.set(ConnectionFlags::CONNECTING, connecting);
        flags
    }
}
