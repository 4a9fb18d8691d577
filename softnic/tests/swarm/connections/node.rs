//! A host with a listener and its ends of connections.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use cm::{
    CmId, ConnParam, ConnectRequest, ConnectResponse, Connection, Event, EventChannel, Key,
    phases::{Connected, Listening, RouteResolved},
};
use softnic::{Fabric, Host};
use verbs::{Init, QueuePair, Rts};

use super::end::{Outcome, Queues, Record};
use crate::{schedule::Schedule, swarm::Violation};

/// Port of the listeners.
const PORT: u16 = 7471;

/// Time-out of a resolution.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

fn addr(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, u8::try_from(host).unwrap_or(0) + 1], PORT))
}

/// State of an end. Identifiers with an expected event belong to the channel.
enum Stage {
    Resolving,
    Connecting(QueuePair<verbs::Rc, Init>, Queues),
    Accepting(QueuePair<verbs::Rc, Rts>, Queues),
    Up(Connection, Queues),
}

/// An end of a connection.
struct End {
    connection: usize,
    side: usize,
    stage: Stage,
}

/// Objects of a running host.
struct Running {
    ends: BTreeMap<Key, End>,
    _listener: CmId<Listening>,
    channel: EventChannel,
}

/// A host.
pub(super) struct Node {
    pub(super) host: Host,
    running: Option<Running>,
}

impl Node {
    pub(super) fn start(fabric: &Fabric, at: usize) -> Self {
        let host = fabric.host(addr(at).ip());
        let running = host.run(|| {
            let channel = EventChannel::new()?;
            let mut id = channel.create_id()?;
            id.bind(addr(at))?;
            Ok::<_, verbs::Error>(Running {
                ends: BTreeMap::new(),
                _listener: id.listen(16)?,
                channel,
            })
        });
        Self {
            host,
            running: Some(running.unwrap()),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.running.is_none()
    }

    /// Number of ends.
    pub(super) fn count(&self) -> usize {
        self.running
            .as_ref()
            .map_or(0, |running| running.ends.len())
    }

    /// Starts the active side of a connection.
    pub(super) fn connect(&mut self, connection: usize, to: usize, record: &mut Record) {
        let Some(running) = &mut self.running else {
            record.outcomes[0] = Some(Outcome::Killed);
            return;
        };
        let started = self.host.run(|| {
            let id = running.channel.create_id()?;
            let key = id.key();
            id.resolve_addr(None, addr(to), RESOLVE_TIMEOUT)?;
            Ok::<_, verbs::Error>(key)
        });
        match started {
            Ok(key) => {
                let stage = Stage::Resolving;
                let end = End {
                    connection,
                    side: 0,
                    stage,
                };
                running.ends.insert(key, end);
            }
            Err(error) => record.outcomes[0] = Some(Outcome::Failed(error.to_string())),
        }
    }

    /// Takes the completions of a killed host, and drops all objects.
    pub(super) fn stop(&mut self, records: &mut [Record]) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        for (_, mut end) in std::mem::take(&mut running.ends) {
            let record = &mut records[end.connection];
            // Requests of a killed host fail.
            drop(end.stage.poll(record, usize::MAX));
            record.outcomes[end.side] = Some(Outcome::Killed);
        }
    }

    /// Handles events and completions.
    pub(super) fn drive(
        &mut self,
        schedule: &Schedule,
        records: &mut [Record],
    ) -> Result<(), Violation> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        self.host.run(|| {
            loop {
                running.poll(schedule.messages, records)?;
                let Some(event) = running
                    .channel
                    .try_next()
                    .map_err(|error| error.to_string())?
                else {
                    return Ok(());
                };
                running.handle(event, schedule, records)?;
            }
        })
    }

    /// Drops the ends whose peers have ended. Returns their number.
    pub(super) fn drop_orphans(&mut self, records: &mut [Record]) -> usize {
        let Some(running) = &mut self.running else {
            return 0;
        };
        let before = running.ends.len();
        running.ends.retain(|_, end| {
            let record = &mut records[end.connection];
            let is_orphan = record.outcomes[1 - end.side].is_some();
            if is_orphan {
                record.outcomes[end.side] = Some(Outcome::Orphan);
            }
            !is_orphan
        });
        before - running.ends.len()
    }
}

