//! Exports functions of the tests' fake device that are newer than the installed library.
//!
//! `ibverbs-sys` looks these functions up by `dlsym` at run time, and `dlsym` finds a function of
//! the program itself only if the program exports the symbol.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for functions in [
        "*_comp_cntr*",
        "ibv_*_buf*",
        "ibv_*_dmah",
        "ibv_reg_mr_ex",
        "ibv_dm_export_*",
    ] {
        println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol={functions}");
    }
}
