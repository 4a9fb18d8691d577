//! Tests that `cargo test` in the root leaves out, with the command that runs them. Each is a documentation test to be
//! ignored, so that the last lines of `cargo test` list them.

/// The suites on devices of a kernel, in guests: `tests/device` of each crate. The same tests run on softnic in `cargo test`.
///
/// ```ignore
/// cargo xtask test
/// ```
pub mod device_tests_in_guests_run_by_cargo_xtask_test {}

/// Two guests, C peers and the kernel's RDS: `examples/tests/two_hosts`.
///
/// ```ignore
/// cargo xtask test
/// ```
pub mod tests_of_two_guests_run_by_cargo_xtask_test {}

/// The harness of guests and its README: `soft-roce/tests/harness.rs`.
///
/// ```ignore
/// cargo xtask test
/// ```
pub mod tests_of_the_harness_run_by_cargo_xtask_test {}

/// Bindings against the headers, and the static inlines against C's: `tests` of the -sys crates.
///
/// ```ignore
/// apt install libibverbs-dev librdmacm-dev pkg-config
/// ```
#[cfg(stub)]
pub mod bindings_against_headers_need_libibverbs_dev_and_librdmacm_dev {}

/// Programs of rdma-core on softnic, and the symbols of its libraries: `softnic/capi/tests`.
///
/// ```ignore
/// apt install ibverbs-utils rdmacm-utils perftest
/// ```
#[cfg(without_programs)]
pub mod programs_of_rdma_core_on_softnic_need_rdmacm_utils_and_perftest {}

/// UCX on softnic: `softnic/capi/tests/programs.rs`.
///
/// ```ignore
/// apt install ucx-utils
/// ```
#[cfg(without_ucx)]
pub mod ucx_on_softnic_needs_ucx_utils {}
