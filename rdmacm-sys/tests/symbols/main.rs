//! Every function declared in librdmacm's headers has a binding under its C name.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

#[path = "../compiler/mod.rs"]
mod compiler;

mod declared;
mod table;

use compiler::Compiler;
use declared::{Declared, missing, report};
use table::TABLE;

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The headers, with their numbers of functions and static inlines in rdma-core 39.
const HEADERS: [(&str, usize, usize); 4] = [
    ("rdma/rdma_cma.h", 38, 2),
    ("rdma/rdma_verbs.h", 3, 16),
    ("rdma/rsocket.h", 27, 0),
    ("infiniband/ib.h", 0, 4),
];

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn function_of_the_headers_has_a_binding() {
    let compiler = Compiler::new(env!("RDMACM_INCLUDE"));
    for (header, external, inline) in HEADERS {
        let declared = Declared::read(&compiler, &["sys/types.h"], header);
        let missing = missing(&declared, TABLE, BINDINGS);
        report("rdmacm-sys", header, &declared, &missing);
        assert!(
            missing.is_empty(),
            "functions of {header} without a binding: {missing:?}"
        );
        assert!(
            declared.external.len() >= external && declared.inline.len() >= inline,
            "{header}: {declared:?}"
        );
        assert!(declared.hiding.is_empty(), "{header}: {declared:?}");
    }
}
