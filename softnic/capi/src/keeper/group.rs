//! The sockets of an address: one for each slot, to which the kernel delivers by the number of the destination's queue pair.

use std::{
    io,
    net::{IpAddr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    libc::{self, sock_filter, sock_fprog},
    sys::socket::{setsockopt, sockopt::AttachReusePortCbpf},
};
use softnic::keeper::open_port;

use super::vault::Vault;

/// Offset in a datagram of the first byte of the destination's number, in the BTH.
const FIRST_BYTE: u32 = 5;

/// The sockets, each with a copy in the vault. None is closed before the others: the kernel would renumber them.
pub(super) struct Group {
    addr: IpAddr,
    sockets: Vec<UdpSocket>,
    vault: Vault,
}

impl Group {
    /// Binds the first socket.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AddrInUse`]: another process has the port, or programs of an earlier keeper.
    pub(super) fn bind(addr: IpAddr) -> io::Result<Self> {
        // An exclusive socket shows that no other has the port, also not one that would share it.
        drop(open_port(addr, false)?);
        let mut group = Self {
            addr,
            sockets: Vec::new(),
            vault: Vault::new()?,
        };
        group.open(0)?;
        Ok(group)
    }

    /// The sockets of an earlier keeper, in the vault of its programs.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotFound`]: a socket is missing, so the kernel has renumbered others.
    pub(super) fn restore(addr: IpAddr, vault: [OwnedFd; 2]) -> io::Result<Self> {
        let vault = Vault::of(vault);
        let sockets = vault.sockets()?;
        Ok(Self {
            addr,
            sockets,
            vault,
        })
    }

    /// Number of slots with a socket, slot 0 included.
    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// The vault, for the programs.
    pub(super) fn vault(&self) -> &Vault {
        &self.vault
    }

    /// Opens the sockets up to a slot's.
    pub(super) fn open(&mut self, slot: u8) -> io::Result<()> {
        while self.sockets.len() <= usize::from(slot) {
            let socket = open_port(self.addr, true)?;
            let index = u8::try_from(self.sockets.len()).unwrap_or(u8::MAX);
            self.vault.put(index, socket.as_fd())?;
            self.sockets.push(socket);
            self.steer()?;
        }
        Ok(())
    }

    /// The socket of a slot.
    pub(super) fn socket(&self, slot: u8) -> io::Result<&UdpSocket> {
        let socket = self.sockets.get(usize::from(slot));
        socket.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Lets the kernel select the socket by the number's first byte; the first socket for numbers beyond the slots, and for
    /// shorter datagrams.
    fn steer(&self) -> io::Result<()> {
        let Some(first) = self.sockets.first() else {
            return Ok(());
        };
        let count = u32::try_from(self.sockets.len()).unwrap_or(u32::MAX);
        let instruction = |code: u32, jump_true: u8, k: u32| sock_filter {
            code: u16::try_from(code).unwrap_or(0),
            jt: jump_true,
            jf: 0,
            k,
        };
        let mut program = [
            instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, FIRST_BYTE),
            instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, count),
            instruction(libc::BPF_RET | BPF_A, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        ];
        let program = sock_fprog {
            len: u16::try_from(program.len()).unwrap_or(0),
            filter: program.as_mut_ptr(),
        };
        setsockopt(first, AttachReusePortCbpf, &program)?;
        Ok(())
    }

    /// Drops the datagrams pending at a slot's socket: those to an earlier program.
    pub(super) fn drain(&self, slot: u8) {
        let Some(socket) = self.sockets.get(usize::from(slot)) else {
            return;
        };
        // Errors of earlier datagrams are reported, too.
        while !matches!(socket.recv(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        {
        }
    }
}

/// The accumulator, as the result.
const BPF_A: u32 = 0x10;
