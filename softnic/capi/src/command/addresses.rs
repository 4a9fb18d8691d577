//! Free addresses for devices.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use anyhow::{Result, bail};
use softnic::wire::PORT;

/// Number of addresses tried, from 127.0.0.2 upwards.
const MAX_TRIED: u8 = 250;

/// The first loopback address, from 127.0.0.2 upwards, with a free port. Another process may take the port before the program
/// does, and the program then has no device, and a message on standard error.
pub(super) fn free() -> Result<IpAddr> {
    for last in 2..MAX_TRIED {
        let addr = Ipv4Addr::new(127, 0, 0, last);
        if UdpSocket::bind((addr, PORT)).is_ok() {
            return Ok(addr.into());
        }
    }
    bail!(
        "UDP port {PORT} is taken at all addresses from 127.0.0.2 to 127.0.0.{}: by other programs on softnic, or at all \
         addresses by Linux's driver rdma_rxe (`modprobe -r rdma_rxe` frees it)",
        MAX_TRIED - 1
    );
}
