//! Limits and roundings of cards: programs that assume their requested capacity fail, with the reason.

use std::ffi::c_int;

use ibverbs_sys as ffi;
use softnic::{Card, Fabric, Host};
use verbs::{
    CompletionQueue, Context, Init, ProtectionDomain, RemoteAccess, Rtr, Rts,
    ah::AddressVector,
    op,
    qp::{Attributes, Psn},
};

use crate::end::Connected;

/// A device of a card.
fn device(card: Card) -> (Fabric, Host, Context) {
    let fabric = Fabric::seeded(7).card(card);
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let ctx = host.run(|| verbs::devices().unwrap().find("softnic0").unwrap().open());
    (fabric, host, ctx.unwrap())
}

/// Type of the queue pairs that a card has.
fn kind(card: Card) -> ffi::ibv_qp_type {
    match card {
        Card::Efa => ffi::ibv_qp_type::IBV_QPT_UD,
        _ => ffi::ibv_qp_type::IBV_QPT_RC,
    }
}

/// Capacities: send requests, receives, elements of both, inline bytes.
type Caps = [u32; 5];

/// Creates and destroys a queue pair: the granted capacities, or the error number.
fn create(ctx: &Context, kind: ffi::ibv_qp_type, requested: Caps) -> Result<Caps, c_int> {
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(4).unwrap();
    let mut attr = ffi::ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq) = (cq.as_raw(), cq.as_raw());
    attr.qp_type = kind;
    let cap = &mut attr.cap;
    [
        cap.max_send_wr,
        cap.max_recv_wr,
        cap.max_send_sge,
        cap.max_recv_sge,
        cap.max_inline_data,
    ] = requested;
    // SAFETY: live objects, and attributes of this function.
    let qp = unsafe { ffi::ibv_create_qp(pd.as_raw(), &raw mut attr) };
    if qp.is_null() {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    let (mut found, mut init) = (ffi::ibv_qp_attr::zeroed(), ffi::ibv_qp_init_attr::zeroed());
    // SAFETY: a live queue pair, and attributes of this function.
    let queried = unsafe { ffi::ibv_query_qp(qp, &raw mut found, 0, &raw mut init) };
    assert_eq!(queried, 0);
    let cap = attr.cap;
    let granted = [
        cap.max_send_wr,
        cap.max_recv_wr,
        cap.max_send_sge,
        cap.max_recv_sge,
        cap.max_inline_data,
    ];
    assert_eq!(found.cap.max_send_wr, cap.max_send_wr);
    assert_eq!(init.cap.max_inline_data, cap.max_inline_data);
    // SAFETY: live until here.
    assert_eq!(unsafe { ffi::ibv_destroy_qp(qp) }, 0);
    Ok(granted)
}

#[test]
fn request_beyond_a_limit_fails_with_the_error_of_the_driver() {
    for card in Card::ALL {
        let (_fabric, _host, ctx) = device(*card);
        let attr = ctx.query_device().unwrap();
        let (max_wr, max_sge) = (attr.max_qp_wr(), attr.max_sge());
        let depth_errno = match card {
            Card::T6 => libc::E2BIG,
            _ => libc::EINVAL,
        };
        let create = |requested| create(&ctx, kind(*card), requested);
        let smallest = create([1, 1, 1, 1, 0]).unwrap();
        assert!(
            smallest
                .iter()
                .zip([1, 1, 1, 1, 0])
                .all(|(granted, requested)| *granted >= requested)
        );
        assert_eq!(create([max_wr + 1, 1, 1, 1, 0]), Err(depth_errno), "{card}");
        assert_eq!(create([1, max_wr + 1, 1, 1, 0]), Err(depth_errno), "{card}");
        let [.., send_sge, recv_sge, _] = create([1, 1, max_sge, max_sge, 0]).unwrap();
        assert!(send_sge >= max_sge && recv_sge >= max_sge, "{card}");
        assert_eq!(create([1, 1, 64, 1, 0]), Err(libc::EINVAL), "{card}");
        assert_eq!(create([1, 1, 1, 64, 0]), Err(libc::EINVAL), "{card}");
        let inline = create([1, 1, 1, 1, 1025]);
        let is_unlimited = *card == Card::Ql41000;
        assert_eq!(inline.is_err(), !is_unlimited, "{card}");
        let cqe = attr.max_cqe();
        let error = ctx.create_cq(cqe + 1).unwrap_err();
        let cq_errno = match card {
            Card::Erdma => libc::EIO,
            _ => libc::EINVAL,
        };
        assert_eq!(error.raw_os_error(), Some(cq_errno), "{card}");
    }
}

