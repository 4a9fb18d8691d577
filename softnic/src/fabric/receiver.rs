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
    loop {
        let readiness = link.wait();
        let polls_now = link.polls();
        let work = match readiness {
            Readiness::Closed => return,
            Readiness::Management => abi::survive(|| shared.receive_forwarded(host)),
            Readiness::Interface => {
                link.drop_changes();
                abi::survive(|| shared.follow_interface(host)).map(|()| true)
            }
            Readiness::Readable if polls_now == polls => {
                abi::survive(|| shared.receive(host)).map(|()| true)
            }
            Readiness::Readable => {
                polls = polls_now;
                thread::sleep(PAUSE);
                continue;
            }
        };
        match work {
            Some(true) => {}
            // The host has been killed.
            Some(false) => return,
            // The timekeeper goes on with the work that the panic has interrupted.
            None => shared.changed.notify_one(),
        }
    }
}
