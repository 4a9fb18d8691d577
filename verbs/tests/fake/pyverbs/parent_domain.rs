//! `test_parent_domain.py`: memory for the provider's queues from the program

use std::{
    alloc::{Layout, alloc, dealloc},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use verbs::{
    Buf, Gid, Init, ProtectionDomain, QueuePair, Reset, Rtr, Rts, SharedReceiveQueue, Ud,
    ah::{AddressVector, Addressed},
    op,
    pd::{Allocation, QueueAllocator},
    qp::{Attributes, Psn, QpNum},
};

use super::traffic::{ROUNDS, Traffic};
use crate::{
    domains::{Allocator, memory},
    fixture::Fixture,
};

/// A parent domain, with an allocator or without, and the provider's number of blocks from the
/// allocator.
fn parent(
    fixture: &Fixture,
    answer: Option<fn(Layout) -> Allocation>,
) -> (ProtectionDomain, Arc<AtomicUsize>) {
    let live = Arc::new(AtomicUsize::new(0));
    let builder = fixture.pd.parent_domain_builder();
    let parent = match answer {
        None => builder.create(),
        Some(answer) => builder.allocator(Allocator::new(&live, answer)).create(),
    };
    (parent.unwrap(), live)
}

fn rc_traffic(answer: Option<fn(Layout) -> Allocation>, blocks: usize) {
    let fixture = Fixture::new();
    let (pd, live) = parent(&fixture, answer);
    rc_messages(&fixture, pd, &live, blocks);
}

/// Sends and receives on a queue pair in this domain, with `blocks` blocks in the provider's hands.
fn rc_messages(fixture: &Fixture, pd: ProtectionDomain, live: &AtomicUsize, blocks: usize) {
    assert_eq!(live.load(Ordering::Relaxed), blocks);
    let mut cq = fixture.cq(16);
    let qp: QueuePair<verbs::Rc, Reset> = pd.qp_builder(&cq, &cq).max_recv_wr(2).create().unwrap();
    let mut qp = fixture.connect(qp);
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    for round in 0..ROUNDS {
        let work = pd.register_buf([round; 64]).unwrap();
        let back = traffic.send(&mut qp, &[round; 64], |qp| {
            qp.post(op::Send::new(work)).unwrap()
        });
        traffic.receive(&mut qp, back, &[round + 1; 64]);
    }
    drop((qp, pd));
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

#[test]
fn without_allocators_rc_traffic() {
    rc_traffic(None, 0);
}

/// The program's allocator leaves the allocation to the provider.
#[test]
fn default_allocators_rc_traffic() {
    rc_traffic(Some(|_| Allocation::Default), 0);
}

#[test]
fn mem_align_rc_traffic() {
    rc_traffic(Some(memory), 1);
}

#[test]
fn mem_align_ud_traffic() {
    let fixture = Fixture::new();
    let (pd, live) = parent(&fixture, Some(memory));
    let mut cq = fixture.cq(16);
    let builder = pd.qp_builder::<Ud>(&cq, &cq).max_recv_wr(2);
    let qp: QueuePair<Ud, Reset, Addressed<Buf>> = builder.create_for().unwrap();
    let up = |qp: QueuePair<Ud, Reset, Addressed<Buf>>| {
        let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7)).ok()?;
        let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).ok()?;
        qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default())).ok()
    };
    let mut qp = up(qp).unwrap();
    let address_vector = AddressVector::global(1, 1, Gid([0xfe; 16]));
    let ah = pd.create_ah(&address_vector).unwrap();
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    for round in 0..ROUNDS {
        let work = Addressed::new(pd.register_buf([round; 64]).unwrap(), &ah);
        let request = op::SendTo::new(work, QpNum::from_low_bits(9), 7);
        let back = traffic.send(&mut qp, &[round; 64], |qp| qp.post(request).unwrap());
        traffic.receive(&mut qp, back.work, &[round + 1; 64]);
    }
    drop((qp, ah, pd));
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

#[test]
fn mem_align_srq_excq_rc_traffic() {
    let fixture = Fixture::new();
    let (pd, live) = parent(&fixture, Some(memory));
    let cq = fixture.ctx.cq_ex_builder(16).parent_domain(&pd);
    let mut cq = cq.create().unwrap();
    let mut srq: SharedReceiveQueue<Buf> = pd.create_srq(4, 1).unwrap();
    let qp = pd
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .srq(&srq)
        .create()
        .unwrap();
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(qp);
    for round in 0..ROUNDS {
        srq.post(pd.alloc_buf(64).unwrap()).unwrap();
        fixture.fake.complete_receive(qp.qp_num(), &[round; 64]);
        let mut polled = cq.poll().unwrap().unwrap();
        let wc = polled.next().unwrap().unwrap().into_work_completion();
        assert_eq!(srq.complete(wc).unwrap().received().unwrap(), &[round; 64]);
        let mut traffic = Traffic {
            fake: &fixture.fake,
            poll: &mut |take| {
                let mut polled = cq.poll().unwrap().unwrap();
                while let Some(wc) = polled.next().unwrap() {
                    take(wc.into_work_completion());
                }
            },
        };
        let work = pd.register_buf([round; 64]).unwrap();
        traffic.send(&mut qp, &[round; 64], |qp| {
            qp.post(op::Send::new(work)).unwrap()
        });
    }
    drop((qp, srq, cq, pd));
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

const HUGE_PAGE: Layout = match Layout::from_size_align(2 << 20, 2 << 20) {
    Ok(layout) => layout,
    Err(_) => panic!("not a layout"),
};

/// Gives the provider the start of a block with the size and alignment of a huge page.
struct HugePages(Arc<AtomicUsize>);

// SAFETY: the memory is fresh, larger and better aligned than requested, and freed by `free` only.
unsafe impl QueueAllocator for HugePages {
    fn alloc(&self, layout: Layout, _resource_type: u64) -> Allocation {
        assert!(layout.size() <= HUGE_PAGE.size() && layout.align() <= HUGE_PAGE.align());
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc(HUGE_PAGE) });
        memory.map_or(Allocation::Failed, Allocation::Memory)
    }

    unsafe fn free(&self, memory: NonNull<u8>, _resource_type: u64) {
        assert_eq!(memory.as_ptr().addr() % HUGE_PAGE.align(), 0);
        self.0.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: from `alloc`, with this layout.
        unsafe { dealloc(memory.as_ptr(), HUGE_PAGE) };
    }
}

#[test]
fn huge_page_traffic() {
    let fixture = Fixture::new();
    let live = Arc::new(AtomicUsize::new(0));
    let builder = fixture.pd.parent_domain_builder();
    let pd = builder.allocator(HugePages(Arc::clone(&live))).create();
    rc_messages(&fixture, pd.unwrap(), &live, 1);
}