/// Each maximum is granted alone, and not beside the others.
#[test]
fn combinations_of_maxima_fail() {
    for (card, alone, together) in [
        // A send request with a binding takes 4 blocks of 64 bytes, so a quarter of the requests fit.
        (Card::ConnectX5, [8192, 32768, 1, 1, 0], [32768, 1, 1, 1, 0]),
        (Card::ConnectX6, [8192, 1, 4, 1, 0], [8192, 1, 5, 1, 0]),
        (Card::ConnectX6Lx, [1, 1, 1, 1, 828], [8192, 1, 1, 1, 828]),
        (Card::Efa, [1, 4096, 1, 3, 0], [1, 4097, 1, 3, 0]),
    ] {
        let (_fabric, _host, ctx) = device(card);
        let create = |requested| create(&ctx, kind(card), requested);
        assert!(create(alone).is_ok(), "{card}");
        assert_eq!(create(together), Err(libc::EINVAL), "{card}");
    }
}

/// A program that counts free slots by the capacity that it has requested is wrong on each card that rounds.
#[test]
fn capacities_are_those_of_the_driver() {
    for (card, granted) in [
        (Card::ConnectX3, [223, 128, 2, 4, 28]),
        (Card::ConnectX5, [128, 128, 1, 4, 60]),
        (Card::ConnectX6, [128, 128, 1, 4, 60]),
        (Card::ConnectX6Lx, [128, 128, 1, 4, 60]),
        (Card::E810, [127, 127, 1, 3, 8]),
        (Card::E810Fw174, [127, 127, 1, 3, 8]),
        (Card::X722, [254, 127, 1, 3, 8]),
        (Card::T6, [100, 100, 1, 3, 8]),
        (Card::BnxtP5, [100, 100, 1, 3, 8]),
        (Card::Ql41000, [100, 100, 1, 3, 8]),
        (Card::Efa, [128, 170, 1, 3, 8]),
        (Card::Rxe, [127, 127, 1, 3, 16]),
        (Card::Siw, [128, 128, 1, 3, 8]),
    ] {
        let (_fabric, _host, ctx) = device(card);
        let requested = [100, 100, 1, 3, 8];
        assert_eq!(create(&ctx, kind(card), requested), Ok(granted), "{card}");
    }
    let (_fabric, _host, ctx) = device(Card::Erdma);
    let granted = create(&ctx, kind(Card::Erdma), [100, 100, 1, 1, 8]);
    assert_eq!(granted, Ok([128, 128, 1, 1, 8]));
    assert_eq!(ctx.create_cq(10).unwrap().capacity(), 64);
}

/// The error of `verbs` for a queue pair that a card refuses.
fn refusal(
    card: Card,
    build: impl FnOnce(&ProtectionDomain, &CompletionQueue) -> String,
) -> String {
    let (_fabric, _host, ctx) = device(card);
    let pd = ctx.alloc_pd().unwrap();
    // `verbs` refuses queue pairs with more requests than the queue has entries.
    let cq = ctx.create_cq(20_000).unwrap();
    build(&pd, &cq)
}

