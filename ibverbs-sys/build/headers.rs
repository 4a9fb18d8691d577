//! Runs bindgen over `wrapper.h`. Shared by the -sys crates, each with its own allow list.

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, IntKind, ParseCallbacks};
use bindgen::{Builder, EnumVariation, RustTarget};
use std::path::PathBuf;

/// Headers of the compiler and the C library included by the RDMA headers. If libclang cannot read them, its resource
/// headers or, in a cross build, the target's headers are missing, and bindgen cannot work.
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

/// The builder settings common to all RDMA headers.
///
/// `None`, with a warning, without a working libclang.
pub(crate) fn builder(include: &[PathBuf]) -> Option<Builder> {
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    // Load explicitly: bindgen panics if it cannot load libclang, and reuses a loaded library.
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
        // Types of the C library come from the crate `libc`, and ibv_* for librdmacm from ibverbs-sys.
        .allowlist_recursively(false)
        // bindgen's generated names for anonymous enums change with every release.
        .blocklist_type("_bindgen_ty_.*")
        .clang_args(include.iter().map(|dir| format!("-I{}", dir.display())))
        .rust_target(RustTarget::stable(85, 0).expect("bindgen knows the MSRV"))
        // A newer kernel or provider may return other values: enums stay open.
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

/// Checks libclang for the target; the error is one line.
fn read_system_headers() -> Result<(), String> {
    let probe = || {
        bindgen::builder()
            .header_contents("system.h", SYSTEM_HEADERS)
            .allowlist_type("size_t")
            .generate()
    };
    // bindgen panics on some failures of libclang.
    let read = std::panic::catch_unwind(probe).map_err(|_| "bindgen panicked".to_owned())?;
    let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    read.map(drop).map_err(|error| one_line(error.to_string()))
}

/// Generates the bindings.
#[expect(clippy::panic, reason = "a build script fails by panicking")]
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
    /// All types defined in Rust instead of in the headers are plain data.
    fn blocklisted_type_implements_trait(
        &self,
        _name: &str,
        derive: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        matches!(derive, DeriveTrait::Copy | DeriveTrait::Debug).then_some(ImplementsTrait::Yes)
    }

    /// The type of a macro at its place of use, where bindgen would infer another from the value.
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        match name {
            "SOL_RDMA" => Some(IntKind::Int),
            _ if name.starts_with("RAI_") => Some(IntKind::Int),
            _ if name.starts_with("RDMA_IB_") => Some(IntKind::U64),
            _ => None,
        }
    }
}
