//! Resources created once: the device, a completion queue, and the memory for all messages.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
};

use anyhow::{Context as _, anyhow, ensure};
use verbs::{
    CompletionQueue, Context, Gid, ProtectionDomain, RemoteAccess, RemoteRegion,
    ah::AddressVector,
    attr::{LinkLayer, OdpCaps, OdpGeneralCaps, OdpTransportCaps},
    mr::{Advice, Mapping},
    qp::{Psn, QpNum},
};

use super::{
    address::Address,
    options::{Extensions, Options},
    queue::AnyQueue,
    store::{AnyStore, Store},
};

/// Initial content of the memory.
const FILLING: u8 = 0x7b;

/// Value written by the client to the first byte of each page, for the server's check.
const MARK: u8 = 0;

/// Resources of one program.
#[derive(Debug)]
pub struct Setup<Q = CompletionQueue, M = RemoteRegion> {
    /// Protection domain of all resources.
    pub pd: ProtectionDomain,
    /// Completion queue of all requests.
    pub cq: Q,
    memory: M,
    header: usize,
    size: usize,
    lid: u16,
    gid: Gid,
    options: Options,
}

impl Setup {
    /// Opens the device, and allocates memory for messages of `size` bytes behind `header` bytes. The
    /// completion queue has room for the receives, and for one send on each of `qps` queue pairs.
    ///
    /// # Errors
    /// The device, port or GID index does not exist, or the device or the process is at a limit.
    pub fn new(options: &Options, size: u32, header: usize, qps: u32) -> anyhow::Result<Self> {
        let context = open(options)?;
        Self::plain(options, size, header, qps, &context, |pd, len| {
            Ok(pd.alloc_remote(len, RemoteAccess::empty())?)
        })
    }

    /// Creates the resources without a header, in memory with on-demand paging.
    ///
    /// # Errors
    /// The device does not support the capability `needed`; or as for [`new`](Self::new).
    pub fn on_demand(
        options: &Options,
        size: u32,
        qps: u32,
        needed: Needed,
    ) -> anyhow::Result<Self> {
        let context = open(options)?;
        needed.check(&context.query_device()?.odp_caps())?;
        Self::plain(options, size, 0, qps, &context, on_demand)
    }

    fn plain(
        options: &Options,
        size: u32,
        header: usize,
        qps: u32,
        context: &Context,
        allocate: impl FnOnce(&ProtectionDomain, usize) -> anyhow::Result<RemoteRegion>,
    ) -> anyhow::Result<Self> {
        let entries = options.rx_depth.saturating_add(qps);
        let mut cq = context.cq_builder(entries);
        if options.events {
            cq = cq.waitable();
        }
        let cq = cq.create()?;
        Self::make(options, size, header, context, cq, allocate)
    }
}

impl Setup<AnyQueue, AnyStore> {
    /// Creates the resources for one connection, with the selected extensions.
    ///
    /// # Errors
    /// The device does not support one of them; or as for [`new`](Setup::new).
    pub fn extended(options: &Options, size: u32, extensions: Extensions) -> anyhow::Result<Self> {
        let context = open(options)?;
        let attr = context.query_device()?;
        if extensions.on_demand() {
            Needed::Connected {
                all_memory: extensions.iodp,
            }
            .check(&attr.odp_caps())?;
        }
        let entries = options.rx_depth.saturating_add(1);
        let cq = match extensions.ts {
            true => AnyQueue::timed(&context, entries, options.events)?,
            false => AnyQueue::plain(&context, entries, options.events)?,
        };
        if extensions.dm {
            check_device_memory(attr.max_dm_size(), size)?;
        }
        let setup = Self::make(options, size, 0, &context, cq, |pd, len| {
            allocate(pd, len, extensions)
        })?;
        if extensions.prefetch {
            let advised = setup
                .pd
                .advise(&setup.buffer(), Advice::PREFETCH_WRITE, true);
            if let Err(err) = advised {
                println!("couldn't prefetch: {err}; continuing anyway");
            }
        }
        Ok(setup)
    }
}

