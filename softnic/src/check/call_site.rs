//! Call sites: the stack of a call, and the program's function in it.

use std::{
    cell::Cell,
    collections::HashMap,
    path::Path,
    ptr,
    sync::{Arc, PoisonError, RwLock},
};

use super::report::Location;
use crate::abi::{object_of, own_object, stack};

/// Whether the call at an address is one of the program: looked up once for each address.
static OF_PROGRAM: RwLock<Option<HashMap<usize, bool>>> = RwLock::new(None);

/// Crates between the program and the device, in the names of functions. Debug information may have names without a crate.
const CRATES: [&str; 16] = [
    "softnic",
    "softnic_verbs",
    "softnic_capi",
    "verbs",
    "cm",
    "efa",
    "efa_sys",
    "mlx5",
    "mlx5_sys",
    "ibverbs_sys",
    "rdmacm_sys",
    "backtrace",
    "core",
    "std",
    "alloc",
    "__rustc",
];

/// Functions of libibverbs, librdmacm, libefa and libmlx5.
const C_FUNCTIONS: [&str; 5] = ["ibv_", "rdma_", "_ibv_", "efadv_", "mlx5dv_"];

/// Folders of these crates beside softnic's own.
const FOLDERS: [&str; 9] = [
    "softnic",
    "verbs",
    "cm",
    "efa",
    "efa-sys",
    "mlx5",
    "mlx5-sys",
    "ibverbs-sys",
    "rdmacm-sys",
];

/// Names of packages with a version, in the folder of a registry.
const PACKAGES: [&str; 10] = [
    "softnic-",
    "rdma-verbs-",
    "rdma-cm-",
    "rdma-efa-",
    "rdma-efa-sys-",
    "rdma-mlx5-",
    "rdma-mlx5-sys-",
    "rdma-ibverbs-sys-",
    "rdmacm-sys-",
    "backtrace-",
];

thread_local! {
    /// Whether this thread is one of the device, whose stack has no function of the program.
    static IS_OF_DEVICE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one of the device, until its end.
pub(crate) fn enter_device_thread() {
    // Without the thread's values, at its end, no call follows.
    let _marked = IS_OF_DEVICE.try_with(|is_of_device| is_of_device.set(true));
}

/// Addresses of the calls of a stack, the innermost one first, up to the program's innermost function.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallSite(Arc<[usize]>);

impl CallSite {
    /// The stack of this call; empty in a thread of the device.
    pub(crate) fn here() -> Self {
        if IS_OF_DEVICE.try_with(Cell::get).unwrap_or(false) {
            return Self::default();
        }
        Self(stack(is_of_program))
    }

    /// The innermost function of the program; `None` if the stack has none.
    pub(super) fn location(&self) -> Option<Location> {
        self.0.iter().find_map(|address| location(*address))
    }
}

/// Whether the innermost function at an address is the program's.
fn is_of_program(address: usize) -> bool {
    let known = OF_PROGRAM.read().unwrap_or_else(PoisonError::into_inner);
    let found = known.as_ref().and_then(|all| all.get(&address)).copied();
    drop(known);
    found.unwrap_or_else(|| {
        let found = location(address).is_some();
        let mut all = OF_PROGRAM.write().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().insert(address, found);
        found
    })
}

/// The innermost function at an address that is not one of a library.
fn location(address: usize) -> Option<Location> {
    let (mut found, mut has_symbol) = (None, false);
    // Inlined functions come first, the function around them last.
    backtrace::resolve(ptr::without_provenance_mut(address), |symbol| {
        let Some(name) = symbol.name().filter(|_| found.is_none()) else {
            return;
        };
        has_symbol = true;
        let file = symbol.filename().map(|file| file.display().to_string());
        let location = Location {
            function: format!("{name:#}"),
            line: file.zip(symbol.lineno()),
        };
        let is_of_library = is_name_of_library(&location.function)
            || match &location.line {
                Some((file, _)) => is_file_of_library(Path::new(file)),
                // An instruction without a line, of a function without a crate in its name, may be softnic's.
                None => !location.function.contains("::") && object_of(address) == own_object(),
            };
        found = (!is_of_library).then_some(location);
    });
    if has_symbol { found } else { nameless(address) }
}

/// A function without a symbol, of a program without debug information: the file and the offset in it.
fn nameless(address: usize) -> Option<Location> {
    let object = object_of(address).filter(|object| own_object().as_ref() != Some(object))?;
    Some(Location {
        function: format!("{}+{:#x}", object.file, address - object.start),
        line: None,
    })
}

/// Whether a function has the name of a library between the program and the device.
fn is_name_of_library(name: &str) -> bool {
    let path = name.trim_start_matches(['<', '&', '*']);
    let path = path.strip_prefix("dyn ").unwrap_or(path);
    let of_crate = |of: &str| {
        path.strip_prefix(of)
            .is_some_and(|rest| rest.starts_with("::"))
    };
    CRATES.iter().any(|of| of_crate(of)) || C_FUNCTIONS.iter().any(|start| name.starts_with(start))
}

/// Whether a file is a source of a library between the program and the device.
fn is_file_of_library(file: &Path) -> bool {
    let siblings = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let is_sibling = |folder: &str| {
        siblings.is_some_and(|siblings| file.starts_with(siblings.join(folder).join("src")))
    };
    let mut components = file
        .components()
        .map(|part| part.as_os_str().to_string_lossy());
    FOLDERS.iter().any(|folder| is_sibling(folder))
        || file.starts_with("/rustc")
        || components.any(|part| {
            PACKAGES.iter().any(|package| {
                part.strip_prefix(package)
                    .is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_libraries_are_no_functions_of_the_program() {
        for name in [
            "softnic::abi::post::post_send",
            "<verbs::qp::QueuePair<T> as verbs::Post>::post",
            "core::ops::function::FnOnce::call_once",
            "ibv_ack_cq_events",
        ] {
            assert!(is_name_of_library(name), "{name}");
        }
        for name in [
            "main",
            "cmtime::run",
            "verbs_server::main",
            "<app::S as app::T>::f",
        ] {
            assert!(!is_name_of_library(name), "{name}");
        }
    }

    #[test]
    fn files_of_libraries_are_those_of_their_packages() {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs");
        for file in [
            own,
            "/home/user/.cargo/registry/src/index/rdma-verbs-0.1.0/src/qp/mod.rs",
            "/rustc/0123/library/core/src/option.rs",
        ] {
            assert!(is_file_of_library(Path::new(file)), "{file}");
        }
        let test = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/checks.rs");
        for file in [
            test,
            "/home/user/verbs/src/main.rs",
            "server.c",
            "/home/softnic-demo/a.rs",
        ] {
            assert!(!is_file_of_library(Path::new(file)), "{file}");
        }
    }
}
