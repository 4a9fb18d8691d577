//! Dropping objects in many orders; the fake's test covers every order.

#[path = "../shared/orders.rs"]
mod shared;

use self::shared::{ORDERS, World, drop_in_order};
use crate::loopback::Fixture;

#[test]
fn working_set_can_be_dropped_in_many_orders() {
    let fixture = Fixture::new();
    let world = World {
        ctx: &fixture.ctx,
        address_vector: fixture.address_vector(),
        connect: &|qp| {
            let qp_num = qp.qp_num();
            fixture.bring_up(qp, qp_num)
        },
        finish: &|_| {},
    };
    // A domain still in use could not be deallocated, and would keep its handle.
    let handle = || fixture.ctx.alloc_pd().unwrap().kernel_handle();
    let before = handle();
    for number in (0..ORDERS).step_by(163) {
        drop_in_order(&world, number);
        assert_eq!(handle(), before, "in order {number}");
    }
}