impl Stage {
    /// Moves the queue pair to the error state, so that all requests complete. Returns false if there is none to wait for.
    fn stop(&mut self, reason: &str) -> bool {
        let (stopped, queues) = match self {
            Self::Resolving | Self::Connecting(..) => return false,
            Self::Accepting(qp, queues) => (qp.to_error(), queues),
            Self::Up(connection, queues) => (connection.qp_mut().to_error(), queues),
        };
        queues.stop(reason);
        stopped.is_ok()
    }

    /// Why the end has stopped, once all of its requests have completed: a message may be visible after the event of its
    /// connection's end.
    fn end_reason(&self) -> Option<String> {
        let (qp, queues) = match self {
            Self::Resolving | Self::Connecting(..) => return None,
            Self::Accepting(qp, queues) => (qp, queues),
            Self::Up(connection, queues) => (connection.qp(), queues),
        };
        let in_flight = qp.send_queue().in_flight() + qp.receive_queue().in_flight();
        queues.stopped.clone().filter(|_| in_flight == 0)
    }

    fn poll(
        &mut self,
        record: &mut Record,
        messages: usize,
    ) -> Result<Option<verbs::WcStatus>, Violation> {
        match self {
            Self::Resolving => Ok(None),
            Self::Connecting(qp, queues) => queues.poll(qp, record, messages),
            Self::Accepting(qp, queues) => queues.poll(qp, record, messages),
            Self::Up(connection, queues) => queues.poll(connection.qp_mut(), record, messages),
        }
    }
}

impl Running {
    /// Takes completions, sends, and disconnects complete connections.
    fn poll(&mut self, messages: usize, records: &mut [Record]) -> Result<(), Violation> {
        let (mut failed, mut ended) = (Vec::new(), Vec::new());
        for (key, end) in &mut self.ends {
            let record = &mut records[end.connection];
            if let Some(status) = end.stage.poll(record, messages)? {
                failed.push((*key, format!("{status:?}")));
                continue;
            }
            if let Some(reason) = end.stage.end_reason() {
                ended.push((*key, reason));
            }
            let Stage::Up(connection, queues) = &mut end.stage else {
                continue;
            };
            if queues.stopped.is_some() {
                continue;
            }
            let sent = queues.send(connection, record, messages);
            if let Err(error) = sent {
                failed.push((*key, error.to_string()));
            } else if queues.side == 0 && !queues.is_closing && queues.is_complete(record, messages)
            {
                queues.is_closing = true;
                connection.disconnect().map_err(|error| error.to_string())?;
            }
        }
        for (key, reason) in ended {
            self.end(key, &reason, messages, records);
        }
        for (key, error) in failed {
            self.stop(key, &error, messages, records)?;
        }
        Ok(())
    }

    /// Ends an end once all of its requests have completed.
    fn stop(
        &mut self,
        key: Key,
        reason: &str,
        messages: usize,
        records: &mut [Record],
    ) -> Result<(), Violation> {
        let Some(end) = self.ends.get_mut(&key) else {
            return Ok(());
        };
        let waits = end.stage.stop(reason);
        end.stage.poll(&mut records[end.connection], messages)?;
        if !waits || end.stage.end_reason().is_some() {
            self.end(key, reason, messages, records);
        }
        Ok(())
    }

    /// Ends an end: completely, if all messages were received, or else with an error.
    fn end(&mut self, key: Key, error: &str, messages: usize, records: &mut [Record]) {
        if let Some(end) = self.ends.remove(&key) {
            let record = &mut records[end.connection];
            record.outcomes[end.side] = Some(if record.received[end.side] == messages {
                Outcome::Complete
            } else {
                Outcome::Failed(error.to_owned())
            });
        }
    }

