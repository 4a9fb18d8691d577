//! Every function that `verbs.h` declares can be called under its C name.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, outside of its functions too"
)]

#[path = "../compiler/mod.rs"]
mod compiler;

mod declared;
mod table;

use compiler::Compiler;
use declared::{Declared, missing, report};
use table::TABLE;

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

fn verbs_h() -> Declared {
    Declared::read(
        &Compiler::new(env!("IBVERBS_INCLUDE")),
        &[],
        "infiniband/verbs.h",
    )
}

#[test]
fn no_function_of_verbs_h_is_missing() {
    let declared = verbs_h();
    let missing = missing(&declared, TABLE, BINDINGS);
    report("ibverbs-sys", "verbs.h", &declared, &missing);
    assert!(
        missing.is_empty(),
        "verbs.h declares what the crate lacks: {missing:?}"
    );
    // Those of rdma-core 39, the oldest there is to support.
    assert!(
        declared.external.len() >= 67 && declared.inline.len() >= 94,
        "{declared:?}"
    );
    let hiding = ["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"];
    assert!(declared.hiding.iter().eq(hiding), "{:?}", declared.hiding);
}

#[test]
fn a_missing_function_is_found() {
    let table: Vec<_> = TABLE
        .iter()
        .copied()
        .filter(|(name, _)| *name != "ibv_poll_cq")
        .collect();
    assert_eq!(missing(&verbs_h(), &table, BINDINGS), ["ibv_poll_cq"]);
}
