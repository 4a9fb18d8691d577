//! Scopes: after a scope, the device has no access to borrowed memory, regardless of the use of its
//! queue pairs.
#![expect(clippy::mem_forget, reason = "the point of these tests")]

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc as Shared,
};

use softnic::Call;
use verbs::{
    Buf, Completed, CompletionQueue, Init, QueuePair, Reset, Rts, WcStatus,
    op::{self, SendOps},
    qp::Attributes,
    scope::{Scope, Scoped, ScopedBuf, ScopedSlice, ScopedWork},
    work::{Gather, Scatter, With},
};

use crate::fixture::Fixture;

type Borrowing<'s, S> = QueuePair<verbs::Rc, S, ScopedSlice<'s>, ScopedBuf<'s>>;

/// A connected queue pair of a scope, with room for four requests on each queue.
fn connected<'s, SW, RW>(
    fixture: &Fixture,
    cq: &CompletionQueue,
    scope: &'s Scope<'s, '_>,
) -> QueuePair<verbs::Rc, Rts, SW, RW>
where
    SW: ScopedWork<'s> + Gather + 's,
    RW: ScopedWork<'s> + Scatter + 's,
{
    let builder = fixture.pd.qp_builder(cq, cq);
    let builder = builder
        .max_send_wr(4)
        .max_recv_wr(4)
        .send_ops(SendOps::SEND);
    fixture.connect(scope.create_qp(builder).unwrap())
}

/// A queue pair in a reference cycle, never dropped.
struct Cycle<'s>(
    RefCell<Option<Shared<Self>>>,
    #[expect(dead_code, reason = "only kept")] Borrowing<'s, Rts>,
);

/// A program's last use of a queue pair with a send and a receive of borrowed memory in flight.
type Ending = for<'s> fn(Borrowing<'s, Rts>, ScopedSlice<'s>);

const ENDINGS: [(&str, Ending); 12] = [
    ("dropped", |qp, _| drop(qp)),
    ("destroyed", |qp, _| drop(qp.destroy().unwrap())),
    ("its leftover forgotten", |qp, _| {
        std::mem::forget(qp.destroy().unwrap());
    }),
    ("forgotten", |qp, _| std::mem::forget(qp)),
    ("leaked in a box", |qp, _| _ = Box::leak(Box::new(qp)).id()),
    ("in a cycle", |qp, _| {
        let cycle = Shared::new(Cycle(RefCell::new(None), qp));
        cycle.0.replace(Some(Shared::clone(&cycle)));
    }),
    ("the send half forgotten", |qp, _| {
        std::mem::forget(qp.split().0)
    }),
    ("the receive half forgotten", |qp, _| {
        std::mem::forget(qp.split().1)
    }),
    ("forgotten in the error state", |mut qp, _| {
        qp.to_error().unwrap();
        std::mem::forget(qp);
    }),
    ("reset, and forgotten", |qp, _| {
        std::mem::forget(qp.to_reset().unwrap());
    }),
    ("forgotten with a batch", |mut qp, slice| {
        let mut batch = qp.batch();
        batch.push(op::Send::new(slice)).unwrap();
        std::mem::forget(batch);
        std::mem::forget(qp);
    }),
    ("forgotten with an extended batch", |mut qp, slice| {
        let mut batch = qp.extended_batch().unwrap();
        batch.push(op::Send::new(slice)).unwrap();
        std::mem::forget(batch);
        std::mem::forget(qp);
    }),
];

/// The position of the last call of a function.
fn last(calls: &[Call], call: Call) -> usize {
    calls.iter().rposition(|c| *c == call).unwrap()
}

