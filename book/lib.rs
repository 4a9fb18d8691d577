//! The book: pages whose programs are tests.
//!
#![doc = include_str!("README.md")]

/// Programs for the patterns that protocols on RDMA are made of.
pub mod cookbook {
    #[doc = include_str!("cookbook/request_response.md")]
    pub mod request_response {}

    #[doc = include_str!("cookbook/one_sided_reads.md")]
    pub mod one_sided_reads {}

    #[doc = include_str!("cookbook/write_with_immediate.md")]
    pub mod write_with_immediate {}

    #[doc = include_str!("cookbook/srq_server.md")]
    pub mod srq_server {}

    #[doc = include_str!("cookbook/failover.md")]
    pub mod failover {}

    #[doc = include_str!("cookbook/gpu_memory.md")]
    pub mod gpu_memory {}
}

#[doc = include_str!("start.md")]
pub mod start {}

#[doc = include_str!("when_it_fails.md")]
pub mod when_it_fails {}

#[doc = include_str!("safety.md")]
pub mod safety {}
