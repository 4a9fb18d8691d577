//! Memory windows: binding, bounds, and invalidation from both sides.

use softnic::engine::{Access, Binding, CompletionOp, QpKind, Remote, SendOp, Status, WindowKind};

use crate::{
    pair::{Pair, SEND, request},
    shadow::BASE,
};

/// A pair whose second host has bound a window of 64 bytes by a work request, and the window's key.
fn bound(kind: WindowKind) -> (Pair, u32) {
    let mut pair = Pair::connected(QpKind::Rc);
    let host = &mut pair.hosts[1];
    let rkey = host.engine.alloc_window(host.pd, kind).unwrap();
    let new_rkey = rkey & !0xff | (rkey + 1) & 0xff;
    let binding = Binding {
        region: host.key,
        addr: BASE + 128,
        len: 64,
        access: Access::REMOTE_WRITE,
    };
    let op = SendOp::Bind {
        rkey,
        new_rkey,
        binding,
    };
    pair.post(1, request(1, op, &[]));
    pair.run();
    let completion = pair.hosts[1].poll()[0];
    assert_eq!(
        (completion.op, completion.status),
        (CompletionOp::Bind, Status::Success)
    );
    (pair, new_rkey)
}

fn write(pair: &mut Pair, rkey: u32, addr: u64) -> Status {
    let op = SendOp::Write {
        remote: Remote { addr, rkey },
        imm: None,
    };
    let sge = pair.hosts[0].sge(0, 16);
    pair.post(0, request(9, op, &[sge]));
    pair.run();
    pair.hosts[0].poll()[0].status
}

#[test]
fn window_opens_its_range_and_no_more() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let (mut pair, rkey) = bound(kind);
        assert_eq!(write(&mut pair, rkey, BASE + 128 + 48), Status::Success);
        assert_eq!(
            write(&mut pair, rkey, BASE + 128 + 49),
            Status::RemoteAccess
        );
        let (mut pair, rkey) = bound(kind);
        assert_eq!(write(&mut pair, rkey, BASE + 127), Status::RemoteAccess);
        let (mut pair, rkey) = bound(kind);
        let old = rkey & !0xff | (rkey - 1) & 0xff;
        assert_eq!(
            write(&mut pair, old, BASE + 128),
            Status::RemoteAccess,
            "the old key"
        );
    }
}

#[test]
fn peer_invalidates_a_window_with_a_message() {
    let (mut pair, rkey) = bound(WindowKind::Type2);
    let sge = pair.hosts[1].sge(0, 8);
    pair.post_recv(1, 7, &[sge]);
    let op = SendOp::Send {
        imm: None,
        invalidate: Some(rkey),
    };
    let from = pair.hosts[0].sge(0, 8);
    pair.post(0, request(8, op, &[from]));
    pair.run();
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
    assert_eq!(pair.hosts[1].poll()[0].invalidated, Some(rkey));
    assert_eq!(write(&mut pair, rkey, BASE + 128), Status::RemoteAccess);
}

#[test]
fn message_that_invalidates_a_key_of_another_kind_fails() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[1].sge(0, 8);
    pair.post_recv(1, 7, &[sge]);
    let op = SendOp::Send {
        imm: None,
        invalidate: Some(pair.hosts[1].key),
    };
    pair.post(0, request(8, op, &[sge]));
    pair.run();
    assert_eq!(pair.hosts[0].poll()[0].status, Status::RemoteAccess);
    assert_eq!(pair.hosts[1].poll()[0].status, Status::LocalAccess);
}

#[test]
fn window_is_invalidated_locally_after_earlier_requests() {
    let (mut pair, rkey) = bound(WindowKind::Type2);
    let sge = pair.hosts[1].sge(0, 8);
    pair.post_recv(0, 1, &[sge]);
    pair.post(1, request(2, SEND, &[sge]));
    pair.post(1, request(3, SendOp::LocalInvalidate(rkey), &[]));
    assert_eq!(pair.hosts[1].poll(), [], "in order");
    pair.run();
    let order: Vec<_> = pair.hosts[1].poll().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(order, [2, 3]);
    let _receive = pair.hosts[0].poll();
    assert_eq!(write(&mut pair, rkey, BASE + 128), Status::RemoteAccess);
}

/// The status of the binding of a new window of the second host.
fn bind(kind: WindowKind, addr: u64, len: u64, access: Access) -> Status {
    let mut pair = Pair::connected(QpKind::Rc);
    let host = &mut pair.hosts[1];
    let rkey = host.engine.alloc_window(host.pd, kind).unwrap();
    let binding = Binding {
        region: host.key,
        addr,
        len,
        access,
    };
    let op = SendOp::Bind {
        rkey,
        new_rkey: rkey,
        binding,
    };
    pair.post(1, request(1, op, &[]));
    pair.run();
    pair.hosts[1].poll()[0].status
}

#[test]
fn window_beyond_its_region_is_not_bound() {
    let end = BASE + (1 << 20) - 4096;
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let read = Access::REMOTE_READ;
        assert_eq!(bind(kind, end - 8, 8, read), Status::Success);
        assert_eq!(bind(kind, end - 8, 16, read), Status::Bind);
        assert_eq!(bind(kind, BASE - 8, 16, read), Status::Bind);
    }
}

#[test]
fn only_windows_of_type_2_count_addresses_from_zero() {
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    assert_eq!(bind(WindowKind::Type1, BASE, 8, access), Status::Bind);
    assert_eq!(bind(WindowKind::Type2, BASE, 8, access), Status::Success);
}

#[test]
fn only_windows_of_type_1_are_unbound_by_an_empty_range() {
    let access = Access::REMOTE_READ;
    assert_eq!(bind(WindowKind::Type1, BASE, 0, access), Status::Success);
    assert_eq!(bind(WindowKind::Type2, BASE, 0, access), Status::Bind);
}
