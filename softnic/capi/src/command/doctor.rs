//! `softnic doctor`: causes for which a device cannot be made, or is slow, each with its remedy.

use std::{fmt, fs, io, net::IpAddr, path::Path};

use softnic::{
    keeper::{open_port, sends_batches},
    wire::PORT,
};

use super::library;

/// Folder of Linux's driver `rdma_rxe` in sysfs, while loaded.
const RXE: &str = "/sys/module/rdma_rxe";

/// File with the maximum length of a socket's buffer for received datagrams, in bytes.
const RMEM_MAX: &str = "/proc/sys/net/core/rmem_max";

/// File with the names of sockets of Unix.
const UNIX: &str = "/proc/net/unix";

/// Minimum length of the buffer, in bytes, for 256 frames of 4096 bytes, which take twice as many.
const MIN_BUFFER: u64 = 2 << 20;

/// State of the port of `RoCEv2` at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Free,
    /// Programs on softnic share the port.
    Shared,
    Taken,
    /// The machine does not have the address.
    NoAddress,
    /// Another error, as an errno.
    Failed(i32),
}

/// State of the machine.
#[derive(Clone, Debug)]
struct Machine {
    addr: IpAddr,
    /// The error for which the library is missing, if it is.
    library: Option<String>,
    port: Port,
    has_rxe: bool,
    /// Maximum length of a buffer in bytes; `None` if unknown.
    buffer: Option<u64>,
    /// Whether the kernel sends several frames by one call.
    sends_batches: bool,
}

impl Machine {
    fn of(addr: IpAddr) -> Self {
        let names = fs::read_to_string(UNIX).unwrap_or_default();
        let is_shared = names
            .lines()
            .any(|line| line.ends_with(&format!("@softnic {addr}")));
        let port = match open_port(addr, false) {
            Ok(_) => Port::Free,
            Err(_) if is_shared => Port::Shared,
            Err(error) => match error.kind() {
                io::ErrorKind::AddrInUse => Port::Taken,
                io::ErrorKind::AddrNotAvailable => Port::NoAddress,
                _ => Port::Failed(error.raw_os_error().unwrap_or(0)),
            },
        };
        let buffer = fs::read_to_string(RMEM_MAX).ok();
        Self {
            addr,
            library: library::folder().err().map(|error| format!("{error:#}")),
            port,
            has_rxe: Path::new(RXE).exists(),
            buffer: buffer.and_then(|text| text.trim().parse().ok()),
            // Unknown without the address.
            sends_batches: sends_batches(addr).unwrap_or(true),
        }
    }

    /// Whether a program can have a device.
    fn has_device(&self) -> bool {
        self.library.is_none() && matches!(self.port, Port::Free | Port::Shared)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.library {
            None => writeln!(f, "ok       library")?,
            Some(error) => writeln!(f, "missing  library: {error}")?,
        }
        let port = format!("UDP port {PORT} of {}", self.addr);
        match self.port {
            Port::Free => writeln!(f, "ok       {port} is free")?,
            Port::Shared => writeln!(f, "ok       {port} is shared by programs on softnic")?,
            Port::Taken if self.has_rxe => writeln!(
                f,
                "failed   {port}: Linux's driver rdma_rxe has the port at all addresses; `modprobe -r rdma_rxe` frees it, or run \
                 softnic in a network namespace of its own"
            )?,
            Port::Taken => writeln!(
                f,
                "failed   {port}: a process without the keeper has the port; use another address"
            )?,
            Port::NoAddress => writeln!(
                f,
                "failed   {port}: this machine does not have the address; use one of `ip address`, or 127.0.0.2"
            )?,
            Port::Failed(errno) => {
                writeln!(
                    f,
                    "failed   {port}: {}",
                    io::Error::from_raw_os_error(errno)
                )?;
            }
        }
        if let Some(buffer) = self.buffer.filter(|buffer| *buffer < MIN_BUFFER) {
            writeln!(
                f,
                "note     buffers have {buffer} bytes at most, and more frames are lost than with {MIN_BUFFER}: \
                 `sysctl net.core.rmem_max={MIN_BUFFER}` as root"
            )?;
        }
        if !self.sends_batches {
            writeln!(
                f,
                "note     the kernel refuses UDP_SEGMENT, so each frame takes a call: large messages take several times as long"
            )?;
        }
        if self.addr.is_loopback() {
            writeln!(
                f,
                "note     {} reaches processes of this machine alone",
                self.addr
            )
        } else {
            writeln!(
                f,
                "note     address translation, as of containers with mapped ports, cannot work: frames contain the addresses"
            )
        }
    }
}

/// Prints the state of the machine for a device at an address. Returns whether a program can have the device.
pub(super) fn run(addr: IpAddr) -> bool {
    let machine = Machine::of(addr);
    #[expect(clippy::print_stdout, reason = "the answer of the command")]
    {
        print!("{machine}");
    }
    machine.has_device()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn each_cause_is_reported_with_its_remedy() {
        let fine = Machine {
            addr: "127.0.0.2".parse().unwrap(),
            library: None,
            port: Port::Free,
            has_rxe: false,
            buffer: Some(MIN_BUFFER),
            sends_batches: true,
        };
        assert!(fine.has_device() && fine.to_string().contains("is free"));
        assert!(!fine.to_string().contains("sysctl"));
        assert!(!fine.to_string().contains("UDP_SEGMENT"));
        let with = |change: &dyn Fn(&mut Machine)| {
            let mut machine = fine.clone();
            change(&mut machine);
            machine
        };
        let taken = with(&|machine| machine.port = Port::Taken);
        assert!(taken.to_string().contains("use another address"));
        let rxe = with(&|machine| (machine.port, machine.has_rxe) = (Port::Taken, true));
        assert!(rxe.to_string().contains("modprobe -r rdma_rxe"));
        let missing = with(&|machine| machine.library = Some("install it".into()));
        assert!(missing.to_string().contains("install it"));
        for machine in [taken, rxe, missing] {
            assert!(!machine.has_device());
        }
        let small = with(&|machine| machine.buffer = Some(212_992));
        assert!(small.has_device() && small.to_string().contains("sysctl"));
        let single = with(&|machine| machine.sends_batches = false);
        assert!(single.has_device() && single.to_string().contains("UDP_SEGMENT"));
        let remote = with(&|machine| machine.addr = "10.0.0.2".parse().unwrap());
        assert!(remote.to_string().contains("address translation"));
    }

    #[test]
    fn states_of_the_port_are_those_of_the_machine() {
        assert!(Machine::of("127.5.0.2".parse().unwrap()).sends_batches);
        let port = |addr: &str| Machine::of(addr.parse().unwrap()).port;
        assert_eq!(port("127.5.0.2"), Port::Free);
        assert_eq!(port("203.0.113.9"), Port::NoAddress);
        let _taken = UdpSocket::bind(("127.5.0.3", PORT)).unwrap();
        assert_eq!(port("127.5.0.3"), Port::Taken);
    }
}
