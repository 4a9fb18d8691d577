//! Work in types of the program.

use crate::work::{Gather, Scatter, SgeList};

/// Implements [`Gather`] for a struct of the program by its fields: the elements of the named fields, in this order.
///
/// The fields are work, and the struct owns them, so no `unsafe` is needed. For a struct with parameters, name those before the
/// type, with the bounds of the struct: `gather_fields!([W: Gather, C] Page<W, C> { work })`.
///
/// # Examples
/// A page with its number, sent to several peers:
/// ```
/// #![forbid(unsafe_code)]
/// # let (_fabric, ctx) = doctest::device();
/// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(64)?);
/// use std::sync::Arc;
///
/// use verbs::{QueuePair, Reset, mr::PoolBuf};
///
/// struct Page {
///     number: u32,
///     bytes: PoolBuf,
/// }
/// verbs::gather_fields!(Page { bytes });
///
/// let qp: QueuePair<verbs::Rc, Reset, Arc<Page>> = pd.qp_builder(cq, cq).create_for()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[macro_export]
macro_rules! gather_fields {
    ([$($param:ident $(: $bound:path)?),+] $ty:ty { $($field:tt),+ $(,)? }) => {
        $crate::__impl_gather!(__gather [$($param: [$($bound)?]),+] $ty { $($field),+ });
    };
    ($ty:ty { $($field:tt),+ $(,)? }) => {
        $crate::__impl_gather!(__gather [] $ty { $($field),+ });
    };
}

/// Implements [`Scatter`] and [`Gather`] for a struct of the program by its fields; see [`gather_fields!`](crate::gather_fields).
///
/// # Examples
/// A receive that knows its slot:
/// ```
/// #![forbid(unsafe_code)]
/// # let (_fabric, ctx) = doctest::device();
/// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(64)?);
/// use verbs::{Buf, QueuePair, Reset};
///
/// struct Slot(Buf, u32);
/// verbs::scatter_fields!(Slot { 0 });
///
/// let qp: QueuePair<verbs::Rc, Reset, Buf, Slot> = pd.qp_builder(cq, cq).create_for()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[macro_export]
macro_rules! scatter_fields {
    ([$($param:ident $(: $bound:path)?),+] $ty:ty { $($field:tt),+ $(,)? }) => {
        $crate::__impl_gather!(__scatter [$($param: [$($bound)?]),+] $ty { $($field),+ });
        // SAFETY: as for `Gather`; the implementation above demands `Scatter` of each field, and a field is named once.
        unsafe impl<$($param $(: $bound)?),+> $crate::work::Scatter for $ty {}
    };
    ($ty:ty { $($field:tt),+ $(,)? }) => {
        $crate::__impl_gather!(__scatter [] $ty { $($field),+ });
        // SAFETY: as above.
        unsafe impl $crate::work::Scatter for $ty {}
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __impl_gather {
    ($visit:ident [$($param:ident: [$($bound:path)?]),*] $ty:ty { $($field:tt),+ }) => {
        // SAFETY: the elements belong to fields of the value, which keep the rules of the trait themselves. The patterns name
        // fields of a struct: no other value is reached by dereferencing, a field named twice is an error, and a field of a
        // union cannot be named. In a queue, nothing has mutable access to the value.
        unsafe impl<$($param $(: $bound)?),*> $crate::work::Gather for $ty {
            #[inline]
            fn gather(&self, list: &mut $crate::work::SgeList) {
                let Self { $($field: _,)+ .. } = self;
                $({
                    let Self { $field: work, .. } = self;
                    $crate::work::$visit(work, list);
                })+
            }
        }
    };
}

/// Adds the elements of a field.
#[doc(hidden)]
#[inline]
pub fn __gather<W: Gather>(work: &W, list: &mut SgeList) {
    work.gather(list);
}

/// Adds the elements of a field that the device may write.
#[doc(hidden)]
#[inline]
pub fn __scatter<W: Scatter>(work: &W, list: &mut SgeList) {
    work.gather(list);
}
