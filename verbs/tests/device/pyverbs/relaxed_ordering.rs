//! `test_relaxed_ordering.py`

use verbs::Buf;

use super::traffic;
use crate::loopback::Fixture;

fn relaxed(fixture: &Fixture, len: usize) -> Buf {
    let registration = fixture.pd.register(vec![0; len]);
    registration.relaxed_ordering().create_buf().unwrap()
}

#[test]
fn ro_rc_traffic() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let ends = traffic::rc_pair(&fixture, &cq);
    traffic::rc_messages(&mut cq, ends, |len| relaxed(&fixture, len));
}

#[test]
fn ro_ud_traffic() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let ends = traffic::datagram_pair(&fixture, &cq);
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    traffic::datagrams(&mut cq, &ah, ends, |len| relaxed(&fixture, len));
}
