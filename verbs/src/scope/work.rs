//! Work for queue pairs of a scope.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use super::memory::{ScopedBuf, ScopedSlice};
use crate::{
    ah::Addressed,
    work::{Either, Gather, Scatter, SgeList, With},
};

mod sealed {
    pub trait SealedWork<'scope> {}
}

/// Work confined to a scope, since the type names the scope's lifetime: for queue pairs [of
/// a scope](crate::scope::Scope::create_qp).
///
/// Implemented by [`ScopedBuf`], [`ScopedSlice`], containers of these, and any work as [`Scoped`].
// Sealed: each implementation must have `'scope` in its type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may outlive the scope",
    label = "not confined to the scope",
    note = "queue pairs of a scope carry `ScopedBuf` and `ScopedSlice`; wrap other work with `Scoped::new(work)`"
)]
pub trait ScopedWork<'scope>: sealed::SealedWork<'scope> {}

/// Work of any kind, tied to a scope, for a queue pair [of that
/// scope](crate::scope::Scope::create_qp).
///
/// # Examples
/// ```
/// let work = verbs::scope::Scoped::new(());
/// let () = work.into_inner();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Scoped<'scope, W> {
    work: W,
    scope: PhantomData<&'scope ()>,
}

impl<W> Scoped<'_, W> {
    /// Ties the work to the scope of the queue pair to be posted to.
    pub fn new(work: W) -> Self {
        let scope = PhantomData;
        Self { work, scope }
    }

    /// The work.
    pub fn into_inner(self) -> W {
        self.work
    }
}

impl<W> Deref for Scoped<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.work
    }
}

impl<W> DerefMut for Scoped<'_, W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.work
    }
}

impl<W: AsRef<[u8]>> AsRef<[u8]> for Scoped<'_, W> {
    fn as_ref(&self) -> &[u8] {
        self.work.as_ref()
    }
}

// SAFETY: the elements belong to `work`, owned by `self`.
unsafe impl<W: Gather> Gather for Scoped<'_, W> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }
}

// SAFETY: the elements belong to `work`, owned by `self`.
unsafe impl<W: Scatter> Scatter for Scoped<'_, W> {}

macro_rules! impl_scoped_work {
    ($([$($generics:tt)*] $ty:ty;)*) => {$(
        impl<'scope, $($generics)*> sealed::SealedWork<'scope> for $ty {}
        impl<'scope, $($generics)*> ScopedWork<'scope> for $ty {}
    )*};
}

impl_scoped_work! {
    [] ScopedBuf<'scope>;
    [] ScopedSlice<'scope>;
    [W] Scoped<'scope, W>;
    [W: ScopedWork<'scope>, C] With<W, C>;
    [A: ScopedWork<'scope>, B: ScopedWork<'scope>] Either<A, B>;
    [W: ScopedWork<'scope>] Addressed<W>;
    [W: ScopedWork<'scope>] Option<W>;
    [W: ScopedWork<'scope>] Box<W>;
    [W: ScopedWork<'scope>] Vec<W>;
    [W: ScopedWork<'scope>, const N: usize] [W; N];
    [A: ScopedWork<'scope>, B: ScopedWork<'scope>] (A, B);
    [A: ScopedWork<'scope>, B: ScopedWork<'scope>, C: ScopedWork<'scope>] (A, B, C);
}
