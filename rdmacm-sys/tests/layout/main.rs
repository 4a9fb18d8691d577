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
use rdmacm_sys::*;
use std::io::{self, Write};
use std::mem::offset_of;

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
const HEADERS: &[&str] = &[
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
    "infiniband/ib.h",
];

/// Offsets of C's anonymous fields.
const UNNAMED: &[(&str, usize)] = &[
    (
        "rdma_addr::__bindgen_anon_1",
        offset_of!(rdma_addr, __bindgen_anon_1),
    ),
    (
        "rdma_addr::__bindgen_anon_2",
        offset_of!(rdma_addr, __bindgen_anon_2),
    ),
];

fn compiler() -> Compiler {
    Compiler::new(env!("RDMACM_INCLUDE"))
}

/// The checked-in bindings have the assertions of `x86_64`.
#[cfg(any(regenerated, target_arch = "x86_64"))]
#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn bindings_layout_and_constants_agree_with_c() {
    let count = check(BINDINGS, UNNAMED, HEADERS, &compiler()).unwrap();
    writeln!(io::stderr().lock(), "rdmacm-sys: {count} agree with C").unwrap();
    assert!(
        count.types > 15 && count.fields > 80 && count.constants > 30,
        "{count}"
    );
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn handwritten_declarations_agree_with_c() {
    macro_rules! table {
        ($($name:ident)*) => {
            [$((stringify!($name), i64::from($name))),*]
        };
    }
    let table = table! {
        RDMA_MAX_RESP_RES RDMA_MAX_INIT_DEPTH
        RDMA_OPTION_ID RDMA_OPTION_IB RDMA_OPTION_ID_TOS RDMA_OPTION_ID_REUSEADDR
        RDMA_OPTION_ID_AFONLY RDMA_OPTION_ID_ACK_TIMEOUT RDMA_OPTION_IB_PATH
        RDMA_SQSIZE RDMA_RQSIZE RDMA_INLINE RDMA_IOMAPSIZE RDMA_ROUTE AF_IB PF_IB
    };
    let mut source = includes(HEADERS) + "#include <stdio.h>\nint main(void)\n{\n";
    for (name, _) in table {
        source += &format!("\tprintf(\"%lld\\n\", (long long)({name}));\n");
    }
    let printed = run(&compiler(), &(source + "}\n"));
    for ((name, rust), line) in table.iter().zip(printed.lines()) {
        assert_eq!(rust.to_string(), line, "{name}");
    }
    writeln!(
        io::stderr().lock(),
        "rdmacm-sys: {} declarations by hand agree with C",
        table.len()
    )
    .unwrap();
}
