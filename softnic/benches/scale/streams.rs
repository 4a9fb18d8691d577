//! Streams that each send a message once a second.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rsocket::{EventSet, Family, PollEvents, Registration, Socket};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use softnic::Host;

use crate::{Result, any_port, hosts};

pub(crate) const MESSAGE: usize = 64;
const PERIOD: Duration = Duration::from_secs(1);
const PERIODS: u32 = 5;
/// Names of the listener in the server's set; streams have the numbers from 0 on.
const LISTENER: u64 = u64::MAX;
const EVENTS: usize = 256;
const READ: Registration = Registration {
    events: PollEvents::IN,
    once: false,
    edge: false,
    data: 0,
};

/// Streams set up per second, and the 99th percentile of the time from the due time of a message to its echo, in microseconds.
pub(crate) fn run(count: usize) -> Result<[f64; 2]> {
    use_one_processor()?;
    let (_fabric, [client, server]) = hosts();
    let addr = serve(&server)?;
    let start = Instant::now();
    let streams = client.run(|| Streams::connect(addr, count))?;
    let setup = start.elapsed().as_secs_f64();
    // The server accepts in order, and behind the client.
    client.run(|| streams.exchange(count - 1))?;
    let mut times = client.run(|| streams.echo())?;
    times.sort_unstable();
    let percentile = times[times.len() * 99 / 100];
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let rate = count as f64 / setup;
    Ok([rate, percentile.as_secs_f64() * 1e6])
}

/// Restricts this process to its first permitted processor.
fn use_one_processor() -> Result<()> {
    let permitted = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|&number| permitted.is_set(number));
    let mut one = CpuSet::new();
    one.set(first.ok_or("no processor")?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Starts a thread that echoes every message of every stream.
pub(crate) fn serve(host: &Host) -> Result<SocketAddr> {
    let listener = host.run(|| -> Result<_> {
        let listener = Arc::new(Socket::new(Family::V4)?);
        listener.bind(any_port(host))?;
        listener.listen(1024)?;
        listener.set_nonblocking(true);
        Ok(listener)
    })?;
    let addr = listener.local_addr()?;
    host.spawn(move || {
        let served = echo_all(&listener);
        served.expect("the streams stay connected until the process ends");
    });
    Ok(addr)
}

fn echo_all(listener: &Arc<Socket>) -> Result<()> {
    let set = EventSet::new()?;
    let acceptable = Registration {
        data: LISTENER,
        ..READ
    };
    set.add_socket(LISTENER, listener, acceptable)?;
    let mut streams: Vec<Arc<Socket>> = Vec::new();
    let mut message = [0; MESSAGE];
    loop {
        for event in set.wait(EVENTS, None)? {
            if event.data == LISTENER {
                let (stream, _) = listener.accept()?;
                let name = u64::try_from(streams.len())?;
                streams.push(Arc::new(stream));
                let stream = streams.last().ok_or("no stream")?;
                set.add_socket(name, stream, Registration { data: name, ..READ })?;
            } else {
                let stream = &streams[usize::try_from(event.data)?];
                let len = stream.recv(&mut message)?;
                stream.send(&message[..len])?;
            }
        }
    }
}

/// Connected streams, with a set of all.
pub(crate) struct Streams {
    pub(crate) all: Vec<Arc<Socket>>,
    set: EventSet,
}

impl Streams {
    pub(crate) fn connect(addr: SocketAddr, count: usize) -> Result<Self> {
        let set = EventSet::new()?;
        let mut all = Vec::with_capacity(count);
        for name in 0..u64::try_from(count)? {
            let stream = Arc::new(Socket::new(Family::V4)?);
            stream.connect(addr)?;
            set.add_socket(name, &stream, Registration { data: name, ..READ })?;
            all.push(stream);
        }
        Ok(Self { all, set })
    }

    /// Lets every stream send a message in each period, evenly spread. Times from the due time of each message to the end of
    /// its echo.
    fn echo(&self) -> Result<Vec<Duration>> {
        let count = u32::try_from(self.all.len())?;
        let total = count * PERIODS;
        let start = Instant::now();
        let send_time = |number: u32| start + PERIOD * number / count;
        let mut pending: HashMap<u64, Instant> = HashMap::new();
        let mut times = Vec::new();
        let mut sent = 0;
        while times.len() < usize::try_from(total)? {
            while sent < total && send_time(sent) <= Instant::now() {
                let name = sent % count;
                if pending.insert(name.into(), send_time(sent)).is_some() {
                    return Err("an echo took more than a period".into());
                }
                self.all[usize::try_from(name)?].send(&[1; MESSAGE])?;
                sent += 1;
            }
            let timeout =
                (sent < total).then(|| send_time(sent).saturating_duration_since(Instant::now()));
            for name in self.ready(timeout)? {
                self.take(name)?;
                let send_time = pending.remove(&name).ok_or("an echo that is not due")?;
                times.push(send_time.elapsed());
            }
        }
        Ok(times)
    }

    /// Names of the streams with an echo; none once `timeout` has elapsed.
    fn ready(&self, timeout: Option<Duration>) -> Result<Vec<u64>> {
        let events = self.set.wait(EVENTS, timeout)?;
        Ok(events.iter().map(|event| event.data).collect())
    }

    /// Receives a whole echo.
    fn take(&self, name: u64) -> Result<()> {
        let len = self.all[usize::try_from(name)?].recv(&mut [0; MESSAGE])?;
        if len == MESSAGE {
            Ok(())
        } else {
            Err(format!("an echo of {len} bytes").into())
        }
    }

    /// Sends a message on a stream, and waits for the echo by the set of all.
    pub(crate) fn exchange(&self, number: usize) -> Result<()> {
        self.all[number].send(&[1; MESSAGE])?;
        let ready = self.ready(None)?;
        let [name] = ready[..] else {
            return Err(format!("{} echoes of one message", ready.len()).into());
        };
        self.take(name)
    }
}
