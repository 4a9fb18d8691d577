//! Layout of every type and value of every constant equal the C compiler's.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, outside of its functions too"
)]

#[path = "../compiler/mod.rs"]
mod compiler;

mod check;

use check::{check, run};
use compiler::{Compiler, includes};
use ibverbs_sys::*;
use std::io::{self, Write};
use std::mem::offset_of;

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
const HEADERS: &[&str] = &[
    "infiniband/verbs.h",
    "infiniband/sa.h",
    "infiniband/tm_types.h",
];

/// Offsets of C's anonymous fields.
const UNNAMED: &[(&str, usize)] = &[
    (
        "ib_uverbs_flow_action_esp_encap::__bindgen_anon_1",
        offset_of!(ibv_flow_action_esp_encap, __bindgen_anon_1),
    ),
    (
        "ib_uverbs_flow_action_esp_encap::__bindgen_anon_2",
        offset_of!(ibv_flow_action_esp_encap, __bindgen_anon_2),
    ),
    (
        "ibv_wc::__bindgen_anon_1",
        offset_of!(ibv_wc, __bindgen_anon_1),
    ),
    (
        "ibv_send_wr::__bindgen_anon_1",
        offset_of!(ibv_send_wr, __bindgen_anon_1),
    ),
    (
        "ibv_send_wr::__bindgen_anon_2",
        offset_of!(ibv_send_wr, __bindgen_anon_2),
    ),
    (
        "ibv_flow_spec::__bindgen_anon_1",
        offset_of!(ibv_flow_spec, __bindgen_anon_1),
    ),
];

fn compiler() -> Compiler {
    Compiler::new(env!("IBVERBS_INCLUDE"))
}

/// The checked-in bindings have the assertions of `x86_64`.
#[cfg(any(regenerated, target_arch = "x86_64"))]
#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn bindings_layout_and_constants_agree_with_c() {
    let count = check(BINDINGS, UNNAMED, HEADERS, &compiler()).unwrap();
    writeln!(io::stderr().lock(), "ibverbs-sys: {count} agree with C").unwrap();
    assert!(
        count.types > 200 && count.fields > 750 && count.constants > 450,
        "{count}"
    );
}

#[cfg(any(regenerated, target_arch = "x86_64"))]
#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn bindings_with_wrong_offset_are_reported() {
    let right = "[\"Offset of field: ibv_wc::status\"][::core::mem::offset_of!(ibv_wc, status) - 8";
    assert!(
        BINDINGS.contains(right),
        "the text of assertions has changed"
    );
    let wrong = BINDINGS.replace(right, &right.replace("- 8", "- 12"));
    let differences = check(&wrong, UNNAMED, HEADERS, &compiler()).unwrap_err();
    assert_eq!(
        differences,
        "Offset of field: ibv_wc::status: 12 in Rust, 8 in C"
    );
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn handwritten_declarations_agree_with_c() {
    macro_rules! table {
        ($($rust:expr => $c:literal;)*) => {
            [$(($c, $rust as u64)),*]
        };
    }
    let table = table! {
        size_of::<__be16>() => "sizeof(__be16)";
        align_of::<__be16>() => "_Alignof(__be16)";
        size_of::<__be32>() => "sizeof(__be32)";
        align_of::<__be32>() => "_Alignof(__be32)";
        size_of::<__be64>() => "sizeof(__be64)";
        align_of::<__be64>() => "_Alignof(__be64)";
        size_of::<ibv_gid>() => "sizeof(union ibv_gid)";
        align_of::<ibv_gid>() => "_Alignof(union ibv_gid)";
        offset_of!(ibv_gid, raw) => "offsetof(union ibv_gid, raw)";
        offset_of!(ibv_gid, global) => "offsetof(union ibv_gid, global)";
        offset_of!(ibv_gid_global, subnet_prefix) => "offsetof(union ibv_gid, global.subnet_prefix)";
        offset_of!(ibv_gid_global, interface_id) => "offsetof(union ibv_gid, global.interface_id)";
        size_of::<libc::pthread_mutex_t>() => "sizeof(pthread_mutex_t)";
        align_of::<libc::pthread_mutex_t>() => "_Alignof(pthread_mutex_t)";
        size_of::<libc::pthread_cond_t>() => "sizeof(pthread_cond_t)";
        align_of::<libc::pthread_cond_t>() => "_Alignof(pthread_cond_t)";
        size_of::<libc::timespec>() => "sizeof(struct timespec)";
        IBV_ADVISE_MR_FLAG_FLUSH => "IBV_ADVISE_MR_FLAG_FLUSH";
        IBV_QPF_GRH_REQUIRED => "IBV_QPF_GRH_REQUIRED";
        IBV_LINK_LAYER_UNSPECIFIED => "IBV_LINK_LAYER_UNSPECIFIED";
        IBV_LINK_LAYER_INFINIBAND => "IBV_LINK_LAYER_INFINIBAND";
        IBV_LINK_LAYER_ETHERNET => "IBV_LINK_LAYER_ETHERNET";
        IBV_WC_IP_CSUM_OK_SHIFT => "IBV_WC_IP_CSUM_OK_SHIFT";
        IBV_WC_STANDARD_FLAGS => "IBV_WC_STANDARD_FLAGS";
        IBV_CREATE_CQ_SUP_WC_FLAGS => "IBV_CREATE_CQ_SUP_WC_FLAGS";
        IBV_SYSFS_NAME_MAX => "IBV_SYSFS_NAME_MAX";
        IBV_SYSFS_PATH_MAX => "IBV_SYSFS_PATH_MAX";
        ETHERNET_LL_SIZE => "ETHERNET_LL_SIZE";
        IBV_ALLOCATOR_USE_DEFAULT.addr() => "(uintptr_t)IBV_ALLOCATOR_USE_DEFAULT";
        ibv_access_flags::IBV_ACCESS_OPTIONAL_RANGE.0 => "IBV_ACCESS_OPTIONAL_RANGE";
        ibv_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH.0 => "IBV_ADVISE_MR_ADVICE_PREFETCH";
        ibv_flow_action_esp_flags::IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW.0
            => "IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW";
        size_of::<ibv_flow_action_esp>() => "sizeof(struct ibv_flow_action_esp)";
    };
    let mut source = includes(HEADERS) + "#include <stdio.h>\nint main(void)\n{\n";
    for (c, _) in table {
        source += &format!("\tprintf(\"%llu\\n\", (unsigned long long)({c}));\n");
    }
    let printed = run(&compiler(), &(source + "}\n"));
    for ((c, rust), line) in table.iter().zip(printed.lines()) {
        assert_eq!(rust.to_string(), line, "{c}");
    }
    writeln!(
        io::stderr().lock(),
        "ibverbs-sys: {} declarations by hand agree with C",
        table.len()
    )
    .unwrap();
}
