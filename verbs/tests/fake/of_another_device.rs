//! Objects and memory of one device used with those of another: providers trust their arguments.

use verbs::{
    Buf, Context, Init, QueuePair, RemoteAccess, RemoteRegion, Rtr, Rts, Ud,
    ah::Addressed,
    cq::CqKey,
    flow::{FlowRule, FlowTarget},
    mw::WindowType,
    op,
    qp::{Attributes, Psn},
};

use crate::{
    fixture::Fixture,
    queue_pairs::address_vector,
    unmapped::{refusal, zero_based},
};

const WRONG: &str = "of another device";

#[test]
fn foreign_devices_memory_is_refused_by_posts() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, RemoteRegion, RemoteRegion> = fixture.rc(&cq, 2);
    let refused = refusal(qp.post(op::Send::new(zero_based(&other))));
    assert!(refused.contains(WRONG), "{refused}");
    let refused = refusal(qp.post_recv(zero_based(&other)));
    assert!(refused.contains(WRONG), "{refused}");
    let mut batch = qp.batch();
    let refused = refusal(batch.push(op::Send::new(zero_based(&other))));
    assert!(refused.contains(WRONG), "{refused}");
}

#[test]
fn address_handle_of_another_device_is_refused() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let cq = fixture.cq(8);
    let qp = fixture.pd.qp_builder::<Ud>(&cq, &cq).create_for().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    let rts = Attributes::<Ud, Rts>::new(Psn::default());
    let mut qp: QueuePair<Ud, Rts, Addressed<Buf>> = qp.to_rts(&rts).unwrap();
    let ah = other.pd.create_ah(&address_vector(3)).unwrap();
    let work = Addressed::new(fixture.pd.alloc_buf(4).unwrap(), &ah);
    let refused = refusal(qp.post(op::SendTo::new(work, qp.qp_num(), 7)));
    assert!(refused.contains(WRONG), "{refused}");
}

#[test]
fn parent_domain_of_another_device_is_refused() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let parent = other.pd.parent_domain_builder().create().unwrap();
    let refused = fixture.ctx.cq_ex_builder(4).parent_domain(&parent).create();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(WRONG), "{refused}");
}

#[test]
fn window_is_not_bound_to_a_region_of_another_device() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, ()> = fixture.rc(&cq, 2);
    let region = other.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let refused = qp.bind_window(&mut window, &region, RemoteAccess::READ, ());
    let refused = refused.unwrap_err().error.to_string();
    assert!(refused.contains("different devices"), "{refused}");
}

#[test]
fn completion_channel_of_another_device_is_refused() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let channel = other.ctx.create_comp_channel().unwrap();
    let builder = fixture.ctx.cq_builder(4).channel(&channel, CqKey(1));
    let refused = builder.create().unwrap_err().to_string();
    assert!(refused.contains(WRONG), "{refused}");
    let builder = fixture.ctx.cq_ex_builder(4).channel(&channel, CqKey(1));
    let refused = builder.create().unwrap_err().to_string();
    assert!(refused.contains(WRONG), "{refused}");
}

#[test]
fn counters_of_another_device_are_refused() {
    let (fixture, other) = (Fixture::new(), Fixture::second_device());
    let cq = fixture.cq(8);
    let qp = fixture.pd.qp_builder::<Ud>(&cq, &cq).create().unwrap();
    let counters = other.ctx.create_counters().unwrap();
    let refused = qp.create_flow(&FlowRule::new(1).count(&counters));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(WRONG), "{refused}");
}

/// Two handles of one device are of one device only if one is a clone of the other.
#[test]
fn device_opened_twice_is_named_in_the_refusal() {
    let fixture = Fixture::new();
    let again: Context = fixture.fake.open();
    let cq = again.create_cq(8).unwrap();
    let refused = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).create();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("opened a second time"), "{refused}");
    assert!(refused.contains("clone"), "{refused}");
}
