//! The client: all connections complete one step before any starts the next.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of a program for the terminal"
)]

use std::collections::HashMap;

use anyhow::ensure;
use cm::{
    Addr, AddrHints, CmId, ConnParam, Connection, Event, EventChannel, Key,
    phases::{AddrResolved, Connected, IdPhase, Idle, RouteResolved},
};
use examples::cm_tool::{
    address::{self, Target},
    failure::Failure,
};
use verbs::{Init, QueuePair};

use crate::{
    Options, qp,
    timing::{Clock, Step, Taken, table},
};

/// Creates and ends all connections, and prints the duration of each step.
///
/// # Errors
/// A connection could not be established.
pub(crate) fn run(options: &Options, server: &str) -> anyhow::Result<()> {
    let bind = options.bind.as_deref();
    let target = address::to_connect(&AddrHints::new(), bind, server, &options.port)?;
    let mut caller = Caller {
        options,
        target,
        channel: EventChannel::new()?,
        steps: Vec::new(),
        failed: 0,
    };
    let mut ids = caller.create_ids()?;
    if let Some(from) = caller.target.from {
        caller.bind(&mut ids, from)?;
    }
    let ids = caller.resolve_addr(ids)?;
    let ids = caller.resolve_route(ids)?;
    let calls = caller.create_qps(ids)?;
    let connections = caller.connect(calls)?;
    let ids = caller.disconnect(connections)?;
    caller.destroy(ids);
    println!("{}", table(&caller.steps, options.connections).trim_end());
    ensure!(
        caller.failed == 0,
        "{} of {} connections have failed",
        caller.failed,
        options.connections
    );
    Ok(())
}

struct Caller<'a> {
    options: &'a Options,
    target: Target,
    channel: EventChannel,
    steps: Vec<Taken>,
    failed: u32,
}

/// All connections and the state of the run.
struct Call {
    id: CmId<RouteResolved>,
    qp: QueuePair<verbs::Rc, Init>,
}

