//! The receiving thread of a host over UDP: processes frames while no thread of the program polls.

use std::{io, sync::Arc, thread, time::Duration};

use super::port::Shared;
use crate::{
    abi,
    carrier::{Link, Readiness},
};

/// Pause after the program has polled: it receives the frames itself, and the thread would compete for the lock.
const PAUSE: Duration = Duration::from_micros(200);

/// Starts the thread, to be stopped by the drop of the fabric.
pub(super) fn start(shared: &Arc<Shared>, host: usize, link: Arc<Link>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    abi::spawn_without_signals("softnic-udp", move || receive(&shared, host, &link))
}

fn receive(shared: &Shared, host: usize, link: &Link) {
    let mut polls = link.polls();
    while link.wait() == Readiness::Readable {
        let now = link.polls();
        if now == polls {
            if abi::survive(|| shared.receive(host)).is_none() {
                // The timekeeper goes on with the work that the panic has interrupted.
                shared.changed.notify_one();
            }
        } else {
            polls = now;
            thread::sleep(PAUSE);
        }
    }
}
