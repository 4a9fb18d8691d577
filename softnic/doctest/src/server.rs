//! A server for connections of `cm`: sends each message back.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use cm::{Endpoint, EndpointBuilder, Incoming, Listener};
use softnic::Fabric;

use crate::{CLIENT, SERVER};

/// Receives of a connection.
const RECEIVES: usize = 4;

/// Longest message in bytes.
const MAX_LEN: usize = 4096;

/// Interval between the thread's looks at the end of the example.
const STOP_INTERVAL: Duration = Duration::from_millis(10);

/// Limit for each blocking call of the server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A server at 10.9.0.1:7471 that sends each message back. The example is on another host.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The last field, so dropped after the server's thread.
    _fabric: Fabric,
}

/// Makes a server, and puts the example on another host.
///
/// # Panics
/// If softnic refuses a call.
pub fn server() -> Server {
    let fabric = Fabric::new();
    let host = fabric.host(SERVER.into());
    fabric.host(CLIENT.into()).make_default();
    let builder = EndpointBuilder::new().timeout(TIMEOUT).max_recv_wr(64);
    let listener = host.run(|| builder.listen((std::net::Ipv4Addr::from(SERVER), 7471)));
    let listener = listener.expect("the port is free");
    let stop = Arc::<AtomicBool>::default();
    let same = Arc::clone(&stop);
    Server {
        stop,
        thread: Some(host.spawn(move || serve(&listener, &same))),
        _fabric: fabric,
    }
}

fn serve(listener: &Listener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let request = listener.request_timeout(STOP_INTERVAL);
        if let Some(request) = request.expect("the device is there") {
            // A client that leaves, which ends its connection: the next client is served.
            let _ended = accept(request).and_then(echo);
        }
    }
}

fn accept(mut request: Incoming) -> verbs::Result<Endpoint> {
    for _ in 0..RECEIVES {
        request.post_recv(request.reg_msgs([0; MAX_LEN])?)?;
    }
    request.accept()
}

/// Sends each message back until the client disconnects.
fn echo(mut client: Endpoint) -> verbs::Result<()> {
    loop {
        let message = client.recv_comp()?.received()?.to_vec();
        client.post_recv(client.reg_msgs([0; MAX_LEN])?)?;
        client.post_send(client.reg_msgs(message)?)?;
        client.send_comp()?.into_work()?;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server has not panicked");
            }
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
