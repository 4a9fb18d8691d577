//! The book: pages whose programs are tests.
//!
#![doc = include_str!(concat!(env!("OUT_DIR"), "/crate.md"))]

/// A page with the links of rustdoc, as written by the build script.
macro_rules! page {
    ($name:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/", $name, ".md"))
    };
}

#[cfg_attr(not(doctest), doc = page!("crate_start"))]
pub mod start {}

// Quoted sources, compared with the files by tests of their crates.
#[cfg_attr(not(doctest), doc = page!("crate_test_your_protocol"))]
pub mod test_your_protocol {}

#[cfg_attr(not(doctest), doc = page!("crate_first_protocol"))]
pub mod first_protocol {}

#[expect(
    rustdoc::invalid_rust_codeblocks,
    reason = "quotations from the middle of functions"
)]
#[cfg_attr(not(doctest), doc = page!("crate_porting_from_c"))]
pub mod porting_from_c {}

/// Programs for the patterns of protocols on RDMA.
pub mod cookbook {
    #[doc = page!("crate_cookbook_request_response")]
    pub mod request_response {}

    #[doc = page!("crate_cookbook_one_sided_reads")]
    pub mod one_sided_reads {}

    #[doc = page!("crate_cookbook_write_with_immediate")]
    pub mod write_with_immediate {}

    #[doc = page!("crate_cookbook_srq_server")]
    pub mod srq_server {}

    #[doc = page!("crate_cookbook_data_plane")]
    pub mod data_plane {}

    #[doc = page!("crate_cookbook_failover")]
    pub mod failover {}

    #[doc = page!("crate_cookbook_striping")]
    pub mod striping {}

    #[doc = page!("crate_cookbook_gpu_memory")]
    pub mod gpu_memory {}
}

#[doc = page!("crate_when_it_fails")]
pub mod when_it_fails {}

#[doc = page!("crate_check_your_program")]
pub mod check_your_program {}

#[doc = page!("crate_safety")]
pub mod safety {}

#[cfg_attr(not(doctest), doc = page!("crate_design"))]
pub mod design {}

#[cfg_attr(not(doctest), doc = page!("crate_security"))]
pub mod security {}
