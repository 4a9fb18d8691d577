//! Address exchange over TCP: the client sends the addresses of its queue pairs; the server connects to them
//! and sends its own; the client confirms the receipt and connects.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
};

use anyhow::{Context as _, ensure};

use super::{
    address::{ADDRESS_LEN, Address},
    options::Options,
};

/// Last message of the client.
const DONE: &[u8; 5] = b"done\0";

/// Exchanges addresses with the peer, prints the received ones, and connects each queue pair of `local` to
/// the peer's at the same index. On the wire there are `slots` addresses in each direction, unused ones zero.
///
/// The server calls `connect` before sending addresses, so that receives are ready before the client can
/// send.
///
/// # Errors
/// Connecting over TCP failed, the peer violates the protocol, or `connect` fails.
pub fn exchange<Q>(
    options: &Options,
    local: &[Address],
    slots: usize,
    connect: impl FnOnce(&[Address]) -> anyhow::Result<Q>,
) -> anyhow::Result<Q> {
    let (host, port) = (options.host.as_deref(), options.port);
    match host {
        Some(host) => {
            let mut peer = TcpStream::connect((host, port))
                .with_context(|| format!("couldn't connect to {host}:{port}"))?;
            let remote = as_client(&mut peer, local, slots)?;
            drop(peer);
            print_remote(&remote);
            connect(&remote)
        }
        None => {
            // The first also accepts IPv4, where IPv6 is available.
            let any: [SocketAddr; 2] = [
                (Ipv6Addr::UNSPECIFIED, port).into(),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ];
            let listener = TcpListener::bind(&any[..])
                .with_context(|| format!("couldn't listen to port {port}"))?;
            let (mut peer, _) = listener.accept().context("accept() failed")?;
            drop(listener);
            let (remote, connected) = as_server(&mut peer, local, slots, connect)?;
            print_remote(&remote);
            Ok(connected)
        }
    }
}

fn print_remote(remote: &[Address]) {
    for address in remote {
        println!("  remote address: {address}");
    }
}

fn as_client(
    peer: &mut (impl Read + Write),
    local: &[Address],
    slots: usize,
) -> anyhow::Result<Vec<Address>> {
    send(peer, local, slots)?;
    let remote = receive(peer, local.len(), slots)?;
    peer.write_all(DONE)
        .context("couldn't confirm the receipt of the server's address")?;
    Ok(remote)
}

fn as_server<Q>(
    peer: &mut (impl Read + Write),
    local: &[Address],
    slots: usize,
    connect: impl FnOnce(&[Address]) -> anyhow::Result<Q>,
) -> anyhow::Result<(Vec<Address>, Q)> {
    let remote = receive(peer, local.len(), slots)?;
    let connected = connect(&remote).context("couldn't connect to the remote queue pair")?;
    send(peer, local, slots)?;
    let mut done = [0; DONE.len()];
    peer.read_exact(&mut done)
        .context("the client did not confirm the receipt of the address")?;
    ensure!(
        &done == DONE,
        "the client sent \"{}\" instead of \"done\"",
        done.escape_ascii()
    );
    Ok((remote, connected))
}

/// Sends all addresses in one write: the C programs expect an address in one read.
fn send(peer: &mut impl Write, local: &[Address], slots: usize) -> anyhow::Result<()> {
    let mut wire: Vec<u8> = local.iter().flat_map(|local| local.to_wire()).collect();
    let empty = slots.saturating_sub(local.len());
    wire.extend(std::iter::repeat_n(Address::default(), empty).flat_map(Address::to_wire));
    peer.write_all(&wire).context("couldn't send local address")
}

