//! Name lookup: `rdma_getaddrinfo`.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    net::Ipv6Addr,
    ptr::{self, NonNull},
};

use ibverbs_sys::ibv_qp_type;
use rdmacm_sys as ffi;
use verbs::{Error, Result, device::check_environment};

use crate::{
    addr::{self, Addr, RawAddr},
    port_space::PortSpace,
};

const CALL: &str = "rdma_getaddrinfo";

/// Hints for an address lookup.
///
/// # Examples
/// ```no_run
/// use cm::{AddrHints, PortSpace};
/// let found = AddrHints::new()
///     .port_space(PortSpace::Tcp)
///     .lookup(Some("server.example"), Some("7471"))?;
/// for info in found {
///     println!("{:?} from {:?}", info.destination, info.source);
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [rdma_getaddrinfo(3)](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html)
#[doc(alias = "rdma_addrinfo")]
#[derive(Clone, Debug, Default)]
#[must_use = "call `lookup`"]
pub struct AddrHints {
    flags: c_int,
    family: c_int,
    space: Option<PortSpace>,
    source: Option<Addr>,
}

/// A resolved address with the corresponding hints.
#[doc(alias = "rdma_addrinfo")]
#[doc(alias = "rdma_freeaddrinfo")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfo {
    /// Whether the address is for listening.
    pub passive: bool,
    /// The port space. `None` if unknown to this crate.
    pub port_space: Option<PortSpace>,
    /// Whether the address is for datagrams.
    pub datagram: bool,
    /// The local address, for a passive lookup or if set by a hint.
    pub source: Option<Addr>,
    /// The peer's address.
    pub destination: Option<Addr>,
    /// Canonical name of the local address.
    pub source_name: Option<String>,
    /// Canonical name of the peer's address.
    pub destination_name: Option<String>,
    /// The route, if resolved by a system service: an array of `ibv_path_data`.
    pub route: Vec<u8>,
    /// Header required at the start of a request's private data.
    pub connect: Vec<u8>,
}

impl AddrHints {
    /// Creates hints for an address to connect to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks up an address to listen on (`RAI_PASSIVE`).
    #[doc(alias = "RAI_PASSIVE")]
    pub fn passive(mut self) -> Self {
        self.flags |= ffi::RAI_PASSIVE;
        self
    }

    /// The node is a numeric address: no name service is queried (`RAI_NUMERICHOST`).
    #[doc(alias = "RAI_NUMERICHOST")]
    pub fn numeric_host(mut self) -> Self {
        self.flags |= ffi::RAI_NUMERICHOST;
        self
    }

    /// Omits the resolution of the route (`RAI_NOROUTE`).
    #[doc(alias = "RAI_NOROUTE")]
    pub fn no_route(mut self) -> Self {
        self.flags |= ffi::RAI_NOROUTE;
        self
    }

    /// Looks up the records of a service at the subnet administrator instead of a name (`RAI_SA`): InfiniBand only,
    /// without a node, with a name or an ID as the service.
    #[doc(alias = "RAI_SA")]
    pub fn service_record(mut self) -> Self {
        self.flags |= ffi::RAI_SA;
        self
    }

    /// IPv4 only (`RAI_FAMILY`).
    #[doc(alias = "RAI_FAMILY")]
    pub fn ipv4(self) -> Self {
        self.family(libc::AF_INET)
    }

    /// IPv6 only (`RAI_FAMILY`).
    #[doc(alias = "RAI_FAMILY")]
    pub fn ipv6(self) -> Self {
        self.family(libc::AF_INET6)
    }

    /// Looks up an InfiniBand address (`RAI_FAMILY` with `AF_IB`, and `RAI_NUMERICHOST`): the node is a GID
    /// in the notation of IPv6 addresses. For listening, an absent node is the wildcard.
    #[doc(alias = "RAI_FAMILY")]
    #[doc(alias = "AF_IB")]
    pub fn infiniband(self) -> Self {
        self.numeric_host().family(ffi::AF_IB)
    }

    fn family(mut self, family: c_int) -> Self {
        self.flags |= ffi::RAI_FAMILY;
        self.family = family;
        self
    }