impl Caller<'_> {
    fn create_ids(&mut self) -> anyhow::Result<Vec<CmId<Idle>>> {
        println!("creating id");
        let mut clock = Clock::start(Step::CreateId);
        let mut ids = Vec::new();
        for number in 0..self.options.connections {
            clock.begin(number);
            ids.push(self.channel.create_id()?);
            clock.end(&number);
        }
        self.steps.push(clock.stop());
        Ok(ids)
    }

    fn bind(&mut self, ids: &mut [CmId<Idle>], from: Addr) -> anyhow::Result<()> {
        println!("binding source address");
        let mut clock = Clock::start(Step::Bind);
        for id in ids {
            clock.begin(id.key());
            id.bind(from)?;
            clock.end(&id.key());
        }
        self.steps.push(clock.stop());
        Ok(())
    }

    fn resolve_addr(&mut self, ids: Vec<CmId<Idle>>) -> anyhow::Result<Vec<CmId<AddrResolved>>> {
        println!("resolving address");
        let (Target { from, to, .. }, timeout) = (self.target.clone(), self.options.timeout);
        self.resolve(
            Step::ResolveAddr,
            ids,
            |id| Ok(id.resolve_addr(from, to, timeout)?),
            |event| match event {
                Event::AddrResolved(id) => Some(Ok(id)),
                Event::AddrError { id, error } => Some(Err((id, Failure::of_addr(&error)))),
                _ => None,
            },
        )
    }

    fn resolve_route(
        &mut self,
        ids: Vec<CmId<AddrResolved>>,
    ) -> anyhow::Result<Vec<CmId<RouteResolved>>> {
        println!("resolving route");
        let timeout = self.options.timeout;
        self.resolve(
            Step::ResolveRoute,
            ids,
            |id| Ok(id.resolve_route(timeout)?),
            |event| match event {
                Event::RouteResolved(id) => Some(Ok(id)),
                Event::RouteError { id, error } => Some(Err((id, Failure::of_route(&error)))),
                _ => None,
            },
        )
    }

    /// Starts an asynchronous step on each identifier, with retries, and waits for all results.
    fn resolve<From: IdPhase, To: IdPhase>(
        &mut self,
        step: Step,
        ids: Vec<CmId<From>>,
        ask: impl Fn(CmId<From>) -> anyhow::Result<()>,
        answer: impl Fn(Event) -> Option<Result<CmId<To>, (CmId<From>, Failure)>>,
    ) -> anyhow::Result<Vec<CmId<To>>> {
        let mut clock = Clock::start(step);
        let mut retries = Retries::new(self.options.retries);
        let mut remaining = ids.len();
        let mut resolved = Vec::with_capacity(remaining);
        for id in ids {
            clock.begin(id.key());
            ask(id)?;
        }
        while remaining > 0 {
            match answer(self.channel.wait()?) {
                Some(Ok(id)) => {
                    clock.end(&id.key());
                    resolved.push(id);
                    remaining -= 1;
                }
                Some(Err((id, _))) if retries.take(id.key()) => ask(id)?,
                Some(Err((_, failure))) => {
                    self.fail(failure);
                    remaining -= 1;
                }
                None => {}
            }
        }
        self.steps.push(clock.stop());
        Ok(resolved)
    }

    fn create_qps(&mut self, ids: Vec<CmId<RouteResolved>>) -> anyhow::Result<Vec<Call>> {
        println!("creating qp");
        let mut clock = Clock::start(Step::CreateQp);
        let mut shared = None;
        let mut calls = Vec::with_capacity(ids.len());
        for id in ids {
            clock.begin(id.key());
            let qp = qp::create(&mut shared, &id)?;
            clock.end(&id.key());
            calls.push(Call { id, qp });
        }
        self.steps.push(clock.stop());
        Ok(calls)
    }

    fn connect(&mut self, calls: Vec<Call>) -> anyhow::Result<Vec<Connection>> {
        println!("connecting");
        let param = ConnParam::zeroed()
            .responder_resources(1)
            .initiator_depth(1)
            .retry_count(self.options.retries)
            .private_data(self.target.connect.clone());
        let mut clock = Clock::start(Step::Connect);
        let mut remaining = calls.len();
        let mut requests = HashMap::with_capacity(remaining);
        let mut connections = Vec::with_capacity(remaining);
        for Call { id, qp } in calls {
            let key = id.key();
            clock.begin(key);
            id.connect(&qp, &param)?;
            requests.insert(key, qp);
            // Finish connections already established; the server would wait for them otherwise.
            while let Some(event) = self.channel.try_next()? {
                remaining -= self.on_answer(event, &mut requests, &mut connections, &mut clock)?;
            }
        }
        while remaining > 0 {
            let event = self.channel.wait()?;
            remaining -= self.on_answer(event, &mut requests, &mut connections, &mut clock)?;
        }
        self.steps.push(clock.stop());
        Ok(connections)
    }

    /// Returns the number of connections answered by this event.
    fn on_answer(
        &mut self,
        event: Event,
        requests: &mut HashMap<Key, QueuePair<verbs::Rc, Init>>,
        connections: &mut Vec<Connection>,
        clock: &mut Clock<Key>,
    ) -> anyhow::Result<usize> {
        match event {
            Event::ConnectResponse(response) => {
                let key = response.id().key();
                if let Some(qp) = requests.remove(&key) {
                    connections.push(response.establish(qp)?);
                    clock.end(&key);
                }
                Ok(1)
            }
            Event::ConnectFailed { failure, .. } => {
                self.fail(Failure::from(&failure));
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    fn disconnect(&mut self, connections: Vec<Connection>) -> anyhow::Result<Vec<CmId<Connected>>> {
        println!("disconnecting");
        let mut clock = Clock::start(Step::Disconnect);
        let mut remaining = connections.len();
        let mut ids = Vec::with_capacity(remaining);
        for mut connection in connections {
            clock.begin(connection.key());
            qp::unless_ended(connection.disconnect())?;
            let (qp, id) = connection.into_parts();
            drop(qp);
            ids.push(id);
        }
        while remaining > 0 {
            if let Event::Disconnected { key, .. } = self.channel.wait()? {
                clock.end(&key);
                remaining -= 1;
            }
        }
        self.steps.push(clock.stop());
        Ok(ids)
    }

    fn destroy(&mut self, ids: Vec<CmId<Connected>>) {
        println!("destroying id");
        let mut clock = Clock::start(Step::Destroy);
        for id in ids {
            let key = id.key();
            clock.begin(key);
            drop(id);
            clock.end(&key);
        }
        self.steps.push(clock.stop());
    }

    fn fail(&mut self, failure: Failure) {
        eprintln!("{failure}");
        self.failed += 1;
    }
}

/// Remaining retries of each connection.
struct Retries {
    each: u8,
    accepted: HashMap<Key, u8>,
}

impl Retries {
    fn new(each: u8) -> Self {
        Self {
            each,
            accepted: HashMap::new(),
        }
    }

    /// Takes one retry; false if none is left.
    fn take(&mut self, key: Key) -> bool {
        let accepted = self.accepted.entry(key).or_default();
        let more = *accepted < self.each;
        *accepted += u8::from(more);
        more
    }
}