/// Programs that assume a capacity (send requests, elements, inline bytes), each on a card that has less, and the end of the error.
const ASSUMPTIONS: [(Card, [u32; 3], &str); 14] = [
    (
        Card::ConnectX5,
        [64, 32, 0],
        "max_send_sge is 32, and the device allows 30",
    ),
    (
        Card::ConnectX6,
        [16384, 1, 0],
        "does not grant them together",
    ),
    (
        Card::ConnectX6Lx,
        [64, 1, 900],
        "max_inline_data is 900, and the device allows 828",
    ),
    (
        Card::ConnectX3,
        [16384, 1, 0],
        "max_send_wr is 16384, and the device allows 16351",
    ),
    (
        Card::E810,
        [64, 1, 220],
        "max_inline_data is 220, and the device allows 101",
    ),
    (
        Card::E810Fw174,
        [64, 8, 0],
        "max_send_sge is 8, and the device allows 6",
    ),
    (
        Card::X722,
        [1024, 1, 0],
        "max_send_wr is 1024, and the device allows 895",
    ),
    (
        Card::T6,
        [8190, 1, 0],
        "max_send_wr is 8190, and the device allows 8189",
    ),
    (
        Card::BnxtP5,
        [8192, 1, 0],
        "max_send_wr is 8192, and the device allows 4351",
    ),
    (
        Card::Ql41000,
        [64, 5, 0],
        "max_send_sge is 5, and the device allows 4",
    ),
    (Card::Efa, [64, 1, 0], "Operation not supported"),
    (
        Card::Erdma,
        [64, 1, 128],
        "max_inline_data is 128, and the device allows 96",
    ),
    (
        Card::Rxe,
        [64, 33, 0],
        "max_send_sge is 33, and the device allows 32",
    ),
    (
        Card::Siw,
        [64, 1, 128],
        "max_inline_data is 128, and the device allows 80",
    ),
];

#[test]
fn assumed_capacity_fails_with_the_limit_of_the_card() {
    for (card, [sends, elements, inline], expected) in ASSUMPTIONS {
        let text = refusal(card, |pd, cq| {
            let builder = pd.qp_builder::<verbs::Rc>(cq, cq);
            let builder = builder.max_send_wr(sends).max_recv_wr(1);
            let builder = builder.max_send_sge(elements).max_inline_data(inline);
            builder.create().map(|_qp| ()).unwrap_err().to_string()
        });
        assert!(text.contains(expected), "{card}: {text}");
        assert!(text.contains("ibv_create_qp"), "{card}: {text}");
    }
}

#[test]
fn absent_features_of_a_card_are_refused() {
    for (card, has_srqs, has_windows) in [
        (Card::ConnectX5, true, true),
        (Card::E810, false, true),
        (Card::Efa, false, false),
        (Card::Erdma, false, false),
        (Card::Siw, true, false),
    ] {
        let (_fabric, _host, ctx) = device(card);
        let pd = ctx.alloc_pd().unwrap();
        let mut init = ffi::ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (100, 2);
        // SAFETY: a live domain, and attributes of this function.
        let srq = unsafe { ffi::ibv_create_srq(pd.as_raw(), &raw mut init) };
        assert_eq!(!srq.is_null(), has_srqs, "{card}");
        if srq.is_null() {
            let errno = std::io::Error::last_os_error().raw_os_error();
            assert_eq!(errno, Some(libc::EOPNOTSUPP), "{card}");
        } else {
            assert!(
                init.attr.max_wr > 100,
                "{card}: the granted capacity is written"
            );
            // SAFETY: live until here.
            assert_eq!(unsafe { ffi::ibv_destroy_srq(srq) }, 0);
        }
        // SAFETY: a live domain.
        let window = unsafe { ffi::ibv_alloc_mw(pd.as_raw(), ffi::ibv_mw_type::IBV_MW_TYPE_1) };
        assert_eq!(!window.is_null(), has_windows, "{card}");
        if !window.is_null() {
            // SAFETY: live until here.
            assert_eq!(unsafe { ffi::ibv_dealloc_mw(window) }, 0);
        }
    }
    let flush = RemoteAccess::FLUSH_GLOBAL;
    let (_fabric, _host, ctx) = device(Card::ConnectX5);
    let refused = ctx.alloc_pd().unwrap().alloc_remote(64, flush).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    let (_fabric, _host, ctx) = device(Card::T6);
    let cq = ctx.create_cq(100).unwrap();
    // SAFETY: a live queue.
    let resized = unsafe { ffi::ibv_resize_cq(cq.as_raw(), 200) };
    assert_eq!(resized, libc::EOPNOTSUPP);
}

