//! How `xsrq_pingpong`'s sides find each other: each client tells the server its address over TCP,
//! the server tells its own, and both connect; the server does so for one client after the other.
//! In the end every client says that it is done, and the server says so to all of them together:
//! an answer to one may be on its way through the queue pair of another.

use std::{
    fmt,
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
};

use anyhow::{Context as _, ensure};
use verbs::{Gid, Psn, QpNum, SrqNum};

use super::address::{Fields, Malformed};

/// The length of an address on the wire: `LID:QPN:QPN:PSN:SRQN:GID` in hexadecimal digits, and a
/// zero byte.
pub const XRC_ADDRESS_LEN: usize = 66;

/// What both sides say last.
const END: &[u8; 4] = b"END\0";

/// Where the two queue pairs of one side are, and the shared queue that messages are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcAddress {
    /// The local identifier of the port; 0 on RoCE.
    pub lid: u16,
    /// The number of the queue pair that receives.
    pub recv_qpn: QpNum,
    /// The number of the queue pair that sends.
    pub send_qpn: QpNum,
    /// The number of the first packet, of both.
    pub psn: Psn,
    /// The number of the shared receive queue.
    pub srqn: SrqNum,
    /// The GID of the port; zeros if it has none.
    pub gid: Gid,
}

impl XrcAddress {
    /// The address as it is sent.
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
        // The numbers have at most so many digits, so the text has exactly one byte less.
        for (byte, digit) in wire.iter_mut().zip(text.bytes()) {
            *byte = digit;
        }
        wire
    }

    /// Reads an address that a peer has sent.
    ///
    /// # Errors
    /// It is not one.
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

/// The other side of a connection, as it is known over TCP.
#[derive(Debug)]
pub struct Peer {
    /// Its address.
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
            "the peer said \"{}\" instead of \"END\"",
            said.escape_ascii()
        );
        Ok(())
    }
}

/// Finds the server, as a client.
///
/// # Errors
/// There is none, or it does not keep to the protocol.
pub fn call(host: &str, port: u16, local: &XrcAddress) -> anyhow::Result<Peer> {
    let mut socket = TcpStream::connect((host, port))
        .with_context(|| format!("couldn't connect to {host}:{port}"))?;
    send(&mut socket, local)?;
    let remote = receive(&mut socket)?;
    Ok(Peer { remote, socket })
}

/// Listens for clients, over IPv6 and IPv4 where there is IPv6 at all.
///
/// # Errors
/// The port is in use, or not for this user.
pub fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let any: [SocketAddr; 2] = [
        (Ipv6Addr::UNSPECIFIED, port).into(),
        (Ipv4Addr::UNSPECIFIED, port).into(),
    ];
    TcpListener::bind(&any[..]).with_context(|| format!("couldn't listen to port {port}"))
}

/// Waits for as many clients as there are addresses for them, and calls `connect` with the address
/// of each.
///
/// # Errors
/// One of them does not keep to the protocol, or `connect` fails.
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

/// Ends, as a client, when the server ends.
///
/// # Errors
/// The server is gone, or says something else.
pub fn end_client(server: &mut Peer) -> anyhow::Result<()> {
    server.say_end()?;
    server.hear_end()
}

/// Ends, as the server, when all clients do.
///
/// # Errors
/// A client is gone, or says something else.
pub fn end_server(clients: &mut [Peer]) -> anyhow::Result<()> {
    for client in &mut *clients {
        client.hear_end()?;
    }
    for client in clients {
        client.say_end()?;
    }
    Ok(())
}

/// All in one write: the C program expects an address to come in one piece.
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

    /// What `ibv_xsrq_pingpong` sends of these numbers.
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

    fn heard<const N: usize>(socket: &mut TcpStream) -> [u8; N] {
        let mut bytes = [0; N];
        socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_address_is_what_c_sends_and_prints() {
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
    fn every_changed_byte_is_noticed_or_harmless() {
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
    fn a_client_tells_first_and_ends_first() {
        let (listener, port) = listener();
        let client = thread::spawn(move || {
            let mut server = call("127.0.0.1", port, &address(CLIENT)).unwrap();
            end_client(&mut server).unwrap();
            server.remote
        });
        // The server is this side, byte by byte.
        let (mut socket, _) = listener.accept().unwrap();
        assert_eq!(heard(&mut socket), *CLIENT);
        socket.write_all(SERVER).unwrap();
        assert_eq!(heard(&mut socket), *END);
        socket.write_all(END).unwrap();
        assert_eq!(client.join().unwrap(), address(SERVER));
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "there is nothing more");
    }

    #[test]
    fn the_server_takes_one_client_after_the_other_and_ends_all_at_once() {
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
        // The clients are this side. The second is connected first, and served later.
        let mut first = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut second = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let far = XrcAddress {
            psn: Psn::from_low_bits(8),
            ..address(CLIENT)
        };
        second.write_all(&far.to_wire()).unwrap();
        first.write_all(CLIENT).unwrap();
        assert_eq!(heard(&mut first), *SERVER);
        assert_eq!(heard(&mut second), other.to_wire());
        // Nobody is let go before both are done.
        second.write_all(END).unwrap();
        first.set_nonblocking(true).unwrap();
        second.set_nonblocking(true).unwrap();
        for client in [&mut first, &mut second] {
            let early = client.read(&mut [0]).unwrap_err();
            assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
            client.set_nonblocking(false).unwrap();
        }
        first.write_all(END).unwrap();
        assert_eq!((heard(&mut first), heard(&mut second)), (*END, *END));
        assert_eq!(server.join().unwrap(), [address(CLIENT), far]);
    }

    #[test]
    fn a_peer_that_says_something_else_is_an_error() {
        let (listener, port) = listener();
        let stranger = thread::spawn(move || {
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            socket.write_all(&[b'x'; XRC_ADDRESS_LEN]).unwrap();
            // Gone without a word, then another that does not end as it should.
            drop(socket);
            drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            socket.write_all(CLIENT).unwrap();
            socket.write_all(b"BYE\0").unwrap();
            heard::<XRC_ADDRESS_LEN>(&mut socket);
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
            "the peer said \"BYE\\x00\" instead of \"END\""
        );
        stranger.join().unwrap();
    }
}
