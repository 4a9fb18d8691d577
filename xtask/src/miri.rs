//! Which tests `cargo xtask test --miri` runs, and which it leaves out for which reason.
//!
//! Miri interprets a test and finds undefined behaviour: data races, accesses outside of an object or after its end, and
//! references that alias. The fake device's tests and those of the pure modules run with Tree Borrows. Stacked Borrows rejects
//! requests that point to each other, and elements that a provider reads where the work keeps them, so with that run the
//! modules that have neither.
//!
//! Addresses go to the device as numbers, so provenance is exposed, and Miri cannot check it strictly.

/// How Miri checks: the fake device reaches memory by address (permissive provenance), tests leak on purpose, and
/// descriptors and clocks are the host's.
pub(crate) const FLAGS: &str =
    "-Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation";

/// References are checked by Tree Borrows.
pub(crate) const TREE_BORROWS: &str = "-Zmiri-tree-borrows";

/// The modules of `verbs` whose tests need no device and no call of the kernel.
pub(crate) const PURE: [&str; 8] = [
    "mr::copying",
    "mr::remote::tests",
    "qp::",
    "srq::slab",
    "work::",
    "wr_id",
    "recv_list",
    "bounded",
];

/// Those of them that run with Stacked Borrows, too.
pub(crate) const STACKED: [&str; 8] = [
    "mr::copying",
    "mr::remote::tests",
    "qp::inflight",
    "qp::slots",
    "qp::unordered",
    "srq::slab",
    "wr_id",
    "bounded",
];

/// What the names of tests have in them that Miri cannot run, and why not.
pub(crate) const LEFT_OUT: [(&str, &str); 26] = [
    (
        "interleavings",
        "loom switches stacks by itself; or all orders, which take hours",
    ),
    ("every_order", "all orders, which take hours"),
    ("given_up_in_silence", "all orders, which take hours"),
    (
        "legal",
        "compares the whole table of transitions, without unsafe code",
    ),
    ("the_largest_ring", "8 million slots"),
    ("work_of_no_size", "8 million slots"),
    ("names_come_round", "8 million slots"),
    ("processes_share", "memfd_create"),
    ("shared_memory", "memfd_create"),
    ("huge", "mmap with MAP_HUGETLB"),
    ("odp_", "mmap with MAP_NORESERVE"),
    (
        "dmabuf_reg_mr",
        "the device of a file, which two calls tell differently",
    ),
    ("fork", "fork"),
    (
        "completion_counters",
        "functions that are looked up at run time",
    ),
    ("waiting::", "poll"),
    ("descriptors::", "poll"),
    ("work_comes_back_through_an_extended_queue", "poll"),
    ("events::", "poll"),
    (
        "pyverbs::",
        "the same calls as the other tests, in rdma-core's order",
    ),
    ("pool", "threads that spin for each other take hours"),
    (
        "threads_never_have_one_buffer",
        "threads that spin for each other take hours",
    ),
    ("again_and_again", "hundreds of rounds"),
    ("many_rounds", "thousands of rounds"),
    (
        "with_holes_drops_each_work_once",
        "64 orders of 11 requests",
    ),
    (
        "from_many_threads",
        "threads that spin for each other take hours",
    ),
    (
        "as_many_elements_as_the_device_takes",
        "128 elements in each of all ways take 5 minutes",
    ),
];
