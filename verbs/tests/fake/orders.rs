//! Dropping objects in every order.

#[path = "../shared/orders.rs"]
mod shared;

use std::num::NonZero;

use softnic::Call;
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
        address_vector: AddressVector::global(1, 1, Gid([0xfe; 16])),
        connect: &|qp| fixture.connect(qp),
        finish: &|qp_num| fixture.fake.complete_send(qp_num, WcStatus::SUCCESS),
    };
    drop_in_order(&world, number);
}

/// Dropping never panics: an object that the device does not destroy stays, with all its
/// dependencies.
#[test]
fn failed_destroy_in_drop_leaks_the_object() {
    for (call, object) in [
        (Call::DeallocPd, "ibv_pd"),
        (Call::DestroyCompChannel, "ibv_comp_channel"),
        (Call::DestroyCq, "ibv_cq"),
        (Call::DestroySrq, "ibv_srq"),
        (Call::DestroyQp, "ibv_qp_ex"),
        (Call::DeregMr, "ibv_mr"),
        (Call::DeallocMw, "ibv_mw"),
        (Call::DestroyAh, "ibv_ah"),
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
