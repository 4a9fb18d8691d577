//! Domains missing on Soft-RoCE: thread, parent and XRC domains.

use std::{
    alloc::{Layout, alloc, dealloc},
    fs::File,
    os::fd::AsFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use softnic::Call;
use verbs::{
    pd::{Allocation, QueueAllocator},
    xrcd::XrcdOpen,
};

use crate::{
    fixture::Fixture,
    provider::{Fake, PARENT_DOMAIN_BLOCK},
};

/// Counts allocations, with a configurable answer.
pub(crate) struct Allocator {
    live: Arc<AtomicUsize>,
    answer: fn(Layout) -> Allocation,
    panics_on_free: bool,
}

impl Allocator {
    pub(crate) fn new(live: &Arc<AtomicUsize>, answer: fn(Layout) -> Allocation) -> Self {
        Self {
            live: Arc::clone(live),
            answer,
            panics_on_free: false,
        }
    }
}

// SAFETY: memory from `memory` is fresh, of that layout, and freed by `free` only.
unsafe impl QueueAllocator for Allocator {
    fn alloc(&self, layout: Layout, resource_type: u64) -> Allocation {
        let (size, alignment, kind) = PARENT_DOMAIN_BLOCK;
        assert_eq!(
            (layout.size(), layout.align(), resource_type),
            (size, alignment, kind)
        );
        let allocation = (self.answer)(layout);
        if let Allocation::Memory(_) = allocation {
            self.live.fetch_add(1, Ordering::Relaxed);
        }
        allocation
    }

    unsafe fn free(&self, memory: NonNull<u8>, _resource_type: u64) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: from `memory`, with this layout.
        unsafe { dealloc(memory.as_ptr(), layout()) };
        assert!(!self.panics_on_free, "on purpose");
    }
}

fn layout() -> Layout {
    let (size, alignment, _) = PARENT_DOMAIN_BLOCK;
    Layout::from_size_align(size, alignment).unwrap()
}

pub(crate) fn memory(layout: Layout) -> Allocation {
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { alloc(layout) }).map_or(Allocation::Failed, Allocation::Memory)
}

#[test]
fn parent_domain_uses_the_allocator_and_keeps_it() {
    let fixture = Fixture::new();
    let live = Arc::new(AtomicUsize::new(0));
    let allocator = Allocator::new(&live, memory);
    let parent = fixture.pd.parent_domain_builder().allocator(allocator);
    let parent = parent.create().unwrap();
    assert_ne!(parent, fixture.pd);
    assert_eq!(live.load(Ordering::Relaxed), 1);
    let cq = fixture.ctx.cq_ex_builder(8).parent_domain(&parent);
    let cq = cq.create().unwrap();
    let qp = parent.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
    let buf = parent.alloc_buf(8).unwrap();
    let Fixture { pd, ctx, fake } = fixture;
    drop(ctx);
    drop(pd);
    drop(parent);
    drop(cq);
    drop(qp);
    assert_eq!(live.load(Ordering::Relaxed), 1, "the buffer is still there");
    drop(buf);
    assert_eq!(live.load(Ordering::Relaxed), 0);
    assert_eq!(fake.live(), [""; 0]);
}

#[test]
fn allocator_result_is_default_or_failure() {
    let fixture = Fixture::new();
    let create = |answer| {
        let allocator = Allocator {
            live: Arc::default(),
            answer,
            panics_on_free: false,
        };
        let builder = fixture.pd.parent_domain_builder().allocator(allocator);
        builder.create()
    };
    assert!(create(|_| Allocation::Default).is_ok());
    let err = create(|_| Allocation::Failed).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENOMEM));
}

#[test]
fn panicking_allocator_counts_as_failed() {
    let fixture = Fixture::new();
    let allocator = |answer, panics_on_free| Allocator {
        live: Arc::default(),
        answer,
        panics_on_free,
    };
    let builder = || fixture.pd.parent_domain_builder();
    let panicking = allocator(|_| panic!("on purpose"), false);
    let err = builder().allocator(panicking).create().unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENOMEM));
    let parent = builder().allocator(allocator(memory, true)).create();
    drop(parent.unwrap());
}