/// Receives `slots` addresses, and returns the first `requested`.
fn receive(peer: &mut impl Read, requested: usize, slots: usize) -> anyhow::Result<Vec<Address>> {
    let mut remote = Vec::with_capacity(slots);
    for _ in 0..slots {
        let mut wire = [0; ADDRESS_LEN];
        peer.read_exact(&mut wire)
            .context("couldn't read remote address")?;
        remote.push(Address::from_wire(&wire)?);
    }
    remote.truncate(requested);
    for (i, address) in remote.iter().enumerate() {
        ensure!(
            address.qpn.get() != 0,
            "the peer has {i} queue pairs, and this side has {requested}"
        );
    }
    Ok(remote)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Cursor, Result},
        iter,
    };

    use verbs::qp::{Psn, QpNum};

    use super::*;

    /// A peer with scripted output, independent of the input.
    struct Script {
        says: Cursor<Vec<u8>>,
        received: Vec<u8>,
    }

    impl Script {
        fn new(says: &[u8]) -> Self {
            Self {
                says: Cursor::new(says.to_vec()),
                received: Vec::new(),
            }
        }
    }

    impl Read for Script {
        fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
            self.says.read(buf)
        }
    }

    impl Write for Script {
        fn write(&mut self, buf: &[u8]) -> Result<usize> {
            self.received.write(buf)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn address(qpn: u32) -> Address {
        Address {
            qpn: QpNum::from_low_bits(qpn),
            psn: Psn::from_low_bits(7),
            ..Address::default()
        }
    }

    #[test]
    fn client_sends_first_and_confirms_last() {
        let mut server = Script::new(&address(2).to_wire());
        let remote = as_client(&mut server, &[address(1)], 1).unwrap();
        assert_eq!(remote, [address(2)]);
        assert_eq!(server.received, [&address(1).to_wire()[..], DONE].concat());
    }

    #[test]
    fn server_connects_before_sending_addresses() {
        let mut client = Script::new(&[&address(1).to_wire()[..], DONE].concat());
        let connect = |remote: &[Address]| Ok(remote.to_vec());
        let (remote, connected) = as_server(&mut client, &[address(2)], 1, connect).unwrap();
        assert_eq!(
            (&remote[..], &connected[..]),
            (&[address(1)][..], &[address(1)][..])
        );
        assert_eq!(client.received, address(2).to_wire());

        let mut client = Script::new(&address(1).to_wire());
        let fail = |_: &[Address]| -> anyhow::Result<()> { anyhow::bail!("no") };
        assert!(as_server(&mut client, &[address(2)], 1, fail).is_err());
        assert_eq!(client.received, [0; 0], "the client must not send yet");
    }

    #[test]
    fn empty_slots_are_sent_and_ignored() {
        let sent: Vec<u8> = [address(5), address(6), address(9)]
            .into_iter()
            .chain(iter::once(Address::default()))
            .flat_map(Address::to_wire)
            .collect();
        let mut server = Script::new(&sent);
        let remote = as_client(&mut server, &[address(1), address(2)], 4).unwrap();
        assert_eq!(remote, [address(5), address(6)]);
        assert_eq!(server.received.len(), 4 * ADDRESS_LEN + DONE.len());
        let mut server = Script::new(&sent);
        let err = as_client(&mut server, &[address(1); 4], 4).unwrap_err();
        assert_eq!(
            err.to_string(),
            "the peer has 3 queue pairs, and this side has 4"
        );
    }

    #[test]
    fn exchange_with_invalid_peer_fails() {
        let connect = |_: &[Address]| Ok(());
        let complaint = |says: &[u8]| {
            let outcome = as_server(&mut Script::new(says), &[address(2)], 1, connect);
            outcome.map(drop).unwrap_err().to_string()
        };
        assert_eq!(complaint(b"hello"), "couldn't read remote address");
        assert!(complaint(&[b'x'; ADDRESS_LEN]).starts_with("the peer has sent no address"));
        let sent = address(1).to_wire();
        assert_eq!(
            complaint(&sent),
            "the client did not confirm the receipt of the address"
        );
        assert_eq!(
            complaint(&[&sent[..], b"gone\n"].concat()),
            "the client sent \"gone\\n\" instead of \"done\""
        );
    }
}
