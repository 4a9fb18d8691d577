//! Hosts, and the current host of each thread.

use std::{
    cell::RefCell,
    marker::PhantomData,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use super::{
    environment,
    limits::Limits,
    port::{Port, Shared},
};
use crate::{
    abi::scripted,
    failure::{Call, Failing, Holding, When},
};

thread_local! {
    /// Stays of this thread; the last one is current.
    static CURRENT: RefCell<Stays> = const { RefCell::new(Stays::new()) };
}

/// Stays of a thread on hosts.
struct Stays {
    /// Number of the last stay.
    last: u64,
    /// Stays that have not ended, with their numbers.
    hosts: Vec<(u64, Port)>,
}

impl Stays {
    const fn new() -> Self {
        Self {
            last: 0,
            hosts: Vec::new(),
        }
    }

    /// Starts a stay, and returns its number.
    fn start(&mut self, port: Port) -> u64 {
        self.last += 1;
        self.hosts.push((self.last, port));
        self.last
    }

    /// Ends a stay, which need not be the last one.
    fn end(&mut self, ended: u64) {
        self.hosts.retain(|(number, _)| *number != ended);
    }
}

/// The default host, for threads without an entered host.
static DEFAULT: Mutex<Option<Port>> = Mutex::new(None);

/// The device of this thread's entered host.
pub(crate) fn entered() -> Option<Port> {
    let last = CURRENT.try_with(|stays| {
        let stays = stays.borrow();
        stays.hosts.last().map(|(_, port)| port.clone())
    });
    last.ok().flatten()
}

/// Changes the stays of this thread. Without effect after the destruction of the thread's local values, when all stays
/// have ended.
fn change_stays<T: Default>(change: impl FnOnce(&mut Stays) -> T) -> T {
    let changed = CURRENT.try_with(|stays| change(&mut stays.borrow_mut()));
    changed.unwrap_or_default()
}

/// The hint of `verbs` and `cm` for a thread without a device.
const ADVICE: &str = "the devices of this program are softnic's, and a thread has those of its own host only: put the \
                      thread on a host with `Host::run`, `Host::spawn` or `Host::enter`, or make a host the default \
                      of all threads with `Host::make_default`";

/// The device of this thread's entered host, or of the default host.
pub(crate) fn current() -> Option<Port> {
    let port = entered().or_else(|| {
        DEFAULT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    });
    let port = port.or_else(environment::port);
    if port.is_none() {
        ibverbs_sys::NO_DEVICE_ADVICE.get_or_init(|| ADVICE);
    }
    port
}

/// A host of a fabric.
///
/// The list of devices of a thread on a host contains the device of the host, followed by its scripted devices. Without a
/// host, the list is empty, unless a host is the [default](Self::make_default).
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) port: Port,
}

impl Host {
    pub(super) fn new(port: Port) -> Self {
        Self { port }
    }

    /// Index of the host in its fabric.
    ///
    /// # Panics
    /// If the host is of another fabric.
    pub(super) fn index_in(&self, fabric: &Arc<Shared>) -> usize {
        assert!(
            self.port.is_of(fabric),
            "the host {} is of another fabric",
            self.addr()
        );
        self.port.index
    }

    /// The host's first address.
    pub fn addr(&self) -> IpAddr {
        let first = self.port.addrs().first();
        first.copied().unwrap_or(IpAddr::from([0; 4]))
    }

    /// Adds a device whose answers, failures and completions are decided by the caller, in the list of the host until the
    /// result is dropped. See [`scripted`].
    pub fn add_scripted(&self, name: &str) -> scripted::Device {
        let shared = scripted::Shared::new(name, self.port.seed());
        self.port.add_scripted(Arc::downgrade(&shared));
        scripted::Device::new(shared)
    }