    /// Looks up addresses for identifiers of this port space.
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = Some(space);
        self
    }

    /// Sets the local address to connect from.
    pub fn source(mut self, source: impl Into<Addr>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// `rdma_getaddrinfo`—Looks up a node and a service, each by name or number. Blocks until the name
    /// service answers.
    ///
    /// # Errors
    /// - `InvalidInput`: a name with a zero byte; neither node nor service; a port above 65535; or,
    ///   for [InfiniBand](Self::infiniband), a node other than a GID.
    /// - `EOPNOTSUPP`: a [service record](Self::service_record) with a library before rdma-core 60.
    /// - `NotFound`: the name is unknown, with the message of `getaddrinfo(3)`.
    /// - Any other error of the system.
    ///
    /// # References
    /// [rdma_getaddrinfo(3)](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html)
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn lookup(&self, node: Option<&str>, service: Option<&str>) -> Result<Vec<AddrInfo>> {
        let detail = || format!("{}:{}", node.unwrap_or("*"), service.unwrap_or("*"));
        if node.is_none() && service.is_none() {
            let reason = "neither node nor service";
            return Err(Error::refused(CALL, io::ErrorKind::InvalidInput, reason));
        }
        // An older library ignores the flag, and would look up a name.
        if self.flags & ffi::RAI_SA != 0 && ffi::late::rdma_resolve_addrinfo().is_none() {
            return Err(Error::from_errno(CALL, libc::EOPNOTSUPP)
                .detail(detail())
                .hint("service records need rdma-core 60 or later"));
        }
        if self.flags & ffi::RAI_SA == 0 && service.is_some_and(is_beyond_ports) {
            let reason = "the port is above 65535";
            return Err(Error::refused(CALL, io::ErrorKind::InvalidInput, reason).detail(detail()));
        }
        // The wildcard address; librdmacm would use the wrong family.
        let any = self.family == ffi::AF_IB && self.flags & ffi::RAI_PASSIVE != 0;
        let node = node.or(any.then_some("::"));
        // librdmacm treats every result as an IPv6 address, but an IPv4 one is shorter.
        let is_gid = node.is_some_and(|node| node.parse::<Ipv6Addr>().is_ok());
        if self.family == ffi::AF_IB && !is_gid {
            let reason = "the node is no GID";
            return Err(Error::refused(CALL, io::ErrorKind::InvalidInput, reason).detail(detail()));
        }
        let as_c = |name: Option<&str>| name.map(CString::new).transpose();
        let names = as_c(node).and_then(|node| Ok((node, as_c(service)?)));
        let (node, service) = names.map_err(|err| {
            Error::refused(CALL, io::ErrorKind::InvalidInput, err).detail(detail())
        })?;
        let mut source = self.source.map(RawAddr::new);
        let mut hints = ffi::rdma_addrinfo::zeroed();
        hints.ai_flags = self.flags;
        hints.ai_family = self.family;
        // Zeros select the library's defaults, TCP and RC.
        hints.ai_port_space = as_int(self.space.unwrap_or_default().to_raw().0);
        hints.ai_qp_type = as_int(match self.space {
            Some(PortSpace::Udp | PortSpace::IpoIb) => ibv_qp_type::IBV_QPT_UD.0,
            _ => ibv_qp_type::IBV_QPT_RC.0,
        });
        if let Some(source) = &mut source {
            hints.ai_src_addr = source.as_mut_ptr();
            hints.ai_src_len = source.len();
        }
        let name = |name: &Option<CString>| name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        let mut found = ptr::null_mut();
        // librdmacm may call libibverbs for the first time.
        check_environment("rdma_getaddrinfo")?;
        // SAFETY: the names are terminated, the hints are complete, and all outlive the call, which keeps no
        // pointer to them; `found` is valid for writes.
        let ret = unsafe {
            ffi::rdma_getaddrinfo(
                name(&node),
                name(&service),
                &raw const hints,
                &raw mut found,
            )
        };
        match (ret, NonNull::new(found)) {
            // SAFETY: the list is new, and exclusively owned.
            (0, Some(found)) => Ok(unsafe { RawAddrInfo(found).read() }),
            (0, None) => Ok(Vec::new()),
            (libc::EAI_SYSTEM | -1, _) => Err(Error::last_os(CALL).detail(detail())),
            (code, _) => {
                Err(Error::refused(CALL, io::ErrorKind::NotFound, reason(code)).detail(detail()))
            }
        }
    }
}

