//! Dropping objects in every order.

#[path = "../shared/orders.rs"]
mod shared;

use std::num::NonZero;

use verbs::{Gid, WcStatus, ah::AddressVector};

use self::shared::{ORDERS, World, drop_in_order};
use crate::fixture::Fixture;

#[test]
fn working_set_can_be_dropped_in_every_order() {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                for number in (first..ORDERS).step_by(threads) {
                    drop_in_one_order(number);
                }
            });
        }
    });
}

fn drop_in_one_order(number: usize) {
    let fixture = Fixture::new();
    let before = fixture.fake.live();
    drop_set(&fixture, number);
    assert_eq!(fixture.fake.live(), before, "in order {number}");
}

fn drop_set(fixture: &Fixture, number: usize) {
    let world = World {
        ctx: &fixture.ctx,
        way: AddressVector::global(1, 1, Gid([0xfe; 16])),
        connect: &|qp| fixture.connect(qp),
        finish: &|qp_num| fixture.fake.complete_send(qp_num, WcStatus::SUCCESS),
    };
    drop_in_order(&world, number);
}

/// Dropping never panics: an object that the device does not destroy stays, with all its
/// dependencies.
#[test]
fn failed_destruction_is_given_up_in_silence() {
    for (call, object) in [
        ("ibv_dealloc_pd", "ibv_pd"),
        ("ibv_destroy_comp_channel", "ibv_comp_channel"),
        ("ibv_destroy_cq", "ibv_cq"),
        ("ibv_destroy_srq", "ibv_srq"),
        ("ibv_destroy_qp", "ibv_qp_ex"),
        ("ibv_dereg_mr", "ibv_mr"),
        ("ibv_dealloc_mw", "ibv_mw"),
        ("ibv_destroy_ah", "ibv_ah"),
    ] {
        for number in (0..ORDERS).step_by(4001) {
            let fixture = Fixture::new();
            let count = |fixture: &Fixture| {
                let live = fixture.fake.live();
                live.iter().filter(|live| **live == object).count()
            };
            let before = count(&fixture);
            fixture.fake.fail(call, libc::EBUSY);
            drop_set(&fixture, number);
            assert!(count(&fixture) > before, "{call} in order {number}");
        }
    }
}
