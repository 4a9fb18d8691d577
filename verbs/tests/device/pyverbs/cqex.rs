//! `test_cqex.py`

use verbs::cq::{ExtendedCq, WcFields};

use super::traffic;
use crate::loopback::{Fixture, open};

fn extended(fixture: &Fixture) -> ExtendedCq {
    let cq = fixture.ctx.cq_ex_builder(2000).waitable();
    cq.with(WcFields::STANDARD).create().unwrap()
}

#[test]
fn ud_traffic_cq_ex() {
    let fixture = Fixture::new();
    let mut cq = extended(&fixture);
    let ends = traffic::datagram_pair(&fixture, &cq);
    let ah = fixture.pd.create_ah(&fixture.way()).unwrap();
    traffic::datagrams(&mut cq, &ah, ends, |len| fixture.pd.alloc_buf(len).unwrap());
}

#[test]
fn rc_traffic_cq_ex() {
    let fixture = Fixture::new();
    let mut cq = extended(&fixture);
    let ends = traffic::rc_pair(&fixture, &cq);
    traffic::rc_messages(&mut cq, ends, |len| fixture.pd.alloc_buf(len).unwrap());
}

/// Every field and every option by itself; a device without one returns an error.
#[test]
fn create_cq_ex() {
    let fixture = Fixture::new();
    let attr = fixture.ctx.query_device().unwrap();
    for (name, field) in WcFields::all().iter_names() {
        match fixture.ctx.cq_ex_builder(10).with(field).create() {
            Ok(cq) => assert!(cq.fields().contains(field), "{name}"),
            Err(err) => {
                assert!(!WcFields::STANDARD.contains(field), "{name}: {err}");
                assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP), "{name}");
            }
        }
    }
    if attr.completion_timestamp_mask() != 0 {
        let timed = WcFields::COMPLETION_TIMESTAMP;
        assert!(fixture.ctx.cq_ex_builder(10).with(timed).create().is_ok());
    }
    // SAFETY: no object is made on the queue.
    let single = unsafe { fixture.ctx.cq_ex_builder(10).single_threaded() };
    assert!(single.create().is_ok());
}

#[test]
fn create_cq_ex_bad_flow() {
    let ctx = open();
    let too_many = ctx.query_device().unwrap().max_cqe() + 1;
    let no_vector = ctx.num_comp_vectors() + 1;
    for (entries, vector) in [(too_many, 0), (10, no_vector)] {
        let cq = ctx.cq_ex_builder(entries).comp_vector(vector).create();
        assert_eq!(cq.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
