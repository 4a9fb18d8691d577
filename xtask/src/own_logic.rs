//! Modules of device tests that `cargo xtask test` and `ci` leave out on Soft-RoCE: tests of a crate's own logic.
//!
//! A module belongs here if both hold:
//! - its tests pass on softnic, in the stage *host*; the table of both devices ([`crate::differences`]) checks this;
//! - the tested results are decided above `verbs` and `cm`: states and options of sockets, readiness, wake-ups of tasks.
//!
//! All tests of `verbs` and `cm` stay, because each call reaches the kernel, and so do tests of connection setup, of the
//! wire, of memory accessed by the device, of ends of processes, of libraries loaded into other programs, and of peers in C.
//! With `--long`, a filter, `--device-only` or a stack, nothing is left out.

/// Libraries and modules.
pub(crate) const MODULES: [(&str, &str); 7] = [
    // Calls on sockets in every state, `poll`, event sets.
    ("rsocket", "sockets::"),
    // Options from configuration files.
    ("rsocket", "settings::"),
    // Limits of the library: queue lengths, sizes of calls, numbers of members of an event set.
    ("rsocket", "edge_sizes::"),
    // Sockets in tasks, and fairness between tasks.
    ("rsocket", "asynchronous::"),
    ("rsocket", "tasks::"),
    ("rds", "tasks::"),
    // Results and errors of calls, compared with the manual of the kernel's sockets.
    ("rds", "semantics::"),
];

/// Whether the test is left out on Soft-RoCE.
pub(crate) fn has(library: &str, test: &str) -> bool {
    of(library).any(|module| test.starts_with(module))
}

/// Modules of a library.
pub(crate) fn of(library: &str) -> impl Iterator<Item = &'static str> {
    let modules = MODULES.iter().filter(move |(of, _)| *of == library);
    modules.map(|(_, module)| *module)
}
