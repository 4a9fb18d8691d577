//! Every function declared in libefa's header has a binding under its C name.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

#[path = "../compiler/mod.rs"]
mod compiler;

mod declared;

use compiler::Compiler;
use declared::{Declared, missing, report};

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Addresses of the functions of rdma-core 44. A function missing from the crate fails to compile, a function missing from the
/// library fails to link.
macro_rules! table {
    ($($name:ident)*) => {
        &[$((stringify!($name), efa_sys::$name as *const ())),*]
    };
}

const TABLE: &[(&str, *const ())] = table! {
    efadv_create_driver_qp efadv_create_qp_ex efadv_query_device efadv_query_ah efadv_create_cq
    efadv_cq_from_ibv_cq_ex efadv_wc_read_sgid
};

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn function_of_the_header_has_a_binding() {
    const HEADER: &str = "infiniband/efadv.h";
    let compiler = Compiler::new(env!("EFA_INCLUDE"));
    let declared = Declared::read(&compiler, &["sys/types.h"], HEADER);
    let missing = missing(&declared, TABLE, BINDINGS);
    report("rdma-efa-sys", HEADER, &declared, &missing);
    assert!(
        missing.is_empty(),
        "functions of {HEADER} without a binding: {missing:?}"
    );
    assert!(
        declared.external.len() >= 6 && !declared.inline.is_empty(),
        "{declared:?}"
    );
    assert!(declared.hiding.is_empty(), "{declared:?}");
}
