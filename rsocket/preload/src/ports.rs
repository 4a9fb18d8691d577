//! Ports that the system chooses: free for TCP as for RDMA, since a stream may turn to TCP with its port.

use interpose::last_errno;
use libc::c_int;
use rsocket_capi as capi;

use crate::{
    sockets::{Name, real_bind, real_name, real_stream},
    table::Rsocket,
};

/// Most attempts at a port that is free for both.
const ATTEMPTS: usize = 16;

/// Binds a stream to the address `name` without a port: TCP chooses one, and RDMA takes it. Returns `None` if `name` has a
/// port, or if neither chooses one; then the socket is as before.
pub(crate) fn bind_to_free(rsocket: &Rsocket, name: &Name) -> Option<()> {
    let is_datagram = capi::socket_of(rsocket.fd()).is_none_or(|socket| socket.is_datagram());
    if name.has_port() || is_datagram {
        return None;
    }
    for _ in 0..ATTEMPTS {
        let tcp = real_stream(name.family(), 0);
        if tcp < 0 {
            return None;
        }
        rsocket.options().set_on(tcp);
        let bound = choose(tcp, name).map(|free| {
            // SAFETY: an address of this length.
            match unsafe { capi::rbind(rsocket.fd(), free.as_ptr(), free.len()) } {
                0 => Ok(()),
                _ => Err(last_errno()),
            }
        });
        // SAFETY: a private descriptor, not used elsewhere.
        unsafe { libc::close(tcp) };
        match bound? {
            Ok(()) => return Some(()),
            Err(libc::EADDRINUSE) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Binds a TCP socket to an address without a port. Returns its address with the port.
fn choose(tcp: c_int, name: &Name) -> Option<Name> {
    (real_bind(tcp, name.as_ptr(), name.len()) == 0)
        .then(|| real_name(tcp))
        .flatten()
}