#[test]
fn undeallocated_parent_domain_keeps_its_allocator() {
    let fixture = Fixture::new();
    let live = Arc::new(AtomicUsize::new(0));
    let allocator = Allocator::new(&live, memory);
    let parent = fixture.pd.parent_domain_builder().allocator(allocator);
    let parent = parent.create().unwrap();
    fixture.fake.fail(Call::DeallocPd, libc::EBUSY);
    drop(parent);
    assert_eq!(live.load(Ordering::Relaxed), 1);
    // The allocator itself, still callable by the provider.
    assert_eq!(Arc::strong_count(&live), 2);
}

#[test]
fn thread_domain_outlives_its_parent_domain() {
    let fixture = Fixture::new();
    let td = fixture.ctx.alloc_td().unwrap();
    // SAFETY: this test has one thread.
    let parent = unsafe { fixture.pd.parent_domain_builder().thread_domain(&td) };
    let parent = parent.create().unwrap();
    drop(td);
    assert!(fixture.fake.live().contains(&"ibv_td"));
    drop(parent);
    assert!(!fixture.fake.live().contains(&"ibv_td"));
    let calls = fixture.fake.calls();
    let at = |call| calls.iter().position(|c| *c == call).unwrap();
    assert!(at(Call::DeallocPd) < at(Call::DeallocTd));

    let other = Fake::named("fake1").open();
    let td = other.alloc_td().unwrap();
    // SAFETY: this test has one thread.
    let mixed = unsafe { fixture.pd.parent_domain_builder().thread_domain(&td) };
    let err = mixed.create().unwrap_err();
    assert_eq!(
        err.to_string(),
        "`ibv_alloc_parent_domain` failed: the thread domain is of another device, fake1"
    );
}

#[test]
fn domains_without_device_support_are_an_error() {
    let fixture = Fixture::new();
    for call in [Call::AllocTd, Call::AllocParentDomain, Call::OpenXrcd] {
        fixture.fake.fail(call, libc::EOPNOTSUPP);
    }
    let errors = [
        fixture.ctx.alloc_td().map(drop),
        fixture.pd.parent_domain_builder().create().map(drop),
        fixture.ctx.open_xrcd().map(drop),
    ];
    for result in errors {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}

#[test]
fn xrc_domain_of_a_file_is_created_or_opened() {
    let fixture = Fixture::new();
    let file = File::open("/proc/self/exe").unwrap();
    let open = |how| fixture.ctx.open_shared_xrcd(file.as_fd(), how);
    let fails = |how| open(how).unwrap_err().raw_os_error();
    let exclusively = XrcdOpen::CREATE | XrcdOpen::EXCLUSIVE;
    assert_eq!(fails(XrcdOpen::empty()), Some(libc::ENOENT));
    let domain = open(exclusively).unwrap();
    assert_eq!(fails(exclusively), Some(libc::EEXIST));
    let joined = open(XrcdOpen::empty()).unwrap();
    let other = File::open("/dev/null").unwrap();
    let other = fixture.ctx.open_shared_xrcd(other.as_fd(), exclusively);
    assert!(other.is_ok(), "another file's");
    drop(domain);
    assert_eq!(fails(exclusively), Some(libc::EEXIST));
    drop(joined);
    assert_eq!(fails(XrcdOpen::empty()), Some(libc::ENOENT));
    assert!(open(XrcdOpen::CREATE).is_ok());
}

#[test]
fn xrc_domain_is_private_or_shared_by_a_file() {
    let fixture = Fixture::new();
    let private = fixture.ctx.open_xrcd().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let shared = fixture.ctx.open_shared_xrcd(file.as_fd(), XrcdOpen::CREATE);
    let shared = shared.unwrap();
    drop(file);
    assert_ne!(private, shared);
    assert_eq!(shared, shared.clone());
    assert_eq!(shared.context(), &fixture.ctx);
    let Fixture { pd, ctx, fake } = fixture;
    drop(ctx);
    drop(pd);
    drop(private);
    assert_eq!(fake.live(), ["ibv_xrcd", "verbs_context"]);
    drop(shared);
    assert_eq!(fake.live(), [""; 0]);
}
