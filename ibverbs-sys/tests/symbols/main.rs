//! Every function that `verbs.h` declares can be called under its C name.
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

#[test]
fn every_static_inline_is_compared_with_its_original() {
    let tests = [
        include_str!("../inlines/dispatch.rs"),
        include_str!("../inlines/own.rs"),
    ]
    .concat();
    let words: BTreeSet<_> = tests
        .split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .collect();
    let mut inline = verbs_h().inline;
    // It calls a library that is newer than any header it stands in.
    inline.remove("ibv_query_comp_cntr_caps");
    let missing: Vec<_> = inline
        .iter()
        .filter(|name| !words.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "tests/inlines lacks {missing:?}");
}
