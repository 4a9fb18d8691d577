//! `test_addr.py`

use verbs::{ah::AddressVector, attr::LinkLayer};

use crate::loopback::Fixture;

#[test]
fn create_ah() {
    let fixture = Fixture::new();
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    assert_eq!(ah.pd(), &fixture.pd);
    assert!(!ah.as_raw().is_null());
}

#[test]
fn create_ah_roce() {
    let fixture = Fixture::new();
    let port = fixture.ctx.query_port(1).unwrap();
    assert_eq!(port.link_layer(), LinkLayer::ETHERNET);
    let err = fixture
        .pd
        .create_ah(&AddressVector::local(1, 0))
        .unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert!(err.to_string().contains("ibv_create_ah"), "{err}");
}

#[test]
fn destroy_ah() {
    let fixture = Fixture::new();
    // Many more than there is room for, unless each is destroyed.
    let limit = fixture.ctx.query_device().unwrap().max_ah();
    for _ in 0..(2 * limit).clamp(16, 1000) {
        drop(fixture.pd.create_ah(&fixture.address_vector()).unwrap());
    }
}
