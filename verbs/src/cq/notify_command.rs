//! Asking the kernel for an event in the way in which Soft-RoCE's provider asks it to send: by writing to the device's
//! file.
//!
//! The provider leaves that call to libibverbs, which asks by the kernel's general interface for commands
//! (`ioctl`). That has the kernel do nearly twice as much, for each sleep.

use std::os::fd::{AsRawFd, BorrowedFd};

/// `IB_USER_VERBS_CMD_REQ_NOTIFY_CQ`.
const REQ_NOTIFY_CQ: u32 = 23;

/// A command as written to the device's file: a header and its arguments, in host byte order.
type Command = [u8; 16];

/// Length of a [`Command`], in words of 4 bytes.
const WORDS: u16 = 4;

/// Requests an event for the next completion of the queue with this handle; returns whether the
/// kernel accepted the command. If not, the caller has to use the general interface, which reports
/// the error.
pub(super) fn req_notify(device: BorrowedFd<'_>, handle: u32, solicited_only: bool) -> bool {
    let command = encode(handle, solicited_only);
    // SAFETY: the descriptor is open as long as it is borrowed, and C reads no more than there is before it returns.
    let written =
        unsafe { libc::write(device.as_raw_fd(), command.as_ptr().cast(), command.len()) };
    usize::try_from(written) == Ok(command.len())
}

/// `struct ib_uverbs_cmd_hdr` and `struct ib_uverbs_req_notify_cq`.
fn encode(handle: u32, solicited_only: bool) -> Command {
    let mut command = Command::default();
    command[..4].copy_from_slice(&REQ_NOTIFY_CQ.to_ne_bytes());
    command[4..6].copy_from_slice(&WORDS.to_ne_bytes());
    command[8..12].copy_from_slice(&handle.to_ne_bytes());
    command[12..].copy_from_slice(&u32::from(solicited_only).to_ne_bytes());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_the_kernel_has_them() {
        let words = |command: Command| -> Vec<u32> {
            let (words, _) = command.as_chunks();
            words.iter().map(|&word| u32::from_ne_bytes(word)).collect()
        };
        let header = u32::from_ne_bytes({
            let [low, high] = WORDS.to_ne_bytes();
            [low, high, 0, 0]
        });
        assert_eq!(words(encode(7, false)), [23, header, 7, 0]);
        assert_eq!(words(encode(u32::MAX, true)), [23, header, u32::MAX, 1]);
    }
}
