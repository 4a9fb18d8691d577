//! Exit of the process: the peers get the data of sockets not closed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// There has been a socket, and the configuration has been read: a signal handler, which may exit, cannot read the
/// environment.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Reads the configuration, on the first call.
pub(crate) fn prepare() {
    rsocket::exit_linger();
    PREPARED.store(true, Relaxed);
}

/// Disconnects all sockets because the calling thread ends the process; see [`rsocket::disconnect_at_exit`]. Returns whether the
/// peers have acknowledged all data.
pub fn disconnect_all() -> bool {
    if !PREPARED.load(Relaxed) {
        return true;
    }
    let limit = rsocket::exit_linger();
    limit.is_zero() || rsocket::disconnect_at_exit(limit)
}

extern "C" fn exiting() {
    disconnect_all();
}

/// Run by `exit` and by the return from `main`, before the destructors of the libraries below. The priority, as of a
/// C destructor, makes the call run after those of a library that contains this one.
#[used]
#[unsafe(link_section = ".fini_array.00101")]
static EXITING: extern "C" fn() = exiting;
