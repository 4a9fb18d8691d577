//! Layout of every type and value of every constant equal the C compiler's.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, outside of its functions too"
)]

#[path = "../compiler/mod.rs"]
mod compiler;

mod check;

use check::check;
use compiler::Compiler;
use std::io::{self, Write};
use std::mem::offset_of;

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
const HEADERS: &[&str] = &["infiniband/mlx5dv.h"];

/// The checked-in bindings have the assertions of `x86_64`.
#[cfg(any(regenerated, target_arch = "x86_64"))]
#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn bindings_layout_and_constants_agree_with_c() {
    let unnamed = [(
        "mlx5dv_dc_init_attr::__bindgen_anon_1",
        offset_of!(mlx5_sys::mlx5dv_dc_init_attr, __bindgen_anon_1),
    )];
    let compiler = Compiler::new(env!("MLX5_INCLUDE"));
    let count = check(BINDINGS, &unnamed, HEADERS, &compiler).unwrap();
    writeln!(io::stderr().lock(), "rdma-mlx5-sys: {count} agree with C").unwrap();
    assert!(count.types >= 6 && count.fields >= 20, "{count}");
}