#[test]
fn scoped_queue_pair_is_destroyed_before_the_borrow_ends() {
    for ((name, end), panics) in ENDINGS
        .into_iter()
        .flat_map(|end| [(end, false), (end, true)])
    {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let (question, mut answer) = ([1; 16], [2; 16]);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            verbs::scope(&fixture.pd, |scope| {
                let mut qp: Borrowing<'_, Rts> = connected(&fixture, &cq, scope);
                let question = scope.register_shared(&question).unwrap();
                qp.post(op::Send::new(question)).unwrap();
                qp.post_recv(scope.register(&mut answer).unwrap()).unwrap();
                end(qp, question);
                assert!(!panics, "on purpose");
            });
        }));
        assert_eq!(outcome.is_err(), panics, "{name}");
        let live = fixture.fake.live();
        assert!(
            !live.iter().any(|kind| kind.contains("ibv_qp")),
            "{name}: {live:?}"
        );
        assert!(!live.contains(&"ibv_mr"), "{name}: {live:?}");
        let calls = fixture.fake.calls();
        assert_eq!(
            calls.iter().filter(|c| **c == Call::DestroyQp).count(),
            1,
            "{name}"
        );
        let [destroyed, ended] = [Call::DestroyQp, Call::DeregMr].map(|call| last(&calls, call));
        assert!(destroyed < ended, "{name}");
        answer.fill(3);
    }
}

#[test]
fn queue_pair_of_a_scope_forgotten_in_any_state_is_destroyed() {
    let forget: [fn(&Fixture, Borrowing<'_, Reset>); 3] = [
        |_, qp| std::mem::forget(qp),
        |_, qp| std::mem::forget(qp.to_init(&Attributes::<verbs::Rc, Init>::new(1)).unwrap()),
        |fixture, qp| std::mem::forget(fixture.connect(qp)),
    ];
    for forget in forget {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        verbs::scope(&fixture.pd, |scope| {
            let qp = scope.create_qp(fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq));
            forget(&fixture, qp.unwrap());
        });
        assert!(
            !fixture.fake.live().contains(&"ibv_qp_ex"),
            "{:?}",
            fixture.fake.live()
        );
        assert!(
            !fixture.fake.live().contains(&"ibv_qp"),
            "{:?}",
            fixture.fake.live()
        );
    }
}

#[test]
fn work_of_a_queue_pair_forgotten_in_a_scope_is_not_dropped() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let token = Shared::new(());
    let mut memory = [0; 16];
    verbs::scope(&fixture.pd, |scope| {
        let mut qp: QueuePair<verbs::Rc, Rts, Scoped<'_, Buf>, With<ScopedBuf<'_>, Shared<()>>> =
            connected(&fixture, &cq, scope);
        let work = With::new(scope.register(&mut memory).unwrap(), Shared::clone(&token));
        qp.post_recv(work).map_err(|refused| refused.error).unwrap();
        std::mem::forget(qp);
    });
    assert_eq!(
        Shared::strong_count(&token),
        2,
        "leaked with its queue pair"
    );
}

#[test]
fn scoped_work_completes_as_unscoped_work() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let mut answer = [0; 16];
    verbs::scope(&fixture.pd, |scope| {
        let mut qp: QueuePair<verbs::Rc, Rts, Scoped<'_, Buf>, ScopedBuf<'_>> =
            connected(&fixture, &cq, scope);
        let question = fixture.pd.register_buf(*b"owned").unwrap();
        qp.post(op::Send::new(Scoped::new(question))).unwrap();
        qp.post_recv(scope.register(&mut answer).unwrap()).unwrap();
        assert_eq!(fixture.fake.sends(qp.qp_num())[0].bytes(), b"owned");
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        fixture.fake.complete_receive(qp.qp_num(), b"borrowed");
        let mut done = 0;
        for wc in cq.poll().unwrap() {
            match qp.complete(wc).unwrap() {
                Completed::Send(done) => assert_eq!(&***done.work().unwrap(), b"owned"),
                Completed::Receive(done) => assert_eq!(done.received().unwrap(), b"borrowed"),
            }
            done += 1;
        }
        assert_eq!(done, 2);
    });
    assert_eq!(&answer[..8], b"borrowed");
}

