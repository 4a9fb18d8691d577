//! Memory windows whose bindings are delayed, or fail. The fabric reports memory that is left registered.

use softnic::Fabric;
use verbs::{MemoryWindow, RemoteAccess, WcStatus, mw::WindowType, op};

use crate::end::Connected;

const TYPES: [WindowType; 2] = [WindowType::Type1, WindowType::Type2];

/// Binds a window to new memory, and drops this handle of the memory.
fn bind(this: &mut Connected, window: &mut MemoryWindow) {
    let region = this.a.pd.alloc_for_windows(64).unwrap();
    let done = this.a.filled(&[0]);
    this.qp_a
        .bind_window(window, &region, RemoteAccess::WRITE, done)
        .unwrap();
}

#[test]
fn memory_dropped_while_further_bindings_are_queued_is_released_with_the_window() {
    for kind in TYPES {
        let mut this = Connected::new(Fabric::new());
        let mut window = this.a.pd.alloc_mw(kind).unwrap();
        bind(&mut this, &mut window);
        this.a.reap(&mut this.qp_a, 1);
        // The peer has no receive, so the queue waits, with the first binding in force.
        let message = this.a.filled(b"early");
        this.qp_a.post(op::Send::new(message)).unwrap();
        for _ in 0..2 {
            if kind == WindowType::Type2 {
                let invalidate = op::LocalInvalidate::new(this.a.filled(&[0]), window.rkey());
                this.qp_a.post(invalidate).unwrap();
            }
            bind(&mut this, &mut window);
        }
        let requests = this.qp_a.send_queue().in_flight();
        this.qp_b.post_recv(this.b.filled(&[0; 8])).unwrap();
        for done in this.a.reap(&mut this.qp_a, requests) {
            assert_eq!(done.status, WcStatus::SUCCESS);
        }
        this.b.reap(&mut this.qp_b, 1);
    }
}

#[test]
fn memory_of_a_binding_before_failed_ones_is_released_with_the_window() {
    for kind in TYPES {
        let mut this = Connected::new(Fabric::new());
        let mut window = this.a.pd.alloc_mw(kind).unwrap();
        bind(&mut this, &mut window);
        this.a.reap(&mut this.qp_a, 1);
        this.qp_a.to_error().unwrap();
        for _ in 0..3 {
            bind(&mut this, &mut window);
        }
        assert_eq!(this.a.reap(&mut this.qp_a, 3).len(), 3);
    }
}
