//! The trace of a program: the events of the crates, on standard error.

use std::env;

use tracing_subscriber::EnvFilter;

/// Prints the events selected by the variable `RUST_LOG`, such as `cm=debug`. Without the variable nothing is printed, and
/// nothing is collected.
pub fn print_selected() {
    if env::var_os(EnvFilter::DEFAULT_ENV).is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .init();
    }
}