/// Allocates memory of the selected kind.
fn allocate(pd: &ProtectionDomain, len: usize, with: Extensions) -> anyhow::Result<AnyStore> {
    let none = RemoteAccess::empty();
    if with.dm {
        let memory = pd.context().alloc_dm(len, 0)?;
        let region = pd.register_dm(&memory, 0..len, none)?;
        return Ok(AnyStore::Device(memory, region));
    }
    Ok(AnyStore::Host(if with.iodp {
        pd.register_everything()?.region(vec![0; len])?
    } else if with.odp {
        on_demand(pd, len)?
    } else {
        pd.alloc_remote(len, none)?
    }))
}

/// Size of a page of the machine, or a multiple of it, in bytes.
const PAGE: usize = 1 << 16;

/// Whole pages, as in the original.
fn on_demand(pd: &ProtectionDomain, len: usize) -> anyhow::Result<RemoteRegion> {
    let memory = Mapping::new(len.next_multiple_of(PAGE))?;
    let memory = pd.register(memory).on_demand();
    let region = memory.remote(RemoteAccess::empty()).create()?;
    Ok(region.slice(0..len))
}

/// Capability required for on-demand paging.
#[derive(Clone, Copy, Debug)]
pub enum Needed {
    /// Send and receive over reliable connections.
    Connected {
        /// Access to all memory, registered at once.
        all_memory: bool,
    },
    /// Send and receive with a shared receive queue.
    Shared,
    /// Send and receive over extended reliable connections.
    Extended,
}

impl Needed {
    fn check(self, caps: &OdpCaps) -> anyhow::Result<()> {
        let (has, receive, what) = match self {
            Self::Connected { .. } => (caps.rc, OdpTransportCaps::RECV, "RC send and receive"),
            Self::Shared => (
                caps.rc,
                OdpTransportCaps::SRQ_RECV,
                "RC send, receive and srq",
            ),
            Self::Extended => (
                caps.xrc,
                OdpTransportCaps::SRQ_RECV,
                "XRC send, receive and srq",
            ),
        };
        ensure!(
            caps.general.contains(OdpGeneralCaps::SUPPORT)
                && has.contains(OdpTransportCaps::SEND | receive),
            "the device isn't ODP capable or does not support {what} with ODP"
        );
        let all_memory = matches!(self, Self::Connected { all_memory: true });
        ensure!(
            !all_memory || caps.general.contains(OdpGeneralCaps::IMPLICIT),
            "the device doesn't support implicit ODP"
        );
        Ok(())
    }
}

/// Checks the size of the device's memory against the message size.
fn check_device_memory(has: u64, size: u32) -> anyhow::Result<()> {
    ensure!(has > 0, "device doesn't support dm allocation");
    ensure!(has >= size.into(), "device memory is insufficient");
    Ok(())
}

/// Opens the device selected by the options.
fn open(options: &Options) -> anyhow::Result<Context> {
    let devices = verbs::devices()?;
    let device = match &options.ib_dev {
        Some(name) => devices
            .by_name(name)
            .map_err(|err| anyhow!("IB device {name} not found: {err}"))?,
        None => devices.first().context("no IB devices found")?,
    };
    Ok(device.open()?)
}

impl<Q, M: Store> Setup<Q, M> {
    fn make(
        options: &Options,
        size: u32,
        header: usize,
        context: &Context,
        cq: Q,
        allocate: impl FnOnce(&ProtectionDomain, usize) -> anyhow::Result<M>,
    ) -> anyhow::Result<Self> {
        let (lid, gid) = local_address(context, options)?;
        let pd = context.alloc_pd()?;
        let size = usize::try_from(size)?;
        // As in the C programs, all receives and sends use the same bytes, so the region allows writes at any
        // time; but no peer can write without a receive.
        let mut memory = allocate(&pd, (header + size).max(1))?;
        memory.fill(&vec![FILLING; header + size])?;
        Ok(Self {
            pd,
            cq,
            memory,
            header,
            size,
            lid,
            gid,
            options: options.clone(),
        })
    }

    /// Source of each message.
    pub fn message(&self) -> M::Piece {
        self.memory.piece(self.header..self.header + self.size)
    }

    /// Destination of each message.
    pub fn buffer(&self) -> M::Piece {
        self.memory.piece(0..self.header + self.size)
    }

