//! The server: accepts all connections and answers all disconnects, on one thread.

#![expect(clippy::print_stderr, reason = "of a program for the terminal")]

use std::{collections::HashMap, convert::Infallible};

use anyhow::bail;
use cm::{AddrHints, ConnParam, ConnectRequest, Connection, Event, EventChannel, Key, Refused};
use examples::cm_tool::{address, failure::Failure};
use verbs::{QueuePair, Rts};

use crate::{
    Options,
    qp::{self, Shared},
};

/// Serves without end.
///
/// # Errors
/// Listening failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut server = Server {
        accepted: HashMap::new(),
        established: HashMap::new(),
        shared: None,
        channel: EventChannel::new()?,
    };
    let mut listener = server.channel.create_id()?;
    let bind = options.bind.as_deref();
    listener.bind(address::to_listen(&AddrHints::new(), bind, &options.port)?)?;
    let _listener = listener.listen(0)?;
    match server.serve()? {}
}

struct Server {
    accepted: HashMap<Key, QueuePair<verbs::Rc, Rts>>,
    established: HashMap<Key, Connection>,
    shared: Option<Shared>,
    channel: EventChannel,
}

impl Server {
    fn serve(&mut self) -> anyhow::Result<Infallible> {
        loop {
            match self.channel.wait()? {
                Event::ConnectRequest(request) => {
                    if let Err(err) = self.accept(request) {
                        eprintln!("failing connection request: {err}");
                    }
                }
                Event::Established(id) => {
                    let Some(qp) = self.accepted.remove(&id.key()) else {
                        continue;
                    };
                    let key = id.key();
                    let connection =
                        Connection::new(id, qp).map_err(|Refused { error, .. }| error)?;
                    self.established.insert(key, connection);
                }
                Event::ConnectFailed { id, failure } => {
                    self.accepted.remove(&id.key());
                    eprintln!("{}", Failure::from(&failure));
                }
                Event::Disconnected { key, .. } => {
                    if let Some(mut connection) = self.established.remove(&key)
                        && let Err(err) = qp::unless_ended(connection.disconnect())
                    {
                        eprintln!("failing disconnect: {err}");
                    }
                }
                Event::DeviceRemoval(_) => bail!("the device has been removed"),
                // No action at the end of the timewait state.
                _ => {}
            }
        }
    }

    /// Accepts the request. On an error the request is rejected.
    fn accept(&mut self, request: ConnectRequest) -> verbs::Result<()> {
        let key = request.id().key();
        let qp = qp::create(&mut self.shared, request.id())?;
        let qp = request.accept(qp, &ConnParam::new())?;
        self.accepted.insert(key, qp);
        Ok(())
    }
}
