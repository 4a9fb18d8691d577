//! What both build scripts do, from finding the library to `bindings.rs` in `OUT_DIR`.

use crate::library::{self, Found, Wanted};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// One -sys crate, as seen by its build script.
pub(crate) struct Script {
    pub wanted: Wanted,
    /// What appeared after rdma-core 39: a cfg, and the text in the bindings that proves
    /// it, whether rustfmt has been over it or not.
    pub newer: &'static [(&'static str, &'static str)],
    /// Makes bindings of the headers, or returns `None` if it cannot on this machine.
    pub regenerate: fn(&[PathBuf]) -> Option<String>,
}

impl Script {
    /// Runs; `include` is where the headers are that the library's own include.
    pub(crate) fn run(&self, include: impl IntoIterator<Item = PathBuf>) -> ExitCode {
        for path in ["build", "wrapper.h", "src/bindings.rs"] {
            println!("cargo::rerun-if-changed={path}");
        }
        println!("cargo::rerun-if-env-changed=DOCS_RS");
        // docs.rs does not link, and has the headers of some other release.
        if env::var_os("DOCS_RS").is_some() {
            self.write(&Found::default(), None);
            return ExitCode::SUCCESS;
        }
        match library::find(&self.wanted) {
            Ok(mut found) => {
                found.include.splice(0..0, include);
                self.write(&found, (self.regenerate)(&found.include));
                ExitCode::SUCCESS
            }
            // The program defines the functions, so nothing is linked, and the checked-in bindings serve.
            Err(_) if env::var_os("CARGO_FEATURE_PROVIDED").is_some() => {
                self.write(&Found::default(), None);
                ExitCode::SUCCESS
            }
            Err(message) => {
                eprintln!("{message}");
                ExitCode::FAILURE
            }
        }
    }

    /// Writes the bindings, and tells this crate and those above it what they are.
    fn write(&self, found: &Found, regenerated: Option<String>) {
        println!("cargo::rustc-check-cfg=cfg(regenerated)");
        if regenerated.is_some() {
            println!("cargo::rustc-cfg=regenerated");
        }
        let bindings = regenerated.unwrap_or_else(checked_in);
        for (cfg, probe) in self.newer {
            println!("cargo::rustc-check-cfg=cfg({cfg})");
            if bindings.contains(probe) {
                println!("cargo::rustc-cfg={cfg}");
            }
        }
        let include = env::join_paths(&found.include).expect("an include path has no colon");
        let include = include.to_str().expect("an include path is UTF-8");
        println!("cargo::metadata=include={include}");
        println!("cargo::rustc-env={}_INCLUDE={include}", self.wanted.prefix);
        if let Some(version) = &found.version {
            println!("cargo::metadata=version={version}");
        }
        if let Some(release) = found.release() {
            println!("cargo::metadata=release={release}");
            println!("cargo::rustc-env={}_RELEASE={release}", self.wanted.prefix);
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        fs::write(out.join("bindings.rs"), bindings).expect("OUT_DIR is writable");
    }
}

/// The bindings that `cargo xtask codegen` made of a distribution's headers.
fn checked_in() -> String {
    let width = env::var("CARGO_CFG_TARGET_POINTER_WIDTH").expect("cargo sets it");
    assert_eq!(
        width, "64",
        "the checked-in bindings are for 64 bits: enable the feature bindgen"
    );
    fs::read_to_string("src/bindings.rs").expect("the crate contains its bindings")
}
