//! Twins of the cases of pyverbs, rdma-core's own test suite, that cannot run on Soft-RoCE, by
//! their names. `tests/pyverbs.md` has the whole list, with the twins elsewhere.

mod device_memory;
mod flow;
mod on_demand;
mod parent_domain;
mod raw_packets;
mod shared_pd;
mod timestamps;
mod traffic;
mod unmapped;
mod xrc;
