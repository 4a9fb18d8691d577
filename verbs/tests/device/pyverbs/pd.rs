//! `test_pd.py`

use std::collections::HashSet;

use crate::loopback::{Fixture, open};

#[test]
fn alloc_pd() {
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    assert_eq!(pd.context(), &ctx);
    assert!(!pd.as_raw().is_null());
}

#[test]
fn dealloc_pd() {
    let ctx = open();
    // A domain that is not deallocated keeps its handle, so the next one cannot have the same.
    let handle = || ctx.alloc_pd().unwrap().kernel_handle();
    assert_eq!(handle(), handle());
}

#[test]
fn multiple_pd_creation() {
    let ctx = open();
    let all: Vec<_> = (0..200).map(|_| ctx.alloc_pd().unwrap()).collect();
    let handles: HashSet<_> = all.iter().map(|pd| pd.kernel_handle().0).collect();
    assert_eq!(handles.len(), 200);
}

/// Every handle of a domain can be dropped, and objects made in the domain keep it.
#[test]
fn destroy_pd_twice() {
    let Fixture { pd, .. } = Fixture::new();
    let (again, buf) = (pd.clone(), pd.alloc_buf(8).unwrap());
    drop(pd);
    assert!(again.alloc_buf(8).is_ok());
    drop(again);
    assert_eq!(&*buf, &[0; 8]);
}
