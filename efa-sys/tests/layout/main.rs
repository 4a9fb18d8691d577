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
use efa_sys::*;
use std::io::{self, Write};

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
const HEADERS: &[&str] = &["infiniband/efadv.h"];

fn compiler() -> Compiler {
    Compiler::new(env!("EFA_INCLUDE"))
}

/// The checked-in bindings have the assertions of `x86_64`.
#[cfg(any(regenerated, target_arch = "x86_64"))]
#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn bindings_layout_and_constants_agree_with_c() {
    let count = check(BINDINGS, &[], HEADERS, &compiler()).unwrap();
    writeln!(io::stderr().lock(), "rdma-efa-sys: {count} agree with C").unwrap();
    assert!(count.types >= 5 && count.fields >= 15, "{count}");
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn handwritten_declarations_agree_with_c() {
    macro_rules! table {
        ($($name:ident)*) => {
            [$((stringify!($name), u64::from($name))),*]
        };
    }
    // RDMA writes are newer than rdma-core 44.
    let table = table! {
        EFADV_QP_DRIVER_TYPE_SRD EFADV_DEVICE_ATTR_CAPS_RDMA_READ
        EFADV_DEVICE_ATTR_CAPS_RNR_RETRY EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID
        EFADV_WC_EX_WITH_SGID
    };
    let mut source = includes(HEADERS) + "#include <stdio.h>\nint main(void)\n{\n";
    for (name, _) in table {
        source += &format!("\tprintf(\"%lld\\n\", (long long)({name}));\n");
    }
    let printed = run(&compiler(), &(source + "}\n"));
    for ((name, rust), line) in table.iter().zip(printed.lines()) {
        assert_eq!(rust.to_string(), line, "{name}");
    }
}
