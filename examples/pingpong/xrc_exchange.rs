//! Address exchange of `xsrq_pingpong`: each client sends an address over TCP, the server answers with the
//! local one, and both connect; the server handles one client after another. At the end every client sends
//! `END`, and the server answers all of them together: an answer to one client may be in flight on the queue
//! pair of another.

use std::{
    fmt,
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
};

use anyhow::{Context as _, ensure};
use verbs::{
    Gid,
    qp::{Psn, QpNum},
    srq::SrqNum,
};

use super::address::{Fields, Malformed};

/// Length of an encoded address, in bytes: `LID:QPN:QPN:PSN:SRQN:GID` in hexadecimal digits, and a zero byte.
pub const XRC_ADDRESS_LEN: usize = 66;

/// Last message of both sides.
const END: &[u8; 4] = b"END\0";

/// Addresses of the two queue pairs of one side, and the shared receive queue for incoming messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcAddress {
    /// LID of the port; 0 on RoCE.
    pub lid: u16,
    /// Number of the receiving queue pair.
    pub recv_qpn: QpNum,
    /// Number of the sending queue pair.
    pub send_qpn: QpNum,
    /// First packet sequence number, of both.
    pub psn: Psn,
    /// Number of the shared receive queue.
    pub srqn: SrqNum,
    /// GID of the port; zeros if the port has none.
    pub gid: Gid,
}

impl XrcAddress {
    /// Encodes the address.
    pub fn to_wire(self) -> [u8; XRC_ADDRESS_LEN] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!(
            "{:04x}:{:06x}:{:06x}:{:06x}:{:06x}:{gid:032x}",
            self.lid,
            self.recv_qpn.get(),
            self.send_qpn.get(),
            self.psn.get(),
            self.srqn.get(),
        );
        let mut wire = [0; XRC_ADDRESS_LEN];
        // The widths of the fields bound the text to one byte less than the buffer.
        for (byte, digit) in wire.iter_mut().zip(text.bytes()) {
            *byte = digit;
        }
        wire
    }

    /// Parses an address sent by a peer.
    ///
    /// # Errors
    /// The bytes are invalid.
    pub fn from_wire(wire: &[u8; XRC_ADDRESS_LEN]) -> Result<Self, Malformed> {
        Self::parse(wire).ok_or_else(|| Malformed::new(wire))
    }

    fn parse(wire: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(wire)?;
        let this = Self {
            lid: fields.hex(4)?,
            recv_qpn: QpNum::new(fields.hex(6)?).ok()?,
            send_qpn: QpNum::new(fields.hex(6)?).ok()?,
            psn: Psn::new(fields.hex(6)?).ok()?,
            srqn: SrqNum::new(fields.hex(6)?).ok()?,
            gid: Gid(fields.hex::<u128>(32)?.to_be_bytes()),
        };
        fields.end()?;
        Some(this)
    }
}

impl fmt::Display for XrcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LID {:04x}, QPN RECV {:06x} SEND {:06x}, PSN {:06x}, SRQN {:06x}, GID {}",
            self.lid,
            self.recv_qpn.get(),
            self.send_qpn.get(),
            self.psn.get(),
            self.srqn.get(),
            self.gid,
        )
    }
}

/// The other side of a connection, with the TCP socket.
#[derive(Debug)]
pub struct Peer {
    /// Address of the peer.
    pub remote: XrcAddress,
    socket: TcpStream,
}

impl Peer {
    fn say_end(&mut self) -> anyhow::Result<()> {
        self.socket
            .write_all(END)
            .context("couldn't send termination ack")
    }

    fn hear_end(&mut self) -> anyhow::Result<()> {
        let mut said = [0; END.len()];
        self.socket
            .read_exact(&mut said)
            .context("couldn't read remote termination ack")?;
        ensure!(
            &said == END,
            "the peer sent \"{}\" instead of \"END\"",
            said.escape_ascii()
        );
        Ok(())
    }
}

