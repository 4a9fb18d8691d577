//! Twins of pyverbs' cases, but for those of extended queues.

#[path = "../../../../verbs/tests/device/pyverbs/addr.rs"]
mod addr;
#[path = "../../../../verbs/tests/device/pyverbs/atomic.rs"]
mod atomic;
#[path = "../../../../verbs/tests/device/pyverbs/cq.rs"]
mod cq;
#[path = "../../../../verbs/tests/device/pyverbs/device.rs"]
mod device;
#[path = "../../../../verbs/tests/device/pyverbs/fork.rs"]
mod fork;
#[path = "../../../../verbs/tests/device/pyverbs/mr.rs"]
mod mr;
#[path = "../../../../verbs/tests/device/pyverbs/pd.rs"]
mod pd;
#[path = "../../../../verbs/tests/device/pyverbs/qp.rs"]
mod qp;
#[path = "../../../../verbs/tests/device/pyverbs/relaxed_ordering.rs"]
mod relaxed_ordering;
#[path = "../../../../verbs/tests/device/pyverbs/traffic.rs"]
mod traffic;