    fn handle(
        &mut self,
        event: Event,
        schedule: &Schedule,
        records: &mut [Record],
    ) -> Result<(), Violation> {
        let messages = schedule.messages;
        match event {
            Event::AddrResolved(id) => {
                let key = id.key();
                if let Err(refused) = id.resolve_route(RESOLVE_TIMEOUT) {
                    self.end(key, &refused.error.to_string(), messages, records);
                }
            }
            Event::RouteResolved(id) => {
                let key = id.key();
                if let Err(error) = self.request(id, messages) {
                    self.end(key, &error.to_string(), messages, records);
                }
            }
            Event::ConnectRequest(request) => self.accept(request, schedule, records)?,
            Event::ConnectResponse(response) => {
                let key = response.id().key();
                if let Err(error) = self.establish(response) {
                    self.end(key, &error.to_string(), messages, records);
                }
            }
            Event::Established(id) => self.established(id)?,
            Event::AddrError { id, error } => {
                self.end(id.key(), &error.to_string(), messages, records)
            }
            Event::RouteError { id, error } => {
                self.end(id.key(), &error.to_string(), messages, records)
            }
            Event::ConnectFailed { id, failure } => {
                self.stop(id.key(), &failure.to_string(), messages, records)?;
            }
            Event::Disconnected { key, .. } => {
                self.stop(key, "disconnected", messages, records)?;
            }
            Event::TimewaitExit(_) => {}
            other => return Err(format!("an unexpected event: {other:?}")),
        }
        Ok(())
    }

    /// Sends the request of an active side.
    fn request(&mut self, id: CmId<RouteResolved>, messages: usize) -> verbs::Result<()> {
        let Some(end) = self.ends.get_mut(&id.key()) else {
            return Ok(());
        };
        let (queues, qp) = Queues::new(&id, (end.connection, 0), messages)?;
        let number = u8::try_from(end.connection).unwrap_or(0);
        id.connect(&qp, &ConnParam::new().private_data([number]))?;
        end.stage = Stage::Connecting(qp, queues);
        Ok(())
    }

    fn accept(
        &mut self,
        request: ConnectRequest,
        schedule: &Schedule,
        records: &mut [Record],
    ) -> Result<(), Violation> {
        let number = request
            .param()
            .private_data
            .first()
            .map(|number| usize::from(*number));
        let Some((number, record)) =
            number.and_then(|number| Some((number, records.get_mut(number)?)))
        else {
            return Err(format!("a request of no connection: {request:?}"));
        };
        let key = request.id().key();
        let is_live = |end: &End| (end.connection, end.side) == (number, 1);
        let is_repeated = self.ends.values().any(is_live);
        if is_repeated || (schedule.is_gentle() && record.outcomes[1].is_some()) {
            return Err(format!("a second request of connection {number}"));
        }
        if record.outcomes[1].is_some() {
            // A late copy of a request, of which a restarted host knows nothing. The drop rejects it.
            return Ok(());
        }
        let accepted = Queues::new(request.id(), (number, 1), schedule.messages)
            .and_then(|(queues, qp)| Ok((request.accept(qp, &ConnParam::new())?, queues)));
        match accepted {
            Ok((qp, queues)) => {
                let stage = Stage::Accepting(qp, queues);
                let end = End {
                    connection: number,
                    side: 1,
                    stage,
                };
                self.ends.insert(key, end);
            }
            Err(error) => record.outcomes[1] = Some(Outcome::Failed(error.to_string())),
        }
        Ok(())
    }

    /// Completes the connection of an active side.
    fn establish(&mut self, response: ConnectResponse) -> verbs::Result<()> {
        let key = response.id().key();
        let Some(end) = self.ends.get_mut(&key) else {
            return Ok(());
        };
        if let Stage::Connecting(qp, queues) = std::mem::replace(&mut end.stage, Stage::Resolving) {
            end.stage = Stage::Up(response.establish(qp)?, queues);
        }
        Ok(())
    }

    /// Completes the connection of a passive side.
    fn established(&mut self, id: CmId<Connected>) -> Result<(), Violation> {
        let Some(end) = self.ends.get_mut(&id.key()) else {
            return Ok(());
        };
        if let Stage::Accepting(qp, queues) = std::mem::replace(&mut end.stage, Stage::Resolving) {
            let connection =
                Connection::new(id, qp).map_err(|refused| refused.error.to_string())?;
            end.stage = Stage::Up(connection, queues);
        }
        Ok(())
    }
}
