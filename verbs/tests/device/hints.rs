//! Hints in the text of errors, for failures caused by the device.

use verbs::{Buf, Error, RemoteAccess, WcStatus, op};

use crate::loopback::{Fixture, open};

#[track_caller]
fn names<T>(result: Result<T, impl Into<Error>>, expected: &[&str]) {
    let text = result.err().expect("it succeeded").into().to_string();
    for name in expected {
        assert!(text.contains(name), "{text} does not name {name}");
    }
}

#[test]
fn unknown_device_name_lists_all_names() {
    let devices = verbs::devices().unwrap();
    let first = devices.iter().next().unwrap().name().to_owned();
    names(devices.by_name("mlx5_7").map(drop), &["mlx5_7", &first]);
    assert_eq!(devices.by_name(&first).unwrap().name(), first);
}

#[test]
fn cq_beyond_the_device_names_entries_or_vector() {
    let ctx = open();
    let max = ctx.query_device().unwrap().max_cqe();
    let too_many = (max + 1).to_string();
    let expected = ["entries", &too_many, "max_cqe", &max.to_string()];
    names(ctx.create_cq(max + 1).map(drop), &expected);
    let vectors = ctx.num_comp_vectors();
    let beyond = ctx.cq_builder(1).comp_vector(vectors).create();
    names(beyond.map(drop), &["completion vector", "num_comp_vectors"]);
    names(ctx.create_cq(0).map(drop), &["at least one entry"]);
    let mut cq = ctx.create_cq(16).unwrap();
    names(cq.resize(max + 1), &["entries", &too_many, "max_cqe"]);
}

#[test]
fn queue_pair_beyond_the_device_names_each_limit() {
    let fixture = Fixture::new();
    let attr = fixture.ctx.query_device().unwrap();
    let cq = fixture.cq(16);
    let builder = || fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let max_sge = attr.max_sge();
    let max_sge_plus_1 = (max_sge + 1).to_string();
    // The attribute is the smaller maximum of both queues.
    let beyond = [
        ("max_send_sge", builder().max_send_sge(max_sge + 1).create()),
        ("max_recv_sge", builder().max_recv_sge(max_sge + 1).create()),
    ];
    assert!(beyond.iter().any(|(_, created)| created.is_err()));
    for (name, created) in beyond.into_iter().filter(|(_, created)| created.is_err()) {
        names(created, &[name, &max_sge_plus_1, "max_sge"]);
    }
    let max_srq_wr = attr.max_srq_wr();
    names(
        fixture.pd.create_srq::<Buf>(max_srq_wr + 1, 1),
        &["max_wr", "max_srq_wr"],
    );
    let max_srq_sge = attr.max_srq_sge();
    names(
        fixture.pd.create_srq::<Buf>(1, max_srq_sge + 1),
        &["max_sge", "max_srq_sge"],
    );
}

/// No attribute of a device has the maximum of inline data. The hint names the maximum: creation succeeds with this
/// number of bytes, and fails with one more.
#[test]
fn inline_beyond_the_device_names_the_maximum() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let create = |bytes| {
        fixture
            .pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .max_inline_data(bytes)
            .create()
    };
    let text = create(1 << 20).unwrap_err().to_string();
    let allowed = text
        .split("the device allows ")
        .nth(1)
        .expect("the limit of the device");
    let allowed: u32 = allowed.split(' ').next().unwrap().parse().unwrap();
    assert!(text.contains("max_inline_data is 1048576"), "{text}");
    create(allowed).unwrap();
    create(allowed + 1).unwrap_err();
}

/// The failure of a request of `a`, as its user sees it.
fn failed(status: WcStatus, error: &verbs::cq::WcError, expected: &str) {
    assert_eq!(error.status, status, "{error}");
    let text = error.to_string();
    assert!(text.contains(expected), "{text}");
}

#[test]
fn read_into_memory_of_another_domain_names_the_domain() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, _b) = fixture.pair::<Buf, Buf>(&cq, 2);
    let other = fixture.ctx.alloc_pd().unwrap();
    // A read fails with `LOC_PROT_ERR`. A send from such memory has a flush error on Soft-RoCE of Linux 6.12.
    let region = fixture.pd.alloc_remote(8, RemoteAccess::READ).unwrap();
    let buf_of_other = other.alloc_buf(8).unwrap();
    a.post(op::Read::new(buf_of_other, region.token())).unwrap();
    let wc = cq.wait(None).unwrap().next().unwrap();
    let error = wc.ok().unwrap_err();
    failed(
        WcStatus::LOC_PROT_ERR,
        &error,
        "protection domain of the queue pair",
    );
}

#[test]
fn refused_write_names_key_and_rights() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, _b) = fixture.pair::<Buf, Buf>(&cq, 2);
    let region = fixture.pd.alloc_remote(64, RemoteAccess::READ).unwrap();
    let buf = fixture.pd.register_buf(*b"hello").unwrap();
    a.post(op::Write::new(buf, region.token())).unwrap();
    let wc = cq.wait(None).unwrap().next().unwrap();
    failed(
        WcStatus::REM_ACCESS_ERR,
        &wc.ok().unwrap_err(),
        "RemoteAccess::READ for reads, WRITE",
    );
}

/// The statuses depend on the device, and are not compared: on Soft-RoCE, the receive may have the status of the send,
/// or `LOC_QP_OP_ERR`, instead of `LOC_LEN_ERR`.
#[test]
fn message_longer_than_its_receive_has_a_hint_on_both_sides() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 2);
    b.post_recv(fixture.pd.alloc_buf(4).unwrap()).unwrap();
    a.post(op::Send::new(fixture.pd.register_buf(*b"hello").unwrap()))
        .unwrap();
    for _ in 0..2 {
        let wc = cq.wait(None).unwrap().next().unwrap();
        let text = wc.ok().unwrap_err().to_string();
        assert!(text.contains("longer than the receive"), "{text}");
        assert!(text.contains("larger receives"), "{text}");
    }
}

/// The peer's queue pair is destroyed. The error names the number of retries, and the minimum duration of each attempt.
#[test]
fn request_without_answer_names_its_retries() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, b) = fixture.pair::<Buf, Buf>(&cq, 2);
    drop(b);
    a.post(op::Send::new(fixture.pd.register_buf(*b"hello").unwrap()))
        .unwrap();
    let wc = cq.wait(None).unwrap().next().unwrap();
    let error = wc.ok().unwrap_err();
    let attempts = a.query().unwrap().attempts();
    assert_eq!(attempts.retry_count, 6);
    let error = error.with_attempts(attempts);
    failed(
        WcStatus::RETRY_EXC_ERR,
        &error,
        "sent once, and 6 times again, at least ",
    );
}
