//! What a program makes once: the device, a completion queue, and the memory that all messages are
//! sent from and arrive in.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
};

use anyhow::{Context as _, ensure};
use verbs::{
    AddressVector, Advice, CompletionQueue, Context, Gid, LinkLayer, OdpGeneralCaps,
    OdpTransportCaps, ProtectionDomain, Psn, QpNum, RemoteAccess, RemoteRegion,
};

use super::{address::Address, options::Options};

/// What the memory holds until something else is written there.
const FILLING: u8 = 0x7b;

/// What the client writes to the first byte of each page, for the server to check.
const MARK: u8 = 0;

/// See the module.
#[derive(Debug)]
pub struct Setup {
    /// The domain of everything.
    pub pd: ProtectionDomain,
    /// Where everything completes.
    pub cq: CompletionQueue,
    memory: RemoteRegion,
    header: usize,
    lid: u16,
    gid: Gid,
    options: Options,
}

impl Setup {
    /// Opens the device, and makes room for messages of `size` bytes that arrive behind `header`
    /// others. The completion queue serves the receives, and one send on each of `qps` queue pairs.
    ///
    /// # Errors
    /// There is no such device, port or entry of the GID table, or the device or the process is at
    /// a limit.
    pub fn new(options: &Options, size: u32, header: usize, qps: u32) -> anyhow::Result<Self> {
        Self::make(options, size, header, qps, |pd, len| {
            Ok(pd.alloc_remote(len, RemoteAccess::empty())?)
        })
    }

    /// Does so for one reliable connection, in memory whose pages the device fetches when it needs
    /// them; with `prefetch`, ahead of that.
    ///
    /// # Errors
    /// The device cannot do that; or as for [`new`](Self::new).
    pub fn on_demand(options: &Options, size: u32, prefetch: bool) -> anyhow::Result<Self> {
        Self::make(options, size, 0, 1, |pd, len| {
            let caps = pd.context().query_device()?.odp_caps();
            let needed = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
            ensure!(
                caps.general.contains(OdpGeneralCaps::SUPPORT) && caps.rc.contains(needed),
                "the device isn't ODP capable or does not support RC send and receive with ODP"
            );
            let memory = pd.register(vec![0; len]).on_demand();
            let memory = memory.remote(RemoteAccess::empty()).create()?;
            if prefetch {
                if let Err(err) = pd.advise(&memory, Advice::PREFETCH_WRITE, true) {
                    println!("couldn't prefetch: {err}; continuing anyway");
                }
            }
            Ok(memory)
        })
    }

    fn make(
        options: &Options,
        size: u32,
        header: usize,
        qps: u32,
        register: impl FnOnce(&ProtectionDomain, usize) -> anyhow::Result<RemoteRegion>,
    ) -> anyhow::Result<Self> {
        let devices = verbs::devices()?;
        let device = match &options.ib_dev {
            Some(name) => devices
                .find(name)
                .with_context(|| format!("IB device {name} not found"))?,
            None => devices.iter().next().context("no IB devices found")?,
        };
        let context = device.open()?;
        let (lid, gid) = local_address(&context, options)?;
        let pd = context.alloc_pd()?;
        let entries = options.rx_depth.saturating_add(qps);
        let mut cq = context.cq_builder(entries);
        if options.events {
            cq = cq.waitable();
        }
        let cq = cq.create()?;
        let len = header + usize::try_from(size)?;
        // As in the C programs, every receive and every send is over the same bytes, so they are
        // memory that anything may write at any time; but no peer can by itself.
        let memory = register(&pd, len.max(1))?;
        memory.write(0, &vec![FILLING; len]);
        let memory = memory.slice(0..len);
        Ok(Self {
            pd,
            cq,
            memory,
            header,
            lid,
            gid,
            options: options.clone(),
        })
    }

    /// What a message is sent from.
    pub fn message(&self) -> RemoteRegion {
        self.memory.slice(self.header..self.memory.len())
    }

    /// What a message arrives in.
    pub fn room(&self) -> RemoteRegion {
        self.memory.clone()
    }

    /// The address of a queue pair of this side. Its packets are counted from anywhere.
    pub fn address(&self, qpn: QpNum) -> Address {
        let random = RandomState::new().hash_one(qpn.get()).to_ne_bytes();
        let [a, b, c, d, ..] = random;
        Address {
            lid: self.lid,
            qpn,
            psn: Psn::from_low_bits(u32::from_ne_bytes([a, b, c, d])),
            gid: self.gid,
        }
    }

    /// The way to a queue pair of the peer.
    ///
    /// # Errors
    /// The peer wants to be reached by its GID, and this side has none to do it from.
    pub fn way(&self, remote: &Address) -> anyhow::Result<AddressVector> {
        let port = self.options.ib_port;
        let mut way = if remote.has_gid() {
            let index = self
                .options
                .gid_idx
                .context("the peer has given a GID: give -g, too")?;
            AddressVector::global(port, index, remote.gid)
        } else {
            AddressVector::local(port, 0)
        };
        way.dlid = remote.lid;
        way.sl = self.options.sl;
        Ok(way)
    }

    /// Prepares what the client sends first, and every message then carries on.
    pub fn mark(&self) {
        let message = self.message();
        for start in self.page_starts() {
            message.write(start, &[MARK]);
        }
    }

    /// Checks what has arrived from a client that has [marked](Self::mark) it.
    ///
    /// # Errors
    /// It is something else.
    pub fn check_marks(&self) -> anyhow::Result<()> {
        let message = self.message();
        let mut wrong = 0;
        for (page, start) in self.page_starts().enumerate() {
            let mut byte = [0];
            message.read(start, &mut byte);
            if byte != [MARK] {
                println!("invalid data in page {page}");
                wrong += 1;
            }
        }
        ensure!(
            wrong == 0,
            "{wrong} pages have not arrived as they were sent"
        );
        Ok(())
    }

    fn page_starts(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.message().len()).step_by(page_size())
    }
}

/// The size of a page of this machine, from the auxiliary vector of the process.
fn page_size() -> usize {
    const WORD: usize = size_of::<usize>();
    const AT_PAGESZ: usize = 6;
    let vector = fs::read("/proc/self/auxv").unwrap_or_default();
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
    let value = vector
        .chunks_exact(2 * WORD)
        .find(|entry| word(&entry[..WORD]) == AT_PAGESZ)
        .map(|entry| word(&entry[WORD..]));
    value.filter(|&size| size > 0).unwrap_or(4096)
}

/// The LID of the port, and the GID at the index that is asked for.
fn local_address(context: &Context, options: &Options) -> anyhow::Result<(u16, Gid)> {
    let port = options.ib_port;
    let attr = context.query_port(port).context("couldn't get port info")?;
    let lid = attr.lid();
    ensure!(
        attr.link_layer() == LinkLayer::ETHERNET || lid != 0,
        "couldn't get local LID"
    );
    let gid = match options.gid_idx {
        None => Gid::default(),
        Some(index) => context
            .query_gid(port, index.into())?
            .with_context(|| format!("the GID table of port {port} has nothing at {index}"))?,
    };
    Ok((lid, gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_size_is_a_plausible_one() {
        let size = page_size();
        assert!(
            size.is_power_of_two() && (4096..=1 << 20).contains(&size),
            "{size}"
        );
    }
}
