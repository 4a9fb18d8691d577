//! Capabilities that differ between kernels and releases of rdma-core. The file named by the variable `CAPABILITIES` gets a
//! line for each, for the table of stacks of `cargo xtask test`.

use std::{env, fmt::Write, fs};

use ibverbs_sys as ffi;
use rustix::param::page_size;
use verbs::{
    QueuePair, RemoteAccess, Reset,
    attr::DeviceCaps,
    mr::{Advice, Mapping},
    op::SendOps,
};

use crate::{
    loopback::Fixture,
    memory::registers_zero_based,
    on_demand::{keeps_offsets, paging},
};

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`.
pub(crate) const FLUSH_GLOBAL: DeviceCaps = DeviceCaps::from_bits_retain(1 << 38);

/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
pub(crate) const ATOMIC_WRITE: DeviceCaps = DeviceCaps::from_bits_retain(1 << 40);

/// Whether queue pairs with this operation can be created: the provider's part of a capability.
pub(crate) fn has_operation(fixture: &Fixture, operation: SendOps) -> bool {
    let cq = fixture.cq(4);
    let builder = fixture.builder(&cq, 1).send_ops(operation);
    let qp: Result<QueuePair<verbs::Rc, Reset>, _> = builder.create();
    qp.is_ok()
}

fn prefetches(fixture: &Fixture) -> bool {
    if paging(fixture).is_none() {
        return false;
    }
    let memory = fixture.pd.register(Mapping::new(page_size()).unwrap());
    let memory = memory.on_demand().create_buf().unwrap();
    fixture.pd.advise(&memory, Advice::PREFETCH, true).is_ok()
}

fn reregisters(fixture: &Fixture) -> bool {
    let region = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    let changed = region.rereg().access(RemoteAccess::READ);
    changed.apply().is_ok()
}

/// The device's claims, which other tests compare with its behaviour, and the results of calls without a claim.
#[test]
fn capabilities_of_the_stack_are_recorded() {
    let fixture = Fixture::new();
    let caps = fixture.ctx.query_device().unwrap().caps();
    let (flush, atomic_write) = (caps.contains(FLUSH_GLOBAL), caps.contains(ATOMIC_WRITE));
    let pages = paging(&fixture).is_some();
    let found = [
        (
            "atomic-write",
            atomic_write && has_operation(&fixture, SendOps::ATOMIC_WRITE),
        ),
        ("flush", flush && has_operation(&fixture, SendOps::FLUSH)),
        ("paging-on-demand", pages),
        ("paging-with-offset", pages && keeps_offsets(&fixture)),
        ("prefetch", prefetches(&fixture)),
        ("zero-based-region", registers_zero_based(&fixture)),
        ("re-registration", reregisters(&fixture)),
        ("port-speed", fixture.ctx.query_port_speed(1).is_ok()),
        (
            "extended-registration",
            ffi::late::ibv_reg_mr_ex().is_some(),
        ),
        ("provider-memory", ffi::late::ibv_alloc_buf().is_some()),
    ];
    let mut text = String::new();
    for (name, is_there) in found {
        writeln!(text, "{name} {}", if is_there { "yes" } else { "no" }).unwrap();
    }
    if let Some(file) = env::var_os("CAPABILITIES") {
        fs::write(file, text).unwrap();
    }
}
