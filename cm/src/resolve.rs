//! Binding and resolution: local device, peer address and route.

use std::{io, ptr, sync::Arc, time::Duration};

use rdmacm_sys as ffi;
use verbs::{
    Error, Result,
    error::{Refused, cvt_neg},
    hint::Addresses,
    panics::survive,
    signals::spawn_without_signals,
};

use crate::{
    addr::{Addr, RawAddr},
    addrinfo::{AddrHints, AddrInfo},
    id::CmId,
    phase::Phase,
    phases::{AddrResolved, Idle, Listening},
    posted::Posted,
    trace::note,
};

impl CmId<Idle> {
    /// `rdma_bind_addr`—Binds to a local address. Port 0 selects a free port, and an unspecified address all
    /// devices.
    ///
    /// # Errors
    /// - `EADDRINUSE`: another identifier uses the port.
    /// - `ENODEV`, `EADDRNOTAVAIL`: the address belongs to no RDMA device of this machine, or is an
    ///   [`IbAddr`](crate::IbAddr) on a device without InfiniBand.
    /// - `EACCES`: a port below 1024 needs privileges.
    ///
    /// # References
    /// [rdma_bind_addr(3)](https://man7.org/linux/man-pages/man3/rdma_bind_addr.3.html)
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&mut self, addr: impl Into<Addr>) -> Result<()> {
        let addr = addr.into();
        let mut raw = RawAddr::new(addr);
        // SAFETY: the identifier exists (invariant), and the address outlives the call. Assumption:
        // librdmacm copies its arguments before a call returns.
        let ret = unsafe { ffi::rdma_bind_addr(self.as_raw(), raw.as_mut_ptr()) };
        cvt_neg("rdma_bind_addr", ret)
            .map(drop)
            .map_err(|err| explain(err.detail(addr.to_string()), Some(addr), None, true))
    }

    /// `rdma_listen`—Listens for connection requests, with at most `backlog` pending. Each is delivered as
    /// [`Event::ConnectRequest`](crate::Event::ConnectRequest). An unbound identifier listens on all IPv4 addresses,
    /// at a free port.
    ///
    /// # Errors
    /// - `EADDRINUSE`: another listener has the address.
    ///
    /// # References
    /// [rdma_listen(3)](https://man7.org/linux/man-pages/man3/rdma_listen.3.html)
    #[doc(alias = "rdma_listen")]
    pub fn listen(self, backlog: u32) -> Result<CmId<Listening>, Refused<Self>> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // The phase is set first: a request may arrive before this call returns.
        let id = self.advance::<Listening>();
        // SAFETY: the identifier exists (invariant).
        let ret = unsafe { ffi::rdma_listen(id.as_raw(), backlog) };
        match cvt_neg("rdma_listen", ret) {
            Ok(_) => {
                note!(
                    debug,
                    id,
                    local = id.any_local_addr().map(tracing::field::display),
                    backlog,
                    "listening"
                );
                Ok(id)
            }
            Err(error) => {
                let local = id
                    .any_local_addr()
                    .map_or("not bound".to_owned(), |addr| addr.to_string());
                Err(Refused {
                    value: id.advance(),
                    error: error.detail(format!("{local}, backlog {backlog}")),
                })
            }
        }
    }

    /// Looks up a node and a service, each by name or number, without blocking the caller. The identifier returns
    /// with [`Event::AddrInfoResolved`](crate::Event::AddrInfoResolved) or
    /// [`Event::AddrInfoError`](crate::Event::AddrInfoError), in the same phase.
    ///
    /// Runs [`AddrHints::lookup`] on a new thread, with every version of librdmacm. `rdma_resolve_addrinfo` of C
    /// needs rdma-core 60 and a kernel with user events, and blocks its caller until the name service has answered.
    ///
    /// [`cancel`](crate::EventChannel::cancel) destroys the identifier, and suppresses the event. The thread ends once
    /// the name service has answered or timed out.
    ///
    /// # Errors
    /// On an error the identifier is returned in the error:
    /// - `EAGAIN`: no thread can be started.
    /// - `EMFILE`, `ENFILE`: too many open files.
    ///
    /// # Examples
    /// ```
    /// # let _fabric = doctest::host();
    /// use std::time::Duration;
    ///
    /// use cm::{AddrHints, Event, EventChannel};
    ///
    /// let channel = EventChannel::new()?;
    /// channel.create_id()?.resolve_addrinfo(&AddrHints::new(), Some("10.9.0.1"), Some("7471"))?;
    /// match channel.wait()? {
    ///     Event::AddrInfoResolved { id, found } => {
    ///         let server = found[0].destination.expect("an address to connect to");
    ///         id.resolve_addr(None, server, Duration::from_secs(2))?;
    ///     }
    ///     Event::AddrInfoError { error, .. } => return Err(error),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [rdma_getaddrinfo(3)](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html)
    #[doc(alias = "rdma_resolve_addrinfo")]
    #[doc(alias = "rdma_query_addrinfo")]
    pub fn resolve_addrinfo(
        self,
        hints: &AddrHints,
        node: Option<&str>,
        service: Option<&str>,
    ) -> Result<(), Refused<Self>> {
        if let Err(error) = self.raw().channel().enable_posting() {
            return Err(Refused { value: self, error });
        }
        let channel = Arc::downgrade(self.raw().channel());
        let (key, hints) = (self.key(), hints.clone());
        let (node, service) = (node.map(str::to_owned), service.map(str::to_owned));
        note!(debug, self, node, service, "looking up the name");
        self.start_with(Phase::ResolvingAddrInfo, "rdma_resolve_addrinfo", |_| {
            let look_up = move || {
                let found = looked_up(|| hints.lookup(node.as_deref(), service.as_deref()));
                // No event is read from a dropped channel.
                if let Some(channel) = channel.upgrade() {
                    channel.post(Posted::AddrInfo { key, found });
                }
            };
            let spawned = spawn_without_signals("rdma-addrinfo", look_up);
            spawned.map(drop).map_err(|err| {
                Error::from_errno("pthread_create", err.raw_os_error().unwrap_or(libc::EAGAIN))
            })
        })
    }

    /// `rdma_resolve_addr`—Resolves the device and the peer's hardware address, within `timeout`. The
    /// identifier returns with [`Event::AddrResolved`](crate::Event::AddrResolved) or
    /// [`Event::AddrError`](crate::Event::AddrError).
    ///
    /// # Errors
    /// On an error the identifier is returned in the error:
    /// - `ENETUNREACH`, `EHOSTUNREACH`: no route to the address.
    /// - `ENODEV`: the route goes through a device without RDMA.
    /// - `EINVAL`: the two addresses are of different families.
    ///
    /// # References
    /// [rdma_resolve_addr(3)](https://man7.org/linux/man-pages/man3/rdma_resolve_addr.3.html)
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr<A: Into<Addr>>(
        self,
        source: Option<A>,
        destination: A,
        timeout: Duration,
    ) -> Result<(), Refused<Self>> {
        let destination = destination.into();
        let source = source.map(Into::into);
        let mut raw_source = source.map(RawAddr::new);
        let mut raw_destination = RawAddr::new(destination);
        #[cfg(feature = "tracing")]
        self.span().set_peer(destination);
        note!(debug, self, "resolving the address");
        self.start(Phase::ResolvingAddr, "rdma_resolve_addr", |id| {
            let source = raw_source
                .as_mut()
                .map_or(ptr::null_mut(), RawAddr::as_mut_ptr);
            // SAFETY: the identifier exists: `start` holds the registry lock. The addresses outlive the call.
            // Assumption: librdmacm copies its arguments before a call returns.
            unsafe {
                ffi::rdma_resolve_addr(id, source, raw_destination.as_mut_ptr(), millis(timeout))
            }
        })
        .map_err(|refused| Refused {
            error: {
                let detail = match source {
                    Some(source) => format!("{destination}, from {source}"),
                    None => destination.to_string(),
                };
                explain(
                    refused.error.detail(detail),
                    source,
                    Some(destination),
                    true,
                )
            },
            value: refused.value,
        })
    }
}