/// Connects to the server, as a client.
///
/// # Errors
/// Connecting failed, or the server violates the protocol.
pub fn call(host: &str, port: u16, local: &XrcAddress) -> anyhow::Result<Peer> {
    let mut socket = TcpStream::connect((host, port))
        .with_context(|| format!("couldn't connect to {host}:{port}"))?;
    send(&mut socket, local)?;
    let remote = receive(&mut socket)?;
    Ok(Peer { remote, socket })
}

/// Listens for clients, over IPv6 and IPv4 where IPv6 is available.
///
/// # Errors
/// The port is in use or requires privileges.
pub fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let any: [SocketAddr; 2] = [
        (Ipv6Addr::UNSPECIFIED, port).into(),
        (Ipv4Addr::UNSPECIFIED, port).into(),
    ];
    TcpListener::bind(&any[..]).with_context(|| format!("couldn't listen to port {port}"))
}

/// Waits for one client per local address, and calls `connect` with each client's address.
///
/// # Errors
/// A client violates the protocol, or `connect` fails.
pub fn serve(
    listener: &TcpListener,
    local: &[XrcAddress],
    mut connect: impl FnMut(&XrcAddress) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Peer>> {
    let mut peers = Vec::with_capacity(local.len());
    for (client, local) in local.iter().enumerate() {
        let accepted = listener.accept();
        let (mut socket, _) =
            accepted.with_context(|| format!("accept() failed for client {client}"))?;
        let remote = receive(&mut socket)?;
        send(&mut socket, local)?;
        connect(&remote).context("couldn't connect to the remote queue pairs")?;
        peers.push(Peer { remote, socket });
    }
    Ok(peers)
}

/// Ends a client, together with the server.
///
/// # Errors
/// The server has disconnected, or sent an invalid message.
pub fn end_client(server: &mut Peer) -> anyhow::Result<()> {
    server.say_end()?;
    server.hear_end()
}

/// Ends the server, after all clients.
///
/// # Errors
/// A client has disconnected, or sent an invalid message.
pub fn end_server(clients: &mut [Peer]) -> anyhow::Result<()> {
    for client in &mut *clients {
        client.hear_end()?;
    }
    for client in clients {
        client.say_end()?;
    }
    Ok(())
}

/// Sends the address in one write: the C program expects an address in one read.
fn send(socket: &mut TcpStream, local: &XrcAddress) -> anyhow::Result<()> {
    socket
        .write_all(&local.to_wire())
        .context("couldn't send local address")
}

fn receive(socket: &mut TcpStream) -> anyhow::Result<XrcAddress> {
    let mut wire = [0; XRC_ADDRESS_LEN];
    socket
        .read_exact(&mut wire)
        .context("couldn't read remote address")?;
    Ok(XrcAddress::from_wire(&wire)?)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Bytes sent by `ibv_xsrq_pingpong` for these numbers.
    const SERVER: &[u8; XRC_ADDRESS_LEN] =
        b"0001:00001a:00001b:abcdef:000003:00000000000000000000ffff0a090001\0";
    const CLIENT: &[u8; XRC_ADDRESS_LEN] =
        b"0000:000011:000012:000007:000004:00000000000000000000000000000000\0";

    fn address(wire: &[u8; XRC_ADDRESS_LEN]) -> XrcAddress {
        XrcAddress::from_wire(wire).unwrap()
    }

    fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn received<const N: usize>(socket: &mut TcpStream) -> [u8; N] {
        let mut bytes = [0; N];
        socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn address_encoding_matches_c() {
        let server = address(SERVER);
        assert_eq!((server.recv_qpn.get(), server.send_qpn.get()), (0x1a, 0x1b));
        assert_eq!((server.psn.get(), server.srqn.get()), (0xab_cdef, 3));
        assert_eq!(
            server.to_string(),
            "LID 0001, QPN RECV 00001a SEND 00001b, PSN abcdef, SRQN 000003, \
             GID ::ffff:10.9.0.1"
        );
        assert_eq!(&server.to_wire(), SERVER);
        assert_eq!(&address(CLIENT).to_wire(), CLIENT);
    }

    #[test]
    fn every_changed_byte_is_detected_or_harmless() {
        for place in 0..XRC_ADDRESS_LEN {
            for byte in 0..=255 {
                let mut wire = *SERVER;
                wire[place] = byte;
                if let Ok(address) = XrcAddress::from_wire(&wire) {
                    assert!(address.to_wire().eq_ignore_ascii_case(&wire));
                }
            }
        }
    }

    #[test]
    fn client_sends_first_and_ends_first() {
        let (listener, port) = listener();
        let client = thread::spawn(move || {
            let mut server = call("127.0.0.1", port, &address(CLIENT)).unwrap();
            end_client(&mut server).unwrap();
            server.remote
        });
        // The test plays the server, byte by byte.
        let (mut socket, _) = listener.accept().unwrap();
        assert_eq!(received(&mut socket), *CLIENT);
        socket.write_all(SERVER).unwrap();
        assert_eq!(received(&mut socket), *END);
        socket.write_all(END).unwrap();
        assert_eq!(client.join().unwrap(), address(SERVER));
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "there is nothing more");
    }

    #[test]
    fn server_accepts_in_turn_and_ends_all_at_once() {
        let (listener, port) = listener();
        let other = XrcAddress {
            srqn: SrqNum::from_low_bits(9),
            ..address(SERVER)
        };
        let server = thread::spawn(move || {
            let mut connected = Vec::new();
            let connect = |remote: &XrcAddress| {
                connected.push(*remote);
                Ok(())
            };
            let mut clients = serve(&listener, &[address(SERVER), other], connect).unwrap();
            let remotes: Vec<_> = clients.iter().map(|client| client.remote).collect();
            assert_eq!(remotes, connected);
            end_server(&mut clients).unwrap();
            connected
        });
        // The test plays the clients. The second one connects first and is served later.
        let mut first = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut second = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let far = XrcAddress {
            psn: Psn::from_low_bits(8),
            ..address(CLIENT)
        };
        second.write_all(&far.to_wire()).unwrap();
        first.write_all(CLIENT).unwrap();
        assert_eq!(received(&mut first), *SERVER);
        assert_eq!(received(&mut second), other.to_wire());
        // No client is released before both are done.
        second.write_all(END).unwrap();
        first.set_nonblocking(true).unwrap();
        second.set_nonblocking(true).unwrap();
        for client in [&mut first, &mut second] {
            let early = client.read(&mut [0]).unwrap_err();
            assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
            client.set_nonblocking(false).unwrap();
        }
        first.write_all(END).unwrap();
        assert_eq!((received(&mut first), received(&mut second)), (*END, *END));
        assert_eq!(server.join().unwrap(), [address(CLIENT), far]);
    }

    #[test]
    fn exchange_with_invalid_peer_fails() {
        let (listener, port) = listener();
        let other_client = thread::spawn(move || {
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            socket.write_all(&[b'x'; XRC_ADDRESS_LEN]).unwrap();
            // Closed without a message, then another with an invalid last message.
            drop(socket);
            drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            socket.write_all(CLIENT).unwrap();
            socket.write_all(b"BYE\0").unwrap();
            received::<XRC_ADDRESS_LEN>(&mut socket);
        });
        let local = [address(SERVER)];
        let err = serve(&listener, &local, |_| Ok(())).unwrap_err();
        assert!(err.to_string().contains("no address, but \"xxxx"), "{err}");
        let err = serve(&listener, &local, |_| Ok(())).unwrap_err();
        assert_eq!(err.to_string(), "couldn't read remote address");
        let mut clients = serve(&listener, &local, |_| Ok(())).unwrap();
        let err = end_server(&mut clients).unwrap_err();
        assert_eq!(
            err.to_string(),
            "the peer sent \"BYE\\x00\" instead of \"END\""
        );
        other_client.join().unwrap();
    }
}
