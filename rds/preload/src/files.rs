//! Interposed functions for any file descriptor.

use std::sync::Arc;

use interpose::is_owner;
use libc::{c_int, c_long};

use crate::table::{SOCKETS, SocketEntry};

/// RDS sockets among the descriptors.
struct Sockets;

impl interpose::Descriptors for Sockets {
    type Forgotten = Option<Arc<SocketEntry>>;

    fn may_have(fd: c_int) -> bool {
        SOCKETS.may_have(fd)
    }

    fn forget(fd: c_int) -> Self::Forgotten {
        SOCKETS.remove(fd)
    }

    fn follow(old: c_int, new: c_int) {
        drop(Self::forget(new));
        if let Some(entry) = SOCKETS.find(old) {
            SOCKETS.add(new, entry);
        }
    }

    fn is_internal(fd: c_int) -> bool {
        interpose::is_internal(fd) && is_owner()
    }

    fn status_flags(fd: c_int, cmd: c_int, arg: c_long) -> Option<c_int> {
        let entry = SOCKETS.find(fd)?;
        if cmd == libc::F_GETFL {
            let nonblocking = entry.settings().nonblocking;
            return Some(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 });
        }
        let nonblocking = arg & c_long::from(libc::O_NONBLOCK) != 0;
        entry.settings().nonblocking = nonblocking;
        entry.socket.set_nonblocking(nonblocking);
        Some(0)
    }
}

interpose::descriptors!(Sockets);
