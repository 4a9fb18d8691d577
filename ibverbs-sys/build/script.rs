//! Common part of the build scripts: finds the library and writes `bindings.rs` to `OUT_DIR`.

#[cfg(feature = "bindgen")]
#[path = "headers.rs"]
mod headers;
#[path = "library.rs"]
mod library;
#[path = "stub.rs"]
mod stub;

pub(crate) use library::LibrarySpec;

use library::Found;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Parameters of one -sys crate.
pub(crate) struct Script {
    pub spec: LibrarySpec,
    /// Items newer than rdma-core 39: a cfg, and the text in the bindings by which to detect the item, with or without
    /// rustfmt.
    pub newer: &'static [(&'static str, &'static str)],
    /// Selects the items of the headers.
    #[cfg(feature = "bindgen")]
    pub select: fn(bindgen::Builder) -> bindgen::Builder,
}

impl Script {
    /// Runs the build script.
    pub(crate) fn run(&self) -> ExitCode {
        for path in ["build", "wrapper.h", "src/bindings.rs"] {
            println!("cargo::rerun-if-changed={path}");
        }
        println!("cargo::rerun-if-env-changed=DOCS_RS");
        // docs.rs does not link, and its headers may be of another release.
        if env::var_os("DOCS_RS").is_some() {
            self.write(&Found::default(), None);
            return ExitCode::SUCCESS;
        }
        // A cross build with the headers only, which are those of all architectures.
        let stub = is_cross() && library::has_headers_only(&self.spec) && stub::is_enabled();
        match library::find(&self.spec, !is_loaded() && !stub) {
            Ok(mut found) => {
                // Headers of other libraries include verbs.h: the file read by ibverbs-sys.
                let verbs = env::var_os("DEP_IBVERBS_INCLUDE").unwrap_or_default();
                // Of an empty variable, the only path is empty.
                let verbs = env::split_paths(&verbs).filter(|path| !path.as_os_str().is_empty());
                found.include.splice(0..0, verbs);
                self.write(&found, self.regenerate(&found));
                match stub {
                    true => result(stub::link(&self.spec, &checked_in(), &out())),
                    false => ExitCode::SUCCESS,
                }
            }
            Err(_) if stub::is_enabled() && !is_loaded() => {
                library::watch();
                self.write(&Found::default(), None);
                println!("cargo::rustc-cfg=stub");
                println!("cargo::metadata=stub=1");
                result(stub::link(&self.spec, &checked_in(), &out()))
            }
            // Another crate defines the functions, or they are loaded later: nothing to link, and the checked-in bindings
            // are used.
            Err(_) if has_feature("PROVIDED") || is_loaded() => {
                library::watch();
                self.write(&Found::default(), None);
                ExitCode::SUCCESS
            }
            Err(message) => result(Err(message)),
        }
    }

    /// Generates bindings from the headers; `None` without a working libclang.
    #[cfg(feature = "bindgen")]
    fn regenerate(&self, found: &Found) -> Option<String> {
        let builder = headers::builder(&found.include)?;
        Some(headers::generate((self.select)(builder)))
    }

    #[cfg(not(feature = "bindgen"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn regenerate(&self, _: &Found) -> Option<String> {
        None
    }

    /// Writes the bindings, and prints cfgs and metadata for this crate and its dependents.
    fn write(&self, found: &Found, regenerated: Option<String>) {
        println!("cargo::rustc-check-cfg=cfg(stub)");
        println!("cargo::rustc-check-cfg=cfg(regenerated)");
        if regenerated.is_some() {
            println!("cargo::rustc-cfg=regenerated");
        }
        let mut bindings = regenerated.unwrap_or_else(checked_in);
        println!("cargo::rustc-check-cfg=cfg(loaded)");
        if is_loaded() {
            println!("cargo::rustc-cfg=loaded");
            let defined = format!("loaded! {{ c\"lib{}.so.1\";", self.spec.name);
            bindings = bindings.replace("unsafe extern \"C\" {", &defined);
        }
        for (cfg, probe) in self.newer {
            println!("cargo::rustc-check-cfg=cfg({cfg})");
            if bindings.contains(probe) {
                println!("cargo::rustc-cfg={cfg}");
            }
        }
        let include = env::join_paths(&found.include).expect("an include path has no colon");
        let include = include.to_str().expect("an include path is UTF-8");
        println!("cargo::metadata=include={include}");
        println!("cargo::rustc-env={}_INCLUDE={include}", self.spec.prefix);
        if let Some(version) = &found.version {
            println!("cargo::metadata=version={version}");
        }
        if let Some(release) = found.release() {
            println!("cargo::metadata=release={release}");
            println!("cargo::rustc-env={}_RELEASE={release}", self.spec.prefix);
        }
        fs::write(out().join("bindings.rs"), bindings).expect("OUT_DIR is writable");
    }
}

/// The folder of the script's output.
fn out() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

/// The script's exit code; prints an error.
fn result(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the target is another platform than the host's.
fn is_cross() -> bool {
    env::var_os("TARGET") != env::var_os("HOST")
}

/// Whether a feature is enabled, by its name in capitals.
fn has_feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

/// Whether the program loads the library at run time, so does not link it.
fn is_loaded() -> bool {
    has_feature("DLOPEN") && !has_feature("PROVIDED")
}

/// The checked-in bindings, generated by `cargo xtask codegen`.
fn checked_in() -> String {
    let width = env::var("CARGO_CFG_TARGET_POINTER_WIDTH").expect("cargo sets it");
    assert_eq!(
        width, "64",
        "the checked-in bindings are for 64 bits: enable the feature bindgen"
    );
    fs::read_to_string("src/bindings.rs").expect("the crate contains its bindings")
}
