//! Changing a registration.

use std::{fmt, io, mem::ManuallyDrop, ptr};

use ibverbs_sys::{
    self as ffi, ibv_access_flags as flag, ibv_rereg_mr_err_code as code,
    ibv_rereg_mr_flags as change,
};

use super::{
    memory::Memory,
    region::{Region, Terms},
    remote::RemoteRegion,
};
use crate::{
    access::RemoteAccess,
    error::{Error, Refused},
    pd::ProtectionDomain,
};

const CALL: &str = "ibv_rereg_mr";

impl RemoteRegion {
    /// Changes the registration: the domain, the memory, or the access of peers.
    ///
    /// The region must not be in use: no other handle, no part, no request in flight, and no memory
    /// window may be left. The keys may change, so peers need a new [`token`](Self::token).
    ///
    /// # Examples
    /// ```no_run
    /// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
    /// use verbs::RemoteAccess;
    /// let pd = ctx.alloc_pd()?;
    /// let region = pd.alloc_remote(4096, RemoteAccess::WRITE)?;
    /// // … until a peer has written all of it …
    /// let region = region.rereg().access(RemoteAccess::READ).apply()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(self) -> Reregistration {
        Reregistration {
            region: self,
            changes: Changes::default(),
        }
    }
}

/// Changes to a registration; see [`RemoteRegion::rereg`].
#[must_use = "nothing is changed until `apply` is called"]
pub struct Reregistration {
    region: RemoteRegion,
    changes: Changes,
}

#[derive(Default)]
struct Changes {
    pd: Option<ProtectionDomain>,
    memory: Option<Box<dyn Memory>>,
    access: Option<RemoteAccess>,
}

/// The state of a registration after a failed change, with its memory.
#[must_use = "the error has the memory"]
pub enum NotReregistered {
    /// The registration is unchanged.
    Unchanged {
        /// The region.
        region: RemoteRegion,
        /// The replacement memory, if one was given.
        memory: Option<Box<dyn Memory>>,
    },
    /// The registration was no longer usable, and has been ended. Its memory was not lost, and can
    /// be [registered](ProtectionDomain::register) again.
    Ended {
        /// The formerly registered memory, with its content.
        old: Box<dyn Memory>,
        /// The replacement memory, if one was given.
        new: Option<Box<dyn Memory>>,
    },
    /// The registration was neither usable nor could be ended. The device may still have access to
    /// the memory, so the memory is leaked.
    Lost,
}

impl Reregistration {
    /// `IBV_REREG_MR_CHANGE_PD`—Moves the registration to another domain of the same device.
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn pd(mut self, pd: &ProtectionDomain) -> Self {
        self.changes.pd = Some(pd.clone());
        self
    }

    /// `IBV_REREG_MR_CHANGE_TRANSLATION`—Replaces the memory. The old memory is dropped.
    ///
    /// Requests name the memory by virtual addresses from then on, regardless of the region's
    /// former [`iova`](crate::mr::RemoteRegistration::iova).
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn memory(mut self, memory: impl Memory) -> Self {
        self.changes.memory = Some(Box::new(memory));
        self
    }

    /// `IBV_REREG_MR_CHANGE_ACCESS`—Changes the access of peers. Other options of the original
    /// registration, such as binding of windows, are reset.
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub fn access(mut self, access: RemoteAccess) -> Self {
        self.changes.access = Some(access);
        self
    }

    /// `ibv_rereg_mr(mr, …)`—Changes the registration. Enters the kernel.
    ///
    /// # Errors
    /// The error returns the region, or its memory; see [`NotReregistered`]:
    /// - `InvalidInput`: the region is in use or one of [`Everything`](crate::mr::Everything),
    ///   another domain is of another device, or the other memory has no bytes. The region is
    ///   unchanged.
    /// - `EINVAL`, `EOPNOTSUPP`, `ENOMEM`: the device does not support the change, and the region
    ///   is unchanged; or the change failed halfway, and the region has been ended.
    ///
    /// If only marking the old memory inheritable again failed (see
    /// [`fork_init`](crate::fork::fork_init)), the call succeeds and leaks the old memory.
    ///
    /// # References
    /// [ibv_rereg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_rereg_mr.3.html)
    #[doc(alias = "IBV_REREG_MR_ERR_INPUT")]
    #[doc(alias = "IBV_REREG_MR_ERR_DONT_FORK_NEW")]
    #[doc(alias = "IBV_REREG_MR_ERR_DO_FORK_OLD")]
    #[doc(alias = "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW")]
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_ERR_CMD")]
    pub fn apply(self) -> Result<RemoteRegion, Refused<NotReregistered>> {
        let Self {
            mut region,
            mut changes,
        } = self;
        let replaces = changes.memory.is_some();
        let outcome = match changes.refusal(&region) {
            Some(error) => Err((Remainder::Unchanged, error)),
            None => match region.region_mut() {
                Some(exclusive) if !exclusive.is_registered_alone() => Err((
                    Remainder::Unchanged,
                    refused("all memory is registered at once"),
                )),
                Some(exclusive) => exclusive.rereg(&mut changes),
                None => Err((Remainder::Unchanged, refused("the region is in use"))),
            },
        };
        let (outcome_value, error) = match outcome {
            Ok(()) if replaces => return Ok(region.renewed()),
            Ok(()) => return Ok(region.rekeyed()),
            Err(failure) => failure,
        };
        let memory = changes.memory;
        let value = match outcome_value {
            Remainder::Unchanged => NotReregistered::Unchanged { region, memory },
            Remainder::Memory(old) => NotReregistered::Ended { old, new: memory },
            Remainder::Nothing => {
                // The device may still have access.
                let _: ManuallyDrop<_> = ManuallyDrop::new(memory);
                NotReregistered::Lost
            }
        };
        Err(Refused { value, error })
    }
}

