//! `test_mr.py`: bad flags, and memory windows

use std::ptr;

use ibverbs_sys as ffi;
use verbs::{
    CompletionQueue, MemoryWindow, RemoteAccess, RemoteRegion, RemoteToken, WcStatus,
    mw::WindowType, op,
};

use super::traffic::{self, RcQp, SIZE, content, sent};
use crate::loopback::{Fixture, expect_bytes};

/// Safe registration always adds the flag missing here, so the test calls C directly.
#[test]
fn reg_mr_bad_flags() {
    let Fixture { pd, .. } = Fixture::new();
    let mut memory = [0_u8; 64];
    for access in [RemoteAccess::WRITE, RemoteAccess::ATOMIC] {
        let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
        // SAFETY: the domain exists, and so does the memory, for the life of a possible
        // registration.
        let mr = unsafe { ffi::ibv_reg_mr(pd.as_raw(), start, len, access.bits()) };
        assert!(mr.is_null());
        assert!(pd.alloc_remote(64, access).is_ok());
    }
}

/// One end of a connection: memory, and a window to the memory for the peer.
struct Player {
    qp: RcQp,
    region: RemoteRegion,
    window: Option<MemoryWindow>,
    /// The binding, once there is one.
    token: Option<RemoteToken>,
}

struct Windows {
    cq: CompletionQueue,
    /// The first player writes to the second.
    players: [Player; 2],
    fixture: Fixture,
}

impl Windows {
    /// Binds a window on each side, and writes through both.
    fn new(window_type: WindowType) -> Self {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let (a, b) = traffic::rc_pair(&fixture, &cq);
        let players = [a, b].map(|qp| Player {
            qp,
            region: fixture.pd.alloc_for_windows(SIZE).unwrap(),
            window: Some(fixture.pd.alloc_mw(window_type).unwrap()),
            token: None,
        });
        let mut this = Self {
            cq,
            players,
            fixture,
        };
        for i in 0..2 {
            this.bind(i, 0..SIZE);
        }
        for _ in 0..20 {
            assert_eq!(this.write(), WcStatus::SUCCESS);
            expect_bytes(|bytes| this.players[1].region.read(0, bytes), &content(0));
            this.players[1].region.write(0, &vec![0; SIZE]);
            this.players.reverse();
        }
        this
    }

    fn bind(&mut self, i: usize, range: std::ops::Range<usize>) {
        let player = &mut self.players[i];
        let (window, work) = (
            player.window.as_mut().unwrap(),
            self.fixture.pd.alloc_buf(1),
        );
        let part = player.region.slice(range);
        let access = RemoteAccess::WRITE;
        let bound = player.qp.bind_window(window, &part, access, work.unwrap());
        let token = bound.map_err(|refused| refused.error).unwrap();
        assert_eq!(sent(&mut self.cq, &mut player.qp).0, WcStatus::SUCCESS);
        player.token.get_or_insert(token);
    }

    /// Writes from the first side to the second, through the first binding.
    fn write(&mut self) -> WcStatus {
        let [active, passive] = &mut self.players;
        let token = passive.token.unwrap();
        traffic::write(&self.fixture, &mut self.cq, &mut active.qp, token)
    }

    fn expect_closed(mut self) {
        assert_eq!(self.write(), WcStatus::REM_ACCESS_ERR);
        let mut bytes = vec![1; SIZE];
        self.players[1].region.read(0, &mut bytes);
        assert_eq!(bytes, vec![0; SIZE]);
    }
}

#[test]
fn mw_type1() {
    Windows::new(WindowType::Type1);
}

/// Binding a window of type 1 to nothing closes the window.
#[test]
fn invalidate_mw_type1() {
    let mut windows = Windows::new(WindowType::Type1);
    for i in 0..2 {
        windows.bind(i, 0..0);
    }
    windows.expect_closed();
}

#[test]
fn mw_type2() {
    Windows::new(WindowType::Type2);
}

#[test]
fn mw_type2_invalidate_local() {
    let mut windows = Windows::new(WindowType::Type2);
    for Player { qp, token, .. } in &mut windows.players {
        let work = windows.fixture.pd.alloc_buf(1).unwrap();
        qp.post(op::LocalInvalidate::new(work, token.unwrap().rkey))
            .unwrap();
        assert_eq!(sent(&mut windows.cq, qp).0, WcStatus::SUCCESS);
    }
    windows.expect_closed();
}

#[test]
fn mw_type2_invalidate_remote() {
    let mut windows = Windows::new(WindowType::Type2);
    let pd = windows.fixture.pd.clone();
    for _ in 0..2 {
        let [active, passive] = &mut windows.players;
        passive.qp.post_recv(pd.alloc_buf(1).unwrap()).unwrap();
        let rkey = passive.token.unwrap().rkey;
        let request = op::Send::new(pd.alloc_buf(1).unwrap()).invalidate(rkey);
        active.qp.post(request).unwrap();
        traffic::exchanged(&mut windows.cq, &mut active.qp, &mut passive.qp);
        windows.players.reverse();
    }
    windows.expect_closed();
}

#[test]
fn mw_type2_invalidate_dealloc() {
    let mut windows = Windows::new(WindowType::Type2);
    for player in &mut windows.players {
        player.window = None;
    }
    windows.expect_closed();
}

/// There are two types, and the kernel refuses a third, accessible from C only.
#[test]
fn reg_mw_wrong_type() {
    let Fixture { pd, .. } = Fixture::new();
    // SAFETY: the domain exists; a C enum may have any value.
    let window = unsafe { ffi::ibv_alloc_mw(pd.as_raw(), ffi::ibv_mw_type(3)) };
    assert_eq!(window, ptr::null_mut());
}
