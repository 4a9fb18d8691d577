//! Hosts, and the current host of each thread.

use std::{
    cell::RefCell,
    marker::PhantomData,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    thread,
};

use super::port::Port;

thread_local! {
    /// Entered hosts of this thread; the last one is current.
    static CURRENT: RefCell<Vec<Port>> = const { RefCell::new(Vec::new()) };
}

/// The default host, for threads without an entered host.
static DEFAULT: Mutex<Option<Port>> = Mutex::new(None);

/// The device of this thread's entered host.
pub(crate) fn entered() -> Option<Port> {
    CURRENT.with_borrow(|entered| entered.last().cloned())
}

/// The device of this thread's entered host, or of the default host.
pub(crate) fn current() -> Option<Port> {
    entered().or_else(|| {
        DEFAULT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    })
}

/// A host of a fabric.
///
/// The list of devices of a thread on a host contains only the device of the host. Without a host, the list is empty,
/// unless a host is the [default](Self::make_default).
#[derive(Clone, Debug)]
pub struct Host {
    port: Port,
}

impl Host {
    pub(super) fn new(port: Port) -> Self {
        Self { port }
    }

    pub(super) fn index(&self) -> usize {
        self.port.index
    }

    /// The host's first address.
    pub fn addr(&self) -> IpAddr {
        let first = self.port.addrs().first();
        first.copied().unwrap_or(IpAddr::from([0; 4]))
    }

    /// Puts this thread on the host until the result is dropped. Use it in runtimes with threads of their own.
    pub fn enter(&self) -> Entered {
        CURRENT.with_borrow_mut(|entered| entered.push(self.port.clone()));
        Entered {
            _of_this_thread: PhantomData,
        }
    }

    /// Makes the host the default of all threads of the process without an entered host. Use it in programs with one
    /// host.
    pub fn make_default(&self) {
        let mut default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
        *default = Some(self.port.clone());
    }

    /// Runs a closure on the host, in this thread.
    pub fn run<T>(&self, act: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        act()
    }

    /// Runs a closure on the host, in a new thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let host = self.clone();
        thread::spawn(move || host.run(act))
    }
}

/// Stay of a thread on a host; see [`Host::enter`].
#[derive(Debug)]
#[must_use = "dropping it leaves the host"]
pub struct Entered {
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|entered| {
            entered.pop();
        });
    }
}
