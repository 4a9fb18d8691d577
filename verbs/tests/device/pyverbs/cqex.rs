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
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    traffic::datagrams(&mut cq, &ah, ends, |len| fixture.pd.alloc_buf(len).unwrap());
}

#[test]
fn rc_traffic_cq_ex() {
    let fixture = Fixture::new();
    let mut cq = extended(&fixture);
    let ends = traffic::rc_pair(&fixture, &cq);
    traffic::rc_messages(&mut cq, ends, |len| fixture.pd.alloc_buf(len).unwrap());
}

/// Every field and every option by itself. A device without a clock, such as Soft-RoCE, has the standard fields only.
#[test]
fn create_cq_ex() {
    let fixture = Fixture::new();
    let attr = fixture.ctx.query_device().unwrap();
    let mut supported = WcFields::STANDARD;
    if attr.completion_timestamp_mask() != 0 {
        supported |= WcFields::COMPLETION_TIMESTAMP | WcFields::COMPLETION_TIMESTAMP_WALLCLOCK;
    }
    for (name, field) in WcFields::all().iter_names() {
        let created = fixture.ctx.cq_ex_builder(10).with(field).create();
        let fields = created.map(|cq| cq.fields().contains(field));
        let expected = match supported.contains(field) {
            true => Ok(true),
            false => Err(Some(libc::EOPNOTSUPP)),
        };
        assert_eq!(fields.map_err(|err| err.raw_os_error()), expected, "{name}");
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
