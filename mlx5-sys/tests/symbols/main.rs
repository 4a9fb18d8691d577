//! Every function of the crate is declared in libmlx5's header and defined in the library.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

#[path = "../compiler/mod.rs"]
mod compiler;

mod declared;

use compiler::Compiler;
use declared::{Declared, missing, report};

const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Addresses of the functions. A function missing from the crate fails to compile, a function missing from the library fails
/// to link.
macro_rules! table {
    ($($name:ident)*) => {
        &[$((stringify!($name), mlx5_sys::$name as *const ())),*]
    };
}

const TABLE: &[(&str, *const ())] = table! {
    mlx5dv_is_supported mlx5dv_open_device mlx5dv_create_qp mlx5dv_qp_ex_from_ibv_qp_ex
    mlx5dv_wr_set_dc_addr
};

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn function_of_the_crate_is_in_the_header() {
    const HEADER: &str = "infiniband/mlx5dv.h";
    let compiler = Compiler::new(env!("MLX5_INCLUDE"));
    let declared = Declared::read(&compiler, &["sys/types.h"], HEADER);
    let missing = missing(&declared, TABLE, BINDINGS);
    report("rdma-mlx5-sys", HEADER, &declared, &missing);
    for (name, _) in TABLE {
        assert!(declared.all().contains(*name), "{name}: {declared:?}");
        assert!(missing.iter().all(|missing| missing != name), "{name}");
    }
}
