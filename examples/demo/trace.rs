//! The lines of two programs and the frames between them, in the order of their times.

use std::{
    fmt, io,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use softnic::{Fabric, Host, RecordedFrame, cm::Message, wire::Frame};

/// Name and address of each host.
pub const HOSTS: [(char, [u8; 4]); 2] = [('a', [10, 9, 0, 1]), ('b', [10, 9, 0, 2])];

/// A recording fabric with two hosts, and the lines printed by their programs.
///
/// Displays a line for each printed line, such as `a: listening on port 7471.`, and for each frame, such as
/// `b > a: RC SEND Only, PSN 7, 1024 bytes`.
#[derive(Debug)]
pub struct Trace {
    fabric: Fabric,
    lines: Mutex<Vec<(Duration, String)>>,
}

impl Trace {
    /// Creates the fabric. Each frame is lost with probability `loss`.
    pub fn new(loss: f64) -> Self {
        // The completion threads of both programs own their completion queues until the process ends.
        let fabric = Fabric::seeded(1).loss(loss).record().keep_objects();
        Self {
            fabric,
            lines: Mutex::default(),
        }
    }

    /// Adds the hosts, in the order of [`HOSTS`].
    pub fn hosts(&self) -> [Host; 2] {
        HOSTS.map(|(_, addr)| self.fabric.host(addr.into()))
    }

    /// Adds a line printed on the host with this name.
    pub fn line(&self, host: char, line: &str) {
        let line = (self.fabric.now(), format!("{host}: {line}"));
        self.lines().push(line);
    }

    fn lines(&self) -> MutexGuard<'_, Vec<(Duration, String)>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all lines and frames.
    ///
    /// # Errors
    /// As for [`io::Write::write_all`].
    pub fn write_to(&self, out: &mut impl io::Write) -> io::Result<()> {
        let frames = self.fabric.recorded_frames()?;
        let frames = frames.iter().map(|frame| (frame.at, describe(frame)));
        // A frame departs before any line about its arrival. The sort keeps the order of equal times.
        let mut all: Vec<_> = frames.chain(self.lines().iter().cloned()).collect();
        all.sort_by_key(|(at, _)| *at);
        all.iter().try_for_each(|(_, line)| writeln!(out, "{line}"))
    }
}

fn describe(frame: &RecordedFrame) -> String {
    match frame.decode() {
        Ok(frame) => Arrow(frame).to_string(),
        Err(error) => format!("? > ?: {error}"),
    }
}

/// One frame's line.
struct Arrow<'a>(Frame<'a>);

impl fmt::Display for Arrow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Frame {
            ip, bth, payload, ..
        } = &self.0;
        let (from, to) = (name(ip.src()), name(ip.dst()));
        let len = payload.len();
        write!(f, "{from} > {to}: {}, PSN {}", bth.opcode, bth.psn)?;
        if len > 0 {
            write!(f, ", {len} bytes")?;
        }
        match Message::decode(payload) {
            Some((_, message)) => write!(f, ", {}", meaning(&message)),
            None => Ok(()),
        }
    }
}

/// Name of the host with an address.
fn name(addr: IpAddr) -> char {
    HOSTS
        .into_iter()
        .find(|(_, of)| addr == IpAddr::from(*of))
        .map_or('?', |(name, _)| name)
}

/// The connection manager's message in words.
fn meaning(message: &Message) -> &'static str {
    match message {
        Message::Request(_) => "connection request (REQ)",
        Message::Mra(_) => "answer takes longer (MRA)",
        Message::Reject(_) => "rejection (REJ)",
        Message::Reply(_) => "acceptance (REP)",
        Message::Ready(_) => "ready to use (RTU)",
        Message::Disconnect(..) => "disconnect request (DREQ)",
        Message::Disconnected(_) => "disconnect reply (DREP)",
        Message::ServiceRequest(_) => "service request (SIDR REQ)",
        Message::ServiceReply(_) => "service reply (SIDR REP)",
    }
}
