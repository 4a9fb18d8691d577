//! Every host of 100 connected with every host, and all sending to one.

use std::{collections::HashMap, fs, time::Instant};

use softnic::{Fabric, Faults};
use verbs::{Buf, attr::Mtu, op, qp::QpId};

use crate::{
    Result,
    end::{Connection, End, Returned},
};

const HOSTS: usize = 100;
/// Requests and receives of a queue pair in flight.
const DEPTH: u32 = 8;
/// Rounds of the incast. In each, every host but the first sends [`DEPTH`] messages.
const ROUNDS: u32 = 10;
const MESSAGE: usize = 4096;
const LOSS: f64 = 0.001;

pub(crate) struct Figures {
    pub(crate) setup_seconds: f64,
    /// Resident memory for each queue pair, of the device and of `verbs`.
    pub(crate) bytes: u64,
    pub(crate) incast_seconds: f64,
}

pub(crate) fn run() -> Result<Figures> {
    let before = resident_bytes()?;
    let start = Instant::now();
    let fabric = Fabric::seeded(1);
    let mut mesh = Mesh::new(&fabric)?;
    let setup_seconds = start.elapsed().as_secs_f64();
    let queue_pairs = u64::try_from(HOSTS * HOSTS)?;
    let bytes = resident_bytes()?.saturating_sub(before) / queue_pairs;
    fabric.set_faults(Faults {
        loss: LOSS,
        ..Faults::default()
    });
    let start = Instant::now();
    for round in 0..ROUNDS {
        mesh.incast(round)?;
    }
    let incast_seconds = start.elapsed().as_secs_f64();
    Ok(Figures {
        setup_seconds,
        bytes,
        incast_seconds,
    })
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> Result<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages
        .split_whitespace()
        .nth(1)
        .ok_or("no resident pages")?
        .parse()?;
    Ok(pages * u64::try_from(rustix::param::page_size())?)
}

/// A queue pair from every host to every host, itself included.
struct Mesh {
    /// By host, then by peer.
    qps: Vec<Vec<Connection>>,
    ends: Vec<End>,
    returned: Returned,
}

impl Mesh {
    fn new(fabric: &Fabric) -> Result<Self> {
        let entries = u32::try_from(HOSTS)? * DEPTH * 2;
        let ends = (0..HOSTS).map(|host| {
            let [high, low] = u16::try_from(host + 1)?.to_be_bytes();
            End::new(&fabric.host([10, 9, high, low].into()), entries)
        });
        let ends: Vec<End> = ends.collect::<Result<_>>()?;
        let created = ends.iter().map(|end| {
            let qps = (0..HOSTS).map(|_| end.create_qp(DEPTH));
            qps.collect::<Result<Vec<_>>>()
        });
        let created: Vec<_> = created.collect::<Result<_>>()?;
        let nums: Vec<Vec<_>> = created
            .iter()
            .map(|qps| qps.iter().map(|qp| qp.qp_num()).collect())
            .collect();
        let mut connected = Vec::with_capacity(HOSTS);
        for (host, qps) in created.into_iter().enumerate() {
            let qps = qps.into_iter().enumerate();
            let qps =
                qps.map(|(peer, qp)| End::connect(qp, (&ends[peer], nums[peer][host]), Mtu::B1024));
            connected.push(qps.collect::<Result<Vec<_>>>()?);
        }
        Ok(Self {
            qps: connected,
            ends,
            returned: Returned::default(),
        })
    }

    /// Lets every host send [`DEPTH`] messages to the first host, and checks their order and content.
    fn incast(&mut self, round: u32) -> Result<()> {
        for host in 1..HOSTS {
            for number in 0..DEPTH {
                let receive = self.ends[0].pd.alloc_buf(MESSAGE)?;
                let posted = self.qps[0][host].post_recv(receive);
                posted.map_err(|refused| refused.error)?;
                let mut message = self.ends[host].pd.alloc_buf(MESSAGE)?;
                message.fill(pattern(host, round * DEPTH + number));
                let send = op::Send::new(message);
                self.qps[host][0]
                    .post(send)
                    .map_err(|refused| refused.error)?;
            }
        }
        let peers: HashMap<QpId, usize> = (1..HOSTS)
            .map(|host| (self.qps[0][host].id(), host))
            .collect();
        let mut arrived = [0; HOSTS];
        let mut remaining = (HOSTS - 1) * 2 * usize::try_from(DEPTH)?;
        while remaining > 0 {
            for wc in self.ends[0].cq.poll()? {
                let host = peers[&wc.qp_id()];
                self.returned.take(&mut self.qps[0][host], wc)?;
                let message = self.returned.receives.pop().ok_or("no message")?;
                check(&message, pattern(host, round * DEPTH + arrived[host]))?;
                arrived[host] += 1;
                remaining -= 1;
            }
            for host in 1..HOSTS {
                for wc in self.ends[host].cq.poll()? {
                    self.returned.take(&mut self.qps[host][0], wc)?;
                    remaining -= 1;
                }
            }
            self.returned.sends.clear();
        }
        Ok(())
    }
}

/// The byte of which the `number`-th message of a host consists.
fn pattern(host: usize, number: u32) -> u8 {
    host.to_le_bytes()[0].wrapping_mul(31) ^ number.to_le_bytes()[0]
}

fn check(message: &Buf, byte: u8) -> Result<()> {
    if message.len() == MESSAGE && message.iter().all(|&one| one == byte) {
        Ok(())
    } else {
        Err(format!("a message without the bytes {byte:#x}").into())
    }
}
