//! Runs bindgen over `wrapper.h`. Shared by both -sys crates; what to bind is theirs to say.

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, IntKind, ParseCallbacks};
use bindgen::{Builder, EnumVariation, RustTarget};
use std::path::PathBuf;

/// Headers of the compiler and of the C library that the RDMA headers include. A libclang that cannot
/// read these is of no use: its own headers are missing, or in a cross build those of the target.
const SYSTEM_HEADERS: &str = "\
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <linux/types.h>
";

/// The settings that hold for every RDMA header.
///
/// `None`, with a warning, on a machine without a libclang that works.
pub(crate) fn builder(include: &[PathBuf]) -> Option<Builder> {
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    // bindgen panics when it cannot load libclang, and uses a library that is loaded already.
    if let Err(error) = clang_sys::load() {
        println!("cargo::warning=using the checked-in bindings, as libclang is missing: {error}");
        return None;
    }
    if let Err(error) = read_system_headers() {
        println!(
            "cargo::warning=using the checked-in bindings, as libclang cannot read the C library's \
             headers: {error}"
        );
        return None;
    }
    let builder = bindgen::builder()
        .header("wrapper.h")
        // The C library's types come from the crate `libc`, and ibv_* for librdmacm from ibverbs-sys.
        .allowlist_recursively(false)
        // Enums without a name would get one that changes with every release.
        .blocklist_type("_bindgen_ty_.*")
        .clang_args(include.iter().map(|dir| format!("-I{}", dir.display())))
        .rust_target(RustTarget::stable(85, 0).expect("bindgen knows the MSRV"))
        // A value may come from a newer kernel or provider: no enum is closed.
        .default_enum_style(EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .prepend_enum_name(false)
        .use_core()
        .parse_callbacks(Box::new(Callbacks))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .generate_comments(false);
    Some(builder)
}

/// Whether libclang works for the target, said in one line if not.
fn read_system_headers() -> Result<(), String> {
    let probe = || {
        bindgen::builder()
            .header_contents("system.h", SYSTEM_HEADERS)
            .allowlist_type("size_t")
            .generate()
    };
    // bindgen panics about some of the ways in which libclang can fail.
    let read = std::panic::catch_unwind(probe).map_err(|_| "bindgen panicked".to_owned())?;
    let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    read.map(drop).map_err(|error| one_line(error.to_string()))
}

/// The text of the bindings.
#[expect(clippy::panic, reason = "how a build script fails")]
pub(crate) fn generate(builder: Builder) -> String {
    match builder.generate() {
        Ok(bindings) => bindings.to_string(),
        Err(error) => panic!(
            "bindgen cannot read the installed headers: {error}\n\
             Without the feature `bindgen` the crate uses its checked-in bindings."
        ),
    }
}

#[derive(Debug)]
struct Callbacks;

impl ParseCallbacks for Callbacks {
    /// Every type that comes from Rust instead of the headers is plain data.
    fn blocklisted_type_implements_trait(
        &self,
        _name: &str,
        derive: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        matches!(derive, DeriveTrait::Copy | DeriveTrait::Debug).then_some(ImplementsTrait::Yes)
    }

    /// The type a macro has at its place of use, where its digits alone suggest another.
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        match name {
            "SOL_RDMA" => Some(IntKind::Int),
            _ if name.starts_with("RAI_") => Some(IntKind::Int),
            _ if name.starts_with("RDMA_IB_") => Some(IntKind::U64),
            _ => None,
        }
    }
}
