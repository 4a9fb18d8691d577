//! One side of an exchange with frames of all kinds: messages, RDMA and atomics over each transport, refused requests,
//! and messages of the connection manager.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod control;
mod exchanges;
mod refusals;
mod requests;
mod side;

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};

use control::Control;
use side::Side;

/// Port of the connection between the two processes.
const CONTROL_PORT: u16 = 7600;

/// Port of the markers in the capture, `discard`.
const MARKER_PORT: u16 = 9;

/// Port of the connection manager.
const PORT: u16 = 7471;

/// Role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Requests
    Active,
    /// Answers
    Passive,
}

#[derive(Parser)]
struct Options {
    role: Role,
    /// IPv4 address of the passive side
    control: String,
    /// Address of the passive side for the frames: IPv4 or IPv6
    host: String,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let addr = resolve(&options.host, PORT)?;
    let mut control = Control::new(options.role, resolve(&options.control, CONTROL_PORT)?)?;
    let mut side = Side::new(addr.is_ipv4())?;
    exchanges::run(options.role, &mut control, addr)?;
    if options.role == Role::Active {
        control.mark("Requests")?;
    }
    requests::reliable(options.role, &mut control, &mut side)?;
    if options.role == Role::Active {
        control.mark("End")?;
    }
    requests::unreliable(options.role, &mut control, &mut side)?;
    requests::datagrams(options.role, &mut control, &mut side)?;
    refusals::run(options.role, &mut control, &mut side)?;
    if options.role == Role::Active {
        control.mark("End")?;
    }
    if side.has_atomic_write() {
        println!("atomic write");
    }
    Ok(())
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let mut addrs = (host, port).to_socket_addrs()?;
    addrs.next().context("a host without an address")
}
