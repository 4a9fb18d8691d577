//! Every function declared in `verbs.h` has a binding under its C name.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

#[path = "../compiler/mod.rs"]
mod compiler;

mod declared;
mod table;

use compiler::Compiler;
use declared::{Declared, missing, report};
use std::collections::BTreeSet;
use table::TABLE;

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

fn verbs_h() -> Declared {
    Declared::read(
        &Compiler::new(env!("IBVERBS_INCLUDE")),
        &[],
        "infiniband/verbs.h",
    )
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn function_of_verbs_h_has_a_binding() {
    let declared = verbs_h();
    let missing = missing(&declared, TABLE, BINDINGS);
    report("ibverbs-sys", "verbs.h", &declared, &missing);
    assert!(
        missing.is_empty(),
        "functions of verbs.h without a binding: {missing:?}"
    );
    // Numbers of rdma-core 39, the minimum version.
    assert!(
        declared.external.len() >= 67 && declared.inline.len() >= 94,
        "{declared:?}"
    );
    let hiding = ["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"];
    assert!(declared.hiding.iter().eq(hiding), "{:?}", declared.hiding);
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn function_without_binding_is_reported_missing() {
    let table: Vec<_> = TABLE
        .iter()
        .copied()
        .filter(|(name, _)| *name != "ibv_poll_cq")
        .collect();
    assert_eq!(missing(&verbs_h(), &table, BINDINGS), ["ibv_poll_cq"]);
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn static_inline_has_a_test_against_its_original() {
    let tests = [
        include_str!("../inlines/dispatch.rs"),
        include_str!("../inlines/own.rs"),
    ]
    .concat();
    let words: BTreeSet<_> = tests
        .split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .collect();
    let mut inline = verbs_h().inline;
    // Calls a library function newer than any header.
    inline.remove("ibv_query_comp_cntr_caps");
    let missing: Vec<_> = inline
        .iter()
        .filter(|name| !words.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "tests/inlines lacks {missing:?}");
}
