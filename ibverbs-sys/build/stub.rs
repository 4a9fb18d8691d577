//! Builds a library whose functions fail, for builds and tests of this family's own workspace without rdma-core. Shared by the
//! -sys crates.
//!
//! The workspace's `.cargo/config.toml` sets the variable [`ENABLE`]; builds of dependent crates lack it, and fail with the
//! names of the packages. The library has the functions of the checked-in bindings, so the linker resolves every program.
//! At run time the functions fail as those of the feature `dlopen` do without the library.

use super::library::LibrarySpec;
use std::env;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Environment variable that enables the library; empty is the same as absent.
const ENABLE: &str = "RDMA_STUB_LIBRARIES";

/// A function that needs no device.
const EVENT_NAMES: &str = "rdma_event_str";

/// The part before the functions. 79 is `ELIBACC`, which the crate `verbs` explains with the names of the packages.
const HEAD: &str = "\
#![allow(improper_ctypes_definitions)]
use core::ffi::{c_char, c_int, c_void};
unsafe extern \"C\" { fn __errno_location() -> *mut c_int; }
fn fail<T>(value: T) -> T { unsafe { *__errno_location() = 79 }; value }
";

/// Whether this build may link a library whose functions fail.
pub(crate) fn is_enabled() -> bool {
    println!("cargo::rerun-if-env-changed={ENABLE}");
    env::var_os(ENABLE).is_some_and(|value| !value.is_empty())
}

/// Builds the library in `out` from the declarations in `bindings`, and prints instructions for the linker.
pub(crate) fn link(spec: &LibrarySpec, bindings: &str, out: &Path) -> Result<(), String> {
    let name = spec.name;
    let source = out.join("stub.rs");
    let file = format!("lib{name}.so.1");
    let program = source_of(bindings, spec);
    fs::write(&source, program).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc
        .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=stub"])
        .args(["-Cpanic=abort", "-Copt-level=1", "--target"])
        .arg(env::var_os("TARGET").expect("cargo sets TARGET"))
        .arg(format!("-Clink-arg=-Wl,-soname,{file}"))
        .arg("-o")
        .arg(out.join(&file))
        .arg(&source);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    let status = rustc
        .status()
        .map_err(|error| format!("{rustc:?}: {error}"))?;
    if !status.success() {
        return Err(format!("{rustc:?}: {status}"));
    }
    let linked = out.join(format!("lib{name}.so"));
    let _absent = fs::remove_file(&linked);
    symlink(&file, &linked).map_err(|error| format!("{}: {error}", linked.display()))?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib={name}");
    println!(
        "cargo::warning=lib{name} is not installed ({}): the functions of this build fail",
        spec.debian
    );
    Ok(())
}

/// The library's source: a function for each declaration.
fn source_of(bindings: &str, spec: &LibrarySpec) -> String {
    let mut source = HEAD.to_owned();
    for (name, returned) in declared(bindings) {
        if name == EVENT_NAMES {
            source += &event_names(bindings);
            continue;
        }
        let (returned, value) = failure(&returned, spec);
        writeln!(
            source,
            "#[unsafe(no_mangle)] pub extern \"C\" fn {name}() -> {returned} {{ fail({value}) }}"
        )
        .expect("a string grows");
    }
    source
}

/// The function with the names of the connection manager's events, which are those of the constants.
fn event_names(bindings: &str) -> String {
    let constants = bindings.split("pub const RDMA_CM_EVENT_").skip(1);
    let arms = constants.filter_map(|text| {
        let (name, rest) = text.split_once(':')?;
        let (_, value) = rest.split_once("rdma_cm_event_type(")?;
        let (value, _) = value.split_once(')')?;
        Some(format!("{value} => c\"RDMA_CM_EVENT_{name}\", "))
    });
    let arms: String = arms.collect();
    format!(
        "#[unsafe(no_mangle)] pub extern \"C\" fn {EVENT_NAMES}(event: u32) -> *const c_char {{\n\
         match event {{ {arms}_ => c\"UNKNOWN EVENT\" }}.as_ptr() }}\n"
    )
}

/// The library functions declared in the bindings: name, and type of the result.
fn declared(bindings: &str) -> Vec<(String, String)> {
    let blocks = bindings.split("unsafe extern \"C\" {").skip(1);
    let declarations = blocks.filter_map(|block| {
        let (_, function) = block.split_once("pub fn ")?;
        let (name, rest) = function.split_once('(')?;
        let (signature, _) = rest.split_once(";\n}")?;
        let returned = signature.rsplit_once(") -> ").map_or("", |(_, to)| to);
        Some((name.to_owned(), returned.to_owned()))
    });
    declarations.collect()
}

/// Type and value of a failed function's result: NULL or a negative number. libibverbs' functions return an error number or
/// -1; readers of both conventions accept the negated number.
fn failure(returned: &str, spec: &LibrarySpec) -> (&'static str, &'static str) {
    match returned {
        "" => ("()", "()"),
        "::core::ffi::c_int" if spec.name != "rdmacm" => ("c_int", "-79"),
        "::core::ffi::c_int" => ("c_int", "-1"),
        "isize" | "off_t" => ("isize", "-1"),
        "*const ::core::ffi::c_char" => (
            "*const c_char",
            "c\"(libibverbs or librdmacm is not installed)\".as_ptr()",
        ),
        pointer if pointer.starts_with('*') => ("*mut c_void", "core::ptr::null_mut()"),
        // Integers, and transparent structs with one.
        _ => ("u64", "0"),
    }
}