impl CmId<AddrResolved> {
    /// `rdma_resolve_route`—Resolves the route to the peer, within `timeout`. The identifier returns with
    /// [`Event::RouteResolved`](crate::Event::RouteResolved) or
    /// [`Event::RouteError`](crate::Event::RouteError).
    ///
    /// # Errors
    /// On a failure to send the request, the identifier is returned in the error.
    ///
    /// # References
    /// [rdma_resolve_route(3)](https://man7.org/linux/man-pages/man3/rdma_resolve_route.3.html)
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(self, timeout: Duration) -> Result<(), Refused<Self>> {
        note!(debug, self, "resolving the route");
        self.start(Phase::ResolvingRoute, "rdma_resolve_route", |id| {
            // SAFETY: the identifier exists: `start` holds the registry lock.
            unsafe { ffi::rdma_resolve_route(id, millis(timeout)) }
        })
        .map_err(|refused| {
            let peer = refused.value.any_peer_addr();
            Refused {
                error: explain(refused.error, None, peer, false),
                value: refused.value,
            }
        })
    }
}

/// The result of a lookup in a thread. A panic is an error too: without an event, the identifier would not return.
fn looked_up(look_up: impl FnOnce() -> Result<Vec<AddrInfo>>) -> Result<Vec<AddrInfo>> {
    survive(look_up).unwrap_or_else(|| {
        let reason = "the lookup has panicked, with the message on standard error";
        Err(Error::refused(
            "rdma_getaddrinfo",
            io::ErrorKind::Other,
            reason,
        ))
    })
}

/// Adds the address at fault. `at_once`: the call has failed, and not the resolution that it began.
pub(crate) fn explain(
    error: Error,
    source: Option<Addr>,
    destination: Option<Addr>,
    at_once: bool,
) -> Error {
    let ip = |addr: Option<Addr>| Some(addr?.ip()?.ip());
    let addresses = Addresses {
        source: ip(source),
        destination: ip(destination),
    };
    let errno = error.raw_os_error();
    match errno.and_then(|errno| addresses.hint(errno, at_once)) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Converts to whole milliseconds, rounded up, clamped to the range of C's type.
fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_a_lookup_is_an_error_of_the_lookup() {
        let error = looked_up(|| panic!("as intended by the test")).unwrap_err();
        assert_eq!(error.call(), "rdma_getaddrinfo");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert_eq!(looked_up(|| Ok(Vec::new())).unwrap(), []);
    }
}