    /// Address of a local queue pair, with a random first packet sequence number.
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

    /// Route to a queue pair of the peer.
    ///
    /// # Errors
    /// The peer requires a GID, but no local GID was selected.
    pub fn address_vector(&self, remote: &Address) -> anyhow::Result<AddressVector> {
        let port = self.options.ib_port;
        let mut address_vector = if remote.has_gid() {
            let index = self
                .options
                .gid_idx
                .context("the peer has given a GID: give -g, too")?;
            AddressVector::global(port, index, remote.gid)
        } else {
            AddressVector::local(port, 0)
        };
        address_vector.dlid = remote.lid;
        address_vector.sl = self.options.sl;
        Ok(address_vector)
    }

    /// Writes the marks for the server's check; every later message carries them.
    ///
    /// # Errors
    /// Writing to the device's memory failed.
    pub fn mark(&mut self) -> verbs::Result<()> {
        let mut bytes = vec![FILLING; self.header + self.size];
        for start in self.page_starts() {
            bytes[start] = MARK;
        }
        self.memory.fill(&bytes)
    }

    /// Checks data received from a client with [marks](Self::mark).
    ///
    /// # Errors
    /// A mark is missing.
    pub fn check_marks(&self) -> anyhow::Result<()> {
        let mut bytes = vec![0; self.header + self.size];
        self.memory.content(&mut bytes)?;
        let mut wrong = 0;
        for (page, start) in self.page_starts().enumerate() {
            if bytes[start] != MARK {
                println!("invalid data in page {page}");
                wrong += 1;
            }
        }
        ensure!(wrong == 0, "{wrong} pages have not been received correctly");
        Ok(())
    }

    /// Offset of the first byte of each page of the message.
    fn page_starts(&self) -> impl Iterator<Item = usize> + use<Q, M> {
        (self.header..self.header + self.size).step_by(page_size())
    }
}

/// Page size of this machine, from the auxiliary vector of the process.
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

/// LID of the port, and the GID at the selected index.
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
    fn missing_capability_is_reported_as_in_c() {
        let refused = |general, rc, needed: Needed| {
            let caps = OdpCaps {
                general,
                rc,
                ..OdpCaps::default()
            };
            needed.check(&caps).map_err(|err| err.to_string())
        };
        let (send, receive) = (OdpTransportCaps::SEND, OdpTransportCaps::RECV);
        let (some, all) = (OdpGeneralCaps::SUPPORT, OdpGeneralCaps::IMPLICIT);
        let [part, complete] = [false, true].map(|all_memory| Needed::Connected { all_memory });
        assert_eq!(refused(some, send | receive, part), Ok(()));
        assert_eq!(refused(some | all, send | receive, complete), Ok(()));
        let lacks = |what| {
            let lacks = "the device isn't ODP capable or does not support";
            Err(format!("{lacks} {what} with ODP"))
        };
        for (general, rc) in [(OdpGeneralCaps::empty(), send | receive), (some, send)] {
            assert_eq!(refused(general, rc, part), lacks("RC send and receive"));
        }
        let implicit = "the device doesn't support implicit ODP";
        assert_eq!(
            refused(some, send | receive, complete),
            Err(implicit.to_owned())
        );
        let shared = send | OdpTransportCaps::SRQ_RECV;
        assert_eq!(refused(some, shared, Needed::Shared), Ok(()));
        assert_eq!(
            refused(some, send | receive, Needed::Shared),
            lacks("RC send, receive and srq")
        );
        assert_eq!(
            refused(some, shared, Needed::Extended),
            lacks("XRC send, receive and srq"),
            "it says so of XRC elsewhere"
        );

        let refused = |has| check_device_memory(has, 4096).map_err(|err| err.to_string());
        let (none, little) = (
            "device doesn't support dm allocation",
            "device memory is insufficient",
        );
        assert_eq!(refused(0), Err(none.to_owned()));
        assert_eq!(
            (refused(4095), refused(4096)),
            (Err(little.to_owned()), Ok(()))
        );
    }

    #[test]
    fn page_size_is_plausible() {
        let size = page_size();
        assert!(
            size.is_power_of_two() && (4096..=1 << 20).contains(&size),
            "{size}"
        );
    }
}
