//! Twins of the cases of pyverbs, rdma-core's own test suite, by their names. `tests/pyverbs.md`
//! has the whole list, with the twins elsewhere.

mod addr;
mod atomic;
mod cq;
mod cqex;
mod device;
mod flush;
mod fork;
mod mr;
mod pd;
mod qp;
mod qpex;
mod relaxed_ordering;
mod traffic;
