//! Makes the fake device of the tests one that functions newer than the installed library are found
//! on: they are looked up when a program runs, and what a program itself has is not seen then
//! unless it is exported.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for functions in [
        "*_comp_cntr*",
        "ibv_*_buf*",
        "ibv_reg_mr_ex",
        "ibv_dm_export_*",
    ] {
        println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol={functions}");
    }
}
