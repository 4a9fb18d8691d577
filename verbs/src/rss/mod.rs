//! Receive-side scaling: packets spread over work queues.
//!
//! | item | is |
//! |---|---|
//! | [`WorkQueue`], [`WorkQueueBuilder`], [`WqFlags`] | a receive queue without a queue pair |
//! | [`IndirectionTable`] | work queues, by the hash of a packet |
//! | [`RxHash`] | the hash: its function, key and fields |
//! | [`RssQueuePair`] | the queue pair in front of the table |
//!
//! # References
//! [ibv_create_wq(3)](https://man7.org/linux/man-pages/man3/ibv_create_wq.3.html),
//! [ibv_create_rwq_ind_table(3)](https://man7.org/linux/man-pages/man3/ibv_create_rwq_ind_table.3.html),
//! [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)

mod indirection_table;
mod queue_pair;
mod work_queue;

pub use indirection_table::IndirectionTable;
pub use queue_pair::{RssQueuePair, RxHash};
pub use work_queue::{WorkQueue, WorkQueueBuilder, WqFlags};
