//! Twins of pyverbs' cases; without those of the kernel's handles and properties.

#[path = "../../../../verbs/tests/device/pyverbs/addr.rs"]
mod addr;
#[path = "../../../../verbs/tests/device/pyverbs/atomic.rs"]
mod atomic;
#[path = "../../../../verbs/tests/device/pyverbs/cq.rs"]
mod cq;
#[path = "../../../../verbs/tests/device/pyverbs/cqex.rs"]
mod cqex;
#[path = "../../../../verbs/tests/device/pyverbs/fork.rs"]
mod fork;
#[path = "../../../../verbs/tests/device/pyverbs/mr.rs"]
mod mr;
#[path = "../../../../verbs/tests/device/pyverbs/qp.rs"]
mod qp;
#[path = "../../../../verbs/tests/device/pyverbs/qpex.rs"]
mod qpex;
#[path = "../../../../verbs/tests/device/pyverbs/relaxed_ordering.rs"]
mod relaxed_ordering;
#[path = "../../../../verbs/tests/device/pyverbs/traffic.rs"]
mod traffic;
