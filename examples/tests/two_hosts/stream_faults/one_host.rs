//! Faults on a single host.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rsocket::{Listener, Stream};

use crate::{TEST_TIMEOUT, system, word};

const ENODEV: i32 = 19;

/// Connects, and accepts the connection. The listener is nonblocking: if the accepting side runs out of
/// memory or descriptors after the handshake, the client is reset and `accept` has no connection to return.
fn pair(listener: &Listener, addr: SocketAddr) -> io::Result<(Stream, Stream)> {
    let mut client = Stream::connect(addr)?;
    client.set_nonblocking(true);
    loop {
        match listener.accept() {
            Ok((server, from)) if from == client.local_addr()? => {
                client.set_nonblocking(false);
                return Ok((client, server));
            }
            // The end of an earlier client, whose own side has failed.
            Ok(_) => {}
            Err(err) if err.kind() != io::ErrorKind::WouldBlock => return Err(err),
            Err(_) => {}
        }
        match client.read(&mut [0]) {
            // The end of a stream that was never accepted.
            Ok(_) => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(err) if err.kind() != io::ErrorKind::WouldBlock => return Err(err),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn passes((client, server): &mut (Stream, Stream)) -> io::Result<()> {
    client.write_all(b"still here")?;
    server.set_read_timeout(Some(TEST_TIMEOUT));
    server.read_exact(&mut [0; 10])
}

/// Existing connections continue while resources are exhausted, and new ones succeed after resources
/// are released.
pub(crate) fn exhausting(addr: SocketAddr) -> Result<String> {
    let listener = Listener::bind(addr)?;
    listener.set_nonblocking(true);
    let mut pairs = vec![pair(&listener, addr).context("not even one")?];
    let error = loop {
        match pair(&listener, addr) {
            Ok(more) => pairs.push(more),
            Err(err) => break err,
        }
        ensure!(pairs.len() < 500, "the limit was never reached");
    };
    for pair in &mut pairs {
        passes(pair)?;
    }
    // Two, because the accepting side may have been the one without resources.
    let count = pairs.len();
    pairs.truncate(count.saturating_sub(2).max(1));
    let start = Instant::now();
    let again = loop {
        match pair(&listener, addr) {
            Ok(again) => break again,
            // Resources of the failed connection are still being released.
            Err(_) if start.elapsed() < TEST_TIMEOUT => thread::sleep(Duration::from_millis(100)),
            Err(err) => return Err(err.into()),
        }
    };
    pairs.push(again);
    for pair in &mut pairs {
        passes(pair)?;
    }
    Ok(format!("exhausted: {}", rsocket::errno(&error)))
}

/// The device is removed below a blocked receiver, a sender, and a connection with keepalive.
pub(crate) fn removed(addr: SocketAddr) -> Result<String> {
    let listener = Listener::bind(addr)?;
    listener.set_nonblocking(true);
    let (mut client, server) = pair(&listener, addr)?;
    let (mut idle, _idle_peer) = pair(&listener, addr)?;
    let (mut lasting, kept_peer) = pair(&listener, addr)?;
    for side in [&lasting, &kept_peer] {
        side.set_keep_alive(Some(Duration::from_millis(200)));
    }
    lasting.set_read_timeout(Some(TEST_TIMEOUT));
    server.set_read_timeout(Some(TEST_TIMEOUT));
    client.set_write_timeout(Some(TEST_TIMEOUT));
    idle.set_read_timeout(Some(TEST_TIMEOUT));
    client.write_all(b"a")?;
    let receiving = thread::spawn(move || {
        let mut server = server;
        let mut bytes = [0; 4000];
        loop {
            match server.read(&mut bytes) {
                Ok(0) => return "end".to_owned(),
                Ok(_) => {}
                Err(err) => return format!("{:?}", err.kind()),
            }
        }
    });
    let waiting = thread::spawn(move || word(idle.read(&mut [0]), "end"));
    let keeping = thread::spawn(move || (word(lasting.read(&mut [0]), "end"), lasting));
    let mut deletion = system("rdma", &["link", "delete", "rxe0"])?;
    let start = Instant::now();
    let sent = loop {
        if let Err(err) = client.write(&[0; 4000]) {
            break format!("{:?}", err.kind());
        }
        ensure!(start.elapsed() < TEST_TIMEOUT, "sending goes on");
    };
    let (Ok(received), Ok(waited)) = (receiving.join(), waiting.join()) else {
        bail!("a thread has panicked");
    };
    let Ok((lived, lasting)) = keeping.join() else {
        bail!("a thread has panicked");
    };
    for said in [&sent, &received, &waited, &lived] {
        ensure!(
            said != "WouldBlock",
            "no error reported: {sent}, {received}, {waited}, {lived}"
        );
    }
    ensure!(lasting.take_error().is_some(), "signs of life are given");
    // A failed connection has no data to linger for.
    lasting.set_linger(Duration::MAX);
    kept_peer.set_linger(Duration::MAX);
    drop((lasting, kept_peer));
    match Stream::connect(addr) {
        Ok(_) => bail!("there is still a way"),
        Err(err) => ensure!(rsocket::errno(&err) == ENODEV, "{err}"),
    }
    drop((client, listener));
    // The kernel may wait until the process closes the device.
    let dropped = Instant::now();
    while deletion.try_wait()?.is_none() && dropped.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(50));
    }
    Ok("removed".to_owned())
}
