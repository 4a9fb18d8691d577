//! A slow reader, and a sender to it.

use std::{io::IoSlice, net::SocketAddr, thread, time::Duration};

use anyhow::{Result, bail, ensure};
use rds::{Event, SendOptions};

use super::{HELLO, open, recv_message, synchronize, wait_for_acks};

pub(super) fn slow(local: SocketAddr, seconds: f64) -> Result<()> {
    let socket = open(local)?;
    socket.set_recv_limit(20_000)?;
    let (_, from) = socket.recv_from(&mut [0; 16])?;
    socket.send_to(HELLO, from)?;
    thread::sleep(Duration::from_secs_f64(seconds));
    let mut received = 0;
    let from = loop {
        let got = recv_message(&socket)?;
        if got.to_vec() == b"over" {
            break got.from();
        }
        received += 1;
    };
    socket.send_to(received.to_string().as_bytes(), from)?;
    wait_for_acks(&socket)?;
    println!("slow {received}");
    Ok(())
}

pub(super) fn press(local: SocketAddr, peer: SocketAddr) -> Result<()> {
    let socket = open(local)?;
    socket.set_congestion_monitor(true)?;
    synchronize(&socket, peer)?;
    let options = SendOptions::new().to(peer).dont_wait();
    let mut sent = 0;
    loop {
        match socket.send_msg(&[IoSlice::new(&[0; 1000])], &options) {
            Ok(_) => sent += 1,
            Err(err) if rds::errno(&err) == 105 => break,
            Err(err) if rds::errno(&err) == 11 => {}
            Err(err) => return Err(err.into()),
        }
        thread::sleep(Duration::from_millis(20));
    }
    loop {
        match socket.recv_event()? {
            Event::Congestion(ports) => {
                ensure!(ports == 1 << (peer.port() % 64), "{ports:#x}");
                break;
            }
            Event::Message(message) if message.to_vec() == HELLO => {}
            other => bail!("{other:?}"),
        }
    }
    println!("refused after {sent}");
    socket.send_to(b"over", peer)?;
    ensure!(recv_message(&socket)?.to_vec() == sent.to_string().as_bytes());
    wait_for_acks(&socket)
}