    /// Lets calls of a C function on the host fail with an error number, until the result is dropped. A failed call has no
    /// other effect.
    ///
    /// Concerned are the host's own device and its connection identifiers, in all threads. Scripted devices have
    /// [requests of their own](scripted::Device::fail). Posting is counted by request: a chain of `ibv_post_send` is posted
    /// up to the failed request. A failed [`Call::Doorbell`] is counted by call, and has an effect: `ibv_post_send` fails
    /// without a request in `bad_wr`, and the device executes the requests after the next post, as Linux' software devices do.
    /// Objects that cannot be destroyed because of a failure stay in the
    /// [books](crate::Fabric::books).
    ///
    /// # Panics
    /// - `call` is [not of a host](Call::is_of_host), but of scripted devices only.
    /// - `errno`, or the number in `when`, is not positive.
    ///
    /// # Examples
    /// ```
    /// use softnic::{Call, Fabric, When};
    /// let fabric = Fabric::new();
    /// let host = fabric.host("10.9.0.1".parse()?);
    /// let ctx = host.run(|| verbs::devices()?.find("softnic0").unwrap().open())?;
    /// let pd = ctx.alloc_pd()?;
    ///
    /// let failing = host.fail(Call::RegMr, When::Nth(2), libc::ENOMEM);
    /// let first = pd.alloc_buf(64)?;
    /// let error = pd.alloc_buf(64).unwrap_err();
    /// assert_eq!((error.call(), error.raw_os_error()), ("ibv_reg_mr", Some(libc::ENOMEM)));
    /// assert_eq!((failing.calls(), failing.failed()), (2, 1));
    ///
    /// let every = host.fail(Call::RegMr, When::Every, libc::ENOMEM);
    /// assert!(pd.alloc_buf(64).is_err());
    /// drop(every);
    /// let second = pd.alloc_buf(64)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fail(&self, call: Call, when: When, errno: i32) -> Failing {
        assert!(
            call.is_of_host(),
            "`{call}` fails on scripted devices only: use `scripted::Device::fail`"
        );
        self.port.fail(call, when, errno)
    }

    /// Sets the limits of the host for objects created from now on, by programs on the host and on its device. Existing
    /// objects count, and stay.
    ///
    /// # Examples
    /// See [`Limits`].
    pub fn set_limits(&self, limits: Limits) {
        self.port.set_limits(limits);
    }

    /// Blocks calls of a C function on the host, until the result is dropped, as a slow kernel would. Concerned are the
    /// calls of [`fail`](Self::fail).
    ///
    /// # Panics
    /// As for [`fail`](Self::fail).
    ///
    /// # Examples
    /// ```
    /// use std::{thread, time::Duration};
    /// use softnic::{Call, Fabric};
    /// let fabric = Fabric::new();
    /// let host = fabric.host("10.9.0.1".parse()?);
    /// let ctx = host.run(|| verbs::devices()?.find("softnic0").unwrap().open())?;
    ///
    /// let holding = host.hold(Call::AllocPd);
    /// let allocating = thread::spawn(move || ctx.alloc_pd());
    /// assert!(holding.wait_for_call(Duration::from_secs(60)));
    /// assert!(!allocating.is_finished());
    /// drop(holding);
    /// allocating.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold(&self, call: Call) -> Holding {
        assert!(call.is_of_host(), "`{call}` is not a call of a host");
        self.port.hold(call)
    }

    /// Puts this thread on the host until the result is dropped, or a later call puts the thread on another host. No
    /// effect once the thread's local values have been destroyed, such as in a handler of `atexit`: only the
    /// [default](Self::make_default) counts there.
    pub fn enter(&self) -> Entered {
        Entered {
            stay: change_stays(|stays| stays.start(self.port.clone())),
            _of_this_thread: PhantomData,
        }
    }

    /// Puts this thread on the host until the thread ends. Use it in the start hook of a runtime's threads.
    pub fn stay(&self) {
        change_stays(|stays| stays.start(self.port.clone()));
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
    /// Number of the stay.
    stay: u64,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        change_stays(|stays| stays.end(self.stay));
    }
}