/// SPDK#3069: the seventeenth read on a card with sixteen.
#[test]
fn depth_of_reads_beyond_the_card_is_refused() {
    let this = Connected::new(Fabric::seeded(7).card(Card::ConnectX5));
    for (depth, errno) in [(16, None), (17, Some(libc::EINVAL))] {
        let peer = AddressVector::global(1, 0, this.b.gid);
        let psn = Psn::from_low_bits(0);
        let rtr = Attributes::<verbs::Rc, Rtr>::new(&peer, this.qp_b.qp_num(), psn);
        let rtr = rtr.max_dest_rd_atomic(depth);
        let qp = this.a.qp().to_init(&Attributes::<verbs::Rc, Init>::new(1));
        let qp = qp.map_err(|refused| refused.error).unwrap();
        let refused = qp.to_rtr(&rtr).err();
        let found = refused.map(|refused| refused.error.raw_os_error());
        assert_eq!(found, errno.map(Some), "{depth}");
    }
}

#[test]
fn queried_depths_of_reads_are_granted() {
    for card in Card::ALL {
        let (_fabric, _host, ctx) = device(*card);
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
        if kind(*card) != ffi::ibv_qp_type::IBV_QPT_RC {
            continue;
        }
        let device = ctx.query_device().unwrap();
        let [accepted, requested] = [device.max_qp_rd_atom(), device.max_qp_init_rd_atom()]
            .map(|depth| u8::try_from(depth).unwrap());
        assert!(accepted > 0 && requested > 0, "{card}");
        let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let qp = builder.max_send_wr(1).max_recv_wr(1).create().unwrap();
        let peer = AddressVector::global(1, 0, ctx.query_gid(1, 0).unwrap().unwrap());
        let psn = Psn::from_low_bits(0);
        let rtr = Attributes::<verbs::Rc, Rtr>::new(&peer, qp.qp_num(), psn);
        let qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1));
        let qp = qp.map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rtr(&rtr.max_dest_rd_atomic(accepted));
        let qp = qp.unwrap_or_else(|refused| panic!("{card}: {}", refused.error));
        let rts = Attributes::<verbs::Rc, Rts>::new(psn).max_rd_atomic(requested);
        let qp = qp.to_rts(&rts);
        let qp = qp.unwrap_or_else(|refused| panic!("{card}: {}", refused.error));
        let (mut found, mut init) = (ffi::ibv_qp_attr::zeroed(), ffi::ibv_qp_init_attr::zeroed());
        // SAFETY: a live queue pair, and attributes of this function.
        let queried = unsafe { ffi::ibv_query_qp(qp.as_raw(), &raw mut found, 0, &raw mut init) };
        assert_eq!(queried, 0);
        // The engine has at most 128 of each.
        let granted = [found.max_dest_rd_atomic, found.max_rd_atomic];
        assert_eq!(
            granted,
            [accepted, requested].map(|depth| depth.min(128)),
            "{card}"
        );
    }
}

#[test]
fn atomics_on_a_card_without_them_are_refused() {
    for (card, is_posted) in [(Card::ConnectX5, true), (Card::E810, false)] {
        let mut this = Connected::new(Fabric::seeded(7).card(card));
        let number = this.b.pd.alloc_remote(8, RemoteAccess::ATOMIC).unwrap();
        let buf = this.a.pd.alloc_buf(8).unwrap();
        let posted = this.qp_a.post(op::FetchAdd::new(buf, number.token(), 2));
        assert_eq!(posted.is_ok(), is_posted, "{card}");
        if is_posted {
            let _done = this.a.reap(&mut this.qp_a, 1);
        }
    }
}
