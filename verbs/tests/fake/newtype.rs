//! Work in types of the program.

use std::sync::Arc;

use verbs::{
    Buf, QueuePair, Rts, SharedBuf, WcStatus,
    mr::{PoolBuf, SharedPoolBuf},
    op,
    work::{Gather, Scatter, With},
};

use crate::{allocations::allocations, fixture::Fixture, memory::traffic};

struct Message {
    number: u32,
    head: Buf,
    body: Buf,
}
verbs::scatter_fields!(Message { head, body });

struct Page<W: Gather, C>(C, W, SharedBuf);
verbs::gather_fields!([W: Gather, C] Page<W, C> { 2, 1 });

struct Slot<W>(W);
verbs::scatter_fields!([W: Scatter] Slot<W> { 0 });

#[test]
fn struct_is_the_work_of_its_fields_in_their_order() {
    let fixture = Fixture::new();
    let buf = |text: &[u8]| fixture.pd.register_buf(text).unwrap();
    let message = |number, head: &[u8], body: &[u8]| Message {
        number,
        head: buf(head),
        body: buf(body),
    };
    let (sent, back) = traffic(
        &fixture,
        message(1, b"he", b"llo"),
        message(2, b"..", b"..."),
        b"world",
    );
    assert_eq!(sent, b"hello");
    assert_eq!(
        (back.number, &back.head[..], &back.body[..]),
        (2, &b"wo"[..], &b"rld"[..])
    );
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Arc<Page<Buf, u8>>, Slot<Buf>> = fixture.rc(&cq, 2);
    let page = Arc::new(Page(7, buf(b"body"), buf(b"head").freeze()));
    for _ in 0..2 {
        let post = qp.post(op::Send::new(Arc::clone(&page)));
        post.map_err(|refused| refused.error).unwrap();
    }
    for request in fixture.fake.sends(qp.qp_num()) {
        assert_eq!(fixture.fake.collect(&request), b"headbody");
    }
    assert_eq!(Arc::strong_count(&page), 3);
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    for wc in cq.poll().unwrap() {
        assert!(qp.complete(wc).is_ok());
    }
    assert_eq!(Arc::strong_count(&page), 2);
    drop(qp);
    let page = Arc::into_inner(page).unwrap();
    assert_eq!((page.0, &page.1[..]), (7, &b"body"[..]));
}

/// A page of a pool in types of the program, from the pool, to two peers, and back: as in C, without an allocation. Posting and
/// polling are counted by `cargo xtask bench counts`.
#[test]
fn life_of_a_page_allocates_nothing() {
    struct Filled(PoolBuf, u32);
    verbs::scatter_fields!(Filled { 0 });

    let fixture = Fixture::new();
    let pool = fixture.pd.alloc_pool(4, 64).unwrap();
    let mut store = pool.local(2);
    for round in 0..3 {
        let count = allocations(|| {
            let Filled(mut page, number) = Filled(store.try_take().unwrap(), round);
            page[..4].copy_from_slice(&number.to_ne_bytes());
            let page = page.freeze();
            let for_peers = [(); 2].map(|()| With::new(page.clone(), number));
            assert!(page.thaw().is_none());
            for peer in for_peers {
                assert_eq!(peer.work[..4], round.to_ne_bytes());
                let last: Option<PoolBuf> = SharedPoolBuf::thaw(peer.work);
                last.into_iter().for_each(|page| store.put(page));
            }
        });
        assert_eq!(count, 0);
        assert!(store.stored() > 0);
    }
}