/// The fake reuses an `LKey` at once. A receive outliving its scope would be valid again in the
/// next.
#[test]
fn receive_forgotten_in_a_scope_cannot_fill_memory_of_the_next() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let mut memory = [0xaa; 64];
    let number = verbs::scope(&fixture.pd, |scope| {
        let mut qp: QueuePair<verbs::Rc, Rts, ScopedSlice<'_>, ScopedBuf<'_>> =
            connected(&fixture, &cq, scope);
        qp.post_recv(scope.register(&mut memory).unwrap()).unwrap();
        let number = qp.qp_num();
        std::mem::forget(qp);
        number
    });
    verbs::scope(&fixture.pd, |scope| {
        let again = scope.register(&mut memory).unwrap();
        let arrives = || {
            fixture
                .fake
                .complete_receive(number, b"written behind a reference")
        };
        assert!(
            catch_unwind(AssertUnwindSafe(arrives)).is_err(),
            "there is no such queue pair"
        );
        assert!(again.iter().all(|byte| *byte == 0xaa));
    });
}

#[test]
fn inner_scope_destroys_its_own_queue_pairs_only() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut outside, mut inside) = ([0; 16], [0; 16]);
    verbs::scope(&fixture.pd, |outer| {
        let mut qp: Borrowing<'_, Rts> = connected(&fixture, &cq, outer);
        qp.post_recv(outer.register(&mut outside).unwrap()).unwrap();
        verbs::scope(&fixture.pd, |inner| {
            let mut qp: Borrowing<'_, Rts> = connected(&fixture, &cq, inner);
            qp.post_recv(inner.register(&mut inside).unwrap()).unwrap();
            std::mem::forget(qp);
        });
        inside.fill(1);
        assert_eq!(fixture.fake.receives(qp.qp_num()).len(), 1);
    });
    outside.fill(1);
}

#[test]
fn scope_records_only_existing_queue_pairs() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    verbs::scope(&fixture.pd, |scope| {
        for _ in 0..10 {
            drop::<Borrowing<'_, Rts>>(connected(&fixture, &cq, scope));
        }
        let described = format!("{scope:?}");
        assert_eq!(described.matches("Member {").count(), 1, "{described}");
    });
}

#[test]
fn queue_pair_with_a_failed_drop_is_destroyed_at_scope_end() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let mut memory = [0; 16];
    verbs::scope(&fixture.pd, |scope| {
        let mut qp: Borrowing<'_, Rts> = connected(&fixture, &cq, scope);
        qp.post_recv(scope.register(&mut memory).unwrap()).unwrap();
        fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
        drop(qp);
        assert!(
            fixture
                .fake
                .live()
                .iter()
                .any(|kind| kind.contains("ibv_qp"))
        );
    });
    assert!(
        !fixture
            .fake
            .live()
            .iter()
            .any(|kind| kind.contains("ibv_qp"))
    );
    memory.fill(1);
}

#[test]
fn failed_deregistration_is_leaked_by_its_scope() {
    let fixture = Fixture::new();
    let mut memory = [0; 16];
    verbs::scope(&fixture.pd, |scope| {
        scope.register(&mut memory).map(drop).unwrap();
        fixture.fake.fail(Call::DeregMr, libc::EBUSY);
    });
    assert_eq!(
        fixture
            .fake
            .live()
            .iter()
            .filter(|kind| **kind == "ibv_mr")
            .count(),
        1
    );
    memory.fill(1);
}

/// Aborts in another process, which Miri cannot start.
#[cfg(not(miri))]
mod aborts {
    use std::{env, os::unix::process::ExitStatusExt as _, process::Command};

    use super::*;

    #[test]
    fn scope_aborts_if_a_queue_pair_is_not_destroyed() {
        if env::var_os("ABORTS").is_none() {
            let name = "scopes::aborts::scope_aborts_if_a_queue_pair_is_not_destroyed";
            let output = Command::new(env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture"])
                .env("ABORTS", "1")
                .output()
                .unwrap();
            assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
            return;
        }
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let mut memory = [0; 16];
        verbs::scope(&fixture.pd, |scope| {
            let mut qp: Borrowing<'_, Rts> = connected(&fixture, &cq, scope);
            qp.post_recv(scope.register(&mut memory).unwrap()).unwrap();
            fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
            std::mem::forget(qp);
        });
    }
}
