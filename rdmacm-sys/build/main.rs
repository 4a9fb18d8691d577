//! Finds librdmacm, regenerates the bindings from its headers, and tells what they contain.
//!
//! Out come `OUT_DIR/bindings.rs`, the cfgs in [`NEWER`] and the metadata `DEP_RDMACM_*`.

#[cfg(feature = "bindgen")]
mod headers;
mod library;

use library::{Found, Wanted};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const RDMACM: Wanted = Wanted {
    name: "rdmacm",
    package: "librdmacm",
    at_least: "1.3",
    prefix: "RDMACM",
    debian: "librdmacm-dev",
};

/// What appeared after rdma-core 39: a cfg, and the text in the bindings that proves it.
const NEWER: &[(&str, &str)] = &[
    ("rdmacm_addrinfo_async", "pub fn rdma_resolve_addrinfo("),
    ("rdmacm_repoll", "pub fn repoll_create("),
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let mut found = if env::var_os("DOCS_RS").is_some() {
        Found::default()
    } else {
        match library::find(&RDMACM) {
            Ok(found) => found,
            Err(message) => {
                eprintln!("{message}");
                return ExitCode::FAILURE;
            }
        }
    };
    // rdma_cma.h includes verbs.h, which must be the one that ibverbs-sys has read.
    let verbs = env::var_os("DEP_IBVERBS_INCLUDE").expect("ibverbs-sys says where verbs.h is");
    found.include.splice(0..0, env::split_paths(&verbs));

    let regenerated = regenerate(&found);
    println!("cargo::rustc-check-cfg=cfg(regenerated)");
    if regenerated.is_some() {
        println!("cargo::rustc-cfg=regenerated");
    }
    let bindings = regenerated.unwrap_or_else(checked_in);

    for (cfg, probe) in NEWER {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        if bindings.contains(probe) {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
    let include = env::join_paths(&found.include).expect("an include path has no colon");
    println!("cargo::metadata=include={}", include.display());
    println!("cargo::rustc-env=RDMACM_INCLUDE={}", include.display());
    println!(
        "cargo::metadata=version={}",
        found.version.as_deref().unwrap_or_default()
    );
    if let Some(release) = found.release() {
        println!("cargo::metadata=release={release}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("bindings.rs"), bindings).expect("OUT_DIR is writable");
    ExitCode::SUCCESS
}

/// The bindings of rdma-core 44, made by `cargo xtask codegen`.
fn checked_in() -> String {
    let path = Path::new("src/bindings.rs");
    println!("cargo::rerun-if-changed={}", path.display());
    fs::read_to_string(path).expect("the crate contains its bindings")
}

#[cfg(not(feature = "bindgen"))]
fn regenerate(_: &Found) -> Option<String> {
    None
}

#[cfg(feature = "bindgen")]
fn regenerate(found: &Found) -> Option<String> {
    /// Things to give back exactly once: a copy in Rust would be a lie.
    const LINEAR: &str = "rdma_(cm_id|event_channel|cm_event|addrinfo)";

    // docs.rs has the headers of some distribution, which need not be the documented ones.
    if env::var_os("DOCS_RS").is_some() {
        return None;
    }
    let bindings = headers::builder(&found.include)?
        .allowlist_file(r".*/rdma/(rdma_cma|rdma_verbs|rsocket)\.h|.*/infiniband/ib\.h")
        .blocklist_function("rfcntl")
        .bitfield_enum("rdma_cm_join_mc_attr_mask")
        .no_copy(LINEAR)
        .generate()
        .expect("bindgen reads the installed headers");
    Some(bindings.to_string())
}