fn refused(reason: &'static str) -> Error {
    Error::refused(CALL, io::ErrorKind::InvalidInput, reason)
}

/// The rest of a region after a failure.
enum Remainder {
    Unchanged,
    Memory(Box<dyn Memory>),
    Nothing,
}

impl Changes {
    /// Why the changes are refused, if they are.
    fn refusal(&mut self, region: &RemoteRegion) -> Option<Error> {
        let Self { pd, memory, access } = self;
        if let Err(inherited) = region.pd().context().check_process(CALL) {
            return Some(inherited);
        }
        if memory
            .as_mut()
            .is_some_and(|memory| memory.range().is_empty())
        {
            return Some(refused("a region has at least one byte"));
        }
        if memory
            .as_ref()
            .is_some_and(|memory| memory.provider().is_some())
        {
            let reason = "memory of the provider's is registered in its own way";
            return Some(refused(reason));
        }
        if let Some(pd) = pd {
            let ctx = region.pd().context();
            return ctx.check_same(CALL, "the domain", pd.context()).err();
        }
        let none = memory.is_none() && access.is_none();
        none.then(|| refused("nothing is to be changed"))
    }
}

impl Region {
    /// Changes the registration. On success, `changes` has been taken.
    fn rereg(&mut self, changes: &mut Changes) -> Result<(), (Remainder, Error)> {
        let mut flags = 0;
        let pd = changes.pd.as_ref().map_or(ptr::null_mut(), |pd| {
            flags |= change::IBV_REREG_MR_CHANGE_PD.0;
            pd.as_raw()
        });
        let range = changes.memory.as_mut().map(|memory| {
            flags |= change::IBV_REREG_MR_CHANGE_TRANSLATION.0;
            memory.range()
        });
        let access = changes.access.map_or(0, |access| {
            flags |= change::IBV_REREG_MR_CHANGE_ACCESS.0;
            access.rights() | flag::IBV_ACCESS_LOCAL_WRITE.0
        });
        let (addr, len) = match range {
            Some(range) => (range.cast().as_ptr(), range.len()),
            None => (ptr::null_mut(), 0),
        };
        if let Some(range) = range {
            let checked = self.granule().check(range, &Terms::default());
            checked.map_err(|error| (Remainder::Unchanged, error))?;
        }
        let mr = self.mr().as_raw();
        // SAFETY: the registration exists, and `&mut self` excludes other users; the domain and the
        // memory live as long as `changes`, and from success on as long as `self`. On failure, both
        // are returned only after the device has lost its access.
        let ret = unsafe { ffi::ibv_rereg_mr(mr, flags as i32, pd, addr, len, access as i32) };
        let error = Error::last_os(CALL);
        match code(ret) {
            code(0) => drop(self.take(changes)),
            // Leaked, not reused: a child would not inherit the memory.
            code::IBV_REREG_MR_ERR_DO_FORK_OLD => {
                let _: ManuallyDrop<_> = ManuallyDrop::new(self.take(changes));
            }
            code::IBV_REREG_MR_ERR_INPUT | code::IBV_REREG_MR_ERR_DONT_FORK_NEW => {
                return Err((Remainder::Unchanged, error));
            }
            // An unsupported change has not been made.
            _ if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return Err((Remainder::Unchanged, error));
            }
            _ => {
                return Err((
                    self.end().map_or(Remainder::Nothing, Remainder::Memory),
                    error,
                ));
            }
        }
        Ok(())
    }

    /// Applies the changes to the record. Returns the replaced memory.
    fn take(&mut self, changes: &mut Changes) -> Option<Box<dyn Memory>> {
        if let Some(pd) = changes.pd.take() {
            self.set_pd(pd);
        }
        self.replace(changes.memory.take()?)
    }
}

impl fmt::Debug for Reregistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reregistration")
            .field("region", &self.region)
            .field("pd", &self.changes.pd)
            .field("access", &self.changes.access)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NotReregistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchanged { region, .. } => f.debug_tuple("Unchanged").field(region).finish(),
            Self::Ended { .. } => f.write_str("Ended"),
            Self::Lost => f.write_str("Lost"),
        }
    }
}
