//! Functions looked up at run time.

use ibverbs_sys::late;
use std::ffi::c_int;

/// A function of every library, and a function of none.
mod probe {
    use super::c_int;

    ibverbs_sys::late! {
        fn ibv_fork_init() -> c_int;
        fn ibv_from_the_future() -> c_int;
    }
}

#[test]
fn late_function_of_the_library_is_found() {
    let linked: unsafe extern "C" fn() -> c_int = ibverbs_sys::ibv_fork_init;
    assert_eq!(
        probe::ibv_fork_init().map(|found| found as usize),
        Some(linked as usize)
    );
}

#[test]
fn late_function_missing_from_the_library_is_none() {
    assert!(probe::ibv_from_the_future().is_none());
}

/// Whether the library has the function. The type parameter checks that both signatures agree.
#[cfg(ibv_reg_mr_ex)]
fn is_found<F>(found: Option<F>, _declared: F) -> bool {
    found.is_some()
}

#[cfg(ibv_reg_mr_ex)]
#[test]
fn functions_of_rdma_core_59_match_the_headers() {
    assert!(is_found(late::ibv_reg_mr_ex(), ibverbs_sys::ibv_reg_mr_ex));
    assert!(is_found(
        late::ibv_alloc_dmah(),
        ibverbs_sys::ibv_alloc_dmah
    ));
    assert!(is_found(
        late::ibv_dealloc_dmah(),
        ibverbs_sys::ibv_dealloc_dmah
    ));
}

#[cfg(ibv_query_port_speed)]
#[test]
fn functions_of_rdma_core_62_match_the_headers() {
    assert!(is_found(
        late::ibv_query_port_speed(),
        ibverbs_sys::ibv_query_port_speed
    ));
    assert!(is_found(
        late::ibv_dm_export_dmabuf_fd(),
        ibverbs_sys::ibv_dm_export_dmabuf_fd
    ));
}

#[cfg(ibv_buf)]
#[test]
fn functions_of_rdma_core_64_match_the_headers() {
    assert!(is_found(late::ibv_alloc_buf(), ibverbs_sys::ibv_alloc_buf));
    assert!(is_found(late::ibv_free_buf(), ibverbs_sys::ibv_free_buf));
    assert!(is_found(
        late::ibv_reg_buf_mr(),
        ibverbs_sys::ibv_reg_buf_mr
    ));
}

#[cfg(ibv_comp_cntr)]
#[test]
fn functions_of_rdma_core_65_match_the_headers() {
    assert!(is_found(
        late::_ibv_query_comp_cntr_caps(),
        ibverbs_sys::_ibv_query_comp_cntr_caps
    ));
    assert!(is_found(
        late::ibv_create_comp_cntr(),
        ibverbs_sys::ibv_create_comp_cntr
    ));
    assert!(is_found(
        late::ibv_destroy_comp_cntr(),
        ibverbs_sys::ibv_destroy_comp_cntr
    ));
    assert!(is_found(
        late::ibv_set_comp_cntr(),
        ibverbs_sys::ibv_set_comp_cntr
    ));
    assert!(is_found(
        late::ibv_set_err_comp_cntr(),
        ibverbs_sys::ibv_set_err_comp_cntr
    ));
    assert!(is_found(
        late::ibv_inc_comp_cntr(),
        ibverbs_sys::ibv_inc_comp_cntr
    ));
    assert!(is_found(
        late::ibv_inc_err_comp_cntr(),
        ibverbs_sys::ibv_inc_err_comp_cntr
    ));
    assert!(is_found(
        late::ibv_read_comp_cntr(),
        ibverbs_sys::ibv_read_comp_cntr
    ));
    assert!(is_found(
        late::ibv_read_err_comp_cntr(),
        ibverbs_sys::ibv_read_err_comp_cntr
    ));
    assert!(is_found(
        late::ibv_qp_attach_comp_cntr(),
        ibverbs_sys::ibv_qp_attach_comp_cntr
    ));
    assert!(is_found(
        late::ibv_export_buf_dmabuf_fd(),
        ibverbs_sys::ibv_export_buf_dmabuf_fd
    ));
}

#[cfg(not(ibv_comp_cntr))]
#[test]
fn query_comp_cntr_caps_with_old_library_is_unsupported() {
    if late::_ibv_query_comp_cntr_caps().is_none() {
        let mut caps = ibverbs_sys::ibv_comp_cntr_caps::zeroed();
        let context = std::ptr::null_mut();
        // SAFETY: without the library function nothing is called.
        let rc = unsafe { ibverbs_sys::ibv_query_comp_cntr_caps(context, &raw mut caps) };
        assert_eq!(rc, libc::EOPNOTSUPP);
    }
}
