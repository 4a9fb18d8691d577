//! Hosts, and which host a thread is on.

use std::{
    cell::RefCell,
    marker::PhantomData,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    thread,
};

use super::port::Port;

thread_local! {
    /// The host of this thread: the last one entered.
    static CURRENT: RefCell<Vec<Port>> = const { RefCell::new(Vec::new()) };
}

/// The host of threads that have entered none.
static DEFAULT: Mutex<Option<Port>> = Mutex::new(None);

/// The device of the host that this thread has entered.
pub(crate) fn entered() -> Option<Port> {
    CURRENT.with_borrow(|entered| entered.last().cloned())
}

/// The device of the host that this thread is on.
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
/// A thread on a host sees its device, and no other, in the list of devices. A thread on no host sees none, unless a host is the
/// [default](Self::make_default).
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

    /// Puts this thread on the host until the result is dropped: for runtimes that start threads of their own.
    pub fn enter(&self) -> Entered {
        CURRENT.with_borrow_mut(|entered| entered.push(self.port.clone()));
        Entered {
            _of_this_thread: PhantomData,
        }
    }

    /// Puts all threads of the process that have entered no host on this one: for programs with one host.
    pub fn make_default(&self) {
        let mut default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
        *default = Some(self.port.clone());
    }

    /// Runs a closure on the host.
    pub fn run<T>(&self, act: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        act()
    }

    /// Runs a closure on the host in a thread of its own.
    pub fn spawn<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let host = self.clone();
        thread::spawn(move || host.run(act))
    }
}

/// The stay of a thread on a host; see [`Host::enter`].
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