/// A list allocated by librdmacm.
struct RawAddrInfo(NonNull<ffi::rdma_addrinfo>);

impl RawAddrInfo {
    /// Copies the list.
    ///
    /// # Safety
    /// - The list is complete, and not changed during the call.
    unsafe fn read(self) -> Vec<AddrInfo> {
        let mut infos = Vec::new();
        let mut next = self.0.as_ptr();
        while !next.is_null() {
            // SAFETY: an entry of the list, as the caller promised.
            let raw = unsafe { &*next };
            // SAFETY: as above; each entry owns the memory referenced.
            infos.push(unsafe { read(raw) });
            next = raw.ai_next;
        }
        infos
    }
}

impl Drop for RawAddrInfo {
    fn drop(&mut self) {
        // SAFETY: the list was made by `rdma_getaddrinfo`, and is freed once, here.
        unsafe { ffi::rdma_freeaddrinfo(self.0.as_ptr()) };
    }
}

/// # Safety
/// - All pointers in `raw` are valid or null.
unsafe fn read(raw: &ffi::rdma_addrinfo) -> AddrInfo {
    let space = u32::try_from(raw.ai_port_space).unwrap_or(0);
    AddrInfo {
        passive: raw.ai_flags & ffi::RAI_PASSIVE != 0,
        port_space: PortSpace::from_raw(ffi::rdma_port_space(space)),
        datagram: raw.ai_qp_type == as_int(ibv_qp_type::IBV_QPT_UD.0),
        // SAFETY: as the caller promised.
        source: unsafe { read_addr(raw.ai_src_addr, raw.ai_src_len) },
        // SAFETY: as the caller promised.
        destination: unsafe { read_addr(raw.ai_dst_addr, raw.ai_dst_len) },
        // SAFETY: as the caller promised.
        source_name: unsafe { read_name(raw.ai_src_canonname) },
        // SAFETY: as the caller promised.
        destination_name: unsafe { read_name(raw.ai_dst_canonname) },
        // SAFETY: as the caller promised.
        route: unsafe { read_bytes(raw.ai_route, raw.ai_route_len) },
        // SAFETY: as the caller promised.
        connect: unsafe { read_bytes(raw.ai_connect, raw.ai_connect_len) },
    }
}

/// # Safety
/// - `addr` is null, or points to an address of `len` bytes.
unsafe fn read_addr(addr: *const libc::sockaddr, len: libc::socklen_t) -> Option<Addr> {
    if addr.is_null() {
        return None;
    }
    let mut storage = RawAddr::zeroed();
    let len = (len as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY: as the caller promised; the target has room for every address.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), storage.as_mut_ptr().cast(), len) };
    // SAFETY: a local `sockaddr_storage`, initialized in full.
    unsafe { addr::read(storage.as_mut_ptr().cast()) }
}

/// # Safety
/// - `name` is null, or terminated.
unsafe fn read_name(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller promised; the name is copied at once.
    let name = unsafe { CStr::from_ptr(name) };
    Some(name.to_string_lossy().into_owned())
}

/// # Safety
/// - `bytes` is null, or points to `len` readable bytes.
unsafe fn read_bytes(bytes: *const c_void, len: usize) -> Vec<u8> {
    if bytes.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promised; the bytes are copied at once.
    unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) }.to_vec()
}

/// Message of `getaddrinfo` for an error code.
fn reason(code: c_int) -> String {
    // SAFETY: the call accepts any number.
    let text = unsafe { libc::gai_strerror(code) };
    // SAFETY: the text is constant, and terminated.
    unsafe { read_name(text) }.unwrap_or_else(|| format!("code {code}"))
}

/// Whether a service is a number of which `getaddrinfo` would take the lowest 16 bits.
fn is_beyond_ports(service: &str) -> bool {
    let is_number = !service.is_empty() && service.bytes().all(|digit| digit.is_ascii_digit());
    is_number && service.parse::<u16>().is_err()
}

fn as_int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(0)
}
